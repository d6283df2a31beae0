"""What reading costs: whole batches from the ring and from a file, one record at the tail, one seek."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from shmbroker.client.batch import Batch
from shmbroker.client.encoding import encode_batch
from shmbroker.limits import MIB
from shmbroker.storage.disk import FileDisk
from shmbroker.storage.partition_log import JournalBudget, LogOptions, PartitionLog
from shmbroker.storage.reader import LogReader
from shmbroker.storage.runtime import LOGS_DIRECTORY, RuntimeDirectory, control_name

BATCH_COUNT = 150
MESSAGES = [random.Random(1).randbytes(60 + number % 81) for number in range(1_000)]


class World:
    """One partition with 22 MB in batches of 1,000 messages, in shared memory."""

    def __init__(self, path: Path) -> None:
        self.executor = ThreadPoolExecutor(1)
        directory = path / "partition"
        runtime = RuntimeDirectory(str(path))
        disk = FileDisk()
        PartitionLog.create(disk, str(directory), 1, 0)
        self.log = PartitionLog.open(
            disk, runtime, JournalBudget(256 * MIB), str(directory), 1, 0, LogOptions(), instance=1, now_us=1,
            executor=self.executor,
        )  # fmt: skip
        for _ in range(BATCH_COUNT):
            self.append(MESSAGES)
        control = path / LOGS_DIRECTORY / control_name(1, self.log.incarnation)
        self.reader = LogReader(str(control), str(directory))

    def append(self, messages: list[bytes]) -> None:
        record = b"".join(encode_batch(messages, id_base=1, origin_timestamp_us=1))
        assert self.log.append(memoryview(record), 1)[0] == 0
        self.log.publish()

    def read_all(self) -> int:
        self.reader.seek_first()
        size = 0
        while slices := self.reader.read(1_000_000):
            size += sum(len(piece.record) for piece in slices)
        return size


@pytest.fixture
def world() -> Iterator[World]:
    path = Path(tempfile.mkdtemp(prefix="shmbroker-bench-", dir="/dev/shm"))
    made = World(path)
    yield made
    made.log.abandon()
    made.executor.shutdown()
    shutil.rmtree(path)


def test_whole_batches_from_the_ring(benchmark: Any, world: World) -> None:
    benchmark.extra_info["bytes"] = benchmark(world.read_all)


def test_whole_batches_from_a_file(benchmark: Any, world: World) -> None:
    for _ in range(2):
        world.log.flush(sync=False)
        world.log.maintain(1)
    benchmark.extra_info["bytes"] = benchmark(world.read_all)


def test_one_record_at_the_tail(benchmark: Any, world: World) -> None:
    world.reader.seek_offset(world.reader.visible_offset)

    def one_more() -> tuple[tuple[()], dict[str, Any]]:
        world.append([b"x" * 100])
        return (), {}

    slices = benchmark.pedantic(lambda: world.reader.read(1_000), setup=one_more, rounds=2_000)
    assert len(slices) == 1


def test_payloads_of_a_batch_of_1000(benchmark: Any, world: World) -> None:
    world.reader.seek_first()
    [piece] = world.reader.read(1_000)
    assert benchmark(lambda: Batch(piece).payloads()) == MESSAGES


def test_seek_by_offset_and_read_one(benchmark: Any, world: World) -> None:
    world.log.flush(sync=False)
    offsets = iter(range(0, 10**9, 777))

    def seek() -> int:
        world.reader.seek_offset(next(offsets) % (BATCH_COUNT * 1_000))
        return len(world.reader.read(1))

    assert benchmark(seek) == 1
