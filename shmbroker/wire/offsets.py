"""Commands about stored consumer offsets. A partition that is absent is partition 0; ``quorum`` is u8 0 or 1."""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import ClassVar, Final, Self

from shmbroker.wire import primitives
from shmbroker.wire.bodies import topic_bytes
from shmbroker.wire.codes import Code
from shmbroker.wire.primitives import U8, U64, Consumer, Identifier, Reader

_STORED: Final = Struct("<IQQ")


def _target(consumer: Consumer, stream: Identifier, topic: Identifier, partition_id: int | None) -> bytes:
    head = primitives.consumer(consumer) + topic_bytes(stream, topic)
    return head + primitives.optional_partition(partition_id)


@dataclass(frozen=True, slots=True)
class GetConsumerOffset:
    """What a consumer stored; an empty reply where it did not."""

    CODE: ClassVar[int] = Code.GET_CONSUMER_OFFSET
    consumer: Consumer
    stream: Identifier
    topic: Identifier
    partition_id: int | None

    def encode(self) -> bytes:
        """consumer, identifier, identifier, optional partition."""
        return _target(self.consumer, self.stream, self.topic, self.partition_id)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """consumer, identifier, identifier, optional partition."""
        return cls(reader.consumer(), reader.identifier(), reader.identifier(), reader.optional_partition())


@dataclass(frozen=True, slots=True)
class ConsumerOffset:
    """The reply of GET_CONSUMER_OFFSET. ``current_offset``: of the partition's last message."""

    partition_id: int
    current_offset: int
    stored_offset: int

    def encode(self) -> bytes:
        """u32, u64, u64."""
        return _STORED.pack(self.partition_id, self.current_offset, self.stored_offset)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """u32, u64, u64."""
        return cls(*_STORED.unpack(reader.take(_STORED.size)))


@dataclass(frozen=True, slots=True)
class StoreConsumerOffset:
    """Stores the offset of the last message processed."""

    CODE: ClassVar[int] = Code.STORE_CONSUMER_OFFSET
    consumer: Consumer
    stream: Identifier
    topic: Identifier
    partition_id: int | None
    offset: int
    quorum: bool = True

    def encode(self) -> bytes:
        """consumer, identifier, identifier, optional partition, u64, u8."""
        target = _target(self.consumer, self.stream, self.topic, self.partition_id)
        return target + U64.pack(self.offset) + U8.pack(self.quorum)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """consumer, identifier, identifier, optional partition, u64, u8."""
        target = reader.consumer(), reader.identifier(), reader.identifier(), reader.optional_partition()
        return cls(*target, reader.u64(), reader.flag())


@dataclass(frozen=True, slots=True)
class DeleteConsumerOffset:
    """Forgets what a consumer stored."""

    CODE: ClassVar[int] = Code.DELETE_CONSUMER_OFFSET
    consumer: Consumer
    stream: Identifier
    topic: Identifier
    partition_id: int | None
    quorum: bool = True

    def encode(self) -> bytes:
        """consumer, identifier, identifier, optional partition, u8."""
        return _target(self.consumer, self.stream, self.topic, self.partition_id) + U8.pack(self.quorum)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """consumer, identifier, identifier, optional partition, u8."""
        target = reader.consumer(), reader.identifier(), reader.identifier(), reader.optional_partition()
        return cls(*target, reader.flag())


REQUESTS: Final = (GetConsumerOffset, StoreConsumerOffset, DeleteConsumerOffset)
