"""The reservation of offsets: what makes sure that none is issued twice, whatever was lost (rule 3).

Owned by the worker's thread; renewed by a helper thread through the superblock, which has a lock of its own. No offset
at or above ``limit`` may be issued. ``limit`` only moves after the superblock that says so is on stable storage. A
clean stop leaves ``clean`` in the superblock; :meth:`Reservation.start` takes it away before the next append.
"""

from __future__ import annotations

from concurrent.futures import Executor, Future

from shmbroker.limits import OFFSET_RESERVATION, U64_MAX
from shmbroker.storage.superblock import SuperblockFile


class Reservation:
    def __init__(self, superblock: SuperblockFile, executor: Executor) -> None:
        self.limit = 0
        """Offsets below it may be issued; 0 until :meth:`start`."""
        self.renew_at = 0
        """From this offset on :meth:`look_ahead` wants to be called."""
        self._superblock = superblock
        self._executor = executor
        self._pending: Future[int] | None = None

    @property
    def started(self) -> bool:
        return self.limit > 0

    def start(self, next_offset: int) -> None:
        """Before the first append: no clean stop any more, and a full reservation. Durable on return."""
        reserved = max(self._superblock.current.reserved_offset, _ceiling(next_offset))
        self._superblock.write(clean=0, reserved_offset=reserved)
        self._take(reserved)

    def stop(self) -> None:
        """After this, :meth:`start` comes before the next append."""
        self.settle()
        self.limit = self.renew_at = 0

    def ensure(self, end_offset: int) -> None:
        """All offsets below ``end_offset`` may be issued on return; waits only if the helper was caught up with."""
        while end_offset > self.limit:
            if self._pending is not None:
                pending, self._pending = self._pending, None
                self._take(pending.result())
            else:
                self._take(self._renew(end_offset))

    def look_ahead(self, next_offset: int) -> None:
        """Takes what the helper has finished; asks it for more once half is used."""
        if self._pending is not None:
            if self._pending.done():
                pending, self._pending = self._pending, None
                self._take(pending.result())
        elif next_offset >= self.renew_at:
            self.renew_at = self.limit
            self._pending = self._executor.submit(self._renew, self.limit)

    def settle(self) -> None:
        if self._pending is not None:
            self._pending.exception()
            self._pending = None

    def _renew(self, offset: int) -> int:
        reserved = _ceiling(offset)
        self._superblock.write(reserved_offset=reserved)
        return reserved

    def _take(self, reserved: int) -> None:
        self.limit = reserved
        self.renew_at = reserved - OFFSET_RESERVATION // 2


def _ceiling(offset: int) -> int:
    return min(offset + OFFSET_RESERVATION, U64_MAX)
