"""What a request that is under way gives back: a future that settles when its completion is reaped.

An :class:`Answer` belongs to one :class:`~shmbroker.client.reaper.Reaper` and shares that reaper's condition: making
one costs no lock of its own. It is written once, by whoever reaps (holding the condition), and read by everybody. The
thread that asks for its result reaps for itself: there is no hand-over on the path of one message.

Invariants: RUNNING until settled, then FINISHED for ever; it cannot be cancelled, since the request is in shared memory
already; the value that it stands for is built when somebody asks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from shmbroker.errors import ErrorCode, OutcomeUnknown, ShmbrokerError, error_from, text_of
from shmbroker.formats.lane import FLAG_DUPLICATE
from shmbroker.limits import DOORBELL_WAIT_MS_MAX

if TYPE_CHECKING:
    from shmbroker.client.reaper import Reaper

T = TypeVar("T")
RUNNING: Final = "RUNNING"
FINISHED: Final = "FINISHED"
"""The states that concurrent.futures compares with; it has two more, which are never reached here."""
COUNT_MASK: Final = FLAG_DUPLICATE - 1
WAIT_S_MAX: Final = DOORBELL_WAIT_MS_MAX / 1000


class StillInFlight(OutcomeUnknown, TimeoutError):
    """The time ran out before the broker answered. The request is still under way: ``ticket`` may settle yet."""

    code = ErrorCode.TRANSIENT_NOT_COMMITTED

    def __init__(self, message: str, ticket: Answer[Any] | None = None) -> None:
        super().__init__(message)
        self.ticket = ticket


class Confirmation(NamedTuple):
    """What the topic's policy holds for: messages ``base_offset`` to ``base_offset + count - 1`` of ``partition``."""

    partition: int
    base_offset: int
    count: int  # type: ignore[assignment]  # not that of a tuple; a frozen dataclass takes three times as long to make
    duplicate: bool = False
    """Whether an earlier sending of the same batch was found: nothing was appended twice."""


class Wake:
    """What one waiting thread sleeps on. Rung while the condition is held; waited for without it, once."""

    __slots__ = ("_is_rung", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._is_rung = False

    def ring(self) -> None:
        if not self._is_rung:
            self._is_rung = True
            self._lock.release()

    def wait(self, timeout_s: float) -> None:
        """Until rung, or ``timeout_s`` seconds."""
        self._lock.acquire(timeout=timeout_s)


class Origin(Protocol):
    """Where a request went: one partition, on behalf of one producer or consumer."""

    partition_id: int
    settled_count: int
    """Requests answered so far. Written by whoever reaps."""
    failure: Answer[Any] | None
    """The first answer that failed and that nobody has looked at since this was reset."""

    @property
    def name(self) -> str: ...


class Answer(Future[T]):
    """A future of whatever one request to a worker brings back."""

    _state: str = RUNNING
    _exception: BaseException | None = None
    _result: Any = None
    _is_seen = False
    _status = 0
    _detail = 0
    _value = 0
    _argument = 0
    _wakes: list[Wake] | None = None

    def __init__(self, reaper: Reaper, origin: Origin) -> None:
        # Not Future.__init__: it would make a condition for each.
        self._condition = reaper.condition
        self._waiters: list[Any] = []
        self._done_callbacks: list[Any] = []
        self._reaper = reaper
        self._origin = origin

    # --- settling: by the reaper, or by a producer that could not send -----------------------------------------------
    def settle(self, status: int, detail: int, value: int, argument: int) -> bool:
        """Takes the completion. The caller holds the condition; True where callbacks are to be run after it."""
        self._origin.settled_count += 1
        return self._finish(status, detail, value, argument)

    def fail(self, error: ShmbrokerError) -> bool:
        """Settles what was never sent. The caller holds the condition; True as for :meth:`settle`."""
        self._exception = error
        return self._finish(error.number, 0, 0, 0)

    def _finish(self, status: int, detail: int, value: int, argument: int) -> bool:
        if status:
            self._status = status
            self._detail = detail
            if self._origin.failure is None:
                self._origin.failure = self
        self._value = value
        self._argument = argument
        self._state = FINISHED
        for waiter in self._waiters:
            (waiter.add_exception if status else waiter.add_result)(self)
        if self._wakes is not None:
            for wake in self._wakes:
                wake.ring()
            self._wakes = None
        return bool(self._done_callbacks)

    def run_callbacks(self) -> None:
        """Runs what was added with ``add_done_callback``; the condition is not held."""
        self._invoke_callbacks()  # type: ignore[attr-defined]

    def listen(self, wake: Wake) -> bool:
        """Has ``wake`` rung when this settles. The caller holds the condition. False where it is settled already."""
        if self._state == FINISHED:
            return False
        if self._wakes is None:
            self._wakes = []
        self._wakes.append(wake)
        return True

    def ignore(self, wake: Wake) -> None:
        """Takes back :meth:`listen`. The caller holds the condition."""
        if self._wakes is not None and wake in self._wakes:
            self._wakes.remove(wake)

    # --- what a Future offers ----------------------------------------------------------------------------------------
    def done(self) -> bool:
        return self._state == FINISHED

    def running(self) -> bool:
        return self._state != FINISHED

    def cancelled(self) -> bool:
        return False

    def cancel(self) -> bool:
        """False: what is published to a lane cannot be taken back."""
        return False

    def result(self, timeout: float | None = None) -> T:
        """The outcome, waiting up to ``timeout`` seconds (None: as long as the broker lives).

        Raises StillInFlight (also a TimeoutError) when the time ran out, else what the broker answered.
        """
        if self._state != FINISHED:
            self._wait(timeout)
        if self._status:
            error = self._failure()
            try:
                raise error
            finally:
                del self, error  # else traceback, ticket and batch keep each other alive until a collection
        return self._outcome()

    def exception(self, timeout: float | None = None) -> ShmbrokerError | None:
        """The error that :meth:`result` would raise, or None; raises StillInFlight when the time ran out."""
        if self._state != FINISHED:
            self._wait(timeout)
        return self._failure() if self._status else None

    def _wait(self, timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        if not self._reaper.wait_for(self, deadline):
            raise StillInFlight(f"{self._origin.name}: no answer in time; it is still under way", self)

    def _outcome(self) -> T:
        raise NotImplementedError

    def is_unseen(self) -> bool:
        """Whether it failed and nobody has asked for the error yet."""
        return bool(self._status) and not self._is_seen

    def _failure(self) -> ShmbrokerError:
        self._is_seen = True
        if self._exception is None:
            reason = f" (errno {self._detail})" if self._detail else ""
            self._exception = error_from(self._status, f"{self._origin.name}: {self._text()}{reason}")
        assert isinstance(self._exception, ShmbrokerError)
        return self._exception

    def _text(self) -> str:
        if self._status == ErrorCode.TRANSIENT_NOT_COMMITTED:
            return "the worker or the broker ended with the request under way: it may have been carried out"
        return text_of(self._status)


class Ticket(Answer[Confirmation]):
    """A future of a confirmation. Keeps its encoded batch until that is confirmed, so that it can be sent again."""

    def __init__(self, reaper: Reaper, origin: Origin, record: Sequence[Any] | None, size: int) -> None:
        self._condition = reaper.condition
        self._waiters = []
        self._done_callbacks = []
        self._reaper = reaper
        self._origin = origin
        self._record = record
        self._size = size

    def settle(self, status: int, detail: int, value: int, argument: int) -> bool:
        if status or self._waiters or self._wakes is not None:
            return Answer.settle(self, status, detail, value, argument)
        # What most come to: confirmed, and nobody asleep.
        self._origin.settled_count += 1
        self._record = None
        self._value = value
        self._argument = argument
        self._state = FINISHED
        return bool(self._done_callbacks)

    def _finish(self, status: int, detail: int, value: int, argument: int) -> bool:
        if not status:
            self._record = None
        return Answer._finish(self, status, detail, value, argument)

    @property
    def record(self) -> Sequence[Any] | None:
        """The buffers of the batch (header, content) while it is not confirmed; None once it is."""
        return self._record

    @property
    def size(self) -> int:
        """Bytes of the batch record."""
        return self._size

    @property
    def partition(self) -> int:
        """Where the batch went."""
        return self._origin.partition_id

    def again(self, reaper: Reaper, origin: Origin) -> tuple[Ticket, Ticket]:
        """For sending the same record again: the ticket to be offered, and the one for whoever asked."""
        ticket = Ticket(reaper, origin, self.record, self.size)
        return ticket, ticket

    def forget(self) -> None:
        """Gives up the encoded batch: it cannot be sent again through this ticket."""
        self._record = None

    def _outcome(self) -> Confirmation:
        argument = self._argument
        return tuple.__new__(
            Confirmation,
            (self._origin.partition_id, self._value, argument & COUNT_MASK, argument >= FLAG_DUPLICATE),
        )


class Reply(Answer[int]):
    """A future of one number: a stored offset, or 0."""

    def _outcome(self) -> int:
        return self._value


class Share(Ticket):
    """One ticket of several whose messages go out in one batch (linger). Waits to be sent before it can be answered.

    ``first``: index in the batch of its first message.
    """

    def __init__(self, reaper: Reaper, origin: Origin, first: int, count: int) -> None:
        super().__init__(reaper, origin, None, 0)
        self.first = first
        self.count = count
        self.gathering: Gathering | None = None
        """Whose record this is a part of, once that is on its way. Set holding the condition."""

    def _wait(self, timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.gathering is None and self._state != FINISHED:
            wait_s = WAIT_S_MAX if deadline is None else min(WAIT_S_MAX, deadline - time.monotonic())
            if wait_s <= 0:
                raise StillInFlight(f"{self._origin.name}: not sent in time (linger)", self)
            wake = Wake()
            with self._condition:
                is_parked = self.gathering is None and self.listen(wake)
            if is_parked:
                wake.wait(wait_s)
                with self._condition:
                    self.ignore(wake)
        if self._state != FINISHED:
            super()._wait(None if deadline is None else max(0.0, deadline - time.monotonic()))

    @property
    def record(self) -> Sequence[Any] | None:
        return self.gathering.record if self.gathering is not None else None

    @property
    def size(self) -> int:
        return self.gathering.size if self.gathering is not None else 0

    def again(self, reaper: Reaper, origin: Origin) -> tuple[Ticket, Ticket]:
        share = Share(reaper, origin, self.first, self.count)
        return Gathering(reaper, origin, self.record, self.size, [share]), share

    def forget(self) -> None:
        """Nothing: the record belongs to the other shares too."""


class Gathering(Ticket):
    """The batch that several shares are in: settles them all."""

    def __init__(
        self, reaper: Reaper, origin: Origin, record: Sequence[Any] | None, size: int, shares: Sequence[Share]
    ) -> None:
        super().__init__(reaper, origin, record, size)
        self.shares = shares

    def announce(self) -> None:
        """It is in the lane: whoever waits for a share can reap for it from now on."""
        with self._condition:
            for share in self.shares:
                share.gathering = self
                for wake in share._wakes or ():
                    wake.ring()

    settle = Answer.settle

    def _finish(self, status: int, detail: int, value: int, argument: int) -> bool:
        flags = argument & FLAG_DUPLICATE
        has_callbacks = False
        for share in self.shares:
            share._exception = self._exception
            has_callbacks |= share._finish(status, detail, value + share.first, share.count | flags)
        self._is_seen = True  # through the shares
        return super()._finish(status, detail, value, argument) or has_callbacks

    def run_callbacks(self) -> None:
        super().run_callbacks()
        for share in self.shares:
            share.run_callbacks()
