"""What a client asks about the broker itself and who is connected to it. Keeps nothing."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final, Self

from shmbroker.core.options import OptionDefault
from shmbroker.errors import ClientMistake, ErrorCode, error_from
from shmbroker.formats.headers import HeaderField, scalar_of
from shmbroker.wire import system
from shmbroker.wire.bodies import Request

TIMEOUT_S = 30.0
Seconds = float | None

TRANSPORTS: Final = {1: "tcp", 2: "quic", 3: "http", 4: "websocket"}
ROLES: Final = {0: "leader", 1: "follower"}
STATUSES: Final = {0: "healthy", 1: "starting", 2: "stopping", 3: "unreachable", 4: "maintenance"}
SCOPES: Final = {"topic": system.SCOPE_TOPIC, "stream": system.SCOPE_STREAM, "user": system.SCOPE_USER}
COMPRESSIONS: Final = {"stored": 1, "deflated": 2, "bzip2": 3, "zstd": 4, "lzma": 5, "xz": 6}
SNAPSHOT_KINDS: Final = {
    "filesystem_overview": 1, "process_list": 2, "resource_usage": 3, "test": 4, "server_logs": 5, "server_config": 6,
    "all": 100,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ConnectedClient:
    """One session. ``groups``: (stream, topic, group) numbers; empty in a list."""

    id: int
    user_id: int | None
    transport: str
    address: str
    group_count: int
    groups: tuple[tuple[int, int, int], ...] = ()

    @classmethod
    def of(cls, entry: system.ClientEntry, memberships: tuple[system.Membership, ...] = ()) -> Self:
        user_id = None if entry.user_id == system.NO_USER else entry.user_id
        transport = TRANSPORTS.get(entry.transport, str(entry.transport))
        groups = tuple(tuple(each) for each in memberships)
        return cls(entry.client_id, user_id, transport, entry.address, entry.memberships_count, groups)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class OptionDescription:
    key: str
    default: str | None
    description: str

    @classmethod
    def of(cls, entry: OptionDefault) -> Self:
        value = scalar_of(HeaderField(entry.kind, entry.default)) if entry.default else None
        return cls(entry.key, None if value is None else str(value), entry.description)


@dataclass(frozen=True, slots=True)
class ClusterNodeDescription:
    name: str
    ip: str
    tcp_port: int
    http_port: int
    """Ports of what is off are 0."""
    role: str
    status: str


class BrokerFacts:
    """The part of a client about the broker and its sessions."""

    def _request(self, request: Request, timeout: Seconds) -> Any:
        raise NotImplementedError

    def ping(self, *, timeout: Seconds = TIMEOUT_S) -> float:
        """Seconds until the broker's front answered."""
        started = time.monotonic()
        self._request(system.Ping(), timeout)
        return time.monotonic() - started

    def me(self, *, timeout: Seconds = TIMEOUT_S) -> ConnectedClient:
        """This client's own session."""
        found = self._request(system.GetMe(), timeout)
        return ConnectedClient.of(found.client, found.memberships)

    def get_client(self, client_id: int, *, timeout: Seconds = TIMEOUT_S) -> ConnectedClient:
        """One session by its number, with its groups. Raises NotFound."""
        found = self._request(system.GetClient(client_id), timeout)
        if found is None:
            raise error_from(ErrorCode.CLIENT_NOT_FOUND, f"there is no client {client_id}")
        return ConnectedClient.of(found.client, found.memberships)

    def list_clients(self, *, timeout: Seconds = TIMEOUT_S) -> list[ConnectedClient]:
        """All sessions, without their groups."""
        return [ConnectedClient.of(entry) for entry in self._request(system.GetClients(), timeout) or ()]

    def describe_options(self, scope: str = "topic", *, timeout: Seconds = TIMEOUT_S) -> list[OptionDescription]:
        """The options that a ``topic``, ``stream`` or ``user`` can have."""
        if scope not in SCOPES:
            raise ClientMistake(f"options are of {', '.join(SCOPES)}, not of {scope!r}")
        found = self._request(system.DescribeOptions(SCOPES[scope]), timeout)
        return [OptionDescription.of(entry) for entry in found.entries]

    def cluster(self, *, timeout: Seconds = TIMEOUT_S) -> tuple[str, list[ClusterNodeDescription]]:
        """The name of the cluster, and its nodes: here, one."""
        found = self._request(system.GetClusterMetadata(), timeout)
        nodes = [
            ClusterNodeDescription(
                node.name, node.ip, node.tcp_port, node.http_port, ROLES.get(node.role, str(node.role)),
                STATUSES.get(node.status, str(node.status)),
            )
            for node in found.nodes
        ]  # fmt: skip
        return found.name, nodes

    def snapshot(
        self, *, kinds: tuple[str, ...] = ("all",), compression: str = "deflated", timeout: Seconds = TIMEOUT_S
    ) -> bytes:
        """A ZIP archive of facts for support."""
        if compression not in COMPRESSIONS or not set(kinds) <= set(SNAPSHOT_KINDS) or not kinds:
            raise ClientMistake(
                f"a snapshot has kinds of {', '.join(SNAPSHOT_KINDS)}, compressed as {', '.join(COMPRESSIONS)}"
            )
        numbers = bytes(SNAPSHOT_KINDS[kind] for kind in kinds)
        reply = self._request(system.GetSnapshot(COMPRESSIONS[compression], numbers), timeout)
        archive: bytes = reply.archive
        return archive
