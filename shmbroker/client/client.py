"""The client: one connection to a broker of this host, and everything that is done through it.

Owns the connection to the front, a port (lane and reaper) for each worker that it talks to, and the producers and
consumers that it made, which close with it. When the broker has gone, or in a child of fork(), the connection refuses,
and so do all ports: at once for new requests, and within a slice for whoever waits.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from shmbroker.client.administration import TIMEOUT_S, Administration, Seconds
from shmbroker.client.connection import FOREVER_S, Connection, deadline_of
from shmbroker.client.consumer import Consumer, Start
from shmbroker.client.cursor import Cursor
from shmbroker.client.group_consumer import GroupConsumer, local_commit
from shmbroker.client.lanes import Port
from shmbroker.client.membership import Membership
from shmbroker.client.producer import Producer
from shmbroker.errors import AlreadyExists, ClientMistake, Closed, ErrorCode, NotFound, ShmbrokerError, Unavailable
from shmbroker.limits import MIB
from shmbroker.wire.primitives import Identifier

DATA_DEFAULT = "./shmbroker-data"


class Client(Administration):
    """A connection to a broker. Thread-safe. What concerns the catalog is in :class:`Administration`."""

    def __init__(self, data: str, *, timeout: Seconds = TIMEOUT_S, is_attentive: bool = False) -> None:
        """Connects to the broker of the data directory ``data``. Raises Unavailable where none answers.

        ``is_attentive``: confirmations are taken by a thread of their own as they come, for programs whose threads do
        not wait for them.
        """
        seconds = FOREVER_S if timeout is None else timeout
        self._ports: dict[int, Port] = {}
        self._ports_lock = threading.Lock()
        self._users: weakref.WeakSet[Producer | Consumer] = weakref.WeakSet()
        self._is_closed = False
        self._is_attentive = is_attentive
        self._connection = Connection(data, version=_version(), timeout=seconds)
        self._connection.on_refusal(self._refuse)

    @property
    def data(self) -> str:
        """The broker's data directory."""
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
        partition_count = self.get_topic(stream, topic, timeout=seconds).partition_count
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
            partitions = [partition] if isinstance(partition, int) else list(partition)
        if not partitions or len(set(partitions)) != len(partitions):
            raise ClientMistake(f"a consumer needs partitions, each once: {partitions}")
        cursors: list[Cursor] = []
        try:
            for each in partitions:
                cursors.append(self._open_cursor(stream, topic, each, key, deadline))
                start.apply(cursors[-1], deadline)
        except BaseException:
            for cursor in cursors:
                cursor.close()
            raise
        consumer = Consumer(self._connection, self.forget, cursors, is_named=is_named, auto_commit=auto_commit)
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
        connection = self._connection
        membership = Membership(connection.request, stream, topic, group)
        try:
            membership.start(deadline)
        except NotFound:
            if not isinstance(group, str):
                raise
            with suppress(AlreadyExists):  # another member was quicker
                self.create_group(stream, topic, group, timeout=deadline - time.monotonic())
            membership.start(deadline)
        consumer = GroupConsumer(
            connection, self.forget, membership,
            lambda partition, deadline: self._open_cursor(stream, topic, partition, key, deadline),
            local_commit(connection, membership), start, auto_commit=auto_commit,
        )  # fmt: skip
        self._users.add(consumer)
        consumer.follow()
        return consumer

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
        self._connection.close()
        for port in list(self._ports.values()):
            port.close(Closed("this client is closed"))
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
        """The port of the partition's worker, and its log id, with the right to append."""
        grant = self._open_partition(stream, topic, partition, ["append"], deadline)
        return self._port(grant.worker), grant.log_id

    @property
    def is_foreign(self) -> bool:
        """Whether this is a child of fork(), where nothing of it may be used."""
        return self._connection.is_foreign

    def forget(self, user: Any) -> None:
        """A producer or consumer has closed."""
        self._users.discard(user)

    def _open_cursor(
        self, stream: Identifier, topic: Identifier, partition: int, key: bytes | None, deadline: float
    ) -> Cursor:
        rights = ["read"] if key is None else ["read", "offsets"]

        def grant(deadline: float) -> tuple[Any, Port]:
            reply = self._open_partition(stream, topic, partition, rights, deadline)
            return reply, self._port(reply.worker)

        return Cursor(grant, partition, f"{stream}/{topic}", key, deadline)

    def _port(self, worker: int) -> Port:
        with self._ports_lock:
            port = self._ports.get(worker)
            if port is None:
                port = self._ports[worker] = Port(self._connection, worker, is_attentive=self._is_attentive)
                port.refusal = self._connection.refusal
            return port

    def _refuse(self, error: ShmbrokerError) -> None:
        """The connection cannot be used any more. Takes no lock: it may be called in a child of fork()."""
        for port in list(self._ports.values()):
            if port.refusal is None:
                port.refusal = error
            if self._connection.is_foreign:
                port.reaper.abandoned = error


def connect(url: str | None = None, *, timeout: Seconds = TIMEOUT_S) -> Client:
    """A client of the broker at ``url``: None is ``./shmbroker-data``, else ``shm:///path/of/data``.

    Raises Unavailable where no broker answers there.
    """
    return Client(data_of(url), timeout=timeout)


def data_of(url: str | None) -> str:
    """The data directory that a URL names. Raises ClientMistake, and Unavailable for what comes later."""
    if url is None:
        return DATA_DEFAULT
    parts = urlsplit(url)
    if parts.scheme == "iggy":
        raise Unavailable(
            "TCP comes with the next release: connect on the broker's own host with shm:///path/of/data",
            number=ErrorCode.FEATURE_UNAVAILABLE,
        )
    if parts.scheme != "shm":
        raise ClientMistake(f"{url!r} is no address of a broker: use shm:///path/of/data")
    if parts.netloc or not parts.path or parts.query or parts.fragment:
        raise ClientMistake(f"{url!r}: an address of a local broker is shm:// and an absolute path, so three slashes")
    return unquote(parts.path)


def _version() -> str:
    try:
        return version("shmbroker")
    except PackageNotFoundError:
        return "unknown"  # run from a checkout that was never installed
