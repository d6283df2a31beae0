"""What a consumer holds: a whole batch, or a slice of one, over the bytes that the producer laid out.

A :class:`Batch` owns nothing but a view of the record (a mapped segment file, or a private copy of the ring); it stays
readable for as long as it is kept, whatever becomes of the log. Nothing is done per message until somebody asks for
messages, and then by numpy over the frame index wherever that is possible. The reader has verified the checksums, and
the worker that the frames tile the batch, so lengths are believed here.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from shmbroker.errors import InvalidMessage
from shmbroker.formats.batch import FRAME_HEADER_SIZE, FRAME_INDEX_ENTRY_SIZE, HEADER_SIZE
from shmbroker.formats.headers import HeaderItem, decode_headers
from shmbroker.storage.reader import RecordSlice

POSITION_ID_LOW: Final = 8
POSITION_ID_HIGH: Final = 16
POSITION_DELTAS: Final = 24
POSITION_LENGTHS: Final = 32
HALF: Final = np.uint64(32)
LOW_HALF: Final = np.uint64(0xFFFF_FFFF)
ONLY_PAYLOAD_LENGTH_POSITION: Final = HEADER_SIZE + POSITION_LENGTHS + 4
ONLY_PAYLOAD_POSITION: Final = HEADER_SIZE + FRAME_HEADER_SIZE
"""Of a batch of one message: numpy takes 15 us for it, and a slice less than one."""
SIZE_TO_SLICE_IN_PLACE: Final = 4096
"""Mean payload size from which the batch is not copied whole before it is cut up."""

_unpack_payload_length = Struct("<I").unpack_from

Positions = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]


class Message(NamedTuple):
    """One message. Times are microseconds since 1970: the broker's, and the producer's."""

    offset: int
    id: int
    timestamp_us: int
    origin_timestamp_us: int
    payload: bytes
    headers: dict[HeaderItem, HeaderItem]


class Batch:
    """Messages ``base_offset`` to ``base_offset + count - 1`` of one partition, in order; ``len()`` is the count."""

    __slots__ = ("_ends", "_header_lengths", "_record", "_starts", "count", "first", "header")

    def __init__(self, piece: RecordSlice) -> None:
        self.header = piece.header
        self.first = piece.first
        self.count = piece.count
        self._record = piece.record
        self._starts: Positions | None = None
        self._ends: Positions | None = None
        self._header_lengths: Positions | None = None

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        return f"<Batch of {self.count} from offset {self.base_offset}>"

    @property
    def base_offset(self) -> int:
        """The offset of the first message of this slice."""
        return self.header.base_offset + self.first

    @property
    def next_offset(self) -> int:
        """The offset after the last message of this slice."""
        return self.base_offset + self.count

    @property
    def timestamp_us(self) -> int:
        """When the broker took the batch: the same for all of its messages."""
        return self.header.base_timestamp

    @property
    def record(self) -> memoryview:
        """The whole record, header first, read-only: of the whole batch, even where this is a slice of it."""
        return self._record

    @property
    def size(self) -> int:
        """Bytes of the frames of this slice."""
        starts, ends = self._bounds()
        return int(ends[-1] - starts[0])

    def payloads(self) -> list[bytes]:
        """Every payload, copied."""
        if self.header.message_count == 1:
            (length,) = _unpack_payload_length(self._record, ONLY_PAYLOAD_LENGTH_POSITION)
            return [bytes(self._record[ONLY_PAYLOAD_POSITION : ONLY_PAYLOAD_POSITION + length])]
        starts, ends, header_lengths = self._payload_bounds()
        frame_size = _equal_size(starts, ends)
        if frame_size and not header_lengths.any():
            item = f"V{frame_size - FRAME_HEADER_SIZE}"
            position = int(starts[0]) + FRAME_HEADER_SIZE
            copies: list[bytes] = np.ndarray((self.count,), item, self._record, position, (frame_size,)).tolist()
            return copies
        first, last = int(starts[0]), int(ends[-1])
        record = self._record
        payload_starts = starts + FRAME_HEADER_SIZE
        payload_ends = ends - header_lengths
        if last - first > SIZE_TO_SLICE_IN_PLACE * self.count:
            pairs = zip(payload_starts.tolist(), payload_ends.tolist(), strict=True)
            return [bytes(record[start:end]) for start, end in pairs]
        # One copy, then slices of bytes: twice as fast as a bytes() of each slice of a view.
        frames_copy = bytes(record[first:last])
        pairs = zip((payload_starts - first).tolist(), (payload_ends - first).tolist(), strict=True)
        return [frames_copy[start:end] for start, end in pairs]

    def views(self) -> list[memoryview]:
        """Every payload as a read-only view of the record; keeps the record's memory for as long as one is kept."""
        starts, ends, header_lengths = self._payload_bounds()
        record = self._record
        pairs = zip((starts + FRAME_HEADER_SIZE).tolist(), (ends - header_lengths).tolist(), strict=True)
        return [record[start:end] for start, end in pairs]

    def array(self, dtype: npt.DTypeLike = np.uint8) -> npt.NDArray[Any]:
        """The payloads as one read-only array: an item each where they have the size of ``dtype``, else rows.

        Shape (count,) where each payload has ``dtype.itemsize`` bytes, (count, n) where each has n times as many.
        Nothing is copied where all frames have the same length. Raises InvalidMessage where the payloads differ in
        length or do not fit.
        """
        item = np.dtype(dtype)
        starts, ends, header_lengths = self._payload_bounds()
        sizes = ends - header_lengths - starts - FRAME_HEADER_SIZE
        size = int(sizes[0])
        if (sizes != size).any():
            raise InvalidMessage(
                f"the payloads have {int(sizes.min())} to {int(sizes.max())} bytes: no array holds them"
            )
        if item.hasobject or item.itemsize == 0 or size % item.itemsize:
            raise InvalidMessage(f"payloads of {size} bytes are not items of {item} ({item.itemsize} bytes)")
        frame_size = _equal_size(starts, ends)
        if frame_size:
            memory, position, stride = self._record, int(starts[0]) + FRAME_HEADER_SIZE, frame_size
        else:
            memory, position, stride = memoryview(b"".join(self.views())), 0, size
        if size == item.itemsize:
            return np.ndarray((self.count,), item, memory, position, (stride,))
        return np.ndarray((self.count, size // item.itemsize), item, memory, position, (stride, item.itemsize))

    def messages(self) -> list[Message]:
        """Every message with its offset, id, times, payload and headers."""
        header = self.header
        origins = ((self._words(POSITION_DELTAS) >> HALF) + np.uint64(header.origin_timestamp)).tolist()
        return [
            Message(offset, message_id, header.base_timestamp, origin, payload, headers)
            for offset, message_id, origin, payload, headers in zip(
                range(self.base_offset, self.next_offset), self.ids(), origins, self.payloads(), self.headers(),
                strict=True,
            )
        ]  # fmt: skip

    def ids(self) -> list[int]:
        """The 128-bit id of every message."""
        lows, highs = self._words(POSITION_ID_LOW).tolist(), self._words(POSITION_ID_HIGH).tolist()
        return [high << 64 | low for low, high in zip(lows, highs, strict=True)]

    def headers(self) -> list[dict[HeaderItem, HeaderItem]]:
        """The user headers of every message, as Python scalars; an empty dictionary where it has none."""
        _, ends, header_lengths = self._payload_bounds()
        if not header_lengths.any():
            return [{} for _ in range(self.count)]
        record = self._record
        pairs = zip(ends.tolist(), header_lengths.tolist(), strict=True)
        return [decode_headers(record[end - length : end]) if length else {} for end, length in pairs]

    def _bounds(self) -> tuple[Positions, Positions]:
        """Where in the record each frame of the slice starts and ends, from the frame index."""
        if self._starts is None or self._ends is None:
            index_position = HEADER_SIZE + self.header.frames_length
            lengths = np.frombuffer(self._record, "<u4", self.first + self.count, index_position)
            ends = np.cumsum(lengths, dtype=np.int64)
            ends += HEADER_SIZE
            self._starts = (ends - lengths)[self.first :]
            self._ends = ends[self.first :]
        return self._starts, self._ends

    def _payload_bounds(self) -> tuple[Positions, Positions, Positions]:
        """Starts and ends of the frames, and the length of the headers at the end of each."""
        starts, ends = self._bounds()
        if self._header_lengths is None:
            self._header_lengths = (self._words(POSITION_LENGTHS) & LOW_HALF).astype(np.int64)
        return starts, ends, self._header_lengths

    def _words(self, position: int) -> Words:
        """The 8-byte word at ``position`` of each frame. Frames start anywhere: one view with a stride of one byte."""
        starts, _ = self._bounds()
        every: Words = np.ndarray((len(self._record) - 7,), "<u8", self._record, 0, (1,))
        return every[starts + position]


def _equal_size(starts: Positions, ends: Positions) -> int:
    """The length of the frames where all have the same, else 0."""
    sizes = ends - starts
    size = int(sizes[0])
    return size if (sizes == size).all() else 0


assert POSITION_LENGTHS + 8 <= FRAME_HEADER_SIZE
assert np.dtype("<u4").itemsize == FRAME_INDEX_ENTRY_SIZE
