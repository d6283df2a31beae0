"""The sparse index of one segment while it is written: entries in memory, pages of them written with the log.

Owned by the worker. The file is allocated whole when the segment is made, so that an entry never needs space; the whole
of it is kept in one page-aligned buffer (132 KiB for the largest segment), from which changed pages are written. An
index is derived from the log: where it is missing, short or torn, recovery writes it anew from a scan.
"""

from __future__ import annotations

from collections.abc import Sequence

from shmbroker.formats.index import (
    ENTRIES_POSITION,
    ENTRY_SIZE,
    IndexEntry,
    header_matches,
    pack_entry,
    pack_header,
    unpack_entries,
)
from shmbroker.limits import INDEX_INTERVAL, PAGE_SIZE
from shmbroker.storage.disk import Disk, DiskFile, aligned_buffer


def index_size_of(segment_size: int) -> int:
    """Bytes of the index file of a segment of that size, with room for the last, soft-limited batch."""
    entries = segment_size // INDEX_INTERVAL + 2
    return -(-(ENTRIES_POSITION + entries * ENTRY_SIZE) // PAGE_SIZE) * PAGE_SIZE


class IndexFile:
    """The index of the active segment."""

    def __init__(self, file: DiskFile, incarnation: bytes, base_offset: int) -> None:
        self.file = file
        self.next_position = 0
        """The first batch that begins at or after this log position gets an entry."""
        self.entry_count = 0
        self.unsynced = False
        self._incarnation = incarnation
        self._buffer = aligned_buffer(file.size())
        self._buffer[:ENTRIES_POSITION] = pack_header(incarnation, base_offset)
        self._written = ENTRIES_POSITION

    @classmethod
    def create(cls, disk: Disk, path: str, incarnation: bytes, base_offset: int, size: int) -> IndexFile:
        """A new durable file of ``size`` bytes without entries (its name is not synchronised). Raises NoSpace."""
        file = disk.create(path)
        try:
            file.allocate(0, size)
            index = cls(file, incarnation, base_offset)
            file.write(0, [index._buffer[:PAGE_SIZE]], sync=True)
            file.sync()
        except BaseException:
            file.close()
            raise
        return index

    @classmethod
    def restore(
        cls, disk: Disk, path: str, incarnation: bytes, base_offset: int, entries: Sequence[IndexEntry], size: int
    ) -> tuple[IndexFile, bool]:
        """The index of a segment that was scanned, and whether its file had to be made or written again.

        ``entries`` are what the log says; the file's own are compared with them. Durable on return, but for the name.
        """
        file = disk.open(path) if disk.exists(path) else disk.create(path)
        try:
            contents = file.read(0, file.size())
            if len(contents) < size or len(contents) % PAGE_SIZE:
                file.allocate(0, max(size, -(-len(contents) // PAGE_SIZE) * PAGE_SIZE))
            index = cls(file, incarnation, base_offset)
            for entry in entries:
                index.add(entry)
            same = len(contents) >= size and contents == bytes(index._buffer[: len(contents)])
            if not same:
                file.write(0, [index._buffer], sync=True)
                file.sync()
            index._written = ENTRIES_POSITION + index.entry_count * ENTRY_SIZE
        except BaseException:
            file.close()
            raise
        return index, not same

    def add(self, entry: IndexEntry) -> None:
        """Takes an entry for a batch at ``entry.position``. A full index takes no more: it is only sparser then."""
        self.next_position = entry.position + INDEX_INTERVAL
        start = ENTRIES_POSITION + self.entry_count * ENTRY_SIZE
        if start + ENTRY_SIZE > len(self._buffer):
            return
        self._buffer[start : start + ENTRY_SIZE] = pack_entry(entry, self._incarnation)
        self.entry_count += 1

    @property
    def dirty(self) -> bool:
        return self._written < ENTRIES_POSITION + self.entry_count * ENTRY_SIZE

    def write(self, sync: bool) -> None:
        """Writes the pages that changed; with ``sync`` everything written so far is durable on return.

        Entries may be added meanwhile (PartitionLog.write_behind): what goes out is a copy, which does not change.
        """
        end = ENTRIES_POSITION + self.entry_count * ENTRY_SIZE
        start = self._written - self._written % PAGE_SIZE
        if self._written < end:
            stop = -(-end // PAGE_SIZE) * PAGE_SIZE
            pages = aligned_buffer(stop - start)
            pages[: end - start] = self._buffer[start:end]
            self.file.write(start, [pages], sync=sync and not self.unsynced)
            self._written = end
            if not sync:
                self.unsynced = True
        if sync and self.unsynced:
            self.file.sync()
            self.unsynced = False


def index_is_whole(disk: Disk, path: str, incarnation: bytes, base_offset: int, entry_count: int) -> bool:
    """Whether the index of a sealed segment has what its seal says: header and last entry stand where they must. It was
    synchronised before the seal, so that nothing between them is missing; a reader checks each entry that it uses."""
    if not disk.exists(path):
        return False
    file = disk.open(path)
    try:
        if not header_matches(file.read(0, ENTRIES_POSITION), incarnation, base_offset):
            return False
        last = file.read(ENTRIES_POSITION + (entry_count - 1) * ENTRY_SIZE, ENTRY_SIZE) if entry_count else b""
    finally:
        file.close()
    header = pack_header(incarnation, base_offset)
    return entry_count == 0 or sum(1 for _ in unpack_entries(header + last, incarnation)) == 1
