"""Commands about topics, partitions and segments.

topic entry       u32 id, u64 created (us), u32 partitions, u64 expiry (us), u8 compression (1 none, 2 gzip),
                  u64 size limit, u64 size, u64 messages, str8 name,
                  options that the creator set, options that the server filled in: each with a u32 length
partition entry   u32 id, u64 created (us), u32 segments, u64 current offset, u64 size, u64 messages
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import ClassVar, Final, NamedTuple, Self

from shmbroker.core.options import OptionValue
from shmbroker.wire import primitives
from shmbroker.wire.bodies import PartitionsBody, StreamBody, TopicBody, topic_bytes
from shmbroker.wire.codes import Code
from shmbroker.wire.primitives import U32, Identifier, Malformed, Reader

_TOPIC: Final = Struct("<IQIQBQQQ")
_PARTITION: Final = Struct("<IQIQQQ")
COMPRESSION_CODES: Final[dict[str, int]] = {"none": 1, "gzip": 2}
_COMPRESSIONS: Final = {code: name for name, code in COMPRESSION_CODES.items()}

assert _TOPIC.size == 49
assert _PARTITION.size == 40


@dataclass(frozen=True, slots=True)
class TopicEntry:
    """One topic: an item of GET_TOPICS and of GET_STREAM. ``size`` in bytes; expiry and limit 2^64 - 1: none."""

    topic_id: int
    created_at_us: int
    partitions_count: int
    message_expiry_us: int
    compression_algorithm: str
    max_topic_size: int
    size: int
    messages_count: int
    name: str
    options: tuple[OptionValue, ...] = ()
    derived_options: tuple[OptionValue, ...] = ()

    def encode(self) -> bytes:
        """As in the drawing."""
        head = _TOPIC.pack(
            self.topic_id,
            self.created_at_us,
            self.partitions_count,
            self.message_expiry_us,
            COMPRESSION_CODES[self.compression_algorithm],
            self.max_topic_size,
            self.size,
            self.messages_count,
        )
        options = primitives.options32(self.options) + primitives.options32(self.derived_options)
        return head + primitives.str8(self.name) + options

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """As in the drawing."""
        fields = _TOPIC.unpack(reader.take(_TOPIC.size))
        topic_id, created, partitions, expiry, compression, limit, size, messages = fields
        if compression not in _COMPRESSIONS:
            raise Malformed(f"compression {compression}")
        name = reader.str8()
        explicit, derived = reader.options(reader.u32()), reader.options(reader.u32())
        algorithm = _COMPRESSIONS[compression]
        return cls(topic_id, created, partitions, expiry, algorithm, limit, size, messages, name, explicit, derived)


class PartitionEntry(NamedTuple):
    """One partition. ``current_offset`` is that of its last message, 0 where it has none; ``size`` in bytes."""

    partition_id: int
    created_at_us: int
    segments_count: int
    current_offset: int
    size: int
    messages_count: int


@dataclass(frozen=True, slots=True)
class TopicDetails:
    """One topic and its partitions: the reply of GET_TOPIC and CREATE_TOPIC."""

    topic: TopicEntry
    partitions: tuple[PartitionEntry, ...]

    def encode(self) -> bytes:
        """The entry, then as many partitions as it counts."""
        assert self.topic.partitions_count == len(self.partitions)
        return self.topic.encode() + b"".join(_PARTITION.pack(*partition) for partition in self.partitions)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """The entry, then as many partitions as it counts."""
        topic = TopicEntry.decode(reader)
        block = reader.take(topic.partitions_count * _PARTITION.size)
        return cls(topic, tuple(PartitionEntry(*each) for each in _PARTITION.iter_unpack(block)))


@dataclass(frozen=True, slots=True)
class TopicList:
    """The reply of GET_TOPICS."""

    topics: tuple[TopicEntry, ...]

    def encode(self) -> bytes:
        """u32 count, entries."""
        return U32.pack(len(self.topics)) + b"".join(topic.encode() for topic in self.topics)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """u32 count, entries; nothing at all is an empty list."""
        count = reader.u32() if reader.remaining else 0
        topics: list[TopicEntry] = []
        while len(topics) < count:
            topics.append(TopicEntry.decode(reader))
        return cls(tuple(topics))


@dataclass(frozen=True, slots=True)
class GetTopic(TopicBody):
    """One topic; an empty reply where there is none."""

    CODE: ClassVar[int] = Code.GET_TOPIC


@dataclass(frozen=True, slots=True)
class GetTopics(StreamBody):
    """All topics of a stream; none where there is no such stream."""

    CODE: ClassVar[int] = Code.GET_TOPICS


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """A new topic."""

    CODE: ClassVar[int] = Code.CREATE_TOPIC
    stream: Identifier
    partitions_count: int
    name: str
    options: tuple[OptionValue, ...] = ()

    def encode(self) -> bytes:
        """identifier, u32, str8, options to the end."""
        head = primitives.identifier(self.stream) + U32.pack(self.partitions_count)
        return head + primitives.str8(self.name) + primitives.options(self.options)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """identifier, u32, str8, options to the end."""
        return cls(reader.identifier(), reader.u32(), reader.str8(), reader.options())


@dataclass(frozen=True, slots=True)
class UpdateTopic:
    """The name (its own, where it stays) and a patch of the options that may change."""

    CODE: ClassVar[int] = Code.UPDATE_TOPIC
    stream: Identifier
    topic: Identifier
    name: str
    options: tuple[OptionValue, ...] = ()

    def encode(self) -> bytes:
        """identifier, identifier, str8, options to the end."""
        head = topic_bytes(self.stream, self.topic) + primitives.str8(self.name)
        return head + primitives.options(self.options)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """identifier, identifier, str8, options to the end."""
        return cls(reader.identifier(), reader.identifier(), reader.str8(), reader.options())


@dataclass(frozen=True, slots=True)
class DeleteTopic(TopicBody):
    """Removes a topic with all its messages."""

    CODE: ClassVar[int] = Code.DELETE_TOPIC


@dataclass(frozen=True, slots=True)
class PurgeTopic(TopicBody):
    """Empties a topic; its offsets start at 0 again."""

    CODE: ClassVar[int] = Code.PURGE_TOPIC


@dataclass(frozen=True, slots=True)
class CreatePartitions(PartitionsBody):
    """Adds partitions."""

    CODE: ClassVar[int] = Code.CREATE_PARTITIONS


@dataclass(frozen=True, slots=True)
class DeletePartitions(PartitionsBody):
    """Removes partitions from the end."""

    CODE: ClassVar[int] = Code.DELETE_PARTITIONS


@dataclass(frozen=True, slots=True)
class DeleteSegments:
    """Removes the oldest ``count`` sealed segments of a partition."""

    CODE: ClassVar[int] = Code.DELETE_SEGMENTS
    stream: Identifier
    topic: Identifier
    partition_id: int
    count: int

    def encode(self) -> bytes:
        """identifier, identifier, u32, u32."""
        return topic_bytes(self.stream, self.topic) + U32.pack(self.partition_id) + U32.pack(self.count)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """identifier, identifier, u32, u32."""
        return cls(reader.identifier(), reader.identifier(), reader.u32(), reader.u32())


REQUESTS: Final = (
    GetTopic,
    GetTopics,
    CreateTopic,
    UpdateTopic,
    DeleteTopic,
    PurgeTopic,
    CreatePartitions,
    DeletePartitions,
    DeleteSegments,
)
