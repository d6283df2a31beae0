"""A repair that is interrupted at any write or sync point is planned and done again, and loses nothing more."""

from __future__ import annotations

from typing import Any

import pytest

from shmbroker.limits import PAGE_SIZE
from shmbroker.storage.disk import aligned_buffer
from shmbroker.storage.repair import apply_plan, plan_repair
from tests.storage.log_world import DIRECTORY, append, finish_pass, make_disk, open_log, read_files
from tests.storage.memory_runtime import MemoryRuntime
from tests.storage.simulated_disk import Crashed, SimulatedDisk

SEED = 7


def world() -> tuple[SimulatedDisk, MemoryRuntime, list[tuple[int, bytes]]]:
    """A log of three segments, cleanly stopped."""
    disk, runtime = make_disk(seed=SEED), MemoryRuntime()
    log = open_log(disk, runtime, persisted=True, segment_size=1 << 17)
    messages = []
    for number in range(11):
        payloads = [bytes((number + 1,)) * 20_000, bytes((number + 1,)) * 20_000]
        offset = append(log, payloads)
        messages += [(offset + index, payload) for index, payload in enumerate(payloads)]
        finish_pass(log)
    log.close(3_000_000)
    assert len(log.segments.infos) == 3
    return disk, runtime, messages


def harm(disk: SimulatedDisk, kind: str) -> None:
    directory = next(name for name in disk.list(DIRECTORY) if len(name) == 32)
    files = [name for name in disk.list(f"{DIRECTORY}/{directory}") if name.endswith(".log")]
    path = f"{DIRECTORY}/{directory}/{files[1 if kind != 'newest' else 2]}"
    if kind == "missing":
        disk.unlink(path)
        disk.sync_directory(f"{DIRECTORY}/{directory}")
        return
    file = disk.open(path)
    page = aligned_buffer(PAGE_SIZE)
    position = 0 if kind == "header" else 20 * PAGE_SIZE if kind == "inner" else 2 * PAGE_SIZE
    page[:] = file.read(position, PAGE_SIZE)
    page[16] ^= 1
    file.write(position, [page], sync=True)
    file.close()


def kept_after_repair(disk: Any, runtime: MemoryRuntime) -> list[tuple[int, bytes]]:
    plan = plan_repair(disk, runtime, DIRECTORY)
    if plan.needed:
        apply_plan(disk, runtime, plan)
    assert not plan_repair(disk, runtime, DIRECTORY).needed
    log = open_log(disk, runtime, persisted=True, segment_size=1 << 17)
    offset = append(log, [b"after"])
    # Above all that was ever issued; where the last step was not reached, the clean stop still says where that was.
    assert offset >= 22
    finish_pass(log)
    found = read_files(disk)
    log.close(4_000_000)
    assert found[-1] == (offset, b"after")
    return found[:-1]


@pytest.mark.parametrize("kind", ["inner", "header", "missing", "newest"])
def test_rule_19_a_repair_is_crashed_at_every_point(kind: str) -> None:
    disk, runtime, messages = world()
    harm(disk, kind)
    expected = kept_after_repair(disk, runtime)
    assert [pair for pair in messages if pair in expected] == expected
    assert 6 <= len(expected) < len(messages)

    number, images = 0, 0
    while True:
        disk, runtime, _ = world()
        harm(disk, kind)
        plan = plan_repair(disk, runtime, DIRECTORY)
        number += 1
        disk.crash_at = len(disk.points) + number
        try:
            apply_plan(disk, runtime, plan)
        except Crashed:
            pass
        else:
            break
        for image in disk.images(SEED, subsets=2):
            images += 1
            found = kept_after_repair(image, MemoryRuntime(boot=2))
            assert found == expected, image.label
    assert number > 5
    assert images > number
