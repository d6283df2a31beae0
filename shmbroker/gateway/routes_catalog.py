"""Streams, topics, partitions, consumer groups."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from shmbroker.core.options import option_values
from shmbroker.errors import ErrorCode
from shmbroker.gateway import shapes
from shmbroker.gateway.bodies import U32, CreateTopicBody, NameBody, PartitionsBody, TopicBody
from shmbroker.gateway.caller import GroupId, Reader, StreamId, TopicId, Writer, identifier
from shmbroker.gateway.faults import refused
from shmbroker.limits import PARTITION_COUNT_PER_REQUEST_MAX, U32_MAX
from shmbroker.wire import groups, streams, topics

router = APIRouter(tags=["streams and topics"])
TOPICS = "/streams/{stream_id}/topics"
TOPIC = f"{TOPICS}/{{topic_id}}"
PartitionsCount = Annotated[int, Query(ge=1, le=PARTITION_COUNT_PER_REQUEST_MAX)]
SegmentsCount = Annotated[int, Query(ge=1, le=U32_MAX)]
PartitionId = Annotated[U32, Path()]


# --- streams ----------------------------------------------------------------------------------------------------------
@router.get("/streams")
async def get_streams(caller: Reader) -> list[shapes.StreamInfo]:
    """All streams, without their topics."""
    return [shapes.StreamInfo.of(entry) for entry in await caller.command(streams.GetStreams())]


@router.post("/streams")
async def create_stream(body: NameBody, caller: Writer) -> shapes.StreamInfoDetails:
    """A new stream."""
    entry = await caller.command(streams.CreateStream(body.name))
    return shapes.StreamInfoDetails.of_details(streams.StreamDetails(entry, ()))


@router.get("/streams/{stream_id}")
async def get_stream(stream_id: StreamId, caller: Reader) -> shapes.StreamInfoDetails:
    """One stream with its topics."""
    found = await caller.command(streams.GetStream(identifier(stream_id)))
    if found is None:
        raise refused(ErrorCode.STREAM_NOT_FOUND, f"there is no stream {stream_id}")
    return shapes.StreamInfoDetails.of_details(found)


@router.put("/streams/{stream_id}", status_code=204)
async def update_stream(stream_id: StreamId, body: NameBody, caller: Writer) -> None:
    """Gives it another name."""
    await caller.command(streams.UpdateStream(identifier(stream_id), body.name))


@router.delete("/streams/{stream_id}", status_code=204)
async def delete_stream(stream_id: StreamId, caller: Writer) -> None:
    """Removes it with all its topics and their messages."""
    await caller.command(streams.DeleteStream(identifier(stream_id)))


@router.delete("/streams/{stream_id}/purge", status_code=204)
async def purge_stream(stream_id: StreamId, caller: Writer) -> None:
    """Empties all its topics; their offsets start at 0 again."""
    await caller.command(streams.PurgeStream(identifier(stream_id)))


# --- topics -----------------------------------------------------------------------------------------------------------
@router.get(TOPICS)
async def get_topics(stream_id: StreamId, caller: Reader) -> list[shapes.TopicInfo]:
    """All topics of a stream, without their partitions."""
    found = await caller.command(topics.GetTopics(identifier(stream_id)))
    if found is None:
        raise refused(ErrorCode.STREAM_NOT_FOUND, f"there is no stream {stream_id}")
    return [shapes.TopicInfo.of(entry) for entry in found.topics]


@router.post(TOPICS)
async def create_topic(stream_id: StreamId, body: CreateTopicBody, caller: Writer) -> shapes.TopicInfoDetails:
    """A new topic. Durability is an option, and for ever: ``{"options": {"durability": "persisted"}}``."""
    options = option_values(body.settings())
    request = topics.CreateTopic(identifier(stream_id), body.partitions_count, body.name, options)
    return shapes.TopicInfoDetails.of_details(await caller.command(request))


@router.get(TOPIC)
async def get_topic(stream_id: StreamId, topic_id: TopicId, caller: Reader) -> shapes.TopicInfoDetails:
    """One topic with its effective options and its partitions."""
    found = await caller.command(topics.GetTopic(identifier(stream_id), identifier(topic_id)))
    if found is None:
        raise refused(ErrorCode.TOPIC_NOT_FOUND, f"there is no topic {topic_id} in stream {stream_id}")
    return shapes.TopicInfoDetails.of_details(found)


@router.put(TOPIC, status_code=204)
async def update_topic(stream_id: StreamId, topic_id: TopicId, body: TopicBody, caller: Writer) -> None:
    """Changes what may change; what is not given stays."""
    options = option_values(body.settings())
    await caller.command(topics.UpdateTopic(identifier(stream_id), identifier(topic_id), body.name, options))


@router.delete(TOPIC, status_code=204)
async def delete_topic(stream_id: StreamId, topic_id: TopicId, caller: Writer) -> None:
    """Removes it with its messages and stored offsets."""
    await caller.command(topics.DeleteTopic(identifier(stream_id), identifier(topic_id)))


@router.delete(f"{TOPIC}/purge", status_code=204)
async def purge_topic(stream_id: StreamId, topic_id: TopicId, caller: Writer) -> None:
    """Drops its messages and stored offsets; offsets start at 0 again."""
    await caller.command(topics.PurgeTopic(identifier(stream_id), identifier(topic_id)))


# --- partitions -------------------------------------------------------------------------------------------------------
@router.post(f"{TOPIC}/partitions")
async def create_partitions(stream_id: StreamId, topic_id: TopicId, body: PartitionsBody, caller: Writer) -> None:
    """Adds partitions."""
    request = topics.CreatePartitions(identifier(stream_id), identifier(topic_id), body.partitions_count)
    await caller.command(request)


@router.delete(f"{TOPIC}/partitions", status_code=204)
async def delete_partitions(
    stream_id: StreamId, topic_id: TopicId, partitions_count: PartitionsCount, caller: Writer
) -> None:
    """Removes the last partitions with their messages."""
    await caller.command(topics.DeletePartitions(identifier(stream_id), identifier(topic_id), partitions_count))


@router.delete(f"{TOPIC}/partitions/{{partition_id}}", status_code=204)
async def delete_segments(
    stream_id: StreamId, topic_id: TopicId, partition_id: PartitionId, segments_count: SegmentsCount, caller: Writer
) -> None:
    """Removes the oldest sealed segments of a partition, never the active one."""
    stream, topic = identifier(stream_id), identifier(topic_id)
    await caller.command(topics.DeleteSegments(stream, topic, partition_id, segments_count))


# --- consumer groups --------------------------------------------------------------------------------------------------
@router.get(f"{TOPIC}/consumer-groups", tags=["consumers"])
async def get_groups(stream_id: StreamId, topic_id: TopicId, caller: Reader) -> list[shapes.GroupInfo]:
    """All consumer groups of a topic."""
    found = await caller.command(groups.GetGroups(identifier(stream_id), identifier(topic_id)))
    return [shapes.GroupInfo.of(entry) for entry in found]


@router.post(f"{TOPIC}/consumer-groups", tags=["consumers"])
async def create_group(
    stream_id: StreamId, topic_id: TopicId, body: NameBody, caller: Writer
) -> shapes.GroupInfoDetails:
    """A new consumer group. Members join over TCP or shared memory: HTTP has no connection to be a member."""
    request = groups.CreateGroup(identifier(stream_id), identifier(topic_id), body.name)
    return shapes.GroupInfoDetails.of_details(await caller.command(request))


@router.get(f"{TOPIC}/consumer-groups/{{group_id}}", tags=["consumers"])
async def get_group(
    stream_id: StreamId, topic_id: TopicId, group_id: GroupId, caller: Reader
) -> shapes.GroupInfoDetails:
    """One consumer group with its members."""
    request = groups.GetGroup(identifier(stream_id), identifier(topic_id), identifier(group_id))
    found = await caller.command(request)
    if found is None:
        raise refused(ErrorCode.GROUP_NOT_FOUND, f"there is no consumer group {group_id}")
    return shapes.GroupInfoDetails.of_details(found)


@router.delete(f"{TOPIC}/consumer-groups/{{group_id}}", status_code=204, tags=["consumers"])
async def delete_group(stream_id: StreamId, topic_id: TopicId, group_id: GroupId, caller: Writer) -> None:
    """Removes it with its stored offsets."""
    await caller.command(groups.DeleteGroup(identifier(stream_id), identifier(topic_id), identifier(group_id)))
