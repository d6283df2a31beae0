"""What the broker says about its streams and topics, as small frozen values. Plain data: nobody writes to them.

Sizes are bytes, times are microseconds since 1970 (UTC); offsets are message numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from shmbroker.core.options import NEVER, Durability, create_options
from shmbroker.wire.groups import GroupEntry, GroupMember
from shmbroker.wire.streams import StreamDetails, StreamEntry
from shmbroker.wire.topics import PartitionEntry, TopicDetails, TopicEntry

__all__ = ["NEVER", "Durability", "GroupDescription", "PartitionDescription", "StreamDescription", "TopicDescription"]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    id: int
    name: str
    partition_count: int
    """Of the topic."""
    member_count: int
    members: dict[int, tuple[int, ...]]
    """The partitions of each member, by the number of its connection. Empty in a list of groups."""

    @classmethod
    def of(cls, entry: GroupEntry, members: tuple[GroupMember, ...] = ()) -> Self:
        return cls(entry.group_id, entry.name, entry.partitions_count, entry.members_count, dict(members))


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    id: int
    created_at_us: int
    segment_count: int
    current_offset: int
    """Of the newest message; 0 where there is none."""
    size: int
    message_count: int

    @classmethod
    def of(cls, entry: PartitionEntry) -> Self:
        return cls(*entry)


@dataclass(frozen=True, slots=True)
class TopicDescription:
    id: int
    name: str
    created_at_us: int
    partition_count: int
    message_expiry_us: int
    """NEVER (2^64 - 1) where messages do not expire."""
    max_topic_size: int
    """NEVER (2^64 - 1) where the size has no bound."""
    size: int
    message_count: int
    durability: Durability
    consumer_offset_durability: Durability
    options: dict[str, str]
    """Every option with its effective value, as text."""
    explicit: frozenset[str]
    """The options that whoever created the topic set."""
    partitions: tuple[PartitionDescription, ...]
    """Empty in a list of topics: get one topic to see its partitions."""

    @classmethod
    def of(cls, entry: TopicEntry, partitions: tuple[PartitionEntry, ...] = ()) -> Self:
        options = create_options(entry.options + entry.derived_options)
        return cls(
            id=entry.topic_id,
            name=entry.name,
            created_at_us=entry.created_at_us,
            partition_count=entry.partitions_count,
            message_expiry_us=entry.message_expiry_us or NEVER,
            max_topic_size=entry.max_topic_size or NEVER,
            size=entry.size,
            message_count=entry.messages_count,
            durability=options.durability,
            consumer_offset_durability=options.consumer_offset_durability,
            options={key: report.value for key, report in options.report().items()},
            explicit=frozenset(option.key for option in entry.options),
            partitions=tuple(PartitionDescription.of(each) for each in partitions),
        )

    @classmethod
    def of_details(cls, details: TopicDetails) -> Self:
        return cls.of(details.topic, details.partitions)


@dataclass(frozen=True, slots=True)
class StreamDescription:
    id: int
    name: str
    created_at_us: int
    topic_count: int
    size: int
    message_count: int
    topics: tuple[TopicDescription, ...]
    """Empty in a list of streams."""

    @classmethod
    def of(cls, entry: StreamEntry, topics: tuple[TopicEntry, ...] = ()) -> Self:
        return cls(
            id=entry.stream_id,
            name=entry.name,
            created_at_us=entry.created_at_us,
            topic_count=entry.topics_count,
            size=entry.size,
            message_count=entry.messages_count,
            topics=tuple(TopicDescription.of(topic) for topic in topics),
        )

    @classmethod
    def of_details(cls, details: StreamDetails) -> Self:
        return cls.of(details.stream, details.topics)
