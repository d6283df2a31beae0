"""Batches of the wire to records, and records to batches of the wire (formats.batch has both drawings).

A batch that came over TCP becomes a record by another header before its frames and an index behind them: the frames
themselves are neither copied nor changed. What is checked here is what makes a batch one: its shape, its checksum, and
that frames tile it; the worker checks each message, on its own copy.

The other way the header is made anew: own length, count and checksum, our own fields zero, since clients refuse what is
not. The batch checksum covers the checksums of the messages, so serving costs one look at each frame header, by numpy.
"""

from __future__ import annotations

from itertools import pairwise
from struct import Struct
from typing import Final

import numpy as np
from xxhash import xxh3_64, xxh3_64_intdigest

from shmbroker.errors import ErrorCode
from shmbroker.formats.batch import (
    BATCH_MAGIC,
    FLAG_WIRE_CHECKSUMS,
    FRAME_HEADER_SIZE,
    FRAME_INDEX_ENTRY_SIZE,
    HEADER_SIZE,
    KIND_BATCH,
    BatchHeader,
    pack_header,
    record_length_of,
)
from shmbroker.front.reply import Buffer
from shmbroker.limits import BATCH_MESSAGE_COUNT_MAX, BATCH_SIZE_MAX

WIRE_HEADER: Final = Struct("<QQQQQQI204s")
"""The header of a batch of the wire: partition, base offset, base timestamp, origin timestamp, length, checksum, count,
reserved."""
CHECKED_HEADER: Final = Struct("<QQQQQI")
"""What the batch checksum covers of it, in this order; then the checksums of all messages."""
RESERVED: Final = bytes(204)
NO_INCARNATION: Final = bytes(16)
_LENGTHS: Final = Struct("<II")
"""Headers length and payload length, at byte 32 of a frame."""
_INDEX_ENTRY: Final = Struct("<I")
_LENGTHS_POSITION: Final = 32
_CHECKSUM_SIZE: Final = 8

assert WIRE_HEADER.size == HEADER_SIZE


def record_of(
    batch: memoryview, producer_id: int, producer_sequence: int
) -> tuple[tuple[Buffer, ...], int] | ErrorCode:
    """The record of a wire batch as (buffers, length), ready for a lane; or what is wrong with the batch.

    The request has compared length and count with the body. Holds on to ``batch``.
    """
    partition, base, base_time, origin_time, length, checksum, count, reserved = WIRE_HEADER.unpack_from(batch)
    if count > BATCH_MESSAGE_COUNT_MAX:
        return ErrorCode.TOO_MANY_MESSAGES
    if reserved != RESERVED or length < HEADER_SIZE + count * (FRAME_HEADER_SIZE + 1):
        return ErrorCode.INVALID_COMMAND
    record_length = record_length_of(length - HEADER_SIZE, count)
    if record_length > BATCH_SIZE_MAX:
        return ErrorCode.TOO_BIG_MESSAGE_PAYLOAD
    frames = batch[HEADER_SIZE:]
    found = _index_of(frames, count)
    if found is None:
        return ErrorCode.INVALID_COMMAND
    index, checksums = found
    head = CHECKED_HEADER.pack(partition, base, base_time, origin_time, length, count)
    if checksum != xxh3_64_intdigest(head + checksums):
        return ErrorCode.INVALID_BATCH_CHECKSUM
    content = xxh3_64(frames)
    content.update(index)
    header = pack_header(
        BatchHeader(
            0, 0, 0, origin_time, length, 0, count, KIND_BATCH, FLAG_WIRE_CHECKSUMS, BATCH_MAGIC, record_length,
            0, 0, NO_INCARNATION, producer_id, producer_sequence, content.intdigest(),
        )
    )  # fmt: skip
    padding = record_length - length - FRAME_INDEX_ENTRY_SIZE * count
    return (header, frames, index + bytes(padding)), record_length


def _index_of(frames: memoryview, count: int) -> tuple[bytes, bytes] | None:
    """The lengths of all frames (u32 each) and their checksums (u64 each), or None where they do not tile the batch."""
    size = len(frames)
    headers_length, payload_length = _LENGTHS.unpack_from(frames, _LENGTHS_POSITION)
    length = FRAME_HEADER_SIZE + headers_length + payload_length
    if length * count == size:
        if count == 1:
            return _INDEX_ENTRY.pack(length), bytes(frames[:_CHECKSUM_SIZE])
        lengths = np.ndarray((count,), "<u8", frames, _LENGTHS_POSITION, (length,))
        if (lengths == lengths[0]).all():
            return _INDEX_ENTRY.pack(length) * count, np.ndarray((count,), "<u8", frames, 0, (length,)).tobytes()
    return _mixed_index_of(frames, count)


def _mixed_index_of(frames: memoryview, count: int) -> tuple[bytes, bytes] | None:
    """Where each frame starts only the one before it says, so this is a loop."""
    size = len(frames)
    ends = []
    end = 0
    unpack_from = _LENGTHS.unpack_from
    last = size - FRAME_HEADER_SIZE
    for _ in range(count):
        if end > last:
            return None
        headers_length, payload_length = unpack_from(frames, end + 32)  # _LENGTHS_POSITION
        end += 48 + headers_length + payload_length  # FRAME_HEADER_SIZE
        ends.append(end)
    if end != size:
        return None
    places = np.array(ends, dtype=np.int64)
    starts = np.concatenate((np.zeros(1, np.int64), places[:-1]))
    everywhere = np.ndarray((size - _CHECKSUM_SIZE + 1,), "<u8", frames, 0, (1,))
    return (places - starts).astype("<u4").tobytes(), everywhere[starts].tobytes()


# --- serving ----------------------------------------------------------------------------------------------------------
def wire_header_of(header: BatchHeader, frames: memoryview, index: memoryview) -> bytes:
    """The header of the wire for these frames of a stored batch (all of it, or the slice whose ``index`` is given)."""
    count = len(index) // FRAME_INDEX_ENTRY_SIZE
    checksums = _checksums_of(frames, index, count)
    length = HEADER_SIZE + len(frames)
    fields = header.partition_id, header.base_offset, header.base_timestamp, header.origin_timestamp, length
    checksum = xxh3_64_intdigest(CHECKED_HEADER.pack(*fields, count) + checksums)
    return WIRE_HEADER.pack(*fields, checksum, count, RESERVED)


def _checksums_of(frames: memoryview, index: memoryview, count: int) -> bytes:
    if count == 1:
        return bytes(frames[:_CHECKSUM_SIZE])
    length: int = _INDEX_ENTRY.unpack_from(index)[0]
    if length * count == len(frames) and bytes(index) == _INDEX_ENTRY.pack(length) * count:
        return np.ndarray((count,), "<u8", frames, 0, (length,)).tobytes()
    starts = _starts_of(index)[:-1]
    everywhere = np.ndarray((len(frames) - _CHECKSUM_SIZE + 1,), "<u8", frames, 0, (1,))
    return everywhere[starts].tobytes()


def _starts_of(index: memoryview) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Where each frame starts, and the end of the last."""
    count = len(index) // FRAME_INDEX_ENTRY_SIZE
    starts = np.zeros(count + 1, np.int64)
    np.cumsum(np.frombuffer(index, "<u4", count), out=starts[1:])
    return starts


def slice_of(frames: memoryview, index: memoryview, first: int, count: int) -> tuple[memoryview, memoryview]:
    """Frames and index of messages ``first`` to ``first + count - 1``."""
    starts = _starts_of(index)
    part = index[FRAME_INDEX_ENTRY_SIZE * first : FRAME_INDEX_ENTRY_SIZE * (first + count)]
    return frames[int(starts[first]) : int(starts[first + count])], part


def with_checksums(frames: memoryview, index: memoryview) -> bytes:
    """A copy of frames that a local producer left without checksums, with every message's checksum in its place."""
    starts = _starts_of(index)
    places = starts.tolist()
    checksums = [xxh3_64_intdigest(frames[start + _CHECKSUM_SIZE : end]) for start, end in pairwise(places)]
    copy = bytearray(frames)
    everywhere = np.ndarray((len(copy) - _CHECKSUM_SIZE + 1,), "<u8", copy, 0, (1,))
    everywhere[starts[:-1]] = np.array(checksums, dtype="<u8")
    del everywhere
    return bytes(copy)
