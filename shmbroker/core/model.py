"""The objects of the catalog. Changed by ``Catalog.apply`` only; whoever is handed one reads it."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from shmbroker.core.options import TopicOptions


class Slots:
    """Ids from 0 on, of which the lowest free one comes next. All steps are logarithmic or better, for ids so taken."""

    __slots__ = ("_free", "_next")

    def __init__(self) -> None:
        self._free: list[int] = []
        self._next = 0

    def lowest(self) -> int:
        """The lowest free id."""
        return self._free[0] if self._free else self._next

    def take(self, slot: int) -> None:
        """Takes a free id."""
        if slot >= self._next:
            for gap in range(self._next, slot):
                heappush(self._free, gap)
            self._next = slot + 1
        elif self._free[0] == slot:
            heappop(self._free)
        else:
            self._free.remove(slot)
            heapify(self._free)

    def release(self, slot: int) -> None:
        """Gives a taken id back."""
        heappush(self._free, slot)


@dataclass(slots=True)
class Group:
    """A consumer group. Its members are not here: they live as long as their sessions."""

    group_id: int
    name: str


@dataclass(slots=True)
class Partition:
    """A partition, and the log that holds its data."""

    partition_id: int
    log_id: int
    created_at_us: int


@dataclass(slots=True)
class Topic:
    """A topic. ``partitions[i].partition_id == i``."""

    stream_id: int
    topic_id: int
    name: str
    created_at_us: int
    options: TopicOptions
    next_group_id: int = 0
    partitions: list[Partition] = field(default_factory=list)
    groups: dict[int, Group] = field(default_factory=dict)
    group_ids: dict[str, int] = field(default_factory=dict)
    """By name."""


@dataclass(slots=True)
class Stream:
    """A stream."""

    stream_id: int
    name: str
    created_at_us: int
    topics: dict[int, Topic] = field(default_factory=dict)
    topic_ids: dict[str, int] = field(default_factory=dict)
    """By name."""
    slots: Slots = field(default_factory=Slots)


class PartitionPlace(NamedTuple):
    """A partition with all that is above it."""

    stream: Stream
    topic: Topic
    partition: Partition
