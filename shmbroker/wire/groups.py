"""Commands about consumer groups.

group entry     u32 id, u32 partitions of the topic, u32 members, str8 name
group details   group entry, then for each member: u32 id, u32 count, that many u32 partition ids
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import ClassVar, Final, NamedTuple, Self

from shmbroker.wire import primitives
from shmbroker.wire.bodies import GroupBody, TopicBody, topic_bytes
from shmbroker.wire.codes import Code
from shmbroker.wire.primitives import U32, U64, Identifier, Reader

_HEAD: Final = Struct("<III")


@dataclass(frozen=True, slots=True)
class GroupEntry:
    """One group: an item of GET_GROUPS."""

    group_id: int
    partitions_count: int
    members_count: int
    name: str

    def encode(self) -> bytes:
        """As in the drawing."""
        return _HEAD.pack(self.group_id, self.partitions_count, self.members_count) + primitives.str8(self.name)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """As in the drawing."""
        group_id, partitions_count, members_count = _HEAD.unpack(reader.take(_HEAD.size))
        return cls(group_id, partitions_count, members_count, reader.str8())


class GroupMember(NamedTuple):
    """One member and the partitions that are its."""

    member_id: int
    partition_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GroupDetails:
    """One group and its members: the reply of GET_GROUP and CREATE_GROUP."""

    group: GroupEntry
    members: tuple[GroupMember, ...] = ()

    def encode(self) -> bytes:
        """The entry, then as many members as it counts."""
        assert self.group.members_count == len(self.members)
        parts = [self.group.encode()]
        parts += (U32.pack(member_id) + _ids_bytes(ids) for member_id, ids in self.members)
        return b"".join(parts)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """The entry, then as many members as it counts."""
        group = GroupEntry.decode(reader)
        members: list[GroupMember] = []
        while len(members) < group.members_count:
            members.append(GroupMember(reader.u32(), _ids(reader)))
        return cls(group, tuple(members))


def _ids_bytes(ids: tuple[int, ...]) -> bytes:
    return b"".join((U32.pack(len(ids)), *map(U32.pack, ids)))


def _ids(reader: Reader) -> tuple[int, ...]:
    return tuple(number for (number,) in U32.iter_unpack(reader.take(4 * reader.u32())))


@dataclass(frozen=True, slots=True)
class GetGroup(GroupBody):
    """One group; an empty reply where there is none."""

    CODE: ClassVar[int] = Code.GET_GROUP


@dataclass(frozen=True, slots=True)
class GetGroups(TopicBody):
    """All groups of a topic."""

    CODE: ClassVar[int] = Code.GET_GROUPS


@dataclass(frozen=True, slots=True)
class CreateGroup:
    """A new group."""

    CODE: ClassVar[int] = Code.CREATE_GROUP
    stream: Identifier
    topic: Identifier
    name: str

    def encode(self) -> bytes:
        """identifier, identifier, str8."""
        return topic_bytes(self.stream, self.topic) + primitives.str8(self.name)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """identifier, identifier, str8."""
        return cls(reader.identifier(), reader.identifier(), reader.str8())


@dataclass(frozen=True, slots=True)
class DeleteGroup(GroupBody):
    """Removes a group and what it stored."""

    CODE: ClassVar[int] = Code.DELETE_GROUP


@dataclass(frozen=True, slots=True)
class JoinGroup(GroupBody):
    """Makes this connection a member."""

    CODE: ClassVar[int] = Code.JOIN_GROUP


@dataclass(frozen=True, slots=True)
class LeaveGroup(GroupBody):
    """Ends the membership of this connection."""

    CODE: ClassVar[int] = Code.LEAVE_GROUP


@dataclass(frozen=True, slots=True)
class SyncGroup(GroupBody):
    """Asks which partitions are this member's; an empty reply where it is no member."""

    CODE: ClassVar[int] = Code.SYNC_GROUP


@dataclass(frozen=True, slots=True)
class Assignment:
    """The reply of SYNC_GROUP. ``generation`` grows with every change of the group."""

    generation: int
    partition_ids: tuple[int, ...]

    def encode(self) -> bytes:
        """u64, u32 count, that many u32."""
        return U64.pack(self.generation) + _ids_bytes(self.partition_ids)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """u64, u32 count, that many u32."""
        return cls(reader.u64(), _ids(reader))


REQUESTS: Final = (GetGroup, GetGroups, CreateGroup, DeleteGroup, JoinGroup, LeaveGroup, SyncGroup)
