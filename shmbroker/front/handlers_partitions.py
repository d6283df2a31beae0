"""Partitions, their segments, flushes, and stored offsets by command.

Local clients store offsets and flush through their lanes; these commands do the same through the front's, for whoever
has no lane. A group's offsets belong to its name, a consumer's to its number or name as it gives it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shmbroker.errors import ErrorCode, NotFound, error_from
from shmbroker.formats.lane import (
    FLAG_SYNC,
    REQUEST_DELETE_OFFSET,
    REQUEST_FLUSH,
    REQUEST_GET_OFFSET,
    REQUEST_STORE_OFFSET,
    pack_key,
)
from shmbroker.formats.offsets import KEY_CONSUMER, KEY_GROUP, name_key, number_key
from shmbroker.front.groups import GroupPlace, place_of
from shmbroker.front.handlers_catalog import Handler, delete, now_us
from shmbroker.front.logs import Log
from shmbroker.front.sending import Sender
from shmbroker.wire import messages, offsets, topics
from shmbroker.wire.codes import Code
from shmbroker.wire.primitives import CONSUMER_GROUP, Consumer, Identifier

if TYPE_CHECKING:
    from shmbroker.front.session import Session


async def create_partitions(session: Session, request: topics.CreatePartitions) -> None:
    broker = session.broker
    keeper = broker.keeper
    async with keeper.lock:
        topic = keeper.catalog.check_partitions(request.stream, request.topic, request.count)
        log_ids = await keeper.reserve_log_ids(request.count)
        first = len(topic.partitions)
        options = broker.logs.options_of(topic.options, first + request.count)
        logs = broker.logs.assign(enumerate(log_ids, first), options)
        await broker.create_logs(logs)
        try:
            changes = keeper.catalog.create_partitions(request.stream, request.topic, log_ids, now_us())
            await keeper.commit(changes)
        except BaseException:
            await broker.discard_logs(logs)
            raise
        await broker.update_logs(topic)


async def delete_partitions(session: Session, request: topics.DeletePartitions) -> None:
    broker = session.broker
    catalog = broker.keeper.catalog
    await delete(broker, lambda: catalog.delete_partitions(request.stream, request.topic, request.count))
    await broker.update_logs(catalog.topic(request.stream, request.topic))


async def delete_segments(session: Session, request: topics.DeleteSegments) -> None:
    log, _ = _reach(session, request.stream, request.topic, request.partition_id)
    link = await session.broker.worker_of(log).running()
    if request.count < 1:
        raise error_from(ErrorCode.INVALID_SEGMENTS_COUNT, "at least one segment, not 0")
    await link.control("segments", log_id=log.log_id, count=request.count)


async def flush(session: Session, request: messages.FlushUnsavedBuffer) -> None:
    log, sender = _reach(session, request.stream, request.topic, request.partition_id)
    await sender.request(REQUEST_FLUSH, FLAG_SYNC if request.fsync else 0, log.log_id, 0, b"")


async def get_offset(session: Session, request: offsets.GetConsumerOffset) -> offsets.ConsumerOffset | None:
    partition_id = request.partition_id or 0
    log, sender = _reach(session, request.stream, request.topic, partition_id)
    key = pack_key(key_of(session, request.consumer, request.stream, request.topic))
    try:
        stored, end_offset = await sender.request(REQUEST_GET_OFFSET, 0, log.log_id, 0, key)
    except NotFound as error:
        if error.number == ErrorCode.CONSUMER_OFFSET_NOT_FOUND:
            return None
        raise
    return offsets.ConsumerOffset(partition_id, max(0, end_offset - 1), stored)


async def store_offset(session: Session, request: offsets.StoreConsumerOffset) -> None:
    partition_id = request.partition_id or 0
    log, sender = _reach(session, request.stream, request.topic, partition_id)
    key = pack_key(key_of(session, request.consumer, request.stream, request.topic))
    place = _fence(session, request, partition_id)
    await sender.request(REQUEST_STORE_OFFSET, 0, log.log_id, request.offset, key)
    if place is not None:
        session.broker.groups.committed(session, *place, partition_id, request.offset)


async def delete_offset(session: Session, request: offsets.DeleteConsumerOffset) -> None:
    partition_id = request.partition_id or 0
    log, sender = _reach(session, request.stream, request.topic, partition_id)
    key = pack_key(key_of(session, request.consumer, request.stream, request.topic))
    _fence(session, request, partition_id)
    await sender.request(REQUEST_DELETE_OFFSET, 0, log.log_id, 0, key)


def _fence(
    session: Session, request: offsets.StoreConsumerOffset | offsets.DeleteConsumerOffset, partition_id: int
) -> GroupPlace | None:
    """The group whose offset this is, or None. Raises 5000, 5009 where the partition is another member's."""
    if request.consumer.kind != CONSUMER_GROUP:
        return None
    catalog = session.broker.keeper.catalog
    topic = catalog.topic(request.stream, request.topic)
    group = catalog.group(request.stream, request.topic, request.consumer.id)
    place = place_of(topic, group)
    if not session.broker.groups.may_store(session, *place, partition_id):
        text = f"partition {partition_id} belongs to another member of group {group.name!r}"
        raise error_from(ErrorCode.GROUP_PARTITION_NOT_OWNED, text)
    return place


def _reach(session: Session, stream: Identifier, topic: Identifier, partition_id: int) -> tuple[Log, Sender]:
    """The log of a partition, and the way to its worker. All requests about offsets go this one way, so that each
    sees those before it."""
    broker = session.broker
    partition = broker.keeper.catalog.partition(stream, topic, partition_id)
    log = broker.logs.get(partition.log_id)
    return log, broker.senders[log.worker]


def key_of(session: Session, consumer: Consumer, stream: Identifier, topic: Identifier) -> bytes:
    """The key under which a consumer's offset is stored."""
    if consumer.kind == CONSUMER_GROUP:
        if isinstance(consumer.id, str):
            return name_key(KEY_GROUP, consumer.id)
        return name_key(KEY_GROUP, session.broker.keeper.catalog.group(stream, topic, consumer.id).name)
    if isinstance(consumer.id, str):
        return name_key(KEY_CONSUMER, consumer.id)
    return number_key(KEY_CONSUMER, consumer.id)


HANDLERS: dict[int, Handler] = {
    Code.CREATE_PARTITIONS: create_partitions,
    Code.DELETE_PARTITIONS: delete_partitions,
    Code.DELETE_SEGMENTS: delete_segments,
    Code.FLUSH_UNSAVED_BUFFER: flush,
    Code.GET_CONSUMER_OFFSET: get_offset,
    Code.STORE_CONSUMER_OFFSET: store_offset,
    Code.DELETE_CONSUMER_OFFSET: delete_offset,
}
