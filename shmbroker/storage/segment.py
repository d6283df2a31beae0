"""Segments: what is known of each, and the one that is being written.

Owns ``{base_offset:020}.log`` and its index from creation to seal. Written by the worker of the partition alone. Byte
of log position p is at file position 4,096 + p - base_position, and base_position is a multiple of 4,096, so pages of
the ring are pages of the file.

The order of rule 13 is spread over two calls: :meth:`ActiveSegment.seal` makes the old segment durable and then says so
in its seal; :meth:`ActiveSegment.create` makes the new files, allocated and synchronised, and then their names. Only
then may a record go in. So every segment but the newest has a seal, and a file whose header cannot be read never held a
record.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from shmbroker.formats.index import IndexEntry
from shmbroker.formats.segment import DATA_POSITION, SEAL_MAGIC, Seal, SegmentHeader, index_name, log_name, pack_page
from shmbroker.limits import PAGE_SIZE, U64_MAX
from shmbroker.storage.allocation import StepAllocator
from shmbroker.storage.disk import Disk, DiskFile, aligned_buffer
from shmbroker.storage.index import IndexFile, index_size_of


@dataclass(slots=True)
class SegmentInfo:
    """What a worker keeps of every segment. The newest one's figures grow while it is written."""

    base_offset: int
    base_position: int
    end_offset: int
    end_position: int
    message_count: int
    first_timestamp: int
    last_timestamp: int
    index_entry_count: int
    sealed: bool
    file_size: int

    @property
    def size(self) -> int:
        """Bytes of log in it."""
        return self.end_position - self.base_position


class ActiveSegment:
    """The segment that takes records."""

    def __init__(
        self, directory: str, header: SegmentHeader, info: SegmentInfo, file: DiskFile, index: IndexFile,
        allocator: StepAllocator,
    ) -> None:  # fmt: skip
        assert header.base_position % PAGE_SIZE == 0
        self.directory = directory
        self.header = header
        self.info = info
        self.file = file
        self.index = index
        self.allocator = allocator
        self.unsynced = False
        """Whether pages were written that no sync has covered yet."""

    @classmethod
    def create(
        cls, disk: Disk, directory: str, header: SegmentHeader, *, segment_size: int, preallocate: bool,
        executor: Executor,
    ) -> ActiveSegment:  # fmt: skip
        """A new segment, durable with its name. Raises NoSpace, with its files removed again, or DiskFailed."""
        size_target = DATA_POSITION + segment_size + PAGE_SIZE
        size_target += -size_target % PAGE_SIZE
        path = f"{directory}/{log_name(header.base_offset)}"
        index_path = f"{directory}/{index_name(header.base_offset)}"
        remove_segment_files(disk, directory, header.base_offset)
        file: DiskFile | None = None
        index: IndexFile | None = None
        try:
            file = disk.create(path)
            allocator = StepAllocator(file, 0, size_target, executor)
            allocator.ensure(size_target if preallocate else PAGE_SIZE)
            write_header_page(file, header, None)
            index_size = index_size_of(segment_size)
            index = IndexFile.create(disk, index_path, header.incarnation, header.base_offset, index_size)
            disk.sync_directory(directory)
        except Exception:
            if file is not None:
                file.close()
            if index is not None:
                index.file.close()
            remove_segment_files(disk, directory, header.base_offset)
            raise
        base = header.base_position
        info = SegmentInfo(header.base_offset, base, header.base_offset, base, 0, 0, 0, 0, False, file.size())
        return cls(directory, header, info, file, index, allocator)

    @classmethod
    def reopen(
        cls, disk: Disk, directory: str, header: SegmentHeader, info: SegmentInfo, entries: Sequence[IndexEntry], *,
        segment_size: int, executor: Executor,
    ) -> ActiveSegment:  # fmt: skip
        """The newest segment after recovery has looked at it. Its index is written anew where it is not what the log
        says. Its file's length is believed only after it was synchronised."""
        file = disk.open(f"{directory}/{log_name(header.base_offset)}")
        try:
            allocated = file.size()
            if allocated % PAGE_SIZE:
                file.allocate(allocated, -allocated % PAGE_SIZE)
                allocated = file.size()
            index_path = f"{directory}/{index_name(header.base_offset)}"
            index, written = IndexFile.restore(
                disk, index_path, header.incarnation, header.base_offset, entries, index_size_of(segment_size)
            )
            if written:
                disk.sync_directory(directory)
        except BaseException:
            file.close()
            raise
        size_target = DATA_POSITION + segment_size + PAGE_SIZE
        size_target += -size_target % PAGE_SIZE
        segment = cls(directory, header, info, file, index, StepAllocator(file, allocated, size_target, executor))
        segment.unsynced = True
        return segment

    def file_position(self, position: int) -> int:
        """Where in the file the byte of log position ``position`` is."""
        return DATA_POSITION + position - self.info.base_position

    @property
    def allocated_end(self) -> int:
        """The log position up to which records may be written."""
        return self.info.base_position + self.allocator.allocated - DATA_POSITION

    def write(self, start: int, buffers: Sequence[memoryview], sync: bool) -> None:
        """Writes pages at log position ``start``; with ``sync`` everything written so far is durable on return."""
        if buffers:
            self.file.write(DATA_POSITION + start - self.info.base_position, buffers, sync=sync and not self.unsynced)
            if not sync:
                self.unsynced = True
        if sync and self.unsynced:
            self.file.sync()
            self.unsynced = False

    def seal(self) -> None:
        """Says for ever where this segment ends. Everything in it is durable already."""
        info = self.info
        assert not self.unsynced
        assert not self.index.dirty
        assert not self.index.unsynced
        assert info.end_position % PAGE_SIZE == 0
        info.index_entry_count = self.index.entry_count
        write_header_page(self.file, self.header, seal_of(info, self.header.incarnation))
        info.sealed = True
        info.file_size = self.allocator.allocated

    def close(self) -> None:
        self.allocator.settle()
        self.file.close()
        self.index.file.close()


def seal_of(info: SegmentInfo, incarnation: bytes) -> Seal:
    return Seal(
        SEAL_MAGIC, incarnation, info.end_offset, info.end_position, info.message_count,
        info.first_timestamp, info.last_timestamp, info.index_entry_count,
    )  # fmt: skip


def write_header_page(file: DiskFile, header: SegmentHeader, seal: Seal | None) -> None:
    """The first page, durable on return."""
    page = aligned_buffer(PAGE_SIZE)
    page[:] = pack_page(header, seal)
    file.write(0, [page], sync=True)


def remove_segment_files(disk: Disk, directory: str, base_offset: int) -> None:
    """Unlinks what is there of a segment. Not durable before the directory is synchronised."""
    assert 0 <= base_offset <= U64_MAX
    for name in (log_name(base_offset), index_name(base_offset)):
        if disk.exists(f"{directory}/{name}"):
            disk.unlink(f"{directory}/{name}")
