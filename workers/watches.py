"""Who wants to be woken when a partition's visible position moves (rule 15).

A watch is one doorbell and the logs that it is for. The loop collects the bells of the logs that moved in a pass and
rings each once. A bell that cannot be rung is of a dead or hostile client: it is dropped, and its owner's bounded waits
find the messages all the same.
"""

from __future__ import annotations

from collections.abc import Iterable

from shmbroker.shm.doorbell import Doorbell


class Watches:
    """Owned by the worker's loop."""

    def __init__(self) -> None:
        self._bells: dict[int, tuple[int, Doorbell, tuple[int, ...]]] = {}
        self._by_log: dict[int, list[Doorbell]] = {}

    def __len__(self) -> int:
        return len(self._bells)

    def add(self, watch_id: int, session: int, bell: Doorbell, log_ids: Iterable[int]) -> None:
        """Rings once at once: what became visible before the watch was known is not waited for."""
        wanted = tuple(log_ids)
        self._bells[watch_id] = (session, bell, wanted)
        for log_id in wanted:
            self._by_log.setdefault(log_id, []).append(bell)
        self._ring_one(bell)

    def remove(self, watch_id: int) -> None:
        entry = self._bells.pop(watch_id, None)
        if entry is not None:
            _, bell, log_ids = entry
            self._unlist(bell, log_ids)
            bell.close()

    def end_session(self, session: int) -> None:
        for watch_id in [watch_id for watch_id, entry in self._bells.items() if entry[0] == session]:
            self.remove(watch_id)

    def ring(self, log_ids: Iterable[int]) -> None:
        """Each bell of these logs once. Called at most once a pass."""
        by_log = self._by_log
        if not by_log:
            return
        bells: dict[Doorbell, None] = {}
        for log_id in log_ids:
            for bell in by_log.get(log_id, ()):
                bells[bell] = None
        for bell in bells:
            self._ring_one(bell)

    def close(self) -> None:
        for watch_id in list(self._bells):
            self.remove(watch_id)

    def _ring_one(self, bell: Doorbell) -> None:
        try:
            bell.ring()
        except (OSError, ValueError):
            for watch_id, (_, other, _) in list(self._bells.items()):
                if other is bell:
                    self.remove(watch_id)

    def _unlist(self, bell: Doorbell, log_ids: tuple[int, ...]) -> None:
        for log_id in log_ids:
            bells = self._by_log.get(log_id, [])
            if bell in bells:
                bells.remove(bell)
            if not bells:
                self._by_log.pop(log_id, None)
