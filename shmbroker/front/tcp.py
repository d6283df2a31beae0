"""TCP and TLS connections: bytes into pooled buffers, requests into a session, one answer at a time out again.

A connection holds no memory while nothing is under way: bytes are received into one scratch buffer that all share, and
only what is not yet a whole request is moved to a buffer of the connection's own, from a pool. A batch is whole before
it reaches a lane (rule 16), so a peer that stops halfway holds up nobody.

One request is under way at a time, whatever the peer sends meanwhile: that is bounded, and then not read any more. The
next one is not looked at either before the peer has taken most of the last reply: a slow reader costs one reply.

What keeps strangers and the dead from staying: a frame has a largest size, a small one before the login; a frame that
was begun must go on; who does not log in must at least ping; replies must be taken; the kernel asks whether silent
peers still live. All of it is looked at by one timer for all connections.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from typing import TYPE_CHECKING, Final, cast

from shmbroker.errors import ErrorCode, InvalidConfiguration, ShmbrokerError, Unavailable
from shmbroker.front.polling import REPLY_SIZE_MAX
from shmbroker.front.reply import Answer
from shmbroker.front.session import TRANSPORT_TCP, Session
from shmbroker.limits import FRAME_SIZE_MAX, KIB, MIB, SESSION_COUNT_MAX
from shmbroker.wire.codes import Code
from shmbroker.wire.connection import ConnectionFault, Incoming, ServerConnection
from shmbroker.wire.frame import SIZE_KNOWN_AT, Eviction, EvictionReason, frame_size_of

if TYPE_CHECKING:
    from shmbroker.config import TcpConfig
    from shmbroker.front.broker import Broker

SCRATCH_SIZE: Final = 256 * KIB
BUFFER_SIZE_MIN: Final = 16 * KIB
POOL_SIZE_MAX: Final = 64 * MIB
"""Bytes of free buffers that are kept."""
LOGIN_FRAME_SIZE_MAX: Final = 16 * KIB
"""Of a peer that has not logged in."""
AHEAD_SIZE_MAX: Final = 64 * KIB
"""Bytes that a peer may send ahead of its reply before it is not read any more."""
PARTIAL_WAIT_S: Final = 30.0
LOGIN_WAIT_S: Final = 30.0
UNSENT_WAIT_S: Final = 60.0
LOOK_INTERVAL_S: Final = 1.0
HANDSHAKE_WAIT_S: Final = 15.0
"""Of TLS."""
UNSENT_SIZE_MAX: Final = 256 * MIB
"""Bytes of replies that slow readers may leave untaken before replies get smaller."""
REPLY_SIZE_CROWDED: Final = 256 * KIB
BACKLOG: Final = 1024
STRANGER_COUNT_MAX: Final = SESSION_COUNT_MAX - 1024
"""Connections in all when a peer that is not logged in yet is turned away: the rest is for the others."""
KEEPALIVE: Final = (
    (socket.SO_KEEPALIVE, 1, socket.SOL_SOCKET),
    (socket.TCP_KEEPIDLE, 60, socket.IPPROTO_TCP),
    (socket.TCP_KEEPINTVL, 10, socket.IPPROTO_TCP),
    (socket.TCP_KEEPCNT, 3, socket.IPPROTO_TCP),
)
MISSING_TARGETS: Final = frozenset(
    {ErrorCode.STREAM_NOT_FOUND, ErrorCode.TOPIC_NOT_FOUND, ErrorCode.PARTITION_NOT_FOUND}
)
WITHOUT_NAMED_TARGETS: Final = frozenset(
    {Code.SEND_MESSAGES, Code.GET_CONSUMER_OFFSET, Code.STORE_CONSUMER_OFFSET, Code.DELETE_CONSUMER_OFFSET}
)
"""Commands that answer "resource not found" where a stream, topic or partition is not there."""
FOR_IGGY: Final[dict[int, int]] = {
    ErrorCode.BATCH_TOO_LARGE: ErrorCode.TOO_BIG_MESSAGE_PAYLOAD,
    ErrorCode.DISK_FULL: ErrorCode.TRANSIENT_NOT_ACCEPTED,
    ErrorCode.JOURNAL_FULL: ErrorCode.TRANSIENT_NOT_ACCEPTED,
    ErrorCode.PARTITION_POISONED: ErrorCode.CANNOT_SYNC_FILE,
    ErrorCode.PARTITION_REFUSED: ErrorCode.CANNOT_READ_FILE,
    ErrorCode.PARTITION_REPLACED: ErrorCode.TRANSIENT_NOT_ACCEPTED,
    ErrorCode.PARTITION_NOT_GRANTED: ErrorCode.RESOURCE_NOT_FOUND,
    ErrorCode.LANE_PROTOCOL: ErrorCode.ERROR,
    ErrorCode.LANE_CLOSED: ErrorCode.TRANSIENT_NOT_COMMITTED,
    ErrorCode.OFFSETS_REFUSED: ErrorCode.CANNOT_READ_CONSUMER_OFFSETS,
    ErrorCode.WORKER_UNAVAILABLE: ErrorCode.TRANSIENT_NOT_ACCEPTED,
    ErrorCode.BROKER_STOPPING: ErrorCode.DISCONNECTED,
}
"""Our own numbers, which Iggy's clients do not know, as the nearest of theirs: 58 has them try again by themselves, 8
has them connect again."""
LOG: Final = logging.getLogger("shmbroker.front")


class BufferPool:
    """The shared scratch buffer, and free buffers by size, which is a power of two."""

    def __init__(self) -> None:
        self.scratch = bytearray(SCRATCH_SIZE)
        self._free: dict[int, list[bytearray]] = {}
        self._free_size = 0

    def take(self, size: int) -> bytearray:
        """One of at least ``size`` bytes, which hold anything."""
        wanted = max(BUFFER_SIZE_MIN, 1 << (size - 1).bit_length())
        free = self._free.get(wanted)
        if free:
            self._free_size -= wanted
            return free.pop()
        return bytearray(wanted)

    def give(self, buffer: bytearray) -> None:
        """Back, if there is room for it. Nobody may hold a view of it."""
        if self._free_size + len(buffer) <= POOL_SIZE_MAX:
            self._free.setdefault(len(buffer), []).append(buffer)
            self._free_size += len(buffer)

    def replace_scratch(self) -> None:
        """Somebody needs what is in the scratch buffer."""
        self.scratch = bytearray(SCRATCH_SIZE)


class PooledConnection(ServerConnection):
    """The server's end of the wire, on buffers of a pool; on the scratch buffer while nothing is pending."""

    def __init__(self, pool: BufferPool) -> None:
        super().__init__(LOGIN_FRAME_SIZE_MAX)
        self._pool = pool
        self._buffer = pool.scratch

    def get_buffer(self, size_hint: int = -1) -> memoryview:
        """Where the next bytes go."""
        if self._end == 0:
            self._buffer = self._pool.scratch
        elif self._end == len(self._buffer):
            self._move()
        return memoryview(self._buffer)[self._end :]

    def settle(self) -> None:
        """After the requests that are there have been taken: leaves the scratch buffer to the others."""
        if self._start == self._end:
            if self._buffer is not self._pool.scratch:
                self._pool.give(self._buffer)
                self._buffer = self._pool.scratch
            self._start = self._end = 0
        elif self._buffer is self._pool.scratch:
            self._move()

    def _move(self) -> None:
        """What is pending goes to a buffer of our own, with room for the whole of the frame that it begins."""
        pending = self.pending_size
        wanted = pending + AHEAD_SIZE_MAX if pending >= BUFFER_SIZE_MIN else BUFFER_SIZE_MIN
        if pending >= SIZE_KNOWN_AT:
            frame_size = min(frame_size_of(self._buffer, self._start), self.frame_size_max)
            wanted = frame_size if frame_size > pending else wanted
        fresh = self._pool.take(max(wanted, pending + 1))
        fresh[:pending] = memoryview(self._buffer)[self._start : self._end]
        if self._buffer is not self._pool.scratch:
            self._pool.give(self._buffer)
        self._buffer, self._start, self._end = fresh, 0, pending

    def detach(self) -> None:
        """The request that was taken last still needs its bytes: they are left to it."""
        rest = bytes(memoryview(self._buffer)[self._start : self._end])
        if self._buffer is self._pool.scratch:
            self._pool.replace_scratch()
        self._buffer, self._start, self._end = self._pool.scratch, 0, 0
        if rest:
            self._buffer = self._pool.take(len(rest) + 1)
            self._buffer[: len(rest)] = rest
            self._end = len(rest)

    def drop(self) -> None:
        """The connection has ended."""
        if self._buffer is not self._pool.scratch:
            self._pool.give(self._buffer)
        self._buffer, self._start, self._end = self._pool.scratch, 0, 0


class TcpSession(Session):
    """A peer on TCP. Refusals are in numbers that Iggy's clients know, or evictions."""

    wire: PooledConnection

    def __init__(self, broker: Broker, number: int, address: str, connection: TcpConnection, pool: BufferPool) -> None:
        super().__init__(broker, number, transport=TRANSPORT_TCP, address=address)
        self.wire = PooledConnection(pool)
        self._connection = connection

    def refused(self, incoming: Incoming, error: ShmbrokerError) -> Answer:
        """A reply with the error's number, or an eviction: of a failed login, and of who did not log in (the clients
        log in again by themselves then)."""
        eviction: Eviction | None = getattr(error, "eviction", None)
        if eviction is not None:
            return Answer((eviction.encode(),))
        number = error.number
        spec = incoming.spec
        if number == ErrorCode.UNAUTHENTICATED and spec is not None and spec.numbered:
            return Answer((self.wire.eviction(incoming, EvictionReason.NO_SESSION),))
        if spec is not None and number in MISSING_TARGETS and spec.code in WITHOUT_NAMED_TARGETS:
            number = ErrorCode.RESOURCE_NOT_FOUND
        return Answer((self.wire.refusal(incoming, FOR_IGGY.get(number, number), str(error)),))

    def evict(self, reason: EvictionReason) -> None:
        """Tells an idle peer that its session has ended, and closes the connection."""
        self._connection.end(Eviction(self.client_id or 1, reason).encode())


class TcpConnection(asyncio.BufferedProtocol):
    """One connection: transport, wire and session."""

    session: TcpSession
    _wire: PooledConnection

    def __init__(self, listener: TcpListener) -> None:
        self._listener = listener
        self._transport: asyncio.Transport | None = None
        self._is_busy = False
        self._is_serving = False
        self._is_paused = False
        self._is_reading = True
        self.received_s = time.monotonic()
        self.unsent_size = 0
        """What the peer has not taken, while it is slow."""
        self.unsent_s = 0.0

    # --- the transport's calls ----------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        connection = transport.get_extra_info("socket")
        for option, value, level in KEEPALIVE:
            connection.setsockopt(level, option, value)
        session = self._listener.admit(self, f"{peer[0]}:{peer[1]}")
        if session is None:
            self._transport.abort()
            return
        self.session = session
        self._wire = session.wire

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if hasattr(self, "session"):
            self._wire.drop()
            self._listener.lost(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._wire.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        wire = self._wire
        wire.buffer_updated(nbytes)
        self.received_s = time.monotonic()
        if not self._is_busy and not self._is_paused:
            self._serve()
            return
        wire.settle()
        if wire.pending_size >= AHEAD_SIZE_MAX and self._is_reading and self._transport is not None:
            self._is_reading = False
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        """The peer is slower than its replies."""
        self._is_paused = True
        assert self._transport is not None
        self._note_unsent(self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._is_paused = False
        self._note_unsent(0)
        if not self._is_busy:
            self._serve()

    # --- requests -----------------------------------------------------------------------------------------------------
    def _serve(self) -> None:
        """The requests that are there, until one has to wait."""
        if self._is_serving:
            return
        self._is_serving = True
        wire = self._wire
        while not self._is_busy and not self._is_paused and self._transport is not None:
            incoming = wire.next_request()
            if incoming is None:
                break
            if isinstance(incoming, ConnectionFault):
                LOG.warning("connection %d from %s: %s", self.session.number, self.session.address, incoming.fault)
                self._transport.close()
                break
            self._is_busy = True
            if not self.session.start(incoming, self._answered):
                del incoming
                wire.detach()
        self._is_serving = False
        wire.settle()
        if not self._is_reading and self._transport is not None and wire.pending_size < AHEAD_SIZE_MAX:
            self._is_reading = True
            self._transport.resume_reading()

    def _answered(self, answer: Answer) -> None:
        self._is_busy = False
        transport = self._transport
        if transport is None:
            return
        buffers = answer.buffers
        if len(buffers) == 1:
            transport.write(buffers[0])
        else:
            transport.writelines(buffers)
        if answer.ends:
            transport.close()
            return
        self._wire.frame_size_max = LOGIN_FRAME_SIZE_MAX if self.session.user is None else FRAME_SIZE_MAX
        if self._wire.pending_size or not self._is_reading:
            self._serve()

    def end(self, last_words: bytes = b"") -> None:
        """Closes; what was answered is still sent."""
        if self._transport is not None:
            if last_words and not self._is_busy:
                self._transport.write(last_words)
            self._transport.close()

    # --- time ---------------------------------------------------------------------------------------------------------
    def _note_unsent(self, size: int) -> None:
        self._listener.note_unsent(size - self.unsent_size)
        self.unsent_size = size
        self.unsent_s = time.monotonic()

    def forget_unsent(self) -> None:
        self._listener.note_unsent(-self.unsent_size)
        self.unsent_size = 0

    def look(self, now_s: float) -> None:
        """Ends the connection if its peer has let a time limit pass."""
        transport = self._transport
        if transport is None:
            return
        if self._is_paused:
            size = transport.get_write_buffer_size()
            if size < self.unsent_size:
                self._note_unsent(size)
            elif now_s - self.unsent_s > UNSENT_WAIT_S:
                self.abort("took nothing of its reply for too long")
        elif not self._is_busy and self._wire.pending_size and now_s - self.received_s > PARTIAL_WAIT_S:
            self.abort("began a frame and did not go on")
        elif self.session.user is None and not self._is_busy and now_s - self.session.last_seen_s > LOGIN_WAIT_S:
            self.abort("did not log in")

    def abort(self, why: str) -> None:
        """Closes at once."""
        LOG.warning("connection %d from %s %s: it is closed", self.session.number, self.session.address, why)
        if self._transport is not None:
            self._transport.abort()


class TcpListener:
    """The listening socket and its connections. Owned by the front's loop."""

    def __init__(self, broker: Broker, config: TcpConfig) -> None:
        self._broker = broker
        self._config = config
        self._pool = BufferPool()
        self._connections: set[TcpConnection] = set()
        self._server: asyncio.Server | None = None
        self._looking: asyncio.Task[None] | None = None
        self.unsent_size = 0
        """Bytes of replies that slow peers have not taken."""
        self.address = ""
        """HOST:PORT, as bound."""

    async def start(self) -> None:
        """Until peers can connect. Raises Unavailable, InvalidConfiguration."""
        config = self._config
        context = _tls_context(config)
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: TcpConnection(self),
                config.host,
                config.port,
                ssl=context,
                ssl_handshake_timeout=None if context is None else HANDSHAKE_WAIT_S,
                backlog=BACKLOG,
                reuse_address=True,
            )
        except OSError as error:
            raise Unavailable(f"tcp.address {config.host}:{config.port}: cannot listen there: {error}") from error
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._looking = loop.create_task(self._look())

    def admit(self, connection: TcpConnection, address: str) -> TcpSession | None:
        """The session of a new connection; None where there are too many."""
        broker = self._broker
        if broker.stopping or len(broker.sessions) >= STRANGER_COUNT_MAX:
            LOG.error("%s was turned away: there are %d connections", address, len(broker.sessions))
            return None
        session = TcpSession(broker, broker.next_session_number(), address, connection, self._pool)
        broker.sessions[session.number] = session
        self._connections.add(connection)
        return session

    def lost(self, connection: TcpConnection) -> None:
        self._connections.discard(connection)
        connection.forget_unsent()
        connection.session.ended()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            now_s = time.monotonic()
            for connection in list(self._connections):
                connection.look(now_s)

    def note_unsent(self, change: int) -> None:
        """Slow peers have not taken so many bytes more: when it is a lot, polls of all get smaller replies."""
        self.unsent_size += change
        is_crowded = self.unsent_size > UNSENT_SIZE_MAX
        self._broker.readers.reply_size_max = REPLY_SIZE_CROWDED if is_crowded else REPLY_SIZE_MAX

    def stop_listening(self) -> None:
        """Nobody new gets in."""
        if self._server is not None:
            self._server.close()

    async def close(self) -> None:
        """Ends the connections; replies under way are sent if the peers take them soon."""
        self.stop_listening()
        if self._looking is not None:
            self._looking.cancel()
        for connection in list(self._connections):
            connection.end()
        deadline_s = time.monotonic() + 1.0
        while self._connections and time.monotonic() < deadline_s:
            await asyncio.sleep(0.01)
        for connection in list(self._connections):
            connection.abort("takes too long to end")
        while self._connections and time.monotonic() < deadline_s + 1.0:
            await asyncio.sleep(0.01)


def _tls_context(config: TcpConfig) -> ssl.SSLContext | None:
    """None: plain TCP."""
    if config.certificate is None or config.private_key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(config.certificate, config.private_key)
    except (OSError, ssl.SSLError) as error:
        raise InvalidConfiguration(f"tcp.certificate, tcp.private_key: cannot be used: {error}") from error
    return context
