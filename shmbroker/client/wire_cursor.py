"""A cursor over TCP: where one consumer stands in one partition, on the consumer's own session.

Commits are requests like any other; automatic ones are the broker's, which stores what a poll sends with the poll.
"""

from __future__ import annotations

import time
from concurrent.futures import Future

from shmbroker.client.cursor import Cursor
from shmbroker.client.tcp import TcpConnection
from shmbroker.client.wire_reader import WireReader
from shmbroker.errors import InvalidOffset
from shmbroker.formats.offsets import FORM_NUMBER, KEY_GROUP
from shmbroker.limits import U64_MAX
from shmbroker.wire.offsets import ConsumerOffset, DeleteConsumerOffset, GetConsumerOffset, StoreConsumerOffset
from shmbroker.wire.primitives import CONSUMER_GROUP, CONSUMER_SINGLE, Consumer, Identifier

NOBODY = Consumer(CONSUMER_SINGLE, 0)
"""Who polls where nobody's offsets are used."""


def consumer_of(key: bytes) -> Consumer:
    """Whose key it is (formats.offsets), in the wire's words."""
    kind = CONSUMER_GROUP if key[0] == KEY_GROUP else CONSUMER_SINGLE
    return Consumer(kind, int.from_bytes(key[2:], "little") if key[1] == FORM_NUMBER else key[2:].decode())


class WireOffsets:
    """What one consumer stores about one partition, asked for over ``connection``."""

    def __init__(
        self, connection: TcpConnection, stream: Identifier, topic: Identifier, partition: int, key: bytes
    ) -> None:
        self._connection = connection
        self._target = (consumer_of(key), stream, topic, partition)

    def get(self, deadline: float) -> int | None:
        """The stored offset, or None."""
        found = self._connection.request(GetConsumerOffset(*self._target), deadline)
        return found.stored_offset if isinstance(found, ConsumerOffset) else None

    def store(self, offset: int, deadline: float) -> None:
        """Stores it, and returns when its policy is met."""
        if not 0 <= offset <= U64_MAX:
            raise InvalidOffset(f"an offset is 0 to 2^64 - 1, not {offset}")
        self._connection.request(StoreConsumerOffset(*self._target, offset), deadline)

    def delete(self, deadline: float) -> None:
        """Forgets it, and returns when its policy is met. Raises NotFound where there is none."""
        self._connection.request(DeleteConsumerOffset(*self._target), deadline)


class WireCursor(Cursor):
    """One partition under one consumer. ``key`` is its consumer key, or None. ``is_member``: it polls as a group."""

    def __init__(
        self,
        connection: TcpConnection,
        stream: Identifier,
        topic: Identifier,
        partition: int,
        key: bytes | None,
        *,
        auto_commit: bool,
        is_member: bool = False,
    ) -> None:
        """Asks the broker nothing: a partition that is not there is refused by the first poll."""
        self.partition_id = partition
        self.name = f"{stream}/{topic}, partition {partition}"
        self.key = key
        self.log_id = 0
        self.handed_out = -1
        self._connection = connection
        self._target = (stream, topic, partition)
        self._auto_commit = auto_commit
        self._offsets = None if key is None else WireOffsets(connection, *self._target, key)
        is_polled_by_name = key is not None and (is_member or key[0] != KEY_GROUP)
        self._polls_as = consumer_of(key) if key is not None and is_polled_by_name else NOBODY
        self._committed = -1
        self._open(time.monotonic())

    def _open(self, deadline: float) -> None:
        del deadline
        self.reader = self._new_reader()

    def _new_reader(self) -> WireReader:
        # Without membership a group's offsets can be stored, but it cannot poll in the group's name.
        with_poll = self._auto_commit and self._polls_as is not NOBODY
        return WireReader(self._connection, self._polls_as, *self._target, auto_commit=with_poll)

    def check(self, deadline: float) -> None:
        """Raises NotFound where there is no such partition, and whatever else a poll of it meets."""
        self._new_reader().check(deadline)

    def reopen(self, deadline: float) -> None:
        self.handed_out = self._committed = -1
        self._open(deadline)

    def stored(self, deadline: float) -> int | None:
        assert self._offsets is not None
        return self._offsets.get(deadline)

    def store(self, offset: int, deadline: float) -> Future[int]:
        assert self._offsets is not None
        self._offsets.store(offset, deadline)
        self._committed = max(self._committed, offset)
        done: Future[int] = Future()
        done.set_result(0)
        return done

    def commit_behind(self, deadline: float) -> None:
        """Nothing where the poll has done it."""
        if self._auto_commit and self._polls_as is NOBODY and self.handed_out > self._committed:
            self.store(self.handed_out, deadline)

    def finish_commits(self, deadline: float) -> None:
        self.commit_behind(deadline)
