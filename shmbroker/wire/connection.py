"""One connection of the wire without its socket: bytes in, requests out (server) or replies out (client).

The protocol is lockstep: a client writes its next request when it has read the whole reply. A peer that does not keep
to that is held to bounds: unread frames never occupy more than the largest frame and one read. A frame is handed out as
a view of the receiving buffer, which is left alone from then on, so that a batch is not copied on its way through.
"""

from __future__ import annotations

import struct
from typing import ClassVar, Final, NamedTuple

from xxhash import xxh3_64_intdigest

from shmbroker.errors import ClientMistake, ErrorCode, error_from
from shmbroker.limits import CONTROL_FRAME_SIZE_MAX, FRAME_SIZE_MAX, KIB, U64_MAX
from shmbroker.wire.bodies import Reply, Request
from shmbroker.wire.codes import BY_CODE, BY_OPERATION, PLAIN, CommandSpec
from shmbroker.wire.commands import decode_reply, decode_request
from shmbroker.wire.frame import (
    COMMAND_EVICTION,
    COMMAND_POSITION,
    COMMAND_REPLY,
    COMMAND_REQUEST,
    HEADER_SIZE,
    OPERATION_LOGIN,
    OPERATION_PLAIN,
    RESULT_OK,
    SIZE_KNOWN_AT,
    Eviction,
    EvictionReason,
    ReplyHeader,
    RequestHeader,
    decode_reply_header,
    decode_request_header,
    frame_size_of,
    split_result,
)
from shmbroker.wire.primitives import Malformed

RECEIVE_SIZE: Final = 64 * KIB
"""Bytes of a receiving buffer, unless a frame is larger."""


class ConnectionFault(NamedTuple):
    """The peer does not speak the protocol: nothing after this can be understood, close the connection."""

    fault: str


class Receiver:
    """Collects bytes into frames. Use it as asyncio's BufferedProtocol does, or :meth:`feed` it."""

    COMMANDS: ClassVar[frozenset[int]] = frozenset()
    """What may stand in the header's command byte."""

    def __init__(self, frame_size_max: int) -> None:
        self.frame_size_max = frame_size_max
        """Frames above this are a fault; may be raised when the peer has proved who it is."""
        self._buffer = bytearray(RECEIVE_SIZE)
        self._start = 0
        self._end = 0

    @property
    def pending_size(self) -> int:
        """Bytes received and not handed out."""
        return self._end - self._start

    def get_buffer(self, size_hint: int = -1) -> memoryview:
        """Where the next bytes go; never empty. Then call :meth:`buffer_updated`."""
        del size_hint  # asyncio's guess says less than the frame's own header.
        wanted = RECEIVE_SIZE
        if self.pending_size >= SIZE_KNOWN_AT:
            wanted = min(frame_size_of(self._buffer, self._start), self.frame_size_max)
        if self._end == len(self._buffer) or (self._start + wanted > len(self._buffer) and wanted > self.pending_size):
            # A new buffer, since views of the old one may be out there; they keep it alive.
            fresh = bytearray(max(RECEIVE_SIZE, wanted, self.pending_size + RECEIVE_SIZE // 2))
            fresh[: self.pending_size] = memoryview(self._buffer)[self._start : self._end]
            self._buffer, self._start, self._end = fresh, 0, self.pending_size
        return memoryview(self._buffer)[self._end :]

    def buffer_updated(self, size: int) -> None:
        """``size`` bytes have been written into what :meth:`get_buffer` gave."""
        assert 0 <= size <= len(self._buffer) - self._end
        self._end += size

    def feed(self, data: bytes | memoryview) -> None:
        """Takes bytes that were received elsewhere."""
        view = memoryview(data)
        while view:
            room = self.get_buffer(len(view))
            size = min(len(room), len(view))
            room[:size] = view[:size]
            self.buffer_updated(size)
            view = view[size:]

    def next_frame(self) -> memoryview | ConnectionFault | None:
        """The next whole frame, or None until more bytes are there."""
        if self.pending_size <= COMMAND_POSITION:
            return None
        # Before waiting for a body: a peer that is out of step would have us wait for what never comes.
        if self._buffer[self._start + COMMAND_POSITION] not in self.COMMANDS:
            return ConnectionFault("a frame of a kind that has no place here")
        size = frame_size_of(self._buffer, self._start)
        if size < HEADER_SIZE or size > self.frame_size_max:
            return ConnectionFault(f"a frame of {size} bytes; {HEADER_SIZE} to {self.frame_size_max} are allowed")
        if self.pending_size < size:
            return None
        if self.pending_size - size > self.frame_size_max + RECEIVE_SIZE:
            return ConnectionFault("too many requests without waiting for replies")
        frame = memoryview(self._buffer)[self._start : self._start + size]
        self._start += size
        return frame


class Incoming(NamedTuple):
    """One request. Answer it exactly once. ``request`` is an ErrorCode where it must be refused with that.

    ``spec`` is None for a command nobody knows. ``body`` is valid as long as it is held.
    """

    header: RequestHeader
    spec: CommandSpec | None
    request: Request | ErrorCode
    body: memoryview

    @property
    def code(self) -> int:
        """The command's code; that of an unknown operation is 0."""
        return self.spec.code if self.spec is not None else self.header.code


class ServerConnection(Receiver):
    """The server's end. Feed it, take :meth:`next_request` until None, send what :meth:`reply` and its like return."""

    COMMANDS = frozenset({COMMAND_REQUEST})

    def __init__(self, frame_size_max: int = CONTROL_FRAME_SIZE_MAX) -> None:
        super().__init__(frame_size_max)
        self.commit_number = 0
        """Replies sent; goes out in every reply's header."""

    def next_request(self) -> Incoming | ConnectionFault | None:
        """The next request in order, None until more bytes are there."""
        frame = self.next_frame()
        if frame is None or isinstance(frame, ConnectionFault):
            return frame
        header = decode_request_header(frame)
        if isinstance(header, ErrorCode):
            return ConnectionFault("a frame that is not a request")
        body = frame[HEADER_SIZE:]
        spec = PLAIN.get(header.code) if header.operation == OPERATION_PLAIN else BY_OPERATION.get(header.operation)
        return Incoming(header, spec, _understand(header, spec, body), body)

    def reply(self, incoming: Incoming, body: bytes = b"") -> bytes:
        """A success. ``body`` is what ``encode_reply`` gave; a framed command's result section is put before it."""
        head = self.reply_head(incoming, len(body))
        return head + body

    def reply_head(self, incoming: Incoming, body_size: int) -> bytes:
        """Header and, where there is one, result section of a success whose ``body_size`` bytes are sent apart."""
        result = RESULT_OK if incoming.spec is not None and incoming.spec.framed else b""
        return self._header(incoming.header, ErrorCode.OK, len(result) + body_size) + result

    def refusal(self, incoming: Incoming, code: int, text: str = "") -> bytes:
        """A refusal: the number in the header, and its text as the body, which Iggy's clients ignore and ours shows."""
        assert code != ErrorCode.OK
        body = text.encode(errors="replace")[: 16 * KIB]
        return self._header(incoming.header, code, len(body)) + body

    def eviction(self, incoming: Incoming, reason: EvictionReason, versions: tuple[int, int] = (0, 0)) -> bytes:
        """In place of a reply: the session has ended. ``versions``: newest and oldest accepted, packed."""
        return Eviction(incoming.header.client, reason, *versions).encode()

    def _header(self, header: RequestHeader, status: int, body_size: int) -> bytes:
        self.commit_number += 1
        return ReplyHeader(
            size=HEADER_SIZE + body_size,
            request_checksum=header.checksum,
            client=header.client,
            request_number=header.request_number,
            operation=header.operation,
            status=status,
            operation_number=header.session,
            commit_number=self.commit_number,
            timestamp=header.timestamp,
        ).encode()


def _understand(header: RequestHeader, spec: CommandSpec | None, body: memoryview) -> Request | ErrorCode:
    """The request that the body holds, or the error to refuse it with."""
    if spec is None or header.client == 0:
        return ErrorCode.INVALID_COMMAND
    if header.operation == OPERATION_LOGIN and (header.session or header.request_number):
        return ErrorCode.INVALID_COMMAND
    is_numbered = header.operation not in (OPERATION_LOGIN, OPERATION_PLAIN)
    if is_numbered and (header.session == 0 or header.request_number == 0):
        return ErrorCode.UNAUTHENTICATED if header.session == 0 else ErrorCode.INVALID_COMMAND
    if header.checksum and header.checksum != xxh3_64_intdigest(body):
        return ErrorCode.INVALID_FORMAT
    return decode_request(spec.code, body)


class Answer(NamedTuple):
    """One reply. ``status`` 0: ``value`` is what :func:`decode_reply` made of the body; it is an ErrorCode where the
    server's bytes make no sense. Else an error number, and ``text`` is the server's, if it sent one."""

    status: int
    value: Reply | tuple[Reply, ...] | ErrorCode | None
    text: str
    header: ReplyHeader | Eviction


class ClientConnection(Receiver):
    """The client's end. One request at a time: :meth:`request`, send, feed, :meth:`next_answer`."""

    COMMANDS = frozenset({COMMAND_REPLY, COMMAND_EVICTION})

    def __init__(
        self,
        client: int,
        session: int = 0,
        frame_size_max: int = FRAME_SIZE_MAX,
        request_size_max: int = FRAME_SIZE_MAX,
    ) -> None:
        super().__init__(frame_size_max)
        assert 0 < client < 2**128
        self.request_size_max = request_size_max
        """Larger frames the server takes for a fault, which ends the connection: they are not made."""
        self.client = client
        self.session = session
        self.request_number = 1
        """Of the next numbered command; others carry it without using it up."""
        self._outstanding: CommandSpec | None = None

    def request(self, request: Request) -> bytes:
        """The frame of a request. Raises a :class:`shmbroker.errors.ClientMistake` for what the wire cannot carry."""
        try:
            body = request.encode()
        except Malformed as malformed:
            raise error_from(malformed.code, malformed.fault) from None
        except struct.error as error:
            raise ClientMistake(f"a number of the request is out of range: {error}") from None
        if HEADER_SIZE + len(body) > self.request_size_max:
            text = f"a request of {len(body)} bytes: the largest has {self.request_size_max - HEADER_SIZE}"
            raise ClientMistake(text)
        return self.request_head(BY_CODE[request.CODE], len(body), body) + body

    def request_head(self, spec: CommandSpec, body_size: int, body: bytes = b"") -> bytes:
        """The header alone, for a body that is sent apart; ``body`` is looked at where the command is checksummed."""
        assert self._outstanding is None, "the previous request has not been answered"
        self._outstanding = spec
        is_login = spec.operation == OPERATION_LOGIN
        header = RequestHeader(
            size=HEADER_SIZE + body_size,
            client=self.client,
            checksum=xxh3_64_intdigest(body) if spec.checksummed else 0,
            request_number=0 if is_login else self.request_number,
            operation=spec.operation,
            session=0 if is_login else self.session,
            code=spec.code if spec.operation == OPERATION_PLAIN else 0,
        )
        if spec.numbered:
            self.request_number = min(self.request_number + 1, U64_MAX)
        return header.encode()

    def next_answer(self) -> Answer | ConnectionFault | None:
        """The answer to the outstanding request, None until all of it is there."""
        frame = self.next_frame()
        if frame is None or isinstance(frame, ConnectionFault):
            return frame
        header = decode_reply_header(frame)
        spec = self._outstanding
        if spec is None or isinstance(header, ErrorCode):
            return ConnectionFault("a frame that is not the reply to a request")
        self._outstanding = None
        if isinstance(header, Eviction):
            return Answer(header.code, None, "", header)
        if header.operation != spec.operation:
            return ConnectionFault(f"a reply to operation {header.operation}, not {spec.operation}")
        body = frame[HEADER_SIZE:]
        if header.status:
            return Answer(header.status, None, str(body, "utf-8", "replace"), header)
        if spec.framed:
            code, body = split_result(body)
            if code:
                return Answer(code, None, "", header)
        return Answer(ErrorCode.OK, decode_reply(spec.code, body), "", header)
