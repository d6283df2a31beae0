"""The window of producer sequences against a plain dict."""

from __future__ import annotations

import random
from collections import OrderedDict

from hypothesis import given, settings
from hypothesis import strategies as st

from shmbroker.limits import DEDUPLICATION_PRODUCERS_MAX, DEDUPLICATION_WINDOW
from shmbroker.storage.deduplication import TOO_OLD, ProducerWindows


def expected(records: dict[int, tuple[int, int]], sequence: int) -> object:
    highest = max(records, default=0)
    if records and sequence <= highest - DEDUPLICATION_WINDOW:
        return TOO_OLD
    return records.get(sequence)


@settings(deadline=None)
@given(
    start=st.integers(1, 2**64 - 5000),
    steps=st.lists(st.one_of(st.integers(1, 3), st.integers(1, 600), st.integers(-300, -1)), max_size=60),
)
def test_rule_07_one_producer_against_a_dict(start: int, steps: list[int]) -> None:
    windows, records, sequence = ProducerWindows(), dict[int, tuple[int, int]](), start
    for number, step in enumerate([0, *steps]):
        sequence = max(1, min(sequence + step, 2**64 - 1))
        windows.record(9, sequence, 1000 + number, number + 1)
        if not records or sequence > max(records) - DEDUPLICATION_WINDOW:
            records[sequence] = (1000 + number, number + 1)
        for asked in {*records, sequence + 1, sequence - 1, sequence - DEDUPLICATION_WINDOW, sequence + 256}:
            if asked > 0:
                assert windows.find(9, asked) == expected(records, asked), asked


def test_rule_07_a_full_window_of_retries_in_any_order(rng: random.Random) -> None:
    windows = ProducerWindows()
    for sequence in range(1, 1001):
        windows.record(1, sequence, 10 * sequence, 10)
    inside = list(range(1001 - DEDUPLICATION_WINDOW, 1001))
    rng.shuffle(inside)
    assert all(windows.find(1, sequence) == (10 * sequence, 10) for sequence in inside)
    assert windows.find(1, 1000 - DEDUPLICATION_WINDOW) is TOO_OLD
    assert windows.find(1, 1001) is None
    assert windows.find(2, 1000) is None
    windows.clear()
    assert windows.find(1, 1000) is None


def test_rule_07_the_producer_recorded_longest_ago_is_forgotten(rng: random.Random) -> None:
    windows, order = ProducerWindows(), OrderedDict[int, int]()
    for _ in range(3 * DEDUPLICATION_PRODUCERS_MAX):
        producer = rng.randrange(1, 2 * DEDUPLICATION_PRODUCERS_MAX)
        sequence = order.pop(producer, 0) + 1
        order[producer] = sequence
        while len(order) > DEDUPLICATION_PRODUCERS_MAX:
            order.popitem(last=False)
        windows.record(producer, sequence, producer, 1)
    assert len(windows) == len(order) == DEDUPLICATION_PRODUCERS_MAX
    for producer in range(1, 2 * DEDUPLICATION_PRODUCERS_MAX):
        found = windows.find(producer, order.get(producer, 1))
        assert found == ((producer, 1) if producer in order else None)


def test_no_producer_id_means_no_deduplication() -> None:
    windows = ProducerWindows()
    windows.record(0, 5, 100, 1)
    windows.record(4, 0, 100, 1)
    assert windows.find(0, 5) is None
    assert windows.find(4, 0) is None
    assert len(windows) == 0
