"""One contract for every disk: the real one on the test directory's file system (direct and buffered) and on tmpfs, and
the simulated one that the crash tests stand on."""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from shmbroker.errors import DiskFailed, NoSpace
from shmbroker.limits import MIB, PAGE_SIZE
from shmbroker.storage.disk import BUFFERS_PER_WRITE_MAX, Disk, FileDisk, aligned_buffer, errno_of
from tests.storage.simulated_disk import SimulatedDisk


class Place(NamedTuple):
    disk: Disk
    directory: str


@pytest.fixture(params=["direct", "buffered", "tmpfs", "simulated"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "simulated":
        simulated = SimulatedDisk()
        simulated.make_directory("/data")
        yield Place(simulated, "/data")
        return
    if request.param != "tmpfs":
        yield Place(FileDisk(allow_direct=request.param == "direct"), str(tmp_path))
        return
    directory = tempfile.mkdtemp(prefix="shmbroker-test-", dir="/dev/shm")
    try:
        yield Place(FileDisk(), directory)
    finally:
        shutil.rmtree(directory)


def pages_of(*numbers: int) -> memoryview:
    """A page-aligned buffer of one page for each number, filled with it."""
    buffer = aligned_buffer(len(numbers) * PAGE_SIZE)
    for index, number in enumerate(numbers):
        buffer[index * PAGE_SIZE : (index + 1) * PAGE_SIZE] = bytes((number,)) * PAGE_SIZE
    return buffer


def test_a_disk_for_reading_alone_opens_nothing_for_writing(tmp_path: Path) -> None:
    file = FileDisk().create(str(tmp_path / "a"))
    file.write(0, [pages_of(1)], sync=True)
    file.close()
    read_only = FileDisk(read_only=True)
    assert not read_only.direct(str(tmp_path))
    file = read_only.open(str(tmp_path / "a"))
    assert file.read(0, PAGE_SIZE) == file.read_uncached(0, PAGE_SIZE) == bytes(pages_of(1))
    with pytest.raises(DiskFailed):
        file.write(0, [pages_of(2)], sync=True)
    file.close()


def test_what_is_written_is_read(place: Place) -> None:
    file = place.disk.create(f"{place.directory}/a")
    file.write(0, [pages_of(1, 2)], sync=False)
    file.write(PAGE_SIZE, [pages_of(3), pages_of(4, 5)], sync=True)
    expected = b"".join(bytes((n,)) * PAGE_SIZE for n in (1, 3, 4, 5))
    assert file.size() == len(expected)
    assert file.read(0, len(expected)) == expected
    assert file.read(100, 5000) == expected[100:5100]
    assert file.read_uncached(100, 5000) == expected[100:5100]
    file.sync()
    assert bytes(file.view()) == expected
    file.close()
    file.close()


def test_a_read_is_short_only_at_the_end(place: Place) -> None:
    file = place.disk.create(f"{place.directory}/a")
    assert file.read(0, 10) == b""
    assert file.read_uncached(0, 10) == b""
    assert bytes(file.view()) == b""
    file.write(0, [pages_of(7)], sync=False)
    for read in (file.read, file.read_uncached):
        assert read(PAGE_SIZE - 3, 10) == b"\7\7\7"
        assert read(PAGE_SIZE, 10) == b""
        assert read(9 * PAGE_SIZE, 10) == b""
        assert read(5, 0) == b""
    file.close()


def test_allocation_lengthens_with_zeros_and_keeps_what_is_there(place: Place) -> None:
    file = place.disk.create(f"{place.directory}/a")
    file.write(0, [pages_of(1)], sync=True)
    file.allocate(0, 1 * MIB)
    assert file.size() == 1 * MIB
    file.allocate(0, 2 * PAGE_SIZE)
    assert file.size() == 1 * MIB
    assert file.read(0, PAGE_SIZE) == b"\1" * PAGE_SIZE
    assert file.read(PAGE_SIZE, 2 * MIB) == bytes(MIB - PAGE_SIZE)
    file.write(8 * PAGE_SIZE, [pages_of(9)], sync=False)
    assert file.size() == 1 * MIB
    view = file.view()
    assert len(view) == 1 * MIB
    assert view[8 * PAGE_SIZE] == 9
    assert view.readonly
    file.close()
    assert view[8 * PAGE_SIZE] == 9


def test_a_write_past_the_end_leaves_zeros_between(place: Place) -> None:
    file = place.disk.create(f"{place.directory}/a")
    file.write(3 * PAGE_SIZE, [pages_of(4)], sync=True)
    assert file.size() == 4 * PAGE_SIZE
    assert file.read(0, 3 * PAGE_SIZE) == bytes(3 * PAGE_SIZE)
    file.close()


def test_more_buffers_than_one_call_takes(place: Place, rng: random.Random) -> None:
    file = place.disk.create(f"{place.directory}/a")
    count = BUFFERS_PER_WRITE_MAX + 10
    contents = pages_of(*(rng.randrange(256) for _ in range(count)))
    file.write(0, [contents[n * PAGE_SIZE : (n + 1) * PAGE_SIZE] for n in range(count)], sync=True)
    assert file.read(0, count * PAGE_SIZE) == bytes(contents)
    file.close()


def test_threads_write_ranges_apart(place: Place) -> None:
    file = place.disk.create(f"{place.directory}/a")
    file.allocate(0, 64 * PAGE_SIZE)
    buffers = [pages_of(number + 1) for number in range(64)]
    with ThreadPoolExecutor(8) as executor:
        list(executor.map(lambda n: file.write(n * PAGE_SIZE, [buffers[n]], sync=False), range(64)))
    file.sync()
    assert file.read(0, 64 * PAGE_SIZE) == b"".join(map(bytes, buffers))
    file.close()


def test_an_open_file_takes_writes_whatever_becomes_of_its_name(place: Place) -> None:
    disk, directory = place
    file = disk.create(f"{directory}/a")
    disk.rename(f"{directory}/a", f"{directory}/b")
    disk.create(f"{directory}/a").close()
    file.write(0, [pages_of(1)], sync=True)
    other = disk.open(f"{directory}/a")
    assert other.size() == 0
    other.close()
    disk.unlink(f"{directory}/b")
    file.write(0, [pages_of(2)], sync=True)
    assert file.read(0, 1) == b"\2"
    file.close()


def test_two_open_files_see_the_same(place: Place) -> None:
    path = f"{place.directory}/a"
    writer = place.disk.create(path)
    reader = place.disk.open(path)
    writer.write(0, [pages_of(1)], sync=False)
    assert reader.read(0, 4) == b"\1\1\1\1"
    writer.write(0, [pages_of(2)], sync=True)
    assert reader.read(0, 4) == b"\2\2\2\2"
    assert reader.path == writer.path == path
    writer.close()
    reader.close()


def test_names(place: Place) -> None:
    disk, directory = place
    with pytest.raises(FileNotFoundError):
        disk.open(f"{directory}/a")
    with pytest.raises(FileNotFoundError):
        disk.unlink(f"{directory}/a")
    disk.create(f"{directory}/b").close()
    disk.create(f"{directory}/a").close()
    with pytest.raises(FileExistsError):
        disk.create(f"{directory}/a")
    disk.make_directory(f"{directory}/c")
    with pytest.raises(FileExistsError):
        disk.make_directory(f"{directory}/c")
    with pytest.raises(FileNotFoundError):
        disk.make_directory(f"{directory}/no/d")
    with pytest.raises(FileNotFoundError):
        disk.list(f"{directory}/no")
    assert disk.list(directory) == ["a", "b", "c"]
    assert disk.exists(f"{directory}/c")
    disk.rename(f"{directory}/a", f"{directory}/d")
    disk.unlink(f"{directory}/b")
    disk.sync_directory(directory)
    assert disk.list(directory) == ["c", "d"]
    assert not disk.exists(f"{directory}/a")
    assert disk.free_space(directory) > 0


def test_rename_replaces_and_an_open_file_stays(place: Place) -> None:
    disk, directory = place
    old = disk.create(f"{directory}/old")
    old.write(0, [pages_of(1)], sync=True)
    new = disk.create(f"{directory}/new")
    new.write(0, [pages_of(2)], sync=True)
    disk.rename(f"{directory}/new", f"{directory}/old")
    assert disk.list(directory) == ["old"]
    assert old.read(0, 1) == b"\1"
    found = disk.open(f"{directory}/old")
    assert found.read(0, 1) == b"\2"
    disk.unlink(f"{directory}/old")
    assert found.read(0, 1) == b"\2"
    for file in (old, new, found):
        file.close()


def test_remove_tree(place: Place) -> None:
    disk, directory = place
    disk.remove_tree(f"{directory}/t")
    disk.make_directory(f"{directory}/t")
    disk.make_directory(f"{directory}/t/u")
    disk.create(f"{directory}/t/u/a").close()
    disk.create(f"{directory}/t/b").close()
    disk.remove_tree(f"{directory}/t")
    assert disk.list(directory) == []


def test_direct_io_is_found_by_trying(tmp_path: Path) -> None:
    disk = FileDisk()
    try:
        fd = os.open(tmp_path / "probe", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    except OSError:
        assert not disk.direct(str(tmp_path))
        return
    os.close(fd)
    assert disk.direct(str(tmp_path))
    assert not FileDisk(allow_direct=False).direct(str(tmp_path))
    assert os.listdir(tmp_path) == ["probe"]


# --- errors ------------------------------------------------------------------------------------------------


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """No file may grow beyond 1 MiB: what a quota does, without root."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    assert signal.getsignal(signal.SIGXFSZ) == signal.SIG_IGN, "Python ignores it, so that calls fail with EFBIG"
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 * MIB, hard))
    try:
        yield tmp_path
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("allow_direct", [True, False])
def test_rule_11_no_space_refuses_and_changes_nothing(full_disk: Path, allow_direct: bool) -> None:
    file = FileDisk(allow_direct=allow_direct).create(str(full_disk / "a"))
    file.allocate(0, 64 * PAGE_SIZE)
    file.write(0, [pages_of(1)], sync=True)
    with pytest.raises(NoSpace, match="cannot allocate"):
        file.allocate(0, 2 * MIB)
    assert not file.failed
    assert file.size() == 64 * PAGE_SIZE
    file.write(PAGE_SIZE, [pages_of(2)], sync=True)
    assert file.read(PAGE_SIZE - 1, 2) == b"\1\2"
    file.close()


@pytest.mark.parametrize("allow_direct", [True, False])
def test_rule_11_a_failed_write_is_final(full_disk: Path, allow_direct: bool) -> None:
    file = FileDisk(allow_direct=allow_direct).create(str(full_disk / "a"))
    file.write(0, [pages_of(1)], sync=True)
    with pytest.raises(DiskFailed, match="cannot write") as caught:
        file.write(1 * MIB - PAGE_SIZE, [pages_of(2, 3)], sync=True)
    assert errno_of(caught.value) == errno.EFBIG
    assert file.failed
    calls: list[Callable[[], None]] = [
        lambda: file.write(0, [pages_of(1)], sync=False),
        lambda: file.allocate(0, PAGE_SIZE),
        file.sync,
    ]
    for call in calls:
        with pytest.raises(DiskFailed, match="earlier"):
            call()
    assert file.read(0, 1) == b"\1"
    assert file.read_uncached(0, 1) == b"\1"
    file.close()


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_rule_11_a_full_file_system_refuses_and_changes_nothing(tmp_path: Path) -> None:
    mounted = tmp_path / "small"
    mounted.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mounted)], check=False).returncode:
        pytest.skip("this root may not mount")
    try:
        disk = FileDisk()
        file = disk.create(str(mounted / "a"))
        file.allocate(0, 64 * PAGE_SIZE)
        with pytest.raises(NoSpace) as caught:
            file.allocate(64 * PAGE_SIZE, 4 * MIB)
        assert errno_of(caught.value) == errno.ENOSPC
        assert file.size() == 64 * PAGE_SIZE
        assert not file.failed
        file.write(0, [pages_of(1)], sync=True)
        file.close()
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


def test_errors_name_file_and_reason(tmp_path: Path) -> None:
    disk = FileDisk()
    disk.create(str(tmp_path / "a")).close()
    with pytest.raises(DiskFailed, match=r"a/b: cannot make the directory: Not a directory"):
        disk.make_directory(str(tmp_path / "a" / "b"))
    assert errno_of(DiskFailed("no cause")) == errno.EIO
