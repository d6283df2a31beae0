"""Messages through the gateway: productions into lanes, polls from mapped files. Blocking; on a carrier's thread.

Owns a route (producer identity and window) for each partition that was written to, and a few readers of each that was
read: the least used go. Whether the user may is asked of the broker each time, when the partition is opened for the
request; that also tells a topic that was made anew from its predecessor, since it has another log.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, Generic, NamedTuple, TypeVar

from xxhash import xxh32_intdigest

from shmbroker.client.offsets import OffsetOrigin, ask_to_store, consumer_key, delete_stored, get_stored, store
from shmbroker.client.route import Route
from shmbroker.client.ticket import Confirmation, Ticket
from shmbroker.errors import ErrorCode, NotFound, PartitionRefused, PartitionReplaced, Unavailable, error_from
from shmbroker.formats.control import State
from shmbroker.gateway.access import Identity
from shmbroker.gateway.backend import Backend
from shmbroker.gateway.messages import Batching, encode, entries_of
from shmbroker.limits import HTTP_POLL_SIZE_MAX
from shmbroker.storage.reader import LogReader
from shmbroker.wire import topics
from shmbroker.wire.local import OpenPartitionReply
from shmbroker.wire.primitives import Identifier

ROUTE_COUNT_MAX: Final = 1_024
READER_COUNT_MAX: Final = 256
TOPIC_COUNT_MAX: Final = 1_024
TOPIC_FRESH_S: Final = 1.0
"""For so long the number of partitions of a topic is believed: balanced and keyed batches go by it."""
IN_FLIGHT_MAX: Final = 128
ROOM_S: Final = 1.0
"""A production waits so long for room in its lane; then it was not accepted, and the client is told to come again."""
REOPEN_S: Final = 0.01
V = TypeVar("V")


class Target(NamedTuple):
    """A topic, and who asks for it."""

    user: Identity
    stream: Identifier
    topic: Identifier
    deadline: float

    @property
    def name(self) -> str:
        return f"{self.stream}/{self.topic}"


class Poll(NamedTuple):
    """``kind``: offset, timestamp, first, last or next; ``value`` is that of the first two."""

    consumer: Identifier
    partition: int
    kind: str
    value: int
    message_count: int
    auto_commit: bool


class Sent(NamedTuple):
    """A production under way: its ticket, and the partition that it went to."""

    ticket: Ticket
    partition: OpenPartitionReply

    def confirmation(self, confirmed: Confirmation) -> dict[str, int]:
        """Its entry in the answer."""
        partition = self.partition
        return {
            "stream_id": partition.stream_id,
            "topic_id": partition.topic_id,
            "partition_id": partition.partition_id,
            "base_offset": confirmed.base_offset,
        }


class LeastUsed(Generic[V]):
    """Values by key, of which the one that was not used for longest goes when there are too many. Thread-safe."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._values: OrderedDict[Any, V] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Any, make: Callable[[], V]) -> V:
        """The value of ``key``; made, under the lock, where there is none: ``make`` must be quick."""
        with self._lock:
            value = self._values.get(key)
            if value is None:
                value = self._values[key] = make()
                if len(self._values) > self._count_max:
                    self._values.popitem(last=False)
            self._values.move_to_end(key)
            return value

    def pop(self, key: Any) -> V | None:
        """Takes it out."""
        with self._lock:
            return self._values.pop(key, None)

    def put(self, key: Any, value: V) -> None:
        """Puts it in; another may have to go for it."""
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            if len(self._values) > self._count_max:
                self._values.popitem(last=False)


class Exchange:
    """What carries messages. Thread-safe."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._routes: LeastUsed[Route] = LeastUsed(ROUTE_COUNT_MAX)
        self._readers: LeastUsed[LogReader] = LeastUsed(READER_COUNT_MAX)
        self._counts: LeastUsed[tuple[int, float]] = LeastUsed(TOPIC_COUNT_MAX)
        self._turn = itertools.count()

    # --- production --------------------------------------------------------------------------------------------------
    def send(self, target: Target, batching: Batching) -> Sent:
        """Puts a batch into the lane of its partition. Raises what keeps it from being accepted."""
        opened = self._open_for_sending(target, batching)
        port = self._backend.port(opened.worker)
        route = self._routes.get(
            opened.log_id, lambda: Route(port, opened.log_id, opened.partition_id, target.name, IN_FLIGHT_MAX)
        )
        deadline = min(target.deadline, time.monotonic() + ROOM_S)
        return Sent(route.put(batching.payloads, batching.headers, batching.ids, deadline, False), opened)

    def _open_for_sending(self, target: Target, batching: Batching) -> OpenPartitionReply:
        if batching.partition is not None:
            return self._open(target, batching.partition, ["append"])
        key = (target.stream, target.topic)
        count, fresh_until = self._counts.pop(key) or (0, 0.0)
        if time.monotonic() >= fresh_until:
            count, fresh_until = self._count_partitions(target), time.monotonic() + TOPIC_FRESH_S
        number = next(self._turn) if batching.key is None else xxh32_intdigest(batching.key, 0)
        opened = self._open(target, number % count, ["append"])
        self._counts.put(key, (count, fresh_until))  # not where it could not be opened: there may be fewer by now
        return opened

    def _count_partitions(self, target: Target) -> int:
        """Asked as the broker's own user: who may only send may not look at the topic."""
        self._backend.check_sender(target.user, target.stream, target.topic, target.deadline)
        found = self._backend.ask_here(topics.GetTopic(target.stream, target.topic), target.deadline)
        if found is None:
            raise error_from(ErrorCode.TOPIC_NOT_FOUND, f"there is no topic {target.name}")
        if not found.partitions:
            raise error_from(ErrorCode.PARTITION_NOT_FOUND, f"topic {target.name} has no partitions")
        return len(found.partitions)

    def _open(self, target: Target, partition: int, rights: list[str]) -> OpenPartitionReply:
        return self._backend.open_partition(
            target.user, target.stream, target.topic, partition, rights, target.deadline
        )

    # --- polls -------------------------------------------------------------------------------------------------------
    def poll(self, target: Target, poll: Poll) -> bytes:
        """The answer of a poll as JSON. Stores the offset behind it where ``auto_commit`` says so, without waiting."""
        rights = ["read", "offsets"] if poll.kind == "next" or poll.auto_commit else ["read"]
        while True:
            opened = self._open(target, poll.partition, rights)
            if opened.state == State.REFUSED.name.lower():
                raise PartitionRefused(f"{target.name}, partition {poll.partition}: {opened.reason}")
            try:
                entries, end_offset = self._read(target, poll, opened)
                break
            except (PartitionReplaced, Unavailable) as error:
                # Purged just now, or its worker is still making the control block: opening it again is bounded.
                if isinstance(error, PartitionRefused) or time.monotonic() + REOPEN_S >= target.deadline:
                    raise
                time.sleep(REOPEN_S)
        if entries and poll.auto_commit:
            last_offset = entries[-1]["header"]["offset"]
            port = self._backend.port(opened.worker)
            origin = OffsetOrigin(opened.partition_id, target.name)
            key = key_of(poll.consumer)
            ask_to_store(port, origin, opened.log_id, key, last_offset, automatic=True, deadline=target.deadline)
        answer = {
            "partition_id": opened.partition_id,
            "current_offset": max(0, end_offset - 1),
            "count": len(entries),
            "messages": entries,
        }
        return encode(answer)

    def _read(self, target: Target, poll: Poll, opened: OpenPartitionReply) -> tuple[list[dict[str, Any]], int]:
        """The messages, and the offset after the last that is visible."""
        reader = self._readers.pop(opened.log_id)
        if reader is not None and not opened.control.endswith(f"-{reader.incarnation.hex()}.control"):
            reader = None
        if reader is None:
            reader = LogReader(opened.control, opened.directory)
        try:
            self._seek(reader, target, poll, opened)
            entries = _read_entries(reader, poll.message_count)
            end_offset = reader.visible_offset
        finally:
            reader.close()  # segments that are deleted meanwhile give their space back; it opens what it needs again
        self._readers.put(opened.log_id, reader)
        return entries, end_offset

    def _seek(self, reader: LogReader, target: Target, poll: Poll, opened: OpenPartitionReply) -> None:
        if poll.kind == "offset":
            reader.seek_offset(poll.value)
        elif poll.kind == "timestamp":
            reader.seek_timestamp(poll.value)
        elif poll.kind == "last":
            reader.seek_last(poll.message_count)
        else:
            stored = None
            if poll.kind == "next":
                port = self._backend.port(opened.worker)
                stored = get_stored(port, opened.log_id, target.name, key_of(poll.consumer), target.deadline)
            if stored is None:
                reader.seek_first()
            else:
                reader.seek_offset(stored + 1)

    # --- stored offsets ----------------------------------------------------------------------------------------------
    def get_offset(self, target: Target, partition: int, key: bytes) -> dict[str, int]:
        """What a consumer stored. Raises NotFound (3021) where it did not."""
        opened = self._open(target, partition, ["offsets", "read"])
        port = self._backend.port(opened.worker)
        stored = get_stored(port, opened.log_id, target.name, key, target.deadline)
        if stored is None:
            text = f"{target.name}, partition {partition}: nothing is stored for this consumer"
            raise NotFound(text, number=ErrorCode.CONSUMER_OFFSET_NOT_FOUND)
        reader = LogReader(opened.control, opened.directory)
        end_offset = reader.visible_offset
        reader.close()
        return {
            "partition_id": opened.partition_id,
            "current_offset": max(0, end_offset - 1),
            "stored_offset": stored,
        }

    def store_offset(self, target: Target, partition: int, key: bytes, offset: int) -> None:
        """Returns when the topic's offset policy is met. Raises InvalidOffset beyond the end."""
        opened = self._open(target, partition, ["offsets"])
        port = self._backend.port(opened.worker)
        store(port, opened.log_id, f"{target.name}, partition {partition}", key, offset, target.deadline)

    def delete_offset(self, target: Target, partition: int, key: bytes) -> None:
        """Returns when the topic's offset policy is met. Raises NotFound where none is stored."""
        opened = self._open(target, partition, ["offsets"])
        port = self._backend.port(opened.worker)
        delete_stored(port, opened.log_id, f"{target.name}, partition {partition}", key, target.deadline)


def key_of(consumer: Identifier) -> bytes:
    """Under which it stores."""
    if isinstance(consumer, int):
        return consumer_key(None, consumer, None)
    return consumer_key(consumer, None, None)


def _read_entries(reader: LogReader, count: int) -> list[dict[str, Any]]:
    """At most ``count`` messages from where the reader stands, and at most HTTP_POLL_SIZE_MAX bytes of frames."""
    entries: list[dict[str, Any]] = []
    size_left = HTTP_POLL_SIZE_MAX
    while len(entries) < count and size_left > 0:
        pieces = reader.read(count - len(entries), size_left)
        if not pieces:
            break
        for piece in pieces:
            found, size_left = entries_of(piece, size_left, is_first=not entries)
            entries += found
            if size_left < 0:
                return entries
    return entries
