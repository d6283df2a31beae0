"""Takes the completions of one worker's lane and settles what waits for them.

Leader and followers: whoever wants an answer tries for the lead. The leader alone reads the completion ring and waits
on its bell, until its own answer is there: a single sender is woken by the worker itself, with no thread between. The
others sleep on a lock of their own, which is released when their answer settles or when they are to lead.

When nobody waits (tickets whose owners do something else, callbacks, asyncio) a rescue thread looks every RESCUE_S. It
starts at the first submission that nobody waits for, and sleeps for good while nothing is outstanding.

Written by: ``pending`` gets entries from whoever holds the port's lock and loses them to the leader; ``lane`` and
``bell`` change under the lead. An entry settles exactly once: by its completion, or by :meth:`bury` when the lane has
ended. Callbacks run without the lead, so that they may send and wait themselves.
A wait takes the rings that it was woken by, and every wait comes between two looks at the completion ring: rings that
nobody waited for cost one early return (rule 12).
Every wait is bounded by DOORBELL_WAIT_MS_MAX and followed by a look at the lane and the broker, so that the death of
either ends it. Locks are taken in the order lead, port, condition.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from shmbroker.client.lane import Lane
from shmbroker.client.ticket import FINISHED, Answer, Wake
from shmbroker.errors import ErrorCode, LaneBroken, ShmbrokerError
from shmbroker.limits import DOORBELL_WAIT_MS_MAX
from shmbroker.shm.doorbell import Doorbell

SLICE_S = DOORBELL_WAIT_MS_MAX / 1000
RESCUE_S = 0.002
LOOK_AFTER_EVERY = 50


class Reaper:
    """The reading side of a port. ``alive`` says whether the broker still is; ``retire`` is told of a lane's end."""

    def __init__(
        self, alive: Callable[[], bool], retire: Callable[[Lane], None], name: str, *, is_attentive: bool = False
    ) -> None:
        """``is_attentive``: the rescue thread waits on the bell itself, for programs whose threads do not (asyncio)."""
        self.condition = threading.Condition(threading.RLock())
        """Guards the state of every answer of this port; shared by all of them."""
        self.pending: dict[int, Answer[Any]] = {}
        """Requests under way, by request number."""
        self.lane: Lane | None = None
        self.bell: Doorbell | None = None
        self.lead = threading.Lock()
        self.rescue_asleep = True
        """Whether a submitter has to wake the rescue thread."""
        self.abandoned: ShmbrokerError | None = None
        """Raised by every wait, once set: this is a child of fork(), where no lock can be trusted."""
        self._is_attentive = is_attentive
        self._alive = alive
        self._retire = retire
        self._name = name
        self._followers: dict[Wake, None] = {}
        self._crowd: dict[Wake, None] = {}
        self._called: deque[Answer[Any]] = deque()
        self._rescue: threading.Thread | None = None
        self._rescue_wake = threading.Lock()
        self._rescue_wake.acquire()
        self._stopping = threading.Event()

    # --- waiting -----------------------------------------------------------------------------------------------------
    def wait_for(self, entry: Answer[Any], deadline: float | None) -> bool:
        """Waits until ``entry``, which is under way, settles. False where ``deadline`` passed first."""
        while entry._state != FINISHED:
            if self.abandoned is not None:
                raise self.abandoned
            if self.lead.acquire(False):
                try:
                    in_time = self._lead_until(entry, deadline)
                finally:
                    self.give_up_lead()
                if self._called:
                    self.run_callbacks()
            else:
                in_time = self._follow(entry, deadline)
            if not in_time:
                return entry._state == FINISHED
        return True

    def _lead_until(self, entry: Answer[Any], deadline: float | None) -> bool:
        """Holding the lead: reaps until ``entry`` is settled or a callback is due. False where the time ran out."""
        while entry._state != FINISHED and not self._called:
            if self.reap():
                continue
            bell = self.bell
            if bell is None:
                return True  # buried meanwhile: settled too
            wait_s = SLICE_S if deadline is None else min(SLICE_S, deadline - time.monotonic())
            if wait_s <= 0:
                return False
            if not bell.wait(wait_s) or self.lane_closed():
                self.look_after()
        return True

    def _follow(self, entry: Answer[Any], deadline: float | None) -> bool:
        """Sleeps until the entry settles or the lead is to be taken. False where the time ran out."""
        wait_s = SLICE_S if deadline is None else min(SLICE_S, deadline - time.monotonic())
        if wait_s <= 0:
            return False
        wake = Wake()
        with self.condition:
            if not entry.listen(wake):
                return True
            self._followers[wake] = None
        # Whoever gave up the lead before we were listed could not wake us: so look once more. Whoever gives it up from
        # now on finds us in the list.
        if self.lead.locked():
            wake.wait(wait_s)
        with self.condition:
            chosen = wake not in self._followers
            self._followers.pop(wake, None)
            entry.ignore(wake)
        if chosen and entry._state == FINISHED:
            self._choose_leader()  # chosen to lead with nothing left to wait for: then the next one has to
        return True

    def wait_for_progress(self, deadline: float) -> bool:
        """Waits until something was reaped, or a slice is over. False where ``deadline`` has passed."""
        if self.abandoned is not None:
            raise self.abandoned
        wait_s = min(SLICE_S if self.pending else 0.001, deadline - time.monotonic())
        if wait_s <= 0:
            return False
        if self.lead.acquire(False):
            try:
                bell = self.bell
                if not self.reap() and bell is not None:
                    if not bell.wait(wait_s) or self.lane_closed():
                        self.look_after()
                    self.reap()
            finally:
                self.give_up_lead()
            self.run_callbacks()
            return True
        wake = Wake()
        with self.condition:
            self._crowd[wake] = None
            self._followers[wake] = None
        if self.lead.locked():
            wake.wait(wait_s)
        with self.condition:
            self._crowd.pop(wake, None)
            is_chosen = wake not in self._followers
            self._followers.pop(wake, None)
        if is_chosen:
            self.glance()  # and passes the lead on: whoever called us may have what it needs
        return True

    def give_up_lead(self) -> None:
        """Releases the lead; a follower takes it if there is one."""
        self.lead.release()
        if self._followers:
            self._choose_leader()

    def _choose_leader(self) -> None:
        with self.condition:
            if self._followers and not self.lead.locked():
                wake = next(iter(self._followers))
                del self._followers[wake]
                wake.ring()

    # --- reaping -----------------------------------------------------------------------------------------------------
    def glance(self) -> None:
        """Reaps what is there, if nobody else does."""
        if self.lead.acquire(False):
            try:
                self.reap()
            finally:
                self.give_up_lead()
            if self._called:
                self.run_callbacks()

    def reap(self) -> int:
        """Holding the lead: settles whatever has completed; returns how many. Never waits."""
        lane = self.lane
        if lane is None:
            return 0
        try:
            completions = lane.completions()
        except LaneBroken:
            return self.bury()
        if not completions:
            return 0
        take = self.pending.pop
        called = self._called
        with self.condition:
            for number, status, detail, value, argument in completions:
                entry = take(number, None)
                if entry is not None and entry.settle(status, detail, value, argument):
                    called.append(entry)
            for wake in self._crowd:
                wake.ring()
        return len(completions)

    def lane_closed(self) -> bool:
        """Whether the lane was closed from the other side."""
        lane = self.lane
        return lane is None or lane.closed != 0

    def look_after(self) -> None:
        """Holding the lead: if worker, broker or client have ended, takes what was completed and buries the rest."""
        if self.lane_closed() or self._stopping.is_set() or not self._alive():
            self.reap()
            self.bury()

    def bury(self) -> int:
        """Holding the lead: ends the lane (rule 7). What is under way gets OutcomeUnknown; returns how many."""
        lane, self.lane = self.lane, None
        bell, self.bell = self.bell, None
        if lane is not None:
            self._retire(lane)  # from here on nothing is added to pending
        entries = list(self.pending.values())
        self.pending.clear()
        with self.condition:
            for entry in entries:
                if entry.settle(ErrorCode.TRANSIENT_NOT_COMMITTED, 0, 0, 0):
                    self._called.append(entry)
            for wake in self._crowd:
                wake.ring()
        if bell is not None:
            bell.close()
        return len(entries)

    def run_callbacks(self) -> None:
        """Runs the callbacks that are due. The lead is not held."""
        while self._called:
            try:
                entry = self._called.popleft()
            except IndexError:
                return  # another thread took it
            entry.run_callbacks()

    # --- rescue ------------------------------------------------------------------------------------------------------
    def call_rescue(self) -> None:
        """Makes sure that somebody reaps though nobody waits. After adding to ``pending``."""
        with self.condition:
            if not self.rescue_asleep or self._stopping.is_set():
                return
            self.rescue_asleep = False
            if self._rescue is None:
                self._rescue = threading.Thread(target=self._run_rescue, name=f"{self._name} rescue", daemon=True)
                self._rescue.start()
            else:
                self._rescue_wake.release()

    def _run_rescue(self) -> None:
        while not self._stopping.is_set():
            turn = 0
            while self.pending and not self._stopping.is_set():
                turn += 1
                is_leader = self.lead.acquire(False)
                if is_leader:
                    try:
                        self._rescue_all(turn)
                    finally:
                        self.give_up_lead()
                self.run_callbacks()
                if not (is_leader and self._is_attentive):
                    self._stopping.wait(RESCUE_S)  # bounded: what is pending is answered, or its lane closes
            with self.condition:
                # Said before the look at pending: a submitter adds first and reads this after.
                self.rescue_asleep = True
                if self.pending or self._stopping.is_set():
                    self.rescue_asleep = False
                    continue
            self._rescue_wake.acquire()

    def _rescue_all(self, turn: int) -> None:
        """Holding the lead: reaps; an attentive thread waits for something to reap."""
        bell = self.bell
        if self.reap() or bell is None:
            return
        if self._is_attentive:
            if not bell.wait(SLICE_S) or self.lane_closed():
                self.look_after()
            self.reap()
        elif turn % LOOK_AFTER_EVERY == 0:
            self.look_after()

    def stop(self) -> None:
        """Ends the rescue thread and the lane; what is still under way gets OutcomeUnknown."""
        with self.condition:
            self._stopping.set()
            if self.rescue_asleep and self._rescue is not None:
                self.rescue_asleep = False
                self._rescue_wake.release()
        if self._rescue is not None and self._rescue is not threading.current_thread():
            self._rescue.join(timeout=10 * SLICE_S)
        with self.lead:
            self.reap()
            self.bury()
        self.run_callbacks()
