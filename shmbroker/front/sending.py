"""The front's own lanes: how requests that came over a socket reach a worker, and how its answers come back.

One lane for each worker, opened at the first request, and a larger one for records above a quarter of it (rule 18),
given up again when it is idle. A record is copied into the lane while it is offered; a request for which there is no
room, or no lane yet, waits here in order, and whoever made it keeps its bytes and serves no other request of that
connection: so the queue is no longer than there are connections.

Completions are taken from the loop, when the lane's bell is rung, and each calls what waits for it: no task, no future.
When the worker dies, what was under way is of unknown outcome; what waits goes to its next run, or is given up with
"not accepted" when its time is over.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from shmbroker.errors import BatchTooLarge, ErrorCode, ShmbrokerError, error_from
from shmbroker.formats.lane import REQUEST_DELETE_OFFSET, REQUEST_STORE_OFFSET
from shmbroker.front.reply import Buffer
from shmbroker.front.stored_offsets import StoredOffsets
from shmbroker.limits import LANE_SIZE_MAX, MIB
from shmbroker.shm.doorbell import EventDoorbell, NamedDoorbell
from shmbroker.shm.lane import LaneClient, create_lane

if TYPE_CHECKING:
    from shmbroker.front.broker import Broker

LANE_SIZE: Final = 8 * MIB
LARGE_IDLE_S: Final = 5.0
"""A large lane that nobody used for so long gives its memory back."""
WAIT_S_MAX: Final = 10.0
"""So long a request waits for a lane or for room in it; the client asks again for as long as it likes."""
LOOK_INTERVAL_S: Final = 0.5
LANE_ID_FIRST: Final = 1 << 48
"""Ids of the front's own lanes, apart from those of clients."""
FRONT_SESSION: Final = 0
"""As the worker knows it: it may address every log."""
LOG: Final = logging.getLogger("shmbroker.front")

Done = Callable[[int, int, int], None]
"""status, value, argument: of the completion."""


class LaneRequest:
    """One request. ``done`` is called exactly once, from the loop, never within submit()."""

    __slots__ = ("argument", "buffers", "deadline_s", "done", "flags", "kind", "length", "log_id")

    def __init__(
        self, kind: int, flags: int, log_id: int, argument: int, buffers: Sequence[Buffer], length: int, done: Done
    ) -> None:
        self.kind = kind
        self.flags = flags
        self.log_id = log_id
        self.argument = argument
        self.buffers = buffers
        self.length = length
        """Bytes of all buffers."""
        self.done = done
        self.deadline_s = 0.0
        """When it is given up; set where it has to wait."""


class FrontLane:
    """One lane to one run of a worker."""

    def __init__(self, number: int, size: int, doorbell_path: str) -> None:
        self.lane_id = LANE_ID_FIRST + number
        self.region = create_lane(size, self.lane_id)
        try:
            self.bell = EventDoorbell.create()
            self.doorbell = NamedDoorbell.open(doorbell_path)
        except BaseException:
            self.region.close()
            raise
        self.client = LaneClient(self.region, self.doorbell)
        self.length_max = size // 4
        self.waiting: dict[int, Done] = {}
        self.used_s = time.monotonic()
        self.is_open = False
        """The worker serves it."""

    def close(self) -> None:
        self.is_open = False
        self.client.close()
        self.bell.close()
        self.doorbell.close()


class Sender:
    """The way to one worker. Owned by the front's loop."""

    def __init__(self, broker: Broker, worker: int) -> None:
        self._broker = broker
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self.offsets = StoredOffsets()
        """What is known of the stored offsets of this worker's logs."""
        self._lane: FrontLane | None = None
        self._large: FrontLane | None = None
        self._queue: deque[LaneRequest] = deque()
        self._number = 0
        self._lane_number = 0
        self._opening = False
        self._looking = False

    def submit(self, request: LaneRequest) -> bool:
        """Whether its bytes have been copied; else they are needed until it is done."""
        if not self._queue and self._offer(request):
            return True
        request.deadline_s = time.monotonic() + WAIT_S_MAX
        self._queue.append(request)
        self._care()
        return False

    async def request(self, kind: int, flags: int, log_id: int, argument: int, body: bytes) -> tuple[int, int]:
        """One request, awaited: value and argument of its completion. Raises its error."""
        future: asyncio.Future[tuple[int, int, int]] = self._loop.create_future()

        def done(status: int, value: int, result: int) -> None:
            if not future.done():
                future.set_result((status, value, result))

        changes = kind in (REQUEST_STORE_OFFSET, REQUEST_DELETE_OFFSET)
        if changes:
            self.offsets.forget(log_id, body)
        self.submit(LaneRequest(kind, flags, log_id, argument, (body,), len(body), done))
        try:
            status, value, result = await future
        finally:
            if changes:
                self.offsets.forget(log_id, body)
        if status:
            raise error_from(status)
        return value, result

    def _offer(self, request: LaneRequest) -> bool:
        lane = self._lane
        if lane is None or not lane.is_open:
            return False
        if request.length > lane.length_max:
            lane = self._large
            if lane is None or not lane.is_open or request.length > lane.length_max:
                return False
            lane.used_s = time.monotonic()
        number = self._number + 1
        if not lane.client.offer(
            request.kind, request.flags, number, request.log_id, request.argument, request.buffers, request.length
        ):
            return False
        self._number = number
        lane.waiting[number] = request.done
        lane.doorbell.ring()
        return True

    def _pump(self) -> None:
        """As much of the queue as there is room for."""
        queue = self._queue
        while queue and self._offer(queue[0]):
            queue.popleft()

    def _take(self, lane: FrontLane) -> None:
        """The bell was rung: hands out what the worker has answered."""
        lane.bell.drain()
        waiting = lane.waiting
        for number, status, _, value, argument in lane.client.completions():
            done = waiting.pop(number)
            try:
                done(status, value, argument)
            except Exception as error:  # A fault of ours with one answer must not cost the others theirs.
                LOG.error("an answer of worker %d was not passed on", self._worker, exc_info=error)
        if self._queue:
            self._pump()

    # --- lanes --------------------------------------------------------------------------------------------------------
    def _care(self) -> None:
        """Somebody waits: opens what is missing, and looks after the time."""
        if not self._opening and self._wanted_size():
            self._opening = True
            self._broker.spawn(self._open())
        if not self._looking:
            self._looking = True
            self._broker.spawn(self._look())

    def _wanted_size(self) -> int:
        """The size of the lane that the first in the queue has to have opened, or 0."""
        if not self._queue:
            return 0
        if self._lane is None:
            return LANE_SIZE
        length = self._queue[0].length
        if length <= self._lane.length_max or (self._large is not None and length <= self._large.length_max):
            return 0
        return min(LANE_SIZE_MAX, 1 << (4 * length - 1).bit_length())

    async def _open(self) -> None:
        try:
            while (size := self._wanted_size()) != 0:
                if size > LANE_SIZE and self._large is not None:
                    if self._large.waiting:
                        return  # A larger one takes its place once it has nothing under way: see _look.
                    await self._give_up_large()
                    continue
                await self._open_one(size)
                self._pump()
        except (ShmbrokerError, OSError) as error:
            LOG.warning("no lane of the front to worker %d yet: %s", self._worker, error)
        finally:
            self._opening = False

    async def _open_one(self, size: int) -> None:
        worker = self._broker.workers[self._worker]
        link = await worker.running()
        self._lane_number += 1
        lane = FrontLane(self._lane_number * 256 + self._worker, size, worker.doorbell_path)
        if size > LANE_SIZE:
            self._large = lane
        else:
            self._lane = lane
        try:
            await link.control(
                "attach", [lane.region.fd, lane.bell.fd], session=FRONT_SESSION, lane_id=lane.lane_id, bell=None
            )
        except BaseException:
            self._forget(lane)
            raise
        if lane not in (self._lane, self._large):
            return  # The worker died meanwhile.
        lane.region.close_descriptor()
        lane.bell.close_descriptor()
        lane.is_open = True
        self._loop.add_reader(lane.bell.fileno(), self._take, lane)

    async def _give_up_large(self) -> None:
        lane, self._large = self._large, None
        if lane is None:
            return
        lane_id = lane.lane_id
        self._release(lane)
        link = await self._broker.workers[self._worker].running()
        await link.control("detach", session=FRONT_SESSION, lane_id=lane_id)

    def _forget(self, lane: FrontLane) -> None:
        if lane is self._lane:
            self._lane = None
        elif lane is self._large:
            self._large = None
        else:
            return  # died() was here first
        self._release(lane)

    def _release(self, lane: FrontLane) -> None:
        if lane.is_open:
            self._loop.remove_reader(lane.bell.fileno())
        lane.close()

    # --- what time brings ---------------------------------------------------------------------------------------------
    async def _look(self) -> None:
        """While anybody waits or a large lane is open: gives up what has waited too long."""
        try:
            while self._queue or self._large is not None:
                await asyncio.sleep(LOOK_INTERVAL_S)
                now_s = time.monotonic()
                while self._queue and self._queue[0].deadline_s <= now_s:
                    self._queue.popleft().done(ErrorCode.TRANSIENT_NOT_ACCEPTED, 0, 0)
                large = self._large
                if large is not None and large.is_open and not large.waiting and large.used_s + LARGE_IDLE_S < now_s:
                    try:
                        await self._give_up_large()
                    except ShmbrokerError as error:
                        LOG.warning("the large lane to worker %d: %s", self._worker, error)
                if self._queue and not self._opening:
                    self._pump()
                    if self._wanted_size():
                        self._opening = True
                        await self._open()
        finally:
            self._looking = False

    def died(self) -> None:
        """The worker's process has ended: what it answered is handed out, the rest is of unknown outcome."""
        self.offsets.clear()
        for lane in (self._lane, self._large):
            if lane is None:
                continue
            if lane.is_open:
                self._take(lane)
            waiting, lane.waiting = lane.waiting, {}
            self._forget(lane)
            for done in waiting.values():
                done(ErrorCode.TRANSIENT_NOT_COMMITTED, 0, 0)
        if self._queue:
            self._care()

    def close(self) -> None:
        """The workers have stopped: what is still here was not accepted."""
        self.died()
        while self._queue:
            self._queue.popleft().done(ErrorCode.BROKER_STOPPING, 0, 0)


def check_length(length: int) -> None:
    """Raises BatchTooLarge for what no lane takes."""
    if 4 * length > LANE_SIZE_MAX:
        raise BatchTooLarge(f"a record of {length} bytes: the largest is {LANE_SIZE_MAX // 4}")
