"""Watches: doorbells of consumers that wait for a partition's visible position to move (rule 15).

The front makes the bell and registers it with every worker that owns one of the logs. It keeps a hold of it (the
descriptor, or a hard link in the doorbells directory), so that a worker that was started again gets it too.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from shmbroker.shm.doorbell import EventDoorbell, NamedDoorbell, path_of, unlink_name


class Watch:
    """One watch. ``bell_name`` is the name for the client, until it confirms; None where the bell is a descriptor."""

    __slots__ = ("bell", "bell_name", "link_path", "log_ids", "session", "watch_id")

    def __init__(
        self,
        watch_id: int,
        session: int,
        log_ids: tuple[int, ...],
        bell: EventDoorbell | NamedDoorbell,
        bell_name: str | None,
        link_path: str | None,
    ) -> None:
        self.watch_id = watch_id
        self.session = session
        self.log_ids = log_ids
        self.bell = bell
        self.bell_name = bell_name
        self.link_path = link_path

    def descriptors(self) -> list[int]:
        return [self.bell.fd] if isinstance(self.bell, EventDoorbell) else []

    def lend_name(self, prefix: str) -> str | None:
        """A name by which one worker opens the bell; unlink it when the worker has answered."""
        if self.link_path is None:
            return None
        name = prefix + secrets.token_hex(8)
        os.link(self.link_path, path_of(name))
        return name

    def close(self) -> None:
        self.bell.close()
        if self.link_path is not None:
            Path(self.link_path).unlink(missing_ok=True)


class WatchTable:
    """All watches of all sessions. Owned by the front's loop."""

    def __init__(self, doorbells: str) -> None:
        self._doorbells = doorbells
        self._watches: dict[int, Watch] = {}
        self._next_id = 1

    def __len__(self) -> int:
        return len(self._watches)

    def create(self, session: int, log_ids: tuple[int, ...], prefix: str, *, event: bool) -> Watch:
        watch_id = self._next_id
        self._next_id += 1
        if event:
            watch = Watch(watch_id, session, log_ids, EventDoorbell.create(), None, None)
        else:
            link_path = f"{self._doorbells}/watch-{watch_id}"
            bell, name = NamedDoorbell.create_named(prefix)
            try:
                os.link(path_of(name), link_path)
            except OSError:
                bell.close()
                unlink_name(name)
                raise
            watch = Watch(watch_id, session, log_ids, bell, name, link_path)
        self._watches[watch_id] = watch
        return watch

    def remove(self, watch_id: int, session: int) -> Watch | None:
        """The watch, closed; None where this session has none of that number."""
        watch = self._watches.get(watch_id)
        if watch is None or watch.session != session:
            return None
        del self._watches[watch_id]
        watch.close()
        return watch

    def end_session(self, session: int) -> None:
        for watch in [watch for watch in self._watches.values() if watch.session == session]:
            self.remove(watch.watch_id, session)

    def all(self) -> list[Watch]:
        return list(self._watches.values())

    def close(self) -> None:
        for watch in self._watches.values():
            watch.close()
        self._watches.clear()
