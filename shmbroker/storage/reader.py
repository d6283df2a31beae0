"""Reading a partition's log from its mapped files, without asking its worker. Writes nothing.

A reader stands at a log position and follows ``visible_position`` of the control block. It never waits: read() gives
what is there, and whoever wants to sleep takes a doorbell. Three sources, in this order:

1. **The ring**, copied, while it still holds the position with an eighth of the ring to spare: what was just appended
   is there and, after a direct write, not in the page cache. The copy counts only if ``overwrite_end``, loaded after
   it, says that the worker had not begun to overwrite its first byte (rule 6).
2. **A segment file**, mapped, for whole records below ``stable_position``: no copy.
3. **Both**, for a record across ``stable_position``: its pages below from the file, the rest from the ring.

Every record is checked before it is handed out: header checksum, identity, position, offset, content checksum. A fault
is met once with a new start by offset, since a worker that lost its ring may have used the position again; the second
time it is Corrupt.

After a seek the position is a lower bound, and records are skipped until ``next_offset`` or the time sought. Loads are
in program order on x86-64: ``visible_position`` first, then ring words, then ``stable_position``, then the active
segment; the worker stores them the other way round, and ``visible_offset`` before ``visible_position``.

Retention may unlink a segment under a reader: it finishes what it has mapped and goes on at the earliest that is kept.
After a purge the control block says REPLACED: the rest of a batch that was handed out in part still comes, then
PartitionReplaced.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from crc32c import crc32c
from xxhash import xxh3_64_intdigest

from shmbroker.errors import Corrupt, NotFound, PartitionRefused, PartitionReplaced, Unavailable, text_of
from shmbroker.errors import ErrorCode as Code
from shmbroker.formats.batch import (
    CHECKSUM,
    CHECKSUM_POSITION,
    HEADER,
    HEADER_SIZE,
    KIND_FILLER,
    BatchHeader,
    content_length_of,
    shape_fault,
)
from shmbroker.formats.control import (
    CONTROL_MAGIC,
    CONTROL_SIZE,
    WORD_ACTIVE_BASE_OFFSET,
    WORD_ERROR,
    WORD_FIRST_OFFSET,
    WORD_INCARNATION_HIGH,
    WORD_INCARNATION_LOW,
    WORD_LOG_ID,
    WORD_MAGIC,
    WORD_OVERWRITE_END,
    WORD_RING_GENERATION,
    WORD_SEGMENTS_GENERATION,
    WORD_STABLE_POSITION,
    WORD_STATE,
    WORD_VISIBLE_OFFSET,
    WORD_VISIBLE_POSITION,
    State,
)  # fmt: skip
from shmbroker.limits import MIB, PAGE_SIZE
from shmbroker.storage.ring_view import RingView
from shmbroker.storage.runtime import CONTROL_SUFFIX, RING_SUFFIX
from shmbroker.storage.segment_view import REMEDY, SegmentList, SegmentView, map_file

Found = TypeVar("Found")

ATTEMPTS_MAX: Final = 16
"""Times that one read starts again since the worker was faster; then it gives what it has, and the next goes on."""
RING_SLACK_DIVISOR: Final = 8
WORKING_STATES: Final = frozenset((State.OPEN, State.POISONED, State.CLOSED))


class RecordSlice(NamedTuple):
    """Messages ``first`` to ``first + count - 1`` of one batch."""

    header: BatchHeader
    record: memoryview
    """The whole record, read-only: a mapped segment file, or a private copy of what was in the ring."""
    first: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody misses here


class Window(NamedTuple):
    """Bytes of the log from ``position`` on, good to keep; ``path`` is where they were found."""

    position: int
    view: memoryview
    path: str
    shift: int
    """What is added to a log position to get the byte of ``path``."""


class LogReader:
    """Follows one partition; for one thread. ``next_offset`` is what read() hands out next, or a lower bound of it."""

    def __init__(self, control_path: str, directory: str) -> None:
        """Maps the control block; stands at the earliest kept offset. ``directory`` is the partition's own.

        Raises PartitionReplaced where the control block is gone, Unavailable where its worker is still making it.
        """
        self._control_path = control_path
        try:
            view = map_file(control_path)
        except FileNotFoundError as error:
            raise PartitionReplaced(f"{control_path} is gone: open the partition again") from error
        if len(view) < CONTROL_SIZE or view.cast("Q")[WORD_MAGIC] != CONTROL_MAGIC:
            raise Unavailable(f"{control_path} is not ready: its worker has not opened the partition")
        self._words = view.cast("Q")
        words = self._words
        self.log_id = words[WORD_LOG_ID]
        self.incarnation = b"".join(
            words[n].to_bytes(8, "little") for n in (WORD_INCARNATION_LOW, WORD_INCARNATION_HIGH)
        )
        self._segments = SegmentList(os.path.join(directory, self.incarnation.hex()), self.log_id, self.incarnation)
        self._segment: SegmentView | None = None
        self._ring: RingView | None = None
        self._held: tuple[BatchHeader, memoryview] | None = None
        self._timestamp_floor = 0
        self._position = 0
        self._expected: int | None = None
        self._reseated = False
        self.next_offset = 0
        self.seek_first()

    def close(self) -> None:
        """Drops the mappings; what was handed out stays readable."""
        self._segment = self._ring = self._held = None

    @property
    def state(self) -> State:
        return State(self._words[WORD_STATE])

    @property
    def reason(self) -> str:
        """Why the partition is refused, poisoned or gone, else an empty text."""
        state, error = self.state, self._words[WORD_ERROR]
        return "" if state in (State.OPEN, State.OPENING) else f"{state.name.lower()}: {text_of(error)}"

    @property
    def visible_offset(self) -> int:
        """The offset after the last message that may be read."""
        offset: int = self._words[WORD_VISIBLE_OFFSET]
        return offset

    @property
    def first_offset(self) -> int:
        """The earliest offset that is kept."""
        offset: int = self._words[WORD_FIRST_OFFSET]
        return offset

    # --- seeking ----------------------------------------------------------------------------------------------------

    def seek_first(self) -> None:
        """To the earliest message that is kept."""
        self.seek_offset(self.first_offset)

    def seek_offset(self, offset: int) -> None:
        """To this offset: to the earliest kept where it is below, waiting for it where it is beyond the end."""
        words = self._words
        # The position first: every record before it ends at or below the visible offset that is loaded after it.
        position = words[WORD_VISIBLE_POSITION]
        self._start_over(max(offset, self.first_offset), position)
        if self.next_offset >= words[WORD_VISIBLE_OFFSET]:
            return
        segment = self._segment_for(self.next_offset)
        if segment is None:
            # Nothing is in files yet: the log begins in the ring.
            self._position = 0
            return
        self._segment = segment
        self.next_offset = max(self.next_offset, segment.base_offset)
        self._position = segment.start_for_offset(self.next_offset, words[WORD_STABLE_POSITION])

    def seek_timestamp(self, timestamp_us: int) -> None:
        """To the first message that the broker took at or after this time; to the end where there is none yet."""
        self.seek_first()
        self._timestamp_floor = timestamp_us
        self._refresh_segments()
        segment = self._guarded(lambda: self._segments.first_reaching(timestamp_us))
        if segment is None:
            return
        self._segment = segment
        self.next_offset = max(self.next_offset, segment.base_offset)
        self._position = segment.start_for_timestamp(timestamp_us, self._words[WORD_STABLE_POSITION])

    def seek_last(self, count: int) -> None:
        """To the last ``count`` visible messages, or to as many as there are; gaps in the numbers do not count."""
        end = self.visible_offset
        target = self._guarded(lambda: self._offset_before_end(end, count))
        self.seek_offset(end if target is None else target)

    def _start_over(self, offset: int, position: int) -> None:
        self._segment = None
        self._held = None
        self._expected = None
        self._timestamp_floor = 0
        self._reseated = False
        self.next_offset = offset
        self._position = position

    def _offset_before_end(self, end: int, count: int) -> int:
        self._refresh_segments()
        first = self.first_offset
        for base_offset in reversed(self._segments.base_offsets):
            held = max(0, end - base_offset)
            if held >= count or base_offset <= first:
                return max(first, end - min(count, held))
            count -= held
            end = min(end, self._segments.open(base_offset).header.previous_end_offset)
        return max(first, end - count)

    # --- reading ----------------------------------------------------------------------------------------------------

    def read(self, max_messages: int, max_bytes: int = MIB) -> list[RecordSlice]:
        """What is visible from here, in order, [] where nothing is; never waits.

        At most ``max_messages``: the last batch is cut, and the next read goes on in it. At most ``max_bytes`` of whole
        records, but at least one message. Raises Corrupt, PartitionReplaced (purged), NotFound (deleted) or
        PartitionRefused.
        """
        slices: list[RecordSlice] = []
        if max_messages <= 0:
            return slices
        if self._held is not None:
            header, record = self._held
            max_messages -= self._take(slices, header, record, max_messages)
            max_bytes -= header.record_length
        attempts = 0
        while max_messages > 0 and max_bytes > 0 and attempts < ATTEMPTS_MAX:
            state = self._words[WORD_STATE]
            if state not in WORKING_STATES:
                return slices if slices else self._not_working(state)
            visible = self._words[WORD_VISIBLE_POSITION]  # SYNC visible: pairs with PartitionLog.publish.
            if visible <= self._position:
                if visible < self._position:
                    self.seek_offset(self.next_offset)
                return slices
            window = self._window(visible, max_bytes)
            if window is None:
                attempts += 1
                continue
            count, size = self._take_all(slices, window, visible, max_messages, max_bytes)
            max_messages -= count
            max_bytes -= size
        return slices

    def _not_working(self, state: int) -> list[RecordSlice]:
        if state == State.REPLACED:
            raise PartitionReplaced("the topic was purged: open the partition again")
        if state == State.DELETED:
            raise NotFound("the partition was deleted", number=Code.PARTITION_NOT_FOUND)
        if state == State.REFUSED:
            raise PartitionRefused(f"the partition is {self.reason}", number=self._words[WORD_ERROR] or None)
        return []

    def _take_all(
        self, slices: list[RecordSlice], window: Window, visible: int, max_messages: int, max_bytes: int
    ) -> tuple[int, int]:
        """Goes through the records of a window: (messages, bytes) that went into ``slices``. Moves the position."""
        messages = size = at = 0
        view, length = window.view, len(window.view)
        while at < length and messages < max_messages:
            available = visible - self._position
            if length - at < HEADER_SIZE <= available:
                break
            header, fault = self._header_at(view, at, available)
            if header is None or fault is not None:
                self._meet_fault(window, fault or "header checksum")
                break
            end = at + header.record_length
            if slices and size + header.record_length > max_bytes:
                return messages, max_bytes
            if end > length:
                break
            if header.kind == KIND_FILLER or self._is_before_target(header):
                at = self._step(header, at)
                continue
            content = view[at + HEADER_SIZE : at + HEADER_SIZE + content_length_of(header)]
            if xxh3_64_intdigest(content) != header.content_checksum:
                self._meet_fault(window, "content checksum")
                break
            record = view[at:end]
            self.next_offset = max(self.next_offset, header.base_offset)
            self._timestamp_floor = 0
            self._reseated = False
            at = self._step(header, at)
            messages += self._take(slices, header, record, max_messages - messages)
            size += header.record_length
        return messages, size

    def _is_before_target(self, header: BatchHeader) -> bool:
        return header.next_offset <= self.next_offset or header.base_timestamp < self._timestamp_floor

    def _step(self, header: BatchHeader, at: int) -> int:
        self._position += header.record_length
        self._expected = header.next_offset
        return at + header.record_length

    def _take(self, slices: list[RecordSlice], header: BatchHeader, record: memoryview, max_messages: int) -> int:
        """Hands out the messages of one record from ``next_offset`` on; keeps the record where some are left."""
        first = self.next_offset - header.base_offset
        count = min(header.message_count - first, max_messages)
        slices.append(RecordSlice(header, record, first, count))
        self.next_offset += count
        self._held = (header, record) if first + count < header.message_count else None
        return count

    def _header_at(self, view: memoryview, at: int, available: int) -> tuple[BatchHeader | None, str | None]:
        """The header at ``at``, which is the position where the reader stands, and what is wrong with it."""
        end = at + CHECKSUM_POSITION
        if end + CHECKSUM.size > len(view):
            return None, "a record ends within its header"
        if crc32c(view[at:end]) != CHECKSUM.unpack_from(view, end)[0]:
            return None, "header checksum"
        header = BatchHeader._make(HEADER.unpack_from(view, at))
        if header.incarnation != self.incarnation:
            return header, "record of another log"
        if header.log_position != self._position:
            return header, f"record of position {header.log_position}"
        expected = self._expected
        if expected is not None and header.base_offset != expected and not self._starts_segment(header):
            return header, f"offset {header.base_offset} where {expected} follows"
        return header, shape_fault(header, available)

    def _starts_segment(self, header: BatchHeader) -> bool:
        """Whether this record opens a segment after a gap in the numbers: then any higher offset is right."""
        assert self._expected is not None
        if header.log_position % PAGE_SIZE or header.base_offset < self._expected:
            return False
        self._refresh_segments(force=True)
        if header.base_offset not in self._segments.base_offsets:
            return False
        segment = self._guarded(lambda: self._segments.open(header.base_offset))
        return segment is not None and segment.base_position == header.log_position

    def _meet_fault(self, window: Window, fault: str) -> None:
        """Starts again by offset, once; the second time it is damage."""
        if self._reseated:
            raise Corrupt(window.path, self._position + window.shift, fault, REMEDY)
        floor = self._timestamp_floor
        self.seek_offset(self.next_offset)
        self._timestamp_floor = floor
        self._reseated = True

    # --- windows ----------------------------------------------------------------------------------------------------

    def _window(self, visible: int, max_bytes: int) -> Window | None:
        """Bytes from the position on that begin with a whole record; None where the worker moved on meanwhile."""
        length = min(max(max_bytes, HEADER_SIZE), visible - self._position)
        try:
            window = self._ring_window(length)
            if window is None:
                return self._file_window(visible, length)
            return self._whole(window, visible)
        except FileNotFoundError:
            # The ring was given back, or retention unlinked a segment that has grown since it was mapped: the words say
            # so by now, and the next attempt goes on at the earliest segment that is kept.
            self._segment = None
            self._refresh_segments(force=True)
            return None

    def _whole(self, window: Window, visible: int) -> Window | None:
        """The window, made longer where its first record does not end in it."""
        record_length = BatchHeader._make(HEADER.unpack_from(window.view)).record_length
        if len(window.view) >= record_length or record_length > visible - window.position:
            return window
        return self._ring_window(record_length)

    def _ring_now(self) -> RingView | None:
        generation = self._words[WORD_RING_GENERATION]
        if generation == 0:
            self._ring = None
        elif self._ring is None or self._ring.generation != generation:
            stem = self._control_path.removesuffix(CONTROL_SUFFIX)
            self._ring = RingView(f"{stem}{RING_SUFFIX}{generation}", self.log_id, self.incarnation, generation)
        return self._ring

    def _ring_window(self, length: int) -> Window | None:
        ring = self._ring_now()
        position = self._position
        if ring is None or position < ring.base:
            return None
        if self._reseated and position < self._words[WORD_STABLE_POSITION]:
            # A copy of the ring was bad: what is in the files decides whether that is damage.
            return None
        spare = position + ring.size - self._words[WORD_OVERWRITE_END]
        if spare < ring.size // RING_SLACK_DIVISOR or length > ring.size:
            return None
        copy = self._copy(ring, position, length)
        if copy is None:
            return None
        return Window(position, memoryview(copy), ring.path, ring.file_shift(position))

    def _copy(self, ring: RingView, position: int, length: int) -> bytes | None:
        """Rule 6: copy first, then see whether the worker had begun to overwrite what was copied."""
        copy = ring.copy(position, length)
        if position + ring.size < self._words[WORD_OVERWRITE_END]:
            return None
        # Loaded after it: the word begins anew with a new ring, and by then the generation has changed.
        return copy if self._words[WORD_RING_GENERATION] == ring.generation else None

    def _file_window(self, visible: int, length: int) -> Window | None:
        stable = self._words[WORD_STABLE_POSITION]
        segment = self._segment_here()
        if segment is None:
            return None
        position = self._position
        if position >= visible:
            # Retention took what was here, and the segment that follows has nothing to show yet.
            return None
        sealed = segment.base_offset != self._words[WORD_ACTIVE_BASE_OFFSET]
        limit = segment.seal.end_position if sealed else stable
        end = min(limit, visible)
        if position + HEADER_SIZE <= end:
            header = BatchHeader._make(HEADER.unpack_from(segment.window(position, position + HEADER_SIZE)))
            if header.record_length <= end - position or header.record_length > visible - position:
                end = min(end, position + max(length, header.record_length))
                return Window(position, segment.window(position, end), segment.path, segment.shift)
        return self._straddling_window(segment, stable, visible)

    def _straddling_window(self, segment: SegmentView, stable: int, visible: int) -> Window | None:
        """One record across the stable position, put together."""
        head = self._put_together(segment, stable, min(HEADER_SIZE, visible - self._position))
        if head is None:
            return None
        record_length = BatchHeader._make(HEADER.unpack_from(head)).record_length
        if record_length > visible - self._position:
            return Window(self._position, memoryview(head), segment.path, segment.shift)
        record = self._put_together(segment, stable, record_length)
        return None if record is None else Window(self._position, memoryview(record), segment.path, segment.shift)

    def _put_together(self, segment: SegmentView, stable: int, length: int) -> bytes | None:
        position, end = self._position, self._position + length
        in_file = max(position, min(stable, end))
        ring = self._ring_now() if in_file < end else None
        if in_file < end and (ring is None or in_file < ring.base or end - in_file > ring.size):
            return None
        rest = b"" if ring is None else self._copy(ring, in_file, end - in_file)
        if rest is None:
            return None
        return b"".join((segment.window(position, in_file), rest)) if in_file > position else rest

    # --- segments ---------------------------------------------------------------------------------------------------

    def _refresh_segments(self, *, force: bool = False) -> None:
        words = self._words
        generation = words[WORD_SEGMENTS_GENERATION]
        self._segments.refresh(generation, words[WORD_ACTIVE_BASE_OFFSET], force=force)

    def _segment_for(self, offset: int) -> SegmentView | None:
        """The segment where ``offset`` is, or would be; the earliest where it is below all of them."""
        self._refresh_segments()

        def find() -> SegmentView | None:
            base_offset = self._segments.containing(offset)
            return None if base_offset is None else self._segments.open(base_offset)

        return self._guarded(find)

    def _segment_here(self) -> SegmentView | None:
        """The segment at the position, which moves to the start of the next one at the end of a sealed one."""
        segment = self._segment or self._segment_for(self.next_offset)
        while segment is not None:
            self._segment = segment
            if self._position < segment.base_position:
                self._enter(segment)
            active = self._words[WORD_ACTIVE_BASE_OFFSET]
            if segment.base_offset == active or self._position < segment.seal.end_position:
                return segment
            segment = self._segment_after(segment)
        return None

    def _segment_after(self, segment: SegmentView) -> SegmentView | None:
        self._refresh_segments()

        def find() -> SegmentView | None:
            base_offset = self._segments.following(segment.base_offset)
            return None if base_offset is None else self._segments.open(base_offset)

        return self._guarded(find)

    def _enter(self, segment: SegmentView) -> None:
        """Goes on at the start of a segment: retention took what was before it, or a lost ring left a hole."""
        self._position = segment.base_position
        self._expected = None
        self.next_offset = max(self.next_offset, segment.base_offset)

    def _guarded(self, find: Callable[[], Found]) -> Found | None:
        """``find()``, tried again with a new listing where a file was deleted meanwhile."""
        for _ in range(ATTEMPTS_MAX):
            try:
                return find()
            except FileNotFoundError:
                self._refresh_segments(force=True)
        return None
