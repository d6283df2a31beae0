"""The sparse index of a segment, ``{base_offset:020}.index``: where to start reading for an offset or a time.

::

    0     8    magic          INDEX_MAGIC
    8     16   incarnation    of the partition
    24    8    base_offset    of the segment
    32         entries        of 32 bytes each, in ascending order:

    0     8    offset         of the first message of a batch
    8     8    timestamp (us) base timestamp of that batch
    16    8    position       log position of that batch
    24    8    checksum       xxh3_64 over the 24 bytes before it, seeded with the low word of the incarnation

An entry vouches for itself: a torn, foreign or missing one ends the index, which is derived from the log and rebuilt.
The first batch of a segment has an entry, then the first batch that begins INDEX_INTERVAL after the last entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

INDEX_MAGIC: Final = int.from_bytes(b"SHMINDX1", "little")
INDEX_HEADER: Final = Struct("<Q16sQ")
ENTRY: Final = Struct("<QQQ")
ENTRY_CHECKSUM: Final = Struct("<Q")
ENTRY_SIZE: Final = 32
ENTRIES_POSITION: Final = 32

assert INDEX_HEADER.size == ENTRIES_POSITION
assert ENTRY.size + ENTRY_CHECKSUM.size == ENTRY_SIZE


class IndexEntry(NamedTuple):
    offset: int
    timestamp: int
    position: int


def pack_header(incarnation: bytes, base_offset: int) -> bytes:
    return INDEX_HEADER.pack(INDEX_MAGIC, incarnation, base_offset)


def header_matches(buffer: bytes | bytearray | memoryview, incarnation: bytes, base_offset: int) -> bool:
    return bytes(buffer[:ENTRIES_POSITION]) == pack_header(incarnation, base_offset)


def _seed(incarnation: bytes) -> int:
    return int.from_bytes(incarnation[:8], "little")


def pack_entry(entry: IndexEntry, incarnation: bytes) -> bytes:
    body = ENTRY.pack(*entry)
    return body + ENTRY_CHECKSUM.pack(xxh3_64_intdigest(body, _seed(incarnation)))


def unpack_entry(buffer: bytes | bytearray | memoryview, start: int, incarnation: bytes) -> IndexEntry | None:
    """The entry at byte ``start`` of ``buffer``, or None where it does not vouch for itself."""
    body = bytes(buffer[start : start + ENTRY.size])
    if len(buffer) < start + ENTRY_SIZE:
        return None
    if ENTRY_CHECKSUM.unpack_from(buffer, start + ENTRY.size)[0] != xxh3_64_intdigest(body, _seed(incarnation)):
        return None
    return IndexEntry._make(ENTRY.unpack(body))


def unpack_entries(buffer: bytes | bytearray | memoryview, incarnation: bytes) -> Iterator[IndexEntry]:
    """The entries after the header, in order, up to the first that does not vouch for itself or does not ascend."""
    previous = (-1, -1)
    for start in range(ENTRIES_POSITION, len(buffer) - ENTRY_SIZE + 1, ENTRY_SIZE):
        entry = unpack_entry(buffer, start, incarnation)
        if entry is None or entry.offset <= previous[0] or entry.position <= previous[1]:
            return
        previous = (entry.offset, entry.position)
        yield entry
