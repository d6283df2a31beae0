"""The connection of a local client to the front: one Unix socket, Iggy frames, one request at a time.

Owns the socket and what came over it (descriptors are handed on at once). Requests of several threads queue on a lock.
A reply that did not come in time is owed: the next request first waits for it and drops it, so that the stream stays in
step. When the front dies the socket ends, and with it everything that was granted over it (rule 7).

A child of fork() must not use it: the module marks every connection there, and each use raises.
"""

from __future__ import annotations

import array
import os
import secrets
import select
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from shmbroker.errors import (
    BrokerGone,
    ClientMistake,
    Closed,
    OutcomeUnknown,
    ShmbrokerError,
    Unavailable,
    WaitTimeout,
    error_from,
)
from shmbroker.shm.doorbell import Doorbell, NamedDoorbell
from shmbroker.shm.lane import LaneClient
from shmbroker.shm.region import Region
from shmbroker.wire import local
from shmbroker.wire.commands import Request
from shmbroker.wire.connection import Answer, ClientConnection, ConnectionFault
from shmbroker.wire.local import LOCAL_SESSION

SOCKET_NAME = "broker.sock"
RUNTIME_FILE_NAME = "runtime"
FOREVER_S = 3e8
"""What a timeout of None means: ten years."""
BACKLOG_PAUSE_S = 0.01
"""Between two tries to connect while the front's backlog is full."""
DESCRIPTORS_MAX = 2
RECEIVE_SIZE = 64 * 1024
_TIMEVAL = struct.Struct("@ll")

R = TypeVar("R")


def deadline_of(timeout: float | None) -> float:
    """The moment (time.monotonic) at which ``timeout`` seconds from now are over. None and infinity are for ever, as is
    all that sockets and locks cannot count."""
    return time.monotonic() + (FOREVER_S if timeout is None else min(timeout, FOREVER_S))


def runtime_directory_of(data: str) -> str:
    """Where the broker of this data directory has its shared memory. Raises Unavailable where none was started."""
    path = os.path.join(data, RUNTIME_FILE_NAME)
    try:
        with open(path, encoding="utf-8") as file:
            name = file.read().strip()
    except OSError as error:
        raise Unavailable(
            f"{data}: no broker has been started here ({path}: {error.strerror}). Start one:"
            f" shmbroker serve --data {data}"
        ) from error
    except UnicodeDecodeError:
        name = ""
    if not os.path.isabs(name) or "\0" in name:
        raise Unavailable(
            f"{path} is damaged: it names no directory. A broker writes it anew: shmbroker serve --data {data}"
        )
    return name


class Connection:
    """A socket to the front. Thread-safe; one request at a time."""

    def __init__(self, data: str, *, version: str, timeout: float) -> None:
        """Connects and says hello. Raises Unavailable where no broker answers for ``data`` within ``timeout`` s."""
        deadline = deadline_of(timeout)
        self.data = os.path.abspath(data)
        self.refusal: ShmbrokerError | None = None
        """Raised by every request, once set."""
        self.is_foreign = False
        """Whether this is a child of fork(), and the connection its parent's."""
        self._lock = threading.Lock()
        self._codec = ClientConnection(secrets.randbits(127) + 1, LOCAL_SESSION)
        self._descriptors: list[int] = []
        self._owed = False
        self._on_refusal: list[weakref.WeakMethod[Callable[[ShmbrokerError], None]]] = []
        self._socket = _connect(self.data, deadline)
        _living.add(self)
        try:
            reply, _ = self.call(local.Hello(version, os.getpid()), deadline)
        except BaseException:
            self.close()
            raise
        assert isinstance(reply, local.HelloReply)
        self.hello = reply

    # --- requests ----------------------------------------------------------------------------------------------------
    def request(self, request: Request, deadline: float) -> Any:
        """The decoded reply. Raises what the broker answered, or as :meth:`call`."""
        value, descriptors = self.call(request, deadline)
        for fd in descriptors:
            os.close(fd)
        return value

    def call(self, request: Request, deadline: float) -> tuple[Any, list[int]]:
        """The decoded reply, and the descriptors that came with it, which are the caller's now.

        Raises WaitTimeout where nothing was sent, OutcomeUnknown where no reply came in time, BrokerGone.
        """
        if self.refusal is not None:
            raise self.refusal
        if not self._lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise WaitTimeout("another request of this client is still waiting for its reply; nothing was sent")
        try:
            if self.refusal is not None:
                raise self.refusal
            if time.monotonic() >= deadline:
                raise WaitTimeout(f"{type(request).__name__}: no time left; nothing was sent")
            if self._owed:
                self._settle_debt(deadline)
            frame = self._codec.request(request)
            self._send(frame, deadline)
            self._owed = True
            answer = self._receive(deadline, type(request).__name__)
            self._owed = False
            descriptors, self._descriptors = self._descriptors, []
        finally:
            self._lock.release()
        if answer.status:
            _close_all(descriptors)
            raise error_from(answer.status, answer.text)
        return answer.value, descriptors

    def _settle_debt(self, deadline: float) -> None:
        try:
            self._receive(deadline, "an earlier request")
        except OutcomeUnknown:
            raise WaitTimeout("an earlier request is still without its reply; nothing was sent") from None
        self._owed = False
        _close_all(self._descriptors)
        self._descriptors = []

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
                data, ancillary, _, _ = self._socket.recvmsg(
                    RECEIVE_SIZE, socket.CMSG_SPACE(DESCRIPTORS_MAX * 4), socket.MSG_CMSG_CLOEXEC
                )
            except TimeoutError:
                continue
            except OSError as error:
                raise self._lost(error) from error
            for level, kind, payload in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    self._descriptors += array.array("i", payload[: len(payload) // 4 * 4])
            if not data:
                raise self._lost(None)
            self._codec.feed(data)

    def _lost(self, error: OSError | None) -> ShmbrokerError:
        """The front's end of the socket is closed. With a reply owed, what was asked for may have been done."""
        reason = f": {error.strerror}" if error is not None and error.strerror else ""
        gone = BrokerGone(f"the broker at {self.data} has ended{reason}")
        self._fail(gone)
        if self._owed:
            return OutcomeUnknown(f"the broker at {self.data} ended before it answered")
        return gone

    # --- life --------------------------------------------------------------------------------------------------------
    @property
    def alive(self) -> bool:
        """Whether the front still holds its end. Any thread, at any time; one system call."""
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
        """Closes the socket: the front takes back everything that it granted."""
        self._fail(Closed("this client is closed"))
        with suppress(OSError):  # the front may have ended first
            self._socket.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._socket.close()
            _close_all(self._descriptors)
            self._descriptors = []

    def forked(self) -> None:
        """Called in a child of fork(): nothing here may be used, since the parent uses it. Takes no lock."""
        self.is_foreign = True
        self._fail(ClientMistake("this client was made before fork(): make a new one in the child process"))
        with suppress(OSError):
            self._socket.close()  # the parent's descriptor stays open

    # --- what is granted ---------------------------------------------------------------------------------------------
    def open_lane(self, worker: int, size: int, deadline: float) -> tuple[LaneClient, Doorbell, Doorbell]:
        """A lane to ``worker``, its completion bell, and the worker's doorbell. WaitTimeout where there was no time."""
        try:
            reply, descriptors = self.call(local.OpenLane(worker, size, False), deadline)
        except OutcomeUnknown as error:
            raise WaitTimeout(f"no lane to worker {worker} in time; nothing was sent through one") from error
        assert isinstance(reply, local.OpenLaneReply)
        if len(descriptors) != 1 or reply.completion is None:
            _close_all(descriptors)
            raise BrokerGone(f"the broker granted a lane with {len(descriptors)} descriptors")
        region = Region.attach(descriptors[0])
        bell = doorbell = None
        try:
            bell = self._open_semaphore(reply.completion, deadline)
            doorbell = NamedDoorbell.open(reply.doorbell)
            return LaneClient(region, doorbell), bell, doorbell
        except BaseException as error:
            for each in (region, bell, doorbell):
                if each is not None:
                    each.close()
            if isinstance(error, FileNotFoundError):
                raise Unavailable(f"worker {worker} ended while a lane to it was being opened") from error
            raise

    def close_lane(self, lane_id: int, deadline: float) -> None:
        self.request(local.CloseLane(lane_id), deadline)

    def watch(self, log_ids: list[int], deadline: float) -> tuple[int, Doorbell]:
        """A bell that rings when something becomes visible in one of these logs, and the number of the watch."""
        reply = self.request(local.Watch(log_ids, False), deadline)
        assert isinstance(reply, local.WatchReply)
        if reply.semaphore is None:
            raise BrokerGone("the broker granted a watch without a bell")
        return reply.watch_id, self._open_semaphore(reply.semaphore, deadline)

    def unwatch(self, watch_id: int, deadline: float) -> None:
        self.request(local.Unwatch(watch_id), deadline)

    def _open_semaphore(self, name: str, deadline: float) -> NamedDoorbell:
        """Opens a semaphore that the front named for us, and tells it that the name may go."""
        try:
            bell = NamedDoorbell.open_named(name)
        except FileNotFoundError as error:
            raise Unavailable(f"the doorbell {name} is gone") from error
        try:
            self.request(local.Confirm([name]), deadline)
        except BaseException:
            bell.close()
            raise
        return bell


def _connect(data: str, deadline: float) -> socket.socket:
    path = os.path.join(runtime_directory_of(data), SOCKET_NAME)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        while True:
            try:
                connection.connect(path)
                break
            except BlockingIOError:  # Too many others wait to be let in, and the kernel does not queue this one.
                if time.monotonic() >= deadline:
                    raise
                time.sleep(BACKLOG_PAUSE_S)
    except BlockingIOError as error:
        connection.close()
        raise Unavailable(
            f"{data}: the broker at {path} let nobody in within the time: too many others connect, or it does not go on"
        ) from error
    except OSError as error:
        connection.close()
        raise Unavailable(
            f"{data}: no broker answers at {path} ({error.strerror or error}). Start one: shmbroker serve --data {data}"
        ) from error
    return connection


def _close_all(descriptors: list[int]) -> None:
    for fd in descriptors:
        os.close(fd)


_living: weakref.WeakSet[Connection] = weakref.WeakSet()


def _after_fork() -> None:
    for connection in list(_living):
        connection.forked()


os.register_at_fork(after_in_child=_after_fork)
