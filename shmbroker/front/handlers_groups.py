"""Consumer groups: their names and numbers in the catalog, joining and leaving, whose partition is whose.

A deleted group's offsets are forgotten in every partition, so that a group of that name begins anew. What is below a
stream or topic that is missing is refused; a missing group is an empty answer where it was only looked for.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from shmbroker.core.model import Group, Topic
from shmbroker.errors import ClientMistake, NotFound, PartitionPoisoned, PartitionRefused, ShmbrokerError, Unavailable
from shmbroker.formats.lane import FLAG_AUTOMATIC, REQUEST_DELETE_OFFSET, REQUEST_STORE_OFFSET, pack_key
from shmbroker.formats.offsets import KEY_GROUP, name_key
from shmbroker.front.handlers_catalog import Handler
from shmbroker.wire import groups, local
from shmbroker.wire.codes import Code
from shmbroker.wire.local import LocalCode
from shmbroker.wire.primitives import Identifier

FORGET_S_MAX: Final = 5.0
"""Bounds how long a worker that hangs holds up the catalog."""

if TYPE_CHECKING:
    from shmbroker.front.broker import Broker
    from shmbroker.front.session import Session


def group_entry(broker: Broker, topic: Topic, group: Group) -> groups.GroupEntry:
    member_count = broker.groups.member_count(topic, group)
    return groups.GroupEntry(group.group_id, len(topic.partitions), member_count, group.name)


def group_details(broker: Broker, topic: Topic, group: Group) -> groups.GroupDetails:
    members = tuple(groups.GroupMember(number, ids) for number, ids in broker.groups.members(topic, group))
    return groups.GroupDetails(group_entry(broker, topic, group), members)


def _find(broker: Broker, stream: Identifier, topic: Identifier, group: Identifier) -> tuple[Topic, Group]:
    """Raises 1009, 2010, 5000."""
    catalog = broker.keeper.catalog
    return catalog.topic(stream, topic), catalog.group(stream, topic, group)


async def get_group(session: Session, request: groups.GetGroup) -> groups.GroupDetails | None:
    topic = session.broker.keeper.catalog.topic(request.stream, request.topic)
    try:
        group = session.broker.keeper.catalog.group(request.stream, request.topic, request.group)
    except NotFound:
        return None
    return group_details(session.broker, topic, group)


async def get_groups(session: Session, request: groups.GetGroups) -> list[groups.GroupEntry]:
    topic = session.broker.keeper.catalog.topic(request.stream, request.topic)
    return [group_entry(session.broker, topic, group) for group in topic.groups.values()]


async def create_group(session: Session, request: groups.CreateGroup) -> groups.GroupDetails:
    keeper = session.broker.keeper
    async with keeper.lock:
        changes = keeper.catalog.create_group(request.stream, request.topic, request.name)
        # An earlier group of that name may have left some, if the broker died while it was deleted.
        await _forget_offsets(session.broker, keeper.catalog.topic(request.stream, request.topic), request.name)
        await keeper.commit(changes)
        topic = keeper.catalog.topic(request.stream, request.topic)
        return group_details(session.broker, topic, topic.groups[topic.group_ids[request.name]])


async def delete_group(session: Session, request: groups.DeleteGroup) -> None:
    broker = session.broker
    keeper = broker.keeper
    async with keeper.lock:
        topic, group = _find(broker, request.stream, request.topic, request.group)
        await _forget_offsets(broker, topic, group.name)
        await keeper.commit(keeper.catalog.delete_group(request.stream, request.topic, request.group))
        with contextlib.suppress(ShmbrokerError):  # what a member stored meanwhile; create_group looks again
            await _forget_offsets(broker, topic, group.name)


async def _forget_offsets(broker: Broker, topic: Topic, name: str) -> None:
    """Deletes what a group of this name has stored. Raises where a worker is not there to do it; a partition that is
    refused or poisoned serves nobody, and holds nothing up."""
    key = pack_key(name_key(KEY_GROUP, name))
    for partition in topic.partitions:
        sender = broker.senders[broker.logs.get(partition.log_id).worker]
        with contextlib.suppress(NotFound, PartitionRefused, PartitionPoisoned):
            asked = asyncio.ensure_future(sender.request(REQUEST_DELETE_OFFSET, 0, partition.log_id, 0, key))
            try:  # Shielded: what is in the lane is answered some time, and somebody has to take the answer.
                await asyncio.wait_for(asyncio.shield(asked), FORGET_S_MAX)
            except TimeoutError:
                asked.add_done_callback(lambda late: late.cancelled() or late.exception())
                raise Unavailable(f"{name}: partition {partition.partition_id} does not answer: try again") from None


async def join_group(session: Session, request: groups.JoinGroup) -> None:
    session.broker.groups.join(session, *_find(session.broker, request.stream, request.topic, request.group))


async def leave_group(session: Session, request: groups.LeaveGroup) -> None:
    session.broker.groups.leave(session, *_find(session.broker, request.stream, request.topic, request.group))


async def sync_group(session: Session, request: groups.SyncGroup) -> groups.Assignment | None:
    topic = session.broker.keeper.catalog.topic(request.stream, request.topic)
    try:
        group = session.broker.keeper.catalog.group(request.stream, request.topic, request.group)
    except NotFound:
        return None
    found = session.broker.groups.assignment(session, topic, group)
    return None if found is None else groups.Assignment(*found)


async def commit_group(session: Session, request: local.CommitGroup) -> local.CommitGroupReply:
    """All stores side by side; nothing is let go of where one of them fails."""
    broker = session.broker
    topic, group = _find(broker, request.stream, request.topic, request.group)
    place = (topic.stream_id, topic.topic_id, group.group_id)
    if len(request.partitions) != len(request.offsets):
        raise ClientMistake(f"{len(request.offsets)} offsets for {len(request.partitions)} partitions")
    stores, fenced = [], []
    for partition_id, offset in zip(request.partitions, request.offsets, strict=True):
        if broker.groups.owns(session, *place, partition_id):
            stores.append((partition_id, offset))
        else:
            fenced.append(partition_id)
    await asyncio.gather(*(_store(broker, topic, group, *each, request.automatic) for each in stores))
    for partition_id, offset in stores:
        broker.groups.committed(session, *place, partition_id, offset)
    broker.groups.released(session, topic, group, request.released)
    return local.CommitGroupReply(fenced)


async def _store(broker: Broker, topic: Topic, group: Group, partition_id: int, offset: int, automatic: bool) -> None:
    log_id = topic.partitions[partition_id].log_id
    sender = broker.senders[broker.logs.get(log_id).worker]
    key = pack_key(name_key(KEY_GROUP, group.name))
    await sender.request(REQUEST_STORE_OFFSET, FLAG_AUTOMATIC if automatic else 0, log_id, offset, key)


HANDLERS: dict[int, Handler] = {
    Code.GET_GROUP: get_group,
    Code.GET_GROUPS: get_groups,
    Code.CREATE_GROUP: create_group,
    Code.DELETE_GROUP: delete_group,
    Code.JOIN_GROUP: join_group,
    Code.LEAVE_GROUP: leave_group,
    Code.SYNC_GROUP: sync_group,
    LocalCode.COMMIT_GROUP: commit_group,
}
