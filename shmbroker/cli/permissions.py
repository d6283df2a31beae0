"""Permissions as text, both ways: the words of the ``iggy`` command line.

    global     manage_streams,read_users          or the short names m_str,r_usr
    streams    STREAM[:FLAG,...][#TOPIC[:FLAG,...]]...        once for each stream; both by number

A flag may be written whole or short: m_ (manage), r_ (read), p_msg (poll_messages), s_msg (send_messages).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import typer

from shmbroker.core.permissions import (
    GLOBAL_FLAGS,
    STREAM_FLAGS,
    TOPIC_FLAGS,
    Flags,
    Permissions,
    StreamPermissions,
    TopicPermissions,
)
from shmbroker.limits import U32_MAX

SHORT_NAMES: Final = {
    "m_srv": "manage_servers", "r_srv": "read_servers", "m_usr": "manage_users", "r_usr": "read_users",
    "m_str": "manage_streams", "r_str": "read_streams", "m_top": "manage_topics", "r_top": "read_topics",
    "p_msg": "poll_messages", "s_msg": "send_messages",
}  # fmt: skip


def permissions_of(flags: str | None, streams: Sequence[str]) -> Permissions | None:
    """What the two options say; None where neither is given. Raises BadParameter."""
    if flags is None and not streams:
        return None
    names = [name for name in (flags or "").split(",") if name]
    found = sorted((_stream_of(text) for text in streams), key=lambda stream: stream.stream_id)
    return Permissions(_flags_of(names, GLOBAL_FLAGS), tuple(found)).normalised()


def facts_of(permissions: Permissions) -> dict[str, Any]:
    """For JSON: the names of the flags that are set."""
    return {
        "global": _names_of(permissions.flags, GLOBAL_FLAGS),
        "streams": [
            {
                "stream": stream.stream_id,
                "flags": _names_of(stream.flags, STREAM_FLAGS),
                "topics": [
                    {"topic": topic.topic_id, "flags": _names_of(topic.flags, TOPIC_FLAGS)} for topic in stream.topics
                ],
            }
            for stream in permissions.streams
        ],
    }


def rows_of(facts: Mapping[str, Any]) -> dict[str, Any]:
    """For a table: a row for each place that has a flag."""
    rows: dict[str, Any] = {"global permissions": facts["global"] or "none"}
    for stream in facts["streams"]:
        rows[f"stream {stream['stream']}"] = stream["flags"] or "none"
        for topic in stream["topics"]:
            rows[f"stream {stream['stream']} topic {topic['topic']}"] = topic["flags"] or "none"
    return rows


def _stream_of(text: str) -> StreamPermissions:
    stream, *topics = text.split("#")
    stream_id, names = _place_of(stream, text)
    found = []
    for topic in topics:
        topic_id, topic_names = _place_of(topic, text)
        found.append(TopicPermissions(topic_id, _flags_of(topic_names, TOPIC_FLAGS)))
    return StreamPermissions(stream_id, _flags_of(names, STREAM_FLAGS), tuple(found))


def _place_of(text: str, whole: str) -> tuple[int, list[str]]:
    number, _, names = text.partition(":")
    if not (number.isascii() and number.isdecimal() and int(number) <= U32_MAX):
        raise typer.BadParameter(
            f"{whole!r} is not STREAM[:FLAG,...][#TOPIC[:FLAG,...]]: a stream and a topic are numbers here"
        )
    return int(number), [name for name in names.split(",") if name]


def _flags_of(names: Sequence[str], known: Sequence[str]) -> Flags:
    wanted = set()
    for name in names:
        whole = SHORT_NAMES.get(name, name)
        # "m_str" of a stream is manage_stream, of everything manage_streams.
        chosen = whole if whole in known else whole.removesuffix("s")
        if chosen not in known:
            raise typer.BadParameter(f"{name!r} is no permission here: {', '.join(known)}")
        wanted.add(chosen)
    return tuple(name in wanted for name in known)


def _names_of(flags: Flags, known: Sequence[str]) -> list[str]:
    return [name for name, is_set in zip(known, flags, strict=True) if is_set]
