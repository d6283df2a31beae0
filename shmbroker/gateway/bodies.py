"""The bodies of requests, as JSON: names and shapes are Iggy's, times are microseconds. Unknown fields are ignored.

Lengths of names, passwords and keys are bytes and are the broker's to check: it has the error number for each.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from shmbroker.core import permissions
from shmbroker.limits import PARTITION_COUNT_PER_REQUEST_MAX, U32_MAX, U64_MAX
from shmbroker.wire import system, users

U32 = Annotated[int, Field(ge=0, le=U32_MAX)]
U64 = Annotated[int, Field(ge=0, le=U64_MAX)]
Name = Annotated[str, Field(json_schema_extra={"minLength": 1, "maxLength": 255})]
# The broker counts bytes of UTF-8, a schema characters: three bytes may be one of those.
Username = Annotated[str, Field(description="3 to 50 bytes.", json_schema_extra={"minLength": 1, "maxLength": 50})]
Password = Annotated[str, Field(description="3 to 100 bytes.", json_schema_extra={"minLength": 1, "maxLength": 100})]
TokenName = Annotated[str, Field(description="3 to 30 bytes.", json_schema_extra={"minLength": 1, "maxLength": 30})]
"""Shown, but not checked here."""
Status = Literal["active", "inactive"]
Compression = Literal["none", "gzip"]
IdKey = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]

SnapshotType = Literal[
    "filesystem_overview", "process_list", "resource_usage", "test", "server_logs", "server_config", "all"
]
SNAPSHOT_COMPRESSIONS = {"stored": 1, "deflated": 2, "bzip2": 3, "zstd": 4, "lzma": 5, "xz": 6}
SNAPSHOT_TYPES = {
    "filesystem_overview": 1, "process_list": 2, "resource_usage": 3, "test": 4, "server_logs": 5, "server_config": 6,
    "all": 100,
}  # fmt: skip
SNAPSHOT_TYPE_COUNT_MAX = 255
STATUSES: dict[str, int] = {"active": users.STATUS_ACTIVE, "inactive": users.STATUS_INACTIVE}


class Body(BaseModel):
    """Numbers are numbers and texts are texts: nothing is converted."""

    model_config = ConfigDict(strict=True)


class LoginBody(Body):
    """What Iggy's clients send; ``version`` and ``context`` are not looked at."""

    username: str
    password: str
    version: str | None = None
    context: str | None = None


class TokenBody(Body):
    """A token: an access token to be refreshed, or a personal one to log in with."""

    token: Annotated[str, Field(min_length=1)]


class TopicPermissionsBody(Body):
    """In one topic."""

    manage_topic: bool = False
    read_topic: bool = False
    poll_messages: bool = False
    send_messages: bool = False


class StreamPermissionsBody(Body):
    """In one stream; ``topics`` by number."""

    manage_stream: bool = False
    read_stream: bool = False
    manage_topics: bool = False
    read_topics: bool = False
    poll_messages: bool = False
    send_messages: bool = False
    topics: dict[IdKey, TopicPermissionsBody] | None = None


class GlobalPermissionsBody(Body):
    """Everywhere."""

    manage_servers: bool = False
    read_servers: bool = False
    manage_users: bool = False
    read_users: bool = False
    manage_streams: bool = False
    read_streams: bool = False
    manage_topics: bool = False
    read_topics: bool = False
    poll_messages: bool = False
    send_messages: bool = False


class PermissionsBody(BaseModel):
    """What a user may do; ``streams`` by number."""

    model_config = ConfigDict(strict=True, populate_by_name=True, serialize_by_alias=True)

    everywhere: Annotated[GlobalPermissionsBody, Field(alias="global")]
    streams: dict[IdKey, StreamPermissionsBody] | None = None

    def to_wire(self) -> permissions.Permissions:
        """As it travels."""
        return permissions.Permissions(
            _flags(self.everywhere, GlobalPermissionsBody),
            tuple(
                permissions.StreamPermissions(
                    int(number),
                    _flags(stream, StreamPermissionsBody),
                    tuple(
                        permissions.TopicPermissions(int(topic_number), _flags(topic, TopicPermissionsBody))
                        for topic_number, topic in sorted((stream.topics or {}).items(), key=lambda item: int(item[0]))
                    ),
                )
                for number, stream in sorted((self.streams or {}).items(), key=lambda item: int(item[0]))
            ),
        )

    @classmethod
    def of_wire(cls, held: permissions.Permissions) -> PermissionsBody:
        """As it is shown."""
        streams = {
            str(stream.stream_id): StreamPermissionsBody(
                **_named(stream.flags, StreamPermissionsBody),
                topics={
                    str(topic.topic_id): TopicPermissionsBody(**_named(topic.flags, TopicPermissionsBody))
                    for topic in stream.topics
                }
                or None,
            )
            for stream in held.streams
        }
        everywhere = GlobalPermissionsBody(**_named(held.flags, GlobalPermissionsBody))
        return cls(everywhere=everywhere, streams=streams or None)


def _flag_names(kind: type[BaseModel]) -> list[str]:
    return [name for name in kind.model_fields if name != "topics"]


def _flags(body: BaseModel, kind: type[BaseModel]) -> tuple[bool, ...]:
    return tuple(getattr(body, name) for name in _flag_names(kind))


def _named(flags: tuple[bool, ...], kind: type[BaseModel]) -> dict[str, bool]:
    return dict(zip(_flag_names(kind), flags, strict=True))


class CreateUserBody(Body):
    """A new user."""

    username: Username
    password: Password
    status: Status = "active"
    permissions: PermissionsBody | None = None


class UpdateUserBody(Body):
    """What is not given stays."""

    username: Username | None = None
    status: Status | None = None


class ChangePasswordBody(Body):
    """``current_password`` is looked at where users change their own."""

    current_password: Password
    new_password: Password


class UpdatePermissionsBody(Body):
    """None: the user has none."""

    permissions: PermissionsBody | None = None


class CreateTokenBody(Body):
    """``expiry``: microseconds from now, or 0 for never."""

    name: TokenName
    expiry: U64 | None = None


class NameBody(Body):
    """The name of a stream or a consumer group."""

    name: Name


class TopicBody(Body):
    """What may be changed of a topic. A number of 0 is the server's default."""

    name: Name
    compression_algorithm: Compression | None = None
    message_expiry: U64 | str | None = None
    max_topic_size: U64 | str | None = None
    options: dict[str, str] | None = None

    def settings(self) -> dict[str, str | int | bool | None]:
        """As options; those of ``options`` win."""
        named = {
            "compression_algorithm": self.compression_algorithm,
            "message_expiry": self.message_expiry,
            "max_topic_size": self.max_topic_size,
        }
        return {**named, **(self.options or {})}


class CreateTopicBody(TopicBody):
    """A new topic. ``options``: further ones as text, ``durability`` among them."""

    partitions_count: Annotated[int, Field(ge=0, le=PARTITION_COUNT_PER_REQUEST_MAX)]


class PartitionsBody(Body):
    """How many partitions to add."""

    partitions_count: Annotated[int, Field(ge=1, le=PARTITION_COUNT_PER_REQUEST_MAX)]


class StoreOffsetBody(Body):
    """The offset of the last message processed."""

    consumer_id: Annotated[str, Field(min_length=1, max_length=255)] | U32
    partition_id: U32 | None = None
    offset: U64


class SnapshotBody(Body):
    """What the archive of diagnostics holds."""

    compression: Literal["stored", "deflated", "bzip2", "zstd", "lzma", "xz"] = "deflated"
    snapshot_types: list[SnapshotType] = ["all"]

    def to_wire(self) -> system.GetSnapshot:
        """As it travels."""
        kinds = bytes(SNAPSHOT_TYPES[kind] for kind in self.snapshot_types[:SNAPSHOT_TYPE_COUNT_MAX])
        return system.GetSnapshot(SNAPSHOT_COMPRESSIONS[self.compression], kinds)
