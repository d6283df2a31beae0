"""Allocation of a segment file ahead of need, in steps synchronised before anybody counts on them (rule 10).

Owns how far a file is allocated. ``allocated`` only moves after ``allocate`` and ``sync`` of the step have returned,
and is what readers may map up to; a store past a cut file, or a direct write that has to move the file's length, never
happens. Steps double from 1 MiB to 64 MiB, so that small partitions stay small and large ones wait rarely. The next
step is asked of a helper thread when half of the last one is used; the worker waits only if it catches up with it.

A step that finds no space is forgotten until it is needed: then it is tried once more, and the request that needed it
is refused (rule 11). A step that fails otherwise is kept and raised whenever more is asked for.
"""

from __future__ import annotations

from concurrent.futures import Executor, Future

from shmbroker.errors import NoSpace
from shmbroker.limits import ALLOCATION_STEP_MAX, ALLOCATION_STEP_MIN, PAGE_SIZE
from shmbroker.storage.disk import DiskFile


class StepAllocator:
    """Allocation of one file. Used by the worker's thread; only :meth:`_take_step` runs on the helper."""

    def __init__(self, file: DiskFile, allocated: int, size_target: int, executor: Executor) -> None:
        assert allocated % PAGE_SIZE == 0
        self.allocated = allocated
        """Bytes of the file that are durable parts of it: all of them may be written and mapped."""
        self.ahead_at = allocated - ALLOCATION_STEP_MIN // 2
        """From this file size on :meth:`look_ahead` wants to be called."""
        self.covered = (0, 0)
        """What :meth:`look_ahead` was told was written when it asked for a step that has been synchronised since."""
        self._asked_with = (0, 0)
        self._file = file
        self._size_target = size_target
        self._step = ALLOCATION_STEP_MIN
        self._executor = executor
        self._pending: Future[int] | None = None

    def ensure(self, size: int) -> None:
        """Allocated up to ``size`` on return. Raises NoSpace (nothing changed) or DiskFailed."""
        while size > self.allocated:
            if self._pending is not None:
                self._harvest(wait=True)
                continue
            self.allocated = self._take_step(self.allocated, max(self._next_step(), _pages(size - self.allocated)))
            self._plan()

    def look_ahead(self, size: int, written: tuple[int, int] = (0, 0)) -> None:
        """Takes what the helper has finished, and asks it for the next step if ``size`` has come near the end.
        ``written``: log position and offset up to which the file is written now; see ``covered``."""
        if self._pending is not None:
            self._harvest(wait=False)
        elif size >= self.ahead_at and (step := self._next_step()) > 0:
            self.ahead_at = self.allocated
            self._asked_with = written
            self._pending = self._executor.submit(self._take_step, self.allocated, step)

    def settle(self) -> None:
        """Waits for the helper, whatever it says: before the file is closed."""
        if self._pending is not None:
            self._pending.exception()
            self._pending = None

    def _take_step(self, allocated: int, step: int) -> int:
        self._file.allocate(allocated, step)
        self._file.sync()
        return allocated + step

    def _harvest(self, *, wait: bool) -> None:
        pending = self._pending
        assert pending is not None
        if not wait and not pending.done():
            return
        self._pending = None
        try:
            self.allocated = pending.result()
        except NoSpace:
            return
        self.covered = self._asked_with
        self._plan()

    def _next_step(self) -> int:
        """The step to take next: none beyond what the segment is expected to need."""
        return min(self._step, max(0, _pages(self._size_target - self.allocated)))

    def _plan(self) -> None:
        step = self._step
        self._step = min(2 * step, ALLOCATION_STEP_MAX)
        self.ahead_at = self.allocated - step // 2


def _pages(size: int) -> int:
    return -(-size // PAGE_SIZE) * PAGE_SIZE
