"""Frame headers of the wire: 256 bytes before every body, in both directions. Numbers are little-endian::

    0     16   header checksum, zero          48   4   size: 256 + body     60   1   command: 5, 8 or 13
    16    16   body checksum, zero            52   4   view, zero           61   1   replica, zero
    32    16   cluster, zero                  56   4   release, zero        62   66  reserved, zero

    request (5)                               reply (8)                              eviction (13), size 256
    128   16   client: random, never 0        128  16  request checksum, echoed      128  16   client
    144   16   checksum: xxh3_64 of the       144  16  context, zero                 144  4    newest protocol accepted
               body, or 0 for "not stamped"   160  16  client, echoed                148  4    oldest protocol accepted
    160   8    timestamp, zero                176  8   op                            152  103  zero
    168   8    request number                 184  8   commit                        255  1    reason
    176   1    operation                      192  8   timestamp, echoed
    184   8    session                        200  8   request number, echoed
    192   4    user, never trusted            208  1   operation, echoed
    196   4    command code, for operation 2  216  4   status: 0 or an error number
    200   56   zero                           220  36  zero

The body of a reply to some operations ("framed", see ``commands``) starts with a result section: a u32 count, 0 for
success, then that many (u32 index, u32 error number).
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from shmbroker.errors import ErrorCode

HEADER_SIZE: Final = 256
SIZE_POSITION: Final = 48
"""Where the u32 of the frame's whole size stands."""
SIZE_KNOWN_AT: Final = 52
COMMAND_POSITION: Final = 60
"""Where the one byte stands by which a header is recognised."""

COMMAND_REQUEST: Final = 5
COMMAND_REPLY: Final = 8
COMMAND_EVICTION: Final = 13

OPERATION_LOGIN: Final = 1
OPERATION_PLAIN: Final = 2
"""The command's code stands in the header."""
OPERATION_LOGOUT: Final = 3

PROTOCOL_VERSION: Final = (0 << 20) | (11 << 10) | 0
"""0.11.0, as packed into a login."""

_REQUEST: Final = Struct("<48xIIIBB66x 16s16sQQB7xQII56x")
_REPLY: Final = Struct("<48xIIIBB66x 16s16x16sQQQQB7xI36x")
_EVICTION: Final = Struct("<48xIIIBB66x 16sII103xB")
_U32: Final = Struct("<I")
_RESULT: Final = Struct("<III")

assert _REQUEST.size == HEADER_SIZE
assert _REPLY.size == HEADER_SIZE
assert _EVICTION.size == HEADER_SIZE

RESULT_OK: Final = _U32.pack(0)
"""The result section of a success."""


class EvictionReason(IntEnum):
    """Why a server ends a session; the answer in place of a reply."""

    NO_SESSION = 1
    RELEASE_TOO_LOW = 2
    RELEASE_TOO_HIGH = 3
    INVALID_OPERATION = 4
    INVALID_BODY = 5
    INVALID_BODY_SIZE = 6
    SESSION_TOO_LOW = 7
    SESSION_RELEASE_MISMATCH = 8
    INVALID_CREDENTIALS = 9
    INVALID_TOKEN = 10
    USER_INACTIVE = 11
    SESSION_ERROR = 12
    STALE_CLIENT = 13
    INCOMPATIBLE_PROTOCOL = 14
    MALFORMED_LOGIN = 15


_EVICTION_CODES: Final[dict[int, ErrorCode]] = {
    EvictionReason.RELEASE_TOO_LOW: ErrorCode.INVALID_COMMAND,
    EvictionReason.RELEASE_TOO_HIGH: ErrorCode.INVALID_COMMAND,
    EvictionReason.INVALID_OPERATION: ErrorCode.INVALID_COMMAND,
    EvictionReason.INVALID_BODY: ErrorCode.INVALID_COMMAND,
    EvictionReason.INVALID_BODY_SIZE: ErrorCode.INVALID_COMMAND,
    EvictionReason.INVALID_CREDENTIALS: ErrorCode.INVALID_CREDENTIALS,
    EvictionReason.INVALID_TOKEN: ErrorCode.INVALID_TOKEN,
    EvictionReason.STALE_CLIENT: ErrorCode.STALE_CLIENT,
    EvictionReason.MALFORMED_LOGIN: ErrorCode.INVALID_FORMAT,
}


class RequestHeader(NamedTuple):
    """What a request's header says. ``size`` is that of the whole frame in bytes."""

    size: int
    client: int
    checksum: int
    request_number: int
    operation: int
    session: int
    code: int
    timestamp: int = 0
    user_id: int = 0

    def encode(self) -> bytes:
        """The 256 bytes."""
        return _REQUEST.pack(
            self.size,
            0,
            0,
            COMMAND_REQUEST,
            0,
            self.client.to_bytes(16, "little"),
            self.checksum.to_bytes(16, "little"),
            self.timestamp,
            self.request_number,
            self.operation,
            self.session,
            self.user_id,
            self.code,
        )


class ReplyHeader(NamedTuple):
    """What a reply's header says. ``size`` is that of the whole frame in bytes."""

    size: int
    request_checksum: int
    client: int
    request_number: int
    operation: int
    status: int
    operation_number: int = 0
    commit_number: int = 0
    timestamp: int = 0

    def encode(self) -> bytes:
        """The 256 bytes."""
        return _REPLY.pack(
            self.size,
            0,
            0,
            COMMAND_REPLY,
            0,
            self.request_checksum.to_bytes(16, "little"),
            self.client.to_bytes(16, "little"),
            self.operation_number,
            self.commit_number,
            self.timestamp,
            self.request_number,
            self.operation,
            self.status,
        )


class Eviction(NamedTuple):
    """A server's word that the session has ended. The two versions are packed, and only for INCOMPATIBLE_PROTOCOL."""

    client: int
    reason: int
    newest_version: int = 0
    oldest_version: int = 0

    @property
    def code(self) -> ErrorCode:
        """The error that the client's caller sees."""
        return _EVICTION_CODES.get(self.reason, ErrorCode.UNAUTHENTICATED)

    def encode(self) -> bytes:
        """The 256 bytes, which are the whole frame."""
        client = self.client.to_bytes(16, "little")
        return _EVICTION.pack(
            HEADER_SIZE, 0, 0, COMMAND_EVICTION, 0, client, self.newest_version, self.oldest_version, self.reason
        )


def frame_size_of(prefix: bytes | bytearray | memoryview, position: int = 0) -> int:
    """The size of the frame that starts at ``position``, of which SIZE_KNOWN_AT bytes are there."""
    size: int = _U32.unpack_from(prefix, position + SIZE_POSITION)[0]
    return size


def decode_request_header(frame: bytes | memoryview) -> RequestHeader | ErrorCode:
    """The header of a request, or INVALID_COMMAND where those 256 bytes are not one."""
    if len(frame) < HEADER_SIZE:
        return ErrorCode.INVALID_COMMAND
    fields = _REQUEST.unpack_from(frame)
    size, _view, _release, command, _replica, client, checksum, timestamp, number, operation, session, user, code = (
        fields
    )
    if command != COMMAND_REQUEST or size < HEADER_SIZE:
        return ErrorCode.INVALID_COMMAND
    return RequestHeader(
        size=size,
        client=int.from_bytes(client, "little"),
        checksum=int.from_bytes(checksum, "little"),
        request_number=number,
        operation=operation,
        session=session,
        code=code,
        timestamp=timestamp,
        user_id=user,
    )


def decode_reply_header(frame: bytes | memoryview) -> ReplyHeader | Eviction | ErrorCode:
    """The header of a reply or an eviction, or INVALID_COMMAND where those 256 bytes are neither."""
    if len(frame) < HEADER_SIZE:
        return ErrorCode.INVALID_COMMAND
    fields = _REPLY.unpack_from(frame)
    size, _view, _release, command, _replica, checksum, client, op, commit, timestamp, number, operation, status = (
        fields
    )
    if size < HEADER_SIZE:
        return ErrorCode.INVALID_COMMAND
    if command == COMMAND_EVICTION and size == HEADER_SIZE:
        *_, evicted, newest, oldest, reason = _EVICTION.unpack_from(frame)
        return Eviction(int.from_bytes(evicted, "little"), reason, newest, oldest)
    if command != COMMAND_REPLY:
        return ErrorCode.INVALID_COMMAND
    return ReplyHeader(
        size=size,
        request_checksum=int.from_bytes(checksum, "little"),
        client=int.from_bytes(client, "little"),
        request_number=number,
        operation=operation,
        status=status,
        operation_number=op,
        commit_number=commit,
        timestamp=timestamp,
    )


def result_error(code: int) -> bytes:
    """The result section of a refusal: the whole body of its reply."""
    return _RESULT.pack(1, 0, code)


def split_result(body: memoryview) -> tuple[int, memoryview]:
    """Takes the result section from the body of a framed reply: (error number or 0, the rest).

    A body too short for its section is INVALID_COMMAND, as a reply to a framed operation always has one.
    """
    if len(body) < 4:
        return ErrorCode.INVALID_COMMAND, body[:0]
    count: int = _U32.unpack_from(body)[0]
    end = 4 + 8 * count
    if end > len(body):
        return ErrorCode.INVALID_COMMAND, body[:0]
    code: int = _U32.unpack_from(body, 8)[0] if count else 0
    return code, body[end:]
