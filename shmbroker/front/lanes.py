"""The lanes that the front has granted, kept mapped so that it can close them when their worker dies (rule 7).

A lane is made here, handed to its client (by the session's socket) and to its worker (by the link), and belongs to one
session and one run of one worker. The front never looks at what is in it. It has no name: a memory file has none, and
that of the completion bell is unlinked when the client confirms.
"""

from __future__ import annotations

from shmbroker.errors import ClientMistake, ErrorCode, LimitReached
from shmbroker.limits import LANE_SIZE_MAX, LANE_SIZE_MIN, LANES_PER_WORKER_MAX, PAGE_SIZE
from shmbroker.shm.doorbell import EventDoorbell, NamedDoorbell
from shmbroker.shm.lane import close_lane, create_lane
from shmbroker.shm.region import Region


class GrantedLane:
    """One lane. ``bell_name`` is the completion bell's name, or None where it travels as a descriptor."""

    __slots__ = ("bell", "bell_name", "lane_id", "region", "session", "worker")

    def __init__(
        self,
        lane_id: int,
        session: int,
        worker: int,
        region: Region,
        bell: EventDoorbell | NamedDoorbell,
        bell_name: str | None,
    ) -> None:
        self.lane_id = lane_id
        self.session = session
        self.worker = worker
        self.region = region
        self.bell = bell
        self.bell_name = bell_name

    def descriptors(self) -> list[int]:
        """What travels beside the grant: the memory file, then the completion bell where it has no name."""
        return [self.region.fd, self.bell.fd] if isinstance(self.bell, EventDoorbell) else [self.region.fd]

    def close_descriptors(self) -> None:
        """Once they have been sent to both ends."""
        self.region.close_descriptor()
        if isinstance(self.bell, EventDoorbell):
            self.bell.close_descriptor()


class LaneTable:
    """All lanes of all sessions. Owned by the front's loop."""

    def __init__(self) -> None:
        self._lanes: dict[int, GrantedLane] = {}
        self._next_id = 1

    def __len__(self) -> int:
        return len(self._lanes)

    def create(self, session: int, worker: int, size: int, prefix: str, *, event: bool) -> GrantedLane:
        """A new lane, in the table before anybody else knows it. Raises ClientMistake, LimitReached, NoSpace."""
        if not LANE_SIZE_MIN <= size <= LANE_SIZE_MAX or size % PAGE_SIZE:
            raise ClientMistake(f"a lane has {LANE_SIZE_MIN} to {LANE_SIZE_MAX} bytes in whole pages, not {size}")
        if sum(lane.worker == worker for lane in self._lanes.values()) >= LANES_PER_WORKER_MAX:
            raise LimitReached(f"worker {worker} has {LANES_PER_WORKER_MAX} lanes already")
        lane_id = self._next_id
        region = create_lane(size, lane_id)
        bell: EventDoorbell | NamedDoorbell
        bell_name: str | None = None
        try:
            if event:
                bell = EventDoorbell.create()
            else:
                bell, bell_name = NamedDoorbell.create_named(prefix)
        except OSError:
            region.close()
            raise
        self._next_id += 1
        lane = GrantedLane(lane_id, session, worker, region, bell, bell_name)
        self._lanes[lane_id] = lane
        return lane

    def find(self, lane_id: int, session: int) -> GrantedLane:
        """Raises ClientMistake where this session has no such lane."""
        lane = self._lanes.get(lane_id)
        if lane is None or lane.session != session:
            raise ClientMistake(f"this connection has no lane {lane_id}")
        return lane

    def drop(self, lane: GrantedLane) -> None:
        """Forgets a lane that its client or its worker has given up."""
        if self._lanes.pop(lane.lane_id, None) is not None:
            lane.region.close()
            lane.bell.close()

    def drop_id(self, lane_id: int) -> GrantedLane | None:
        lane = self._lanes.get(lane_id)
        if lane is not None:
            self.drop(lane)
        return lane

    def end_session(self, session: int) -> None:
        for lane in [lane for lane in self._lanes.values() if lane.session == session]:
            self.drop(lane)

    def worker_died(self, worker: int) -> int:
        """Says so in its lanes and wakes who waits there: requests under way are of unknown outcome. How many."""
        dead = [lane for lane in self._lanes.values() if lane.worker == worker]
        for lane in dead:
            close_lane(lane.region, ErrorCode.LANE_CLOSED)
            lane.bell.ring()
            self.drop(lane)
        return len(dead)
