"""Batches as they travel over TCP, and as records: the same frames, with the wire's checksums, without frame index.

::

    a wire batch    256 bytes: the first 52 of formats.batch, then zeros; then the frames
    a record        header, frames, frame index, padding: formats.batch

Towards the broker every frame gets its checksum here, one step a message. From the broker everything is checked before
it is handed on: the broker's host and the way from it are not trusted to keep bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from shmbroker.errors import Corrupt
from shmbroker.formats.batch import (
    BATCH_MAGIC,
    FLAG_WIRE_CHECKSUMS,
    FRAME_HEADER_SIZE,
    HEADER_SIZE,
    KIND_BATCH,
    BatchHeader,
    content_checksum_of,
    pack_header,
    record_length_of,
    unpack_header,
)
from shmbroker.storage.reader import RecordSlice

WIRE_HEADER: Final = Struct("<QQQQQQI")
"""Partition, base offset, base timestamp, origin timestamp, length, checksum, count."""
WIRE_RESERVED: Final = bytes(HEADER_SIZE - WIRE_HEADER.size)
HASHED_HEADER: Final = Struct("<QQQQQI")
"""What the batch checksum covers of it: as above without the checksum."""
DELTA_POSITION: Final = 24
LENGTHS_POSITION: Final = 32
LENGTHS: Final = Struct("<II")
CHECKSUM_SIZE: Final = 8
NO_INCARNATION: Final = bytes(16)
PADDINGS: Final = tuple(bytes(size) for size in range(8))

Lengths = npt.NDArray[np.uint32]
Checksums = npt.NDArray[np.uint64]


def wire_batch_of(record: Sequence[bytes | memoryview]) -> tuple[bytes, bytes | bytearray | memoryview]:
    """Header (256 bytes) and frames for the wire of a record given as (header, content)."""
    header = unpack_header(record[0])
    content = memoryview(record[1]).cast("B")
    count, frames_length = header.message_count, header.frames_length
    lengths = np.frombuffer(content, "<u4", count, frames_length)
    frames: bytearray | memoryview
    if header.flags & FLAG_WIRE_CHECKSUMS:
        frames = content[:frames_length]
        checksums = _stored_checksums(frames, lengths)
    else:
        checksums = _computed_checksums(content[:frames_length], lengths)
        frames = bytearray(content[:frames_length])
        _checksum_words(frames)[_starts(lengths)] = checksums
    hashed = HASHED_HEADER.pack(0, 0, 0, header.origin_timestamp, header.batch_length, count)
    checksum = xxh3_64_intdigest(hashed + checksums.tobytes())
    head = WIRE_HEADER.pack(0, 0, 0, header.origin_timestamp, header.batch_length, checksum, count)
    return head + WIRE_RESERVED, frames


def slices_of(batches: memoryview, source: str) -> list[RecordSlice]:
    """Every batch of a poll's reply as a whole slice. Raises Corrupt, naming ``source``, for bytes that do not hold."""
    found: list[RecordSlice] = []
    position = 0
    while position < len(batches):
        if len(batches) - position < HEADER_SIZE:
            raise Corrupt(source, position, "a batch without a whole header")
        fields = WIRE_HEADER.unpack_from(batches, position)
        length, count = fields[4], fields[6]
        if not HEADER_SIZE + count * FRAME_HEADER_SIZE < length <= len(batches) - position or not count:
            raise Corrupt(source, position, "a batch that is longer than the reply, or empty")
        found.append(_slice_of(fields, batches[position + HEADER_SIZE : position + length], source, position))
        position += length
    return found


def _slice_of(fields: tuple[int, ...], frames: memoryview, source: str, position: int) -> RecordSlice:
    partition_id, base_offset, timestamp_us, origin_us, length, checksum, count = fields
    lengths = _lengths_of(frames, count)
    if lengths is None:
        raise Corrupt(source, position, "frames that do not tile their batch")
    checksums = _stored_checksums(frames, lengths)
    hashed = HASHED_HEADER.pack(partition_id, base_offset, timestamp_us, origin_us, length, count)
    if xxh3_64_intdigest(hashed + checksums.tobytes()) != checksum:
        raise Corrupt(source, position, "batch checksum")
    if not np.array_equal(_computed_checksums(frames, lengths), checksums):
        raise Corrupt(source, position, "message checksum")
    # A slice keeps the offsets of its batch: its first frame may have a delta above 0.
    base_offset += int.from_bytes(frames[DELTA_POSITION : DELTA_POSITION + 4], "little")
    content = b"".join((frames, lengths.tobytes()))
    record_length = record_length_of(len(frames), count)
    header = BatchHeader(
        partition_id, base_offset, timestamp_us, origin_us, length, checksum, count, KIND_BATCH, FLAG_WIRE_CHECKSUMS,
        BATCH_MAGIC, record_length, 0, 0, NO_INCARNATION, 0, 0, content_checksum_of(content),
    )  # fmt: skip
    padding = PADDINGS[record_length - HEADER_SIZE - len(content)]
    record = memoryview(b"".join((pack_header(header), content, padding)))
    return RecordSlice(header, record, 0, count)


def _lengths_of(frames: memoryview, count: int) -> Lengths | None:
    """The length of each frame, or None where they do not tile ``frames`` exactly."""
    headers_length, payload_length = LENGTHS.unpack_from(frames, LENGTHS_POSITION)
    length = FRAME_HEADER_SIZE + headers_length + payload_length
    if length * count == len(frames):
        pairs = np.ndarray((count,), "V8", frames, LENGTHS_POSITION, (length,))
        if pairs.tobytes() == bytes(frames[LENGTHS_POSITION : LENGTHS_POSITION + LENGTHS.size]) * count:
            return np.full(count, length, "<u4")
    found = []
    start = 0
    for _ in range(count):
        if start + FRAME_HEADER_SIZE > len(frames):
            return None
        headers_length, payload_length = LENGTHS.unpack_from(frames, start + LENGTHS_POSITION)
        found.append(FRAME_HEADER_SIZE + headers_length + payload_length)
        start += found[-1]
    return np.array(found, "<u4") if start == len(frames) else None


def _starts(lengths: Lengths) -> npt.NDArray[np.int64]:
    return np.cumsum(lengths, dtype=np.int64) - lengths


def _checksum_words(frames: bytearray | memoryview) -> Checksums:
    """The word at every byte: frames start anywhere."""
    return np.ndarray((len(frames) - CHECKSUM_SIZE + 1,), "<u8", frames, 0, (1,))


def _stored_checksums(frames: memoryview, lengths: Lengths) -> Checksums:
    words: Checksums = _checksum_words(frames)[_starts(lengths)]
    return words


def _computed_checksums(frames: memoryview, lengths: Lengths) -> Checksums:
    starts = _starts(lengths)
    spans = zip((starts + CHECKSUM_SIZE).tolist(), (starts + lengths).tolist(), strict=True)
    return np.array([xxh3_64_intdigest(frames[start:end]) for start, end in spans], "<u8")


assert WIRE_HEADER.size == 52
assert HASHED_HEADER.size == 44
