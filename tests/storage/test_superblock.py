"""The superblock survives a crash at every point with the old facts or the new ones."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from shmbroker.errors import Corrupt, DiskFailed, NoSpace
from shmbroker.formats.superblock import FILE_NAME, slot_position
from shmbroker.limits import PAGE_SIZE
from shmbroker.storage.disk import FileDisk, aligned_buffer
from shmbroker.storage.superblock import SuperblockFile
from tests.storage.simulated_disk import Crashed, SimulatedDisk

INCARNATION = bytes(range(16))
LOG_ID = 7


def new_disk(**options: int) -> SimulatedDisk:
    return SimulatedDisk(**options)  # type: ignore[arg-type]


def workload(disk: SimulatedDisk, acknowledged: list[int]) -> None:
    """Reservations 0, 100, 200, ...; ``acknowledged`` gets each one that returned."""
    superblock = SuperblockFile.create(disk, "/", LOG_ID, 3, INCARNATION)
    acknowledged.append(0)
    for number in range(1, 6):
        superblock.write(reserved_offset=100 * number)
        acknowledged.append(100 * number)


def test_facts_come_back(tmp_path: Path) -> None:
    disk = FileDisk()
    created = SuperblockFile.create(disk, str(tmp_path), LOG_ID, 3, INCARNATION, reserved_offset=5)
    created.write(durable_position=4096, durable_offset=2)
    created.write(clean=1, end_position=8192, end_offset=9, poison=5, broker_instance=11, repair_epoch=1)
    created.close()
    opened = SuperblockFile.open(disk, str(tmp_path), LOG_ID)
    assert opened.current == created.current
    found = opened.current
    assert (found.sequence, found.log_id, found.partition_id, found.incarnation) == (3, LOG_ID, 3, INCARNATION)
    assert (found.reserved_offset, found.durable_position, found.durable_offset) == (5, 4096, 2)
    assert (found.clean, found.end_position, found.end_offset) == (1, 8192, 9)
    assert (found.poison, found.broker_instance, found.repair_epoch) == (5, 11, 1)
    assert opened.write(clean=0).sequence == 4
    opened.close()
    with pytest.raises(FileExistsError):
        SuperblockFile.create(disk, str(tmp_path), LOG_ID, 3, INCARNATION)


def test_rule_03_a_crash_at_every_point_leaves_the_old_or_the_new_reservation(seed: int) -> None:
    dry = new_disk()
    workload(dry, [])
    images = 0
    for crash_at in range(1, len(dry.points) + 1):
        disk, acknowledged = new_disk(crash_at=crash_at), list[int]()
        with pytest.raises(Crashed):
            workload(disk, acknowledged)
        for image in [*disk.images(seed), *disk.process_images()]:
            images += 1
            try:
                opened = SuperblockFile.open(image, "/", LOG_ID)
            except Corrupt:
                assert not acknowledged, f"lost after {acknowledged}: {image.label}"
                continue
            assert opened.current.reserved_offset in (
                acknowledged[-1] if acknowledged else 0,
                acknowledged[-1] + 100 if acknowledged else 0,
            )
    assert images > 3 * len(dry.points)


def test_rule_02_what_an_open_superblock_says_survives_the_next_power_failure(seed: int) -> None:
    disk = new_disk()
    superblock = SuperblockFile.create(disk, "/", LOG_ID, 3, INCARNATION)
    superblock.write(reserved_offset=100)
    disk.crash_at = len(disk.points) + 1
    with pytest.raises(Crashed):
        superblock.write(reserved_offset=200)
    survivor = disk.process_image()
    opened = SuperblockFile.open(survivor, "/", LOG_ID)
    assert opened.current.reserved_offset == 200, "the page cache survives the process"
    for image in survivor.images(seed):
        assert SuperblockFile.open(image, "/", LOG_ID).current.reserved_offset == 200
    survivor.crash_at = len(survivor.points) + 1
    with pytest.raises(Crashed):
        opened.write(reserved_offset=300)
    found = {SuperblockFile.open(image, "/", LOG_ID).current.reserved_offset for image in survivor.images(seed)}
    assert found == {200, 300}


def test_rule_03_one_bad_slot_is_survived_and_two_refuse() -> None:
    disk = new_disk()
    superblock = SuperblockFile.create(disk, "/", LOG_ID, 3, INCARNATION)
    superblock.write(reserved_offset=100)
    file = disk.open(f"/{FILE_NAME}")
    garbage = aligned_buffer(PAGE_SIZE)
    garbage[:] = b"\xff" * PAGE_SIZE
    file.write(slot_position(superblock.current.sequence), [garbage], sync=True)
    survivor = SuperblockFile.open(disk, "/", LOG_ID)
    assert survivor.current.reserved_offset == 0
    file.write(slot_position(survivor.current.sequence), [garbage], sync=True)
    with pytest.raises(Corrupt, match="both slots") as caught:
        SuperblockFile.open(disk, "/", LOG_ID)
    assert caught.value.path.endswith(FILE_NAME)
    assert "Restore" in caught.value.remedy


def test_a_missing_or_foreign_superblock_refuses() -> None:
    disk = new_disk()
    with pytest.raises(Corrupt, match="missing"):
        SuperblockFile.open(disk, "/", LOG_ID)
    SuperblockFile.create(disk, "/", LOG_ID, 3, INCARNATION)
    with pytest.raises(Corrupt, match="belongs to log 7, not 8"):
        SuperblockFile.open(disk, "/", 8)


@pytest.mark.parametrize("number", range(6))
def test_rule_11_a_failed_write_is_final_and_the_next_start_finds_old_or_new(number: int) -> None:
    disk = new_disk(seed=number)
    superblock = SuperblockFile.create(disk, "/", LOG_ID, 3, INCARNATION)
    disk.fail(len(disk.points) + 1, errno.EIO)
    with pytest.raises(DiskFailed):
        superblock.write(reserved_offset=100)
    assert superblock.current.reserved_offset == 0
    with pytest.raises(DiskFailed, match="earlier"):
        superblock.write(reserved_offset=200)
    assert SuperblockFile.open(disk, "/", LOG_ID).current.reserved_offset in (0, 100)


def test_rule_11_no_space_leaves_no_superblock() -> None:
    disk = new_disk()
    disk.fail(2, errno.ENOSPC)
    with pytest.raises(NoSpace):
        SuperblockFile.create(disk, "/", LOG_ID, 3, INCARNATION)
    assert disk.list("/") == []
    SuperblockFile.create(disk, "/", LOG_ID, 3, INCARNATION)


def test_threads_write_one_after_the_other(tmp_path: Path) -> None:
    superblock = SuperblockFile.create(FileDisk(), str(tmp_path), LOG_ID, 3, INCARNATION)
    threads = [
        threading.Thread(target=lambda: [superblock.write(durable_offset=n) for n in range(20)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert superblock.current.sequence == 81
    superblock.close()
    reopened = SuperblockFile.open(FileDisk(), str(tmp_path), LOG_ID)
    assert reopened.current == superblock.current
    reopened.close()
