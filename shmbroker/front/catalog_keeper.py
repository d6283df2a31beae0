"""The catalog as the front keeps it: decided in memory, made durable by one thread, then applied in memory.

One change is under way at a time (``lock``), from its decision to its end, since a decision is only good for the
catalog that it was made on. A commit that failed for want of space changed nothing. One that failed otherwise may or
may not be on the disk: no other is accepted until the broker is started again and has read what is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from typing import TypeVar

from shmbroker import crash_points
from shmbroker.core.catalog import Catalog
from shmbroker.core.changes import Change
from shmbroker.errors import DiskFailed, ErrorCode, Unavailable
from shmbroker.front.catalog_store import CatalogStore

Result = TypeVar("Result")


class CatalogKeeper:
    """Owned by the front's loop; the store is touched by its one thread only."""

    def __init__(self, store: CatalogStore, catalog: Catalog, executor: Executor) -> None:
        self.catalog = catalog
        self.lock = asyncio.Lock()
        """Held by whoever decides a change, until it is committed or given up."""
        self.on_commit: list[Callable[[list[Change]], None]] = []
        """Called with each change after it was applied."""
        self._store = store
        self._executor = executor
        self._failure: DiskFailed | None = None

    async def reserve_log_ids(self, count: int) -> list[int]:
        """Ids that no log ever had, durably."""
        return list(await self._call(lambda: self._store.reserve_log_ids(count)))

    async def pass_log_id(self, log_id: int) -> None:
        """None that is given out from now on is ``log_id`` or below it."""
        await self._call(lambda: self._store.reserve_log_ids(max(0, log_id + 1 - self._store.next_log_id)))

    async def commit(self, changes: Iterable[Change]) -> None:
        """All of them durable, then visible here; or an error, and none of them. ``lock`` is held."""
        assert self.lock.locked()
        listed = list(changes)
        if not listed:
            return
        if crash_points.ARMED:
            crash_points.reach(crash_points.BEFORE_CATALOG_COMMIT)
        await self._call(lambda: self._store.apply(listed))
        if crash_points.ARMED:
            crash_points.reach(crash_points.AFTER_CATALOG_COMMIT)
        self.catalog.apply(listed)
        for call in self.on_commit:
            call(listed)

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._executor, self._store.close)

    async def _call(self, call: Callable[[], Result]) -> Result:
        if self._failure is not None:
            raise Unavailable(
                f"the catalog accepts no change since {self._failure}: start the broker again",
                number=ErrorCode.CANNOT_SYNC_FILE,
            )
        try:
            # Shielded: a client that goes away must not leave memory and disk apart.
            return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._executor, call))
        except DiskFailed as error:
            self._failure = error
            raise
