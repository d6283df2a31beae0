"""A port: how one client reaches one worker. It owns the lane there and puts requests into it.

All producers and consumers of a client that talk to the same worker share its port. The order of requests in the lane
is the order in which callers got the port's lock. A lane that is too small for a record, or dead, is replaced: small
ones after everything under way has been answered, so that the order holds over the change; dead ones at once, since
what was in them got OutcomeUnknown (rule 7).

Invariants: ``lane`` is the one that takes offers, or None while there is none; the reaper's lane is the same one, or an
older one that still has answers to give. No record above a quarter of the ring is offered (rule 18), so that one large
record cannot hold up the rest. Nothing is published when an error other than OutcomeUnknown is raised.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from shmbroker.client.lane import Buffers, Lane
from shmbroker.client.reaper import Reaper
from shmbroker.client.ticket import Answer
from shmbroker.errors import (
    BatchTooLarge,
    BufferFull,
    Closed,
    DiskFull,
    JournalFull,
    NotAccepted,
    ShmbrokerError,
    Unavailable,
)
from shmbroker.limits import LANE_IN_FLIGHT_MAX, LANE_SIZE_DEFAULT, LANE_SIZE_MAX
from shmbroker.shm.doorbell import Doorbell

RECORDS_PER_LANE = 16
"""A lane that is made for a large record has room for so many of them."""
REOPEN_S = 0.02
"""Between two tries to get a lane while the worker is being started again."""
GLANCE_EVERY = 32
"""Submissions between two looks for completions, where nobody waits for one."""


class Opener(Protocol):
    """What a port needs of the connection."""

    @property
    def alive(self) -> bool: ...

    def open_lane(self, worker: int, size: int, deadline: float) -> tuple[Lane, Doorbell, Doorbell]:
        """The lane, its completion bell, and the worker's doorbell (which the lane rings)."""

    def close_lane(self, lane_id: int, deadline: float) -> None: ...


class Port:
    """The requests of one client to one worker. Thread-safe."""

    def __init__(self, opener: Opener, worker: int, *, is_attentive: bool = False) -> None:
        self.worker = worker
        self.lock = threading.Lock()
        """Held around each offer, and whenever ``lane`` changes."""
        self.lane: Lane | None = None
        self.body_length_max = 0
        self.refusal: ShmbrokerError | None = None
        """Raised by every offer, once set: closed, or in the wrong process."""
        self.closing = threading.Event()
        """Set by close(): ends waits that nothing else would end."""
        self.reaper = Reaper(
            lambda: opener.alive, self._retire, f"shmbroker worker {worker}", is_attentive=is_attentive
        )
        self._opener = opener
        self._replacing = threading.Lock()
        self._number = 0
        self._doorbells: dict[int, Doorbell] = {}
        self._ring: Callable[[], None] = _ring_nobody

    def offer(
        self,
        entry: Answer[Any],
        kind: int,
        flags: int,
        log_id: int,
        argument: int,
        buffers: Buffers,
        body_length: int,
        deadline: float,
        awaited: bool,
    ) -> None:
        """Publishes a request and wakes the worker. ``awaited``: the caller is about to wait for ``entry``.

        Waits for room until ``deadline``, then raises BufferFull. Raises BatchTooLarge, Closed, Unavailable.
        """
        reaper = self.reaper
        pending = reaper.pending
        while True:
            if self.refusal is not None:
                raise self.refusal
            with self.lock:
                lane = self.lane
                if lane is not None and body_length <= self.body_length_max:
                    number = self._number + 1
                    pending[number] = entry
                    if lane.offer(kind, flags, number, log_id, argument, buffers, body_length):
                        self._number = number
                        self._ring()
                        break
                    del pending[number]
            self._make_room(body_length, deadline)
        if awaited:
            return
        if reaper.rescue_asleep:
            reaper.call_rescue()
        if not number % GLANCE_EVERY:
            reaper.glance()

    def offer_now(
        self, entry: Answer[Any], kind: int, log_id: int, buffers: Buffers, body_length: int, awaited: bool
    ) -> bool:
        """As :meth:`offer` where it would not have to wait for anything, else False: nothing happened then."""
        if not self.lock.acquire(False):
            return False
        reaper = self.reaper
        try:
            lane = self.lane
            if lane is None or body_length > self.body_length_max:
                return False
            number = self._number + 1
            reaper.pending[number] = entry
            if not lane.offer(kind, 0, number, log_id, 0, buffers, body_length):
                del reaper.pending[number]
                return False
            self._number = number
            self._ring()
        finally:
            self.lock.release()
        if not awaited:
            if reaper.rescue_asleep:
                reaper.call_rescue()
            if not number % GLANCE_EVERY:
                reaper.glance()
        return True

    def _make_room(self, body_length: int, deadline: float) -> None:
        """Does what an offer needs before it can succeed, or waits a little for somebody to do it."""
        with self.lock:
            lane = self.lane
            is_fit = lane is not None and not lane.closed and body_length <= self.body_length_max
        if lane is None or not is_fit:
            self._replace(body_length, deadline)
        elif not self.reaper.wait_for_progress(deadline):
            raise BufferFull(
                f"worker {self.worker}: {len(self.reaper.pending)} requests in flight (at most {LANE_IN_FLIGHT_MAX})"
                f" or the lane of {lane.request_size} bytes is full, and the time to wait for room ran out"
            )

    def _replace(self, body_length: int, deadline: float) -> None:
        """Gets a lane in which ``body_length`` has its place."""
        if not self._replacing.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise BufferFull(f"worker {self.worker}: another thread is still getting a new lane")
        try:
            if self.refusal is not None:
                raise self.refusal
            with self.lock:
                lane = self.lane
                is_open = lane is not None and not lane.closed
                if is_open and body_length <= self.body_length_max:
                    return  # somebody else did it
            sizes = _sizes_for(body_length)
            if lane is not None and is_open:
                self._drain(lane, deadline)
            else:
                self._bury()
            self._open(sizes, deadline)
        finally:
            self._replacing.release()

    def _drain(self, lane: Lane, deadline: float) -> None:
        """Takes no more offers and waits until everything under way is answered; then gives the lane up."""
        with self.lock:
            size_before, self.body_length_max = self.body_length_max, -1
        while self.reaper.pending:
            if not self.reaper.wait_for_progress(deadline):
                with self.lock:
                    self.body_length_max = size_before
                raise BufferFull(f"worker {self.worker}: requests before a larger lane are still under way")
        self._bury()
        if self._opener.alive:
            self._opener.close_lane(lane.lane_id, deadline)

    def _bury(self) -> None:
        """Ends the present lane, if there is one."""
        with self.reaper.lead:
            self.reaper.reap()
            self.reaper.bury()
        self.reaper.run_callbacks()

    def _open(self, sizes: Sequence[int], deadline: float) -> None:
        """Opens a lane of the first of ``sizes`` that there is memory for; waits for a worker that is being started."""
        for size in sizes:
            while True:
                try:
                    lane, bell, doorbell = self._opener.open_lane(self.worker, size, deadline)
                except (DiskFull, JournalFull):
                    if size == sizes[-1]:
                        raise
                    break  # no memory for this one: try a smaller one
                except (Unavailable, NotAccepted) as error:
                    if self.refusal is not None or not self._opener.alive or time.monotonic() + REOPEN_S >= deadline:
                        raise
                    if isinstance(error, Closed):
                        raise
                    self.closing.wait(REOPEN_S)
                    continue
                self._take(lane, bell, doorbell)
                return

    def _take(self, lane: Lane, bell: Doorbell, doorbell: Doorbell) -> None:
        with self.reaper.lead:
            self.reaper.lane = lane
            self.reaper.bell = bell
            with self.lock:
                self._doorbells[lane.lane_id] = doorbell
                self._ring = doorbell.ring
                self.lane = lane
                self.body_length_max = lane.request_size // 4

    def _retire(self, lane: Lane) -> None:
        """Called by the reaper at a lane's end, holding the lead."""
        with self.lock:
            if self.lane is lane:
                self.lane = None
                self._ring = _ring_nobody
            doorbell = self._doorbells.pop(lane.lane_id, None)
            lane.close()
        if doorbell is not None:
            doorbell.close()

    def close(self, error: ShmbrokerError) -> None:
        """Refuses further offers with ``error``. What is under way and was not waited for gets OutcomeUnknown."""
        self.refusal = error
        self.closing.set()
        self.reaper.stop()

    def wait_idle(self, deadline: float) -> bool:
        """Waits until nothing is under way; False where ``deadline`` passed first."""
        while self.reaper.pending:
            if not self.reaper.wait_for_progress(deadline):
                return False
        return True


def _ring_nobody() -> None:
    raise AssertionError("there is no lane")


def _sizes_for(body_length: int) -> Sequence[int]:
    """Sizes of request rings for records of ``body_length`` bytes, the best one first. Raises BatchTooLarge."""
    if 4 * body_length > LANE_SIZE_MAX:
        raise BatchTooLarge(f"a record of {body_length} bytes: the largest lane takes {LANE_SIZE_MAX // 4}")
    if 4 * body_length <= LANE_SIZE_DEFAULT:
        return (LANE_SIZE_DEFAULT,)
    least = 1 << (4 * body_length - 1).bit_length()
    best = min(LANE_SIZE_MAX, 1 << (RECORDS_PER_LANE * body_length - 1).bit_length())
    sizes = [best]
    while sizes[-1] > least:
        sizes.append(sizes[-1] // 2)
    return sizes
