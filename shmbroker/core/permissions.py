"""What a user may do: flags for everything, for one stream, for one topic, and which of them an action asks for.

Any one flag suffices. A flag of a stream counts for all topics in it; nobody gets anything from a topic that is not
named. The root user is above all this and never asked about.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

GLOBAL_FLAGS: Final = (
    "manage_servers",
    "read_servers",
    "manage_users",
    "read_users",
    "manage_streams",
    "read_streams",
    "manage_topics",
    "read_topics",
    "poll_messages",
    "send_messages",
)
STREAM_FLAGS: Final = ("manage_stream", "read_stream", "manage_topics", "read_topics", "poll_messages", "send_messages")
TOPIC_FLAGS: Final = ("manage_topic", "read_topic", "poll_messages", "send_messages")

Flags = tuple[bool, ...]


class TopicPermissions(NamedTuple):
    """``flags``: as named in TOPIC_FLAGS."""

    topic_id: int
    flags: Flags


class StreamPermissions(NamedTuple):
    """``flags``: as named in STREAM_FLAGS. Topics are sorted by id."""

    stream_id: int
    flags: Flags
    topics: tuple[TopicPermissions, ...] = ()


@dataclass(frozen=True, slots=True)
class Permissions:
    """``flags``: as named in GLOBAL_FLAGS. Streams are sorted by id."""

    flags: Flags
    streams: tuple[StreamPermissions, ...] = ()

    def normalised(self) -> Permissions:
        """Sorted by id; of several entries for one stream or topic, each flag that any of them sets."""
        streams: dict[int, tuple[Flags, dict[int, Flags]]] = {}
        for stream in self.streams:
            flags, topics = streams.get(stream.stream_id, ((False,) * len(STREAM_FLAGS), {}))
            for topic in stream.topics:
                topics[topic.topic_id] = _either(topics.get(topic.topic_id, topic.flags), topic.flags)
            streams[stream.stream_id] = _either(flags, stream.flags), topics
        return Permissions(
            self.flags,
            tuple(
                StreamPermissions(stream_id, flags, tuple(TopicPermissions(*item) for item in sorted(topics.items())))
                for stream_id, (flags, topics) in sorted(streams.items())
            ),
        )

    def without(self, stream_id: int, topic_id: int | None = None) -> Permissions:
        """These, less what they say about a stream, or about one topic: its id may soon be another's."""
        if topic_id is None:
            return Permissions(self.flags, tuple(each for each in self.streams if each.stream_id != stream_id))
        return Permissions(
            self.flags,
            tuple(
                each._replace(topics=tuple(topic for topic in each.topics if topic.topic_id != topic_id))
                if each.stream_id == stream_id
                else each
                for each in self.streams
            ),
        )


EVERYTHING: Final = Permissions((True,) * len(GLOBAL_FLAGS))
"""What the root user is shown to have."""


class Action(Enum):
    """What is asked for; RULES says which flags allow it."""

    READ_SERVERS = "look at the server"
    READ_USERS = "look at users"
    MANAGE_USERS = "change users"
    READ_STREAMS = "list the streams"
    READ_STREAM = "look at this stream"
    CREATE_STREAM = "create streams"
    MANAGE_STREAM = "change this stream"
    READ_TOPICS = "list the topics of this stream"
    READ_TOPIC = "look at this topic"
    CREATE_TOPIC = "create topics in this stream"
    MANAGE_TOPIC = "change this topic"
    POLL = "poll messages of this topic"
    SEND = "send messages to this topic"


class Rule(NamedTuple):
    """Masks of the flags of which any one suffices: bit i is the i-th name."""

    everywhere: int
    stream: int = 0
    topic: int = 0


def _mask(names: tuple[str, ...], wanted: str) -> int:
    return sum(1 << names.index(name) for name in wanted.split())


def _rule(everywhere: str, stream: str = "", topic: str = "") -> Rule:
    return Rule(_mask(GLOBAL_FLAGS, everywhere), _mask(STREAM_FLAGS, stream), _mask(TOPIC_FLAGS, topic))


_READ_TOPICS: Final = (
    "manage_streams read_streams manage_topics read_topics",
    "manage_stream read_stream manage_topics read_topics",
)
_MANAGE_TOPICS: Final = ("manage_streams manage_topics", "manage_stream manage_topics")
RULES: Final[dict[Action, Rule]] = {
    Action.READ_SERVERS: _rule("manage_servers read_servers"),
    Action.READ_USERS: _rule("manage_users read_users"),
    Action.MANAGE_USERS: _rule("manage_users"),
    Action.READ_STREAMS: _rule("manage_streams read_streams"),
    Action.READ_STREAM: _rule("manage_streams read_streams", "manage_stream read_stream"),
    Action.CREATE_STREAM: _rule("manage_streams"),
    Action.MANAGE_STREAM: _rule("manage_streams", "manage_stream"),
    Action.READ_TOPICS: _rule(*_READ_TOPICS),
    Action.READ_TOPIC: _rule(*_READ_TOPICS, "manage_topic read_topic"),
    Action.CREATE_TOPIC: _rule(*_MANAGE_TOPICS),
    Action.MANAGE_TOPIC: _rule(*_MANAGE_TOPICS, "manage_topic"),
    Action.POLL: _rule(
        "poll_messages read_topics manage_topics read_streams manage_streams",
        "poll_messages read_topics manage_topics read_stream manage_stream",
        "manage_topic read_topic poll_messages",
    ),
    Action.SEND: _rule(
        "send_messages manage_streams manage_topics",
        "send_messages manage_stream manage_topics",
        "manage_topic send_messages",
    ),
}


class Grants:
    """Permissions laid out for asking: three masks, of which two are looked up."""

    __slots__ = ("_everywhere", "_streams", "_topics")

    def __init__(self, permissions: Permissions | None) -> None:
        self._everywhere = 0 if permissions is None else _bits(permissions.flags)
        self._streams: dict[int, int] = {}
        self._topics: dict[tuple[int, int], int] = {}
        for stream in () if permissions is None else permissions.streams:
            self._streams[stream.stream_id] = _bits(stream.flags)
            for topic in stream.topics:
                self._topics[stream.stream_id, topic.topic_id] = _bits(topic.flags)

    def allow(self, action: Action, stream_id: int | None = None, topic_id: int | None = None) -> bool:
        """Whether they allow it. None: there is no such stream or topic, or the action has none."""
        rule = RULES[action]
        if self._everywhere & rule.everywhere:
            return True
        if stream_id is None:
            return False
        if self._streams.get(stream_id, 0) & rule.stream:
            return True
        return topic_id is not None and bool(self._topics.get((stream_id, topic_id), 0) & rule.topic)


def _bits(flags: Iterable[bool]) -> int:
    return sum(1 << index for index, flag in enumerate(flags) if flag)


def _either(one: Flags, other: Flags) -> Flags:
    return tuple(left or right for left, right in zip(one, other, strict=True))
