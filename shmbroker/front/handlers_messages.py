"""Messages over a socket: send and poll. Answered by callbacks rather than by tasks: these two are the hot path.

A handler here gets ``done``, which it calls exactly once with what Session.accepted takes or with a ShmbrokerError,
maybe before it returns; it returns whether the request's bytes are needed no longer. It may also raise.

send    the batch becomes a record (front.records), which the worker checks, appends and confirms
poll    is served here from the mapped files (front.polling); only "next" may have to ask the worker first, for a
        stored offset that is not known here, and an automatic commit tells it afterwards, without waiting

A client numbers its sends, and sends one again under its number after "not committed" (57): so client, user and number
are the producer and sequence of the record, and a batch that was appended once gets its first confirmation (rule 7).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from xxhash import xxh3_64_intdigest, xxh32_intdigest

from shmbroker.core.model import Partition, Topic
from shmbroker.errors import ErrorCode, ShmbrokerError, error_from
from shmbroker.formats.lane import (
    FLAG_AUTOMATIC,
    REQUEST_APPEND,
    REQUEST_GET_OFFSET,
    REQUEST_STORE_OFFSET,
    pack_key,
)
from shmbroker.front.groups import GroupPlace, place_of
from shmbroker.front.handlers_catalog import Handler
from shmbroker.front.handlers_partitions import key_of
from shmbroker.front.logs import Log
from shmbroker.front.polling import check_count
from shmbroker.front.records import record_of
from shmbroker.front.reply import Gathered
from shmbroker.front.sending import LaneRequest, check_length
from shmbroker.front.stored_offsets import NONE_STORED
from shmbroker.wire import messages
from shmbroker.wire.codes import Code
from shmbroker.wire.primitives import CONSUMER_GROUP

if TYPE_CHECKING:
    from shmbroker.front.session import Session

Done = Callable[[Any], None]
QuickHandler = Callable[["Session", Any, Done], bool]

_SENT: Final = Struct("<IIIIQ")
"""One confirmation: the count 1, stream, topic, partition, base offset."""
_POLLED: Final = Struct("<IQI")
_FENCED: Final = _POLLED.pack(messages.PARTITION_RESYNC, 0, 0)
_ID_MASK: Final = 2**63 - 1
LOG: Final = logging.getLogger("shmbroker.front")


# --- send -------------------------------------------------------------------------------------------------------------
def send(session: Session, request: messages.SendMessages, done: Done) -> bool:
    broker = session.broker
    topic = broker.keeper.catalog.topic(request.stream, request.topic)
    partition = _partition_for(session, topic, request.partitioning)
    log = broker.logs.get(partition.log_id)
    made = record_of(memoryview(request.batch), _producer_id(session), session.request_number)
    if isinstance(made, ErrorCode):
        raise error_from(made)
    buffers, length = made
    check_length(length)

    def confirmed(status: int, base_offset: int, _: int) -> None:
        if status:
            done(error_from(status))
        else:
            sent = _SENT.pack(1, topic.stream_id, topic.topic_id, partition.partition_id, base_offset)
            done(Gathered((sent,), _SENT.size))

    return broker.senders[log.worker].submit(LaneRequest(REQUEST_APPEND, 0, log.log_id, 0, buffers, length, confirmed))


def _partition_for(session: Session, topic: Topic, partitioning: messages.Partitioning) -> Partition:
    """Where a batch goes. Raises 3007."""
    partitions = topic.partitions
    count = len(partitions)
    if partitioning.kind == messages.PARTITIONING_PARTITION:
        partition_id = partitioning.partition_id
    elif partitioning.kind == messages.PARTITIONING_KEY:
        partition_id = xxh32_intdigest(partitioning.value) % max(1, count)
    else:
        partition_id = _next_partition(session, topic)
    if partition_id >= count:
        raise error_from(ErrorCode.PARTITION_NOT_FOUND, f"topic {topic.name!r} has no partition {partition_id}")
    return partitions[partition_id]


def _next_partition(session: Session, topic: Topic) -> int:
    """The next in turn; for a batch that is sent again the one it went to, which knows whether it has it."""
    turns = session.broker.turns
    place = topic.stream_id, topic.topic_id
    send = session.client_id, session.request_number, *place
    known, partition_id = session.balanced
    if known != send or partition_id >= len(topic.partitions):
        turn = turns.get(place, 0)
        turns[place] = turn + 1
        partition_id = turn % max(1, len(topic.partitions))
        session.balanced = send, partition_id
    return partition_id


def _producer_id(session: Session) -> int:
    """For as long as this client is this user: never 0."""
    client_id = session.client_id
    known, producer_id = session.producer
    if known != client_id:
        user_id = session.user.user_id if session.user is not None else 0
        digest = xxh3_64_intdigest(client_id.to_bytes(16, "little") + user_id.to_bytes(4, "little"))
        producer_id = digest & _ID_MASK or 1
        session.producer = client_id, producer_id
    return producer_id


# --- poll -------------------------------------------------------------------------------------------------------------
class _Poll:
    """One poll from its request to its reply."""

    __slots__ = ("asked", "done", "key", "log", "partition_id", "place", "request", "session")

    def __init__(
        self,
        session: Session,
        request: messages.PollMessages,
        log: Log,
        partition_id: int,
        place: GroupPlace | None,
        done: Done,
    ) -> None:
        self.session = session
        self.request = request
        self.log = log
        self.partition_id = partition_id
        self.place = place
        self.done = done
        self.key = b""
        self.asked = 0

    def start(self) -> None:
        request = self.request
        if request.strategy == messages.POLL_NEXT or request.auto_commit:
            self.key = pack_key(key_of(self.session, request.consumer, request.stream, request.topic))
        if request.strategy != messages.POLL_NEXT:
            self.done(self.read(request.strategy, request.value))
            return
        sender = self.session.broker.senders[self.log.worker]
        known = sender.offsets.find(self.log.log_id, self.key)
        if known is not None:
            self.done(self.read_after(known))
            return
        self.asked = sender.offsets.ask()
        sender.submit(LaneRequest(REQUEST_GET_OFFSET, 0, self.log.log_id, 0, (self.key,), len(self.key), self.stored))

    def stored(self, status: int, offset: int, _: int) -> None:
        """The worker's word on the stored offset of a poll of what is next."""
        if status == ErrorCode.CONSUMER_OFFSET_NOT_FOUND:
            status, offset = 0, NONE_STORED
        if not status:
            self.session.broker.senders[self.log.worker].offsets.learn(self.asked, self.log.log_id, self.key, offset)
        try:
            if self.place is not None and not self.is_owner():
                value: Any = Gathered((_FENCED,), _POLLED.size)
            elif status:
                value = error_from(status)
            else:
                value = self.read_after(offset)
        except ShmbrokerError as error:
            value = error
        except Exception as error:
            LOG.error("connection %d: a poll failed", self.session.number, exc_info=error)
            value = error_from(ErrorCode.ERROR, "the broker failed to answer: see its log")
        self.done(value)

    def is_owner(self) -> bool:
        assert self.place is not None
        return self.session.broker.groups.may_poll(self.session, *self.place, self.partition_id)

    def read_after(self, offset: int) -> Gathered:
        """The reply to a poll of what is next."""
        if offset == NONE_STORED:
            return self.read(messages.POLL_FIRST, 0)
        return self.read(messages.POLL_OFFSET, offset + 1)

    def read(self, strategy: int, value: int) -> Gathered:
        """The reply. Tells the groups, and starts an automatic commit."""
        broker = self.session.broker
        polled = broker.readers.poll(self.log, strategy, value, self.request.count)
        if polled.count:
            if self.place is not None:
                broker.groups.polled(self.session, *self.place, self.partition_id, polled.last_offset)
            if self.request.auto_commit:
                self.commit(polled.last_offset)
        head = _POLLED.pack(self.partition_id, polled.current_offset, polled.count)
        return Gathered((head, *polled.pieces), _POLLED.size + polled.size)

    def commit(self, offset: int) -> None:
        """Nobody waits for it, and it never lowers an offset."""

        sender = self.session.broker.senders[self.log.worker]

        def committed(status: int, _: int, __: int) -> None:
            if status:
                sender.offsets.forget(self.log.log_id, self.key)
                LOG.warning("log %d: an automatic commit failed: %s", self.log.log_id, error_from(status))
            elif self.place is not None:
                self.session.broker.groups.committed(self.session, *self.place, self.partition_id, offset)

        sender.offsets.raise_to(self.log.log_id, self.key, offset)
        sender.submit(
            LaneRequest(
                REQUEST_STORE_OFFSET, FLAG_AUTOMATIC, self.log.log_id, offset, (self.key,), len(self.key), committed
            )
        )


def poll(session: Session, request: messages.PollMessages, done: Done) -> bool:
    broker = session.broker
    catalog = broker.keeper.catalog
    check_count(request.count)
    partition_id = request.partition_id
    place: GroupPlace | None = None
    if request.consumer.kind == CONSUMER_GROUP:
        topic = catalog.topic(request.stream, request.topic)
        group = catalog.group(request.stream, request.topic, request.consumer.id)
        place = place_of(topic, group)
        if partition_id is None:
            partition_id = broker.groups.next_partition(session, *place)
        if partition_id is None or not broker.groups.may_poll(session, *place, partition_id):
            done(Gathered((_FENCED,), _POLLED.size))
            return True
    partition = catalog.partition(request.stream, request.topic, partition_id or 0)
    log = broker.logs.get(partition.log_id)
    _Poll(session, request, log, partition.partition_id, place, done).start()
    return True


# --- the same, awaited ------------------------------------------------------------------------------------------------
def awaited(quick: QuickHandler) -> Handler:
    """A quick handler as all others are: for the Unix socket."""

    async def handle(session: Session, request: Any) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def done(value: Any) -> None:
            if future.done():
                return
            if isinstance(value, ShmbrokerError):
                future.set_exception(value)
            else:
                future.set_result(value)

        quick(session, request, done)
        return await future

    return handle


QUICK: Final[dict[int, QuickHandler]] = {Code.SEND_MESSAGES: send, Code.POLL_MESSAGES: poll}
HANDLERS: Final[dict[int, Handler]] = {int(code): awaited(quick) for code, quick in QUICK.items()}
