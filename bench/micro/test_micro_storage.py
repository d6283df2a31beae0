"""What storage's small parts cost: writes through the seam, a group of consumer offsets, the superblock, the window."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from shmbroker.formats.offsets import KEY_CONSUMER, number_key
from shmbroker.limits import KIB, MIB, PAGE_SIZE
from shmbroker.storage.deduplication import ProducerWindows
from shmbroker.storage.disk import FileDisk, aligned_buffer
from shmbroker.storage.offsets import OffsetStore
from shmbroker.storage.superblock import SuperblockFile

INCARNATION = bytes(range(16))


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "no-sync"])
@pytest.mark.parametrize("direct", [True, False], ids=["direct", "buffered"])
@pytest.mark.parametrize("size", [PAGE_SIZE, 64 * KIB, MIB])
def test_write_into_allocated_space(benchmark: Any, tmp_path: Path, size: int, direct: bool, sync: bool) -> None:
    """Over extents that were written before: a recycled range costs least and varies least."""
    file = FileDisk(allow_direct=direct).create(str(tmp_path / "file"))
    file.write(0, [aligned_buffer(16 * MIB)], sync=True)
    buffer = aligned_buffer(size)
    positions = itertools.cycle(range(0, 16 * MIB, size))
    benchmark(lambda: file.write(next(positions), [buffer], sync=sync))
    file.close()


@pytest.mark.parametrize("sync", [True, False], ids=["persisted", "replicated"])
@pytest.mark.parametrize("count", [1, 32])
def test_a_group_of_consumer_offsets(benchmark: Any, tmp_path: Path, count: int, sync: bool) -> None:
    store = OffsetStore(FileDisk(), str(tmp_path / "incarnation"), 1, INCARNATION, persisted=sync)
    keys = [number_key(KEY_CONSUMER, number) for number in range(count)]
    offsets = itertools.count()

    def group() -> None:
        offset = next(offsets)
        for key in keys:
            store.store(key, offset, 1, automatic=False, end_offset=1 << 40)
        for call in store.prepare_flush(sync):
            call()
        store.finish_flush(None)

    benchmark(group)
    assert store.lowest() == next(offsets) - 1
    store.close()


def test_superblock(benchmark: Any, tmp_path: Path) -> None:
    superblock = SuperblockFile.create(FileDisk(), str(tmp_path), 1, 0, INCARNATION)
    offsets = itertools.count(1)
    benchmark(lambda: superblock.write(durable_offset=next(offsets)))
    superblock.close()


def test_window_of_a_producer(benchmark: Any) -> None:
    windows, sequences = ProducerWindows(), itertools.count(1)

    def look_and_record() -> None:
        sequence = next(sequences)
        assert windows.find(7, sequence) is None
        windows.record(7, sequence, 1000 * sequence, 1000)

    benchmark(look_and_record)
