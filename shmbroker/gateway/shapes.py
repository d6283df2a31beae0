"""The bodies of answers, as JSON: the broker's replies with Iggy's names. Times in microseconds, sizes in bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel

from shmbroker.core.options import OptionValue, create_options
from shmbroker.gateway.access import AccessToken
from shmbroker.gateway.bodies import PermissionsBody
from shmbroker.gateway.messages import KIND_NAMES
from shmbroker.wire import groups, streams, system, topics, users

NO_USER = 0xFFFF_FFFF
TRANSPORTS = {1: "TCP", 2: "QUIC", 3: "HTTP", 4: "WebSocket"}
ROLES = {0: "leader", 1: "follower"}
HEALTHS = {0: "healthy", 1: "starting", 2: "stopping", 3: "unreachable", 4: "maintenance"}


# --- users ------------------------------------------------------------------------------------------------------------
class TokenInfo(BaseModel):
    """``expiry``: seconds since 1970."""

    token: str
    expiry: int


class LoginInfo(BaseModel):
    """Who logged in, and the token to go on with."""

    user_id: int
    access_token: TokenInfo

    @classmethod
    def of(cls, user_id: int, token: AccessToken) -> LoginInfo:
        return cls(user_id=user_id, access_token=TokenInfo(token=token.token, expiry=token.expires_at_s))


class UserInfo(BaseModel):
    """A user in a list."""

    id: int
    created_at: int
    status: str
    username: str

    @classmethod
    def of(cls, entry: users.UserEntry) -> UserInfo:
        return cls(**_user_fields(entry))


class UserInfoDetails(UserInfo):
    """A user with its permissions."""

    permissions: PermissionsBody | None

    @classmethod
    def of_details(cls, details: users.UserDetails) -> UserInfoDetails:
        permissions = details.permissions
        shown = None if permissions is None else PermissionsBody.of_wire(permissions)
        return cls(**_user_fields(details.user), permissions=shown)


def _user_fields(entry: users.UserEntry) -> dict[str, Any]:
    status = "active" if entry.status == users.STATUS_ACTIVE else "inactive"
    return {"id": entry.user_id, "created_at": entry.created_at_us, "status": status, "username": entry.username}


class PersonalToken(BaseModel):
    """``expiry_at``: None where it does not expire."""

    name: str
    expiry_at: int | None

    @classmethod
    def of(cls, entry: users.TokenEntry) -> PersonalToken:
        return cls(name=entry.name, expiry_at=entry.expires_at_us or None)


class RawToken(BaseModel):
    """The token itself, shown this once."""

    token: str


# --- streams and topics -----------------------------------------------------------------------------------------------
class OptionInfo(BaseModel):
    """``explicit``: whether the creator set it."""

    value: str
    explicit: bool


class PartitionInfo(BaseModel):
    """``current_offset``: of the newest message, or 0."""

    id: int
    created_at: int
    segments_count: int
    current_offset: int
    size: int
    messages_count: int

    @classmethod
    def of(cls, entry: topics.PartitionEntry) -> PartitionInfo:
        return cls(
            id=entry.partition_id,
            created_at=entry.created_at_us,
            segments_count=entry.segments_count,
            current_offset=entry.current_offset,
            size=entry.size,
            messages_count=entry.messages_count,
        )


class TopicInfo(BaseModel):
    """A topic in a list. 2^64 - 1: never, and without a limit."""

    id: int
    created_at: int
    name: str
    size: int
    message_expiry: int
    compression_algorithm: str
    max_topic_size: int
    messages_count: int
    partitions_count: int
    options: dict[str, OptionInfo]

    @classmethod
    def of(cls, entry: topics.TopicEntry) -> TopicInfo:
        return cls(**_topic_fields(entry))


class TopicInfoDetails(TopicInfo):
    """A topic with its partitions."""

    partitions: list[PartitionInfo]

    @classmethod
    def of_details(cls, details: topics.TopicDetails) -> TopicInfoDetails:
        partitions = [PartitionInfo.of(entry) for entry in details.partitions]
        return cls(**_topic_fields(details.topic), partitions=partitions)


def _topic_fields(entry: topics.TopicEntry) -> dict[str, Any]:
    return {
        "id": entry.topic_id,
        "created_at": entry.created_at_us,
        "name": entry.name,
        "size": entry.size,
        "message_expiry": entry.message_expiry_us,
        "compression_algorithm": entry.compression_algorithm,
        "max_topic_size": entry.max_topic_size,
        "messages_count": entry.messages_count,
        "partitions_count": entry.partitions_count,
        "options": _topic_options(entry.options + entry.derived_options, {option.key for option in entry.options}),
    }


def _topic_options(values: Iterable[OptionValue], explicit: set[str]) -> dict[str, OptionInfo]:
    report = create_options(values).report()
    return {key: OptionInfo(value=option.value, explicit=key in explicit) for key, option in report.items()}


class StreamInfo(BaseModel):
    """A stream in a list."""

    id: int
    created_at: int
    name: str
    size: int
    messages_count: int
    topics_count: int
    options: dict[str, OptionInfo]

    @classmethod
    def of(cls, entry: streams.StreamEntry) -> StreamInfo:
        return cls(**_stream_fields(entry))


class StreamInfoDetails(StreamInfo):
    """A stream with its topics."""

    topics: list[TopicInfo]

    @classmethod
    def of_details(cls, details: streams.StreamDetails) -> StreamInfoDetails:
        return cls(**_stream_fields(details.stream), topics=[TopicInfo.of(entry) for entry in details.topics])


def _stream_fields(entry: streams.StreamEntry) -> dict[str, Any]:
    return {
        "id": entry.stream_id,
        "created_at": entry.created_at_us,
        "name": entry.name,
        "size": entry.size,
        "messages_count": entry.messages_count,
        "topics_count": entry.topics_count,
        "options": {},
    }


# --- groups and offsets -----------------------------------------------------------------------------------------------
class GroupMember(BaseModel):
    """A member and the partitions that it has."""

    id: int
    partitions_count: int
    partitions: list[int]


class GroupInfo(BaseModel):
    """A consumer group in a list."""

    id: int
    name: str
    partitions_count: int
    members_count: int

    @classmethod
    def of(cls, entry: groups.GroupEntry) -> GroupInfo:
        return cls(**_group_fields(entry))


class GroupInfoDetails(GroupInfo):
    """A consumer group with its members."""

    members: list[GroupMember]

    @classmethod
    def of_details(cls, details: groups.GroupDetails) -> GroupInfoDetails:
        members = [
            GroupMember(
                id=member.member_id,
                partitions_count=len(member.partition_ids),
                partitions=[*member.partition_ids],
            )
            for member in details.members
        ]
        return cls(**_group_fields(details.group), members=members)


def _group_fields(entry: groups.GroupEntry) -> dict[str, Any]:
    return {
        "id": entry.group_id,
        "name": entry.name,
        "partitions_count": entry.partitions_count,
        "members_count": entry.members_count,
    }


class OffsetInfo(BaseModel):
    """``current_offset``: of the partition's newest message; ``stored_offset``: of the consumer."""

    partition_id: int
    current_offset: int
    stored_offset: int


class ConfirmationEntry(BaseModel):
    """Where the first message of a batch is."""

    stream_id: int
    topic_id: int
    partition_id: int
    base_offset: int


class Confirmations(BaseModel):
    """What the policy named in Iggy-Durability holds for."""

    confirmations: list[ConfirmationEntry]


# --- the broker -------------------------------------------------------------------------------------------------------
class Membership(BaseModel):
    """A group that a connection is in."""

    stream_id: int
    topic_id: int
    group_id: int


class ClientInfo(BaseModel):
    """A connection in a list. ``user_id``: None before its login."""

    client_id: int
    user_id: int | None
    address: str
    transport: str
    consumer_groups_count: int

    @classmethod
    def of(cls, entry: system.ClientEntry) -> ClientInfo:
        return cls(**_client_fields(entry))


class ClientInfoDetails(ClientInfo):
    """A connection with its groups."""

    consumer_groups: list[Membership]

    @classmethod
    def of_details(cls, details: system.ClientDetails) -> ClientInfoDetails:
        found = [Membership(**each._asdict()) for each in details.memberships]
        return cls(**_client_fields(details.client), consumer_groups=found)


def _client_fields(entry: system.ClientEntry) -> dict[str, Any]:
    return {
        "client_id": entry.client_id,
        "user_id": None if entry.user_id == NO_USER else entry.user_id,
        "address": entry.address,
        "transport": TRANSPORTS.get(entry.transport, "unknown"),
        "consumer_groups_count": entry.memberships_count,
    }


class OptionEntry(BaseModel):
    """An option that there is. ``default_value``: its bytes in the encoding of ``kind``."""

    key: str
    kind: str
    default_value: list[int]
    description: str


def option_entries(catalogue: system.OptionsCatalogue) -> list[OptionEntry]:
    """All options of a scope."""
    return [
        OptionEntry(
            key=entry.key,
            kind=KIND_NAMES[entry.kind],
            default_value=[*entry.default],
            description=entry.description,
        )
        for entry in catalogue.entries
    ]


class Endpoints(BaseModel):
    """Ports; 0 where there is none."""

    tcp: int
    quic: int
    http: int
    websocket: int


class NodeInfo(BaseModel):
    """A node of the cluster."""

    name: str
    ip: str
    endpoints: Endpoints
    role: str
    status: str


class ClusterInfo(BaseModel):
    """The cluster of one node."""

    name: str
    nodes: list[NodeInfo]

    @classmethod
    def of(cls, cluster: system.ClusterMetadata) -> ClusterInfo:
        nodes = [
            NodeInfo(
                name=node.name,
                ip=node.ip,
                endpoints=Endpoints(
                    tcp=node.tcp_port, quic=node.quic_port, http=node.http_port, websocket=node.websocket_port
                ),
                role=ROLES.get(node.role, "unknown"),
                status=HEALTHS.get(node.status, "unknown"),
            )
            for node in cluster.nodes
        ]
        return cls(name=cluster.name, nodes=nodes)


class StatsInfo(BaseModel):
    """Figures of the broker's front."""

    process_id: int
    cpu_usage: float
    total_cpu_usage: float
    memory_usage: int
    total_memory: int
    available_memory: int
    run_time: int
    start_time: int
    read_bytes: int
    written_bytes: int
    messages_size_bytes: int
    streams_count: int
    topics_count: int
    partitions_count: int
    segments_count: int
    messages_count: int
    clients_count: int
    consumer_groups_count: int
    hostname: str
    os_name: str
    os_version: str
    kernel_version: str
    iggy_server_version: str
    iggy_server_semver: int | None
    cache_metrics: dict[str, object]
    """Of each partition; there is no cache to speak of."""
    threads_count: int
    free_disk_space: int
    total_disk_space: int

    @classmethod
    def of(cls, stats: system.StatsBody) -> StatsInfo:
        renamed: dict[str, Any] = {
            "run_time": stats.run_time_us,
            "start_time": stats.start_time_us,
            "messages_size_bytes": stats.messages_size,
            "consumer_groups_count": stats.groups_count,
            "hostname": stats.host_name,
            "iggy_server_version": stats.server_version,
            "iggy_server_semver": stats.server_semver,
            "cache_metrics": {},
        }
        same = {name: getattr(stats, name) for name in cls.model_fields if name not in renamed}
        return cls(**same, **renamed)


class Trouble(BaseModel):
    """A partition that does not serve, and why."""

    stream: str
    topic: str
    partition: int
    state: str
    reason: str


class Liveness(BaseModel):
    """The gateway answers."""

    status: str


class Readiness(BaseModel):
    """``status``: ``ready``, or ``not_ready`` with the partitions that are refused or poisoned, or ``reason``."""

    status: str
    reason: str | None
    partitions: list[Trouble]
