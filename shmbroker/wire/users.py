"""Commands about users, their permissions and tokens, and the two logins.

user entry     u32 id, u64 created (us), u8 status, str8 name, options with a u32 length
user details   user entry, then u32 0, or u8 1, u32 length, permissions
login          u32 protocol version, str8 SDK, str8 SDK version, then
               by password: str8 name, u8 length + password, str32 context; by token: u8 length + token, str32 context

permissions    10 flags, u8 more, then for each stream: u32 id, 6 flags, u8 more, then for each topic: u32 id,
               4 flags, u8 more; u8 more
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final, Self

from shmbroker.core.options import OptionValue
from shmbroker.core.permissions import (
    GLOBAL_FLAGS,
    STREAM_FLAGS,
    TOPIC_FLAGS,
    Flags,
    Permissions,
    StreamPermissions,
    TopicPermissions,
)
from shmbroker.errors import ErrorCode
from shmbroker.wire import primitives
from shmbroker.wire.bodies import NothingBody, UserBody
from shmbroker.wire.codes import Code
from shmbroker.wire.primitives import U8, U32, U64, Identifier, Malformed, Reader

STATUS_ACTIVE: Final = 1
STATUS_INACTIVE: Final = 2


def encode_permissions(permissions: Permissions) -> bytes:
    """As in the drawing."""
    parts = [bytes(permissions.flags), U8.pack(bool(permissions.streams))]
    for number, stream in enumerate(permissions.streams, 1):
        parts += (U32.pack(stream.stream_id), bytes(stream.flags), U8.pack(bool(stream.topics)))
        for topic_number, topic in enumerate(stream.topics, 1):
            more = topic_number < len(stream.topics)
            parts += (U32.pack(topic.topic_id), bytes(topic.flags), U8.pack(more))
        parts.append(U8.pack(number < len(permissions.streams)))
    return b"".join(parts)


def decode_permissions(reader: Reader) -> Permissions:
    """As in the drawing; any flag that is not 0 is set."""
    flags = _flags(reader, len(GLOBAL_FLAGS))
    streams: list[StreamPermissions] = []
    more = reader.u8()
    while more:
        stream_id, stream_flags = reader.u32(), _flags(reader, len(STREAM_FLAGS))
        topics: list[TopicPermissions] = []
        more_topics = reader.u8()
        while more_topics:
            topics.append(TopicPermissions(reader.u32(), _flags(reader, len(TOPIC_FLAGS))))
            more_topics = reader.u8()
        streams.append(StreamPermissions(stream_id, stream_flags, tuple(topics)))
        more = reader.u8()
    return Permissions(flags, tuple(streams))


def _flags(reader: Reader, count: int) -> Flags:
    return tuple(flag != 0 for flag in reader.take(count))


def _permissions_bytes(permissions: Permissions | None, absent: bytes) -> bytes:
    if permissions is None:
        return absent
    block = encode_permissions(permissions)
    return b"\1" + U32.pack(len(block)) + block


def _permissions(reader: Reader) -> Permissions | None:
    if not reader.flag():
        return None
    block = Reader(reader.take(reader.u32()))
    permissions = decode_permissions(block)
    block.finish()
    return permissions


def _status(reader: Reader) -> int:
    status = reader.u8()
    if status not in (STATUS_ACTIVE, STATUS_INACTIVE):
        raise Malformed(f"user status {status}", ErrorCode.INVALID_USER_STATUS)
    return status


# --- logins -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Login:
    """By user name and password."""

    CODE: ClassVar[int] = Code.LOGIN
    protocol_version: int
    sdk_name: str
    sdk_version: str
    username: str
    password: str = field(repr=False)
    context: str = ""

    def encode(self) -> bytes:
        """As in the drawing."""
        head = _login_head(self.protocol_version, self.sdk_name, self.sdk_version)
        user = primitives.str8(self.username) + primitives.short8(self.password)
        return head + user + primitives.str32(self.context)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """As in the drawing."""
        head = reader.u32(), reader.str8(), reader.str8()
        return cls(*head, reader.str8(), reader.short8(), reader.str32())


@dataclass(frozen=True, slots=True)
class LoginWithToken:
    """By personal access token."""

    CODE: ClassVar[int] = Code.LOGIN_WITH_TOKEN
    protocol_version: int
    sdk_name: str
    sdk_version: str
    token: str = field(repr=False)
    context: str = ""

    def encode(self) -> bytes:
        """As in the drawing."""
        head = _login_head(self.protocol_version, self.sdk_name, self.sdk_version)
        return head + primitives.str8(self.token) + primitives.str32(self.context)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """As in the drawing."""
        return cls(reader.u32(), reader.str8(), reader.str8(), reader.str8(), reader.str32())


def _login_head(version: int, name: str, sdk_version: str) -> bytes:
    return U32.pack(version) + primitives.str8(name) + primitives.str8(sdk_version)


def decode_login(body: bytes | memoryview) -> Login | LoginWithToken:
    """Whichever of the two shapes takes the body exactly. Raises Malformed, INVALID_FORMAT."""
    for shape in (Login, LoginWithToken):
        reader = Reader(body)
        try:
            login = shape.decode(reader)
            reader.finish()
        except Malformed:
            continue
        return login
    raise Malformed("a login of neither shape", ErrorCode.INVALID_FORMAT)


@dataclass(frozen=True, slots=True)
class LoginReply:
    """``session`` is above 0; ``protocol_version`` is packed; ``server_version`` is not empty."""

    user_id: int
    session: int
    protocol_version: int
    server_version: str

    def encode(self) -> bytes:
        """u32, u64, u32, str8."""
        head = U32.pack(self.user_id) + U64.pack(self.session) + U32.pack(self.protocol_version)
        return head + primitives.str8(self.server_version)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """u32, u64, u32, str8."""
        return cls(reader.u32(), reader.u64(), reader.u32(), reader.str8())


@dataclass(frozen=True, slots=True)
class Logout(NothingBody):
    """Ends the session, not the connection."""

    CODE: ClassVar[int] = Code.LOGOUT


# --- users ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class UserEntry:
    """One user: an item of GET_USERS."""

    user_id: int
    created_at_us: int
    status: int
    username: str
    options: tuple[OptionValue, ...] = ()

    def encode(self) -> bytes:
        """As in the drawing."""
        head = U32.pack(self.user_id) + U64.pack(self.created_at_us) + U8.pack(self.status)
        return head + primitives.str8(self.username) + primitives.options32(self.options)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """As in the drawing."""
        head = reader.u32(), reader.u64(), _status(reader), reader.str8()
        return cls(*head, reader.options(reader.u32()))


@dataclass(frozen=True, slots=True)
class UserDetails:
    """One user with permissions: the reply of GET_USER and CREATE_USER."""

    user: UserEntry
    permissions: Permissions | None = None

    def encode(self) -> bytes:
        """As in the drawing."""
        return self.user.encode() + _permissions_bytes(self.permissions, U32.pack(0))

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """As in the drawing."""
        user = UserEntry.decode(reader)
        permissions = _permissions(reader)
        if permissions is None and any(reader.take(3)):
            raise Malformed("permissions that are neither there nor not")
        return cls(user, permissions)


@dataclass(frozen=True, slots=True)
class GetUser(UserBody):
    """One user; an empty reply where there is none."""

    CODE: ClassVar[int] = Code.GET_USER


@dataclass(frozen=True, slots=True)
class GetUsers(NothingBody):
    """All users."""

    CODE: ClassVar[int] = Code.GET_USERS


@dataclass(frozen=True, slots=True)
class CreateUser:
    """A new user."""

    CODE: ClassVar[int] = Code.CREATE_USER
    username: str
    password: str = field(repr=False)
    status: int
    permissions: Permissions | None = None
    options: tuple[OptionValue, ...] = ()

    def encode(self) -> bytes:
        """str8, u8 length + password, u8, permissions, options to the end."""
        head = primitives.str8(self.username) + primitives.short8(self.password) + U8.pack(self.status)
        return head + _permissions_bytes(self.permissions, b"\0") + primitives.options(self.options)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """str8, u8 length + password, u8, permissions, options to the end."""
        head = reader.str8(), reader.short8(), _status(reader)
        return cls(*head, _permissions(reader), reader.options())


@dataclass(frozen=True, slots=True)
class DeleteUser(UserBody):
    """Removes a user."""

    CODE: ClassVar[int] = Code.DELETE_USER


@dataclass(frozen=True, slots=True)
class UpdateUser:
    """Another name, another status; None stays as it is."""

    CODE: ClassVar[int] = Code.UPDATE_USER
    user: Identifier
    username: str | None = None
    status: int | None = None
    options: tuple[OptionValue, ...] = ()

    def encode(self) -> bytes:
        """identifier, flag [str8], flag [u8], options to the end."""
        name = b"\0" if self.username is None else b"\1" + primitives.str8(self.username)
        status = b"\0" if self.status is None else b"\1" + U8.pack(self.status)
        return primitives.identifier(self.user) + name + status + primitives.options(self.options)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """identifier, flag [str8], flag [u8], options to the end."""
        user = reader.identifier()
        username = reader.str8() if reader.flag() else None
        status = _status(reader) if reader.flag() else None
        return cls(user, username, status, reader.options())


@dataclass(frozen=True, slots=True)
class UpdatePermissions:
    """Other permissions, or none."""

    CODE: ClassVar[int] = Code.UPDATE_PERMISSIONS
    user: Identifier
    permissions: Permissions | None

    def encode(self) -> bytes:
        """identifier, permissions."""
        return primitives.identifier(self.user) + _permissions_bytes(self.permissions, b"\0")

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """identifier, permissions."""
        return cls(reader.identifier(), _permissions(reader))


@dataclass(frozen=True, slots=True)
class ChangePassword:
    """Another password."""

    CODE: ClassVar[int] = Code.CHANGE_PASSWORD
    user: Identifier
    current: str = field(repr=False)
    new: str = field(repr=False)

    def encode(self) -> bytes:
        """identifier, u8 length + password, twice."""
        return primitives.identifier(self.user) + primitives.short8(self.current) + primitives.short8(self.new)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """identifier, u8 length + password, twice."""
        return cls(reader.identifier(), reader.short8(), reader.short8())


# --- tokens -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class GetTokens(NothingBody):
    """This user's personal access tokens."""

    CODE: ClassVar[int] = Code.GET_TOKENS


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """One token, without its secret. ``expires_at_us`` 0: never."""

    name: str
    expires_at_us: int

    def encode(self) -> bytes:
        """str8, u64."""
        return primitives.str8(self.name) + U64.pack(self.expires_at_us)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """str8, u64."""
        return cls(reader.str8(), reader.u64())


@dataclass(frozen=True, slots=True)
class CreateToken:
    """``expiry_us`` 0: the server's default; 2^64 - 1: never."""

    CODE: ClassVar[int] = Code.CREATE_TOKEN
    name: str
    expiry_us: int

    def encode(self) -> bytes:
        """str8, u64."""
        return primitives.str8(self.name) + U64.pack(self.expiry_us)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """str8, u64."""
        return cls(reader.str8(), reader.u64())


@dataclass(frozen=True, slots=True)
class TokenReply:
    """The secret, shown once."""

    token: str = field(repr=False)

    def encode(self) -> bytes:
        """str8."""
        return primitives.str8(self.token)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """str8."""
        return cls(reader.str8())


@dataclass(frozen=True, slots=True)
class DeleteToken:
    """Removes a token."""

    CODE: ClassVar[int] = Code.DELETE_TOKEN
    name: str

    def encode(self) -> bytes:
        """str8."""
        return primitives.str8(self.name)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """str8."""
        return cls(reader.str8())


REQUESTS: Final = (
    Logout,
    GetUser,
    GetUsers,
    CreateUser,
    DeleteUser,
    UpdateUser,
    UpdatePermissions,
    ChangePassword,
    GetTokens,
    CreateToken,
    DeleteToken,
)
