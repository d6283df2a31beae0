"""Which worker serves which partition. With more than one worker, the two policies never share one.

A ``replicated`` producer that shares a worker with ``persisted`` ones waits for their synchronous writes, so partitions
of the two are placed apart. Replicated ones are given workers from the first on and persisted ones from the last, which
keeps the first for the one and the last for the other whatever is created later. A partition stays where it is as long
as its worker's process group runs; at a start all are placed anew, in proportion.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Placed(NamedTuple):
    """One partition's log, for placing."""

    log_id: int
    persisted: bool


class Load:
    """How many partitions of each policy one worker serves."""

    __slots__ = ("persisted_count", "replicated_count")

    def __init__(self) -> None:
        self.replicated_count = 0
        self.persisted_count = 0

    def count(self, persisted: bool) -> int:
        """Partitions of one policy."""
        return self.persisted_count if persisted else self.replicated_count

    def add(self, persisted: bool, change: int = 1) -> None:
        """One partition more, or with -1 one less."""
        if persisted:
            self.persisted_count += change
        else:
            self.replicated_count += change
        assert min(self.persisted_count, self.replicated_count) >= 0


class Placement:
    """The partitions of all workers. Knows nothing of processes."""

    def __init__(self, worker_count: int) -> None:
        assert worker_count >= 1
        self.workers: dict[int, int] = {}
        """The worker of each log_id."""
        self._loads = [Load() for _ in range(worker_count)]
        self._policies: dict[int, bool] = {}

    def start(self, logs: Iterable[Placed]) -> None:
        """Places everything there is, at the start of the broker: each policy gets workers by its share of the logs."""
        assert not self.workers
        logs = sorted(logs)
        persisted_count = sum(log.persisted for log in logs)
        split = _split(len(self._loads), len(logs) - persisted_count, persisted_count)
        everyone = range(len(self._loads))
        for log in logs:
            pool = everyone if len(self._loads) == 1 else everyone[split:] if log.persisted else everyone[:split]
            self._put(log, self._least_loaded(pool, log.persisted))

    def place(self, log: Placed) -> int:
        """Places one new partition, and says where."""
        other = not log.persisted
        pool = range(len(self._loads))
        if len(pool) > 1:
            own = pool[1:] if log.persisted else pool[:-1]
            # Never empty: the worker at each end belongs to one policy alone.
            pool_apart = [worker for worker in own if self._loads[worker].count(other) == 0]
            worker = self._least_loaded(pool_apart, log.persisted)
        else:
            worker = 0
        self._put(log, worker)
        return worker

    def remove(self, log_id: int) -> None:
        """The partition is gone."""
        self._loads[self.workers.pop(log_id)].add(self._policies.pop(log_id), -1)

    def _put(self, log: Placed, worker: int) -> None:
        assert log.log_id not in self.workers
        self.workers[log.log_id] = worker
        self._policies[log.log_id] = log.persisted
        self._loads[worker].add(log.persisted)

    def _least_loaded(self, pool: Iterable[int], persisted: bool) -> int:
        """Of equals, the one nearest to the policy's own end."""
        return min(pool, key=lambda worker: (self._loads[worker].count(persisted), -worker if persisted else worker))


def _split(worker_count: int, replicated_count: int, persisted_count: int) -> int:
    """How many workers, from the first on, serve replicated partitions; the rest serve persisted ones."""
    total = replicated_count + persisted_count
    share = round(worker_count * replicated_count / total) if total else worker_count - 1
    return min(max(share, 1), worker_count - 1)
