"""Commands that carry batches: send, poll, and flush. The batches themselves are ``formats.batch``'s.

send    u32 length of what follows up to the batch, identifier, identifier, u8 kind + u8 length + partitioning,
        u32 messages, then one batch to the end of the body
reply   u32 count, then (u32 stream, u32 topic, u32 partition, u64 base offset) for each
poll    consumer, identifier, identifier, optional partition, u8 + u64 strategy, u32 count, u8 auto commit
reply   u32 partition, u64 current offset, u32 messages, then batches to the end of the body
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from struct import Struct
from typing import ClassVar, Final, NamedTuple, Self

from shmbroker.errors import ErrorCode
from shmbroker.formats.batch import HEADER_SIZE as BATCH_HEADER_SIZE
from shmbroker.limits import U32_MAX
from shmbroker.wire import primitives
from shmbroker.wire.bodies import topic_bytes
from shmbroker.wire.codes import Code
from shmbroker.wire.primitives import U8, U32, Consumer, Identifier, Malformed, Reader

PARTITIONING_BALANCED: Final = 1
PARTITIONING_PARTITION: Final = 2
PARTITIONING_KEY: Final = 3

POLL_OFFSET: Final = 1
POLL_TIMESTAMP: Final = 2
POLL_FIRST: Final = 3
POLL_LAST: Final = 4
POLL_NEXT: Final = 5

PARTITION_RESYNC: Final = U32_MAX
"""Partition id of a poll's reply that tells a group's member to ask again what is its."""

_CONFIRMATION: Final = Struct("<IIIQ")
_POLL_END: Final = Struct("<BQIB")
_POLLED: Final = Struct("<IQI")
_BATCH_SHAPE: Final = Struct("<32xQ8xI")
"""Batch length and message count, of a batch's header."""

_TARGET_SIZE_MAX: Final = 1024
"""Three names of 255 bytes, and less than 64 bytes beside them."""

assert _CONFIRMATION.size == 20
assert _POLLED.size == 16


class Partitioning(NamedTuple):
    """Where a batch goes: balanced (no value), a partition (u32), or by key (1 to 255 bytes)."""

    kind: int
    value: bytes

    @classmethod
    def partition(cls, partition_id: int) -> Self:
        """To this partition."""
        return cls(PARTITIONING_PARTITION, U32.pack(partition_id))

    @property
    def partition_id(self) -> int:
        """Of kind PARTITIONING_PARTITION."""
        assert self.kind == PARTITIONING_PARTITION
        return int.from_bytes(self.value, "little")


@dataclass(frozen=True, slots=True)
class SendMessages:
    """One batch. ``batch`` is not copied; of its header only length and count have been compared with the body."""

    CODE: ClassVar[int] = Code.SEND_MESSAGES
    stream: Identifier
    topic: Identifier
    partitioning: Partitioning
    count: int
    batch: bytes | memoryview

    def encode_head(self) -> bytes:
        """All but the batch."""
        kind, value = self.partitioning
        target = topic_bytes(self.stream, self.topic) + bytes((kind, len(value))) + value
        metadata = target + U32.pack(self.count)
        return U32.pack(len(metadata)) + metadata

    def encode(self) -> bytes:
        """Everything, the batch copied."""
        return b"".join((self.encode_head(), self.batch))

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """As in the drawing. Raises Malformed also where length and count of the batch contradict the body."""
        metadata = reader.take(reader.u32())
        if not U32.size <= len(metadata) <= _TARGET_SIZE_MAX:
            raise Malformed(f"{len(metadata)} bytes before a batch")
        stream, topic, partitioning = _send_target(bytes(metadata[: -U32.size]))
        count = U32.unpack(metadata[-U32.size :])[0]
        batch = reader.rest()
        if count == 0:
            raise Malformed("a batch without messages", ErrorCode.INVALID_MESSAGES_COUNT)
        if len(batch) < BATCH_HEADER_SIZE or _BATCH_SHAPE.unpack_from(batch) != (len(batch), count):
            raise Malformed("a batch that does not fit its request")
        return cls(stream, topic, partitioning, count, batch)


@lru_cache(maxsize=1024)
def _send_target(target: bytes) -> tuple[Identifier, Identifier, Partitioning]:
    """Stream, topic, partitioning. A client names the same ones again and again: they are taken apart once."""
    reader = Reader(target)
    found = reader.identifier(), reader.identifier(), _partitioning(reader)
    reader.finish()
    return found


@lru_cache(maxsize=1024)
def _poll_target(target: bytes) -> tuple[Consumer, Identifier, Identifier, int | None]:
    """Consumer, stream, topic, partition, in the same way."""
    reader = Reader(target)
    found = reader.consumer(), reader.identifier(), reader.identifier(), reader.optional_partition()
    reader.finish()
    return found


def _partitioning(reader: Reader) -> Partitioning:
    kind, size = reader.u8(), reader.u8()
    value = bytes(reader.take(size))
    fits = {PARTITIONING_BALANCED: size == 0, PARTITIONING_PARTITION: size == 4, PARTITIONING_KEY: size > 0}
    if not fits.get(kind, False):
        code = ErrorCode.INVALID_KEY_VALUE_LENGTH if kind == PARTITIONING_KEY else ErrorCode.INVALID_COMMAND
        raise Malformed(f"a partitioning of kind {kind} and length {size}", code)
    return Partitioning(kind, value)


class Confirmation(NamedTuple):
    """Where a batch went."""

    stream_id: int
    topic_id: int
    partition_id: int
    base_offset: int


@dataclass(frozen=True, slots=True)
class SendReply:
    """The reply of SEND_MESSAGES: one confirmation for each batch."""

    confirmations: tuple[Confirmation, ...]

    def encode(self) -> bytes:
        """u32 count, confirmations."""
        return U32.pack(len(self.confirmations)) + b"".join(_CONFIRMATION.pack(*each) for each in self.confirmations)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """u32 count, confirmations."""
        block = reader.take(reader.u32() * _CONFIRMATION.size)
        return cls(tuple(Confirmation(*each) for each in _CONFIRMATION.iter_unpack(block)))


@dataclass(frozen=True, slots=True)
class PollMessages:
    """``strategy`` is one of POLL_*; ``value`` its offset or timestamp (us), else 0."""

    CODE: ClassVar[int] = Code.POLL_MESSAGES
    consumer: Consumer
    stream: Identifier
    topic: Identifier
    partition_id: int | None
    strategy: int
    value: int
    count: int
    auto_commit: bool

    def encode(self) -> bytes:
        """As in the drawing."""
        head = primitives.consumer(self.consumer) + topic_bytes(self.stream, self.topic)
        partition = primitives.optional_partition(self.partition_id)
        return head + partition + _POLL_END.pack(self.strategy, self.value, self.count, self.auto_commit)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """As in the drawing."""
        size = reader.remaining - _POLL_END.size
        if not 0 <= size <= _TARGET_SIZE_MAX:
            raise Malformed("a poll of the wrong length")
        head = _poll_target(bytes(reader.take(size)))
        strategy, value, count, auto_commit = _POLL_END.unpack(reader.rest())
        if not POLL_OFFSET <= strategy <= POLL_NEXT:
            raise Malformed(f"a polling strategy of kind {strategy}")
        if auto_commit > 1:
            raise Malformed(f"a flag of {auto_commit}")
        return cls(*head, strategy, value, count, auto_commit == 1)


@dataclass(frozen=True, slots=True)
class PollReply:
    """``records``: batches back to back, not copied and not looked at. No messages: the 16 bytes alone."""

    partition_id: int
    current_offset: int
    count: int
    records: bytes | memoryview = b""

    def encode_head(self) -> bytes:
        """The 16 bytes before the batches."""
        return _POLLED.pack(self.partition_id, self.current_offset, self.count)

    def encode(self) -> bytes:
        """Everything, the batches copied."""
        return b"".join((self.encode_head(), self.records))

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """As in the drawing."""
        partition_id, current_offset, count = _POLLED.unpack(reader.take(_POLLED.size))
        return cls(partition_id, current_offset, count, reader.rest())


@dataclass(frozen=True, slots=True)
class FlushUnsavedBuffer:
    """Writes what is committed; ``fsync`` also synchronises it."""

    CODE: ClassVar[int] = Code.FLUSH_UNSAVED_BUFFER
    stream: Identifier
    topic: Identifier
    partition_id: int
    fsync: bool

    def encode(self) -> bytes:
        """identifier, identifier, u32, u8."""
        return topic_bytes(self.stream, self.topic) + U32.pack(self.partition_id) + U8.pack(self.fsync)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """identifier, identifier, u32, u8."""
        return cls(reader.identifier(), reader.identifier(), reader.u32(), reader.flag())


REQUESTS: Final = (SendMessages, PollMessages, FlushUnsavedBuffer)
