"""Crashes at every write and sync point of the log, and of its recovery (rule 19), judged by a plain list.

Each workload runs once to count its points. Then it runs again for each point and crashes there; what the crash may
leave on the disk is enumerated (every prefix, every single omission, torn sectors, seeded subsets), once with the
shared memory still there (the processes died) and once without (the power failed); each is recovered and checked, and
some recoveries are crashed at each of their own points too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shmbroker.storage.partition_log import PartitionLog
from tests.storage.log_oracle import Oracle, recover_and_check
from tests.storage.log_world import make_disk, open_log
from tests.storage.memory_runtime import MemoryRuntime
from tests.storage.simulated_disk import Crashed, SimulatedDisk

SEED = 20_261_130


class World:
    """One run of a workload: the disk, the shared memory, the log and its history."""

    def __init__(self, crash_at: int | None, options: dict[str, Any]) -> None:
        self.disk = make_disk(seed=SEED)
        self.first_point = len(self.disk.points) + 1
        self.disk.crash_at = crash_at
        self.runtime = MemoryRuntime()
        self.options = options
        self.log: PartitionLog | None = None
        self.oracle: Oracle | None = None

    def open(self) -> PartitionLog:
        self.log = log = open_log(self.disk, self.runtime, **self.options)
        if self.oracle is None:
            self.oracle = Oracle(log)
        else:
            self.oracle.check(log, self.disk, power=False)
        return log

    def kill(self) -> None:
        """The process is gone; disk and shared memory stay."""
        assert self.log is not None
        self.log.abandon()


def appends(world: World) -> None:
    """Groups of several batches, some of them too small for a page, over a roll."""
    log, oracle = world.open(), None
    oracle = world.oracle
    assert oracle is not None
    for group in range(5):
        for number in range(3):
            oracle.append(log, [bytes((65 + group,)) * (300 + 1700 * number), b"second"])
        oracle.finish_pass(log)
    oracle.flush(log, sync=True)
    oracle.append(log, [b"unfinished"])
    log.publish()


def fills_its_ring(world: World) -> None:
    """Capacity pressure, a larger ring, records around the end of the ring, and an unfinished rest in it."""
    log = world.open()
    oracle = world.oracle
    assert oracle is not None
    for number in range(8):
        oracle.append(log, [bytes((97 + number,)) * 220_000, b"small"])
        log.publish()
        oracle.current.replicated = len(oracle.current.issued)
    oracle.flush(log, sync=True)
    for number in range(3):
        oracle.append(log, [bytes((65 + number,)) * 100_000])
    oracle.finish_pass(log)


def stops_and_starts(world: World) -> None:
    """A clean stop, a quiet time, a killed process, an offset stored."""
    log = world.open()
    oracle = world.oracle
    assert oracle is not None
    oracle.append(log, [b"first"])
    oracle.finish_pass(log)
    oracle.store_offset(log, 0)
    oracle.close(log)
    log = world.open()
    oracle.append(log, [b"second", b"third"])
    oracle.finish_pass(log)
    oracle.flush(log, sync=False)
    oracle.maintain(log, 6_000_000)
    oracle.maintain(log, 7_000_000)
    oracle.append(log, [b"fourth" * 900])
    oracle.finish_pass(log)
    oracle.store_offset(log, 2)
    world.kill()
    log = world.open()
    oracle.append(log, [b"fifth"])
    oracle.finish_pass(log)


def deletes(world: World) -> None:
    """Segments deleted, a purge, and appends after each."""
    log = world.open()
    oracle = world.oracle
    assert oracle is not None
    for number in range(8):
        oracle.append(log, [bytes((97 + number,)) * 9000])
        oracle.finish_pass(log)
    oracle.delete(log, 2)
    oracle.append(log, [b"between" * 10])
    oracle.finish_pass(log)
    oracle.purge(log)
    oracle.append(log, [b"new" * 100])
    oracle.finish_pass(log)


WORKLOADS = [appends, stops_and_starts, deletes]
POLICIES = [pytest.param({"persisted": False}, id="replicated"), pytest.param({"persisted": True}, id="persisted")]
SMALL: dict[str, Any] = {"segment_size": 16_384, "messages_required_to_save": 4, "offsets_persisted": True}


def test_rule_19_every_crash_while_the_ring_fills_is_recovered() -> None:
    options = {"segment_size": 4 << 20, "messages_required_to_save": 1 << 20, "size_required_to_save": 1 << 30}
    count = 0
    for world in crashed_worlds(fills_its_ring, options):
        assert world.oracle is not None
        left = survivors(world, subsets=1)
        for number in sorted({0, 1, len(left) - 1, *range(2, len(left), max(1, len(left) // 5))} & {*range(len(left))}):
            power, disk, runtime = left[number]
            log = recover_and_check(world.oracle.copy(), disk, runtime, power=power, **options)
            log.abandon()
            count += 1
    assert count > 50


def crashed_worlds(workload: Callable[[World], None], options: dict[str, Any]) -> list[World]:
    """One world for each point of the workload, crashed there; and one in which it ended."""
    whole = World(None, options)
    workload(whole)
    worlds = [whole]
    for point in range(whole.first_point, len(whole.disk.points) + 1):
        world = World(point, options)
        with pytest.raises(Crashed):
            workload(world)
        if world.oracle is None:
            continue
        worlds.append(world)
    return worlds


def survivors(world: World, *, subsets: int = 4) -> list[tuple[bool, SimulatedDisk, MemoryRuntime]]:
    """(power, disk, shared memory) of everything that this crash may leave."""
    found = [(False, disk, world.runtime.copy()) for disk in world.disk.process_images()]
    found += [(True, disk, world.runtime.after_power_failure()) for disk in world.disk.images(SEED, subsets=subsets)]
    return found


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_rule_19_every_crash_of_a_workload_is_recovered(
    workload: Callable[[World], None], policy: dict[str, Any]
) -> None:
    options = {**SMALL, **policy}
    count = 0
    for world in crashed_worlds(workload, options):
        assert world.oracle is not None
        for power, disk, runtime in survivors(world):
            label = f"crash at {world.disk.crash_at} {world.disk.points[-1]}, power {power}, {disk.label}, seed {SEED}"
            try:
                log = recover_and_check(world.oracle.copy(), disk, runtime, power=power, **options)
            except Exception as error:
                raise AssertionError(f"{label}: {error}") from error
            log.abandon()
            count += 1
    assert count > 100


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_rule_19_every_crash_of_a_recovery_is_recovered(
    workload: Callable[[World], None], policy: dict[str, Any]
) -> None:
    options = {**SMALL, **policy}
    for number, world in enumerate(crashed_worlds(workload, options)):
        assert world.oracle is not None
        left = survivors(world)
        for power, disk, runtime in [left[0], left[-1 - number % min(3, len(left))]]:
            crash_recovery_everywhere(world, power, disk, runtime, options)


def crash_recovery_everywhere(
    world: World, power: bool, disk: SimulatedDisk, runtime: MemoryRuntime, options: dict[str, Any]
) -> None:
    """Crashes the recovery of one image at each of its points, and recovers what that leaves."""
    assert world.oracle is not None
    point = 0
    while True:
        point += 1
        image, shared = disk.process_image(), runtime.copy()
        image.crash_at = point
        try:
            log = open_log(image, shared, instance=2, **options)
        except Crashed:
            pass
        else:
            log.abandon()
            return
        again = [(False, image.process_image(), shared.copy())]
        again += [(True, other, shared.after_power_failure()) for other in list(image.images(SEED, subsets=2))[-4:]]
        for second_power, second, memory in again:
            label = f"crash at {world.disk.crash_at} (power {power}, {disk.label}), recovery crashed at {point}"
            label += f" {image.points[-1]} (power {second_power}, {second.label}), seed {SEED}"
            try:
                log = recover_and_check(world.oracle.copy(), second, memory, power=power or second_power, **options)
            except Exception as error:
                raise AssertionError(f"{label}: {error}") from error
            log.abandon()
