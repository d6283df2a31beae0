"""Ports whose worker is `answering_worker`: a real process on a real lane that answers as a test wants it to."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from shmbroker.client.lanes import Port
from shmbroker.client.route import Route
from shmbroker.shm.doorbell import Doorbell, NamedDoorbell, unlink_name
from shmbroker.shm.lane import LaneClient, close_lane, create_lane
from shmbroker.shm.region import Region

PREFIX = "shmbroker-test-client-"


class ScriptedBroker:
    """What a port needs of a connection, with a process for each lane. Also the front's part at a worker's death."""

    def __init__(self) -> None:
        self.alive = True
        self.opened: list[tuple[int, LaneClient]] = []
        self.workers: list[subprocess.Popen[str]] = []
        self.regions: list[Region] = []
        self.bells: list[Doorbell] = []

    def open_lane(self, worker: int, size: int, deadline: float) -> tuple[LaneClient, Doorbell, Doorbell]:
        lane_id = len(self.opened) + 1
        region = create_lane(size, lane_id)
        doorbell, doorbell_name = NamedDoorbell.create_named(PREFIX)
        bell, bell_name = NamedDoorbell.create_named(PREFIX)
        command = [sys.executable, "-m", "tests.client.answering_worker", str(region.fd), doorbell_name, bell_name]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=[region.fd]
        )
        self.workers.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        self.regions.append(region)
        self.bells.append(NamedDoorbell.open_named(bell_name))
        for name in (doorbell_name, bell_name):
            unlink_name(name)
        mapped = Region(region.fd, region.size)
        mapped.fd = -1
        lane = LaneClient(mapped, doorbell)
        self.opened.append((size, lane))
        return lane, bell, doorbell

    def close_lane(self, lane_id: int, deadline: float) -> None:
        self.stop(lane_id - 1)

    def say(self, command: str, lane: int = -1) -> None:
        """Has the worker of a lane obey, and returns once it has."""
        process = self.workers[lane]
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(command + "\n")
        process.stdin.flush()
        if command != "die":
            assert process.stdout.readline() == command + "\n"

    def bury(self, error: int, lane: int = -1) -> None:
        """Ends a worker, and then says in its lane what the front says."""
        self.say("die", lane)
        self.workers[lane].wait(10)
        close_lane(self.regions[lane], error)
        self.bells[lane].ring()

    def stop(self, lane: int) -> None:
        process = self.workers[lane]
        process.kill()
        process.communicate(timeout=10)

    def close(self) -> None:
        for lane in range(len(self.workers)):
            self.stop(lane)
        for each in (*self.regions, *self.bells):
            each.close()


@contextmanager
def scripted_port() -> Iterator[tuple[ScriptedBroker, Port]]:
    from shmbroker.errors import Closed

    broker = ScriptedBroker()
    port = Port(broker, 1)
    try:
        yield broker, port
    finally:
        port.close(Closed("the test is over"))
        broker.close()


def route_of(port: Port, max_in_flight: int = 128) -> Route:
    return Route(port, 7, 0, "stream/topic", max_in_flight)
