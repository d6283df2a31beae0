"""The scan: reads records one after the other and says how far they are whole, and what the damage behind them hides.

Pure reading, over any function that reads bytes of the log by position: a segment file or a ring. Used by recovery and
by ``log verify``. One record costs one unpacked header, one crc32c and one xxh3_64, all on local variables: the speed
counts in batches as well as in bytes. Nothing is mapped: a bad sector raises DiskFailed here instead of killing the
process with SIGBUS.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from struct import Struct
from typing import Final

import numpy as np
from crc32c import crc32c
from xxhash import xxh3_64_intdigest

from shmbroker.formats.batch import (
    BATCH_MAGIC,
    CHECKSUM,
    CHECKSUM_POSITION,
    FRAME_INDEX_ENTRY_SIZE,
    HEADER_SIZE,
    KIND_BATCH,
    MAGIC_POSITION,
    header_checksum_holds,
    shape_fault,
    unpack_header,
)
from shmbroker.formats.index import IndexEntry
from shmbroker.limits import BATCH_SIZE_MAX, INDEX_INTERVAL, PAGE_SIZE

ReadLog = Callable[[int, int], bytes | memoryview]
"""read(position, size): bytes of the log from a position on; fewer where the file or the ring ends."""

CHUNK_SIZE: Final = 4 << 20
SEARCH_CHUNK_SIZE: Final = 16 << 20
RECORD_LENGTH_MAX: Final = BATCH_SIZE_MAX
FIELDS: Final = Struct("<QQQ8xQ8xIHHQQQQ16sQQQ")
"""partition_id, base_offset, base_timestamp, batch_length, message_count, kind, flags, magic, record_length,
log_position, durable_position, incarnation, producer_id, producer_sequence, content_checksum."""

FAULT_END: Final = "end"
"""No record: the log ends here, or its next header never arrived."""
FAULT_DAMAGE: Final = "damage"
FAULT_FOREIGN: Final = "foreign"
FAULT_GAP: Final = "gap"

assert FIELDS.size == 128


@dataclass(slots=True)
class Scan:
    """What was found from ``position`` on. Positions are of the log."""

    position: int
    offset: int
    """The offset after the last whole record."""
    incarnation: bytes
    partition_id: int
    message_count: int = 0
    first_timestamp: int = 0
    last_timestamp: int = 0
    mark: int = 0
    """The largest durable_position in any intact record seen."""
    fault: str = FAULT_END
    fault_text: str = ""
    entries: list[IndexEntry] = field(default_factory=list)
    producers: list[tuple[int, int, int, int]] = field(default_factory=list)
    """(producer id, sequence, base offset, count) of every batch that carries them, in order."""
    next_entry_position: int = 0


def scan(read: ReadLog, found: Scan, limit: int) -> Scan:
    """Takes whole records into ``found`` up to log position ``limit`` or the first that is not the next record."""
    size = CHUNK_SIZE
    while True:
        chunk = read(found.position, min(size, limit - found.position))
        start = found.position
        needed = _scan_chunk(memoryview(chunk), found)
        if needed == 0:
            return found
        if len(chunk) < min(size, limit - start) or start + len(chunk) >= limit:
            # Nothing more is to be had: what is left is a part of a record, or nothing at all.
            if found.position < start + len(chunk):
                found.fault, found.fault_text = FAULT_DAMAGE, "record is cut short"
                if not any(chunk[found.position - start :]):
                    found.fault, found.fault_text = FAULT_END, ""
            return found
        size = max(CHUNK_SIZE, needed + PAGE_SIZE)


def _scan_chunk(chunk: memoryview, found: Scan) -> int:
    """Takes the whole records of ``chunk``, which begins at ``found.position``. 0 where a fault ended the scan, else
    the bytes that the next record needs at least."""
    position, offset, partition_id, incarnation = found.position, found.offset, found.partition_id, found.incarnation
    next_entry, last_timestamp, mark, count_total = found.next_entry_position, found.last_timestamp, found.mark, 0
    unpack, checksum_at, producers, size = FIELDS.unpack_from, CHECKSUM.unpack_from, found.producers, len(chunk)
    at, needed = 0, 0
    while True:
        if size - at < HEADER_SIZE:
            needed = HEADER_SIZE
            break
        (
            partition, base_offset, timestamp, batch_length, count, kind, _, magic, length, log_position,
            durable, owner, producer_id, sequence, content_checksum,
        ) = unpack(chunk, at)  # fmt: skip
        end = at + CHECKSUM_POSITION
        if magic != BATCH_MAGIC or crc32c(chunk[at:end]) != checksum_at(chunk, end)[0]:
            break
        if log_position != position or base_offset != offset or owner != incarnation or partition != partition_id:
            break
        content_end = batch_length + FRAME_INDEX_ENTRY_SIZE * count
        if length & 7 or not HEADER_SIZE <= batch_length <= content_end <= length <= RECORD_LENGTH_MAX:
            break
        if size - at < length:
            needed = length
            break
        if kind == KIND_BATCH:
            if xxh3_64_intdigest(chunk[at + HEADER_SIZE : at + content_end]) != content_checksum:
                break
            if position >= next_entry:
                found.entries.append(IndexEntry(offset, timestamp, position))
                next_entry = position + INDEX_INTERVAL
            if producer_id:
                producers.append((producer_id, sequence, offset, count))
            if not found.first_timestamp:
                found.first_timestamp = timestamp
            last_timestamp = timestamp
            offset += count
            count_total += count
        mark = durable if durable > mark else mark
        at += length
        position += length
    found.position, found.offset, found.mark, found.last_timestamp = position, offset, mark, last_timestamp
    found.next_entry_position = next_entry
    found.message_count += count_total
    if needed == 0:
        _name_fault(chunk[at:], found)
    return needed


def _name_fault(rest: memoryview, found: Scan) -> None:
    """Says why the record at ``found.position``, of which ``rest`` are the bytes there are, is not the next one."""
    header = unpack_header(rest)
    found.fault = FAULT_DAMAGE
    if not any(rest[:HEADER_SIZE]):
        found.fault, found.fault_text = FAULT_END, ""
    elif header.magic != BATCH_MAGIC:
        found.fault_text = "no record begins here"
    elif not header_checksum_holds(rest):
        found.fault_text = "header checksum"
    elif header.incarnation != found.incarnation or header.partition_id != found.partition_id:
        found.fault, found.fault_text = FAULT_FOREIGN, "a record of another partition or incarnation"
    elif header.log_position != found.position:
        found.fault_text = f"a record of log position {header.log_position}"
    elif header.base_offset != found.offset:
        found.fault, found.fault_text = FAULT_GAP, f"offset {header.base_offset} where {found.offset} had to follow"
    else:
        found.fault_text = shape_fault(header, len(rest)) or "content checksum"


@dataclass(slots=True)
class Residue:
    """What stands behind the end of the scan."""

    end: int
    """Log position behind the last byte that is not zero; the position searched from where all are."""
    mark: int
    """The largest durable_position in any intact record of this incarnation there."""


def search_residue(read: ReadLog, position: int, limit: int, incarnation: bytes) -> Residue:
    """Looks behind damage, from log position ``position`` up to ``limit``.

    One numpy comparison finds the magic at 8-aligned places. A candidate counts if its header checksum holds, and it
    says this incarnation and the log position where it stands: then what it says about durability is true, whatever
    stands before it (rule 8).
    """
    found = Residue(position, 0)
    start = position - position % 8
    while start < limit:
        chunk = read(start, min(SEARCH_CHUNK_SIZE, limit - start))
        view = memoryview(chunk)[: len(chunk) - len(chunk) % 8]
        if len(view) == 0:
            break
        words = np.frombuffer(view, dtype="<u8")
        occupied = np.flatnonzero(words)
        if len(occupied):
            found.end = max(found.end, start + 8 * (int(occupied[-1]) + 1))
            for word in np.flatnonzero(words == BATCH_MAGIC).tolist():
                _consider(view, 8 * word - MAGIC_POSITION, start, incarnation, found)
        if start + len(view) >= limit or len(view) <= HEADER_SIZE:
            break
        # A header may lie across the border: the next chunk begins early enough to hold it whole.
        start += len(view) - HEADER_SIZE
    return found


def _consider(view: memoryview, at: int, start: int, incarnation: bytes, found: Residue) -> None:
    if at < 0 or at + HEADER_SIZE > len(view) or not header_checksum_holds(view, at):
        return
    header = unpack_header(view, at)
    if header.incarnation == incarnation and header.log_position == start + at:
        found.mark = max(found.mark, header.durable_position)
