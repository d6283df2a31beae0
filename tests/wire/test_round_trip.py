"""Every request and reply, made up from the types of its fields: out and back the same; and bodies that are not right.

A strategy is found by the name of a field where the name says more than the type (a status, a strategy of polling).
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from struct import Struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmbroker.core.options import OptionDefault, OptionValue
from shmbroker.errors import ErrorCode
from shmbroker.limits import OPTION_COUNT_MAX, OPTIONS_SIZE_MAX
from shmbroker.wire import groups, local, messages, offsets, primitives, streams, system, topics, users
from shmbroker.wire.codes import BY_CODE, Code
from shmbroker.wire.commands import EMPTY_ALLOWED, LISTS, REPLIES, decode_reply, decode_request, encode_reply
from shmbroker.wire.primitives import Consumer, Malformed, Reader

MODULES = (system, users, streams, topics, messages, offsets, groups, local)
REQUESTS: dict[int, type] = {
    request.CODE: request for module in MODULES for request in typing.cast(Any, module).REQUESTS
} | {Code.LOGIN: users.Login, Code.LOGIN_WITH_TOKEN: users.LoginWithToken}

U8 = st.integers(0, 2**8 - 1)
U16 = st.integers(0, 2**16 - 1)
U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
NAME = st.text(st.characters(codec="utf-8"), min_size=1, max_size=63)
TEXT = st.text(st.characters(codec="utf-8"), max_size=63)
F32 = st.floats(width=32, allow_nan=False)
IDENTIFIER = U32 | NAME
KIND_AND_VALUE = st.tuples(st.integers(1, 255), st.binary(min_size=1, max_size=255))
OPTIONS = st.dictionaries(NAME, KIND_AND_VALUE, max_size=6).map(
    lambda found: tuple(OptionValue(key, *found[key]) for key in sorted(found, key=str.encode))
)
JSON = st.dictionaries(TEXT, st.integers() | TEXT | st.none(), max_size=3)


def flags(count: int) -> st.SearchStrategy[tuple[bool, ...]]:
    return st.lists(st.booleans(), min_size=count, max_size=count).map(tuple)


def batch(count: int, size: int) -> bytes:
    """Bytes that have a batch's length and count where they belong, and nothing else."""
    return Struct("<32xQ8xI").pack(256 + size, count).ljust(256 + size, b"\0")


TOPIC_PERMISSIONS = st.builds(users.TopicPermissions, U32, flags(4))
STREAM_PERMISSIONS = st.builds(
    users.StreamPermissions, U32, flags(6), st.lists(TOPIC_PERMISSIONS, max_size=3).map(tuple)
)
BY_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    int | str: IDENTIFIER,
    str: NAME,
    bool: st.booleans(),
    bytes: st.binary(max_size=99),
    int | None: st.none() | U32,
    str | None: st.none() | NAME,
    float: F32,
    list[str]: st.lists(TEXT, max_size=3),
    list[int]: st.lists(U64, max_size=3),
    dict[str, Any]: JSON,
    list[dict[str, Any]]: st.lists(JSON, max_size=3),
    tuple[int, ...]: st.lists(U32, max_size=5).map(tuple),
    Consumer: st.builds(Consumer, st.sampled_from((1, 2)), IDENTIFIER),
    tuple[OptionValue, ...]: OPTIONS,
    messages.Partitioning: st.one_of(
        st.just(messages.Partitioning(1, b"")),
        U32.map(messages.Partitioning.partition),
        st.binary(min_size=1, max_size=255).map(lambda key: messages.Partitioning(3, key)),
    ),
    users.Permissions: st.builds(users.Permissions, flags(10), st.lists(STREAM_PERMISSIONS, max_size=3).map(tuple)),
    tuple[OptionDefault, ...]: st.lists(
        st.builds(OptionDefault, NAME, U8, st.binary(max_size=20), TEXT), max_size=4
    ).map(tuple),
    tuple[system.ClusterNode, ...]: st.lists(
        st.builds(system.ClusterNode, TEXT, TEXT, U16, U16, U16, U16, U8, U8), max_size=3
    ).map(tuple),
    tuple[system.CacheFigures, ...]: st.lists(
        st.builds(system.CacheFigures, U32, U32, U32, U64, U64, F32), max_size=3
    ).map(tuple),
    tuple[messages.Confirmation, ...]: st.lists(
        st.builds(messages.Confirmation, U32, U32, U32, U64), max_size=3
    ).map(tuple),
    bytes | memoryview: st.binary(max_size=99),
}  # fmt: skip
BY_NAME: dict[str, st.SearchStrategy[Any]] = {
    "status": st.sampled_from((1, 2)),
    "scope": st.sampled_from((1, 2, 3)),
    "compression": st.integers(1, 6),
    "compression_algorithm": st.sampled_from(("none", "gzip")),
    "strategy": st.integers(1, 5),
    "transport": U8,
    "password": TEXT,
    "current": TEXT,
    "new": TEXT,
    "context": TEXT,
    "rights": st.lists(st.sampled_from(sorted(local.RIGHTS)), min_size=1, max_size=3, unique=True),
    **dict.fromkeys(("host_name", "os_name", "os_version", "kernel_version", "address"), TEXT),
    **dict.fromkeys(
        [
            "memory_usage",
            "total_memory",
            "available_memory",
            "run_time_us",
            "start_time_us",
            "read_bytes",
            "written_bytes",
            "messages_size",
            "free_disk_space",
            "total_disk_space",
            "size",
            "max_topic_size",
            "message_expiry_us",
            "created_at_us",
            "expires_at_us",
            "expiry_us",
            "offset",
            "current_offset",
            "stored_offset",
            "session",
            "generation",
            "value",
            "base_offset",
        ],
        U64,
    ),
}


@st.composite
def objects(draw: st.DrawFn, kind: Any) -> Any:
    """Any object of a dataclass of the wire."""
    hints = typing.get_type_hints(kind)
    chosen = {}
    for field in fields(kind):
        hint = hints[field.name]
        if isinstance(hint, types.UnionType) and types.NoneType in typing.get_args(hint) and hint not in BY_TYPE:
            inner = next(option for option in typing.get_args(hint) if option is not types.NoneType)
            chosen[field.name] = draw(st.none() | BY_TYPE[inner])
        elif field.name in BY_NAME and hint in (int, str, list[str], int | None):
            chosen[field.name] = draw(st.none() | BY_NAME[field.name] if hint == int | None else BY_NAME[field.name])
        elif is_dataclass(hint) and hint not in BY_TYPE:
            chosen[field.name] = draw(objects(hint))
        else:
            chosen[field.name] = draw(BY_TYPE.get(hint, U32))
    return kind(**consistent(draw, kind, chosen))


def consistent(draw: st.DrawFn, kind: Any, chosen: dict[str, Any]) -> dict[str, Any]:
    """Lists that an entry counts have as many items as it says."""
    if kind is system.ClientDetails:
        memberships = draw(st.lists(st.builds(system.Membership, U32, U32, U32), max_size=3))
        chosen = {
            "client": replace(chosen["client"], memberships_count=len(memberships)),
            "memberships": tuple(memberships),
        }
    elif kind is streams.StreamDetails:
        found = draw(st.lists(objects(topics.TopicEntry), max_size=3))
        chosen = {"stream": replace(chosen["stream"], topics_count=len(found)), "topics": tuple(found)}
    elif kind is topics.TopicDetails:
        rows = draw(st.lists(st.builds(topics.PartitionEntry, U32, U64, U32, U64, U64, U64), max_size=3))
        chosen = {"topic": replace(chosen["topic"], partitions_count=len(rows)), "partitions": tuple(rows)}
    elif kind is topics.TopicList:
        chosen = {"topics": tuple(draw(st.lists(objects(topics.TopicEntry), max_size=3)))}
    elif kind is groups.GroupDetails:
        members = draw(st.lists(st.builds(groups.GroupMember, U32, st.lists(U32, max_size=3).map(tuple)), max_size=3))
        chosen = {"group": replace(chosen["group"], members_count=len(members)), "members": tuple(members)}
    elif kind is users.LoginWithToken:
        chosen["context"] = ""  # No client sends one, and with one the two shapes could be taken for each other.
    elif kind is messages.SendMessages:
        count = draw(st.integers(1, 2**32 - 1))
        chosen |= {"count": count, "batch": batch(count, draw(st.integers(0, 99)))}
    return chosen


def replace(value: Any, **changes: Any) -> Any:
    return type(value)(**{field.name: getattr(value, field.name) for field in fields(value)} | changes)


def reply_kind(decode: Any) -> Any:
    """The class whose ``decode`` stands in a table."""
    return decode.__self__


@pytest.mark.parametrize("code", sorted(REQUESTS), ids=lambda code: REQUESTS[code].__name__)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_requests_come_back(code: int, data: st.DataObject) -> None:
    request = data.draw(objects(REQUESTS[code]))
    body = request.encode()
    assert decode_request(code, body) == request
    longer = decode_request(code, body + b"\0")
    if code == Code.LOGIN_WITH_TOKEN:
        # With one zero more it is a login with an empty password: the two shapes are told apart by their length alone.
        found = [getattr(request, field.name) for field in fields(request)]
        assert longer == users.Login(found[0], found[1], found[2], username=found[3], password="")
    else:
        assert isinstance(longer, ErrorCode), "a byte too many"
    cut = data.draw(st.integers(0, max(len(body) - 1, 0)))
    shorter = decode_request(code, body[:cut])
    assert cut == len(body) or shorter != request


@pytest.mark.parametrize("code", sorted(REPLIES))
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_replies_come_back(code: int, data: st.DataObject) -> None:
    value = data.draw(objects(reply_kind(REPLIES[code])))
    assert decode_reply(code, encode_reply(value)) == value


@pytest.mark.parametrize("code", sorted(LISTS))
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_lists_come_back(code: int, data: st.DataObject) -> None:
    value = tuple(data.draw(st.lists(objects(reply_kind(LISTS[code])), max_size=4)))
    assert decode_reply(code, encode_reply(value)) == value


def test_every_command_has_both_ends() -> None:
    assert REQUESTS.keys() == BY_CODE.keys()
    assert BY_CODE.keys() >= REPLIES.keys() | LISTS.keys() | EMPTY_ALLOWED
    nothing = BY_CODE.keys() - REPLIES.keys() - LISTS.keys()
    for code in nothing | EMPTY_ALLOWED:
        value = decode_reply(code, b"")
        assert value is None or value == topics.TopicList(())
    for code in REPLIES.keys() - EMPTY_ALLOWED - {Code.GET_SNAPSHOT}:
        assert decode_reply(code, b"") == ErrorCode.INVALID_COMMAND


@settings(deadline=None)
@given(code=st.sampled_from(sorted(BY_CODE)) | U32, body=st.binary(max_size=300))
def test_any_bytes_are_a_request_or_an_error_number(code: int, body: bytes) -> None:
    request = decode_request(code, body)
    if not isinstance(request, ErrorCode):
        assert decode_request(code, request.encode()) == request
    reply = decode_reply(code, body)
    if not isinstance(reply, ErrorCode):
        assert decode_reply(code, encode_reply(reply)) == reply


@pytest.mark.parametrize("code", sorted(REQUESTS), ids=lambda code: REQUESTS[code].__name__)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_damaged_body_is_never_an_exception(code: int, data: st.DataObject) -> None:
    body = bytearray(data.draw(objects(REQUESTS[code])).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        if body:
            body[data.draw(st.integers(0, len(body) - 1))] = data.draw(U8)
    request = decode_request(code, bytes(body))
    assert isinstance(request, ErrorCode) or request.CODE in BY_CODE


BAD_BODIES = [
    pytest.param(Code.GET_STREAM, b"\x01\x05\0\0\0\0\0", ErrorCode.INVALID_COMMAND, id="number of five bytes"),
    pytest.param(Code.GET_STREAM, b"\x02\0", ErrorCode.INVALID_COMMAND, id="empty name"),
    pytest.param(Code.GET_STREAM, b"\x03\x01a", ErrorCode.INVALID_COMMAND, id="identifier of a third kind"),
    pytest.param(Code.GET_STREAM, b"\x02\x02\xff\xfe", ErrorCode.INVALID_COMMAND, id="not UTF-8"),
    pytest.param(Code.CREATE_STREAM, b"\0", ErrorCode.INVALID_COMMAND, id="empty stream name"),
    pytest.param(Code.CREATE_USER, b"\x03abc\x03abc\x03\0", ErrorCode.INVALID_USER_STATUS, id="user status"),
    pytest.param(Code.DESCRIBE_OPTIONS, b"\x04", ErrorCode.INVALID_COMMAND, id="scope"),
    pytest.param(Code.LOGIN, b"\0\x2c\0\0\x01a\x01b", ErrorCode.INVALID_FORMAT, id="login of neither shape"),
    pytest.param(Code.PING, b"x", ErrorCode.INVALID_COMMAND, id="ping with a body"),
    pytest.param(
        Code.CREATE_STREAM,
        b"\x01s" + b"\x02\x01\0\0\0k\x02\x01\0\0\0v" * 2,
        ErrorCode.INVALID_COMMAND,
        id="option twice",
    ),
    pytest.param(
        Code.CREATE_STREAM, b"\x01s\x01\x01\0\0\0k\x02\x01\0\0\0v", ErrorCode.INVALID_COMMAND, id="raw option key"
    ),
    pytest.param(
        Code.CREATE_STREAM, b"\x01s\x02\x01\0\0\0k\x02\0\0\0\0", ErrorCode.INVALID_COMMAND, id="option without a value"
    ),
    pytest.param(
        Code.CREATE_STREAM,
        b"\x01s"
        + primitives.options(OptionValue(f"{number}", 2, b"v") for number in range(OPTION_COUNT_MAX + 1)),
        ErrorCode.OPTIONS_BLOCK_TOO_LARGE,
        id="too many options",
    ),
    pytest.param(
        Code.CREATE_STREAM,
        b"\x01s"
        + primitives.options(OptionValue(f"{n:0255}", 2, b"v" * 255) for n in range(OPTIONS_SIZE_MAX // 520 + 1)),
        ErrorCode.OPTIONS_BLOCK_TOO_LARGE,
        id="options of too many bytes",
    ),
    pytest.param(local.LocalCode.HELLO, b"", ErrorCode.INVALID_COMMAND, id="no JSON"),
    pytest.param(local.LocalCode.HELLO, b'{"version":"1"}', ErrorCode.INVALID_COMMAND, id="JSON field missing"),
    pytest.param(local.LocalCode.HELLO, b'{"version":"1","pid":true}', ErrorCode.INVALID_COMMAND, id="a bool"),
    pytest.param(local.LocalCode.HELLO, b'{"version":"1","pid":-1}', ErrorCode.INVALID_COMMAND, id="negative number"),
    pytest.param(
        local.LocalCode.HELLO, b'{"version":"1","pid":1,"x":1}', ErrorCode.INVALID_COMMAND, id="JSON field too many"
    ),
    pytest.param(local.LocalCode.HELLO, b"[" * 100_000, ErrorCode.INVALID_COMMAND, id="JSON of great depth"),
    pytest.param(
        local.LocalCode.OPEN_PARTITION,
        b'{"stream":1,"topic":"t","partition":0,"rights":["append","all"]}',
        ErrorCode.INVALID_COMMAND,
        id="unknown right",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("code", "body", "expected"), BAD_BODIES)
def test_bad_bodies(code: int, body: bytes, expected: ErrorCode) -> None:
    assert decode_request(code, body) == expected


def send(count: int = 1, metadata_size: int | None = None, body: bytes | None = None) -> bytes:
    head = b"\x02\x01s\x02\x01t\x02\x04\0\0\0\0" + count.to_bytes(4, "little")
    size = len(head) if metadata_size is None else metadata_size
    return size.to_bytes(4, "little") + head + (batch(1, 0) if body is None else body)


def test_a_send_must_fit_its_batch() -> None:
    assert not isinstance(decode_request(Code.SEND_MESSAGES, send()), ErrorCode)
    wrong = [
        send(metadata_size=15), send(metadata_size=17), send(metadata_size=2**32 - 1), send(body=b""), send(count=2),
        send(body=batch(1, 8)[:-1]), send(body=batch(1, 0) + b"\0"), send(body=batch(1, 0)[:255]),
    ]  # fmt: skip
    assert {decode_request(Code.SEND_MESSAGES, body) for body in wrong} == {ErrorCode.INVALID_COMMAND}
    assert decode_request(Code.SEND_MESSAGES, send(count=0)) == ErrorCode.INVALID_MESSAGES_COUNT
    keyless = send().replace(b"\x02\x04\0\0\0\0", b"\x03\x00").replace(b"\x10\0\0\0", b"\x0c\0\0\0", 1)
    assert decode_request(Code.SEND_MESSAGES, keyless) == ErrorCode.INVALID_KEY_VALUE_LENGTH


def test_a_batch_is_not_copied() -> None:
    frame = bytearray(send())
    request = decode_request(Code.SEND_MESSAGES, memoryview(frame))
    assert isinstance(request, messages.SendMessages)
    assert isinstance(request.batch, memoryview)
    frame[-1] = 7
    assert request.batch[-1] == 7
    assert request.encode_head() + bytes(request.batch) == bytes(frame)


def test_what_cannot_be_encoded_says_so() -> None:
    attempts: list[Callable[[], bytes]] = [
        lambda: primitives.str8(""),
        lambda: primitives.str8("x" * 256),
        lambda: primitives.str8("\ud800"),
        lambda: primitives.str32("\ud800"),
        lambda: primitives.identifier(-1),
        lambda: primitives.identifier(2**32),
        lambda: primitives.options([OptionValue("k", 2, b"")]),
    ]
    for attempt in attempts:
        with pytest.raises(Malformed):
            attempt()


def test_a_reader_cannot_be_led_past_its_end() -> None:
    reader = Reader(b"\x01\x02\x03\x04")
    with pytest.raises(Malformed):
        reader.take(5)
    assert reader.u32() == 0x04030201
    with pytest.raises(Malformed):
        reader.u8()
    reader.finish()
