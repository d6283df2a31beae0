"""A server that reads the frames of the wire and only answers: what the machine, the loopback and the client leave for
a broker to reach. Nothing is decoded, kept, checked or copied out of the one receiving buffer.

``python -m shmbroker.bench.sink`` prints its HOST:PORT and runs until its standard input ends.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import uvloop

from shmbroker.wire.codes import BY_CODE, Code
from shmbroker.wire.frame import (
    HEADER_SIZE,
    OPERATION_LOGIN,
    PROTOCOL_VERSION,
    RESULT_OK,
    ReplyHeader,
    RequestHeader,
    decode_request_header,
    frame_size_of,
)
from shmbroker.wire.messages import Confirmation, SendReply
from shmbroker.wire.users import LoginReply

BUFFER_SIZE = 1 << 20
OPERATION_SEND = BY_CODE[Code.SEND_MESSAGES].operation
BODIES = {
    OPERATION_LOGIN: RESULT_OK + LoginReply(0, 1, PROTOCOL_VERSION, "sink").encode(),
    OPERATION_SEND: SendReply((Confirmation(0, 0, 0, 0),)).encode(),
}


class Sink(asyncio.BufferedProtocol):
    """One connection. ``_rest``: bytes of the current frame that are still to come."""

    def __init__(self) -> None:
        self._buffer = bytearray(BUFFER_SIZE)
        self._view = memoryview(self._buffer)
        self._have = 0
        self._rest = 0
        self._header = RequestHeader(0, 1, 0, 0, 0, 0, 0)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def get_buffer(self, size_hint: int) -> memoryview:
        del size_hint
        return self._view[self._have :]

    def buffer_updated(self, size: int) -> None:
        end, start = self._have + size, 0
        while True:
            if self._rest:
                taken = min(self._rest, end - start)
                start += taken
                self._rest -= taken
                if self._rest:
                    break
                self._answer()
            if end - start < HEADER_SIZE:
                break
            header = decode_request_header(self._view[start : start + HEADER_SIZE])
            if not isinstance(header, RequestHeader):
                self._transport.close()
                return
            self._header, self._rest = header, frame_size_of(self._buffer, start) - HEADER_SIZE
            start += HEADER_SIZE
            if not self._rest:
                self._answer()
        self._have = end - start
        self._view[: self._have] = bytes(self._view[start:end])

    def _answer(self) -> None:
        header = self._header
        body = BODIES.get(header.operation, b"")
        reply = ReplyHeader(
            HEADER_SIZE + len(body), header.checksum, header.client, header.request_number, header.operation, 0
        )
        self._transport.write(reply.encode() + body)


async def serve() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Sink, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    print(f"{host}:{port}", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    uvloop.run(serve())
