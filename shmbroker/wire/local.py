"""Our own commands between a local client and the front: ordinary frames of operation 2 with JSON bodies.

They grant what shared memory needs: lanes, partitions, doorbells. Descriptors travel beside the reply (SCM_RIGHTS). The
codes lie far above Iggy's, so that no client of its meets them by accident; they are refused on TCP.

A body is one JSON object with exactly the fields of its class: an unknown, missing or mistyped one is InvalidCommand.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from enum import IntEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, ClassVar, Final, Self, get_args, get_origin, get_type_hints

from shmbroker.errors import ErrorCode
from shmbroker.wire.primitives import Malformed, Reader

LOCAL_SESSION: Final = 1
"""The session number in the headers of a local client: its socket's peer is its identity, it does not log in."""


class LocalCode(IntEnum):
    """Command codes of ours."""

    HELLO = 0x53480001
    OPEN_LANE = 0x53480002
    CONFIRM = 0x53480003
    OPEN_PARTITION = 0x53480004
    CLOSE_LANE = 0x53480005
    WATCH = 0x53480006
    UNWATCH = 0x53480007
    STATS = 0x53480008
    COMMIT_GROUP = 0x53480010
    AUTHENTICATE = 0x53480009
    AS_USER = 0x5348000A
    CHECK_USER = 0x5348000B
    LOGS = 0x5348000C
    OPEN_PARTITION_AS = 0x5348000D


RIGHTS: Final = frozenset({"append", "read", "offsets"})


def _matches(value: object, hint: Any) -> bool:
    """Whether a JSON value is of the annotated type; a bool is not an int, an int is not negative."""
    if isinstance(hint, UnionType):
        return any(_matches(value, option) for option in get_args(hint))
    origin = get_origin(hint)
    if origin is list:
        (item,) = get_args(hint)
        return isinstance(value, list) and all(_matches(element, item) for element in value)
    if origin is dict:
        return isinstance(value, dict)
    if hint is NoneType:
        return value is None
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**64
    return isinstance(value, hint)


@cache
def _hints_of(body: type[Any]) -> dict[str, Any]:
    """The fields of a body and their types."""
    hints = get_type_hints(body)
    return {field.name: hints[field.name] for field in fields(body)}


class JsonBody:
    """A body that is one JSON object: the fields of the dataclass that inherits from it."""

    __slots__ = ()

    def encode(self) -> bytes:
        """UTF-8 bytes. Raises :class:`Malformed` for text that has none."""
        text = json.dumps(asdict(self), separators=(",", ":"), ensure_ascii=False)  # type: ignore[call-overload]
        try:
            return text.encode()
        except UnicodeEncodeError:  # which would quote the text, and that may be a password
            raise Malformed("a text that UTF-8 cannot carry", ErrorCode.INVALID_FORMAT) from None

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """From the whole body. Raises :class:`Malformed`."""
        try:
            found = json.loads(bytes(reader.rest()))
        except (ValueError, RecursionError) as error:
            raise Malformed(f"not JSON: {error}") from None
        hints = _hints_of(cls)  # type: ignore[arg-type]
        if not isinstance(found, dict) or found.keys() != hints.keys():
            raise Malformed(f"{cls.__name__} has exactly the fields {', '.join(hints)}")
        for name, hint in hints.items():
            if not _matches(found[name], hint):
                raise Malformed(f"{cls.__name__}.{name} has a value of the wrong type")
        return cls(**found)


@dataclass(frozen=True, slots=True)
class Hello(JsonBody):
    """First frame of a local client. ``version`` is that of the package."""

    CODE: ClassVar[int] = LocalCode.HELLO
    version: str
    pid: int


@dataclass(frozen=True, slots=True)
class HelloReply(JsonBody):
    """``data``, ``runtime``: directories. ``instance``: number of this start of the broker. ``prefix``: how the names
    of the bells of this connection begin; what is left of them is swept when it closes. ``tcp``: HOST:PORT where the
    binary protocol is served; empty where it is not."""

    version: str
    data: str
    runtime: str
    instance: int
    prefix: str
    tcp: str


@dataclass(frozen=True, slots=True)
class OpenLane(JsonBody):
    """A lane to ``worker`` with a request ring of ``size`` bytes; ``event``: completions ring an eventfd."""

    CODE: ClassVar[int] = LocalCode.OPEN_LANE
    worker: int
    size: int
    event: bool


@dataclass(frozen=True, slots=True)
class OpenLaneReply(JsonBody):
    """``doorbell``: path of the worker's doorbell. ``completion``: name of the bell that completions ring, or None
    where it is an eventfd. Descriptors beside it: the lane's memory file, then the eventfd if there is one."""

    lane_id: int
    size: int
    doorbell: str
    completion: str | None


@dataclass(frozen=True, slots=True)
class Confirm(JsonBody):
    """The client has opened these bells: the front unlinks their names."""

    CODE: ClassVar[int] = LocalCode.CONFIRM
    names: list[str]


def _check_rights(rights: list[str]) -> None:
    if not rights or not RIGHTS.issuperset(rights):
        raise Malformed(f"rights are some of {', '.join(sorted(RIGHTS))}")


@dataclass(frozen=True, slots=True)
class OpenPartition(JsonBody):
    """Opens one partition for the connection's lanes. ``rights``: of RIGHTS."""

    CODE: ClassVar[int] = LocalCode.OPEN_PARTITION
    stream: int | str
    topic: int | str
    partition: int
    rights: list[str]

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """From the whole body. Raises :class:`Malformed`."""
        request = super(OpenPartition, cls).decode(reader)
        _check_rights(request.rights)
        return request


@dataclass(frozen=True, slots=True)
class OpenPartitionReply(JsonBody):
    """``state`` and ``reason``: as in the partition's control block and its description."""

    log_id: int
    worker: int
    stream_id: int
    topic_id: int
    partition_id: int
    durability: str
    consumer_offset_durability: str
    directory: str
    control: str
    state: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class CloseLane(JsonBody):
    """The client has no more use for this lane."""

    CODE: ClassVar[int] = LocalCode.CLOSE_LANE
    lane_id: int


@dataclass(frozen=True, slots=True)
class Watch(JsonBody):
    """Ring me after each pass in which a visible position of these logs moved."""

    CODE: ClassVar[int] = LocalCode.WATCH
    log_ids: list[int]
    event: bool


@dataclass(frozen=True, slots=True)
class WatchReply(JsonBody):
    """``bell``: name, or None where it is an eventfd, whose descriptor travels beside."""

    watch_id: int
    bell: str | None


@dataclass(frozen=True, slots=True)
class Unwatch(JsonBody):
    """Ends a watch."""

    CODE: ClassVar[int] = LocalCode.UNWATCH
    watch_id: int


@dataclass(frozen=True, slots=True)
class Stats(JsonBody):
    """Asks for all figures of the broker."""

    CODE: ClassVar[int] = LocalCode.STATS


@dataclass(frozen=True, slots=True)
class StatsReply(JsonBody):
    """Figures of the front, of each worker, of each partition."""

    broker: dict[str, Any]
    workers: list[dict[str, Any]]
    partitions: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Authenticate(JsonBody):
    """Asks who it is: by ``username`` and ``password``, or by ``token``; the others are None. ``address``: of the peer
    whose attempts are counted; empty for a token that came with a request.

    For local clients of the broker's own user alone (the HTTP gateway).
    """

    CODE: ClassVar[int] = LocalCode.AUTHENTICATE
    username: str | None
    password: str | None
    token: str | None
    address: str

    def __repr__(self) -> str:
        return f"Authenticate(username={self.username!r}, address={self.address!r})"


@dataclass(frozen=True, slots=True)
class AuthenticateReply(JsonBody):
    """``created_at_us``: of the user; ids are used again, the two together are not. ``expires_at_us``: when the token
    that was given expires, or None."""

    user_id: int
    created_at_us: int
    username: str
    expires_at_us: int | None


@dataclass(frozen=True, slots=True)
class AsUser(JsonBody):
    """Carries out another command as a user: its ``code``, and its ``body`` in base64. What the user may not do is
    refused with 41, a user that is gone or inactive with 40. Not for commands that need descriptors."""

    CODE: ClassVar[int] = LocalCode.AS_USER
    user_id: int
    created_at_us: int
    code: int
    body: str


@dataclass(frozen=True, slots=True)
class AsUserReply(JsonBody):
    """The body of the inner reply, in base64; an inner refusal is the refusal of AS_USER."""

    body: str


@dataclass(frozen=True, slots=True)
class CheckUser(JsonBody):
    """Asks whether a user may do a command, ``code``, to a stream and topic: for what does not go through the front,
    like messages in lanes. Refused with 41 where it may not, with 40 where the user is gone or inactive."""

    CODE: ClassVar[int] = LocalCode.CHECK_USER
    user_id: int
    created_at_us: int
    code: int
    stream: int | str
    topic: int | str


@dataclass(frozen=True, slots=True)
class OpenPartitionAs(JsonBody):
    """CHECK_USER and OPEN_PARTITION in one: opens a partition for the lanes of a gateway, if the user may do what the
    rights are for. One question for each message request, since every one of them is asked about."""

    CODE: ClassVar[int] = LocalCode.OPEN_PARTITION_AS
    user_id: int
    created_at_us: int
    stream: int | str
    topic: int | str
    partition: int
    rights: list[str]

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """From the whole body. Raises :class:`Malformed`."""
        request = super(OpenPartitionAs, cls).decode(reader)
        _check_rights(request.rights)
        return request


@dataclass(frozen=True, slots=True)
class CommitGroup(JsonBody):
    """Stores offsets of a group, ``offsets[i]`` of ``partitions[i]``, and lets go of ``released`` after that.

    ``automatic``: never lowers what is stored, and is answered before the policy is met. For members of the group.
    """

    CODE: ClassVar[int] = LocalCode.COMMIT_GROUP
    stream: int | str
    topic: int | str
    group: int | str
    partitions: list[int]
    offsets: list[int]
    automatic: bool
    released: list[int]


@dataclass(frozen=True, slots=True)
class CommitGroupReply(JsonBody):
    """``fenced``: the partitions that are not this member's, of which nothing was stored."""

    fenced: list[int]


@dataclass(frozen=True, slots=True)
class Logs(JsonBody):
    """Asks which logs there are and where their control blocks are. No worker is asked."""

    CODE: ClassVar[int] = LocalCode.LOGS


@dataclass(frozen=True, slots=True)
class LogsReply(JsonBody):
    """``figures``: counts of the catalog, by name. ``logs``: for each {"log_id", "stream", "topic", "partition",
    "worker", "state", "reason", "control"}; ``control`` is a path, empty where there is none."""

    figures: dict[str, Any]
    logs: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Done(JsonBody):
    """The reply of CONFIRM, CLOSE_LANE and UNWATCH: an empty object."""


REQUESTS: Final = (
    Hello,
    OpenLane,
    Confirm,
    OpenPartition,
    CloseLane,
    Watch,
    Unwatch,
    Stats,
    CommitGroup,
    Authenticate,
    AsUser,
    CheckUser,
    Logs,
    OpenPartitionAs,
)
REPLIES: Final[dict[int, type[JsonBody]]] = {
    LocalCode.HELLO: HelloReply,
    LocalCode.OPEN_LANE: OpenLaneReply,
    LocalCode.CONFIRM: Done,
    LocalCode.OPEN_PARTITION: OpenPartitionReply,
    LocalCode.CLOSE_LANE: Done,
    LocalCode.WATCH: WatchReply,
    LocalCode.UNWATCH: Done,
    LocalCode.STATS: StatsReply,
    LocalCode.COMMIT_GROUP: CommitGroupReply,
    LocalCode.AUTHENTICATE: AuthenticateReply,
    LocalCode.AS_USER: AsUserReply,
    LocalCode.CHECK_USER: Done,
    LocalCode.LOGS: LogsReply,
    LocalCode.OPEN_PARTITION_AS: OpenPartitionReply,
}
