"""The client: one connection to a broker, and everything that is done through it.

Owns its transport (shared memory on the broker's own host, else TCP), and the producers and consumers that it made,
which close with it. When the broker has gone, or in a child of fork(), the connection refuses, and so does all that
goes through it: at once for new requests, and within a slice for whoever waits.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Self

from shmbroker.client.address import Address, TcpAddress, address_of
from shmbroker.client.administration import TIMEOUT_S, Administration, Seconds
from shmbroker.client.connection import Connection
from shmbroker.client.consumer import Consumer, Start
from shmbroker.client.cursor import Cursor
from shmbroker.client.exchange import FOREVER_S, deadline_of
from shmbroker.client.group_consumer import GroupConsumer
from shmbroker.client.lanes import Port
from shmbroker.client.membership import Membership
from shmbroker.client.producer import Producer
from shmbroker.client.transport import LocalTransport, Reading, Transport
from shmbroker.client.wire_transport import WireTransport
from shmbroker.errors import AlreadyExists, ClientMistake, Closed, NotFound, ShmbrokerError, Unauthorized
from shmbroker.limits import MIB
from shmbroker.wire.primitives import Identifier


class Client(Administration):
    """A connection to a broker. Thread-safe. What concerns the catalog is in :class:`Administration`."""

    def __init__(self, address: Address | str, *, timeout: Seconds = TIMEOUT_S, is_attentive: bool = False) -> None:
        """Connects to the broker at ``address``; text is its data directory on this host. Raises Unavailable where none
        answers, Unauthorized where it does not know who comes over TCP.

        ``is_attentive``: confirmations are taken by a thread of their own as they come, for programs whose threads do
        not wait for them.
        """
        seconds = FOREVER_S if timeout is None else timeout
        self._users: weakref.WeakSet[Producer | Consumer] = weakref.WeakSet()
        self._is_closed = False
        self._transport = _transport_to(address, seconds, is_attentive)
        self._connection = self._transport.connection

    @property
    def name(self) -> str:
        """The broker's data directory, or its host and port."""
        return self._connection.name

    @property
    def data(self) -> str:
        """The data directory of a broker of this host. Raises ClientMistake for one over TCP."""
        if not isinstance(self._connection, Connection):
            raise ClientMistake(f"{self.name} is a broker over TCP: where its data is does not concern its clients")
        return self._connection.hello.data

    @property
    def is_alive(self) -> bool:
        """Whether the broker still holds its end of the connection."""
        return self._connection.alive

    def producer(
        self,
        stream: Identifier,
        topic: Identifier,
        *,
        linger: float = 0.0,
        batch_count: int = 1000,
        batch_size: int = MIB,
        max_in_flight: int = 128,
        timeout: Seconds = TIMEOUT_S,
    ) -> Producer:
        """The sending side of a topic.

        ``linger``: seconds for which what is submitted to a partition is gathered into one batch, of at most
        ``batch_count`` messages and ``batch_size`` bytes of payload; 0 sends each submission as a batch of its own.
        ``max_in_flight``: batches to one partition without their confirmation, 1 to 255; a submission waits for room.
        ``timeout``: seconds for each of its calls that is not given one.
        """
        seconds = FOREVER_S if timeout is None else timeout
        try:
            partition_count = self.get_topic(stream, topic, timeout=seconds).partition_count
        except Unauthorized:  # a user who may send and not look: its sends have to say which partition
            partition_count = None
        producer = Producer(
            self, stream, topic, partition_count, linger=linger, batch_count=batch_count, batch_size=batch_size,
            max_in_flight=max_in_flight, timeout=seconds,
        )  # fmt: skip
        self._users.add(producer)
        return producer

    def consumer(
        self,
        stream: Identifier,
        topic: Identifier,
        *,
        partition: int | Iterable[int] | None = None,
        name: str | None = None,
        id: int | None = None,
        group: Identifier | None = None,
        offset: int | None = None,
        timestamp: int | None = None,
        first: bool = False,
        last: int | None = None,
        next: bool = False,
        auto_commit: bool = False,
        timeout: Seconds = TIMEOUT_S,
    ) -> Consumer:
        """The reading side of a topic: of one partition, of several, or (None) of all.

        ``name``, ``id`` or ``group``: whose stored offsets it uses; without one it can neither start at ``next`` nor
        commit. Where it starts, in each partition: at ``offset``, at the first message that the broker took at or after
        ``timestamp`` (microseconds), at the ``first`` kept one, at the ``last`` so many, or at the ``next`` after the
        stored offset (the first where none is stored), which is the default of a consumer that has a name.
        ``auto_commit`` stores what each poll hands out, without waiting, and never backwards: a consumer that dies
        before it has processed that has lost it; commit() after processing instead where that matters.

        A ``group`` without ``partition`` makes it a member of the group, which is created if it is missing: the members
        share the partitions, and each goes on after the group's stored offset; where it starts is for partitions of
        which nothing is stored. With ``partition`` it only uses the group's offsets.
        """
        deadline = deadline_of(timeout)
        is_named = name is not None or id is not None or group is not None
        key = self._consumer_key(stream, topic, name, id, group, deadline) if is_named else None
        start = Start.of(offset=offset, timestamp=timestamp, first=first, last=last, next=next, is_named=is_named)
        if partition is None and group is not None:
            return self._join_group(stream, topic, group, key, start, auto_commit, deadline)
        if partition is None:
            described = self.get_topic(stream, topic, timeout=deadline - time.monotonic())
            partitions = [each.id for each in described.partitions]
        else:
            if not isinstance(partition, int | Iterable):
                raise ClientMistake(f"partition: a number, several, or None, not {partition!r}")
            partitions = [partition] if isinstance(partition, int) else list(partition)
        if not partitions or len(set(partitions)) != len(partitions):
            raise ClientMistake(f"a consumer needs partitions, each once: {partitions}")
        reading = self._transport.open_reading(deadline)
        cursors: list[Cursor] = []
        try:
            for each in partitions:
                cursors.append(reading.open_cursor(stream, topic, each, key, deadline, auto_commit=auto_commit))
                start.apply(cursors[-1], deadline)
            consumer = Consumer(
                reading.connection, self._forgetter(reading), cursors, is_named=is_named, auto_commit=auto_commit
            )
        except BaseException:
            for cursor in cursors:
                cursor.close()
            reading.close()
            raise
        self._users.add(consumer)
        return consumer

    def _join_group(
        self,
        stream: Identifier,
        topic: Identifier,
        group: Identifier,
        key: bytes | None,
        start: Start,
        auto_commit: bool,
        deadline: float,
    ) -> GroupConsumer:
        reading = self._transport.open_reading(deadline)
        membership: Membership | None = None
        try:
            membership = Membership(reading.member_session(deadline), stream, topic, group)
            self._start_membership(membership, deadline)
            consumer = GroupConsumer(
                reading.connection, self._forgetter(reading), membership,
                lambda partition, deadline: reading.open_cursor(
                    stream, topic, partition, key, deadline, auto_commit=False, is_member=True
                ),
                reading.group_commit(membership), start, auto_commit=auto_commit,
            )  # fmt: skip
        except BaseException:
            if membership is not None:
                membership.close()
            reading.close()
            raise
        self._users.add(consumer)
        try:
            consumer.follow()
        except BaseException:
            consumer.close()
            raise
        return consumer

    def _start_membership(self, membership: Membership, deadline: float) -> None:
        """Joins the group, which is created where it is missing."""
        group = membership.group
        try:
            membership.start(deadline)
        except NotFound:
            if not isinstance(group, str):
                raise
            with suppress(AlreadyExists):  # another member was quicker
                self.create_group(membership.stream, membership.topic, group, timeout=deadline - time.monotonic())
            membership.start(deadline)

    def close(self, timeout: Seconds = TIMEOUT_S) -> None:
        """Flushes and closes its producers and consumers, then the connection. Closing twice is fine.

        Raises the first error of a flush, after everything is closed.
        """
        if self._is_closed:
            return
        self._is_closed = True
        if self._connection.is_foreign:
            return  # all of it is the parent's
        deadline = deadline_of(timeout)
        failure: ShmbrokerError | None = None
        usable = self._connection.refusal is None
        for user in list(self._users):
            try:
                user.close(max(0.0, deadline - time.monotonic()))
            except ShmbrokerError as error:
                failure = failure or error
        self._transport.close(Closed("this client is closed"))
        if failure is not None and usable:
            raise failure

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        try:
            self.close()
        except ShmbrokerError:
            if error is None:
                raise  # else the caller's own error says more

    # --- for its producers and consumers -----------------------------------------------------------------------------
    def open_route(self, stream: Identifier, topic: Identifier, partition: int, deadline: float) -> tuple[Port, int]:
        """Where batches for this partition go, and the log id that they carry."""
        return self._transport.open_route(stream, topic, partition, deadline)

    @property
    def is_foreign(self) -> bool:
        """Whether this is a child of fork(), where nothing of it may be used."""
        return self._connection.is_foreign

    def forget(self, user: Any) -> None:
        """A producer or consumer has closed."""
        self._users.discard(user)

    def _forgetter(self, reading: Reading) -> Callable[[Any], None]:
        def forget(user: Any) -> None:
            self.forget(user)
            reading.close()

        return forget


def connect(url: str | os.PathLike[str] | None = None, *, timeout: Seconds = TIMEOUT_S) -> Client:
    """A client of the broker at ``url``: None is ``./shmbroker-data``, ``shm:///path/of/data`` one of this host over
    shared memory, ``iggy://user:password@host:port`` any over TCP (``iggy://token@host``; ``iggy+tls://``), a
    path object is a data directory.

    Raises Unavailable where no broker answers there, Unauthorized for wrong credentials.
    """
    return Client(address_of(url), timeout=timeout)


def _transport_to(address: Address | str, timeout: float, is_attentive: bool) -> Transport:
    if isinstance(address, TcpAddress):
        return WireTransport(address, version=_version(), timeout=timeout, is_attentive=is_attentive)
    data = address if isinstance(address, str) else address.data
    return LocalTransport(data, version=_version(), timeout=timeout, is_attentive=is_attentive)


def _version() -> str:
    try:
        return version("shmbroker")
    except PackageNotFoundError:
        return "unknown"  # run from a checkout that was never installed
