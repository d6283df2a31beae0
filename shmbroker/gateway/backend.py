"""The way to the broker: an ordinary local client, used from the gateway's threads.

Owns one connection through which partitions are opened and whose lanes carry messages, and CONTROL_COUNT others for
everything else, so that a creation that waits for the disk holds up no message. Everything that a user asks for is
asked as that user (AS_USER): the broker checks at every request whether the user is there and may do it.

Every method that blocks takes a deadline and runs on one of three small executors, never on the loop. Nothing here
connects again: a gateway that lost its way to the broker ends, and the front starts another (workers/http.py).
"""

from __future__ import annotations

import asyncio
import struct
import threading
import time
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import Any, Final, TypeVar

from shmbroker.client.connection import Connection
from shmbroker.client.exchange import READS
from shmbroker.client.lanes import Port
from shmbroker.errors import (
    BrokerGone,
    ClientMistake,
    Closed,
    ErrorCode,
    OutcomeUnknown,
    ShmbrokerError,
    WaitTimeout,
    error_from,
)
from shmbroker.gateway.access import Identity
from shmbroker.wire import local
from shmbroker.wire.bodies import Request
from shmbroker.wire.codes import Code
from shmbroker.wire.commands import decode_reply
from shmbroker.wire.primitives import Identifier, Malformed

CONTROL_COUNT: Final = 3
CARRIER_COUNT: Final = 4
WAITER_COUNT: Final = 8
CONNECT_S: Final = 30.0
R = TypeVar("R")


class Backend:
    """The gateway's connections. Thread-safe."""

    def __init__(self, data: str, on_end: Callable[[], None]) -> None:
        """Connects. Raises Unavailable where no broker answers for the data directory.

        ``on_end`` is called, on any thread, when a connection cannot be used any more: there is no way on then.
        """
        self._on_end = on_end
        self._is_closed = False
        package = version("shmbroker")
        self._main = Connection(data, version=package, timeout=CONNECT_S)
        self._controls = deque(Connection(data, version=package, timeout=CONNECT_S) for _ in range(CONTROL_COUNT))
        self._every = (self._main, *self._controls)
        self._ports: dict[int, Port] = {}
        self._ports_lock = threading.Lock()
        self._controllers = ThreadPoolExecutor(CONTROL_COUNT, thread_name_prefix="control")
        self._carriers = ThreadPoolExecutor(CARRIER_COUNT, thread_name_prefix="carrier")
        self._waiters = ThreadPoolExecutor(WAITER_COUNT, thread_name_prefix="waiter")
        for connection in self._every:
            connection.on_refusal(self._refuse)

    # --- from the loop -----------------------------------------------------------------------------------------------
    async def command(self, user: Identity, request: Request, deadline: float) -> Any:
        """The decoded reply to a command carried out as ``user``. Raises what the broker answered."""
        return await self._control(lambda connection: _as_user(connection, user, request, deadline))

    async def ask(self, request: Request, deadline: float) -> Any:
        """The same, as the broker's own user."""
        return await self._control(lambda connection: connection.request(request, deadline))

    async def carry(self, work: Callable[[], R]) -> R:
        """Runs ``work``, which encodes, decodes or reads messages, on a thread for such."""
        return await asyncio.get_running_loop().run_in_executor(self._carriers, work)

    async def wait_for(self, work: Callable[[], R]) -> R:
        """Runs ``work``, which waits for a worker's answer, on a thread for such: it may take as long as a disk."""
        return await asyncio.get_running_loop().run_in_executor(self._waiters, work)

    async def _control(self, work: Callable[[Connection], R]) -> R:
        def run() -> R:
            connection = self._controls.pop()  # as many threads as connections: there is one
            try:
                return work(connection)
            finally:
                self._controls.append(connection)

        return await asyncio.get_running_loop().run_in_executor(self._controllers, run)

    # --- on a carrier ------------------------------------------------------------------------------------------------
    def open_partition(
        self, user: Identity, stream: Identifier, topic: Identifier, partition: int, rights: list[str], deadline: float
    ) -> local.OpenPartitionReply:
        """Opens a partition for this gateway's lanes, if ``user`` may. Raises NotFound, Unauthorized, WaitTimeout."""
        request = local.OpenPartitionAs(user.user_id, user.created_at_us, stream, topic, partition, rights)
        try:
            reply = self._main.request(request, deadline)
        except OutcomeUnknown as error:  # opening twice is fine, so nothing is unknown
            raise WaitTimeout(f"{stream}/{topic}, partition {partition}: the broker did not open it in time") from error
        assert isinstance(reply, local.OpenPartitionReply)
        return reply

    def check_sender(self, user: Identity, stream: Identifier, topic: Identifier, deadline: float) -> None:
        """Raises Unauthorized unless ``user`` may send to the topic."""
        request = local.CheckUser(user.user_id, user.created_at_us, Code.SEND_MESSAGES, stream, topic)
        try:
            self._main.request(request, deadline)
        except OutcomeUnknown as error:
            raise WaitTimeout(f"{stream}/{topic}: the broker did not answer in time") from error

    def ask_here(self, request: Request, deadline: float) -> Any:
        """The reply to a command of the broker's own user, on this thread."""
        return self._main.request(request, deadline)

    def port(self, worker: int) -> Port:
        """The lane to a worker; confirmations are taken by a thread of their own, since nobody waits for them here."""
        with self._ports_lock:
            port = self._ports.get(worker)
            if port is None:
                port = self._ports[worker] = Port(self._main, worker, is_attentive=True)
                port.refusal = self._main.refusal
            return port

    # --- life --------------------------------------------------------------------------------------------------------
    def _refuse(self, error: ShmbrokerError) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for port in list(self._ports.values()):
            if port.refusal is None:
                port.refusal = error
        self._on_end()

    def close(self) -> None:
        """Ends the connections; what is under way fails."""
        self._is_closed = True
        executors = (self._controllers, self._carriers, self._waiters)
        for executor in executors:
            executor.shutdown(wait=False, cancel_futures=True)
        for connection in self._every:
            connection.close()
        for port in list(self._ports.values()):
            port.close(Closed("the gateway stops"))
        for executor in executors:
            executor.shutdown()


def _as_user(connection: Connection, user: Identity, request: Request, deadline: float) -> Any:
    try:
        body = request.encode()
    except Malformed as malformed:
        raise error_from(malformed.code, malformed.fault) from None
    except struct.error as error:
        raise ClientMistake(f"a number of the request is out of range: {error}") from None
    asked = local.AsUser(user.user_id, user.created_at_us, request.CODE, b64encode(body).decode("ascii"))
    try:
        reply = connection.request(asked, deadline)
    except WaitTimeout:
        raise
    except OutcomeUnknown as error:
        if request.CODE in READS:
            raise WaitTimeout(f"{type(request).__name__}: no reply from the broker in time") from error
        raise OutcomeUnknown(f"{type(request).__name__}: no reply from the broker in time") from error
    value = decode_reply(request.CODE, b64decode(reply.body))
    if isinstance(value, ErrorCode):
        raise BrokerGone(f"the reply to {type(request).__name__} makes no sense")
    return value


def remaining_s(deadline: float) -> float:
    """Seconds until ``deadline`` (time.monotonic), not below 0."""
    return max(0.0, deadline - time.monotonic())
