"""A segment as a reader sees it: ``.log`` mapped read-only, ``.index`` consulted for where to start.

Reads only; the worker writes. A published file is never shortened (rule 9), so a mapping stays good however the file
grows or when it is unlinked, and whoever holds a view of it keeps it: mappings are dropped here, never closed.
What may be read of it is for the caller to know: bytes below the stable position, or all up to the seal's end.

An index entry vouches for itself, so any intact one at or before the target is a right place to start reading. That is
why a binary search over entries that were not checked is enough: only the entry that it finds is.
"""

from __future__ import annotations

import mmap
import os
from bisect import bisect_left
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from shmbroker.errors import Corrupt
from shmbroker.formats import index as index_format
from shmbroker.formats import segment as segment_format
from shmbroker.formats.segment import DATA_POSITION, Seal, SegmentHeader, index_name, log_name
from shmbroker.limits import KIB, PAGE_SIZE
from shmbroker.paths import open_file

COLUMN_OFFSET: Final = 0
COLUMN_TIMESTAMP: Final = 1
COLUMN_CHECKSUM: Final = 3
STEPS_BACK_MAX: Final = 8
ASK_SIZE_MIN: Final = 64 * KIB
"""Below it the kernel's own read-ahead does as well."""
REMEDY: Final = "Stop the broker and run `shmbroker log verify`"


def map_file(path: str) -> memoryview:
    """The whole file as it is now, read-only; empty where the file is. Raises FileNotFoundError, and DiskFailed where
    it is no file."""
    fd = open_file(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        return memoryview(mmap.mmap(fd, size, prot=mmap.PROT_READ)) if size else memoryview(b"")
    finally:
        os.close(fd)


class SegmentView:
    """One segment. ``header`` is checked; ``view`` is the file, byte of log position p at ``p + shift``."""

    def __init__(self, directory: str, base_offset: int, log_id: int, incarnation: bytes) -> None:
        """Raises FileNotFoundError where retention was faster, Corrupt where the header is not this log's."""
        self.directory = directory
        self.base_offset = base_offset
        self.path = os.path.join(directory, log_name(base_offset))
        self.view = map_file(self.path)
        self.header = self._checked_header(log_id, incarnation)
        self.base_position = self.header.base_position
        self.shift = DATA_POSITION - self.base_position
        self._seal: Seal | None = None
        self._asked_start = self._asked_end = 0

    def _checked_header(self, log_id: int, incarnation: bytes) -> SegmentHeader:
        header = segment_format.unpack_header(self.view)
        if header is None:
            raise Corrupt(self.path, 0, "segment header", REMEDY)
        if (header.log_id, header.incarnation, header.base_offset) != (log_id, incarnation, self.base_offset):
            raise Corrupt(self.path, 0, "segment header of another log", REMEDY)
        return header

    @property
    def seal(self) -> Seal:
        """The seal of a segment that is known to be closed: Corrupt where there is none."""
        if self._seal is None:
            seal = segment_format.unpack_seal(self.view)
            if seal is None or seal.incarnation != self.header.incarnation:
                raise Corrupt(self.path, segment_format.SEAL_POSITION, "seal", REMEDY)
            self._seal = seal
        return self._seal

    def window(self, position: int, end_position: int) -> memoryview:
        """The bytes of log positions [position, end_position), mapped."""
        start, end = position + self.shift, end_position + self.shift
        if end > len(self.view):
            self.view = map_file(self.path)
            if end > len(self.view):
                raise Corrupt(
                    self.path, len(self.view), f"the file ends before byte {end}, which was published", REMEDY
                )
        if end > self._asked_end or start < self._asked_start:
            self._ask_for(start, end)
        return self.view[start:end]

    def _ask_for(self, start: int, end: int) -> None:
        """Has the kernel fetch [start, end) at once, where that is much. The worker's direct writes leave nothing in
        the page cache: reading by page faults alone would wait for the disk every few pages."""
        if start != self._asked_end:
            self._asked_start = start
        self._asked_end = end
        page = start - start % PAGE_SIZE
        mapping = self.view.obj
        if end - page >= ASK_SIZE_MIN and isinstance(mapping, mmap.mmap):
            mapping.madvise(mmap.MADV_WILLNEED, page, end - page)

    def start_for_offset(self, offset: int, limit_position: int) -> int:
        """A log position at or before the batch that holds ``offset``, from the index; below ``limit_position``."""
        entries = self._entries()
        number = int(np.searchsorted(entries[:, COLUMN_OFFSET], np.uint64(offset), "right")) - 1
        return self._start_at(entries, number, limit_position)

    def start_for_timestamp(self, timestamp_us: int, limit_position: int) -> int:
        """A log position at or before the first batch taken at or after ``timestamp_us``; below ``limit_position``."""
        entries = self._entries()
        number = int(np.searchsorted(entries[:, COLUMN_TIMESTAMP], np.uint64(timestamp_us), "left")) - 1
        return self._start_at(entries, number, limit_position)

    def _start_at(self, entries: npt.NDArray[Any], number: int, limit_position: int) -> int:
        for step in range(min(STEPS_BACK_MAX, number + 1)):
            entry = index_format.unpack_entry(entries[number - step].tobytes(), 0, self.header.incarnation)
            if entry is not None and self.base_position <= entry.position < limit_position:
                return entry.position
        return self.base_position

    def _entries(self) -> npt.NDArray[np.uint64]:
        """The entries that are there, unchecked, as rows of words; none where the index is missing or foreign.

        Read, not mapped: 128 KiB for the largest segment, and an index may be made anew.
        """
        try:
            path = os.path.join(self.directory, index_name(self.base_offset))
            with os.fdopen(open_file(path, os.O_RDONLY), "rb") as file:
                contents = file.read()
        except FileNotFoundError:
            contents = b""
        if not index_format.header_matches(contents, self.header.incarnation, self.base_offset):
            return np.zeros((0, 4), np.uint64)
        count = (len(contents) - index_format.ENTRIES_POSITION) // index_format.ENTRY_SIZE
        entries = np.frombuffer(contents, "<u8", 4 * count, index_format.ENTRIES_POSITION).reshape(count, 4)
        return entries[: np.count_nonzero(entries[:, COLUMN_CHECKSUM])]


class SegmentList:
    """The segments of one incarnation by base offset, looked up in the directory when the control block says so."""

    def __init__(self, directory: str, log_id: int, incarnation: bytes) -> None:
        self.directory = directory
        self.log_id = log_id
        self.incarnation = incarnation
        self.base_offsets: list[int] = []
        self._key: tuple[int, int] | None = None

    def refresh(self, generation: int, active_base_offset: int, *, force: bool = False) -> None:
        """Lists again where (generation, active segment) is new. A file beyond the active one is not published yet."""
        key = (generation, active_base_offset)
        if key == self._key and not force:
            return
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError:
            names = []
        found = (segment_format.base_offset_of(name) for name in names if name.endswith(segment_format.LOG_SUFFIX))
        self.base_offsets = sorted(offset for offset in found if offset is not None and offset <= active_base_offset)
        self._key = key

    def open(self, base_offset: int) -> SegmentView:
        return SegmentView(self.directory, base_offset, self.log_id, self.incarnation)

    def containing(self, offset: int) -> int | None:
        """The base offset of the segment for ``offset``: the last that starts at or before it, else the earliest."""
        if not self.base_offsets:
            return None
        return self.base_offsets[max(0, bisect_left(self.base_offsets, offset + 1) - 1)]

    def following(self, base_offset: int) -> int | None:
        """The base offset of the next segment, or None."""
        number = bisect_left(self.base_offsets, base_offset + 1)
        return self.base_offsets[number] if number < len(self.base_offsets) else None

    def first_reaching(self, timestamp_us: int) -> SegmentView | None:
        """The first segment that may hold a batch taken at or after this time: sealed ones say their last time."""
        offsets = self.base_offsets
        low, high = 0, len(offsets) - 1
        if high < 0:
            return None
        while low < high:
            middle = (low + high) // 2
            seal = self.open(offsets[middle]).seal
            # A segment without messages has no time: the one before it decides for both.
            probe = middle
            while seal.message_count == 0 and probe > low:
                probe -= 1
                seal = self.open(offsets[probe]).seal
            if seal.last_timestamp < timestamp_us:
                low = middle + 1
            else:
                high = probe
        return self.open(offsets[low])
