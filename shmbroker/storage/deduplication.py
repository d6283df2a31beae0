"""The window of producer sequences: what lets a retry get its first confirmation instead of a duplicate (rule 7).

Owns, for one partition, the last DEDUPLICATION_WINDOW sequences of each of the last DEDUPLICATION_PRODUCERS_MAX
producers, with the base offset and message count that each was confirmed with. Written by the worker that owns the
partition; rebuilt by recovery, which records every batch of log and ring in order.

A producer numbers its batches 1, 2, 3, ... in each partition and keeps fewer than DEDUPLICATION_WINDOW in flight, so a
sequence that fell out of the window can only be a retry whose answer was already given up: it is TOO_OLD and must not
be appended. Sequences may skip (a batch that was refused) and arrive in any order within the window. A producer that
was forgotten (the least recently recorded one goes) starts anew.

A window is an array indexed by sequence modulo its size: 24 bytes for each sequence. It begins with a few and grows
with the span of what it was given up to the bound, so producers of few batches cost little.
"""

from __future__ import annotations

from array import array
from enum import Enum
from typing import Final

from shmbroker.limits import DEDUPLICATION_PRODUCERS_MAX, DEDUPLICATION_WINDOW

SLOT_COUNT_MIN: Final = 8
WORDS_PER_SLOT: Final = 3
"""sequence (0: empty), base offset, message count"""

FULL_LENGTH: Final = DEDUPLICATION_WINDOW * WORDS_PER_SLOT

assert DEDUPLICATION_WINDOW & (DEDUPLICATION_WINDOW - 1) == 0
assert SLOT_COUNT_MIN <= DEDUPLICATION_WINDOW


class Verdict(Enum):
    TOO_OLD = "too old"


TOO_OLD: Final = Verdict.TOO_OLD
"""The sequence is below the producer's window: whether it was appended is not known any more."""


class _Window:
    __slots__ = ("highest", "lowest", "slots")

    def __init__(self, sequence: int) -> None:
        self.lowest = self.highest = sequence
        self.slots = array("Q", bytes(8 * WORDS_PER_SLOT * SLOT_COUNT_MIN))

    def put(self, sequence: int, base_offset: int, count: int) -> None:
        if sequence > self.highest:
            self.highest = sequence
        elif sequence < self.lowest:
            self.lowest = sequence
        size = len(self.slots) // WORDS_PER_SLOT
        if size < DEDUPLICATION_WINDOW and self.highest - self.lowest >= size:
            size = self._grow()
        slots = self.slots
        index = sequence % size * WORDS_PER_SLOT
        slots[index] = sequence
        slots[index + 1] = base_offset
        slots[index + 2] = count

    def _grow(self) -> int:
        """Room for all sequences from the lowest to the highest, within the bound: none displaces another in the
        window. Returns the new size."""
        old, size = self.slots, len(self.slots) // WORDS_PER_SLOT
        while size < DEDUPLICATION_WINDOW and self.highest - self.lowest >= size:
            size *= 2
        self.slots = array("Q", bytes(8 * WORDS_PER_SLOT * size))
        for index in range(0, len(old), WORDS_PER_SLOT):
            sequence = old[index]
            if sequence and sequence > self.highest - DEDUPLICATION_WINDOW:
                target = sequence % size * WORDS_PER_SLOT
                self.slots[target : target + WORDS_PER_SLOT] = old[index : index + WORDS_PER_SLOT]
        return size


class ProducerWindows:
    """The windows of one partition. One thread."""

    def __init__(self) -> None:
        self._windows: dict[int, _Window] = {}
        self._last_producer_id = 0
        self._last_window = _Window(0)

    def __len__(self) -> int:
        return len(self._windows)

    def find(self, producer_id: int, sequence: int) -> tuple[int, int] | Verdict | None:
        """(base offset, message count) of the batch that this producer sent under this sequence; TOO_OLD below its
        window; None for a new one. Producer id 0 asks for no deduplication: always None."""
        window = self._windows.get(producer_id)
        if window is None or sequence > window.highest:
            return None
        if sequence <= window.highest - DEDUPLICATION_WINDOW:
            return TOO_OLD
        slots = window.slots
        index = sequence * WORDS_PER_SLOT % len(slots)
        return (slots[index + 1], slots[index + 2]) if slots[index] == sequence else None

    def record(self, producer_id: int, sequence: int, base_offset: int, count: int) -> None:
        """Remembers an appended batch. Of a sequence below the window there is nothing to remember; neither of
        sequence 0, which no producer uses."""
        if producer_id == 0 or sequence == 0:
            return
        if producer_id == self._last_producer_id:
            window = self._last_window
            slots = window.slots
            if len(slots) == FULL_LENGTH and sequence > window.highest:
                # The usual case of put(), without its questions: a window that has its full size takes the next one.
                window.highest = sequence
                index = sequence * 3 % FULL_LENGTH  # WORDS_PER_SLOT
                slots[index] = sequence
                slots[index + 1] = base_offset
                slots[index + 2] = count
                return
        else:
            window = self._renewed(producer_id, sequence)
        if sequence > window.highest - DEDUPLICATION_WINDOW:
            window.put(sequence, base_offset, count)

    def _renewed(self, producer_id: int, sequence: int) -> _Window:
        """The producer's window, now the last in the dict: its first is the one to forget."""
        window = self._windows.pop(producer_id, None)
        if window is None:
            window = _Window(sequence)
            if len(self._windows) >= DEDUPLICATION_PRODUCERS_MAX:
                del self._windows[next(iter(self._windows))]
        self._windows[producer_id] = window
        self._last_producer_id, self._last_window = producer_id, window
        return window

    def clear(self) -> None:
        """After a purge nothing of before is remembered."""
        self._windows.clear()
        self._last_producer_id = 0
