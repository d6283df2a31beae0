"""Who is a member of which consumer group, in this run of the broker: sessions, and what core.groups decides of them.

Owned by the front's loop. A membership ends with its session, with a logout, with its group, or with silence: a member
that sent nothing for 36 s (by default) is out. A peer on TCP is told so by an eviction (13) and its connection is
closed; a local process may only have been stopped for a while: it keeps its lanes, and finds out at its next request.

Two fences keep a partition with its owner. ``may_poll`` stands before a poll of a group, ``may_store`` before an offset
of one is stored. Nobody polls for a group without being a member. Offsets of a partition that has no owner may be
stored by anybody who may read the topic: that is how an operator sets a group that is at rest.

A local member reads mapped files, so ``may_poll`` never sees it. It is a holder (core.groups): it is asked to let go of
a partition by what its sync says, and lets go by COMMIT_GROUP; its stores go through the front, for the fence.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from shmbroker.core.changes import Change, GroupRemoved, PartitionPut, PartitionRemoved
from shmbroker.core.groups import Membership
from shmbroker.core.model import Group, Topic
from shmbroker.errors import ErrorCode, error_from
from shmbroker.wire.frame import EvictionReason

if TYPE_CHECKING:
    from shmbroker.front.broker import Broker
    from shmbroker.front.session import Session

SILENT_INTERVALS: Final = 1.2
"""After so many intervals of the heartbeat a member is out; the clients that are known say something every 5 s."""
LOOK_INTERVAL_S: Final = 0.5
LOG: Final = logging.getLogger("shmbroker.front")


class GroupPlace(NamedTuple):
    """Which group."""

    stream_id: int
    topic_id: int
    group_id: int


class GroupMembers:
    """All memberships. A member's number on the wire is its session's."""

    def __init__(self, broker: Broker, heartbeat_us: int) -> None:
        self._broker = broker
        self._silence_limit_s = SILENT_INTERVALS * heartbeat_us / 1e6
        self._groups: dict[GroupPlace, Membership] = {}
        self._sessions: dict[int, Session] = {}
        self._places: dict[int, dict[GroupPlace, int]] = {}
        """By session: its groups, and in each how often it was given a partition to poll."""
        self._looking = False

    # --- membership ---------------------------------------------------------------------------------------------------
    def join(self, session: Session, topic: Topic, group: Group) -> None:
        """Makes the session a member; twice is as good as once."""
        place = place_of(topic, group)
        membership = self._groups.get(place)
        if membership is None:
            membership = self._groups[place] = Membership(len(topic.partitions))
        if not membership.join(session.number, now_us()):
            return
        if session.number not in self._sessions:
            self._sessions[session.number] = session
            session.on_end.append(self.end)
        self._places.setdefault(session.number, {})[place] = 0
        if not self._looking:
            self._looking = True
            self._broker.spawn(self._look())

    def leave(self, session: Session, topic: Topic, group: Group) -> None:
        """Raises 5006 where it is no member."""
        place = place_of(topic, group)
        membership = self._groups.get(place)
        if membership is None or not membership.leave(session.number, now_us()):
            raise error_from(ErrorCode.GROUP_MEMBER_NOT_FOUND, f"this connection is no member of group {group.name!r}")
        self._forget(session.number, place)

    def end(self, session: Session) -> None:
        """All memberships of a session end: it has closed, logged out, or fallen silent."""
        for place in list(self._places.get(session.number, ())):
            self._groups[place].leave(session.number, now_us())
            self._forget(session.number, place)

    def _forget(self, number: int, place: GroupPlace) -> None:
        places = self._places[number]
        del places[place]
        if not places:
            del self._places[number]
            session = self._sessions.pop(number)
            if self.end in session.on_end:
                session.on_end.remove(self.end)

    # --- what holds ---------------------------------------------------------------------------------------------------
    def places_of(self, session: Session) -> list[GroupPlace]:
        """The groups that the session is a member of."""
        return list(self._places.get(session.number, ()))

    def members(self, topic: Topic, group: Group) -> list[tuple[int, tuple[int, ...]]]:
        """Each member's number and its partitions, in the order of joining."""
        membership = self._groups.get(place_of(topic, group))
        if membership is None:
            return []
        return [(member, tuple(partition_ids)) for member, partition_ids in membership.all_owned().items()]

    def member_count(self, topic: Topic, group: Group) -> int:
        """How many members the group has."""
        membership = self._groups.get(place_of(topic, group))
        return 0 if membership is None else len(membership.members)

    def assignment(self, session: Session, topic: Topic, group: Group) -> tuple[int, tuple[int, ...]] | None:
        """Generation, and the partitions that the session may poll; None where it is no member."""
        membership = self._groups.get(place_of(topic, group))
        if membership is None or session.number not in membership.members:
            return None
        partition_ids = membership.assignment(session.number)
        if session.is_local:
            membership.held(session.number, partition_ids)
        return membership.generation, partition_ids

    # --- fences -------------------------------------------------------------------------------------------------------
    def may_poll(self, session: Session, stream_id: int, topic_id: int, group_id: int, partition_id: int) -> bool:
        """Whether the partition is the session's to poll now."""
        membership = self._groups.get(GroupPlace(stream_id, topic_id, group_id))
        return membership is not None and membership.poller(partition_id) == session.number

    def next_partition(self, session: Session, stream_id: int, topic_id: int, group_id: int) -> int | None:
        """The partition for a poll that names none: the member's, in turn. None where it has none."""
        place = GroupPlace(stream_id, topic_id, group_id)
        membership = self._groups.get(place)
        mine = () if membership is None else membership.assignment(session.number)
        if not mine:
            return None
        turn = self._places[session.number][place]
        self._places[session.number][place] = turn + 1
        return mine[turn % len(mine)]

    def polled(
        self, session: Session, stream_id: int, topic_id: int, group_id: int, partition_id: int, last_offset: int
    ) -> None:
        """Messages up to ``last_offset`` go to the session. Before the offset of an automatic commit is told."""
        membership = self._groups.get(GroupPlace(stream_id, topic_id, group_id))
        if membership is not None:
            membership.polled(session.number, partition_id, last_offset)

    def owns(self, session: Session, stream_id: int, topic_id: int, group_id: int, partition_id: int) -> bool:
        """Whether the partition is the session's, though somebody may be waiting for it."""
        membership = self._groups.get(GroupPlace(stream_id, topic_id, group_id))
        return membership is not None and membership.owner(partition_id) == session.number

    def may_store(self, session: Session, stream_id: int, topic_id: int, group_id: int, partition_id: int) -> bool:
        """Whether the session may store or delete this offset of the group now."""
        membership = self._groups.get(GroupPlace(stream_id, topic_id, group_id))
        return membership is None or membership.owner(partition_id) in (None, session.number)

    def committed(
        self, session: Session, stream_id: int, topic_id: int, group_id: int, partition_id: int, offset: int
    ) -> None:
        """The session has stored an offset of the group, which :meth:`may_store` allowed."""
        membership = self._groups.get(GroupPlace(stream_id, topic_id, group_id))
        if membership is not None:
            membership.committed(session.number, partition_id, offset)

    def released(self, session: Session, topic: Topic, group: Group, partition_ids: Sequence[int]) -> None:
        """A local member reads these partitions no more."""
        membership = self._groups.get(place_of(topic, group))
        if membership is not None:
            membership.released(session.number, partition_ids)

    # --- what happens -------------------------------------------------------------------------------------------------
    def catalog_changed(self, changes: Sequence[Change]) -> None:
        """Groups that are gone, and topics with more or fewer partitions: after the change was applied."""
        topics: set[tuple[int, int]] = set()
        for change in changes:
            if isinstance(change, GroupRemoved):
                self._remove(GroupPlace(change.stream_id, change.topic_id, change.group_id))
            elif isinstance(change, PartitionPut | PartitionRemoved):
                topics.add((change.stream_id, change.topic_id))
        for stream_id, topic_id in topics if self._groups else ():
            topic = self._broker.keeper.catalog.find_topic(stream_id, topic_id)
            if topic is None:
                continue
            for group in topic.groups.values():
                membership = self._groups.get(place_of(topic, group))
                if membership is not None:
                    membership.resize(len(topic.partitions), now_us())

    def _remove(self, place: GroupPlace) -> None:
        membership = self._groups.pop(place, None)
        if membership is not None:
            for member in membership.members:
                self._forget(member, place)

    async def _look(self) -> None:
        """While there are members: ends the silent ones, and revocations that take too long."""
        while self._sessions:
            await asyncio.sleep(LOOK_INTERVAL_S)
            self.look(time.monotonic())
        self._looking = False

    def look(self, now_s: float) -> None:
        """What time alone brings about."""
        for session in list(self._sessions.values()):
            if now_s - session.last_seen_s > self._silence_limit_s:
                LOG.warning("connection %d was silent for too long: it leaves its groups", session.number)
                self.end(session)
                session.evict(EvictionReason.STALE_CLIENT)
        for membership in self._groups.values():
            membership.expire(int(now_s * 1e6))


def place_of(topic: Topic, group: Group) -> GroupPlace:
    return GroupPlace(topic.stream_id, topic.topic_id, group.group_id)


def now_us() -> int:
    return time.monotonic_ns() // 1000
