"""The sending side of a topic: picks the partition, and lets a route encode and send.

Owns its routes, one for each partition that it has sent to, and what lingers on their way. Thread-safe: threads that
send to different partitions meet only at the lane. Nothing is retried behind the caller's back: what may have happened
raises OutcomeUnknown, and :meth:`Producer.resend` repeats it under the same sequence number, so that the worker can
tell.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from typing import Any, Protocol, Self

import numpy.typing as npt
from xxhash import xxh32_intdigest

from shmbroker.client.connection import deadline_of
from shmbroker.client.exchange import checked_seconds
from shmbroker.client.lanes import Port
from shmbroker.client.linger import Linger
from shmbroker.client.route import IN_FLIGHT_MAX, Route
from shmbroker.client.ticket import Confirmation, Ticket
from shmbroker.errors import BufferFull, ClientMistake, Closed, ErrorCode, InvalidMessage, ShmbrokerError, Unauthorized
from shmbroker.formats.headers import Headers
from shmbroker.limits import BATCH_MESSAGE_COUNT_MAX, BATCH_SIZE_MAX, KIB, MESSAGES_KEY_SIZE_MAX, MIB

KEPT_BLOCK_SIZE = 32 * MIB - 64 * KIB
"""Just below the largest that glibc learns from (DEFAULT_MMAP_THRESHOLD_MAX)."""


class Grantor(Protocol):
    """What a producer needs of its client."""

    def open_route(self, stream: int | str, topic: int | str, partition: int, deadline: float) -> tuple[Port, int]:
        """The port of the partition's worker, and the partition's log id."""

    def forget(self, user: Any) -> None:
        """It has been closed."""

    @property
    def is_foreign(self) -> bool:
        """Whether this is a child of fork(), where nothing of it may be used."""


class Producer:
    """Sends batches to a topic. Made by ``Client.producer``. Thread-safe.

    Every ``timeout`` is in seconds; None means the producer's own. The partition of a batch is ``partition``, or picked
    by the hash of ``key`` (1 to 255 bytes), or else the next one in turn.
    """

    def __init__(
        self,
        grantor: Grantor,
        stream: int | str,
        topic: int | str,
        partition_count: int | None,
        *,
        linger: float,
        batch_count: int,
        batch_size: int,
        max_in_flight: int,
        timeout: float,
    ) -> None:
        _check_options(linger, batch_count, batch_size, max_in_flight)
        _keep_heap()
        self._grantor = grantor
        self._stream = stream
        self._topic = topic
        self.partition_count = partition_count
        """Among so many partitions keys and turns are spread; as it was when the producer was made. None: this user may
        not know."""
        self._timeout = timeout
        self._max_in_flight = max_in_flight
        self._routes: dict[int, Route] = {}
        self._prompt: dict[int | None, Route] = {}
        """The routes again, where one message may take the shortest way: no linger, and not closed."""
        self._opening = threading.Lock()
        self._turn = itertools.count()
        self._is_closed = False
        self._linger = Linger(linger, batch_count, batch_size, timeout) if linger > 0 else None

    # --- sending -----------------------------------------------------------------------------------------------------
    def send(
        self,
        messages: Sequence[bytes],
        *,
        partition: int | None = None,
        key: bytes | str | None = None,
        headers: Sequence[Headers | None] | Headers | None = None,
        ids: Sequence[int] | None = None,
        timeout: float | None = None,
    ) -> Confirmation:
        """Sends one batch and returns when the topic's policy is met for it.

        ``messages``: payloads of 1 to 64,000,000 bytes. ``headers``: one mapping for all of them, or a sequence with
        one (or None) each. ``ids``: a number of 128 bits each; 0 has one made.

        Raises StillInFlight where the time ran out after sending (its ``ticket`` may settle yet), BufferFull where it
        ran out before, OutcomeUnknown where the worker died, and what the broker refused.
        """
        seconds = self._timeout if timeout is None else checked_seconds(timeout)
        prompt = self._prompt.get(partition)
        if prompt is not None and headers is None and ids is None and key is None:
            sent = prompt.put_now(messages, True)
            if sent is not None:
                return sent.result(seconds)
        deadline = deadline_of(seconds)
        route = self._route(partition, key, deadline)
        if self._linger is None:
            ticket = route.put(messages, headers, ids, deadline, True)
        else:
            ticket = self._linger.submit(route, messages, headers, ids, deadline)
        return ticket.result(deadline - time.monotonic())

    def submit(
        self,
        messages: Sequence[bytes],
        *,
        partition: int | None = None,
        key: bytes | str | None = None,
        headers: Sequence[Headers | None] | Headers | None = None,
        ids: Sequence[int] | None = None,
        timeout: float | None = None,
    ) -> Ticket:
        """Sends one batch and returns a future of its confirmation.

        Waits up to ``timeout`` for room, then raises BufferFull.

        With ``linger``, what is submitted within that time for the same partition shares a batch.
        """
        if timeout is not None:
            checked_seconds(timeout)
        prompt = self._prompt.get(partition)
        if prompt is not None and headers is None and ids is None and key is None:
            sent = prompt.put_now(messages, False)
            if sent is not None:
                return sent
        deadline = deadline_of(self._timeout if timeout is None else timeout)
        route = self._route(partition, key, deadline)
        if self._linger is None:
            return route.put(messages, headers, ids, deadline, False)
        return self._linger.submit(route, messages, headers, ids, deadline)

    def send_array(
        self,
        array: npt.NDArray[Any],
        *,
        partition: int | None = None,
        key: bytes | str | None = None,
        timeout: float | None = None,
    ) -> Confirmation:
        """As :meth:`send`, one message for each item of a one-dimensional array, or each row of one of ``uint8``.

        Nothing is done per message. Does not linger.
        """
        deadline = deadline_of(self._timeout if timeout is None else timeout)
        ticket = self._route(partition, key, deadline).put_array(array, deadline, True)
        return ticket.result(deadline - time.monotonic())

    def submit_array(
        self,
        array: npt.NDArray[Any],
        *,
        partition: int | None = None,
        key: bytes | str | None = None,
        timeout: float | None = None,
    ) -> Ticket:
        """As :meth:`send_array`, returning a future of the confirmation."""
        deadline = deadline_of(self._timeout if timeout is None else timeout)
        return self._route(partition, key, deadline).put_array(array, deadline, False)

    def resend(self, ticket: Ticket, *, timeout: float | None = None) -> Ticket:
        """Sends the batch of ``ticket`` again under its own producer id and sequence number; returns a new ticket.

        If the first sending arrived after all, the worker answers with its confirmation (``duplicate``) and appends
        nothing. It remembers the last 256 batches of a producer: send again before going on, or the answer may be
        OutcomeUnknown (request already applied). What was submitted after it may have reached the next worker first: it
        stands before it in the log then. ``ticket`` may come from another producer of the same topic, of a client whose
        broker died. One that is confirmed is returned as it is.
        """
        if ticket.record is None:
            if ticket.done() and ticket.exception() is None:
                return ticket
            raise ClientMistake("this ticket has no batch any more: it was sent again already, or never sent")
        deadline = deadline_of(self._timeout if timeout is None else timeout)
        return self._route(ticket.partition, None, deadline).put_again(ticket, deadline)

    # --- ending ------------------------------------------------------------------------------------------------------
    def flush(self, timeout: float | None = None) -> None:
        """Returns when every ticket so far has met the topic's policy.

        Raises the error of the first that failed and that nobody has asked about; StillInFlight where the time ran out.
        """
        self._check_open()
        self._flush(deadline_of(self._timeout if timeout is None else timeout))

    def _flush(self, deadline: float) -> None:
        if self._linger is not None:
            self._linger.flush(deadline)
        routes = list(self._routes.values())
        targets = [route.sent_count for route in routes]
        for route, target in zip(routes, targets, strict=True):
            route.wait_settled(target, deadline)
        for route in routes:
            failure, route.failure = route.failure, None
            if failure is not None and failure.is_unseen():
                error = failure.exception()
                assert error is not None
                raise error

    def close(self, timeout: float | None = None) -> None:
        """Flushes, raising as :meth:`flush` does, and closes. Closing twice is fine."""
        if self._is_closed:
            return
        self._is_closed = True
        self._prompt = {}
        if self._grantor.is_foreign:
            return
        deadline = deadline_of(self._timeout if timeout is None else timeout)
        try:
            self._flush(deadline)
        finally:
            if self._linger is not None:
                self._linger.stop()
                self._linger.flush(deadline)  # of a submission that came in between
            self._grantor.forget(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        try:
            self.close()
        except ShmbrokerError:
            if error is None:
                raise  # else the caller's own error says more

    # --- routes ------------------------------------------------------------------------------------------------------
    def _route(self, partition: int | None, key: bytes | str | None, deadline: float) -> Route:
        if self._is_closed:
            raise Closed("this producer is closed")
        if partition is None:
            partition = self._pick(key)
        elif key is not None:
            raise ClientMistake("give a partition or a key, not both")
        route = self._routes.get(partition)
        return route if route is not None else self._open_route(partition, deadline)

    def _pick(self, key: bytes | str | None) -> int:
        if self.partition_count is None:
            raise Unauthorized("this user may not see how many partitions there are: say partition= with each batch")
        if not self.partition_count:
            raise ClientMistake("the topic has no partitions", number=ErrorCode.PARTITION_NOT_FOUND)
        if key is None:
            return next(self._turn) % self.partition_count
        if not isinstance(key, str | bytes | bytearray | memoryview):
            raise ClientMistake(f"key: bytes or text, not {type(key).__name__}")
        bytes_of_key = key.encode() if isinstance(key, str) else key
        if not 1 <= len(bytes_of_key) <= MESSAGES_KEY_SIZE_MAX:
            raise InvalidMessage(
                f"a key has 1 to {MESSAGES_KEY_SIZE_MAX} bytes, not {len(bytes_of_key)}",
                number=ErrorCode.INVALID_KEY_VALUE_LENGTH,
            )
        return xxh32_intdigest(bytes_of_key, 0) % self.partition_count

    def _open_route(self, partition: int, deadline: float) -> Route:
        if not self._opening.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise BufferFull("another thread is still opening a partition")
        try:
            route = self._routes.get(partition)
            if route is None:
                port, log_id = self._grantor.open_route(self._stream, self._topic, partition, deadline)
                route = Route(port, log_id, partition, f"{self._stream}/{self._topic}", self._max_in_flight)
                self._routes[partition] = route
                if self._linger is None and not self._is_closed:
                    self._prompt[partition] = route
            return route
        finally:
            self._opening.release()

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed("this producer is closed")
        if self._grantor.is_foreign:
            raise ClientMistake("this producer was made before fork(): make a new one in the child process")


def _keep_heap() -> None:
    """Has the C library keep what batches in flight were made in, instead of giving it back to the system after each.

    Batches of more than 128 KiB would else get new pages from the kernel every time: 20 us of 150 for 1,000 messages of
    100 B, 120 of 590 for 1,000 B. glibc takes the largest block that was freed so far as the measure of what to keep
    (M_MMAP_THRESHOLD in mallopt(3), which Python cannot set). The block is never touched: it takes no memory.
    """
    bytes(KEPT_BLOCK_SIZE)


def _check_options(linger: float, batch_count: int, batch_size: int, max_in_flight: int) -> None:
    options = {"batch_count": batch_count, "batch_size": batch_size, "max_in_flight": max_in_flight}
    for name, value in options.items():
        if not isinstance(value, int):
            raise ClientMistake(f"{name}: a whole number, not {value!r}")
    if not isinstance(linger, int | float) or not 0 <= linger <= 3600:
        raise ClientMistake(f"linger is 0 to 3,600 s, not {linger}")
    if not 1 <= batch_count <= BATCH_MESSAGE_COUNT_MAX:
        raise ClientMistake(f"batch_count is 1 to {BATCH_MESSAGE_COUNT_MAX}, not {batch_count}")
    if not 1 <= batch_size <= BATCH_SIZE_MAX // 2:
        raise ClientMistake(f"batch_size is 1 to {BATCH_SIZE_MAX // 2} bytes of payload, not {batch_size}")
    if not 1 <= max_in_flight <= IN_FLIGHT_MAX:
        raise ClientMistake(f"max_in_flight is 1 to {IN_FLIGHT_MAX} for each partition, not {max_in_flight}")
