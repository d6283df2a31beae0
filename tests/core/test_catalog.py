"""The catalog's limits and the numbers that it refuses with; what a model test would take too long to reach."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from shmbroker import limits
from shmbroker.core import catalog as catalog_module
from shmbroker.core.catalog import Catalog
from shmbroker.core.changes import GroupPut, PartitionPut, PartitionRemoved, StreamPut, TopicPut
from shmbroker.core.model import Slots
from shmbroker.core.names import identifier_of
from shmbroker.core.options import TopicDefaults, option_values
from shmbroker.errors import AlreadyExists, ErrorCode, LimitReached, NotFound, ShmbrokerError

MIB = limits.MIB


def refused(code: ErrorCode, decide: Callable[[], object]) -> ShmbrokerError:
    with pytest.raises(ShmbrokerError) as caught:
        decide()
    assert caught.value.number == code
    return caught.value


@pytest.fixture
def catalog() -> Catalog:
    """Stream ``market`` with topic ``trades`` of two partitions, logs 1 and 2."""
    found = Catalog()
    found.apply(found.create_stream("market", 1))
    found.apply(found.create_topic("market", "trades", [1, 2], (), 2))
    return found


def test_what_creation_returns() -> None:
    catalog = Catalog()
    assert catalog.create_stream("market", 5) == [StreamPut(0, "market", 5)]
    catalog.apply(catalog.create_stream("market", 5))
    changes = catalog.create_topic("market", "trades", [7, 9], option_values({"durability": "persisted"}), 6)
    put, *partitions = changes
    assert isinstance(put, TopicPut)
    assert (put.stream_id, put.topic_id, put.name, put.created_at_us, put.next_group_id) == (0, 0, "trades", 6, 0)
    assert put.options.durability == "persisted"
    assert partitions == [PartitionPut(0, 0, 0, 7, 6), PartitionPut(0, 0, 1, 9, 6)]
    catalog.apply(changes)
    group, counted = catalog.create_group(0, 0, "billing")
    assert group == GroupPut(0, 0, 0, "billing")
    assert counted == put._replace(next_group_id=1)


def test_ids_are_the_lowest_free_and_groups_are_never_reused(catalog: Catalog) -> None:
    for name in ("b", "c", "d"):
        catalog.apply(catalog.create_stream(name, 1))
        catalog.apply(catalog.create_topic("market", name, [], (), 1))
        catalog.apply(catalog.create_group("market", "trades", name))
    for name in ("c", "b"):
        catalog.apply(catalog.delete_stream(name))
        catalog.apply(catalog.delete_topic("market", name))
        catalog.apply(catalog.delete_group("market", "trades", name))
    for expected in (1, 2, 4):
        catalog.apply(catalog.create_stream(f"s{expected}", 1))
        assert catalog.stream(f"s{expected}").stream_id == expected
        catalog.apply(catalog.create_topic("market", f"t{expected}", [], (), 1))
        assert catalog.topic("market", f"t{expected}").topic_id == expected
    catalog.apply(catalog.create_group("market", "trades", "again"))
    assert catalog.group("market", "trades", "again").group_id == 3


def test_slots_are_the_lowest_free(rng: random.Random) -> None:
    slots, taken = Slots(), set[int]()
    for _ in range(3000):
        if taken and rng.random() < 0.45:
            gone = rng.choice(sorted(taken))
            taken.remove(gone)
            slots.release(gone)
        else:
            free = next(number for number in range(len(taken) + 1) if number not in taken)
            assert slots.lowest() == free
            slots.take(free)
            taken.add(free)
    loaded = Slots()
    for number in rng.sample(sorted(taken), len(taken)):
        loaded.take(number)
    assert loaded.lowest() == slots.lowest()


@pytest.mark.parametrize("name", ["a", "x" * 255, "ä" * 127, "with space/and:slash", "\N{PARTY POPPER}", "7", "\n"])
def test_names_that_are_allowed(catalog: Catalog, name: str) -> None:
    catalog.apply(catalog.create_stream(name, 1))
    catalog.apply(catalog.create_topic(name, name, [], (), 1))
    catalog.apply(catalog.create_group(name, name, name))
    assert catalog.group(name, name, name).name == name
    assert catalog.update_stream(name, name) == []
    assert catalog.update_topic(name, name, name) == []


@pytest.mark.parametrize("name", ["", "x" * 256, "ä" * 128, "\ud800"])
def test_names_that_are_not(catalog: Catalog, name: str) -> None:
    refused(ErrorCode.INVALID_STREAM_NAME, lambda: catalog.create_stream(name, 1))
    refused(ErrorCode.INVALID_STREAM_NAME, lambda: catalog.update_stream("market", name))
    refused(ErrorCode.INVALID_TOPIC_NAME, lambda: catalog.create_topic("market", name, [], (), 1))
    refused(ErrorCode.INVALID_TOPIC_NAME, lambda: catalog.update_topic("market", "trades", name))
    refused(ErrorCode.INVALID_GROUP_NAME, lambda: catalog.create_group("market", "trades", name))


def test_names_that_are_taken(catalog: Catalog) -> None:
    catalog.apply(catalog.create_stream("other", 1))
    catalog.apply(catalog.create_topic("market", "quotes", [], (), 1))
    catalog.apply(catalog.create_group("market", "trades", "billing"))
    for code, decide in (
        (ErrorCode.STREAM_NAME_ALREADY_EXISTS, lambda: catalog.create_stream("market", 1)),
        (ErrorCode.STREAM_NAME_ALREADY_EXISTS, lambda: catalog.update_stream("other", "market")),
        (ErrorCode.TOPIC_NAME_ALREADY_EXISTS, lambda: catalog.create_topic("market", "trades", [], (), 1)),
        (ErrorCode.TOPIC_NAME_ALREADY_EXISTS, lambda: catalog.update_topic("market", "quotes", "trades")),
        (ErrorCode.GROUP_NAME_ALREADY_EXISTS, lambda: catalog.create_group("market", "trades", "billing")),
    ):
        assert isinstance(refused(code, decide), AlreadyExists)
    assert catalog.create_topic("other", "trades", [], (), 1), "unique in its stream only"
    assert catalog.create_stream("Market", 1), "compared exactly"


def test_what_is_not_there(catalog: Catalog) -> None:
    for code, decide in (
        (ErrorCode.STREAM_NOT_FOUND, lambda: catalog.stream("nobody")),
        (ErrorCode.STREAM_NOT_FOUND, lambda: catalog.topic(9, "trades")),
        (ErrorCode.TOPIC_NOT_FOUND, lambda: catalog.topic("market", 9)),
        (ErrorCode.PARTITION_NOT_FOUND, lambda: catalog.partition("market", "trades", 2)),
        (ErrorCode.PARTITION_NOT_FOUND, lambda: catalog.partition("market", "trades", -1)),
        (ErrorCode.GROUP_NOT_FOUND, lambda: catalog.group("market", "trades", "nobody")),
        (ErrorCode.STREAM_NOT_FOUND, lambda: catalog.log_ids_of("nobody")),
        (ErrorCode.TOPIC_NOT_FOUND, lambda: catalog.log_ids_of("market", "nobody")),
    ):
        assert isinstance(refused(code, decide), NotFound)
    assert catalog.find_stream("nobody") is None
    assert catalog.find_topic("nobody", "trades") is None
    assert catalog.find_topic("market", 1) is None
    assert catalog.partition(0, 0, 1).log_id == 2
    assert catalog.log_ids_of("market") == [1, 2] == catalog.log_ids_of("market", "trades")


def test_partition_counts(catalog: Catalog) -> None:
    most = limits.PARTITION_COUNT_PER_REQUEST_MAX
    assert most == 1000
    assert len(catalog.create_topic("market", "none", [], (), 1)) == 1
    assert len(catalog.create_topic("market", "many", range(10, 10 + most), (), 1)) == 1 + most
    for count in (most + 1, 2**32 - 1, -1):
        refused(ErrorCode.TOO_MANY_PARTITIONS, lambda: catalog.check_topic("market", "more", count))  # noqa: B023
    refused(ErrorCode.TOO_MANY_PARTITIONS, lambda: catalog.check_partitions("market", "trades", most + 1))
    refused(ErrorCode.TOO_MANY_PARTITIONS, lambda: catalog.delete_partitions("market", "trades", most + 1))
    refused(ErrorCode.INVALID_PARTITIONS_COUNT, lambda: catalog.check_partitions("market", "trades", 0))
    refused(ErrorCode.INVALID_PARTITIONS_COUNT, lambda: catalog.delete_partitions("market", "trades", 0))
    refused(ErrorCode.INVALID_PARTITIONS_COUNT, lambda: catalog.delete_partitions("market", "trades", 3))
    assert catalog.delete_partitions("market", "trades", 2) == [
        PartitionRemoved(0, 0, 1, 2),
        PartitionRemoved(0, 0, 0, 1),
    ]
    catalog.apply(catalog.delete_partitions("market", "trades", 1))
    assert catalog.create_partitions("market", "trades", [3], 5) == [PartitionPut(0, 0, 1, 3, 5)], "the tail id again"


def test_stream_topic_and_partition_limits(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bounds themselves are asserted; reaching a million is played with smaller ones."""
    assert limits.STREAM_COUNT_MAX == 1_048_576
    assert limits.PARTITION_ID_LIMIT == 1_000_000
    assert limits.TOPIC_COUNT_PER_STREAM_MAX == 4_096
    for number in range(1, limits.TOPIC_COUNT_PER_STREAM_MAX):
        catalog.apply(catalog.create_topic("market", f"topic {number}", [], (), 1))
    assert isinstance(
        refused(ErrorCode.TOO_MANY_TOPICS, lambda: catalog.check_topic("market", "more", 0)), LimitReached
    )
    catalog.apply(catalog.delete_topic("market", 77))
    (put,) = catalog.create_topic("market", "more", [], (), 1)
    assert isinstance(put, TopicPut)
    assert put.topic_id == 77
    monkeypatch.setattr(catalog_module, "STREAM_COUNT_MAX", 2)
    catalog.apply(catalog.create_stream("second", 1))
    refused(ErrorCode.TOO_MANY_STREAMS, lambda: catalog.create_stream("third", 1))
    monkeypatch.setattr(catalog_module, "PARTITION_ID_LIMIT", 4)
    catalog.apply(catalog.create_partitions("market", "trades", [3, 4], 1))
    refused(ErrorCode.PARTITION_ID_SPACE_EXHAUSTED, lambda: catalog.check_partitions("market", "trades", 1))


def test_the_options_of_a_topic_are_checked_with_it(catalog: Catalog) -> None:
    for settings, code in (
        ({"unknown": "x"}, ErrorCode.UNSUPPORTED_OPTION_KEY),
        ({"durability": "fsync"}, ErrorCode.INVALID_OPTION_VALUE),
        ({"segment_size": 2 * MIB, "max_topic_size": MIB}, ErrorCode.INVALID_TOPIC_SIZE),
    ):
        refused(code, lambda: catalog.check_topic("market", "new", 1, option_values(settings)))  # noqa: B023
    preallocating = option_values({"preallocate_segments": True, "segment_size": "1 GiB"})
    assert catalog.check_topic("market", "new", 64, preallocating).preallocate_segments
    refused(ErrorCode.INVALID_OPTION_VALUE, lambda: catalog.check_topic("market", "new", 65, preallocating))
    catalog.apply(catalog.create_topic("market", "new", [5], preallocating, 1))
    refused(ErrorCode.INVALID_OPTION_VALUE, lambda: catalog.check_partitions("market", "new", 65))
    refused(
        ErrorCode.UNSUPPORTED_OPTION_KEY,
        lambda: catalog.update_topic("market", "new", "new", option_values({"durability": "persisted"})),
    )
    refused(
        ErrorCode.INVALID_TOPIC_SIZE,
        lambda: catalog.update_topic("market", "new", "new", option_values({"max_topic_size": "1 MiB"})),
    )


def test_the_defaults_of_the_broker_are_frozen_into_a_topic(catalog: Catalog) -> None:
    catalog.defaults = TopicDefaults(message_expiry_us=60_000_000, max_topic_size=8 << 30)
    catalog.apply(catalog.create_topic("market", "short", [5], (), 1))
    catalog.defaults = TopicDefaults()
    options = catalog.topic("market", "short").options
    assert (options.message_expiry_us, options.max_topic_size) == (60_000_000, 8 << 30)
    assert options.report()["message_expiry"] == ("1m", False)


def test_deleting_takes_all_that_is_below(catalog: Catalog) -> None:
    catalog.apply(catalog.create_group("market", "trades", "billing"))
    changes = catalog.delete_stream("market")
    assert [type(change).__name__ for change in changes] == [
        "GroupRemoved", "PartitionRemoved", "PartitionRemoved", "TopicRemoved", "StreamRemoved",
    ]  # fmt: skip
    catalog.apply(changes)
    assert catalog.buried == {1, 2}
    assert list(catalog.snapshot()) == []
    assert catalog.logs == {}


@pytest.mark.parametrize(
    ("text", "identifier"),
    [("7", 7), ("0", 0), ("4294967295", 2**32 - 1), ("4294967296", "4294967296"), ("007", 7), ("-1", "-1"),
     ("a1", "a1"), ("", ""), ("\u0667", "\u0667"), (12, 12)],
)  # fmt: skip
def test_identifiers_of_text(text: str | int, identifier: str | int) -> None:
    assert identifier_of(text) == identifier
