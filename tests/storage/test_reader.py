"""The reader against logs that are laid out by hand: every place where bytes can stand, and every way they move."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from shmbroker.errors import PartitionReplaced
from shmbroker.formats import control as words_of
from shmbroker.formats.control import State
from shmbroker.formats.segment import GAP_UNCLEAN_END
from shmbroker.limits import MIB, PAGE_SIZE
from shmbroker.storage.reader import LogReader
from tests.storage.laid_out_log import LaidOutLog, fill, pairs_of, payloads, read_all, reader_of

KIB = 1024


@pytest.fixture
def log(tmp_path: Path) -> LaidOutLog:
    return LaidOutLog(tmp_path)


# --- where the bytes are --------------------------------------------------------------------------------------------


def test_an_empty_log_gives_nothing_and_then_the_first_batch(log: LaidOutLog) -> None:
    reader = reader_of(log)
    assert reader.read(10) == []
    assert (reader.next_offset, reader.visible_offset, reader.first_offset) == (0, 0, 0)
    log.append([b"a", b"b"])
    assert pairs_of(reader.read(10)) == [(0, b"a"), (1, b"b")]
    assert reader.read(10) == []
    log.append([b"c"])
    assert pairs_of(reader.read(10)) == [(2, b"c")]
    assert reader.next_offset == 3


def test_what_is_not_visible_is_not_read(log: LaidOutLog) -> None:
    reader = reader_of(log)
    log.append([b"a"])
    log.append([b"b"], publish=False)
    log.flush()
    assert pairs_of(reader.read(10)) == [(0, b"a")]
    log.publish()
    assert pairs_of(reader.read(10)) == [(1, b"b")]


@pytest.mark.parametrize("max_bytes", [1, 700, 5000, MIB])
@pytest.mark.parametrize("max_messages", [1, 7, 20, 1000])
@pytest.mark.parametrize("place", ["ring", "file", "ring and file", "across", "no ring", "many segments"])
def test_every_message_once_and_in_order(
    log: LaidOutLog, rng: random.Random, place: str, max_messages: int, max_bytes: int
) -> None:
    if place == "ring":
        fill(log, rng, 30)
    elif place == "file":
        fill(log, rng, 30)
        log.close_to_page()
        log.set(WORD_OVERWRITE_END=log.position + log.ring_size)
    elif place == "ring and file":
        fill(log, rng, 30, flush_each=7)
    elif place == "across":
        fill(log, rng, 30)
        log.flush()
        # The ring holds only what is not stable: what stands across the two has to be put together.
        log.set(WORD_OVERWRITE_END=log.position // PAGE_SIZE * PAGE_SIZE + log.ring_size)
    elif place == "no ring":
        fill(log, rng, 30)
        log.give_ring_back()
    else:
        for _ in range(5):
            fill(log, rng, 6)
            log.roll()
        log.give_ring_back()
    assert read_all(reader_of(log), max_messages, max_bytes) == log.expected


def test_a_log_longer_than_its_ring(log: LaidOutLog, rng: random.Random) -> None:
    follower = reader_of(log)
    followed: list[tuple[int, bytes]] = []
    for number in range(60):
        log.append(payloads(rng, 200))
        log.flush()
        if number % 9 == 0:
            followed += read_all(follower)
    assert log.position > 1.5 * log.ring_size
    assert read_all(reader_of(log)) == log.expected
    assert followed + read_all(follower) == log.expected


def test_records_larger_than_what_is_asked_and_than_the_slack_of_the_ring(log: LaidOutLog, rng: random.Random) -> None:
    for size in (200 * KIB, 10, 260 * KIB, 250 * KIB, 1, 240 * KIB, 262_000):
        log.append([rng.randbytes(size)])
        log.flush()
    assert log.position > log.ring_size
    assert read_all(reader_of(log), 1, 1) == log.expected
    assert read_all(reader_of(log)) == log.expected


def test_a_batch_is_cut_and_gone_on_with(log: LaidOutLog) -> None:
    log.append([b"a", b"b", b"c", b"d", b"e"])
    log.append([b"f"])
    reader = reader_of(log)
    first, second, third = reader.read(2), reader.read(2), reader.read(2)
    assert [pairs_of(slices) for slices in (first, second, third)] == [
        [(0, b"a"), (1, b"b")], [(2, b"c"), (3, b"d")], [(4, b"e"), (5, b"f")],
    ]  # fmt: skip
    assert (second[0].first, second[0].count) == (2, 2)
    assert reader.read(0) == []


def test_what_was_handed_out_outlives_the_reader_and_the_files(log: LaidOutLog, rng: random.Random) -> None:
    fill(log, rng, 20)
    log.roll()
    fill(log, rng, 5)
    log.give_ring_back()
    reader = reader_of(log)
    slices = reader.read(10_000)
    log.delete_first_segment()
    reader.close()
    del reader
    assert [pair for pair in pairs_of(slices) if pair[0] >= log.expected[0][0]] == log.expected
    with pytest.raises(TypeError):
        slices[0].record[0] = 1


# --- what moves under a reader --------------------------------------------------------------------------------------


class InterleavedWords:
    """The control block as the reader loads it, with the worker acting before the load that ``plan`` names."""

    def __init__(self, words: memoryview) -> None:
        self.words = words
        self.loads = 0
        self.plan: dict[int, Callable[[], None]] = {}

    def __getitem__(self, index: int) -> int:
        self.loads += 1
        action = self.plan.pop(self.loads, None)
        if action is not None:
            action()
        value: int = self.words[index]
        return value


def interleave(reader: LogReader) -> InterleavedWords:
    words = InterleavedWords(reader._words)
    seam: Any = reader
    seam._words = words
    return words


def lap(log: LaidOutLog, rng: random.Random) -> None:
    """The worker goes once around the ring."""
    for _ in range(5):
        log.append([rng.randbytes(250 * KIB)])
        log.flush()


def give_back_and_go_on(log: LaidOutLog, rng: random.Random) -> None:
    log.give_ring_back()
    log.append(payloads(rng, 5))


def roll_and_go_on(log: LaidOutLog, rng: random.Random) -> None:
    log.roll()
    log.append(payloads(rng, 5))


@pytest.mark.parametrize("start", ["ring", "file", "across"])
@pytest.mark.parametrize("action", [lap, give_back_and_go_on, roll_and_go_on])
def test_rule_06_the_worker_acts_between_any_two_loads_of_a_reader(
    tmp_path: Path, rng: random.Random, action: Callable[[LaidOutLog, random.Random], None], start: str
) -> None:
    for number in count(1):
        log = LaidOutLog(tmp_path / str(number))
        fill(log, rng, 12)
        log.flush()
        if start == "across":
            log.set(WORD_OVERWRITE_END=log.position // PAGE_SIZE * PAGE_SIZE + log.ring_size)
        elif start == "file":
            log.close_to_page()
            log.set(WORD_OVERWRITE_END=log.position + log.ring_size)
        reader = reader_of(log)
        words = interleave(reader)
        words.plan[number] = partial(action, log, rng)
        found = read_all(reader, max_messages=50)
        assert found + read_all(reader) == log.expected
        if words.plan:
            break
    assert number > 20


def test_rule_06_a_copy_that_was_overwritten_is_thrown_away(log: LaidOutLog, rng: random.Random) -> None:
    """The worker overwrites after the words that led to the copy were loaded, and before the check."""
    fill(log, rng, 12)
    log.flush()
    reader = reader_of(log)
    before = log.words[words_of.WORD_OVERWRITE_END]
    words = interleave(reader)
    overwritten: list[str] = []

    class Checked(InterleavedWords):
        def __getitem__(self, index: int) -> int:
            if index == words_of.WORD_OVERWRITE_END:
                if overwritten == ["seen"]:
                    lap(log, rng)
                overwritten.append("seen")
            return super().__getitem__(index)

    seam: Any = reader
    seam._words = Checked(words.words)
    found = read_all(reader)
    assert log.words[words_of.WORD_OVERWRITE_END] > before + log.ring_size
    assert found == log.expected


def test_rule_06_reading_while_a_thread_overwrites_the_ring(tmp_path: Path, rng: random.Random) -> None:
    log = LaidOutLog(tmp_path)
    stop = threading.Event()
    failures: list[BaseException] = []

    def write() -> None:
        own = random.Random(1)
        try:
            while not stop.is_set() and log.position < 8 * MIB:
                if log.position + PAGE_SIZE - log.base_position > 3 * MIB:
                    log.roll()
                log.append(payloads(own, 50, 3000))
                if own.random() < 0.7 or log.position - log.file_position > MIB // 2:
                    log.flush()
        except BaseException as error:
            failures.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    reader, found = reader_of(log), []
    try:
        while writer.is_alive():
            found += read_all(reader, rng.choice([1, 30, 1000]))
            if rng.random() < 0.1:
                # Fall behind on purpose: the next reads meet what is being overwritten.
                reader.seek_offset(max(0, reader.next_offset - rng.randint(0, 700)))
                found = found[: reader.next_offset]
    finally:
        stop.set()
        writer.join(60)
    assert not failures
    assert found + read_all(reader) == log.expected


def test_retention_takes_a_segment_that_is_mapped(log: LaidOutLog, rng: random.Random) -> None:
    for _ in range(3):
        fill(log, rng, 10)
        log.roll()
    fill(log, rng, 10)
    log.give_ring_back()
    everything = list(log.expected)
    reader = reader_of(log)
    found = pairs_of(reader.read(30, 1))
    log.delete_first_segment()
    log.delete_first_segment()
    # It finishes what it has mapped, and goes on at the earliest that is kept.
    found += read_all(reader)
    assert found == everything[:200] + log.expected
    assert reader.first_offset == 400
    reader.seek_offset(5)
    assert reader.next_offset == 400
    assert read_all(reader) == log.expected


def test_retention_takes_a_segment_between_any_two_loads(tmp_path: Path, rng: random.Random) -> None:
    for number in count(1):
        log = LaidOutLog(tmp_path / str(number))
        for _ in range(3):
            fill(log, rng, 2)
            log.roll()
        log.give_ring_back()
        everything = list(log.expected)
        reader = reader_of(log)
        words = interleave(reader)
        words.plan[number] = log.delete_first_segment
        reader.seek_offset(rng.choice([0, 30]))
        first = reader.next_offset
        found = read_all(reader, max_messages=10)
        assert found in (everything[first:], log.expected[max(0, first - 40) :]), (number, first)
        if words.plan:
            break
    assert number > 10


def test_rule_14_a_purge_lets_the_batch_be_finished_then_raises(log: LaidOutLog) -> None:
    log.append([b"a", b"b", b"c"])
    log.append([b"d"])
    reader = reader_of(log)
    held = reader.read(1)
    log.set(WORD_STATE=State.REPLACED)
    log.give_ring_back()
    for path in log.files.iterdir():
        path.unlink()
    assert pairs_of(held) == [(0, b"a")]
    assert pairs_of(reader.read(10)) == [(1, b"b"), (2, b"c")]
    with pytest.raises(PartitionReplaced):
        reader.read(10)
    os.unlink(log.control_path)
    with pytest.raises(PartitionReplaced):
        reader_of(log)


def test_a_worker_that_lost_its_ring_uses_positions_again(log: LaidOutLog) -> None:
    """What was read and lost with the ring comes back with other numbers at the same positions: it is read, once."""
    log.append([b"kept"])
    log.close_to_page()
    kept = log.position
    log.append([b"lost", b"lost too"])
    reader = reader_of(log)
    assert len(pairs_of(reader.read(10))) == 3
    log.position, log.offset = kept, 1
    log.log, log.expected = log.log[:kept], log.expected[:1]
    log.set(WORD_VISIBLE_OFFSET=1, WORD_VISIBLE_POSITION=kept)
    log.give_ring_back()
    assert reader.read(10) == []
    log.seal()
    log.start_segment(base_offset=5000, gap_reason=GAP_UNCLEAN_END)
    log.append([b"new", b"newer", b"newest"])
    assert pairs_of(reader.read(10)) == [(5000, b"new"), (5001, b"newer"), (5002, b"newest")]
