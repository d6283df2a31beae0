"""Commands about the server and its connections: ping, stats, snapshot, cluster, options, clients.

client entry   u32 client, u32 user (0xffffffff none), u8 transport, str32 address, u32 memberships
               then, in get me and get client only: (u32 stream, u32 topic, u32 group) for each membership
node           str32 name, str32 ip, u16 tcp, u16 quic, u16 http, u16 websocket, u8 role, u8 status
option         str8 key, u8 kind, u32 length, default bytes, str32 description
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import ClassVar, Final, NamedTuple, Self

from shmbroker.core.options import OptionDefault
from shmbroker.limits import U32_MAX
from shmbroker.wire import primitives
from shmbroker.wire.bodies import NothingBody
from shmbroker.wire.codes import Code
from shmbroker.wire.primitives import U8, U32, Malformed, Reader

NO_USER: Final = U32_MAX
TRANSPORT_TCP: Final = 1
SCOPE_TOPIC: Final = 1
SCOPE_STREAM: Final = 2
SCOPE_USER: Final = 3
ROLE_LEADER: Final = 0
STATUS_HEALTHY: Final = 0

_STATS: Final = Struct("<Iff8QIIIIQII")
_CACHE: Final = Struct("<IIIQQf")
_STATS_END: Final = Struct("<IQQ")
_PORTS: Final = Struct("<HHHHBB")
_MEMBERSHIP: Final = Struct("<III")
_CLIENT: Final = Struct("<IIB")
_SNAPSHOT_COMPRESSIONS: Final = range(1, 7)

assert _STATS.size == 108
assert _CACHE.size == 32


@dataclass(frozen=True, slots=True)
class Ping(NothingBody):
    """Answered by anybody with nothing, before a login too."""

    CODE: ClassVar[int] = Code.PING


@dataclass(frozen=True, slots=True)
class GetStats(NothingBody):
    """Figures of the server."""

    CODE: ClassVar[int] = Code.GET_STATS


@dataclass(frozen=True, slots=True)
class GetClusterMetadata(NothingBody):
    """Who belongs to the cluster: here, one node."""

    CODE: ClassVar[int] = Code.GET_CLUSTER_METADATA


@dataclass(frozen=True, slots=True)
class GetMe(NothingBody):
    """This connection."""

    CODE: ClassVar[int] = Code.GET_ME


@dataclass(frozen=True, slots=True)
class GetClients(NothingBody):
    """All connections."""

    CODE: ClassVar[int] = Code.GET_CLIENTS


@dataclass(frozen=True, slots=True)
class GetClient:
    """One connection, by the number that the server gave it."""

    CODE: ClassVar[int] = Code.GET_CLIENT
    client_id: int

    def encode(self) -> bytes:
        """u32."""
        return U32.pack(self.client_id)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """u32."""
        return cls(reader.u32())


@dataclass(frozen=True, slots=True)
class GetSnapshot:
    """An archive of facts for support: u8 compression (1 to 6), and the kinds wanted."""

    CODE: ClassVar[int] = Code.GET_SNAPSHOT
    compression: int
    kinds: bytes

    def encode(self) -> bytes:
        """u8, u8 count, that many u8."""
        return bytes((self.compression, len(self.kinds))) + self.kinds

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """u8, u8 count, that many u8."""
        compression = reader.u8()
        if compression not in _SNAPSHOT_COMPRESSIONS:
            raise Malformed(f"snapshot compression {compression}")
        return cls(compression, bytes(reader.take(reader.u8())))


@dataclass(frozen=True, slots=True)
class SnapshotReply:
    """A ZIP archive."""

    archive: bytes

    def encode(self) -> bytes:
        """The archive as it is."""
        return self.archive

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """The archive as it is."""
        return cls(bytes(reader.rest()))


@dataclass(frozen=True, slots=True)
class DescribeOptions:
    """The catalogue of options of topics, streams or users."""

    CODE: ClassVar[int] = Code.DESCRIBE_OPTIONS
    scope: int

    def encode(self) -> bytes:
        """u8."""
        return U8.pack(self.scope)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """u8."""
        scope = reader.u8()
        if scope not in (SCOPE_TOPIC, SCOPE_STREAM, SCOPE_USER):
            raise Malformed(f"option scope {scope}")
        return cls(scope)


@dataclass(frozen=True, slots=True)
class OptionsCatalogue:
    """The reply of DESCRIBE_OPTIONS."""

    entries: tuple[OptionDefault, ...]

    def encode(self) -> bytes:
        """u32 count, entries."""
        parts = [U32.pack(len(self.entries))]
        for key, kind, default, description in self.entries:
            parts += (primitives.str8(key), U8.pack(kind), U32.pack(len(default)), default)
            parts.append(primitives.str32(description))
        return b"".join(parts)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """u32 count, entries."""
        count = reader.u32()
        entries: list[OptionDefault] = []
        while len(entries) < count:
            key, kind = reader.str8(), reader.u8()
            entries.append(OptionDefault(key, kind, bytes(reader.take(reader.u32())), reader.str32()))
        return cls(tuple(entries))


class ClusterNode(NamedTuple):
    """One server. Ports of transports that are off are 0."""

    name: str
    ip: str
    tcp_port: int
    quic_port: int = 0
    http_port: int = 0
    websocket_port: int = 0
    role: int = ROLE_LEADER
    status: int = STATUS_HEALTHY


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """The reply of GET_CLUSTER_METADATA."""

    name: str
    nodes: tuple[ClusterNode, ...]

    def encode(self) -> bytes:
        """str32 name, u32 count, nodes."""
        parts = [primitives.str32(self.name), U32.pack(len(self.nodes))]
        for node in self.nodes:
            parts += (primitives.str32(node.name), primitives.str32(node.ip), _PORTS.pack(*node[2:]))
        return b"".join(parts)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """str32 name, u32 count, nodes."""
        name, count = reader.str32(), reader.u32()
        nodes: list[ClusterNode] = []
        while len(nodes) < count:
            nodes.append(ClusterNode(reader.str32(), reader.str32(), *_PORTS.unpack(reader.take(_PORTS.size))))
        return cls(name, tuple(nodes))


class Membership(NamedTuple):
    """A consumer group that a connection belongs to."""

    stream_id: int
    topic_id: int
    group_id: int


@dataclass(frozen=True, slots=True)
class ClientEntry:
    """One connection, without its memberships: an item of GET_CLIENTS."""

    client_id: int
    user_id: int
    transport: int
    address: str
    memberships_count: int

    def encode(self) -> bytes:
        """As in the drawing."""
        head = _CLIENT.pack(self.client_id, self.user_id, self.transport)
        return head + primitives.str32(self.address) + U32.pack(self.memberships_count)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """As in the drawing."""
        client_id, user_id, transport = _CLIENT.unpack(reader.take(_CLIENT.size))
        return cls(client_id, user_id, transport, reader.str32(), reader.u32())


@dataclass(frozen=True, slots=True)
class ClientDetails:
    """One connection with its memberships: the reply of GET_ME and GET_CLIENT."""

    client: ClientEntry
    memberships: tuple[Membership, ...]

    def encode(self) -> bytes:
        """The entry, then the memberships that it counts."""
        assert self.client.memberships_count == len(self.memberships)
        return self.client.encode() + b"".join(_MEMBERSHIP.pack(*each) for each in self.memberships)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """The entry, then the memberships that it counts."""
        client = ClientEntry.decode(reader)
        block = reader.take(client.memberships_count * _MEMBERSHIP.size)
        return cls(client, tuple(Membership(*each) for each in _MEMBERSHIP.iter_unpack(block)))


class CacheFigures(NamedTuple):
    """Hits and misses of one partition's cache."""

    stream_id: int
    topic_id: int
    partition_id: int
    hits: int
    misses: int
    hit_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsBody:
    """The reply of GET_STATS. Times in microseconds, sizes in bytes, cpu in percent."""

    process_id: int = 0
    cpu_usage: float = 0.0
    total_cpu_usage: float = 0.0
    memory_usage: int = 0
    total_memory: int = 0
    available_memory: int = 0
    run_time_us: int = 0
    start_time_us: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    messages_size: int = 0
    streams_count: int = 0
    topics_count: int = 0
    partitions_count: int = 0
    segments_count: int = 0
    messages_count: int = 0
    clients_count: int = 0
    groups_count: int = 0
    host_name: str = ""
    os_name: str = ""
    os_version: str = ""
    kernel_version: str = ""
    server_version: str = ""
    server_semver: int = 0
    """major * 1,000,000 + minor * 1,000 + patch."""
    caches: tuple[CacheFigures, ...] = ()
    threads_count: int = 0
    free_disk_space: int = 0
    total_disk_space: int = 0

    def encode(self) -> bytes:
        """108 bytes of numbers, five str32, then the rest."""
        numbers = [getattr(self, name) for name in _NUMBER_NAMES]
        parts = [_STATS.pack(*numbers), *(primitives.str32(getattr(self, name)) for name in _TEXT_NAMES)]
        parts += (U32.pack(self.server_semver), U32.pack(len(self.caches)))
        parts += (_CACHE.pack(*each) for each in self.caches)
        parts.append(_STATS_END.pack(self.threads_count, self.free_disk_space, self.total_disk_space))
        return b"".join(parts)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """108 bytes of numbers, five str32, then the rest."""
        values: dict[str, object] = dict(zip(_NUMBER_NAMES, _STATS.unpack(reader.take(_STATS.size)), strict=True))
        values.update((name, reader.str32()) for name in _TEXT_NAMES)
        values["server_semver"] = reader.u32()
        block = reader.take(reader.u32() * _CACHE.size)
        values["caches"] = tuple(CacheFigures(*each) for each in _CACHE.iter_unpack(block))
        end = _STATS_END.unpack(reader.take(_STATS_END.size))
        values["threads_count"], values["free_disk_space"], values["total_disk_space"] = end
        return cls(**values)  # type: ignore[arg-type]


_FIELD_NAMES: Final = tuple(StatsBody.__dataclass_fields__)
_TEXT_NAMES: Final = _FIELD_NAMES[_FIELD_NAMES.index("host_name") : _FIELD_NAMES.index("server_semver")]
_NUMBER_NAMES: Final = _FIELD_NAMES[: _FIELD_NAMES.index("host_name")]

REQUESTS: Final = (
    Ping,
    GetStats,
    GetSnapshot,
    GetClusterMetadata,
    DescribeOptions,
    GetMe,
    GetClient,
    GetClients,
)
