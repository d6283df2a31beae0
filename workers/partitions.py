"""The partitions that this worker owns: opening and closing them, and looking after those that have something to do.

A partition that recovery refused stays in ``refused`` with its reason, so that it can be reported; the others are
unaffected. A partition is active from its first request after a quiet time until it has been quiet again for
ACTIVE_QUIET_US: only active ones cost anything on the tick, a thousand idle ones nothing. Retention, which time alone
can make due, goes round the partitions that have a limit, a few on each tick.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor, wait
from dataclasses import replace
from typing import Any, Final, NamedTuple

from shmbroker.errors import Corrupt, DiskFailed, NoSpace
from shmbroker.formats.control import State
from shmbroker.storage.disk import Disk
from shmbroker.storage.partition_log import JournalBudget, LogOptions, PartitionLog
from shmbroker.storage.runtime import Runtime

ACTIVE_QUIET_US: Final = 5_000_000
MAINTENANCE_INTERVAL_US: Final = 1_000_000


class Refused(NamedTuple):
    """A partition that does not open: ``reason`` names file, position and remedy."""

    log_id: int
    partition_id: int
    reason: str


def directory_of(data_directory: str, log_id: int) -> str:
    return f"{data_directory}/partitions/{log_id:020}"


class Partitions:
    """Owned by the worker's loop."""

    def __init__(
        self,
        disk: Disk,
        runtime: Runtime,
        budget: JournalBudget,
        executor: Executor,
        data_directory: str,
        instance: int,
        retention_interval_us: int,
    ) -> None:
        """Every partition with a limit of age or size is looked at once in each ``retention_interval_us``."""
        self.logs: dict[int, PartitionLog] = {}
        self.refused: dict[int, Refused] = {}
        self.active: dict[PartitionLog, int] = {}
        """When each was last known to be busy. The loop writes it, once a pass."""
        self._disk = disk
        self._runtime = runtime
        self._budget = budget
        self._executor = executor
        self._data_directory = data_directory
        self._instance = instance
        self._retention_interval_us = retention_interval_us
        self._maintained_us = 0
        self._rota: list[PartitionLog] = []

    def create_all(self, created: Sequence[tuple[int, int]]) -> None:
        """Makes the directory of each (log id, partition id), durable before this returns (rule 13). Raises NoSpace or
        DiskFailed. At the same time, since the file system then makes several durable at once."""
        futures = [
            self._executor.submit(
                PartitionLog.create, self._disk, directory_of(self._data_directory, log_id), log_id, partition_id
            )
            for log_id, partition_id in created
        ]
        wait(futures)
        for future in futures:
            future.result()

    def open(self, log_id: int, partition_id: int, options: Mapping[str, Any], now_us: int) -> None:
        """Recovers and opens one. It is in ``logs`` or in ``refused`` afterwards."""
        assert log_id not in self.logs
        try:
            log = PartitionLog.open(
                self._disk,
                self._runtime,
                self._budget,
                directory_of(self._data_directory, log_id),
                log_id,
                partition_id,
                LogOptions(**options),
                instance=self._instance,
                now_us=now_us,
                executor=self._executor,
            )
        except (Corrupt, DiskFailed, NoSpace) as error:
            self.refused[log_id] = Refused(log_id, partition_id, str(error))
            return
        self.logs[log_id] = log

    def state_of(self, log_id: int) -> dict[str, Any]:
        """State, reason and incarnation, as the front passes them on."""
        refused = self.refused.get(log_id)
        if refused is not None:
            return {"log_id": log_id, "state": int(State.REFUSED), "reason": refused.reason, "incarnation": None}
        log = self.logs[log_id]
        reason = log.describe().get("reason") if log.state != State.OPEN else None
        return {"log_id": log_id, "state": int(log.state), "reason": reason, "incarnation": log.incarnation.hex()}

    def remove(self, log_ids: Iterable[int]) -> None:
        """Deletes partitions and all that they hold, refused and half-made ones too."""
        for log_id in log_ids:
            self.refused.pop(log_id, None)
            log = self.logs.pop(log_id, None)
            if log is not None:
                self.active.pop(log, None)
                log.remove()
            else:
                PartitionLog.discard(self._disk, self._runtime, directory_of(self._data_directory, log_id), log_id)
        self._rota.clear()

    def update(self, log_ids: Iterable[int], changes: Mapping[str, Any]) -> None:
        """Takes over changed options (those that may change)."""
        for log_id in log_ids:
            log = self.logs.get(log_id)
            if log is not None:
                log.update_options(replace(log.options, **changes))
        self._rota.clear()

    def purge(self, log_ids: Iterable[int], now_us: int) -> dict[int, int]:
        """The status of each, in order."""
        outcome: dict[int, int] = {}
        for log_id in log_ids:
            log = self.logs.get(log_id)
            if log is not None:
                outcome[log_id] = log.purge(now_us)
                self.active[log] = now_us
        return outcome

    def maintain(self, now_us: int) -> None:
        """On the tick: marks, rings and retention of what is active, and some of the rota. A clock that was set back
        counts as one interval: nothing waits until it is there again."""
        passed_us = now_us - self._maintained_us
        if 0 <= passed_us < MAINTENANCE_INTERVAL_US:
            return
        passed_us = MAINTENANCE_INTERVAL_US if passed_us < 0 else min(passed_us, self._retention_interval_us)
        self._maintained_us = now_us
        for log, busy_us in list(self.active.items()):
            log.maintain(now_us)
            if not 0 <= now_us - busy_us <= ACTIVE_QUIET_US:
                del self.active[log]
        for log in self._next_of_rota(passed_us):
            log.maintain(now_us)

    def _next_of_rota(self, passed_us: int) -> list[PartitionLog]:
        limited = self._rota
        if not limited:
            limited += [log for log in self.logs.values() if log.options.message_expiry_us or log.options.size_max]
        count = -(-len(limited) * passed_us // self._retention_interval_us)
        taken, self._rota = limited[:count], limited[count:]
        return taken

    def close(self, now_us: int) -> list[str]:
        """The clean stop of everything: what of it failed."""
        failures: list[str] = []
        for log in self.logs.values():
            if log.state == State.POISONED:
                failures.append(f"partition {log.log_id} was poisoned: {log.describe().get('reason')}")
                log.abandon()
                continue
            try:
                log.close(now_us)
            except (DiskFailed, NoSpace) as error:
                failures.append(str(error))
        self.logs.clear()
        self.active.clear()
        return failures

    def describe(self) -> list[dict[str, Any]]:
        described = [{"log_id": log.log_id, **log.describe()} for log in self.logs.values()]
        described += [
            {"log_id": refused.log_id, "state": State.REFUSED.name.lower(), "reason": refused.reason}
            for refused in self.refused.values()
        ]
        return described
