"""Everything over TCP: one session for administration, sessions that take batches, and one for each consumer.

A partition's batches always go through the same session, so they stay in order; different partitions share SESSIONS_MAX
of them. Requests of the protocol are answered one at a time in each session: consumers and producers that do not share
one do not wait for each other. Sessions end with the client, and a consumer's with the consumer.
"""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import asdict
from typing import Any, Final

from shmbroker.client.address import TcpAddress
from shmbroker.client.cursor import Cursor
from shmbroker.client.group_consumer import Commit, wire_commit
from shmbroker.client.heartbeat import keep_alive
from shmbroker.client.lane import Lane
from shmbroker.client.lanes import Port
from shmbroker.client.membership import Membership
from shmbroker.client.tcp import TcpConnection
from shmbroker.client.transport import Ports, check_partition
from shmbroker.client.wire_cursor import WireCursor, WireOffsets
from shmbroker.client.wire_lane import LaneBell, Silence, Target, WireLane
from shmbroker.errors import ShmbrokerError
from shmbroker.shm.doorbell import Doorbell
from shmbroker.wire import system
from shmbroker.wire.primitives import Identifier

SESSIONS_MAX: Final = 4
"""Sessions of one client that take batches."""


class WireTransport:
    """A broker over TCP."""

    def __init__(self, address: TcpAddress, *, version: str, timeout: float, is_attentive: bool) -> None:
        """Connects and logs in. Raises Unavailable where nobody answers, Unauthorized for wrong credentials."""
        self._address = address
        self._version = version
        self.connection = TcpConnection(address, version=version, timeout=timeout)
        self._lane_ids = itertools.count(1)
        self._targets: list[Target] = []
        self._routes: dict[Target, int] = {}
        self._routes_lock = threading.Lock()
        self._ports = Ports(self.connection, self, is_attentive=is_attentive)
        keep_alive(self.connection)

    # --- for the ports -----------------------------------------------------------------------------------------------
    @property
    def alive(self) -> bool:
        """Whether the broker still holds its end of the administrative session."""
        return self.connection.alive

    def open_lane(self, worker: int, size: int, deadline: float) -> tuple[Lane, Doorbell, Doorbell]:
        """A new session that takes batches."""
        del worker, size
        lane = WireLane(self._new_session(deadline), next(self._lane_ids), self._targets)
        return lane, LaneBell(lane), Silence()

    def close_lane(self, lane_id: int, deadline: float) -> None:
        """Nothing: the session ended with its socket."""

    # --- for producers and consumers ---------------------------------------------------------------------------------
    def open_route(self, stream: Identifier, topic: Identifier, partition: int, deadline: float) -> tuple[Port, int]:
        del deadline
        check_partition(partition)
        # Not asked whether it is there: that takes a right that a sender need not have. The first send finds out.
        target = Target(stream, topic, partition)
        with self._routes_lock:
            number = self._routes.setdefault(target, len(self._targets))
            if number == len(self._targets):
                self._targets.append(target)
        return self._ports.port(number % SESSIONS_MAX), number

    def open_reading(self, deadline: float) -> WireReading:
        return WireReading(self._new_session(deadline))

    def get_offset(
        self, stream: Identifier, topic: Identifier, partition: int, key: bytes, deadline: float
    ) -> int | None:
        return self._offsets(stream, topic, partition, key).get(deadline)

    def set_offset(
        self, stream: Identifier, topic: Identifier, partition: int, key: bytes, offset: int, deadline: float
    ) -> None:
        self._offsets(stream, topic, partition, key).store(offset, deadline)

    def delete_offset(self, stream: Identifier, topic: Identifier, partition: int, key: bytes, deadline: float) -> None:
        self._offsets(stream, topic, partition, key).delete(deadline)

    def _offsets(self, stream: Identifier, topic: Identifier, partition: int, key: bytes) -> WireOffsets:
        check_partition(partition)
        return WireOffsets(self.connection, stream, topic, partition, key)

    def stats(self, deadline: float) -> dict[str, Any]:
        """The protocol's own figures, all under ``broker``: of workers and partitions it has none."""
        reply = self.connection.request(system.GetStats(), deadline)
        assert isinstance(reply, system.StatsBody)
        return {"broker": asdict(reply), "workers": [], "partitions": []}

    def close(self, error: ShmbrokerError) -> None:
        self.connection.close()
        self._ports.close(error)

    def _new_session(self, deadline: float) -> TcpConnection:
        if self.connection.refusal is not None:
            raise self.connection.refusal
        return TcpConnection(self._address, version=self._version, timeout=max(0.0, deadline - time.monotonic()))


class WireReading:
    """A consumer's own session: in a group it is the member."""

    def __init__(self, connection: TcpConnection) -> None:
        self.connection = connection
        keep_alive(connection)

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
        check_partition(partition)
        cursor = WireCursor(
            self.connection, stream, topic, partition, key, auto_commit=auto_commit, is_member=is_member
        )
        if not is_member:
            cursor.check(deadline)
        return cursor

    def member_session(self, deadline: float) -> TcpConnection:
        del deadline
        return self.connection

    def group_commit(self, membership: Membership) -> Commit:
        return wire_commit(membership)

    def close(self) -> None:
        """Ends the session."""
        self.connection.close()
