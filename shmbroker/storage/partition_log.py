"""The log of one partition, as the worker that owns it holds it: appends, flushes, retention, purge, stop.

Written by its worker alone, from one thread; the helper threads of the executor only allocate and renew reservations.
The shape of a pass::

    for every request:      status, value, argument = log.append(record, now_us)
    for every touched log:  log.publish()                       # committed, and visible where the topic is replicated
    for every log with log.options.persisted and log.dirty, or log.flush_due():
        calls = log.prepare_flush(sync=log.options.persisted)   # run all calls of all logs, concurrently if several
        log.finish_flush(error or None)                         # one error of any of its calls poisons the log
    then the completions of the persisted ones; and readers are rung where log.visible_moved
    for every replicated log with log.flush_due():          log.write_behind(...); log.settle_written() in a later pass

An append copies the record out of the lane once, into the ring, and believes only the copy. The header goes in last,
stamped and with its checksum: until then nothing of the record is a record (see journal).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from struct import Struct
from typing import Final

from crc32c import crc32c

from shmbroker.errors import DiskFailed, ErrorCode
from shmbroker.formats.batch import (
    BATCH_MAGIC,
    CHECKSUM,
    CHECKSUM_POSITION,
    FLAGS_KNOWN,
    FRAME_INDEX_ENTRY_SIZE,
    HEADER,
    HEADER_RESERVED,
    HEADER_SIZE,
    KIND_BATCH,
    BatchHeader,
)
from shmbroker.formats.control import COUNTER, WORD_OVERWRITE_END, State
from shmbroker.formats.lane import FLAG_DUPLICATE
from shmbroker.limits import BATCH_MESSAGE_COUNT_MAX, BATCH_SIZE_MAX, RETENTION_PASS_S, RETENTION_SEGMENTS_PER_STEP
from shmbroker.storage.deduplication import Verdict
from shmbroker.storage.journal import ZEROS, JournalBudget
from shmbroker.storage.log_core import LogOptions
from shmbroker.storage.log_life import LogLife
from shmbroker.storage.retention import deletable_count
from shmbroker.storage.validation import content_fault, one_message_fault

__all__ = ["JournalBudget", "LogOptions", "PartitionLog"]

CLAIMS: Final = Struct("<32xQ8xIHHQQ32xQQQ124sI")
"""What an append looks at of a header: batch length, message count, kind, flags, magic, record length, producer id,
sequence, content checksum, the reserved bytes, and the header's own checksum."""
STAMP_FIRST: Final = Struct("<QQQ")
"""partition_id, base_offset, base_timestamp at byte 0."""
STAMP_SECOND: Final = Struct("<QQ16s")
"""log_position, durable_position, incarnation at STAMP_SECOND_POSITION."""
STAMP_SECOND_POSITION: Final = 72
INCARNATION_SIZE: Final = 16

assert CLAIMS.size == HEADER_SIZE

_unpack_claims = CLAIMS.unpack_from
_stamp_first = STAMP_FIRST.pack_into
_stamp_second = STAMP_SECOND.pack_into
_stamp_checksum = CHECKSUM.pack_into


def _run_all(calls: list[Callable[[], None]]) -> None:
    for call in calls:
        call()


class PartitionLog(LogLife):
    """See the module. ``status`` is always a number of ErrorCode, 0 for success."""

    # --- appending ------------------------------------------------------------------------------------------------

    def append(self, record: memoryview, now_us: int) -> tuple[int, int, int]:
        """Takes one record; (status, base offset, count with FLAG_DUPLICATE) of its completion. ``record`` is exactly
        one record, in memory that its owner may change at any time: what counts is the copy."""
        size = len(record)
        if not HEADER_SIZE < size <= BATCH_SIZE_MAX:
            return (ErrorCode.BATCH_TOO_LARGE if size > HEADER_SIZE else ErrorCode.INVALID_FORMAT), 0, 0
        raw = self._raw
        raw[:] = record[:256]  # HEADER_SIZE: constants are quicker than names
        (
            batch_length, count, kind, flags, magic, length, producer_id, sequence, content_checksum, reserved, check,
        ) = _unpack_claims(raw)  # fmt: skip
        # The checks of formats.batch.shape_fault for a record of which nothing but `size` bytes exists.
        if (
            magic != BATCH_MAGIC
            or kind != KIND_BATCH
            or flags & ~FLAGS_KNOWN
            or not 0 < count <= BATCH_MESSAGE_COUNT_MAX
            or not batch_length + 4 * count + 7 & -8 == length == size
            or batch_length <= 256 + 48 * count  # HEADER_SIZE, FRAME_HEADER_SIZE
            or reserved != HEADER_RESERVED
        ):
            return ErrorCode.INVALID_FORMAT, 0, 0
        if crc32c(self._raw_body) != check:
            return ErrorCode.INVALID_BATCH_CHECKSUM, 0, 0
        if producer_id:
            known = self.windows.find(producer_id, sequence)
            if known is not None and self.state is State.OPEN:
                return self._answer_again(known)
        if (
            self._end + size > self._room_end
            or size > self._record_max
            or self._end >= self._roll_at
            or self.committed_offset + count > self._reserve_at
        ):
            status = self._make_room(size, count, now_us) if self.state is State.OPEN else self._refusal()
            if status:
                return status, 0, 0
        fault = self._put(record, batch_length, count, flags, content_checksum, now_us)
        if fault is not None:
            return fault, 0, 0
        offset = self.committed_offset
        self.committed_offset = offset + count
        self._message_count += count
        self._batch_count += 1
        self._byte_count += size
        if producer_id:
            self.windows.record(producer_id, sequence, offset, count)
        return 0, offset, count

    def _put(
        self, record: memoryview, batch_length: int, count: int, flags: int, content_checksum: int, now_us: int
    ) -> ErrorCode | None:
        """Copies the record to the end of the ring, checks the copy's content, and last of all puts the stamped header
        before it. There is room. What is wrong with the content, or None."""
        ring, position, offset, size = self._ring, self._end, self.committed_offset, len(record)
        assert ring is not None
        end = position + size
        # The page of zeros behind the record is counted in: a flush fills the last page up.
        # It never goes back, not even after a record that was refused once it stood in the ring (rule 6).
        overwrite_end = end + 4095 & -4096  # PAGE_SIZE
        if overwrite_end > self._overwrite_end:
            self._overwrite_end = self.control[WORD_OVERWRITE_END] = overwrite_end
        index = position & ring.mask
        content_length = batch_length - 256 + FRAME_INDEX_ENTRY_SIZE * count  # HEADER_SIZE
        wraps = index + size > ring.size
        if wraps:
            body = memoryview(bytearray(record[256:]))
        else:
            body = ring.data[index + 256 : index + size]
            body[:] = record[256:]
        padding = size - 256 - content_length
        content = body[:content_length] if padding else body
        raw = self._raw
        if count == 1 and not flags:
            fault = one_message_fault(content, content_checksum)
        else:
            fault = content_fault(tuple.__new__(BatchHeader, HEADER.unpack_from(raw)), content)
        if fault is not None:
            return fault
        if padding:
            body[content_length:] = ZEROS[:padding]
        timestamp = self._last_timestamp
        if now_us > timestamp:
            timestamp = self._last_timestamp = now_us
        # ``raw`` is our own memory: it is published by the copy below.
        _stamp_first(raw, 0, self.partition_id, offset, timestamp)
        _stamp_second(raw, STAMP_SECOND_POSITION, position, self._durable_position, self.incarnation)
        _stamp_checksum(raw, CHECKSUM_POSITION, crc32c(self._raw_body))
        if wraps:
            ring.put(position + HEADER_SIZE, body)
            ring.put(position, raw)
        else:
            ring.data[index : index + 256] = raw
        self._end = end
        if position >= self._next_entry_position:
            self._add_entry(offset, timestamp, position)
        return None

    def _answer_again(self, known: tuple[int, int] | Verdict) -> tuple[int, int, int]:
        """The answer to a batch that this producer sent before (rule 7)."""
        if isinstance(known, tuple):
            self._counters["duplicates"] += 1
            self.control[COUNTER["duplicates"]] = self._counters["duplicates"]
            return 0, known[0], known[1] | FLAG_DUPLICATE
        return ErrorCode.REQUEST_ALREADY_APPLIED, 0, 0

    # --- flushing -------------------------------------------------------------------------------------------------

    def flush_due(self) -> str | None:
        """ "count" or "size" where a trigger has fired and nothing is being written, else None."""
        pending = self._end - self._file_position
        if pending == 0 or self._behind is not None or self.state is not State.OPEN:
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

    def write_behind(self, reason: str, tell: Callable[[], None]) -> None:
        """Has a helper write what is committed, not synchronised, while appends go on.

        ``tell`` is called at its end, on the helper: then :meth:`settle_written` is due. Whatever else wants to write,
        close or purge waits for it. Until it is settled the ring keeps what is being written.
        """
        assert not self.options.persisted
        calls = self.prepare_flush(sync=False, reason=reason, apart=True)
        if calls:
            self._behind = self.executor.submit(_run_all, calls)
            self._behind.add_done_callback(lambda _: tell())

    def settle_written(self) -> bool:
        """Finishes what :meth:`write_behind` started if it has ended. False where it has not."""
        if self._behind is not None and not self._behind.done():
            return False
        self.settle()
        return True

    # --- upkeep ---------------------------------------------------------------------------------------------------

    def maintain(self, now_us: int) -> None:
        """To be called every second or so, between passes: gives the ring back when it was quiet since the last call
        and all is written, which also makes the mark durable; deletes what retention says."""
        if not self.settle_written() or self.state is not State.OPEN or self._flushing is not None:
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
            self._delete_in_steps(count)
        self._count_retained()

    def _delete_in_steps(self, count: int) -> None:
        """As many of them as RETENTION_PASS_S lets; at least one step, however slow the disk. The rest is for the next
        pass."""
        end_s = time.monotonic() + RETENTION_PASS_S
        while count > 0 and (gone := self.delete_segments(min(count, RETENTION_SEGMENTS_PER_STEP))):
            count -= gone
            if time.monotonic() >= end_s:
                return

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
            self.poison(error)
            return 0
        self._counters["segments_deleted"] += count
        self.control[COUNTER["segments_deleted"]] = self._counters["segments_deleted"]
        self._count_retained()
        return count

    def update_options(self, options: LogOptions) -> None:
        """Takes other limits of age and size; what is create-only may not differ."""
        assert options.persisted == self.options.persisted
        assert options.segment_size == self.options.segment_size
        self.options = options

    def describe(self) -> dict[str, object]:
        """What stats show of this partition. Offsets are the next ones; sizes and positions in bytes."""
        self._note_newest()
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
