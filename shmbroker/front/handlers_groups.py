"""Consumer groups in the catalog: their names and numbers. Membership is not served yet; a group's offsets are.

A deleted group's offsets are forgotten in every partition, so that a group of that name begins anew.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from shmbroker.core.model import Group, Topic
from shmbroker.errors import NotFound
from shmbroker.formats.lane import REQUEST_DELETE_OFFSET, pack_key
from shmbroker.formats.offsets import KEY_GROUP, name_key
from shmbroker.front.handlers_catalog import Handler
from shmbroker.wire import groups
from shmbroker.wire.codes import Code

if TYPE_CHECKING:
    from shmbroker.front.session import Session


def group_entry(topic: Topic, group: Group) -> groups.GroupEntry:
    return groups.GroupEntry(group.group_id, len(topic.partitions), 0, group.name)


async def get_group(session: Session, request: groups.GetGroup) -> groups.GroupDetails | None:
    catalog = session.broker.keeper.catalog
    topic = catalog.topic(request.stream, request.topic)
    try:
        group = catalog.group(request.stream, request.topic, request.group)
    except NotFound:
        return None
    return groups.GroupDetails(group_entry(topic, group))


async def get_groups(session: Session, request: groups.GetGroups) -> list[groups.GroupEntry]:
    topic = session.broker.keeper.catalog.topic(request.stream, request.topic)
    return [group_entry(topic, group) for group in topic.groups.values()]


async def create_group(session: Session, request: groups.CreateGroup) -> groups.GroupDetails:
    keeper = session.broker.keeper
    async with keeper.lock:
        await keeper.commit(keeper.catalog.create_group(request.stream, request.topic, request.name))
        topic = keeper.catalog.topic(request.stream, request.topic)
        return groups.GroupDetails(group_entry(topic, topic.groups[topic.group_ids[request.name]]))


async def delete_group(session: Session, request: groups.DeleteGroup) -> None:
    broker = session.broker
    keeper = broker.keeper
    async with keeper.lock:
        topic = keeper.catalog.topic(request.stream, request.topic)
        name = keeper.catalog.group(request.stream, request.topic, request.group).name
        await keeper.commit(keeper.catalog.delete_group(request.stream, request.topic, request.group))
        key = pack_key(name_key(KEY_GROUP, name))
        for partition in topic.partitions:
            link = await broker.worker_of(broker.logs.get(partition.log_id)).running()
            with contextlib.suppress(NotFound):
                await link.request(REQUEST_DELETE_OFFSET, 0, partition.log_id, 0, key)


HANDLERS: dict[int, Handler] = {
    Code.GET_GROUP: get_group,
    Code.GET_GROUPS: get_groups,
    Code.CREATE_GROUP: create_group,
    Code.DELETE_GROUP: delete_group,
}
