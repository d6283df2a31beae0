"""Reading a file ahead of a scan: the next block is on its way, on a helper thread, while the last one is looked at.

A system call releases the interpreter, so that disk and checksums work at the same time. Blocks are asked for in order;
what a reader has passed is forgotten, so that going back reads again.
"""

from __future__ import annotations

from concurrent.futures import Executor, Future
from typing import Final

from shmbroker.storage.scan import ReadLog

BLOCK_SIZE: Final = 4 << 20
BLOCKS_AHEAD: Final = 2


class ReadAhead:
    """A function like ``read``, for positions from ``start`` to ``limit``. :meth:`settle` before the file is closed."""

    def __init__(self, read: ReadLog, start: int, limit: int, executor: Executor) -> None:
        self._read = read
        self._start = start
        self._limit = limit
        self._executor = executor
        self._blocks: dict[int, Future[bytes | memoryview]] = {}

    def __call__(self, position: int, size: int) -> bytes | memoryview:
        end = min(position + size, self._limit)
        if end <= position:
            return b""
        first, last = (position - self._start) // BLOCK_SIZE, (end - 1 - self._start) // BLOCK_SIZE
        for number in [number for number in self._blocks if number < first]:
            self._blocks.pop(number).exception()
        for number in range(first, last + 1 + BLOCKS_AHEAD):
            self._ask(number)
        parts = []
        for number in range(first, last + 1):
            block = memoryview(self._blocks[number].result())
            begin = self._start + number * BLOCK_SIZE
            parts.append(block[max(0, position - begin) : end - begin])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def settle(self) -> None:
        """Waits for what is on its way, whatever comes of it."""
        for future in self._blocks.values():
            future.exception()
        self._blocks.clear()

    def _ask(self, number: int) -> None:
        begin = self._start + number * BLOCK_SIZE
        if number not in self._blocks and begin < self._limit:
            self._blocks[number] = self._executor.submit(self._read, begin, min(BLOCK_SIZE, self._limit - begin))
