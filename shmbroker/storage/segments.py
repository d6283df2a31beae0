"""The segments of one incarnation, oldest first, and the control words that tell readers about them.

Owned by the worker. At most one of them is active, and it is the last. Where none is (an empty log, a gap that has to
be recorded, a disk that was full during a roll), the next append makes one. The newest is never deleted, so the end of
the log is always on disk.
"""

from __future__ import annotations

from concurrent.futures import Executor

from shmbroker.formats import control as words
from shmbroker.formats.segment import GAP_NONE, GAP_UNCLEAN_END, SEGMENT_MAGIC, SegmentHeader
from shmbroker.storage.disk import Disk
from shmbroker.storage.segment import ActiveSegment, SegmentInfo, remove_segment_files


class SegmentSet:
    def __init__(
        self, disk: Disk, directory: str, log_id: int, partition_id: int, incarnation: bytes, executor: Executor
    ) -> None:
        self.disk = disk
        self.directory = directory
        self.log_id = log_id
        self.partition_id = partition_id
        self.incarnation = incarnation
        self.executor = executor
        self.infos: list[SegmentInfo] = []
        self.active: ActiveSegment | None = None
        self.previous_end_offset = 0
        """The offset after the last message that the segments hold: less than the next offset where there is a gap."""
        self.generation = 0

    def create_active(
        self, next_offset: int, position: int, now_us: int, *, segment_size: int, preallocate: bool
    ) -> ActiveSegment:
        """A new newest segment, durable with its name. Raises NoSpace (nothing changed) or DiskFailed."""
        assert self.active is None
        assert next_offset >= self.previous_end_offset
        gap = GAP_NONE if next_offset == self.previous_end_offset else GAP_UNCLEAN_END
        header = SegmentHeader(
            SEGMENT_MAGIC, self.log_id, self.incarnation, self.partition_id, next_offset, position,
            self.previous_end_offset, gap, now_us,
        )  # fmt: skip
        active = ActiveSegment.create(
            self.disk, self.directory, header, segment_size=segment_size, preallocate=preallocate,
            executor=self.executor,
        )  # fmt: skip
        self.active = active
        self.infos.append(active.info)
        return active

    def seal_active(self) -> None:
        """The active segment is durable and ends on a page: it takes no more."""
        active = self.active
        assert active is not None
        active.seal()
        active.close()
        self.active = None
        self.previous_end_offset = active.info.end_offset

    def deletable(self) -> list[SegmentInfo]:
        """Sealed segments, oldest first, but never the newest segment."""
        return [info for info in self.infos[:-1] if info.sealed]

    def delete_oldest(self, count: int, control: memoryview) -> list[SegmentInfo]:
        """Unlinks so many of the oldest, one after the other and each durably, so that no crash leaves a hole. Readers
        are told first; what they have mapped stays readable."""
        gone = self.infos[:count]
        assert len(gone) < len(self.infos)
        del self.infos[:count]
        self.publish(control)
        for info in gone:
            remove_segment_files(self.disk, self.directory, info.base_offset)
            self.disk.sync_directory(self.directory)
        return gone

    @property
    def size(self) -> int:
        return sum(info.size for info in self.infos)

    @property
    def message_count(self) -> int:
        return sum(info.message_count for info in self.infos)

    def publish(self, control: memoryview) -> None:
        """The segment words, the generation last."""
        first = self.infos[0] if self.infos else None
        control[words.WORD_SEGMENT_COUNT] = len(self.infos)
        control[words.WORD_FIRST_OFFSET] = first.base_offset if first else control[words.WORD_COMMITTED_OFFSET]
        control[words.WORD_FIRST_POSITION] = first.base_position if first else control[words.WORD_COMMITTED_POSITION]
        newest = self.infos[-1] if self.infos else None
        control[words.WORD_ACTIVE_BASE_OFFSET] = newest.base_offset if newest else 0
        control[words.WORD_ACTIVE_BASE_POSITION] = newest.base_position if newest else 0
        active = self.active
        control[words.WORD_ACTIVE_ALLOCATED] = (
            active.allocator.allocated if active else newest.file_size if newest else 0
        )
        self.generation = control[words.WORD_SEGMENTS_GENERATION] + 1
        control[words.WORD_SEGMENTS_GENERATION] = self.generation

    def close(self) -> None:
        if self.active is not None:
            self.active.close()
            self.active = None
