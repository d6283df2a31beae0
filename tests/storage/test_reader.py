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

from shmbroker.client.batch import Batch
from shmbroker.errors import Corrupt, NotFound, PartitionRefused, PartitionReplaced, Unavailable
from shmbroker.formats import control as words_of
from shmbroker.formats import segment as segment_format
from shmbroker.formats.control import State
from shmbroker.formats.segment import GAP_UNCLEAN_END
from shmbroker.limits import MIB, PAGE_SIZE
from shmbroker.storage.reader import LogReader, RecordSlice
from tests.storage.laid_out_log import LaidOutLog

KIB = 1024


@pytest.fixture
def log(tmp_path: Path) -> LaidOutLog:
    return LaidOutLog(tmp_path)


def reader_of(log: LaidOutLog) -> LogReader:
    return LogReader(log.control_path, log.directory)


def pairs_of(slices: list[RecordSlice]) -> list[tuple[int, bytes]]:
    batches = [Batch(piece) for piece in slices]
    return [
        (batch.base_offset + number, payload) for batch in batches for number, payload in enumerate(batch.payloads())
    ]


def read_all(reader: LogReader, max_messages: int = 1000, max_bytes: int = MIB) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    while slices := reader.read(max_messages, max_bytes):
        assert sum(piece.count for piece in slices) <= max_messages
        assert len(slices) == 1 or sum(len(piece.record) for piece in slices) <= max_bytes
        found += pairs_of(slices)
    return found


def payloads(rng: random.Random, count: int, size_max: int = 300) -> list[bytes]:
    return [rng.randbytes(rng.randint(1, size_max)) for _ in range(count)]


def fill(log: LaidOutLog, rng: random.Random, batches: int, count: int = 20, *, flush_each: int = 0) -> None:
    for number in range(batches):
        log.append(payloads(rng, count), timestamp_us=1000 + log.offset)
        if flush_each and number % flush_each == flush_each - 1:
            log.flush()


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


# --- seeking --------------------------------------------------------------------------------------------------------


@pytest.fixture
def spread(log: LaidOutLog, rng: random.Random) -> LaidOutLog:
    """Three segments, a gap in the numbers before the third, an unflushed tail; times are 1000 + base offset."""
    fill(log, rng, 12)
    log.roll()
    fill(log, rng, 12, flush_each=5)
    log.give_ring_back()
    log.roll(base_offset=100_000, gap_reason=GAP_UNCLEAN_END)
    fill(log, rng, 12, flush_each=5)
    return log


def test_seek_to_every_offset(spread: LaidOutLog) -> None:
    reader = reader_of(spread)
    for number, (offset, payload) in enumerate(spread.expected):
        reader.seek_offset(offset)
        assert reader.next_offset <= offset
        assert pairs_of(reader.read(1)) == [(offset, payload)], number


def test_seek_into_a_gap_and_beyond_the_end(spread: LaidOutLog) -> None:
    reader = reader_of(spread)
    reader.seek_offset(60_000)
    assert pairs_of(reader.read(1)) == [spread.expected[480]]
    reader.seek_offset(spread.offset)
    assert reader.read(1) == []
    beyond = spread.offset + 30
    reader.seek_offset(beyond)
    for _ in range(2):
        spread.append([b"x"] * 20)
        spread.flush()
        spread.roll()
    assert pairs_of(reader.read(100)) == [(beyond + number, b"x") for number in range(10)]


def test_seek_to_the_last_counts_messages_and_not_numbers(spread: LaidOutLog) -> None:
    reader = reader_of(spread)
    for last in (0, 1, 20, 239, 240, 241, 480, 719, 720, 5000):
        reader.seek_last(last)
        assert read_all(reader) == (spread.expected[-last:] if last else [])


def test_seek_by_time(spread: LaidOutLog) -> None:
    reader = reader_of(spread)
    starts = [offset for offset, _ in spread.expected[::20]]
    for time_us in [0, 1, 1000, *(1000 + start + shift for start in starts for shift in (-1, 0, 1))]:
        reader.seek_timestamp(time_us)
        wanted = next((start for start in starts if 1000 + start >= time_us), None)
        found = reader.read(1)
        assert (found[0].header.base_offset if found else None) == wanted, time_us
    reader.seek_timestamp(10**9)
    assert reader.read(1) == []
    spread.append([b"late"], timestamp_us=10**9 - 1)
    spread.append([b"on time"], timestamp_us=10**9)
    assert [payload for _, payload in pairs_of(reader.read(5))] == [b"on time"]


def test_seek_by_time_passes_segments_without_messages(log: LaidOutLog) -> None:
    log.append([b"a"], timestamp_us=10)
    log.roll()
    log.append([b"b"], timestamp_us=20)
    for start in (1000, 2000, 3000, 4000):
        log.roll(base_offset=start, gap_reason=GAP_UNCLEAN_END)
    log.append([b"c"], timestamp_us=30)
    reader = reader_of(log)
    for time_us, payload in ((0, b"a"), (10, b"a"), (11, b"b"), (20, b"b"), (21, b"c"), (30, b"c"), (31, None)):
        reader.seek_timestamp(time_us)
        found = pairs_of(reader.read(1))
        assert [pair[1] for pair in found] == ([payload] if payload else []), time_us


@pytest.mark.parametrize("damage", ["missing", "torn", "foreign", "empty"])
def test_an_index_is_a_help_and_not_needed(spread: LaidOutLog, damage: str) -> None:
    for base_offset in spread.segments:
        path = spread.files / segment_format.index_name(base_offset)
        if damage == "missing":
            path.unlink()
        elif damage == "torn":
            contents = bytearray(path.read_bytes())
            contents[32 + 24 :: 32] = bytes(byte ^ 255 for byte in contents[32 + 24 :: 32])
            path.write_bytes(contents)
        else:
            path.write_bytes(bytes(4096) if damage == "foreign" else b"")
    reader = reader_of(spread)
    for offset, payload in spread.expected[::37]:
        reader.seek_offset(offset)
        assert pairs_of(reader.read(1)) == [(offset, payload)]


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


@pytest.mark.parametrize(
    ("state", "kind"),
    [(State.REFUSED, PartitionRefused), (State.DELETED, NotFound), (State.REPLACED, PartitionReplaced)],
)
def test_states_that_give_nothing(log: LaidOutLog, state: State, kind: type[Exception]) -> None:
    log.append([b"a"])
    reader = reader_of(log)
    log.set(WORD_ERROR=20005, WORD_STATE=state)
    assert reader.state is state
    assert state.name.lower() in reader.reason
    with pytest.raises(kind):
        reader.read(1)


@pytest.mark.parametrize("state", [State.OPEN, State.POISONED, State.CLOSED])
def test_states_in_which_reads_go_on(log: LaidOutLog, state: State) -> None:
    log.append([b"a"])
    log.set(WORD_STATE=state)
    assert pairs_of(reader_of(log).read(1)) == [(0, b"a")]


def test_a_control_block_that_is_not_ready(log: LaidOutLog) -> None:
    log.set(WORD_MAGIC=0)
    with pytest.raises(Unavailable):
        reader_of(log)


def test_while_a_worker_opens_the_partition_nothing_is_given(log: LaidOutLog) -> None:
    log.append([b"a"])
    reader = reader_of(log)
    log.set(WORD_STATE=State.OPENING)
    assert reader.read(1) == []
    log.set(WORD_STATE=State.OPEN)
    assert pairs_of(reader.read(1)) == [(0, b"a")]


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


# --- damage ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("byte", "what"), [(0, "header"), (60, "header"), (255, "header"), (260, "content"), (330, "content")]
)
def test_a_flipped_byte_in_a_file_is_found_and_named(log: LaidOutLog, rng: random.Random, byte: int, what: str) -> None:
    positions = []
    for _ in range(5):
        positions.append(log.position)
        log.append(payloads(rng, 20))
    log.give_ring_back()
    at = PAGE_SIZE + positions[2] + byte
    with open(log.log_path(), "r+b") as file:
        file.seek(at)
        old = file.read(1)
        file.seek(at)
        file.write(bytes((old[0] ^ 1,)))
    reader = reader_of(log)
    assert pairs_of(reader.read(40)) == log.expected[:40]
    for _ in range(2):
        with pytest.raises(Corrupt) as caught:
            reader.read(40)
        assert caught.value.path == str(log.log_path())
        assert caught.value.position == PAGE_SIZE + positions[2]
        assert what in caught.value.fault
    reader.seek_offset(60)
    if what == "content":
        assert read_all(reader) == log.expected[60:]


def test_a_flipped_byte_in_the_ring_is_found(log: LaidOutLog) -> None:
    log.append([b"a" * 100])
    assert log.ring is not None
    log.ring[PAGE_SIZE + 310] ^= 1
    with pytest.raises(Corrupt, match="content checksum"):
        reader_of(log).read(1)


@pytest.mark.parametrize("wrong", ["another log", "another incarnation", "no header", "cut short"])
def test_a_foreign_or_cut_segment_file_is_refused(log: LaidOutLog, rng: random.Random, wrong: str) -> None:
    fill(log, rng, 10)
    log.give_ring_back()
    header = log.segment_header
    if wrong == "cut short":
        os.truncate(log.log_path(), PAGE_SIZE + 100)
    else:
        other = {
            "another log": header._replace(log_id=99), "another incarnation": header._replace(incarnation=bytes(16)),
        }.get(wrong)  # fmt: skip
        with open(log.log_path(), "r+b") as file:
            file.write(segment_format.pack_page(other, None) if other else bytes(PAGE_SIZE))
    with pytest.raises(Corrupt):
        reader_of(log).read(1)


def test_a_record_that_claims_more_than_is_visible(log: LaidOutLog) -> None:
    log.append([b"a" * 1000])
    log.set(WORD_VISIBLE_POSITION=log.position - 8)
    with pytest.raises(Corrupt, match="cut short"):
        reader_of(log).read(1)
