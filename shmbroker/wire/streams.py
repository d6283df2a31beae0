"""Commands about streams.

stream entry   u32 id, u64 created (us), u32 topics, u64 size, u64 messages, str8 name, options with a u32 length
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import ClassVar, Final, Self

from shmbroker.core.options import OptionValue
from shmbroker.wire import primitives
from shmbroker.wire.bodies import NothingBody, StreamBody
from shmbroker.wire.codes import Code
from shmbroker.wire.primitives import Identifier, Reader
from shmbroker.wire.topics import TopicEntry

_HEAD: Final = Struct("<IQIQQ")


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """One stream: an item of GET_STREAMS, the reply of CREATE_STREAM. ``size`` in bytes."""

    stream_id: int
    created_at_us: int
    topics_count: int
    size: int
    messages_count: int
    name: str
    options: tuple[OptionValue, ...] = ()

    def encode(self) -> bytes:
        """As in the drawing."""
        head = _HEAD.pack(self.stream_id, self.created_at_us, self.topics_count, self.size, self.messages_count)
        return head + primitives.str8(self.name) + primitives.options32(self.options)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """As in the drawing."""
        stream_id, created, topics, size, messages = _HEAD.unpack(reader.take(_HEAD.size))
        name = reader.str8()
        return cls(stream_id, created, topics, size, messages, name, reader.options(reader.u32()))


@dataclass(frozen=True, slots=True)
class StreamDetails:
    """One stream and its topics: the reply of GET_STREAM."""

    stream: StreamEntry
    topics: tuple[TopicEntry, ...]

    def encode(self) -> bytes:
        """The entry, then as many topics as it counts."""
        assert self.stream.topics_count == len(self.topics)
        return self.stream.encode() + b"".join(topic.encode() for topic in self.topics)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """The entry, then as many topics as it counts."""
        stream = StreamEntry.decode(reader)
        topics: list[TopicEntry] = []
        while len(topics) < stream.topics_count:
            topics.append(TopicEntry.decode(reader))
        return cls(stream, tuple(topics))


@dataclass(frozen=True, slots=True)
class GetStream(StreamBody):
    """One stream; an empty reply where there is none."""

    CODE: ClassVar[int] = Code.GET_STREAM


@dataclass(frozen=True, slots=True)
class GetStreams(NothingBody):
    """All streams."""

    CODE: ClassVar[int] = Code.GET_STREAMS


@dataclass(frozen=True, slots=True)
class CreateStream:
    """A new stream."""

    CODE: ClassVar[int] = Code.CREATE_STREAM
    name: str
    options: tuple[OptionValue, ...] = ()

    def encode(self) -> bytes:
        """str8, options to the end."""
        return primitives.str8(self.name) + primitives.options(self.options)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """str8, options to the end."""
        return cls(reader.str8(), reader.options())


@dataclass(frozen=True, slots=True)
class UpdateStream:
    """Another name."""

    CODE: ClassVar[int] = Code.UPDATE_STREAM
    stream: Identifier
    name: str
    options: tuple[OptionValue, ...] = ()

    def encode(self) -> bytes:
        """identifier, str8, options to the end."""
        head = primitives.identifier(self.stream) + primitives.str8(self.name)
        return head + primitives.options(self.options)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """identifier, str8, options to the end."""
        return cls(reader.identifier(), reader.str8(), reader.options())


@dataclass(frozen=True, slots=True)
class DeleteStream(StreamBody):
    """Removes a stream with all that is below it."""

    CODE: ClassVar[int] = Code.DELETE_STREAM


@dataclass(frozen=True, slots=True)
class PurgeStream(StreamBody):
    """Empties all topics of a stream."""

    CODE: ClassVar[int] = Code.PURGE_STREAM


REQUESTS: Final = (GetStream, GetStreams, CreateStream, UpdateStream, DeleteStream, PurgeStream)
