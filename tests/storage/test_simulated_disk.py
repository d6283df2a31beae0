"""The simulated disk loses what a disk may lose, and nothing else: the crash tests are worth what this one is."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from shmbroker.errors import DiskFailed, NoSpace
from shmbroker.limits import PAGE_SIZE, SECTOR_SIZE
from shmbroker.storage.disk import errno_of
from tests.storage.simulated_disk import Crashed, SimulatedDisk, SimulatedFile

SECTORS = PAGE_SIZE // SECTOR_SIZE


def page(number: int, count: int = 1) -> memoryview:
    return memoryview(bytes((number,)) * (PAGE_SIZE * count))


def disk_with_file(**options: int) -> tuple[SimulatedDisk, SimulatedFile]:
    """A disk whose file /f has one durable page of 1s."""
    disk = SimulatedDisk(**options)  # type: ignore[arg-type]
    file = disk.create("/f")
    file.write(0, [page(1)], sync=True)
    disk.sync_directory("/")
    return disk, file


def contents(disk: SimulatedDisk, path: str = "/f") -> bytes:
    file = disk.open(path)
    return file.read(0, file.size())


def sectors_of(content: bytes) -> tuple[int, ...]:
    assert all(len(set(content[n : n + SECTOR_SIZE])) == 1 for n in range(0, len(content), SECTOR_SIZE))
    return tuple(content[n] for n in range(0, len(content), SECTOR_SIZE))


def test_nothing_is_lost_after_a_synchronous_write_and_a_directory_sync() -> None:
    disk, _ = disk_with_file()
    images = list(disk.images(1))
    assert [contents(image) for image in images] == [bytes(page(1))]


def test_a_name_is_durable_only_with_its_directory() -> None:
    disk = SimulatedDisk()
    file = disk.create("/f")
    file.write(0, [page(1)], sync=True)
    file.sync()
    assert {image.exists("/f") for image in disk.images(1)} == {True, False}
    disk.sync_directory("/")
    assert {image.exists("/f") for image in disk.images(1)} == {True}
    disk.unlink("/f")
    assert {image.exists("/f") for image in disk.images(1)} == {True, False}


def test_a_directory_needs_its_parent() -> None:
    disk = SimulatedDisk()
    disk.make_directory("/d")
    disk.create("/d/f").write(0, [page(1)], sync=True)
    disk.sync_directory("/d")
    assert {image.exists("/d/f") for image in disk.images(1)} == {True, False}
    disk.sync_directory("/")
    assert {image.exists("/d/f") for image in disk.images(1)} == {True}


def test_a_synchronous_write_settles_its_range_and_no_other() -> None:
    disk, file = disk_with_file()
    file.write(PAGE_SIZE, [page(2)], sync=False)
    file.write(2 * PAGE_SIZE, [page(3)], sync=True)
    seen = set()
    for image in disk.images(1):
        content = contents(image)
        assert len(content) == 3 * PAGE_SIZE
        assert content[2 * PAGE_SIZE :] == bytes(page(3))
        seen.add(content[PAGE_SIZE : PAGE_SIZE + SECTOR_SIZE] + content[2 * PAGE_SIZE - SECTOR_SIZE : 2 * PAGE_SIZE])
    assert seen == {bytes((a,)) * SECTOR_SIZE + bytes((b,)) * SECTOR_SIZE for a in (0, 2) for b in (0, 2)}


def test_an_older_write_never_comes_back_over_a_settled_one() -> None:
    disk, file = disk_with_file()
    file.write(0, [page(2)], sync=False)
    file.write(0, [page(3)], sync=True)
    assert [contents(image) for image in disk.images(1)] == [bytes(page(3))]


def test_unsynchronised_writes_land_in_any_choice_of_sectors() -> None:
    disk, file = disk_with_file()
    file.write(0, [page(2)], sync=False)
    seen = {sectors_of(contents(image)) for image in disk.images(1, subsets=40)}
    for cut in range(SECTORS + 1):
        assert (2,) * cut + (1,) * (SECTORS - cut) in seen
        assert (1,) * cut + (2,) * (SECTORS - cut) in seen
    for missing in range(SECTORS):
        assert (2,) * missing + (1,) + (2,) * (SECTORS - missing - 1) in seen
    assert len(seen) > 3 * SECTORS - 2
    assert all(set(found) <= {1, 2} for found in seen)


def test_a_page_written_again_with_the_same_prefix_tears_in_the_rest_only() -> None:
    disk, file = disk_with_file()
    half = PAGE_SIZE // 2
    file.write(0, [memoryview(bytes(page(1))[:half] + bytes(page(2))[half:])], sync=False)
    seen = {sectors_of(contents(image)) for image in disk.images(1)}
    assert all(found[: SECTORS // 2] == (1,) * (SECTORS // 2) for found in seen)
    assert len(seen) > SECTORS // 2


def test_rule_19_every_prefix_and_every_omission_of_several_writes() -> None:
    disk, file = disk_with_file()
    file.allocate(0, 5 * PAGE_SIZE)
    file.sync()
    for number in range(5):
        file.write(number * PAGE_SIZE, [page(10 + number)], sync=False)
    old = [1, 0, 0, 0, 0]
    new = [10, 11, 12, 13, 14]
    seen = {sectors_of(contents(image))[::SECTORS] for image in disk.images(1)}
    for count in range(6):
        assert tuple(new[:count] + old[count:]) in seen
    for missing in range(5):
        assert tuple(old[n] if n == missing else new[n] for n in range(5)) in seen


def test_the_length_may_land_without_the_bytes_and_not_the_other_way() -> None:
    disk, file = disk_with_file()
    file.write(PAGE_SIZE, [page(2)], sync=False)
    found = {contents(image) for image in disk.images(1)}
    assert bytes(page(1)) in found
    assert all(len(content) in (PAGE_SIZE, 2 * PAGE_SIZE) for content in found)
    file.allocate(0, 4 * PAGE_SIZE)
    file.write(3 * PAGE_SIZE, [page(3)], sync=False)
    for image in disk.images(2):
        reopened = image.open("/f")
        if reopened.size() < 4 * PAGE_SIZE:
            reopened.allocate(0, 4 * PAGE_SIZE)
            assert reopened.read(3 * PAGE_SIZE, PAGE_SIZE) == bytes(PAGE_SIZE)


def test_rename_is_one_step() -> None:
    disk, _ = disk_with_file()
    other = disk.create("/g")
    other.write(0, [page(2)], sync=True)
    disk.sync_directory("/")
    disk.rename("/g", "/f")
    states = {(contents(image)[0], image.exists("/g")) for image in disk.images(1)}
    assert states == {(1, True), (2, False)}


def test_a_crash_is_in_the_middle_of_its_operation_and_final() -> None:
    disk, file = disk_with_file()
    disk.crash_at = len(disk.points) + 1
    with pytest.raises(Crashed, match="sync_write"):
        file.write(0, [page(2)], sync=True)
    assert disk.points[-1].kind == "sync_write"
    calls: list[Callable[[], object]] = [
        lambda: file.read(0, 1),
        file.sync,
        lambda: disk.create("/g"),
        lambda: disk.list("/"),
    ]
    for call in calls:
        with pytest.raises(Crashed):
            call()
    seen = {sectors_of(contents(image)) for image in disk.images(1)}
    assert {(1,) * SECTORS, (2,) * SECTORS} < seen


@pytest.mark.parametrize("kind", ["sync", "allocate", "rename", "unlink", "create", "make_directory", "sync_directory"])
def test_every_kind_of_operation_is_a_point(kind: str) -> None:
    def run(disk: SimulatedDisk, file: SimulatedFile) -> None:
        actions: dict[str, Callable[[], object]] = {
            "sync": file.sync,
            "allocate": lambda: file.allocate(0, 8 * PAGE_SIZE),
            "rename": lambda: disk.rename("/f", "/h"),
            "unlink": lambda: disk.unlink("/f"),
            "create": lambda: disk.create("/n"),
            "make_directory": lambda: disk.make_directory("/n"),
            "sync_directory": lambda: disk.sync_directory("/"),
        }
        actions[kind]()

    disk, file = disk_with_file()
    file.write(0, [page(2)], sync=False)
    before = len(disk.points)
    run(disk, file)
    assert [point.kind for point in disk.points[before:]] == [kind]
    disk, file = disk_with_file(crash_at=before + 1)
    file.write(0, [page(2)], sync=False)
    with pytest.raises(Crashed):
        run(disk, file)
    assert len({image.fingerprint() for image in disk.images(1)}) > 1


def test_a_process_crash_keeps_what_was_written_and_makes_nothing_durable() -> None:
    disk, file = disk_with_file()
    file.write(0, [page(2)], sync=False)
    survivor = disk.process_image()
    assert contents(survivor) == bytes(page(2))
    assert {sectors_of(contents(image)) for image in survivor.images(1)} >= {(1,) * SECTORS, (2,) * SECTORS}
    survivor.open("/f").sync()
    assert [contents(image) for image in survivor.images(1)] == [bytes(page(2))]
    assert len(list(disk.images(1))) > 1, "the copy shares nothing that it changes"
    assert contents(disk) == bytes(page(2))


def test_a_process_crash_may_cut_the_write_in_flight() -> None:
    disk, file = disk_with_file()
    disk.crash_at = len(disk.points) + 1
    with pytest.raises(Crashed):
        file.write(0, [page(2, 3)], sync=False)
    found = {contents(image) for image in disk.process_images()}
    assert found == {bytes(page(1)), *(bytes(page(2, count)) for count in (1, 2, 3))}


def test_images_are_disks_of_their_own() -> None:
    disk, file = disk_with_file()
    file.write(0, [page(2)], sync=False)
    first, *others = disk.images(1)
    before = [contents(image) for image in others]
    target = first.open("/f")
    target.write(0, [page(9)], sync=True)
    first.unlink("/f")
    assert [contents(image) for image in others] == before
    assert contents(disk) == bytes(page(2))


def test_rule_02_after_a_failed_sync_the_cache_lies_and_the_disk_does_not() -> None:
    lied = 0
    for seed in range(20):
        disk, file = disk_with_file(seed=seed)
        file.write(0, [page(2)], sync=False)
        disk.fail(len(disk.points) + 1, errno.EIO)
        with pytest.raises(DiskFailed) as caught:
            file.sync()
        assert errno_of(caught.value) == errno.EIO
        with pytest.raises(DiskFailed, match="earlier"):
            file.sync()
        again = disk.open("/f")
        again.sync()
        shown = again.read(0, PAGE_SIZE)
        assert shown == bytes(page(2)), "the page cache shows what was written"
        truth = again.read_uncached(0, PAGE_SIZE)
        assert [contents(image) for image in disk.images(1)] == [truth], "a second sync brings nothing"
        assert again.read(0, PAGE_SIZE) == truth
        lied += truth != shown
    assert lied > 5


def test_a_failed_write_lands_in_part() -> None:
    outcomes = set()
    for seed in range(20):
        disk, file = disk_with_file(seed=seed)
        disk.fail(len(disk.points) + 1, errno.EIO)
        with pytest.raises(DiskFailed):
            file.write(0, [page(2)], sync=True)
        assert file.failed
        outcomes.add(sectors_of(file.read_uncached(0, PAGE_SIZE)))
    assert len(outcomes) > 3


def test_rule_11_no_space_changes_nothing() -> None:
    disk, file = disk_with_file()
    disk.fail(len(disk.points) + 1, errno.ENOSPC)
    with pytest.raises(NoSpace):
        file.allocate(0, 8 * PAGE_SIZE)
    assert file.size() == PAGE_SIZE
    file.write(0, [page(2)], sync=True)
    disk.fail(len(disk.points) + 1, errno.ENOSPC)
    with pytest.raises(NoSpace):
        disk.create("/g")
    assert not disk.exists("/g")


def test_images_of_a_large_file_share_their_pages() -> None:
    disk, file = disk_with_file()
    file.allocate(0, 64 << 20)
    file.write(PAGE_SIZE, [page(2, 1000)], sync=False)
    images = list(disk.images(1))
    assert len(images) > 60
    assert any(image.open("/f").read(1000 * PAGE_SIZE, 1) == b"\2" for image in images)
