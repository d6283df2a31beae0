"""The life of a log: created, opened, purged, closed, removed. What it does in between is in partition_log.

:class:`LogLife` owns the order in which superblock, segments, control block and rings say the same thing, so that a
crash between any two of them is completed by the next start. Written from the worker's thread alone.
"""

from __future__ import annotations

import os
from concurrent.futures import Executor
from contextlib import suppress
from typing import Final, Self

from shmbroker.errors import Corrupt, DiskFailed, ErrorCode, NoSpace
from shmbroker.formats import control as words
from shmbroker.formats.control import COUNTER, State
from shmbroker.storage.disk import Disk
from shmbroker.storage.examination import Examination, examine
from shmbroker.storage.journal import JournalBudget
from shmbroker.storage.log_core import LogCore, LogOptions
from shmbroker.storage.offsets import OffsetStore
from shmbroker.storage.opening import Opened, apply
from shmbroker.storage.runtime import Runtime
from shmbroker.storage.superblock import SuperblockFile

INCARNATION_SIZE: Final = 16


class LogLife(LogCore):
    offsets: OffsetStore

    # --- creation and opening -------------------------------------------------------------------------------------

    @staticmethod
    def create(disk: Disk, directory: str, log_id: int, partition_id: int) -> None:
        """Makes the directory of a new partition (its parent is made too where it is missing), durable with the whole
        chain of names (rule 13). What an earlier, crashed attempt left is replaced; one that holds a segment is not
        such an attempt: FileExistsError. Raises NoSpace, DiskFailed. Any thread."""
        for path in (os.path.dirname(directory), directory):
            if not disk.exists(path):
                with suppress(FileExistsError):  # another partition is being created at the same time
                    disk.make_directory(path)
            disk.sync_directory(os.path.dirname(path))
        for name in disk.list(directory):
            path = f"{directory}/{name}"
            if len(name) != 2 * INCARNATION_SIZE:
                disk.unlink(path)
            elif disk.list(path):
                raise FileExistsError(f"{path}: there is a log already")
            else:
                disk.remove_tree(path)
        incarnation = os.urandom(INCARNATION_SIZE)
        disk.make_directory(f"{directory}/{incarnation.hex()}")
        SuperblockFile.create(disk, directory, log_id, partition_id, incarnation).close()
        disk.sync_directory(directory)

    @classmethod
    def open(
        cls, disk: Disk, runtime: Runtime, budget: JournalBudget, directory: str, log_id: int, partition_id: int,
        options: LogOptions, *, instance: int, now_us: int, executor: Executor,
    ) -> Self:  # fmt: skip
        """Recovers and opens. ``instance`` is the run of the broker: a partition poisoned in the same run opens
        poisoned. Raises Corrupt (refused: the control block says so), NoSpace or DiskFailed."""
        superblock = SuperblockFile.open(disk, directory, log_id)
        try:
            log = cls(disk, runtime, budget, directory, log_id, partition_id, options, superblock, instance, executor)
            try:
                log._open(now_us)
            except (Corrupt, DiskFailed, NoSpace) as error:
                log._publish_state(State.REFUSED, int(error.code))
                raise
            finally:
                if log.state is not State.OPEN and log.state is not State.POISONED:
                    log.segments.close()
        except BaseException:
            superblock.close()
            raise
        return log

    def _open(self, now_us: int) -> None:
        control, superblock = self.control, self.superblock.current
        known = control[words.WORD_MAGIC] == words.CONTROL_MAGIC
        shared_poison = known and control[words.WORD_STATE] == State.POISONED
        here = (shared_poison and control[words.WORD_BROKER_INSTANCE] == self.instance) or (
            superblock.poison != 0 and superblock.broker_instance == self.instance
        )
        self._identify(State.POISONED if here else State.OPENING)
        if superblock.partition_id != self.partition_id:
            text = f"the superblock is of partition {superblock.partition_id}, not {self.partition_id}"
            raise Corrupt(self.superblock.path, 0, text)
        # Past the cache after a failed sync (rule 2), and wherever segments are written past it: it is quicker then.
        uncached = bool(shared_poison or superblock.poison) or self.disk.direct(self.directory)
        found = examine(
            self.disk,
            self.runtime,
            self.segments.directory,
            superblock,
            control if known else None,
            uncached=uncached,
            executor=self.executor,
        )
        found.require()
        if here:
            self._open_poisoned(found)
        else:
            self._remove_other_incarnations()
            opened = apply(
                found, self.segments, segment_size=self.options.segment_size, now_us=now_us, uncached=uncached
            )
            self._take_over(opened)
        self.offsets = self._open_offsets()

    def _open_offsets(self) -> OffsetStore:
        return OffsetStore(
            self.disk, self.segments.directory, self.log_id, self.incarnation, persisted=self.options.offsets_persisted
        )

    def _identify(self, state: State) -> None:
        """Says in the control block whose it is; its magic comes last."""
        control = self.control
        control[words.WORD_LOG_ID] = self.log_id
        control[words.WORD_INCARNATION_LOW] = int.from_bytes(self.incarnation[:8], "little")
        control[words.WORD_INCARNATION_HIGH] = int.from_bytes(self.incarnation[8:], "little")
        control[words.WORD_BROKER_INSTANCE] = self.instance
        self._publish_state(state, control[words.WORD_ERROR] if state is State.POISONED else 0)
        control[COUNTER["direct_io"]] = int(self.disk.direct(self.directory))
        control[words.WORD_MAGIC] = words.CONTROL_MAGIC

    def _publish_state(self, state: State, error: int) -> None:
        self.state = state
        self.error = error
        self.control[words.WORD_ERROR] = error
        self.control[words.WORD_STATE] = state

    def _open_poisoned(self, found: Examination) -> None:
        """The same run of the broker, so the poison stands: readers keep what the control block shows."""
        self.error = self.superblock.current.poison or int(ErrorCode.CANNOT_SYNC_FILE)
        self._publish_state(State.POISONED, self.error)
        self.reason = "a write or a sync failed earlier in this run of the broker: start the broker again"
        self.segments.infos = [segment.info for segment in found.segments]
        self._end = self._file_position = found.end_position
        self.committed_offset = self._file_offset = found.end_offset
        self._durable_position = self._visible_position = self.control[words.WORD_DURABLE_POSITION]
        self._durable_offset = self.control[words.WORD_DURABLE_OFFSET]
        self._visible_offset = self.control[words.WORD_VISIBLE_OFFSET]

    def _take_over(self, opened: Opened) -> None:
        """The log is whole, durable and closed: says so on disk, then in the control block, then drops old rings."""
        self._end = self._file_position = self._durable_position = opened.end_position
        self.committed_offset = self._file_offset = self._durable_offset = opened.next_offset
        self._last_timestamp = opened.last_timestamp
        active = self.segments.active
        if active is not None:
            self._segment_message_base = -active.info.message_count
            self._next_entry_position = active.index.next_position
        for producer_id, sequence, base_offset, count in opened.producers:
            self.windows.record(producer_id, sequence, base_offset, count)
        current = self.superblock.current
        if opened.changed or current.poison or not current.clean or current.end_position != self._end:
            self.superblock.write(
                clean=1, end_position=self._end, end_offset=self.committed_offset, durable_position=self._end,
                durable_offset=self.committed_offset, poison=0,
                reserved_offset=max(current.reserved_offset, self.committed_offset),
            )  # fmt: skip
        control = self.control
        control[words.WORD_COMMITTED_OFFSET] = self.committed_offset
        control[words.WORD_COMMITTED_POSITION] = self._end
        control[words.WORD_DURABLE_OFFSET] = self.committed_offset
        control[words.WORD_DURABLE_POSITION] = self._end
        control[words.WORD_FILE_POSITION] = self._end
        self._drop_ring()
        for generation in self.runtime.list_rings(self.log_id, self.incarnation):
            highest = max(control[words.WORD_RING_GENERATION_LAST], generation)
            control[words.WORD_RING_GENERATION_LAST] = highest
            self.runtime.remove_ring(self.log_id, self.incarnation, generation)
        self.segments.publish(control)
        self._count_retained()
        control[words.WORD_VISIBLE_OFFSET] = self._visible_offset = self.committed_offset
        control[words.WORD_VISIBLE_POSITION] = self._visible_position = self._end
        self.visible_moved = True
        self._publish_state(State.OPEN, 0)

    def _remove_other_incarnations(self) -> None:
        """Finishes a purge, or the attempt at one, that a crash interrupted (rule 14)."""
        for name in self.disk.list(self.directory):
            if len(name) == 2 * INCARNATION_SIZE and name != self.incarnation.hex():
                self.disk.remove_tree(f"{self.directory}/{name}")
        for log_id, incarnation in self.runtime.list_logs(self.log_id):
            if incarnation != self.incarnation:
                _retire_runtime(self.runtime, log_id, incarnation, State.REPLACED)

    # --- purge ---------------------------------------------------------------------------------------------------

    def purge(self, now_us: int) -> int:
        """Everything goes and offsets begin at 0 again; 0 or a status. ``offsets``, ``control``, ``incarnation`` are
        new objects after it; readers of the old control block see REPLACED (rule 14)."""
        self.settle()
        if self.state is not State.OPEN:
            return self._refusal()
        assert self._flushing is None
        old_incarnation, old_segments, old_offsets = self.incarnation, self.segments, self.offsets
        incarnation = os.urandom(INCARNATION_SIZE)
        try:
            self.runtime.create_control(self.log_id, incarnation)
            self.disk.make_directory(f"{self.directory}/{incarnation.hex()}")
            self.disk.sync_directory(self.directory)
            self.reservation.settle()
            self.superblock.write(
                incarnation=incarnation, reserved_offset=0, durable_position=0, durable_offset=0, clean=1,
                end_position=0, end_offset=0,
            )  # fmt: skip
        except NoSpace as error:
            self.runtime.remove_control(self.log_id, incarnation)
            self.reason = str(error)
            return ErrorCode.DISK_FULL
        except DiskFailed as error:
            self.poison(error)
            return ErrorCode.PARTITION_POISONED
        if self._ring is not None:
            self.budget.give_back(self._ring.size, self)
        old_segments.close()
        old_offsets.close()
        self._begin_incarnation(incarnation)
        self._identify(State.OPENING)
        self.offsets = self._open_offsets()
        self._take_over(Opened(0, 0, 0, False))
        _retire_runtime(self.runtime, self.log_id, old_incarnation, State.REPLACED)
        try:
            self.disk.remove_tree(old_segments.directory)
        except DiskFailed as error:
            self.reason = f"{error}. The purge is done; the next start removes what is left"
        return ErrorCode.OK

    # --- the end --------------------------------------------------------------------------------------------------

    def close(self, now_us: int) -> None:
        """The clean stop: everything durable, the end recorded. Raises DiskFailed where that is not so."""
        if self.state is not State.OPEN:
            self.abandon()
            if self.state is State.POISONED:
                raise DiskFailed(self.reason)
            return
        try:
            if not self.superblock.current.clean or self._ring is not None:
                self._close_durably(now_us)
                self._drop_ring()
            self._flush_offsets()
        except DiskFailed as error:
            self.poison(error)
            self.abandon()
            raise
        self.abandon()
        self._publish_state(State.CLOSED, 0)

    def _flush_offsets(self) -> None:
        calls = self.offsets.prepare_flush(True)
        if not calls:
            return
        try:
            for call in calls:
                call()
        except DiskFailed as error:
            self.offsets.finish_flush(error)
            raise
        self.offsets.finish_flush(None)

    def abandon(self) -> None:
        """Closes files without writing anything: for a poisoned log, and for tests that play a crash."""
        self.settle()
        self.reservation.settle()
        self.segments.close()
        self.offsets.close()
        self.superblock.close()
        if self._ring is not None:
            self.budget.give_back(self._ring.size, self)
            self._ring = None
        self._set_bounds()

    def remove(self) -> None:
        """Deletes the partition: readers see DELETED; ring, control block and directory go. Raises DiskFailed."""
        self.abandon()
        self._publish_state(State.DELETED, int(ErrorCode.PARTITION_REPLACED))
        self.discard(self.disk, self.runtime, self.directory, self.log_id)

    @staticmethod
    def discard(disk: Disk, runtime: Runtime, directory: str, log_id: int) -> None:
        """Deletes a partition that is not open, whatever state its files are in (a refused one, say): readers see
        DELETED. One that is not there is fine. Raises DiskFailed."""
        for _, incarnation in runtime.list_logs(log_id):
            _retire_runtime(runtime, log_id, incarnation, State.DELETED)
        if disk.exists(directory):
            disk.remove_tree(directory)
            disk.sync_directory(os.path.dirname(directory))

    def _refusal(self) -> int:
        if self.state is State.POISONED:
            return ErrorCode.PARTITION_POISONED
        return ErrorCode.PARTITION_REPLACED if self.state is State.DELETED else ErrorCode.BROKER_STOPPING


def _retire_runtime(runtime: Runtime, log_id: int, incarnation: bytes, state: State) -> None:
    """Tells the readers of an incarnation that it is over, and unlinks its shared memory."""
    control = runtime.open_control(log_id, incarnation)
    if control is not None:
        control[words.WORD_STATE] = state
    for generation in runtime.list_rings(log_id, incarnation):
        runtime.remove_ring(log_id, incarnation, generation)
    runtime.remove_control(log_id, incarnation)
