"""The ring journal: where a batch is copied once, what segments are written from, and what tail reads come from.

Owns one ring file of the runtime directory. Written by the worker of the partition alone; mapped by readers, who copy
and then look whether the ring has moved past what they copied (rule 6). The byte of log position p is at p mod size,
and a ring begins at a multiple of PAGE_SIZE, so a page of the ring is a page of the segment file and goes to disk
straight from here.

A record gets its header last: content first, then the 256 bytes with the checksum. So whatever a killed worker left
behind the committed end is either a whole record or no record, and recovery can believe what it finds.
"""

from __future__ import annotations

from typing import Final, Protocol

from shmbroker.formats import journal as journal_format
from shmbroker.formats.journal import DATA_POSITION, JOURNAL_MAGIC, JournalHeader
from shmbroker.limits import PAGE_SIZE, RING_SIZE_LARGE_RECORD, RING_SIZE_MIN
from shmbroker.storage.disk import aligned_buffer
from shmbroker.storage.runtime import Runtime

ZEROS: Final = bytes(2 * PAGE_SIZE)


class RingHolder(Protocol):
    """A log with a ring, as the budget sees it."""

    def give_back_ring(self, now_us: int) -> bool:
        """Flushes and gives its ring back, if it can: capacity pressure."""


class JournalBudget:
    """The memory that the rings of one worker may use together. Not thread-safe: its worker's thread alone asks.

    Running short is the capacity pressure that flushes early: the log that got its ring first has to write what is in
    it and give it back.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._holders: dict[RingHolder, None] = {}

    def take(self, size: int, holder: RingHolder | None = None) -> bool:
        """Whether ``size`` bytes could be had; they are taken then, and ``holder`` may be asked for them later."""
        if size > self.limit:
            return False
        for other in list(self._holders):
            if self.used + size <= self.limit:
                break
            if other is not holder:
                other.give_back_ring(0)
        if self.used + size > self.limit:
            return False
        self.used += size
        if holder is not None:
            self._holders.pop(holder, None)
            self._holders[holder] = None
        return True

    def give_back(self, size: int, holder: RingHolder | None = None) -> None:
        """Returns memory; ``holder`` has no ring any more."""
        assert 0 <= size <= self.used
        self.used -= size
        if holder is not None:
            self._holders.pop(holder, None)


class RingJournal:
    """One ring. Whoever made it gives its size back to the budget."""

    def __init__(self, view: memoryview, header: JournalHeader) -> None:
        assert header.ring_base % PAGE_SIZE == 0
        assert header.ring_size & (header.ring_size - 1) == 0
        assert len(view) == DATA_POSITION + header.ring_size
        self.generation = header.generation
        self.size = header.ring_size
        self.mask = header.ring_size - 1
        self.base = header.ring_base
        self.data = view[DATA_POSITION:]

    @classmethod
    def create(
        cls, runtime: Runtime, log_id: int, incarnation: bytes, generation: int, size: int, base: int
    ) -> RingJournal:
        """A new ring that begins at log position ``base``. Raises NoSpace where shared memory is full."""
        header = JournalHeader(JOURNAL_MAGIC, log_id, incarnation, generation, size, base, runtime.boot_id)
        view = runtime.create_ring(log_id, incarnation, generation, size)
        packed = journal_format.pack_header(header)
        view[: len(packed)] = packed
        return cls(view, header)

    @classmethod
    def adopt(cls, runtime: Runtime, log_id: int, incarnation: bytes, generation: int) -> RingJournal | None:
        """The ring that an earlier worker left, or None where it is missing or not exactly ours (rule 5)."""
        view = runtime.open_ring(log_id, incarnation, generation)
        if view is None:
            return None
        header = journal_format.unpack_header(view[:PAGE_SIZE])
        if header is None or not _fits(header, len(view)):
            return None
        if (header.log_id, header.incarnation, header.generation, header.boot_id) != (
            log_id, incarnation, generation, runtime.boot_id,
        ):  # fmt: skip
            return None
        return cls(view, header)

    def put(self, position: int, source: bytes | bytearray | memoryview) -> None:
        """Copies ``source`` to where ``position`` is, around the end of the ring if need be."""
        index = position & self.mask
        first = min(len(source), self.size - index)
        self.data[index : index + first] = source[:first]
        if first < len(source):
            self.data[: len(source) - first] = source[first:]

    def get(self, position: int, size: int) -> bytes:
        """A private copy of ``size`` bytes."""
        return b"".join(self.pieces(position, position + min(size, self.size)))

    def pieces(self, start: int, end: int) -> list[memoryview]:
        """Views of the ring, in order, that make up [start, end)."""
        assert end - start <= self.size
        index = start & self.mask
        size = end - start
        if index + size <= self.size:
            return [self.data[index : index + size]]
        return [self.data[index:], self.data[: index + size - self.size]]

    def pages(self, start: int, end: int) -> list[memoryview]:
        """Whole pages from ``start``, which is on a boundary, that hold everything to ``end`` and zeros behind it. They
        are as they stand until the next append."""
        return self.pieces(start, self.zero_to_page(end))

    def pages_apart(self, start: int, end: int) -> list[memoryview]:
        """As :meth:`pages`, to be written while appends go on: the last page, if it is not full, is a copy."""
        boundary = end - end % PAGE_SIZE
        pages = self.pieces(start, boundary) if boundary > start else []
        if boundary < end:
            tail = aligned_buffer(PAGE_SIZE)
            tail[: end - boundary] = self.get(boundary, end - boundary)
            pages.append(tail)
        return pages

    def zero_to_page(self, end: int) -> int:
        """Zeros from ``end`` to the next page boundary, which it returns: the last page of a write is a whole one."""
        gap = -end % PAGE_SIZE
        if gap:
            index = end & self.mask
            self.data[index : index + gap] = ZEROS[:gap]
        return end + gap


def _fits(header: JournalHeader, length: int) -> bool:
    size = header.ring_size
    return (
        RING_SIZE_MIN <= size <= RING_SIZE_LARGE_RECORD
        and size & (size - 1) == 0
        and length == DATA_POSITION + size
        and header.ring_base % PAGE_SIZE == 0
    )
