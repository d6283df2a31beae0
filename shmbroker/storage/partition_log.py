"""The log of one partition, as the worker that owns it holds it: appends, flushes, retention, purge, stop.

Written by its worker alone, from one thread; the helper threads of the executor only allocate and renew reservations.
The shape of a pass::

    for every request:      status, value, argument = log.append(record, now_us)
    for every touched log:  log.publish()                       # committed, and visible where the topic is replicated
    for every log with log.options.persisted and log.dirty, or log.flush_due():
        calls = log.prepare_flush(sync=log.options.persisted)   # run all calls of all logs, concurrently if several
        log.finish_flush(error or None)                         # one error of any of its calls poisons the log
    then the completions of the persisted ones; and readers are rung where log.visible_moved

An append copies the record out of the lane once, into the ring, and believes only the copy. The header goes in last,
stamped and with its checksum: until then nothing of the record is a record (see journal).
"""

from __future__ import annotations

import os
from concurrent.futures import Executor
from struct import Struct
from typing import Final

from crc32c import crc32c

from shmbroker.errors import Corrupt, DiskFailed, ErrorCode, NoSpace
from shmbroker.formats import control as words
from shmbroker.formats.batch import (
    BATCH_MAGIC,
    CHECKSUM,
    CHECKSUM_POSITION,
    FLAGS_KNOWN,
    FRAME_HEADER_SIZE,
    FRAME_INDEX_ENTRY_SIZE,
    HEADER,
    HEADER_RESERVED,
    HEADER_SIZE,
    KIND_BATCH,
    BatchHeader,
)
from shmbroker.formats.control import COUNTER, State
from shmbroker.formats.lane import FLAG_DUPLICATE
from shmbroker.limits import BATCH_MESSAGE_COUNT_MAX, BATCH_SIZE_MAX, PAGE_SIZE
from shmbroker.storage.disk import Disk
from shmbroker.storage.examination import Examination, examine
from shmbroker.storage.journal import ZEROS, JournalBudget
from shmbroker.storage.log_core import LogCore, LogOptions
from shmbroker.storage.offsets import OffsetStore
from shmbroker.storage.opening import Opened, apply
from shmbroker.storage.retention import deletable_count
from shmbroker.storage.runtime import Runtime
from shmbroker.storage.superblock import SuperblockFile
from shmbroker.storage.validation import content_fault

__all__ = ["JournalBudget", "LogOptions", "PartitionLog"]

STAMP_FIRST: Final = Struct("<QQQ")
"""partition_id, base_offset, base_timestamp at byte 0."""
STAMP_SECOND: Final = Struct("<QQ16s")
"""log_position, durable_position, incarnation at STAMP_SECOND_POSITION."""
STAMP_SECOND_POSITION: Final = 72
INCARNATION_SIZE: Final = 16


class PartitionLog(LogCore):
    """See the module. ``status`` is always a number of ErrorCode, 0 for success."""

    offsets: OffsetStore

    # --- creation and opening -------------------------------------------------------------------------------------

    @staticmethod
    def create(disk: Disk, directory: str, log_id: int, partition_id: int) -> None:
        """Makes the directory of a new partition (its parent is made too where it is missing), durable with the whole
        chain of names (rule 13). What an earlier, crashed attempt left is completed. Raises NoSpace, DiskFailed."""
        parent = os.path.dirname(directory)
        for path in (parent, directory):
            if not disk.exists(path):
                disk.make_directory(path)
            disk.sync_directory(os.path.dirname(path))
        for name in disk.list(directory):
            disk.remove_tree(f"{directory}/{name}") if len(name) == 2 * INCARNATION_SIZE else disk.unlink(
                f"{directory}/{name}"
            )
        incarnation = os.urandom(INCARNATION_SIZE)
        disk.make_directory(f"{directory}/{incarnation.hex()}")
        SuperblockFile.create(disk, directory, log_id, partition_id, incarnation).close()
        disk.sync_directory(directory)

    @classmethod
    def open(
        cls, disk: Disk, runtime: Runtime, budget: JournalBudget, directory: str, log_id: int, partition_id: int,
        options: LogOptions, *, instance: int, now_us: int, executor: Executor,
    ) -> PartitionLog:  # fmt: skip
        """Recovers and opens. ``instance`` is the run of the broker: a partition poisoned in the same run opens
        poisoned. Raises Corrupt (refused: the control block says so), NoSpace or DiskFailed."""
        superblock = SuperblockFile.open(disk, directory, log_id)
        try:
            log = cls(disk, runtime, budget, directory, log_id, partition_id, options, superblock, instance, executor)
            try:
                log._open(now_us)
            except Corrupt as error:
                log._publish_state(State.REFUSED, int(ErrorCode.PARTITION_REFUSED))
                log.segments.close()
                raise error
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
        uncached = bool(shared_poison or superblock.poison)
        found = examine(
            self.disk, self.runtime, self.segments.directory, superblock, control if known else None, uncached=uncached
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
        control[words.WORD_VISIBLE_OFFSET] = self._visible_offset = self.committed_offset
        control[words.WORD_VISIBLE_POSITION] = self._visible_position = self._end
        self.visible_moved = True
        self._publish_state(State.OPEN, 0)

    def _remove_other_incarnations(self) -> None:
        """Finishes a purge, or the attempt at one, that a crash interrupted (rule 14)."""
        for name in self.disk.list(self.directory):
            if len(name) == 2 * INCARNATION_SIZE and name != self.incarnation.hex():
                self.disk.remove_tree(f"{self.directory}/{name}")
        for log_id, incarnation in self.runtime.list_logs():
            if log_id == self.log_id and incarnation != self.incarnation:
                self._retire_runtime(incarnation, State.REPLACED)

    def _retire_runtime(self, incarnation: bytes, state: State) -> None:
        """Tells the readers of an incarnation that it is over, and unlinks its shared memory."""
        control = self.runtime.open_control(self.log_id, incarnation)
        if control is not None:
            control[words.WORD_STATE] = state
        for generation in self.runtime.list_rings(self.log_id, incarnation):
            self.runtime.remove_ring(self.log_id, incarnation, generation)
        self.runtime.remove_control(self.log_id, incarnation)

    # --- appending ------------------------------------------------------------------------------------------------

    def append(self, record: memoryview, now_us: int) -> tuple[int, int, int]:
        """Takes one record; (status, base offset, count with FLAG_DUPLICATE) of its completion. ``record`` is exactly
        one record, in memory that its owner may change at any time: what counts is the copy."""
        size = len(record)
        if not HEADER_SIZE < size <= BATCH_SIZE_MAX:
            return (ErrorCode.BATCH_TOO_LARGE if size > HEADER_SIZE else ErrorCode.INVALID_FORMAT), 0, 0
        raw = self._raw
        raw[:] = record[:HEADER_SIZE]
        header: BatchHeader = tuple.__new__(BatchHeader, HEADER.unpack_from(raw))
        (
            _, _, _, _, batch_length, _, count, kind, flags, magic, length, _, _, _, producer_id, sequence, _,
        ) = header  # fmt: skip
        # The checks of formats.batch.shape_fault for a record of which nothing but `size` bytes exists.
        if (
            magic != BATCH_MAGIC
            or kind != KIND_BATCH
            or flags & ~FLAGS_KNOWN
            or not 0 < count <= BATCH_MESSAGE_COUNT_MAX
            or not batch_length + 4 * count + 7 & -8 == length == size
            or batch_length <= HEADER_SIZE + FRAME_HEADER_SIZE * count
            or raw[HEADER.size : CHECKSUM_POSITION] != HEADER_RESERVED
        ):
            return ErrorCode.INVALID_FORMAT, 0, 0
        if crc32c(self._raw_body) != CHECKSUM.unpack_from(raw, CHECKSUM_POSITION)[0]:
            return ErrorCode.INVALID_BATCH_CHECKSUM, 0, 0
        if producer_id:
            answer = self._known(producer_id, sequence)
            if answer is not None:
                return answer
        position, offset = self._end, self.committed_offset
        end = position + size
        if (
            end > self._room_end
            or size > self._record_max
            or position >= self._roll_at
            or offset + count > self._reserve_at
        ):
            status = self._make_room(size, count, now_us) if self.state is State.OPEN else self._refusal()
            if status:
                return status, 0, 0
            position = self._end
            end = position + size
        ring = self._ring
        assert ring is not None
        # The page of zeros behind the record is counted in: a flush fills the last page up.
        # It never goes back, not even after a record that was refused once it stood in the ring (rule 6).
        overwrite_end = (end + PAGE_SIZE - 1) & -PAGE_SIZE
        if overwrite_end > self._overwrite_end:
            self._overwrite_end = self.control[words.WORD_OVERWRITE_END] = overwrite_end
        index = position & ring.mask
        content_length = header.batch_length - HEADER_SIZE + FRAME_INDEX_ENTRY_SIZE * count
        wraps = index + size > ring.size
        if wraps:
            body = memoryview(bytearray(record[HEADER_SIZE:]))
        else:
            body = ring.data[index + HEADER_SIZE : index + size]
            body[:] = record[HEADER_SIZE:]
        content_error = content_fault(header, body[:content_length])
        if content_error is not None:
            return content_error, 0, 0
        padding = size - HEADER_SIZE - content_length
        if padding:
            body[content_length:] = ZEROS[:padding]
        timestamp = self._last_timestamp
        if now_us > timestamp:
            timestamp = self._last_timestamp = now_us
        STAMP_FIRST.pack_into(raw, 0, self.partition_id, offset, timestamp)
        STAMP_SECOND.pack_into(raw, STAMP_SECOND_POSITION, position, self._durable_position, self.incarnation)
        CHECKSUM.pack_into(raw, CHECKSUM_POSITION, crc32c(self._raw_body))
        if wraps:
            ring.put(position + HEADER_SIZE, body)
            ring.put(position, raw)
        else:
            ring.data[index : index + HEADER_SIZE] = raw
        self._end = end
        self.committed_offset = offset + count
        self._message_count += count
        self._batch_count += 1
        self._byte_count += size
        if position >= self._next_entry_position:
            self._add_entry(offset, timestamp, position)
        if producer_id:
            self.windows.record(producer_id, sequence, offset, count)
        return 0, offset, count

    def _known(self, producer_id: int, sequence: int) -> tuple[int, int, int] | None:
        """The answer to a batch that this producer sent before (rule 7), else None."""
        known = self.windows.find(producer_id, sequence)
        if known is None or self.state is not State.OPEN:
            return None
        if isinstance(known, tuple):
            self._counters["duplicates"] += 1
            self.control[COUNTER["duplicates"]] = self._counters["duplicates"]
            return 0, known[0], known[1] | FLAG_DUPLICATE
        return ErrorCode.REQUEST_ALREADY_APPLIED, 0, 0

    def _refusal(self) -> int:
        if self.state is State.POISONED:
            return ErrorCode.PARTITION_POISONED
        return ErrorCode.PARTITION_REPLACED if self.state is State.DELETED else ErrorCode.BROKER_STOPPING

    # --- flushing -------------------------------------------------------------------------------------------------

    def flush_due(self) -> str | None:
        """ "count" or "size" where a trigger has fired, else None."""
        pending = self._end - self._file_position
        if pending == 0 or self.state is not State.OPEN:
            return None
        if self.committed_offset - self._file_offset >= self.options.messages_required_to_save:
            return "count"
        if pending >= self.options.size_required_to_save or self._end >= self._roll_at:
            return "size"
        return None

    def flush(self, *, sync: bool, reason: str = "request") -> int:
        """Writes what is committed, synchronised if asked; the status. ``reason`` is a key of FLUSH_COUNTERS."""
        if self.state is not State.OPEN:
            return self._refusal()
        try:
            self._write_out(sync=sync, reason=reason)
        except DiskFailed:
            return ErrorCode.PARTITION_POISONED
        return ErrorCode.OK

    # --- upkeep ---------------------------------------------------------------------------------------------------

    def maintain(self, now_us: int) -> None:
        """To be called every second or so, between passes: gives the ring back when it was quiet since the last call
        and all is written, which also makes the mark durable; deletes what retention says."""
        if self.state is not State.OPEN or self._flushing is not None:
            return
        if self._ring is not None and self._end == self._quiet_end and not self.dirty:
            self.give_back_ring(now_us)
        self._quiet_end = self._end
        options = self.options
        if options.message_expiry_us or options.size_max:
            count = deletable_count(
                self.segments.deletable(), now_us=now_us, expiry_us=options.message_expiry_us,
                size_max=options.size_max, segment_size=options.segment_size,
                lowest_stored_offset=self.offsets.lowest(),
            )  # fmt: skip
            self.delete_segments(count)
        self.control[COUNTER["messages_retained"]] = self.segments.message_count
        self.control[COUNTER["bytes_retained"]] = self.segments.size

    def delete_segments(self, count: int) -> int:
        """Deletes up to ``count`` of the oldest sealed segments, durably; how many went. The newest never goes."""
        count = min(count, len(self.segments.deletable()))
        if count <= 0 or self.state is not State.OPEN:
            return 0
        try:
            last = self.segments.infos[count - 1]
            if self.superblock.current.durable_position < last.end_position:
                self.superblock.write(durable_position=self._durable_position, durable_offset=self._durable_offset)
            self.segments.delete_oldest(count, self.control)
        except DiskFailed as error:
            self._poison(error)
            return 0
        self._counters["segments_deleted"] += count
        self.control[COUNTER["segments_deleted"]] = self._counters["segments_deleted"]
        return count

    def update_options(self, options: LogOptions) -> None:
        """Takes other limits of age and size; what is create-only may not differ."""
        assert options.persisted == self.options.persisted
        assert options.segment_size == self.options.segment_size
        self.options = options

    def purge(self, now_us: int) -> int:
        """Everything goes and offsets begin at 0 again; 0 or a status. ``offsets``, ``control``, ``incarnation`` are
        new objects after it; readers of the old control block see REPLACED (rule 14)."""
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
            self._poison(error)
            return ErrorCode.PARTITION_POISONED
        if self._ring is not None:
            self.budget.give_back(self._ring.size, self)
        old_segments.close()
        old_offsets.close()
        self._begin_incarnation(incarnation)
        self._identify(State.OPENING)
        self.offsets = self._open_offsets()
        self._take_over(Opened(0, 0, 0, False))
        self._retire_runtime(old_incarnation, State.REPLACED)
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
            self._poison(error)
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
        self._retire_runtime(self.incarnation, State.DELETED)
        self.disk.remove_tree(self.directory)
        self.disk.sync_directory(os.path.dirname(self.directory))

    def describe(self) -> dict[str, object]:
        """What stats show of this partition. Offsets are the next ones; sizes and positions in bytes."""
        infos = self.segments.infos
        return {
            "log_id": self.log_id,
            "partition": self.partition_id,
            "incarnation": self.incarnation.hex(),
            "state": self.state.name.lower(),
            "error": self.error,
            "reason": self.reason,
            "durability": "persisted" if self.options.persisted else "replicated",
            "first_offset": infos[0].base_offset if infos else self.committed_offset,
            "committed_offset": self.committed_offset,
            "durable_offset": self._durable_offset,
            "visible_offset": self._visible_offset,
            "committed_position": self._end,
            "file_position": self._file_position,
            "durable_position": self._durable_position,
            "segment_count": len(infos),
            "size": self.segments.size,
            "messages": self.segments.message_count,
            "ring_size": self._ring.size if self._ring is not None else 0,
            "direct_io": bool(self.control[COUNTER["direct_io"]]),
            "counters": {name: self.control[word] for name, word in COUNTER.items()},
        }
