"""The lanes that this worker serves, and what each may touch.

A lane belongs to a session, which is one connection of a client to the front. All lanes of a session share one table
of grants, so a grant that arrives later holds for the lanes that exist already. The control lane is the front's own: it
may address every log, and it alone may carry control requests.

A grant is looked up once for each request, so it holds what the loop needs, ready: what appends, whether the answer
waits for the disk, the log, and the rights. Where appending is not granted or not possible, what appends is a function
that returns the refusal: the loop asks no questions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from shmbroker.errors import ErrorCode
from shmbroker.formats.link import RIGHT_APPEND
from shmbroker.shm.doorbell import Doorbell
from shmbroker.shm.lane import LaneServer
from shmbroker.storage.partition_log import PartitionLog

Outcome = tuple[int, int, int]
"""status, value, argument: of a completion."""
Append = Callable[[memoryview, int], Outcome]
Grant = tuple[Append, bool, PartitionLog | None, int]
"""append, whether its answer waits for the disk, the log (None where it is refused), rights."""

CONTROL_SESSION = 0
"""The front's own: it has the control lane and no other."""


def refuse_ungranted(record: memoryview, now_us: int) -> Outcome:
    return ErrorCode.PARTITION_NOT_GRANTED, 0, 0


def refuse_unopened(record: memoryview, now_us: int) -> Outcome:
    return ErrorCode.PARTITION_REFUSED, 0, 0


def grant_of(log: PartitionLog | None, rights: int) -> Grant:
    """What a session that has ``rights`` on this log holds; ``log`` is None where recovery refused it."""
    if not rights & RIGHT_APPEND:
        return refuse_ungranted, False, log, rights
    if log is None:
        return refuse_unopened, False, None, rights
    return log.append, log.options.persisted, log, rights


class Lane:
    """One lane. ``server`` is its protocol, ``bell`` what wakes its client, ``grants`` its session's table."""

    __slots__ = ("bell", "grants", "lane_id", "server", "session")

    def __init__(
        self, lane_id: int, session: int, server: LaneServer, bell: Doorbell, grants: dict[int, Grant]
    ) -> None:
        self.lane_id = lane_id
        self.session = session
        self.server = server
        self.bell = bell
        self.grants = grants


class Lanes:
    """Owned by the worker's loop. ``served`` is replaced, never changed: a pass goes through the one it took."""

    def __init__(self) -> None:
        self.served: tuple[Lane, ...] = ()
        self._grants: dict[int, dict[int, Grant]] = {}

    def grants_of(self, session: int) -> dict[int, Grant]:
        """The table of a session, made at its first lane or grant."""
        return self._grants.setdefault(session, {})

    def add(self, lane_id: int, session: int, server: LaneServer, bell: Doorbell) -> Lane:
        lane = Lane(lane_id, session, server, bell, self.grants_of(session))
        self.served = (*self.served, lane)
        return lane

    def revoke(self, log_ids: Iterable[int]) -> None:
        """Nobody may touch these any more: they are removed."""
        for log_id in log_ids:
            for grants in self._grants.values():
                grants.pop(log_id, None)

    def close(self, lane: Lane, error: int) -> None:
        """Ends one lane. Its memory stays with the client, which reads the reason there."""
        self.served = tuple(other for other in self.served if other is not lane)
        lane.server.close(error)
        lane.bell.close()

    def close_id(self, lane_id: int, error: int) -> None:
        for lane in self.served:
            if lane.lane_id == lane_id:
                self.close(lane, error)

    def end_session(self, session: int) -> None:
        """The client is gone: what it had published was served in the passes before this one."""
        for lane in self.served:
            if lane.session == session:
                self.close(lane, ErrorCode.LANE_CLOSED)
        self._grants.pop(session, None)

    def close_all(self, error: int) -> None:
        for lane in self.served:
            self.close(lane, error)
