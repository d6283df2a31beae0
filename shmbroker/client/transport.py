"""How a client reaches its broker: what producers, consumers and offsets need of it, whatever lies between.

:class:`Transport` is the seam. Over shared memory (:class:`LocalTransport`) a send goes through a lane to the
partition's worker and a read maps files; over TCP (``wire_transport``) both are requests. A :class:`Reading` is one
consumer's share of it.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Protocol

from shmbroker.client.connection import Connection
from shmbroker.client.cursor import Cursor
from shmbroker.client.exchange import Exchange
from shmbroker.client.group_consumer import Commit, local_commit
from shmbroker.client.lanes import Port
from shmbroker.client.membership import Membership
from shmbroker.client.offsets import delete_stored, get_stored, store
from shmbroker.errors import ClientMistake, OutcomeUnknown, ShmbrokerError, WaitTimeout
from shmbroker.limits import PARTITION_ID_LIMIT
from shmbroker.wire import local
from shmbroker.wire.primitives import Identifier


class Reading(Protocol):
    """What one consumer reads and commits over."""

    @property
    def connection(self) -> Exchange:
        """Where its requests go."""

    def open_cursor(
        self,
        stream: Identifier,
        topic: Identifier,
        partition: int,
        key: bytes | None,
        deadline: float,
        *,
        auto_commit: bool,
        is_member: bool = False,
    ) -> Cursor:
        """A partition, at its first kept message. ``is_member``: as a member of the group that ``key`` names."""

    def member_session(self, deadline: float) -> Exchange:
        """A session to join a group on: of this consumer alone, since a session is one member."""

    def group_commit(self, membership: Membership) -> Commit:
        """How a member of a group stores its offsets."""

    def close(self) -> None:
        """Ends what is this consumer's alone."""


class Transport(Protocol):
    """What a client needs of its broker beyond requests."""

    @property
    def connection(self) -> Exchange:
        """For administration: requests that anybody may make."""

    def open_route(self, stream: Identifier, topic: Identifier, partition: int, deadline: float) -> tuple[Port, int]:
        """Where batches for this partition go, and the log id that they carry. Raises NotFound."""

    def open_reading(self, deadline: float) -> Reading:
        """For a new consumer."""

    def get_offset(
        self, stream: Identifier, topic: Identifier, partition: int, key: bytes, deadline: float
    ) -> int | None:
        """What is stored under a consumer key, or None."""

    def set_offset(
        self, stream: Identifier, topic: Identifier, partition: int, key: bytes, offset: int, deadline: float
    ) -> None:
        """Stores it; returns when the policy is met."""

    def delete_offset(self, stream: Identifier, topic: Identifier, partition: int, key: bytes, deadline: float) -> None:
        """Forgets it; returns when the policy is met. Raises NotFound."""

    def stats(self, deadline: float) -> dict[str, Any]:
        """Figures: ``{"broker": {...}, "workers": [{...}], "partitions": [{...}]}``."""

    def close(self, error: ShmbrokerError) -> None:
        """Ends the connection and what came with it; later offers raise ``error``."""


class Ports:
    """The ports of one client, by worker. Once the connection refuses, so does every port."""

    def __init__(self, connection: Exchange, opener: Any, *, is_attentive: bool) -> None:
        self._connection = connection
        self._opener = opener
        self._is_attentive = is_attentive
        self._ports: dict[int, Port] = {}
        self._lock = threading.Lock()
        connection.on_refusal(self._refuse)

    def port(self, worker: int) -> Port:
        """The port of a worker; made at its first use."""
        with self._lock:
            port = self._ports.get(worker)
            if port is None:
                port = self._ports[worker] = Port(self._opener, worker, is_attentive=self._is_attentive)
                port.refusal = self._connection.refusal
            return port

    def close(self, error: ShmbrokerError) -> None:
        """Closes them all; later offers raise ``error``."""
        for port in list(self._ports.values()):
            port.close(error)

    def _refuse(self, error: ShmbrokerError) -> None:
        """The connection cannot be used any more. Takes no lock: it may be called in a child of fork()."""
        for port in list(self._ports.values()):
            if port.refusal is None:
                port.refusal = error
            if self._connection.is_foreign:
                port.reaper.abandoned = error


class LocalTransport:
    """Shared memory: one Unix socket for what is granted, a lane for each worker, mapped files."""

    def __init__(self, data: str, *, version: str, timeout: float, is_attentive: bool) -> None:
        """Raises Unavailable where no broker answers for the directory ``data``."""
        self.connection = Connection(data, version=version, timeout=timeout)
        self._ports = Ports(self.connection, self.connection, is_attentive=is_attentive)

    def open_route(self, stream: Identifier, topic: Identifier, partition: int, deadline: float) -> tuple[Port, int]:
        grant = self._open_partition(stream, topic, partition, ["append"], deadline)
        return self._ports.port(grant.worker), grant.log_id

    def open_reading(self, deadline: float) -> LocalReading:
        del deadline
        return LocalReading(self)

    def open_cursor(
        self, stream: Identifier, topic: Identifier, partition: int, key: bytes | None, deadline: float
    ) -> Cursor:
        """A cursor on the client's own connection."""
        rights = ["read"] if key is None else ["read", "offsets"]

        def grant(deadline: float) -> tuple[Any, Port]:
            reply = self._open_partition(stream, topic, partition, rights, deadline)
            return reply, self._ports.port(reply.worker)

        return Cursor(grant, partition, f"{stream}/{topic}", key, deadline)

    def get_offset(
        self, stream: Identifier, topic: Identifier, partition: int, key: bytes, deadline: float
    ) -> int | None:
        return get_stored(*self._open_offsets(stream, topic, partition, deadline), key, deadline)

    def set_offset(
        self, stream: Identifier, topic: Identifier, partition: int, key: bytes, offset: int, deadline: float
    ) -> None:
        store(*self._open_offsets(stream, topic, partition, deadline), key, offset, deadline)

    def delete_offset(self, stream: Identifier, topic: Identifier, partition: int, key: bytes, deadline: float) -> None:
        delete_stored(*self._open_offsets(stream, topic, partition, deadline), key, deadline)

    def stats(self, deadline: float) -> dict[str, Any]:
        reply = self.connection.request(local.Stats(), deadline)
        assert isinstance(reply, local.StatsReply)
        return {"broker": reply.broker, "workers": reply.workers, "partitions": reply.partitions}

    def close(self, error: ShmbrokerError) -> None:
        self.connection.close()
        self._ports.close(error)

    def _open_offsets(
        self, stream: Identifier, topic: Identifier, partition: int, deadline: float
    ) -> tuple[Port, int, str]:
        grant = self._open_partition(stream, topic, partition, ["offsets"], deadline)
        return self._ports.port(grant.worker), grant.log_id, f"{stream}/{topic}, partition {partition}"

    def _open_partition(
        self, stream: Identifier, topic: Identifier, partition: int, rights: list[str], deadline: float
    ) -> local.OpenPartitionReply:
        check_partition(partition)
        try:
            reply = self.connection.request(local.OpenPartition(stream, topic, partition, rights), deadline)
        except OutcomeUnknown as error:  # opening twice is fine, so nothing is unknown
            raise WaitTimeout(f"{stream}/{topic}, partition {partition}: the broker did not open it in time") from error
        assert isinstance(reply, local.OpenPartitionReply)
        return reply


class LocalReading:
    """A local consumer's share: the client's connection, and the ports of its workers."""

    def __init__(self, transport: LocalTransport) -> None:
        self.connection = transport.connection
        self._transport = transport

    def open_cursor(
        self,
        stream: Identifier,
        topic: Identifier,
        partition: int,
        key: bytes | None,
        deadline: float,
        *,
        auto_commit: bool,
        is_member: bool = False,
    ) -> Cursor:
        del auto_commit, is_member
        return self._transport.open_cursor(stream, topic, partition, key, deadline)

    def member_session(self, deadline: float) -> Exchange:
        main = self._transport.connection
        return Connection(main.data, version=main.hello.version, timeout=max(0.0, deadline - time.monotonic()))

    def group_commit(self, membership: Membership) -> Commit:
        return local_commit(membership)

    def close(self) -> None:
        """Nothing is this consumer's alone."""


def check_partition(partition: int) -> None:
    """Raises ClientMistake for what is no number of a partition."""
    if not isinstance(partition, int) or not 0 <= partition < PARTITION_ID_LIMIT:
        raise ClientMistake(f"a partition is a number from 0 to {PARTITION_ID_LIMIT - 1}, not {partition!r}")
