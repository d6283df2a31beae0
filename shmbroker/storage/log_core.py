"""The state of an open log, and everything of it that does not happen on every append.

:class:`LogCore` is what :class:`~shmbroker.storage.partition_log.PartitionLog` is built on. It owns the positions,
makes room for the next record (segment, ring, allocation, reservation), writes the ring to the segment and moves the
words that readers follow. Written from the worker's thread alone.

Positions, always durable <= file <= end:
- ``end``: after the last record in the ring. Published as committed once a pass.
- ``file``: written to the segment. Its page is written again by the next group, so files are stable below its page.
- ``durable``: synchronised.

An append is refused (NoSpace) before anything of it is visible. A failed write or sync raises DiskFailed through here
to the caller, and poisons the log on its way (rule 11).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from shmbroker.errors import DiskFailed, ErrorCode, NoSpace
from shmbroker.formats import control as words
from shmbroker.formats.batch import CHECKSUM_POSITION, HEADER_SIZE, filler_length, pack_filler
from shmbroker.formats.control import COUNTER, State
from shmbroker.formats.index import IndexEntry
from shmbroker.limits import (
    BATCH_SIZE_MAX,
    PAGE_SIZE,
    RING_SIZE_LARGE_RECORD,
    RING_SIZE_MAX,
    RING_SIZE_MIN,
    SEGMENT_SIZE_DEFAULT,
    U64_MAX,
)
from shmbroker.storage.deduplication import ProducerWindows
from shmbroker.storage.disk import Disk
from shmbroker.storage.journal import JournalBudget, RingJournal
from shmbroker.storage.reservation import Reservation
from shmbroker.storage.segments import SegmentSet

if TYPE_CHECKING:
    from shmbroker.storage.runtime import Runtime
    from shmbroker.storage.superblock import SuperblockFile

FLUSH_COUNTERS = {
    "count": "flushes_by_count", "size": "flushes_by_size", "roll": "flushes_by_roll",
    "pressure": "flushes_by_pressure", "request": "flushes_by_request",
}  # fmt: skip
RING_GROWTH = 4
"""A ring that was full is replaced by one so many times its size: 1, 4, 16, 64 MiB."""


@dataclass(frozen=True)
class LogOptions:
    """What the topic's options mean to one partition. Sizes in bytes, times in microseconds; 0 is no limit."""

    persisted: bool = False
    offsets_persisted: bool = False
    messages_required_to_save: int = 1024
    size_required_to_save: int = 1 << 20
    segment_size: int = SEGMENT_SIZE_DEFAULT
    message_expiry_us: int = 0
    size_max: int = 0
    preallocate: bool = False


class LogCore:
    """Fields of an open log. ``_room_end``, ``_record_max``, ``_roll_at`` and ``_reserve_at`` are the bounds within
    which an append needs nothing but the ring: all are 0 where something has to be done first."""

    def __init__(
        self, disk: Disk, runtime: Runtime, budget: JournalBudget, directory: str, log_id: int, partition_id: int,
        options: LogOptions, superblock: SuperblockFile, instance: int, executor: Executor,
    ) -> None:  # fmt: skip
        self.disk, self.runtime, self.budget, self.executor = disk, runtime, budget, executor
        self.directory, self.log_id, self.partition_id, self.options = directory, log_id, partition_id, options
        self.superblock = superblock
        self.instance = instance
        self.state = State.OPENING
        self.reason = ""
        self.error = 0
        self.visible_moved = False
        self._raw = bytearray(HEADER_SIZE)
        """The header that is being checked and stamped, out of the producer's reach."""
        self._raw_body = memoryview(self._raw)[:CHECKSUM_POSITION]
        self._begin_incarnation(superblock.current.incarnation)

    def _begin_incarnation(self, incarnation: bytes) -> None:
        self.incarnation = incarnation
        self.control = self.runtime.create_control(self.log_id, incarnation)
        self._counters = {name: self.control[word] for name, word in COUNTER.items()}
        self.segments = SegmentSet(
            self.disk,
            f"{self.directory}/{incarnation.hex()}",
            self.log_id,
            self.partition_id,
            incarnation,
            self.executor,
        )
        self.windows = ProducerWindows()
        self.reservation = Reservation(self.superblock, self.executor)
        self.committed_offset = self._file_offset = self._durable_offset = self._visible_offset = 0
        self._end = self._file_position = self._durable_position = self._visible_position = 0
        self._last_timestamp = 0
        self._next_entry_position = 0
        self._overwrite_end = 0
        self._ring: RingJournal | None = None
        self._flushing: tuple[int, int, bool] | None = None
        self._behind: Future[None] | None = None
        """What a helper writes while appends go on (PartitionLog.write_behind); ``_flushing`` says what."""
        self._quiet_end = -1
        self._message_count = self._batch_count = self._byte_count = 0
        self._segment_message_base = 0
        self._retained_base = 0
        self._room_end = self._record_max = self._roll_at = self._reserve_at = 0

    @property
    def dirty(self) -> bool:
        """Whether something is in the ring that no write has brought to the segment."""
        return self._end > self._file_position

    # --- making room ----------------------------------------------------------------------------------------------

    def _make_room(self, size: int, count: int, now_us: int) -> int:
        """Brings about that a record of ``size`` bytes and ``count`` messages can be put at the end of the ring. 0, or
        the status with which it is refused: then nothing of the log has changed that anybody could tell."""
        try:
            status = self._make_room_or_raise(size, count, now_us)
        except NoSpace as error:
            self.reason = str(error)
            status = ErrorCode.DISK_FULL
        except DiskFailed as error:
            self.poison(error)
            status = ErrorCode.PARTITION_POISONED
        self._set_bounds()
        return int(status)

    def _make_room_or_raise(self, size: int, count: int, now_us: int) -> int:
        segments = self.segments
        if _ring_size_for(size) > self.budget.limit:
            return int(ErrorCode.JOURNAL_FULL if size <= RING_SIZE_MIN // 4 else ErrorCode.BATCH_TOO_LARGE)
        if segments.active is not None and self._end - segments.active.info.base_position >= self.options.segment_size:
            self._roll(now_us)
        if self._ring is not None and size > _record_max_of(self._ring):
            self._close_to_page(now_us, sync=self.options.persisted)
            self._replace_ring(_ring_size_for(size))
        elif self._ring is not None and self._end + size > self._ring_end():
            self._relieve(now_us)
        if self._ring is None or size > _record_max_of(self._ring):
            status = self._take_ring(_ring_size_for(size))
            if status:
                return status
        if segments.active is None:
            self._open_segment(now_us)
        assert segments.active is not None
        active = segments.active
        allocated = active.allocator.allocated
        active.allocator.ensure(active.file_position(self._end + size) + 2 * PAGE_SIZE)
        active.allocator.look_ahead(active.file_position(self._end + size), (self._file_position, self._file_offset))
        if active.allocator.allocated != allocated:
            self.control[words.WORD_ACTIVE_ALLOCATED] = active.allocator.allocated
        if not self.reservation.started:
            self.reservation.start(self.committed_offset)
        self.reservation.ensure(min(self.committed_offset + count, U64_MAX))
        self.reservation.look_ahead(self.committed_offset + count)
        return 0

    def _set_bounds(self) -> None:
        ring, active = self._ring, self.segments.active
        if self.state is not State.OPEN or ring is None or active is None or not self.reservation.started:
            self._room_end = self._record_max = self._roll_at = self._reserve_at = 0
            return
        allocator = active.allocator
        hard = active.allocated_end - 2 * PAGE_SIZE
        soft = active.info.base_position + allocator.ahead_at - PAGE_SIZE
        self._room_end = min(self._ring_end(), hard, soft if soft > self._end else hard)
        self._record_max = _record_max_of(ring)
        self._roll_at = active.info.base_position + self.options.segment_size
        renew_at = self.reservation.renew_at
        self._reserve_at = renew_at if renew_at > self.committed_offset else self.reservation.limit

    def _look_ahead(self) -> None:
        """Takes what the helpers have finished, once a group."""
        active = self.segments.active
        if active is not None:
            allocator = active.allocator
            allocator.look_ahead(active.file_position(self._end), (self._file_position, self._file_offset))
            self.control[words.WORD_ACTIVE_ALLOCATED] = allocator.allocated
            if allocator.covered[0] > self._durable_position:
                # The sync of the step was also one of what had been written by then. Nobody waited for it, but it moves
                # the mark of a replicated log, above which recovery has to write everything again.
                self._durable_position, self._durable_offset = allocator.covered
                self.control[words.WORD_DURABLE_OFFSET] = self._durable_offset
                self.control[words.WORD_DURABLE_POSITION] = self._durable_position
        if self.reservation.started:
            self.reservation.look_ahead(self.committed_offset)

    def _open_segment(self, now_us: int) -> None:
        options = self.options
        self.segments.create_active(
            self.committed_offset, self._end, now_us,
            segment_size=options.segment_size, preallocate=options.preallocate,
        )  # fmt: skip
        self._segment_message_base = self._message_count
        self._next_entry_position = self._end
        self.segments.publish(self.control)

    def _roll(self, now_us: int) -> None:
        """The order of rule 13, up to the seal. The next segment is made by whoever needs it."""
        self._close_to_page(now_us, sync=True)
        self._write_out(sync=True, reason="roll")
        self.segments.seal_active()
        self.segments.publish(self.control)

    # --- the ring -------------------------------------------------------------------------------------------------

    def _ring_end(self) -> int:
        """The position that an append may reach: the page being written again has to stay, and a page of zeros fits."""
        assert self._ring is not None
        return self._file_position - self._file_position % PAGE_SIZE + self._ring.size - PAGE_SIZE

    def _relieve(self, now_us: int) -> None:
        """Capacity pressure: what fills the ring goes to the segment, and a larger ring follows if there is memory."""
        assert self._ring is not None
        self._write_out(sync=self.options.persisted, reason="pressure")
        size = min(self._ring.size * RING_GROWTH, RING_SIZE_MAX)
        if size > self._ring.size and self.budget.used + size - self._ring.size <= self.budget.limit:
            self._close_to_page(now_us, sync=self.options.persisted)
            self._replace_ring(size)

    def _take_ring(self, size: int) -> int:
        """A first ring at the end of the log, which is a page boundary. 0 or a status."""
        if self._ring is not None:
            return int(ErrorCode.BATCH_TOO_LARGE)
        refused = ErrorCode.JOURNAL_FULL if size == RING_SIZE_MIN else ErrorCode.BATCH_TOO_LARGE
        if not self.budget.take(size, self):
            return int(refused)
        if not self._create_ring(size):
            self.budget.give_back(size, self)
            return int(refused)
        return 0

    def _replace_ring(self, size: int) -> None:
        """A ring of another size for one whose content is all in the segment. Keeps the old one without memory."""
        old = self._ring
        assert old is not None
        assert self._file_position == self._end
        assert self._end % PAGE_SIZE == 0
        self.budget.give_back(old.size)
        if not self.budget.take(size, self):
            self.budget.used += old.size
            return
        if not self._create_ring(size):
            self.budget.used += old.size - size
            return
        self.runtime.remove_ring(self.log_id, self.incarnation, old.generation)

    def _create_ring(self, size: int) -> bool:
        assert self._end % PAGE_SIZE == 0
        control = self.control
        generation = control[words.WORD_RING_GENERATION_LAST] + 1
        try:
            ring = RingJournal.create(self.runtime, self.log_id, self.incarnation, generation, size, self._end)
        except NoSpace as error:
            self.reason = str(error)
            return False
        # No generation while the words of the new ring are stored: in fresh memory nothing was overwritten yet, and a
        # reader that still copies from the old ring sees that it is over.
        control[words.WORD_RING_GENERATION] = 0
        control[words.WORD_RING_GENERATION_LAST] = generation
        control[words.WORD_RING_SIZE] = size
        control[words.WORD_RING_BASE] = self._end
        self._overwrite_end = control[words.WORD_OVERWRITE_END] = self._end
        control[words.WORD_RING_GENERATION] = generation
        control[words.WORD_CLOSED] = 0
        self._ring = ring
        return True

    def _close_to_page(self, now_us: int, *, sync: bool) -> None:
        """A filler up to the page boundary, written with everything before it (rule 4)."""
        ring = self._ring
        if self._end % PAGE_SIZE:
            assert ring is not None
            length = filler_length(self._end)
            if self._end + length > self._ring_end() + PAGE_SIZE:
                self._write_out(sync=sync, reason="pressure")
            end = self._end + length
            filler = pack_filler(
                self.partition_id, self.committed_offset, max(self._last_timestamp, now_us), self._end,
                self._durable_position, self.incarnation,
            )  # fmt: skip
            if end > self._overwrite_end:
                self._overwrite_end = self.control[words.WORD_OVERWRITE_END] = end
            ring.put(self._end, filler)
            self._end = end
        if self._file_position < self._end:
            self._write_out(sync=sync, reason="roll")

    def _drop_ring(self) -> None:
        """The log is closed to a page boundary and all of it is in the files: the ring is not needed."""
        ring = self._ring
        assert self._file_position == self._end
        assert self._end % PAGE_SIZE == 0
        control = self.control
        control[words.WORD_STABLE_POSITION] = self._end
        control[words.WORD_CLOSED] = 1
        control[words.WORD_RING_GENERATION] = 0
        if ring is not None:
            self.runtime.remove_ring(self.log_id, self.incarnation, ring.generation)
            self.budget.give_back(ring.size, self)
        self._ring = None
        self._set_bounds()

    def give_back_ring(self, now_us: int) -> bool:
        """Writes and synchronises everything, records the end like a clean stop, and gives the ring back. False where
        the log cannot (it is poisoned, or a write is under way)."""
        self.settle()
        if self.state is not State.OPEN or self._ring is None or self._flushing is not None:
            return False
        try:
            self._close_durably(now_us)
        except DiskFailed as error:
            self.poison(error)
            return False
        self._drop_ring()
        return True

    def _close_durably(self, now_us: int) -> None:
        """Everything on stable storage, the end in the superblock. Raises DiskFailed."""
        self._close_to_page(now_us, sync=True)
        self._write_out(sync=True, reason="request")
        self.reservation.stop()
        self.superblock.write(
            clean=1, end_position=self._end, end_offset=self.committed_offset,
            durable_position=self._durable_position, durable_offset=self._durable_offset,
        )  # fmt: skip

    # --- writing --------------------------------------------------------------------------------------------------

    def prepare_flush(self, *, sync: bool, reason: str = "request", apart: bool = False) -> list[Callable[[], None]]:
        """The system calls that bring what is committed to the segment, durably with ``sync``; for any threads, at the
        same time too. Nothing may be appended before :meth:`finish_flush`, unless they are ``apart``."""
        self.settle()
        assert self._flushing is None
        active = self.segments.active
        if self.state is not State.OPEN or active is None:
            return []
        end, start = self._end, self._file_position
        if end == start and not (sync and self._durable_position < end) and not (sync and active.index.unsynced):
            return []
        self._flushing = (end, self.committed_offset, sync)
        buffers: list[memoryview] = []
        page = start - start % PAGE_SIZE
        if end > start:
            assert self._ring is not None
            buffers = self._ring.pages_apart(page, end) if apart else self._ring.pages(page, end)
            self._count_flush(reason, sum(map(len, buffers)))
        calls: list[Callable[[], None]] = [partial(active.write, page, buffers, sync)]
        if active.index.dirty or (sync and active.index.unsynced):
            calls.append(partial(active.index.write, sync))
        if sync:
            self._counters["syncs"] += 1
            self.control[COUNTER["syncs"]] = self._counters["syncs"]
        return calls

    def settle(self) -> None:
        """Waits for what :meth:`PartitionLog.write_behind` started, if anything, and finishes it."""
        behind, self._behind = self._behind, None
        if behind is not None:
            error = behind.exception()
            if self.state is State.OPEN:
                self.finish_flush(error)
            self._flushing = None

    def _count_flush(self, reason: str, size: int) -> None:
        for name, more in (("groups", 1), ("writes", 1), ("written_bytes", size), (FLUSH_COUNTERS[reason], 1)):
            self._counters[name] += more
            self.control[COUNTER[name]] = self._counters[name]

    def finish_flush(self, error: BaseException | None) -> None:
        """Says how the calls of :meth:`prepare_flush` went: the words move, or the log is poisoned for good."""
        if self._flushing is None:
            return
        end, offset, sync = self._flushing
        self._flushing = None
        if error is not None:
            self.poison(error)
            return
        control = self.control
        self.publish()
        self._file_position, self._file_offset = end, offset
        control[words.WORD_FILE_POSITION] = end
        control[words.WORD_STABLE_POSITION] = end - end % PAGE_SIZE
        if sync:
            self._durable_position, self._durable_offset = end, offset
            control[words.WORD_DURABLE_OFFSET] = offset
            control[words.WORD_DURABLE_POSITION] = end
            if self.options.persisted:
                self._show(end, offset)
        self._note_newest()
        try:
            self._look_ahead()
        except DiskFailed as failure:
            self.poison(failure)
        self._set_bounds()

    def _write_out(self, *, sync: bool, reason: str) -> None:
        """Prepares, runs and finishes a flush here and now. Raises DiskFailed, with the log poisoned."""
        calls = self.prepare_flush(sync=sync, reason=reason)
        try:
            for call in calls:
                call()
        except DiskFailed as error:
            self.finish_flush(error)
            raise
        self.finish_flush(None)
        if self.state is State.POISONED:
            raise DiskFailed(self.reason)

    def _show(self, position: int, offset: int) -> None:
        """Moves what readers follow. SYNC visible: pairs with LogReader.read. Offset first; readers load it last."""
        if position > self._visible_position:
            self._visible_position, self._visible_offset = position, offset
            self.control[words.WORD_VISIBLE_OFFSET] = offset
            self.control[words.WORD_VISIBLE_POSITION] = position
            self.visible_moved = True

    def publish(self) -> None:
        """What was appended in this pass is committed; readers of a replicated topic may see it."""
        control, counters = self.control, self._counters
        control[words.WORD_COMMITTED_OFFSET] = self.committed_offset
        control[words.WORD_COMMITTED_POSITION] = self._end
        if not self.options.persisted:
            self._show(self._end, self.committed_offset)
        control[COUNTER["messages"]] = counters["messages"] + self._message_count
        control[COUNTER["bytes"]] = counters["bytes"] + self._byte_count
        control[COUNTER["batches"]] = counters["batches"] + self._batch_count
        control[COUNTER["messages_retained"]] = self._retained_base + self._message_count

    def _count_retained(self) -> None:
        """Counts what the log holds, to which :meth:`publish` adds from then on."""
        self._note_newest()
        self._retained_base = self.segments.message_count - self._message_count
        self.control[COUNTER["messages_retained"]] = self.segments.message_count
        self.control[COUNTER["bytes_retained"]] = self.segments.size

    def _note_newest(self) -> None:
        """Brings what is known of the active segment up to date."""
        if (active := self.segments.active) is None:
            return
        info = active.info
        info.end_position, info.end_offset = self._end, self.committed_offset
        info.message_count = self._message_count - self._segment_message_base
        info.last_timestamp = self._last_timestamp if info.message_count else 0
        info.index_entry_count = active.index.entry_count

    def _add_entry(self, offset: int, timestamp: int, position: int) -> None:
        """An index entry for the batch at ``position``."""
        active = self.segments.active
        assert active is not None
        active.index.add(IndexEntry(offset, timestamp, position))
        self._next_entry_position = active.index.next_position
        if not active.info.first_timestamp:
            active.info.first_timestamp = timestamp

    # --- failure --------------------------------------------------------------------------------------------------

    def poison(self, error: BaseException) -> None:
        """A write or a sync of any of the partition's files failed, stored offsets included. Final for this run of the
        broker: kept in the control block, and on disk where that still works (rule 11)."""
        if self.state is State.POISONED:
            return
        self.state = State.POISONED
        self.error = int(ErrorCode.CANNOT_SYNC_FILE)
        self.reason = f"{error}. Nothing is accepted until the broker is started again"
        self.control[words.WORD_ERROR] = self.error
        self.control[words.WORD_STATE] = State.POISONED
        self._set_bounds()
        try:
            self.superblock.write(poison=self.error, broker_instance=self.instance)
        except DiskFailed as failure:
            self.reason += f" (and it could not be recorded: {failure})"


def _record_max_of(ring: RingJournal) -> int:
    """The largest record for that ring: a quarter of it, or the largest of all in a ring made for such (rule 18)."""
    return BATCH_SIZE_MAX if ring.size >= RING_SIZE_LARGE_RECORD else ring.size // 4


def _ring_size_for(size: int) -> int:
    """The ring that a record of ``size`` bytes needs."""
    if size > RING_SIZE_MAX // 4:
        return RING_SIZE_LARGE_RECORD
    ring_size = RING_SIZE_MIN
    while size > ring_size // 4:
        ring_size *= 2
    return ring_size
