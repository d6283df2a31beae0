"""The reader against the log that workers write: whatever the log does, and between any two words that it stores."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from bisect import bisect_left
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from shmbroker.client.batch import Batch
from shmbroker.client.encoding import encode_batch
from shmbroker.errors import PartitionReplaced
from shmbroker.formats import control as words_of
from shmbroker.formats.segment import log_name
from shmbroker.limits import MIB, PAGE_SIZE
from shmbroker.storage.disk import FileDisk
from shmbroker.storage.partition_log import JournalBudget, LogOptions, PartitionLog
from shmbroker.storage.reader import LogReader
from shmbroker.storage.runtime import LOGS_DIRECTORY, RuntimeDirectory, control_name

LOG_ID = 5
PARTITION_ID = 2
SEGMENT_SIZE = 64 * 1024
KIB = 1024


class Host:
    """A partition log as its worker holds it, on real files, with the plain list of what it has accepted."""

    def __init__(self, path: Path, *, persisted: bool = False, segment_size: int = SEGMENT_SIZE) -> None:
        (path / "runtime").mkdir(parents=True)
        self.runtime = RuntimeDirectory(str(path / "runtime"))
        self.path = path
        self.directory = str(path / "data" / "partitions" / f"{LOG_ID:020}")
        os.makedirs(os.path.dirname(self.directory))
        self.disk = FileDisk()
        self.budget = JournalBudget(256 * MIB)
        self.executor = ThreadPoolExecutor(1)
        self.options = LogOptions(persisted=persisted, segment_size=segment_size)
        self.now_us = 1_000_000
        self.instance = 1
        self.sequence = 0
        self.messages: list[tuple[int, bytes]] = []
        PartitionLog.create(self.disk, self.directory, LOG_ID, PARTITION_ID)
        self.open()

    def open(self) -> None:
        self.log = PartitionLog.open(
            self.disk, self.runtime, self.budget, self.directory, LOG_ID, PARTITION_ID, self.options,
            instance=self.instance, now_us=self.now_us, executor=self.executor,
        )  # fmt: skip

    def stop(self) -> None:
        self.log.abandon()
        self.executor.shutdown()

    def crash_and_open(self) -> None:
        """The worker dies; what is in the ring is adopted by the next one."""
        self.log.abandon()
        self.open()

    def append(self, payloads: list[bytes]) -> None:
        self.now_us += 10
        record = b"".join(encode_batch(payloads, id_base=1, origin_timestamp_us=self.now_us))
        status, offset, count = self.log.append(memoryview(record), self.now_us)
        assert (status, count) == (0, len(payloads))
        self.messages += [(offset + number, payload) for number, payload in enumerate(payloads)]

    def refuse(self, size: int) -> None:
        """A record that is refused after it was copied into the ring."""
        record = bytearray(b"".join(encode_batch([bytes(size)], id_base=1, origin_timestamp_us=0)))
        record[-20] ^= 1
        status, _, _ = self.log.append(memoryview(record), self.now_us)
        assert status != 0

    def readable(self) -> list[tuple[int, bytes]]:
        visible = self.log.control[words_of.WORD_VISIBLE_OFFSET]
        first = self.log.control[words_of.WORD_FIRST_OFFSET]
        return [pair for pair in self.messages if first <= pair[0] < visible]

    def control_path(self) -> str:
        return str(self.path / "runtime" / LOGS_DIRECTORY / control_name(LOG_ID, self.log.incarnation))

    def reader(self) -> LogReader:
        return LogReader(self.control_path(), self.directory)


def pairs(reader: LogReader, max_messages: int, max_bytes: int = MIB) -> list[tuple[int, bytes]]:
    found = []
    for piece in reader.read(max_messages, max_bytes):
        batch = Batch(piece)
        found += [(batch.base_offset + number, payload) for number, payload in enumerate(batch.payloads())]
    return found


def read_all(reader: LogReader) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    while more := pairs(reader, 1000):
        found += more
    return found


@pytest.fixture
def place() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="shmbroker-test-", dir="/dev/shm"))
    yield path
    shutil.rmtree(path)


# --- the machine ----------------------------------------------------------------------------------------------------


class ReaderFollowsLog(RuleBasedStateMachine):
    """Readers keep the offset that they expect next; what they get has to go on there, in the plain list."""

    persisted = False

    @initialize()
    def start(self) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="shmbroker-test-", dir="/dev/shm"))
        self.host = Host(self.place, persisted=self.persisted)
        self.readers = [self.host.reader() for _ in range(2)]
        self.expected = [0, 0]

    def teardown(self) -> None:
        if hasattr(self, "host"):
            self.host.stop()
            shutil.rmtree(self.place)

    @rule(sizes=st.lists(st.integers(1, 2000), min_size=1, max_size=12), times=st.integers(1, 12))
    def append(self, sizes: list[int], times: int) -> None:
        source = random.Random(sum(sizes))
        for _ in range(times):
            self.host.append([source.randbytes(size) for size in sizes])
        self.host.log.publish()

    @rule(size=st.integers(1, 240 * KIB))
    def append_large(self, size: int) -> None:
        self.host.append([random.Random(size).randbytes(size)])
        self.host.log.publish()

    @rule(size=st.integers(1, 240 * KIB))
    def refuse(self, size: int) -> None:
        self.host.refuse(size)

    @rule(sync=st.booleans())
    def flush(self, sync: bool) -> None:
        assert self.host.log.flush(sync=sync) == 0

    @rule()
    def give_the_ring_back(self) -> None:
        for _ in range(2):
            self.host.log.maintain(self.host.now_us)

    @rule(count=st.integers(1, 3))
    def retain(self, count: int) -> None:
        self.host.log.delete_segments(count)

    @rule()
    def crash(self) -> None:
        self.host.crash_and_open()

    @rule()
    def stop_and_start(self) -> None:
        self.host.log.close(self.host.now_us)
        self.host.open()

    @rule()
    def purge(self) -> None:
        assert self.host.log.purge(self.host.now_us) == 0
        self.host.messages.clear()
        for number, reader in enumerate(self.readers):
            with suppress(PartitionReplaced):
                reader.read(1000)
            with pytest.raises(PartitionReplaced):
                reader.read(1)
            self.readers[number], self.expected[number] = self.host.reader(), 0

    @rule(which=st.integers(0, 1), max_messages=st.integers(1, 100), max_bytes=st.sampled_from([1, 3000, 50_000, MIB]))
    def read(self, which: int, max_messages: int, max_bytes: int) -> None:
        found = pairs(self.readers[which], max_messages, max_bytes)
        first = self.host.log.control[words_of.WORD_FIRST_OFFSET]
        wanted = [pair for pair in self.host.messages if pair[0] >= self.expected[which]]
        for pair in found:
            # Only what retention took may be passed over, once what was mapped of it is read.
            while wanted[0] != pair:
                assert wanted.pop(0)[0] < first
            wanted.pop(0)
        if found:
            self.expected[which] = found[-1][0] + 1
        assert found or not [pair for pair in self.host.readable() if pair[0] >= self.expected[which]]

    @rule(which=st.integers(0, 1), share=st.floats(0, 1.2))
    def seek_offset(self, which: int, share: float) -> None:
        end = self.host.messages[-1][0] + 1 if self.host.messages else 0
        offset = int(end * share)
        self.readers[which].seek_offset(offset)
        self.expected[which] = max(offset, self.host.log.control[words_of.WORD_FIRST_OFFSET])

    @rule(which=st.integers(0, 1), count=st.integers(0, 3000))
    def seek_last(self, which: int, count: int) -> None:
        self.readers[which].seek_last(count)
        readable = self.host.readable()
        visible = self.host.log.control[words_of.WORD_VISIBLE_OFFSET]
        self.expected[which] = readable[-count:][0][0] if count and readable else visible

    @rule(which=st.integers(0, 1))
    def read_to_the_end(self, which: int) -> None:
        reader = self.readers[which]
        reader.seek_first()
        assert read_all(reader) == self.host.readable()
        self.expected[which] = self.host.log.control[words_of.WORD_VISIBLE_OFFSET]

    @invariant()
    def a_reader_never_passes_the_end(self) -> None:
        if hasattr(self, "host"):
            visible = self.host.log.control[words_of.WORD_VISIBLE_OFFSET]
            assert self.readers[0].visible_offset == visible


class ReaderFollowsPersistedLog(ReaderFollowsLog):
    persisted = True


BUDGET = settings(max_examples=120, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck))
TestReplicated = ReaderFollowsLog.TestCase
TestReplicated.settings = BUDGET
TestPersisted = ReaderFollowsPersistedLog.TestCase
TestPersisted.settings = BUDGET


# --- between any two words ------------------------------------------------------------------------------------------


class ObservedControl:
    """The control block as the worker stores it; after each store somebody looks."""

    def __init__(self, words: memoryview, look: Any) -> None:
        self.words = words
        self.look = look

    def __getitem__(self, index: int) -> int:
        value: int = self.words[index]
        return value

    def __setitem__(self, index: int, value: int) -> None:
        self.words[index] = value
        self.look()


@pytest.mark.parametrize("persisted", [False, True])
def test_rule_06_a_reader_looks_after_every_word_that_the_worker_stores(
    place: Path, rng: random.Random, persisted: bool
) -> None:
    host = Host(place, persisted=persisted)
    fast, slow = host.reader(), host.reader()
    found_fast: list[tuple[int, bytes]] = []
    found_slow: list[tuple[int, bytes]] = []
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1
        found_fast.extend(pairs(fast, 1000))
        if looks % 9 == 0:
            found_slow.extend(pairs(slow, 40))
        if looks % 5 == 0:
            other = host.reader()
            other.seek_last(30)
            # Its offset is stored first: what it counts may be visible only with the next word.
            assert all(host.messages[bisect_left(host.messages, pair)] == pair for pair in pairs(other, 1))

    seam: Any = host.log
    seam.control = ObservedControl(host.log.control, look)
    for _ in range(60):
        host.append([rng.randbytes(rng.randint(1, 4000)) for _ in range(rng.randint(1, 20))])
        if rng.random() < 0.1:
            host.refuse(rng.randint(1, 200 * KIB))
        if rng.random() < 0.1:
            host.append([rng.randbytes(rng.randint(1, 250 * KIB))])
        host.log.publish()
        if rng.random() < 0.5:
            assert host.log.flush(sync=rng.random() < 0.7) == 0
        if rng.random() < 0.1:
            host.log.maintain(host.now_us)
            host.log.maintain(host.now_us)
    assert host.log.flush(sync=True) == 0
    assert found_fast + read_all(fast) == host.messages
    assert found_slow + read_all(slow) == host.messages
    assert looks > 300
    host.stop()


def test_a_reader_follows_rolls_on_a_file_system_with_direct_writes(tmp_path: Path, rng: random.Random) -> None:
    """Direct writes go round the page cache that the reader has mapped: seals and tails are seen all the same."""
    host = Host(tmp_path, persisted=True)
    if not host.disk.direct(host.directory):
        host.stop()
        pytest.skip("the file system of tmp_path has no direct writes")
    reader = host.reader()
    found: list[tuple[int, bytes]] = []
    for number in range(60):
        host.append([rng.randbytes(rng.randint(1, 4000)) for _ in range(3)])
        assert host.log.flush(sync=True) == 0
        if number % 3 == 0:
            # From the files alone: as if the ring had gone on long ago.
            end = host.log.control[words_of.WORD_OVERWRITE_END]
            host.log.control[words_of.WORD_OVERWRITE_END] = end // PAGE_SIZE * PAGE_SIZE + MIB - PAGE_SIZE
            found += pairs(reader, 1000, 20_000)
            host.log.control[words_of.WORD_OVERWRITE_END] = end
    assert len(host.log.segments.infos) > 3
    assert found + read_all(reader) == host.messages
    host.stop()


def test_rule_06_what_a_refused_record_scribbled_on_is_read_from_the_file(place: Path, rng: random.Random) -> None:
    """The end of what was overwritten never goes back, and if it did, the file would decide."""
    host = Host(place, segment_size=16 * MIB)
    budgeted = 0
    while budgeted < 1_020_000:
        host.append([rng.randbytes(9000)])
        budgeted += 9400
        host.log.publish()
        assert host.log.flush(sync=False) == 0
    before = host.log.control[words_of.WORD_OVERWRITE_END]
    host.refuse(200 * KIB)
    host.append([b"small"])
    host.log.publish()
    assert host.log.control[words_of.WORD_OVERWRITE_END] > before
    assert read_all(host.reader()) == host.messages
    host.stop()


def test_rule_09_a_published_file_is_never_shortened(place: Path, rng: random.Random) -> None:
    """Through growth, rolls, a crash, the cut of damage, a clean stop: what a reader has mapped stays mapped."""
    host = Host(place, segment_size=512 * KIB)
    sizes: dict[int, int] = {}
    held = []

    def check() -> None:
        directory = Path(host.directory, host.log.incarnation.hex())
        for path in directory.glob("*.log"):
            status = path.stat()
            assert status.st_size >= sizes.get(status.st_ino, 0), path
            sizes[status.st_ino] = status.st_size

    reader = host.reader()
    for number in range(40):
        host.append([rng.randbytes(rng.randint(1, 40_000)) for _ in range(5)])
        host.log.publish()
        check()
        if number % 3 == 0:
            host.log.flush(sync=True)
            check()
        held += reader.read(3)
        if number % 10 == 7:
            newest = Path(host.directory, host.log.incarnation.hex(), log_name(host.log.segments.infos[-1].base_offset))
            end = PAGE_SIZE + host.log.segments.infos[-1].size
            host.log.flush(sync=True)
            host.log.abandon()
            with open(newest, "r+b") as file:
                file.seek(max(end, newest.stat().st_size - PAGE_SIZE))
                file.write(b"what a group in flight left")
            host.open()
            check()
    host.log.close(host.now_us)
    check()
    payloads = dict(host.messages)
    for piece in held:
        batch = Batch(piece)
        assert batch.payloads() == [payloads[batch.base_offset + number] for number in range(batch.count)]
    assert len(sizes) > 3
    host.executor.shutdown()


def test_retention_takes_a_segment_that_has_grown_since_it_was_mapped(place: Path, rng: random.Random) -> None:
    """It cannot be mapped further: the reader goes on at the earliest that is kept, and does not stand still."""
    host = Host(place, segment_size=3 * MIB)
    host.append([b"first"])
    host.log.publish()
    host.log.flush(sync=True)
    for _ in range(2):
        host.log.maintain(host.now_us)
    reader = host.reader()
    assert pairs(reader, 1) == host.messages
    while len(host.log.segments.infos) < 2:
        host.append([rng.randbytes(200_000)])
        host.log.publish()
    host.log.flush(sync=True)
    kept = [pair for pair in host.messages if pair[0] >= host.log.segments.infos[-1].base_offset]
    host.log.close(host.now_us)
    host.open()
    assert host.log.delete_segments(1) == 1
    found = read_all(reader)
    assert found[-len(kept) :] == kept
    assert [pair for pair in host.messages if pair in found] == found
    host.stop()


def test_rule_14_a_purge_under_a_reader(place: Path) -> None:
    host = Host(place)
    host.append([b"a", b"b", b"c"])
    host.append([b"d"])
    host.log.publish()
    reader = host.reader()
    held = reader.read(1)
    assert host.log.purge(host.now_us) == 0
    assert Batch(held[0]).payloads() == [b"a"]
    assert pairs(reader, 10) == [(1, b"b"), (2, b"c")]
    with pytest.raises(PartitionReplaced):
        reader.read(1)
    host.messages.clear()
    host.append([b"new"])
    host.log.publish()
    assert read_all(host.reader()) == [(0, b"new")]
    host.stop()
