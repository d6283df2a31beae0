"""Streams and topics: looking at them, creating, changing, purging and deleting.

Every change follows one order. The catalog decides; what a new partition needs is made durable (rule 13); the catalog
is committed; workers are told; the client is answered. So whatever is in the catalog exists, and a crash in between
leaves only what the next start sweeps.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from shmbroker.core.changes import PartitionRemoved
from shmbroker.core.model import Stream, Topic
from shmbroker.front.logs import LogFigures
from shmbroker.wire import streams, topics
from shmbroker.wire.codes import Code

if TYPE_CHECKING:
    from shmbroker.front.broker import Broker
    from shmbroker.front.session import Session

Handler = Callable[[Any, Any], Awaitable[Any]]
"""Of a Session (local commands: a LocalSession) and the request, to what Session.accepted takes."""


def now_us() -> int:
    return time.time_ns() // 1000


# --- what they look like ----------------------------------------------------------------------------------------------
def stream_entry(broker: Broker, stream: Stream) -> streams.StreamEntry:
    figures = [each for topic in stream.topics.values() for each in broker.logs.topic_figures(topic)]
    return streams.StreamEntry(
        stream.stream_id,
        stream.created_at_us,
        len(stream.topics),
        sum(each.size for each in figures),
        sum(each.message_count for each in figures),
        stream.name,
    )


def topic_entry(topic: Topic, figures: list[LogFigures]) -> topics.TopicEntry:
    options = topic.options
    return topics.TopicEntry(
        topic.topic_id,
        topic.created_at_us,
        len(topic.partitions),
        options.message_expiry_us,
        options.compression_algorithm,
        options.max_topic_size,
        sum(each.size for each in figures),
        sum(each.message_count for each in figures),
        topic.name,
        options.explicit_values(),
        options.derived_values(),
    )


def topic_details(broker: Broker, topic: Topic) -> topics.TopicDetails:
    figures = broker.logs.topic_figures(topic)
    partitions = tuple(
        topics.PartitionEntry(
            partition.partition_id,
            partition.created_at_us,
            max(1, each.segment_count),  # The first segment is made by the first message; clients expect one.
            max(0, each.next_offset - 1),
            each.size,
            each.message_count,
        )
        for partition, each in zip(topic.partitions, figures, strict=True)
    )
    return topics.TopicDetails(topic_entry(topic, figures), partitions)


# --- streams ----------------------------------------------------------------------------------------------------------
async def get_stream(session: Session, request: streams.GetStream) -> streams.StreamDetails | None:
    broker = session.broker
    stream = broker.keeper.catalog.find_stream(request.stream)
    if stream is None:
        return None
    listed = (topic_entry(topic, broker.logs.topic_figures(topic)) for topic in stream.topics.values())
    return streams.StreamDetails(stream_entry(broker, stream), tuple(listed))


async def get_streams(session: Session, request: streams.GetStreams) -> list[streams.StreamEntry]:
    broker = session.broker
    return [stream_entry(broker, stream) for stream in broker.keeper.catalog.streams.values()]


async def create_stream(session: Session, request: streams.CreateStream) -> streams.StreamEntry:
    keeper = session.broker.keeper
    async with keeper.lock:
        await keeper.commit(keeper.catalog.create_stream(request.name, now_us()))
        return stream_entry(session.broker, keeper.catalog.stream(keeper.catalog.stream_ids[request.name]))


async def update_stream(session: Session, request: streams.UpdateStream) -> None:
    keeper = session.broker.keeper
    async with keeper.lock:
        await keeper.commit(keeper.catalog.update_stream(request.stream, request.name))


async def delete_stream(session: Session, request: streams.DeleteStream) -> None:
    await delete(session.broker, lambda: session.broker.keeper.catalog.delete_stream(request.stream))


async def purge_stream(session: Session, request: streams.PurgeStream) -> None:
    broker = session.broker
    async with broker.keeper.lock:
        await broker.purge_logs(broker.keeper.catalog.log_ids_of(request.stream))


async def delete(broker: Broker, decide: Callable[[], list[Any]]) -> None:
    """Removes from the catalog what ``decide`` says, then the files."""
    async with broker.keeper.lock:
        changes = decide()
        await broker.keeper.commit(changes)
    removed = [change.log_id for change in changes if isinstance(change, PartitionRemoved)]
    if removed:
        await broker.bury(removed)


# --- topics -----------------------------------------------------------------------------------------------------------
async def get_topic(session: Session, request: topics.GetTopic) -> topics.TopicDetails | None:
    topic = session.broker.keeper.catalog.find_topic(request.stream, request.topic)
    return None if topic is None else topic_details(session.broker, topic)


async def get_topics(session: Session, request: topics.GetTopics) -> topics.TopicList:
    broker = session.broker
    stream = broker.keeper.catalog.find_stream(request.stream)
    found = list(stream.topics.values()) if stream is not None else []
    return topics.TopicList(tuple(topic_entry(topic, broker.logs.topic_figures(topic)) for topic in found))


async def create_topic(session: Session, request: topics.CreateTopic) -> topics.TopicDetails:
    broker = session.broker
    keeper = broker.keeper
    async with keeper.lock:
        count = request.partitions_count
        options = keeper.catalog.check_topic(request.stream, request.name, count, request.options)
        log_ids = await keeper.reserve_log_ids(count)
        logs = broker.logs.assign(enumerate(log_ids), broker.logs.options_of(options, count))
        await broker.create_logs(logs)
        try:
            changes = keeper.catalog.create_topic(request.stream, request.name, log_ids, request.options, now_us())
            await keeper.commit(changes)
        except BaseException:
            await broker.discard_logs(logs)
            raise
        return topic_details(broker, keeper.catalog.topic(request.stream, request.name))


async def update_topic(session: Session, request: topics.UpdateTopic) -> None:
    broker = session.broker
    keeper = broker.keeper
    async with keeper.lock:
        topic = keeper.catalog.topic(request.stream, request.topic)
        await keeper.commit(keeper.catalog.update_topic(request.stream, request.topic, request.name, request.options))
        await broker.update_logs(topic)


async def delete_topic(session: Session, request: topics.DeleteTopic) -> None:
    catalog = session.broker.keeper.catalog
    await delete(session.broker, lambda: catalog.delete_topic(request.stream, request.topic))


async def purge_topic(session: Session, request: topics.PurgeTopic) -> None:
    broker = session.broker
    async with broker.keeper.lock:
        await broker.purge_logs(broker.keeper.catalog.log_ids_of(request.stream, request.topic))


HANDLERS: dict[int, Handler] = {
    Code.GET_STREAM: get_stream,
    Code.GET_STREAMS: get_streams,
    Code.CREATE_STREAM: create_stream,
    Code.UPDATE_STREAM: update_stream,
    Code.DELETE_STREAM: delete_stream,
    Code.PURGE_STREAM: purge_stream,
    Code.GET_TOPIC: get_topic,
    Code.GET_TOPICS: get_topics,
    Code.CREATE_TOPIC: create_topic,
    Code.UPDATE_TOPIC: update_topic,
    Code.DELETE_TOPIC: delete_topic,
    Code.PURGE_TOPIC: purge_topic,
}
