"""One connection of a local client: its socket, what it may touch, and the requests it makes, one after the other.

The peer is who the kernel says it is: only users in the broker's list get further than their first request, and the
first request must be HELLO (or an Iggy ping). A session owns nothing that outlives its socket: lanes, watches and names
of doorbells go with it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from shmbroker.errors import ErrorCode, ShmbrokerError, Unauthorized, Unavailable, text_of
from shmbroker.front.handlers import HANDLERS
from shmbroker.front.reply import WithDescriptors
from shmbroker.shm.doorbell import sweep_names
from shmbroker.wire.codes import Code
from shmbroker.wire.commands import encode_reply
from shmbroker.wire.connection import ConnectionFault, Incoming, ServerConnection
from shmbroker.wire.local import LocalCode

if TYPE_CHECKING:
    from shmbroker.front.broker import Broker

RECEIVE_SIZE: Final = 65_536
PEER_CREDENTIALS: Final = struct.Struct("iII")
"""struct ucred: process, user, group."""
BEFORE_HELLO: Final = frozenset({Code.PING, LocalCode.HELLO})
LOG: Final = logging.getLogger("shmbroker.front")


class Session:
    """Owned by the front's loop."""

    def __init__(self, broker: Broker, number: int, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.broker = broker
        self.number = number
        self.prefix = f"{broker.places.prefix}{number}-"
        """How the names of this connection's doorbells begin."""
        self.rights: dict[int, int] = {}
        """What it may do with which log."""
        self.introduced: dict[int, int] = {}
        """For each worker that knows this session, the run of the worker."""
        self.greeted = False
        self.process, self.uid, _ = PEER_CREDENTIALS.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER_CREDENTIALS.size)
        )
        self._socket = connection
        self._wire = ServerConnection()

    async def run(self) -> None:
        """Until the client is gone or breaks the protocol."""
        loop = asyncio.get_running_loop()
        try:
            while data := await loop.sock_recv(self._socket, RECEIVE_SIZE):
                self._wire.feed(data)
                while (incoming := self._wire.next_request()) is not None:
                    if isinstance(incoming, ConnectionFault):
                        LOG.warning("connection %d of process %d: %s", self.number, self.process, incoming.fault)
                        return
                    await self._serve(incoming)
        except (ConnectionError, BrokenPipeError):
            pass
        finally:
            self._socket.close()
            self.broker.session_ended(self)
            sweep_names(self.prefix)

    async def _serve(self, incoming: Incoming) -> None:
        """One request, from its decoding to the last byte of its reply."""
        try:
            answer = await self._answer(incoming)
        except ShmbrokerError as error:
            await self._send(self._wire.refusal(incoming, error.number, str(error)))
            return
        except Exception:
            LOG.exception("connection %d: request %d failed", self.number, incoming.code)
            await self._send(self._wire.refusal(incoming, ErrorCode.ERROR, "the broker failed to answer: see its log"))
            return
        if isinstance(answer, WithDescriptors):
            try:
                await self._send(self._wire.reply(incoming, encode_reply(answer.reply)), answer.fds)
            finally:
                answer.sent()
        else:
            await self._send(self._wire.reply(incoming, encode_reply(answer)))

    async def _answer(self, incoming: Incoming) -> Any:
        if self.uid != os.getuid() and not self.broker.any_user:
            raise Unauthorized(f"user {self.uid} may not use the broker of user {os.getuid()}")
        if incoming.spec is None:
            raise _refusal(ErrorCode.INVALID_COMMAND, "there is no such command")
        if not self.greeted and incoming.code not in BEFORE_HELLO:
            raise _refusal(ErrorCode.UNAUTHENTICATED, "the first request must be HELLO")
        if isinstance(incoming.request, ErrorCode):
            raise _refusal(incoming.request)
        if self.broker.stopping:
            raise Unavailable("the broker is stopping", number=ErrorCode.BROKER_STOPPING)
        handler = HANDLERS.get(incoming.code)
        if handler is None:
            raise _refusal(ErrorCode.FEATURE_UNAVAILABLE)
        return await handler(self, incoming.request)

    async def _send(self, data: bytes, fds: Sequence[int] = ()) -> None:
        """All of it; the descriptors go with the first byte."""
        loop = asyncio.get_running_loop()
        rest = memoryview(data)
        while fds:
            try:
                rest = rest[socket.send_fds(self._socket, [rest], list(fds)) :]
                break
            except (BlockingIOError, InterruptedError):
                await _writable(loop, self._socket)
        if rest:
            await loop.sock_sendall(self._socket, rest)


async def _writable(loop: asyncio.AbstractEventLoop, connection: socket.socket) -> None:
    ready = asyncio.Event()
    loop.add_writer(connection.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_writer(connection.fileno())


def _refusal(code: ErrorCode, text: str = "") -> ShmbrokerError:
    return ShmbrokerError(text or text_of(code), number=code)
