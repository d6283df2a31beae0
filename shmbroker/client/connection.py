"""The connection of a local client to the front: one Unix socket, Iggy frames, one request at a time.

An :class:`~shmbroker.client.exchange.Exchange` whose replies may come with descriptors, which are handed on at once.
When the front dies the socket ends, and with it everything that was granted over it (rule 7).
"""

from __future__ import annotations

import array
import os
import secrets
import socket
import struct
import time
from typing import Any

from shmbroker.client.exchange import FOREVER_S, Exchange, deadline_of
from shmbroker.errors import BrokerGone, DiskFailed, OutcomeUnknown, Unavailable, WaitTimeout
from shmbroker.limits import CONTROL_FRAME_SIZE_MAX
from shmbroker.paths import RUNTIME_NAME_FILE, read_runtime_name
from shmbroker.shm.doorbell import Doorbell, NamedDoorbell
from shmbroker.shm.lane import LaneClient
from shmbroker.shm.region import Region
from shmbroker.wire import local
from shmbroker.wire.commands import Request
from shmbroker.wire.connection import ClientConnection
from shmbroker.wire.local import LOCAL_SESSION

__all__ = ["FOREVER_S", "Connection", "deadline_of", "runtime_directory_of"]

SOCKET_NAME = "broker.sock"
BACKLOG_PAUSE_S = 0.01
"""Between two tries to connect while the front's backlog is full."""
DESCRIPTORS_MAX = 2
RECEIVE_SIZE = 64 * 1024
_TIMEVAL = struct.Struct("@ll")


def runtime_directory_of(data: str) -> str:
    """Where the broker of this data directory has its shared memory. Raises Unavailable where none was started."""
    path = os.path.join(data, RUNTIME_NAME_FILE)
    try:
        return read_runtime_name(data)
    except OSError as error:
        raise Unavailable(
            f"{data}: no broker has been started here ({path}: {error.strerror}). Start one:"
            f" shmbroker serve --data {data}"
        ) from error
    except DiskFailed as error:
        raise Unavailable(f"{error}. A broker writes it anew: shmbroker serve --data {data}") from error
    except ValueError:
        raise Unavailable(
            f"{path} is damaged: it names no directory. A broker writes it anew: shmbroker serve --data {data}"
        ) from None


class Connection(Exchange):
    """A socket to the front. Thread-safe; one request at a time."""

    def __init__(self, data: str, *, version: str, timeout: float) -> None:
        """Connects and says hello. Raises Unavailable where no broker answers for ``data`` within ``timeout`` s."""
        deadline = deadline_of(timeout)
        self.data = os.path.abspath(data)
        self._descriptors: list[int] = []
        codec = ClientConnection(secrets.randbits(127) + 1, LOCAL_SESSION, request_size_max=CONTROL_FRAME_SIZE_MAX)
        super().__init__(_connect(self.data, deadline), codec, self.data)
        try:
            reply, _ = self.call(local.Hello(version, os.getpid()), deadline)
        except BaseException:
            self.close()
            raise
        assert isinstance(reply, local.HelloReply)
        self.hello = reply

    # --- requests ----------------------------------------------------------------------------------------------------
    def request(self, request: Request, deadline: float) -> Any:
        value, descriptors = self.call(request, deadline)
        for fd in descriptors:
            os.close(fd)
        return value

    def call(self, request: Request, deadline: float) -> tuple[Any, list[int]]:
        """As :meth:`request`: the decoded reply, and the descriptors that came with it, which are the caller's now."""
        if self.refusal is not None:
            raise self.refusal
        if not self._lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise WaitTimeout("another request of this client is still waiting for its reply; nothing was sent")
        try:
            answer = self._exchange(request, deadline)
            descriptors, self._descriptors = self._descriptors, []
        finally:
            self._lock.release()
        if answer.status:
            _close_all(descriptors)
        return self._value_of(answer), descriptors

    def _settle_debt(self, deadline: float) -> None:
        super()._settle_debt(deadline)
        _close_all(self._descriptors)
        self._descriptors = []

    def _take(self) -> bool:
        data, ancillary, _, _ = self._socket.recvmsg(
            RECEIVE_SIZE, socket.CMSG_SPACE(DESCRIPTORS_MAX * 4), socket.MSG_CMSG_CLOEXEC
        )
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                self._descriptors += array.array("i", payload[: len(payload) // 4 * 4])
        self._codec.feed(data)
        return bool(data)

    def close(self) -> None:
        super().close()
        with self._lock:
            _close_all(self._descriptors)
            self._descriptors = []

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
            bell = self._open_bell(reply.completion, deadline)
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
        if reply.bell is None:
            raise BrokerGone("the broker granted a watch without a bell")
        return reply.watch_id, self._open_bell(reply.bell, deadline)

    def unwatch(self, watch_id: int, deadline: float) -> None:
        self.request(local.Unwatch(watch_id), deadline)

    def _open_bell(self, name: str, deadline: float) -> NamedDoorbell:
        """Opens a bell that the front named for us, and tells it that the name may go."""
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
