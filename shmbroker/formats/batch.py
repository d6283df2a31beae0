"""The batch record: the same bytes in a lane, in a ring journal, in a segment file and (header and frames) on the wire.

All integers are little-endian. A record starts at a multiple of 8::

    0    8    partition_id        } the header of the Iggy wire batch: the first 52 bytes. The worker stamps
    8    8    base_offset         } partition_id, base_offset and base_timestamp; origin_timestamp is the
    16   8    base_timestamp (us) } producer's clock.
    24   8    origin_timestamp(us)}
    32   8    batch_length        = 256 + the bytes of the frames
    40   8    batch_checksum      of the wire; 0 until somebody serves or sends the batch over TCP
    48   4    message_count       0 in a filler only
    52   2    kind                BATCH or FILLER; zero is not a kind
    54   2    flags               WIRE_CHECKSUMS: every frame carries its wire checksum
    56   8    magic               BATCH_MAGIC, 8-aligned so that a scan finds it with one numpy comparison
    64   8    record_length       header + frames + frame index + padding: a multiple of 8
    72   8    log_position        of this record's first byte, in the partition's log
    80   8    durable_position    what was on stable storage when this record was stamped
    88   16   incarnation         of the partition: who the record belongs to
    104  8    producer_id         0 where the producer asks for no deduplication
    112  8    producer_sequence   of this producer in this partition: 1, 2, 3, ...
    120  8    content_checksum    xxh3_64 over frames and frame index
    128  120  reserved, zero
    248  4    reserved, zero
    252  4    header_checksum     crc32c over bytes 0 to 252
    256       frames              message_count frames, as on the wire (below)
              frame index         message_count uint32: the length of each frame
              padding             zeros to a multiple of 8

A frame::

    0    8    checksum            xxh3_64 over the rest of the frame, or 0 where WIRE_CHECKSUMS is not set
    8    16   id                  of the message, never interpreted here
    24   4    offset_delta        0, 1, 2, ... within the batch
    28   4    timestamp_delta     us after origin_timestamp
    32   4    headers_length      } mind the order: the data is payload first,
    36   4    payload_length      } then user headers
    40   8    reserved, zero
    48        payload, user headers

A filler closes the log to a page boundary: header only, zeros up to record_length, no content, content_checksum 0.
Its base_offset is the offset that the next message will get.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c
from xxhash import xxh3_64_intdigest

from shmbroker.limits import BATCH_MESSAGE_COUNT_MAX, BATCH_SIZE_MAX, PAGE_SIZE

HEADER_SIZE: Final = 256
FRAME_HEADER_SIZE: Final = 48
FRAME_INDEX_ENTRY_SIZE: Final = 4
RECORD_ALIGNMENT: Final = 8
RECORD_SIZE_MIN: Final = HEADER_SIZE

BATCH_MAGIC: Final = int.from_bytes(b"SHMBATC1", "little")
MAGIC_POSITION: Final = 56

KIND_BATCH: Final = 1
KIND_FILLER: Final = 2

FLAG_WIRE_CHECKSUMS: Final = 1
FLAGS_KNOWN: Final = FLAG_WIRE_CHECKSUMS

HEADER: Final = Struct("<QQQQQQIHHQQQQ16sQQQ")
"""Bytes 0 to 128 of the header, in the order of the drawing."""
CHECKSUM: Final = Struct("<I")
CHECKSUM_POSITION: Final = HEADER_SIZE - CHECKSUM.size
FRAME_HEADER: Final = Struct("<Q16sIIIIQ")
WIRE_HEADER_SIZE: Final = 52
HEADER_RESERVED: Final = bytes(CHECKSUM_POSITION - HEADER.size)
FILLER_LENGTH_MAX: Final = PAGE_SIZE + HEADER_SIZE

assert HEADER.size == 128
assert FRAME_HEADER.size == FRAME_HEADER_SIZE
assert MAGIC_POSITION % 8 == 0
assert CHECKSUM_POSITION == 252


class BatchHeader(NamedTuple):
    """The fields of a header, in the order of the bytes."""

    partition_id: int
    base_offset: int
    base_timestamp: int
    origin_timestamp: int
    batch_length: int
    batch_checksum: int
    message_count: int
    kind: int
    flags: int
    magic: int
    record_length: int
    log_position: int
    durable_position: int
    incarnation: bytes
    producer_id: int
    producer_sequence: int
    content_checksum: int

    @property
    def frames_length(self) -> int:
        return self.batch_length - HEADER_SIZE

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.message_count


def align(size: int) -> int:
    """The smallest multiple of 8 that is not below ``size``."""
    return (size + 7) & ~7


def record_length_of(frames_length: int, message_count: int) -> int:
    """The length of a record with so many bytes of frames and so many messages."""
    return align(HEADER_SIZE + frames_length + FRAME_INDEX_ENTRY_SIZE * message_count)


def pack_header(header: BatchHeader) -> bytes:
    """The 256 bytes of a header, with its checksum."""
    body = HEADER.pack(*header) + HEADER_RESERVED
    return body + CHECKSUM.pack(crc32c(body))


def unpack_header(buffer: bytes | bytearray | memoryview, position: int = 0) -> BatchHeader:
    """The fields at ``position``, unchecked: see :func:`header_fault`."""
    return BatchHeader._make(HEADER.unpack_from(buffer, position))


def header_checksum_holds(buffer: bytes | bytearray | memoryview, position: int = 0) -> bool:
    """Whether the header at ``position`` has the checksum that its bytes ask for."""
    end = position + CHECKSUM_POSITION
    stored: int = CHECKSUM.unpack_from(buffer, end)[0]
    return bool(crc32c(memoryview(buffer)[position:end]) == stored)


def shape_fault(header: BatchHeader, available: int) -> str | None:
    """What is wrong with the shape of a record of which ``available`` bytes exist, or None."""
    if header.magic != BATCH_MAGIC:
        return "magic"
    if header.kind == KIND_FILLER:
        return _filler_fault(header, available)
    if header.kind != KIND_BATCH:
        return "kind"
    if header.flags & ~FLAGS_KNOWN:
        return "flags"
    if not 1 <= header.message_count <= BATCH_MESSAGE_COUNT_MAX:
        return "message count"
    if not HEADER_SIZE + FRAME_HEADER_SIZE * header.message_count < header.batch_length <= BATCH_SIZE_MAX:
        return "batch length"
    if header.record_length != record_length_of(header.frames_length, header.message_count):
        return "record length"
    if header.record_length > BATCH_SIZE_MAX:
        return "record length above the largest batch"
    if header.record_length > available:
        return "record is cut short"
    return None


def _filler_fault(header: BatchHeader, available: int) -> str | None:
    if header.message_count != 0 or header.content_checksum != 0 or header.batch_length != HEADER_SIZE:
        return "filler with content"
    if header.record_length % RECORD_ALIGNMENT or not HEADER_SIZE <= header.record_length < FILLER_LENGTH_MAX:
        return "filler length"
    if header.record_length > available:
        return "filler is cut short"
    return None


def content_checksum_of(content: bytes | bytearray | memoryview) -> int:
    """The checksum over frames and frame index, given together."""
    return int(xxh3_64_intdigest(content))


def content_length_of(header: BatchHeader) -> int:
    """Bytes of frames and frame index together: what follows the header and has a meaning."""
    return header.frames_length + FRAME_INDEX_ENTRY_SIZE * header.message_count


def filler_length(position: int) -> int:
    """The length of the filler that brings a log that ends at ``position`` to a page boundary, 0 if it is on one."""
    gap = -position % PAGE_SIZE
    if gap == 0:
        return 0
    return gap if gap >= HEADER_SIZE else gap + PAGE_SIZE


def pack_filler(
    partition_id: int, next_offset: int, timestamp_us: int, position: int, durable_position: int, incarnation: bytes
) -> bytes:
    """The whole filler record for a log that ends at ``position``; it must not end on a page boundary already."""
    length = filler_length(position)
    assert length > 0
    header = BatchHeader(
        partition_id, next_offset, timestamp_us, 0, HEADER_SIZE, 0, 0, KIND_FILLER, 0, BATCH_MAGIC,
        length, position, durable_position, incarnation, 0, 0, 0,
    )  # fmt: skip
    return pack_header(header) + bytes(length - HEADER_SIZE)
