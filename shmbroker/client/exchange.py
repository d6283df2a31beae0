"""Requests and replies over one socket, one at a time: what a local connection and one over TCP have in common.

Owns the socket and the codec. Requests of several threads queue on a lock. A reply that did not come in time is owed:
the next request first waits for it and drops it, so that the stream stays in step. When the peer ends, so does the
exchange, for good: every later request raises what ended it.

A child of fork() must not use it: the module marks every exchange there, and each use raises.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from typing import Any

import numpy as np

from shmbroker.errors import (
    BrokerGone,
    ClientMistake,
    Closed,
    OutcomeUnknown,
    ShmbrokerError,
    WaitTimeout,
    error_from,
)
from shmbroker.shm.doorbell import Doorbell
from shmbroker.wire.bodies import Request
from shmbroker.wire.codes import Code
from shmbroker.wire.connection import Answer, ClientConnection, ConnectionFault
from shmbroker.wire.frame import Eviction
from shmbroker.wire.local import LocalCode
from shmbroker.wire.system import Ping

FOREVER_S = 3e8
"""What a timeout of None means: ten years."""
PING_REPLY_S = 5.0
READS = frozenset(
    {
        *(code for code in Code if code.name.startswith("GET_")),
        *(Code.PING, Code.DESCRIBE_OPTIONS),
        *(LocalCode.HELLO, LocalCode.STATS, LocalCode.LOGS, LocalCode.CHECK_USER),
    }
)
"""Requests that change nothing: where one of them gets no reply, nothing is unknown."""


def deadline_of(timeout: float | None) -> float:
    """The moment (time.monotonic) at which ``timeout`` seconds from now are over. None and infinity are for ever, as is
    all that sockets and locks cannot count."""
    return time.monotonic() + (FOREVER_S if timeout is None else min(checked_seconds(timeout), FOREVER_S))


def checked_seconds(timeout: float) -> float:
    """Raises ClientMistake where it is no number of seconds."""
    if not isinstance(timeout, int | float | np.number) or timeout != timeout:
        raise ClientMistake(f"timeout: seconds as a number, or None, not {timeout!r}")
    return timeout


class Exchange:
    """A socket to a broker. Thread-safe; one request at a time. ``name`` is what errors call the broker."""

    def __init__(self, connected: socket.socket, codec: ClientConnection, name: str) -> None:
        self.name = name
        self.refusal: ShmbrokerError | None = None
        """Raised by every request, once set."""
        self.is_foreign = False
        """Whether this is a child of fork(), and the connection its parent's."""
        self.used_at = time.monotonic()
        """When the last reply came."""
        self._lock = threading.Lock()
        self._codec = codec
        self._owed = False
        self._on_refusal: list[weakref.WeakMethod[Callable[[ShmbrokerError], None]]] = []
        self._socket = connected
        _living.add(self)

    # --- requests ----------------------------------------------------------------------------------------------------
    def request(self, request: Request, deadline: float) -> Any:
        """The decoded reply. Raises what the broker answered; WaitTimeout where nothing was sent, or nothing
        was to change, OutcomeUnknown where no reply came in time to anything else, BrokerGone."""
        if self.refusal is not None:
            raise self.refusal
        if not self._lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise WaitTimeout("another request of this client is still waiting for its reply; nothing was sent")
        try:
            return self._value_of(self._exchange(request, deadline))
        finally:
            self._lock.release()

    def _exchange(self, request: Request, deadline: float) -> Answer:
        """Holding the lock: sends, and waits for the answer."""
        if self.refusal is not None:
            raise self.refusal
        if time.monotonic() >= deadline:
            raise WaitTimeout(f"{type(request).__name__}: no time left; nothing was sent")
        if self._owed:
            self._settle_debt(deadline)
        try:
            self._send(self._frame_of(request), deadline)
            self._owed = True
            answer = self._receive(deadline, type(request).__name__)
        except OutcomeUnknown as error:
            if request.CODE not in READS:
                raise
            if self.refusal is not None:
                raise self.refusal from error
            raise WaitTimeout(f"{error}; it was to change nothing") from error
        self._owed = False
        self.used_at = time.monotonic()
        return answer

    def _frame_of(self, request: Request) -> bytes:
        """Raises ClientMistake where a value is not of the type that the wire has for it."""
        try:
            return self._codec.request(request)
        except (struct.error, TypeError, AttributeError, OverflowError) as error:
            given = {each.name: getattr(request, each.name) for each in fields(request)}  # type: ignore[arg-type]
            kinds = ", ".join(f"{name}: {type(value).__name__}" for name, value in given.items())
            text = f"{type(request).__name__}({kinds}): one of these is of a wrong type ({error})"
            raise ClientMistake(text) from error

    def _value_of(self, answer: Answer) -> Any:
        """What was asked for. An eviction ends the session, and with it the exchange."""
        if not answer.status:
            return answer.value
        error = error_from(answer.status, answer.text)
        if isinstance(answer.header, Eviction):
            self._fail(error)
        raise error

    def ping_if_idle(self, idle_s: float) -> None:
        """A sign of life where nothing was said for so long and nobody is just talking. Never raises."""
        if self.refusal is not None or time.monotonic() - self.used_at < idle_s or not self._lock.acquire(False):
            return
        try:
            self._value_of(self._exchange(Ping(), time.monotonic() + PING_REPLY_S))
        except ShmbrokerError:
            pass  # the next request says it to somebody who can act
        finally:
            self._lock.release()

    def _settle_debt(self, deadline: float) -> None:
        try:
            self._receive(deadline, "an earlier request")
        except OutcomeUnknown:
            raise WaitTimeout("an earlier request is still without its reply; nothing was sent") from None
        self._owed = False

    def _send(self, frame: bytes, deadline: float) -> None:
        view = memoryview(frame)
        try:
            while view:
                self._socket.settimeout(max(0.001, deadline - time.monotonic()))
                view = view[self._socket.send(view) :]
        except TimeoutError:
            self._fail(BrokerGone("the broker does not read its socket: a request was sent in part"))
            raise OutcomeUnknown("the time ran out while the request was being sent") from None
        except OSError as error:
            raise self._lost(error) from error

    def _receive(self, deadline: float, what: str) -> Answer:
        while True:
            answer = self._codec.next_answer()
            if isinstance(answer, ConnectionFault):
                raise self._fail(BrokerGone(f"the broker does not speak the protocol: {answer.fault}"))
            if answer is not None:
                return answer
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise OutcomeUnknown(f"{what}: no reply from the broker in time")
            self._socket.settimeout(remaining)
            try:
                is_open = self._take()
            except TimeoutError:
                continue
            except OSError as error:
                raise self._lost(error) from error
            if not is_open:
                raise self._lost(None)

    def _take(self) -> bool:
        """Receives what is there into the codec. False at the end of the stream."""
        size = self._socket.recv_into(self._codec.get_buffer())
        self._codec.buffer_updated(size)
        return size > 0

    def _lost(self, error: OSError | None) -> ShmbrokerError:
        """The broker's end of the socket is closed. With a reply owed, what was asked for may have been done."""
        reason = f": {error.strerror}" if error is not None and error.strerror else ""
        gone = BrokerGone(f"the broker at {self.name} has ended{reason}")
        self._fail(gone)
        if self._owed:
            return OutcomeUnknown(f"the broker at {self.name} ended before it answered")
        return gone

    # --- waiting for messages ----------------------------------------------------------------------------------------
    def watch(self, log_ids: list[int], deadline: float) -> tuple[int, Doorbell]:
        """A bell that rings when something may have become visible in one of these logs, and the number of it."""
        raise NotImplementedError

    def unwatch(self, watch_id: int, deadline: float) -> None:
        """Gives the bell up."""
        raise NotImplementedError

    # --- life --------------------------------------------------------------------------------------------------------
    @property
    def alive(self) -> bool:
        """Whether the broker still holds its end. Any thread, at any time; one system call."""
        descriptor = self._socket.fileno()
        if self.refusal is not None or descriptor < 0:
            return False
        # Not recv with MSG_PEEK: a socket with a timeout waits for something to read first.
        watcher = select.poll()
        watcher.register(descriptor, select.POLLRDHUP)
        return not watcher.poll(0)

    def on_refusal(self, method: Callable[[ShmbrokerError], None]) -> None:
        """Has a bound method called with the error when the connection can no longer be used."""
        self._on_refusal.append(weakref.WeakMethod(method))

    def _fail(self, error: ShmbrokerError) -> ShmbrokerError:
        if self.refusal is None:
            self.refusal = error
            for reference in self._on_refusal:
                method = reference()
                if method is not None:
                    method(error)
        return error

    def close(self) -> None:
        """Closes the socket: the broker takes back everything that it granted."""
        self._fail(Closed("this client is closed"))
        with suppress(OSError):  # the broker may have ended first
            self._socket.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._socket.close()

    def forked(self) -> None:
        """Called in a child of fork(): nothing here may be used, since the parent uses it. Takes no lock."""
        self.is_foreign = True
        self._fail(ClientMistake("this client was made before fork(): make a new one in the child process"))
        with suppress(OSError):
            self._socket.close()  # the parent's descriptor stays open


_living: weakref.WeakSet[Exchange] = weakref.WeakSet()


def _after_fork() -> None:
    for exchange in list(_living):
        exchange.forked()


os.register_at_fork(after_in_child=_after_fork)
