"""The connection of a local client: a Unix socket, on which descriptors travel too.

The peer is who the kernel says it is: only the broker's own user gets further than its first request, and the first
request must be HELLO (or an Iggy ping). Lanes, watches and names of doorbells go with the socket.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from shmbroker.core.users import ROOT_ID
from shmbroker.errors import ErrorCode, Unauthorized
from shmbroker.front.reply import Answer
from shmbroker.front.session import LOG, TRANSPORT_TCP, Session, refusal
from shmbroker.shm.doorbell import sweep_names
from shmbroker.wire.codes import Code
from shmbroker.wire.connection import ConnectionFault
from shmbroker.wire.local import LocalCode

if TYPE_CHECKING:
    from shmbroker.front.broker import Broker

RECEIVE_SIZE: Final = 65_536
PEER_CREDENTIALS: Final = struct.Struct("iII")
"""struct ucred: process, user, group."""
BEFORE_HELLO: Final = frozenset({Code.PING, LocalCode.HELLO})


class LocalSession(Session):
    """Owned by the front's loop."""

    is_local = True

    def __init__(self, broker: Broker, number: int, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.process, self.uid, _ = PEER_CREDENTIALS.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER_CREDENTIALS.size)
        )
        super().__init__(broker, number, transport=TRANSPORT_TCP, address=f"process {self.process}")
        self.is_owner = self.uid == os.getuid()
        self.user = broker.keeper.catalog.users.get(ROOT_ID)
        self.prefix = f"{broker.places.prefix}{number}-"
        """How the names of this connection's doorbells begin."""
        self.rights: dict[int, int] = {}
        """What it may do with which log."""
        self.introduced: dict[int, int] = {}
        """For each worker that knows this session, the run of the worker."""
        self.greeted = False
        self._socket = connection

    async def run(self) -> None:
        """Until the client is gone or breaks the protocol."""
        loop = asyncio.get_running_loop()
        try:
            while data := await loop.sock_recv(self._socket, RECEIVE_SIZE):
                self.wire.feed(data)
                while (incoming := self.wire.next_request()) is not None:
                    if isinstance(incoming, ConnectionFault):
                        LOG.warning("connection %d of process %d: %s", self.number, self.process, incoming.fault)
                        return
                    answer = await self.answer(incoming)
                    await self._send(answer)
                    if answer.ends:
                        return
        except (ConnectionError, BrokenPipeError):
            pass
        finally:
            self._socket.close()
            self.ended()
            sweep_names(self.prefix)

    def check_peer(self, code: int) -> None:
        """The kernel says who it is; HELLO says that it speaks our version."""
        if not self.is_owner:
            raise Unauthorized(
                f"user {self.uid} may not use the shared memory of user {os.getuid()}: connect over TCP, by"
                " iggy://user:password@host:port (the broker serves it with `--tcp HOST:PORT`)"
            )
        if not self.greeted and code not in BEFORE_HELLO:
            raise refusal(ErrorCode.UNAUTHENTICATED, "the first request must be HELLO")

    def lose(self, log_ids: Iterable[int]) -> None:
        """These logs are gone: the ids are never used again, and a session may live for years."""
        for log_id in log_ids:
            self.rights.pop(log_id, None)

    async def _send(self, answer: Answer) -> None:
        """All of it; the descriptors go with the first byte."""
        loop = asyncio.get_running_loop()
        rest = memoryview(b"".join(answer.buffers))
        try:
            while answer.fds:
                try:
                    rest = rest[socket.send_fds(self._socket, [rest], list(answer.fds)) :]
                    break
                except (BlockingIOError, InterruptedError):
                    await _writable(loop, self._socket)
            if rest:
                await loop.sock_sendall(self._socket, rest)
        finally:
            if answer.sent is not None:
                answer.sent()


async def _writable(loop: asyncio.AbstractEventLoop, connection: socket.socket) -> None:
    ready = asyncio.Event()
    loop.add_writer(connection.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_writer(connection.fileno())
