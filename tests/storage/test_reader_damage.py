"""What a reader does where a partition has stopped, and where bytes are not what they were."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from shmbroker.errors import Corrupt, NotFound, PartitionRefused, PartitionReplaced, Unavailable
from shmbroker.formats import segment as segment_format
from shmbroker.formats.control import State
from shmbroker.limits import PAGE_SIZE
from tests.storage.laid_out_log import LaidOutLog, fill, pairs_of, payloads, read_all, reader_of


@pytest.fixture
def log(tmp_path: Path) -> LaidOutLog:
    return LaidOutLog(tmp_path)


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
