"""Polls of clients on a socket, answered by the front from the mapped files: no request to the worker (rule 16).

A reader that has answered a poll is kept, under the offset where it stands: the next poll of a consumer that goes
forward finds it there and seeks nothing. Readers are few (an LRU): each maps a control block, a segment and a ring.

Frames go out as they lie in the mapping, behind a header made anew (front.records). Of batches that local producers
left without the wire's checksums, a copy with checksums is made at the first service and kept, bounded in bytes.
A poll answers at least one message where there is one, and no more than REPLY_SIZE_MAX bytes, or one batch.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from shmbroker.errors import Corrupt, ErrorCode, PartitionReplaced, error_from
from shmbroker.formats.batch import FLAG_WIRE_CHECKSUMS, FRAME_INDEX_ENTRY_SIZE, HEADER_SIZE
from shmbroker.front.logs import Log, Logs, not_open
from shmbroker.front.records import slice_of, wire_header_of, with_checksums
from shmbroker.front.reply import Buffer
from shmbroker.limits import KIB, MIB
from shmbroker.storage.reader import LogReader, RecordSlice
from shmbroker.wire import messages

READERS_MAX: Final = 128
REPLY_SIZE_MAX: Final = 16 * MIB
READ_SIZE_MIN: Final = 16 * KIB
AT_FIRST: Final = -1
"""In place of an offset: of a reader that waits for the first message of all."""
SPARE: Final = 4096
"""Bytes beyond the estimate, for headers and padding."""
FILLED_SIZE_MAX: Final = 64 * MIB
"""Bytes of local batches kept with their checksums."""
SMALL_PIECE: Final = 4096
"""Pieces below this on average are copied together: a gathered write of many small ones is slower."""
PIECES_MAX: Final = 512
"""Of one gathered write."""


class Polled(NamedTuple):
    """What a poll found. ``pieces`` are the batches, ``size`` bytes; ``last_offset`` -1 where there are none."""

    current_offset: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody misses here
    pieces: list[Buffer]
    size: int
    last_offset: int


class Readers:
    """All readers of the front, and its checksums. Owned by the front's loop."""

    def __init__(self, data: str, logs: Logs) -> None:
        self._partitions = f"{data}/partitions"
        self._logs = logs
        self._readers: OrderedDict[tuple[int, int], LogReader] = OrderedDict()
        """By log and the offset where each stands, or AT_FIRST; the least recently used first."""
        self.reply_size_max = REPLY_SIZE_MAX
        """Smaller while slow readers hold much."""
        self._message_size: dict[int, int] = {}
        """Of each log: bytes of a message and its share of the rest, as the last poll had them. What is in the ring is
        copied before it is looked at, so a read takes no more than it needs, and no less."""
        self._filled: OrderedDict[tuple[bytes, int], bytes] = OrderedDict()
        """By incarnation and position: frames with their checksums."""
        self._filled_size = 0

    def poll(self, log: Log, strategy: int, value: int, count: int) -> Polled:
        """``strategy`` and ``value`` as on the wire, but for POLL_NEXT, which is POLL_OFFSET by now.

        Raises NotFound, PartitionRefused, Corrupt.
        """
        try:
            return self._poll(log, strategy, value, count)
        except PartitionReplaced:
            self.forget(log.log_id)
            return self._poll(log, strategy, value, count)

    def _poll(self, log: Log, strategy: int, value: int, count: int) -> Polled:
        reader = self._reader_at(log, strategy, value, count)
        current = max(0, reader.visible_offset - 1)
        slices: list[RecordSlice] = []
        size = taken = 0
        message_size = self._message_size.get(log.log_id, 0)
        try:
            while taken < count and size < self.reply_size_max:
                wanted = max(READ_SIZE_MIN, (count - taken) * message_size + SPARE)
                found = reader.read(count - taken, min(wanted, self.reply_size_max - size))
                if not found:
                    break
                slices += found
                taken += sum(each.count for each in found)
                size += sum(each.header.record_length for each in found)
                header = found[-1].header
                message_size = -(-header.record_length // header.message_count)
        except Corrupt:
            reader.close()
            raise
        if not slices:
            self._keep_waiting(log.log_id, reader, strategy, value)
            return Polled(current, 0, [], 0, -1)
        self._message_size[log.log_id] = message_size
        self._keep(log.log_id, reader.next_offset, reader)
        last = slices[-1]
        last_offset = last.header.base_offset + last.first + last.count - 1
        pieces, size = self._pieces_of(slices)
        return Polled(max(current, last_offset), taken, pieces, size, last_offset)

    # --- readers ------------------------------------------------------------------------------------------------------
    def _reader_at(self, log: Log, strategy: int, value: int, count: int) -> LogReader:
        """A reader that stands where the poll begins; it is taken out of what is kept."""
        if strategy in (messages.POLL_OFFSET, messages.POLL_FIRST):
            place = value if strategy == messages.POLL_OFFSET else AT_FIRST
            kept = self._readers.pop((log.log_id, place), None)
            if kept is not None:
                return kept
        path = self._logs.control_path(log)
        if not path:
            raise not_open(log)
        reader = LogReader(path, f"{self._partitions}/{log.log_id:020}")
        try:
            if strategy == messages.POLL_OFFSET:
                reader.seek_offset(value)
            elif strategy == messages.POLL_TIMESTAMP:
                reader.seek_timestamp(value)
            elif strategy == messages.POLL_LAST:
                reader.seek_last(count)
            else:
                assert strategy == messages.POLL_FIRST
        except BaseException:
            reader.close()
            raise
        return reader

    def _keep_waiting(self, log_id: int, reader: LogReader, strategy: int, value: int) -> None:
        """A consumer at the end asks again and again: nothing is opened anew for it."""
        if strategy == messages.POLL_FIRST:
            self._keep(log_id, AT_FIRST, reader)
        elif strategy == messages.POLL_OFFSET and reader.next_offset == value:
            self._keep(log_id, value, reader)
        else:
            reader.close()

    def _keep(self, log_id: int, place: int, reader: LogReader) -> None:
        readers = self._readers
        other = readers.pop((log_id, place), None)
        if other is not None:
            other.close()
        readers[log_id, place] = reader
        if len(readers) > READERS_MAX:
            _, oldest = readers.popitem(last=False)
            oldest.close()

    def forget(self, log_id: int) -> None:
        """The log is gone, or has another incarnation."""
        self._message_size.pop(log_id, None)
        for key in [key for key in self._readers if key[0] == log_id]:
            self._readers.pop(key).close()

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()
        self._filled.clear()

    # --- pieces -------------------------------------------------------------------------------------------------------
    def _pieces_of(self, slices: list[RecordSlice]) -> tuple[list[Buffer], int]:
        pieces: list[Buffer] = []
        size = 0
        for each in slices:
            head, frames = self._batch_of(each)
            pieces.append(head)
            pieces.append(frames)
            size += len(head) + len(frames)
        if len(pieces) > PIECES_MAX or (len(pieces) > 2 and size < SMALL_PIECE * len(pieces)):
            pieces = [b"".join(pieces)]
        return pieces, size

    def _batch_of(self, piece: RecordSlice) -> tuple[bytes, Buffer]:
        """Header and frames of a batch, or of the slice of it that was asked for."""
        header, record, first, count = piece
        end = header.batch_length
        frames = record[HEADER_SIZE:end]
        index = record[end : end + FRAME_INDEX_ENTRY_SIZE * header.message_count]
        if not header.flags & FLAG_WIRE_CHECKSUMS:
            frames = memoryview(self._filled_frames(piece, frames, index))
        if count != header.message_count:
            frames, index = slice_of(frames, index, first, count)
        return wire_header_of(header, frames, index), frames

    def _filled_frames(self, piece: RecordSlice, frames: memoryview, index: memoryview) -> bytes:
        key = piece.header.incarnation, piece.header.log_position
        filled = self._filled.get(key)
        if filled is None:
            filled = self._filled[key] = with_checksums(frames, index)
            self._filled_size += len(filled)
            while self._filled_size > FILLED_SIZE_MAX:
                self._filled_size -= len(self._filled.popitem(last=False)[1])
        else:
            self._filled.move_to_end(key)
        return filled


def check_count(count: int) -> None:
    """Raises where a poll asks for no messages."""
    if count == 0:
        raise error_from(ErrorCode.INVALID_MESSAGES_COUNT, "a poll asks for at least one message")
