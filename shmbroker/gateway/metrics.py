"""The figures of the broker in OpenMetrics, read from the control blocks that the workers write anyway.

A scrape asks the front once (the catalog, and which log is where) and maps each partition's control block for a moment:
no worker takes part. Counters of a partition grow for as long as its control block lives, through restarts of workers;
they begin anew with the broker's runtime directory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from shmbroker.formats.control import (
    CONTROL_MAGIC,
    CONTROL_SIZE,
    COUNTER,
    WORD_COMMITTED_OFFSET,
    WORD_COMMITTED_POSITION,
    WORD_DURABLE_OFFSET,
    WORD_FIRST_POSITION,
    WORD_MAGIC,
    WORD_RING_SIZE,
    WORD_SEGMENT_COUNT,
    WORD_STATE,
    State,
)
from shmbroker.gateway.admission import Figures
from shmbroker.storage.segment_view import map_file
from shmbroker.wire.local import LogsReply

CONTENT_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
NAMESPACE: Final = "shmbroker_partition"
GAUGES: Final = frozenset({"messages_retained", "bytes_retained", "direct_io"})
BROKER_GAUGES: Final = {
    "streams": "Streams.",
    "topics": "Topics.",
    "partitions": "Partitions.",
    "users": "Users.",
    "clients": "Connections, the gateway's own among them.",
    "workers": "Partition workers that serve.",
}
Labelled = dict[str, tuple[str, str, list[str]]]
"""Name of a family: its type, its help, its lines."""


def exposition(reply: LogsReply, figures: Figures) -> str:
    """All families, ended by ``# EOF``."""
    families: Labelled = {}
    _of_gateway(families, figures)
    for name, text in BROKER_GAUGES.items():
        _add(families, name, "gauge", text, "", reply.figures.get(name, 0))
    totals = {"segments": 0, "messages": 0}
    for entry in reply.logs:
        words = _words_of(entry["control"])
        _add(families, f"{NAMESPACE}_serves", "gauge", "1 while it is open.", _labels(entry), _serves(entry, words))
        if words is None:
            continue
        totals["segments"] += words[WORD_SEGMENT_COUNT]
        totals["messages"] += words[COUNTER["messages_retained"]]
        _of_partition(families, _labels(entry), words)
    _add(families, "segments", "gauge", "Segments of all partitions.", "", totals["segments"])
    _add(families, "messages", "gauge", "Messages that all partitions hold.", "", totals["messages"])
    return "\n".join(_lines(families)) + "\n"


def _of_gateway(families: Labelled, figures: Figures) -> None:
    _add(families, "http_requests", "counter", "Requests that the gateway got.", "", figures.requests)
    for status, count in sorted(figures.answers.items()):
        _add(families, "http_answers", "counter", "Answers by status.", f'{{status="{status}"}}', count)
    _add(families, "http_writes_under_way", "gauge", "Requests that change something.", "", figures.writes)


def _of_partition(families: Labelled, labels: str, words: memoryview) -> None:
    committed, durable = words[WORD_COMMITTED_OFFSET], words[WORD_DURABLE_OFFSET]
    size = words[WORD_COMMITTED_POSITION] - words[WORD_FIRST_POSITION]
    gauges = {
        "next_offset": ("The offset that the next message gets.", committed),
        "offsets_not_durable": ("Offsets issued above the last durable message.", max(0, committed - durable)),
        "log_bytes": ("Bytes of the log that are kept.", max(0, size)),
        "journal_bytes": ("Bytes of its ring journal.", words[WORD_RING_SIZE]),
        "segments": ("Segments.", words[WORD_SEGMENT_COUNT]),
    }
    for name, (text, value) in gauges.items():
        _add(families, f"{NAMESPACE}_{name}", "gauge", text, labels, value)
    for name, word in COUNTER.items():
        kind = "gauge" if name in GAUGES else "counter"
        text = f"{name.replace('_', ' ').capitalize()}, as the worker counts."
        _add(families, f"{NAMESPACE}_{name}", kind, text, labels, words[word])


def _add(families: Labelled, name: str, kind: str, text: str, labels: str, value: int) -> None:
    _, _, lines = families.setdefault(name, (kind, text, []))
    suffix = "_total" if kind == "counter" else ""
    lines.append(f"{name}{suffix}{labels} {value}")


def _lines(families: Labelled) -> Iterator[str]:
    for name, (kind, text, lines) in families.items():
        yield f"# TYPE {name} {kind}"
        yield f"# HELP {name} {text}"
        yield from lines
    yield "# EOF"


def _serves(entry: dict[str, Any], words: memoryview | None) -> int:
    return int(words is not None and words[WORD_STATE] == State.OPEN and entry["state"] == "open")


def _words_of(path: str) -> memoryview | None:
    """The control block, or None where there is none (yet, or any more)."""
    if not path:
        return None
    try:
        view = map_file(path)
    except FileNotFoundError:
        return None
    if len(view) < CONTROL_SIZE:
        return None
    words = view.cast("Q")
    return words if words[WORD_MAGIC] == CONTROL_MAGIC else None


def _labels(entry: dict[str, Any]) -> str:
    pairs = (("stream", entry["stream"]), ("topic", entry["topic"]), ("partition", str(entry["partition"])))
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def troubles_of(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The partitions that are refused or poisoned, and why."""
    return [
        {**{key: entry[key] for key in ("stream", "topic", "partition", "state")}, "reason": entry["reason"] or ""}
        for entry in entries
        if entry["state"] in ("refused", "poisoned")
    ]
