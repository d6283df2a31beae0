"""The yardsticks: they measure something, on any file system, and leave nothing behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from rich.console import Console

from shmbroker.bench import machine
from shmbroker.limits import KIB, PAGE_SIZE


@pytest.mark.parametrize("where", ["disk", "memory"])
def test_synchronous_writes_of_a_size(where: str, tmp_path: Path) -> None:
    directory = str(tmp_path) if where == "disk" else "/dev/shm"
    before = os.listdir(directory)
    write = machine.measure_direct_write(directory, 10_000)
    assert write.size == 3 * PAGE_SIZE, "rounded up to whole pages"
    assert 0 < write.p50_us <= write.p99_us
    assert write.size_rate > 0
    assert [name for name in os.listdir(directory) if name not in before and "shmbroker-bench" in name] == []


def test_ping_pongs_of_two_processes_leave_no_name_and_no_pinning() -> None:
    affinity = os.sched_getaffinity(0)
    for ping_pong in (machine.measure_ping_pong(), machine.measure_doorbell()):
        assert 0 < ping_pong.p50_us <= ping_pong.p99_us
        assert ping_pong.together.p50_us > 0
        assert (ping_pong.apart is None) == (len(affinity) == 1)
    assert os.sched_getaffinity(0) == affinity
    assert not [name for name in os.listdir("/dev/shm") if name.startswith("sem.shmbroker-bench-")]


def test_everything_fits_one_table_and_one_dictionary(tmp_path: Path) -> None:
    limits = machine.measure(str(tmp_path), write_sizes=(4 * KIB,))
    console = Console(record=True, width=120, file=open(os.devnull, "w"))  # noqa: SIM115 - closed below
    console.print(machine.table_of(limits))
    console.file.close()
    text = console.export_text()
    for what in ("copy between mappings", "semaphore ping-pong", "write of 4 KiB", "encoding alone"):
        assert what in text
    figures = limits.as_dict()
    assert figures["direct_writes"][0]["size"] == 4 * KIB
    assert min(figures[name] for name in ("copy_rate", "xxh3_rate", "crc32c_rate", "encode_message_rate")) > 0
