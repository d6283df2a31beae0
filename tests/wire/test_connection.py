"""The two ends of a connection without a socket: bytes cut anywhere, sizes that lie, peers that do not wait."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmbroker.core.options import OptionValue
from shmbroker.errors import ClientMistake, ErrorCode
from shmbroker.limits import CONTROL_FRAME_SIZE_MAX
from shmbroker.wire import groups, local, messages, streams, system, topics, users
from shmbroker.wire.bodies import Request
from shmbroker.wire.codes import BY_CODE, Code
from shmbroker.wire.commands import encode_reply
from shmbroker.wire.connection import (
    RECEIVE_SIZE,
    Answer,
    ClientConnection,
    ConnectionFault,
    Incoming,
    ServerConnection,
)
from shmbroker.wire.frame import (
    HEADER_SIZE,
    SIZE_KNOWN_AT,
    SIZE_POSITION,
    Eviction,
    EvictionReason,
    ReplyHeader,
    RequestHeader,
    decode_reply_header,
    decode_request_header,
    result_error,
    split_result,
)
from shmbroker.wire.primitives import Consumer

CLIENT = 0x0123456789ABCDEF0123456789ABCDEF
ENTRY = streams.StreamEntry(3, 1_700_000_000_000_000, 0, 0, 0, "market")
REQUESTS: tuple[Request, ...] = (
    system.Ping(),
    streams.GetStream("market"),
    streams.CreateStream("market"),
    topics.CreateTopic(0, 4, "trades", (OptionValue("durability", 2, b"persisted"),)),
    local.OpenLane(worker=0, size=1 << 20, event=False),
)


def client(session: int = 1) -> ClientConnection:
    return ClientConnection(CLIENT, session)


def incoming(server: ServerConnection) -> Incoming:
    found = server.next_request()
    assert isinstance(found, Incoming)
    return found


def exchange(request: Request, respond: object = None) -> tuple[Incoming, ServerConnection, ClientConnection]:
    """One request sent and understood; the reply is the test's to make."""
    end = client()
    server = ServerConnection()
    server.feed(end.request(request))
    return incoming(server), server, end


def answer(end: ClientConnection, frame: bytes) -> Answer:
    end.feed(frame)
    found = end.next_answer()
    assert isinstance(found, Answer)
    assert end.pending_size == 0
    return found


def test_requests_cut_at_every_byte() -> None:
    for request in REQUESTS:
        frame = client().request(request)
        for cut in range(len(frame)):
            server = ServerConnection()
            server.feed(frame[:cut])
            assert server.next_request() is None
            assert server.pending_size == cut
            server.feed(frame[cut:])
            assert incoming(server).request == request
            assert server.next_request() is None
            assert server.pending_size == 0


def test_replies_cut_at_every_byte() -> None:
    for cut in range(HEADER_SIZE + 4 + len(ENTRY.encode())):
        request, server, end = exchange(streams.CreateStream("market"))
        frame = server.reply(request, encode_reply(ENTRY))
        end.feed(frame[:cut])
        assert end.next_answer() is None
        assert answer(end, frame[cut:]).value == ENTRY


@settings(deadline=None, max_examples=30)
@given(sizes=st.lists(st.integers(0, 200_000), min_size=1, max_size=6), seed=st.integers(0, 2**32))
def test_frames_of_any_size_arrive_in_any_pieces(sizes: list[int], seed: int) -> None:
    """Through the buffer of a transport too, with every frame held until the end: none is written over."""
    rng = random.Random(seed)
    bodies = [rng.randbytes(size) for size in sizes]
    stream = b"".join(head_of(len(body)) + body for body in bodies)
    receiver = ServerConnection(CONTROL_FRAME_SIZE_MAX)
    found: list[memoryview] = []
    position = 0
    while position < len(stream):
        room = receiver.get_buffer(-1)
        assert room
        size = min(rng.choice((1, 100, 5_000, 300_000)), len(room), len(stream) - position)
        room[:size] = stream[position : position + size]
        receiver.buffer_updated(size)
        position += size
        while (frame := receiver.next_frame()) is not None:
            assert not isinstance(frame, ConnectionFault)
            found.append(frame)
    assert [bytes(frame[HEADER_SIZE:]) for frame in found] == bodies
    assert receiver.pending_size == 0


def head_of(body_size: int) -> bytes:
    return RequestHeader(HEADER_SIZE + body_size, CLIENT, 0, 1, 2, 1, Code.PING).encode()


@pytest.mark.parametrize("size", [0, 1, 52, 255, CONTROL_FRAME_SIZE_MAX + 1, 2**31, 2**32 - 1])
def test_a_size_that_lies_ends_the_connection(size: int) -> None:
    frame = bytearray(client().request(system.Ping()))
    frame[SIZE_POSITION:SIZE_KNOWN_AT] = size.to_bytes(4, "little")
    for end, command in ((ServerConnection(), 5), (ClientConnection(CLIENT, frame_size_max=CONTROL_FRAME_SIZE_MAX), 8)):
        frame[60] = command
        end.feed(bytes(frame))
        assert isinstance(end.next_frame(), ConnectionFault)
        # What was announced is not allocated: the room is that of an honest frame.
        assert len(end.get_buffer(-1)) <= CONTROL_FRAME_SIZE_MAX + RECEIVE_SIZE


def test_a_size_that_is_too_small_for_its_body_is_noticed_at_the_next_frame() -> None:
    frame = bytearray(client().request(streams.CreateStream("market")))
    frame[SIZE_POSITION] -= 1
    server = ServerConnection()
    server.feed(bytes(frame) + client().request(system.Ping()))
    assert incoming(server).request == ErrorCode.INVALID_FORMAT, "the checksum of the body does not fit"
    assert isinstance(server.next_request(), ConnectionFault)


def test_a_peer_that_does_not_wait_is_bounded() -> None:
    server = ServerConnection(frame_size_max=HEADER_SIZE)
    frame = client().request(system.Ping())
    server.feed(frame * ((HEADER_SIZE + RECEIVE_SIZE) // HEADER_SIZE + 2))
    assert isinstance(server.next_request(), ConnectionFault)


def test_a_limit_may_be_raised() -> None:
    server = ServerConnection(frame_size_max=HEADER_SIZE)
    end = client()
    server.feed(end.request(streams.GetStream("market")))
    server.frame_size_max = CONTROL_FRAME_SIZE_MAX
    assert incoming(server).request == streams.GetStream("market")


@pytest.mark.parametrize("command", [0, 1, 8, 13, 255])
def test_a_frame_that_is_not_a_request_ends_the_connection(command: int) -> None:
    frame = bytearray(client().request(streams.GetStream("market")))
    frame[60] = command
    server = ServerConnection()
    server.feed(bytes(frame[:61]))
    assert isinstance(server.next_request(), ConnectionFault), "at once, not when the rest has come"


@pytest.mark.parametrize("command", [0, 5, 7, 255])
def test_a_frame_that_is_not_a_reply_ends_the_connection(command: int) -> None:
    request, server, end = exchange(system.Ping())
    frame = bytearray(server.reply(request))
    frame[60] = command
    end.feed(bytes(frame))
    assert isinstance(end.next_answer(), ConnectionFault)


def header(**changes: int) -> bytes:
    values = {"size": HEADER_SIZE, "client": CLIENT, "checksum": 0, "request_number": 1, "operation": 2, "session": 1}
    return RequestHeader(**({"code": Code.PING} | values | changes)).encode()


REFUSED = [
    pytest.param(header(client=0), ErrorCode.INVALID_COMMAND, id="no client"),
    pytest.param(header(operation=0), ErrorCode.INVALID_COMMAND, id="operation 0"),
    pytest.param(header(operation=77), ErrorCode.INVALID_COMMAND, id="unknown operation"),
    pytest.param(header(code=9999), ErrorCode.INVALID_COMMAND, id="unknown code"),
    pytest.param(header(code=Code.CREATE_STREAM), ErrorCode.INVALID_COMMAND, id="code of another operation"),
    pytest.param(header(code=38), ErrorCode.INVALID_COMMAND, id="legacy login"),
    pytest.param(header(operation=1, session=1, request_number=0), ErrorCode.INVALID_COMMAND, id="login in a session"),
    pytest.param(header(operation=1, session=0), ErrorCode.INVALID_COMMAND, id="numbered login"),
    pytest.param(header(operation=3, session=0), ErrorCode.UNAUTHENTICATED, id="logout without a session"),
    pytest.param(header(operation=3, request_number=0), ErrorCode.INVALID_COMMAND, id="logout without a number"),
    pytest.param(header(operation=3, checksum=1), ErrorCode.INVALID_FORMAT, id="wrong checksum"),
    pytest.param(header(operation=1, session=0, request_number=0), ErrorCode.INVALID_FORMAT, id="empty login"),
]


@pytest.mark.parametrize(("frame", "code"), REFUSED)
def test_refused_requests_keep_the_connection(frame: bytes, code: ErrorCode) -> None:
    server = ServerConnection()
    server.feed(frame + client().request(system.Ping()))
    first = incoming(server)
    assert first.request == code
    reply = decode_reply_header(server.refusal(first, code, "no"))
    assert isinstance(reply, ReplyHeader)
    assert reply.status == code
    assert incoming(server).request == system.Ping()


def test_a_reply_echoes_its_request() -> None:
    request, server, end = exchange(streams.CreateStream("market"))
    frame = server.reply(request, encode_reply(ENTRY))
    sent, reply = request.header, decode_reply_header(frame)
    assert isinstance(reply, ReplyHeader)
    assert (reply.client, reply.request_checksum, reply.request_number, reply.operation) == (
        sent.client, sent.checksum, sent.request_number, sent.operation,
    )  # fmt: skip
    assert sent.checksum != 0
    assert reply.commit_number == 1
    found = answer(end, frame)
    assert (found.status, found.value, found.text) == (0, ENTRY, "")


def test_a_body_may_be_sent_apart() -> None:
    records = bytes(1000)
    polled = messages.PollReply(0, 41, 1, records)
    request, server, end = exchange(
        messages.PollMessages(Consumer(1, "audit"), 0, 0, 0, messages.POLL_NEXT, 0, 10, auto_commit=False)
    )
    head = polled.encode_head()
    frame = server.reply_head(request, len(head) + len(records)) + head + records
    assert answer(end, frame).value == polled
    assert frame == server.reply(request, encode_reply(polled)).replace(b"\2\0\0\0\0\0\0\0", b"\1\0\0\0\0\0\0\0", 1)


def test_refusals_carry_their_text() -> None:
    request, server, end = exchange(streams.CreateStream("market"))
    found = answer(end, server.refusal(request, ErrorCode.STREAM_NAME_ALREADY_EXISTS, "there is a stream 'märket'"))
    assert (found.status, found.text) == (1012, "there is a stream 'märket'")
    assert found.value is None
    request, server, end = exchange(system.Ping())
    long = answer(end, server.refusal(request, ErrorCode.ERROR, "x" * 10_000_000))
    assert 0 < len(long.text) < 100_000


def test_a_result_section_refuses_too() -> None:
    request, server, end = exchange(streams.CreateStream("market"))
    frame = server.reply(request)
    frame = frame[:SIZE_POSITION] + (HEADER_SIZE + 12).to_bytes(4, "little") + frame[SIZE_KNOWN_AT:HEADER_SIZE]
    assert answer(end, frame + result_error(1012)).status == 1012


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        (b"", (ErrorCode.INVALID_COMMAND, b"")),
        (b"\0\0\0", (ErrorCode.INVALID_COMMAND, b"")),
        (b"\0\0\0\0", (0, b"")),
        (b"\0\0\0\0rest", (0, b"rest")),
        (b"\1\0\0\0\0\0\0\0\xf4\3\0", (ErrorCode.INVALID_COMMAND, b"")),
        (b"\1\0\0\0\0\0\0\0\xf4\3\0\0", (1012, b"")),
        (b"\1\0\0\0\0\0\0\0\0\0\0\0rest", (0, b"rest")),
        (b"\2\0\0\0\0\0\0\0\xf4\3\0\0\1\0\0\0\x14\0\0\0", (1012, b"")),
        (b"\xff\xff\xff\xff\0\0\0\0\xf4\3\0\0", (ErrorCode.INVALID_COMMAND, b"")),
    ],
)  # fmt: skip
def test_result_sections(section: bytes, expected: tuple[int, bytes]) -> None:
    code, rest = split_result(memoryview(section))
    assert (code, bytes(rest)) == expected


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (EvictionReason.NO_SESSION, ErrorCode.UNAUTHENTICATED),
        (EvictionReason.INVALID_OPERATION, ErrorCode.INVALID_COMMAND),
        (EvictionReason.INVALID_BODY, ErrorCode.INVALID_COMMAND),
        (EvictionReason.INVALID_CREDENTIALS, ErrorCode.INVALID_CREDENTIALS),
        (EvictionReason.INVALID_TOKEN, ErrorCode.INVALID_TOKEN),
        (EvictionReason.USER_INACTIVE, ErrorCode.UNAUTHENTICATED),
        (EvictionReason.STALE_CLIENT, ErrorCode.STALE_CLIENT),
        (EvictionReason.MALFORMED_LOGIN, ErrorCode.INVALID_FORMAT),
    ],
)
def test_evictions(reason: EvictionReason, code: ErrorCode) -> None:
    request, server, end = exchange(system.Ping())
    frame = server.eviction(request, reason)
    assert len(frame) == HEADER_SIZE
    found = answer(end, frame)
    assert found.status == code
    assert found.header == Eviction(CLIENT, reason)


def test_an_eviction_carries_the_versions() -> None:
    request, server, end = exchange(system.Ping())
    found = answer(end, server.eviction(request, EvictionReason.INCOMPATIBLE_PROTOCOL, (11 << 10 | 3, 11 << 10)))
    assert isinstance(found.header, Eviction)
    assert (found.header.newest_version, found.header.oldest_version) == (11 << 10 | 3, 11 << 10)


def test_the_client_numbers_its_requests() -> None:
    end = ClientConnection(CLIENT)
    server = ServerConnection()
    numbers = []
    login = users.Login(11 << 10, "shmbroker", "0.1.0", "iggy", "iggy")
    reply = users.LoginReply(0, 7, 11 << 10, "0.1.0")
    plan: list[tuple[Request, object]] = [
        (system.Ping(), None), (login, reply), (streams.GetStreams(), ()), (streams.CreateStream("market"), ENTRY),
        (streams.GetStream(3), None), (groups.JoinGroup(0, 0, "g"), None), (users.Logout(), None),
    ]  # fmt: skip
    for request, value in plan:
        server.feed(end.request(request))
        received = incoming(server)
        numbers.append((received.header.session, received.header.request_number))
        found = answer(end, server.reply(received, encode_reply(value)))  # type: ignore[arg-type]
        assert found.value == value
        if request is login:
            end.session = 7
    assert numbers == [(0, 1), (0, 0), (7, 1), (7, 1), (7, 2), (7, 2), (7, 3)]


def test_a_reply_that_nobody_asked_for_ends_the_connection() -> None:
    request, server, end = exchange(system.Ping())
    frame = server.reply(request)
    assert answer(end, frame).status == 0
    end.feed(frame)
    assert isinstance(end.next_answer(), ConnectionFault)


def test_a_reply_to_another_operation_ends_the_connection() -> None:
    _, server, end = exchange(streams.CreateStream("market"))
    other, _, _ = exchange(system.Ping())
    end.feed(server.reply(other))
    assert isinstance(end.next_answer(), ConnectionFault)


def test_a_reply_that_makes_no_sense_is_an_error_value() -> None:
    request, server, end = exchange(streams.CreateStream("market"))
    assert answer(end, server.reply(request, b"nonsense")).value == ErrorCode.INVALID_COMMAND


@pytest.mark.parametrize(
    "request_",
    [
        streams.CreateStream(""),
        streams.CreateStream("x" * 256),
        streams.CreateStream("\ud800"),
        streams.GetStream(2**32),
        streams.GetStream(-1),
        topics.CreateTopic(0, -1, "t"),
        topics.CreateTopic(0, 2**32, "t"),
        users.CreateUser("abc", "abc", 256),
    ],
)
def test_what_the_wire_cannot_carry_is_the_callers_mistake(request_: Request) -> None:
    end = client()
    with pytest.raises(ClientMistake):
        end.request(request_)
    assert end.request(system.Ping()), "nothing was sent, so nothing is outstanding"


@given(st.binary(min_size=HEADER_SIZE, max_size=HEADER_SIZE))
def test_any_header_is_understood_or_refused(frame: bytes) -> None:
    for decode in (decode_request_header, decode_reply_header):
        found = decode(frame)
        assert isinstance(found, ErrorCode | RequestHeader | ReplyHeader | Eviction)
    assert decode_request_header(frame[:255]) == ErrorCode.INVALID_COMMAND
    assert decode_reply_header(frame[:255]) == ErrorCode.INVALID_COMMAND


def test_operations_that_a_client_accepts_in_replies_are_ours() -> None:
    """As recorded: plain 2, 3, 138, 160; framed 1, 128 to 137, 139 to 149, 161, 162."""
    plain = {spec.operation for spec in BY_CODE.values() if not spec.framed}
    framed = {spec.operation for spec in BY_CODE.values() if spec.framed}
    assert plain == {2, 3, 138, 160}
    assert framed == {1, *range(128, 138), *range(139, 150), 161, 162}
