"""The catalog and its database against a naive model: every decision, refusal and id, and what a reload finds."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from shmbroker.core.catalog import Catalog
from shmbroker.core.changes import Change, LogGone
from shmbroker.core.options import Durability, option_values
from shmbroker.errors import ErrorCode, ShmbrokerError
from shmbroker.front.catalog_store import CatalogStore

NAMES = st.sampled_from(("a", "b", "a", "b", "c", "", "7", "ä" * 127, "ä" * 128))
# Mostly what is there: two rules in a row have to meet at the same topic.
WHICH = st.sampled_from((0, 0, "a", "a", 1, "b", 3, "7"))


@dataclass
class NaiveTopic:
    name: str
    durability: str
    expiry: int
    logs: list[int]
    groups: dict[int, str] = field(default_factory=dict)
    next_group_id: int = 0


@dataclass
class NaiveStream:
    name: str
    topics: dict[int, NaiveTopic] = field(default_factory=dict)


def lowest_free(taken: dict[int, Any]) -> int:
    return next(number for number in range(len(taken) + 1) if number not in taken)


def pick(named: dict[int, Any], which: int | str) -> int | None:
    """The id of what has this id or this name."""
    if isinstance(which, int):
        return which if which in named else None
    return next((number for number, found in named.items() if getattr(found, "name", found) == which), None)


def name_is_bad(name: str) -> bool:
    return not 1 <= len(name.encode()) <= 255


class CatalogMachine(RuleBasedStateMachine):
    @initialize()
    def open(self) -> None:
        self.directory = tempfile.mkdtemp(
            prefix="shmbroker-test-catalog-", dir="/dev/shm"
        )  # Nothing of this test needs a slow sync.
        self.store = CatalogStore.open(self.directory)
        self.catalog = self.store.load()
        self.streams: dict[int, NaiveStream] = {}
        self.buried: set[int] = set()
        self.used_logs: set[int] = set()
        self.now_us = 0
        self.create_stream(name="a")
        self.create_topic(stream="a", name="a", count=2, durability=Durability.PERSISTED)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.directory)

    # --- carrying out -------------------------------------------------------------------------------------------------
    def carry_out(self, expected: ErrorCode | None, decide: Any, *arguments: Any) -> list[Change] | None:
        """Takes a decision; it is refused with exactly ``expected``, or applied to disk and memory."""
        before = list(self.catalog.snapshot())
        refused: ShmbrokerError | None = None
        try:
            changes: list[Change] = decide(*arguments)
        except ShmbrokerError as error:
            refused = error
        assert (refused.number if refused else None) == expected, f"refused: {refused}"
        if refused:
            assert list(self.catalog.snapshot()) == before
            return None
        assert list(self.catalog.snapshot()) == before, "a decision changes nothing"
        self.store.apply(changes)
        self.catalog.apply(changes)
        return changes

    def logs(self, count: int) -> list[int]:
        ids = list(self.store.reserve_log_ids(count))
        assert self.used_logs.isdisjoint(ids)
        self.used_logs.update(ids)
        return ids

    def target(self, stream: int | str, topic: int | str) -> tuple[NaiveTopic | None, ErrorCode | None]:
        stream_id = pick(self.streams, stream)
        if stream_id is None:
            return None, ErrorCode.STREAM_NOT_FOUND
        topic_id = pick(self.streams[stream_id].topics, topic)
        if topic_id is None:
            return None, ErrorCode.TOPIC_NOT_FOUND
        return self.streams[stream_id].topics[topic_id], None

    def named(self, name: str, taken: Any, bad: ErrorCode, exists: ErrorCode) -> ErrorCode | None:
        if name_is_bad(name):
            return bad
        return exists if name in [getattr(other, "name", other) for other in taken] else None

    # --- streams ------------------------------------------------------------------------------------------------------
    @rule(name=NAMES)
    def create_stream(self, name: str) -> None:
        codes = (ErrorCode.INVALID_STREAM_NAME, ErrorCode.STREAM_NAME_ALREADY_EXISTS)
        expected = self.named(name, self.streams.values(), *codes)
        self.now_us += 1
        if self.carry_out(expected, self.catalog.create_stream, name, self.now_us):
            self.streams[lowest_free(self.streams)] = NaiveStream(name)

    @rule(stream=WHICH, name=NAMES)
    def update_stream(self, stream: int | str, name: str) -> None:
        found = pick(self.streams, stream)
        others = [other for number, other in self.streams.items() if number != found]
        codes = (ErrorCode.INVALID_STREAM_NAME, ErrorCode.STREAM_NAME_ALREADY_EXISTS)
        expected = ErrorCode.STREAM_NOT_FOUND if found is None else self.named(name, others, *codes)
        if self.carry_out(expected, self.catalog.update_stream, stream, name) is not None:
            assert found is not None
            self.streams[found].name = name

    @rule(stream=WHICH)
    def delete_stream(self, stream: int | str) -> None:
        found = pick(self.streams, stream)
        expected = ErrorCode.STREAM_NOT_FOUND if found is None else None
        if self.carry_out(expected, self.catalog.delete_stream, stream):
            assert found is not None
            for topic in self.streams.pop(found).topics.values():
                self.buried.update(topic.logs)

    # --- topics -------------------------------------------------------------------------------------------------------
    @rule(stream=WHICH, name=NAMES, count=st.integers(0, 3), durability=st.sampled_from(list(Durability)))
    def create_topic(self, stream: int | str, name: str, count: int, durability: Durability) -> None:
        above = self.streams.get(found) if (found := pick(self.streams, stream)) is not None else None
        codes = (ErrorCode.INVALID_TOPIC_NAME, ErrorCode.TOPIC_NAME_ALREADY_EXISTS)
        expected = self.named(name, above.topics.values(), *codes) if above else ErrorCode.STREAM_NOT_FOUND
        logs, values = self.logs(count), option_values({"durability": durability, "message_expiry": "9s"})
        self.now_us += 1
        if self.carry_out(expected, self.catalog.create_topic, stream, name, logs, values, self.now_us):
            assert above is not None
            above.topics[lowest_free(above.topics)] = NaiveTopic(name, durability, 9_000_000, logs)

    @rule(stream=WHICH, topic=WHICH, name=NAMES, seconds=st.integers(1, 3) | st.none())
    def update_topic(self, stream: int | str, topic: int | str, name: str, seconds: int | None) -> None:
        found, expected = self.target(stream, topic)
        if found is not None:
            above = self.streams[pick(self.streams, stream) or 0]
            others = [other for other in above.topics.values() if other is not found]
            expected = self.named(name, others, ErrorCode.INVALID_TOPIC_NAME, ErrorCode.TOPIC_NAME_ALREADY_EXISTS)
        values = option_values({"message_expiry": seconds and seconds * 1_000_000})
        if self.carry_out(expected, self.catalog.update_topic, stream, topic, name, values) is not None:
            assert found is not None
            found.name = name
            found.expiry = seconds * 1_000_000 if seconds else found.expiry

    @rule(stream=WHICH, topic=WHICH)
    def delete_topic(self, stream: int | str, topic: int | str) -> None:
        found, expected = self.target(stream, topic)
        if self.carry_out(expected, self.catalog.delete_topic, stream, topic):
            assert found is not None
            above = self.streams[pick(self.streams, stream) or 0]
            above.topics = {number: other for number, other in above.topics.items() if other is not found}
            self.buried.update(found.logs)

    # --- partitions and groups ----------------------------------------------------------------------------------------
    @rule(stream=WHICH, topic=WHICH, count=st.integers(0, 3))
    def create_partitions(self, stream: int | str, topic: int | str, count: int) -> None:
        found, expected = self.target(stream, topic)
        if found is not None and count == 0:
            expected = ErrorCode.INVALID_PARTITIONS_COUNT
        logs = self.logs(count)
        if self.carry_out(expected, self.catalog.create_partitions, stream, topic, logs, self.now_us):
            assert found is not None
            found.logs += logs

    @rule(stream=WHICH, topic=WHICH, count=st.integers(0, 3))
    def delete_partitions(self, stream: int | str, topic: int | str, count: int) -> None:
        found, expected = self.target(stream, topic)
        if found is not None and not 1 <= count <= len(found.logs):
            expected = ErrorCode.INVALID_PARTITIONS_COUNT
        if self.carry_out(expected, self.catalog.delete_partitions, stream, topic, count):
            assert found is not None
            self.buried.update(found.logs[-count:])
            del found.logs[-count:]

    @rule(stream=WHICH, topic=WHICH, name=NAMES)
    def create_group(self, stream: int | str, topic: int | str, name: str) -> None:
        found, expected = self.target(stream, topic)
        if found is not None:
            codes = (ErrorCode.INVALID_GROUP_NAME, ErrorCode.GROUP_NAME_ALREADY_EXISTS)
            expected = self.named(name, found.groups.values(), *codes)
        if self.carry_out(expected, self.catalog.create_group, stream, topic, name):
            assert found is not None
            found.groups[found.next_group_id] = name
            found.next_group_id += 1

    @rule(stream=WHICH, topic=WHICH, group=WHICH)
    def delete_group(self, stream: int | str, topic: int | str, group: int | str) -> None:
        found, expected = self.target(stream, topic)
        group_id = None
        if found is not None:
            group_id = pick(found.groups, group)
            expected = ErrorCode.GROUP_NOT_FOUND if group_id is None else None
        if self.carry_out(expected, self.catalog.delete_group, stream, topic, group):
            assert found is not None
            assert group_id is not None
            del found.groups[group_id]

    # --- the disk -----------------------------------------------------------------------------------------------------
    @rule()
    def unbury_one(self) -> None:
        if self.buried:
            gone = LogGone(min(self.buried))
            self.store.apply([gone])
            self.catalog.apply([gone])
            self.buried.remove(gone.log_id)

    @rule()
    def start_again(self) -> None:
        self.store.close()
        self.store = CatalogStore.open(self.directory)
        loaded = self.store.load()
        assert list(loaded.snapshot()) == by_id(self.catalog)
        self.catalog = loaded

    @invariant()
    def all_is_as_the_model_says(self) -> None:
        if not hasattr(self, "catalog"):
            return
        assert self.catalog.buried == self.buried
        assert self.catalog.streams.keys() == self.streams.keys()
        logs: dict[int, tuple[int, int, int]] = {}
        for stream_id, naive in self.streams.items():
            stream = self.catalog.stream(naive.name)
            assert (stream.stream_id, stream.name) == (stream_id, naive.name)
            assert self.catalog.find_stream(stream_id) is stream
            assert stream.topics.keys() == naive.topics.keys()
            for topic_id, expected in naive.topics.items():
                topic = self.catalog.topic(stream_id, expected.name)
                assert (topic.topic_id, topic.name, topic.next_group_id) == (
                    topic_id,
                    expected.name,
                    expected.next_group_id,
                )
                assert (topic.options.durability, topic.options.message_expiry_us) == (
                    expected.durability,
                    expected.expiry,
                )
                assert [partition.log_id for partition in topic.partitions] == expected.logs
                assert {number: group.name for number, group in topic.groups.items()} == expected.groups
                for partition_id, log_id in enumerate(expected.logs):
                    logs[log_id] = (stream_id, topic_id, partition_id)
        places = self.catalog.logs.items()
        found = {
            log_id: (place.stream.stream_id, place.topic.topic_id, place.partition.partition_id)
            for log_id, place in places
        }
        assert found == logs


def by_id(catalog: Catalog) -> list[Change]:
    """The snapshot that a catalog would give if everything had been created in the order of its ids."""
    fresh = Catalog()
    changes = list(catalog.snapshot())
    for kind in ("StreamPut", "TopicPut", "PartitionPut", "GroupPut"):
        fresh.apply(sorted((change for change in changes if type(change).__name__ == kind), key=lambda each: each[:3]))
    return list(fresh.snapshot())


TestCatalog = CatalogMachine.TestCase
TestCatalog.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
