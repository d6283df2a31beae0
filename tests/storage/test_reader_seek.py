"""Where a reader starts: by offset, by time, from the end, over gaps in the numbers and without an index."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from shmbroker.formats import segment as segment_format
from shmbroker.formats.segment import GAP_UNCLEAN_END
from tests.storage.laid_out_log import LaidOutLog, fill, pairs_of, read_all, reader_of


@pytest.fixture
def log(tmp_path: Path) -> LaidOutLog:
    return LaidOutLog(tmp_path)


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
