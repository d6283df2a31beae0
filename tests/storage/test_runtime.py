"""One contract for the runtime directory and for the memory that stands for it in crash tests."""

from __future__ import annotations

import mmap
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from shmbroker.errors import NoSpace
from shmbroker.limits import MIB, PAGE_SIZE
from shmbroker.storage.runtime import Runtime, RuntimeDirectory, control_name, parse_name, ring_name
from tests.storage.memory_runtime import MemoryRuntime

FIRST = bytes(range(16))
SECOND = bytes(range(1, 17))


@pytest.fixture
def directory() -> Iterator[str]:
    path = tempfile.mkdtemp(prefix="shmbroker-test-", dir="/dev/shm")
    try:
        yield path
    finally:
        shutil.rmtree(path)


@pytest.fixture(params=["directory", "memory"])
def runtime(request: pytest.FixtureRequest, directory: str) -> Runtime:
    return RuntimeDirectory(directory) if request.param == "directory" else MemoryRuntime()


def address_of(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)


def test_rule_14_a_control_block_is_made_once_for_each_incarnation(runtime: Runtime) -> None:
    assert runtime.open_control(7, FIRST) is None
    control = runtime.create_control(7, FIRST)
    assert (len(control), control.format, control.itemsize) == (512, "Q", 8)
    assert not any(control)
    control[18] = 2**64 - 1
    again = runtime.create_control(7, FIRST)
    assert again[18] == 2**64 - 1, "a respawned worker finds what was there"
    again[19] = 5
    opened = runtime.open_control(7, FIRST)
    assert opened is not None
    assert control[19] == opened[19] == 5, "one inode"
    assert runtime.create_control(7, SECOND)[18] == 0
    runtime.remove_control(7, FIRST)
    runtime.remove_control(7, FIRST)
    assert control[18] == 2**64 - 1, "a mapping outlives its name"
    assert runtime.open_control(7, FIRST) is None
    assert runtime.create_control(7, FIRST)[18] == 0


def test_rings(runtime: Runtime) -> None:
    assert runtime.open_ring(7, FIRST, 1) is None
    ring = runtime.create_ring(7, FIRST, 1, 1 * MIB)
    assert len(ring) == PAGE_SIZE + MIB
    assert address_of(ring) % PAGE_SIZE == 0
    assert bytes(ring) == bytes(len(ring))
    ring[PAGE_SIZE : PAGE_SIZE + 3] = b"abc"
    runtime.create_ring(7, FIRST, 12, 2 * MIB)
    runtime.create_ring(7, SECOND, 3, 1 * MIB)
    opened = runtime.open_ring(7, FIRST, 1)
    assert opened is not None
    assert bytes(opened[PAGE_SIZE : PAGE_SIZE + 3]) == b"abc"
    assert runtime.list_rings(7, FIRST) == [1, 12]
    assert runtime.list_rings(7, SECOND) == [3]
    assert runtime.list_rings(8, FIRST) == []
    runtime.remove_ring(7, FIRST, 1)
    runtime.remove_ring(7, FIRST, 1)
    assert runtime.list_rings(7, FIRST) == [12]
    assert bytes(ring[PAGE_SIZE : PAGE_SIZE + 3]) == b"abc"


def test_a_ring_of_the_same_generation_is_replaced_by_a_clean_one(runtime: Runtime) -> None:
    old = runtime.create_ring(7, FIRST, 1, 1 * MIB)
    old[5000] = 9
    new = runtime.create_ring(7, FIRST, 1, 1 * MIB)
    assert (old[5000], new[5000]) == (9, 0)


def test_logs_are_listed(runtime: Runtime) -> None:
    assert runtime.list_logs() == []
    runtime.create_control(2, SECOND)
    runtime.create_control(2, FIRST)
    runtime.create_ring(2, FIRST, 1, 1 * MIB)
    runtime.create_ring(10, FIRST, 1, 1 * MIB)
    assert runtime.list_logs() == [(2, FIRST), (2, SECOND), (10, FIRST)]
    assert runtime.list_logs(2) == [(2, FIRST), (2, SECOND)]
    assert runtime.list_logs(1) == []
    assert runtime.free_space() > 0
    assert len(runtime.boot_id) == 16


def test_names() -> None:
    assert control_name(3, FIRST) == "3-000102030405060708090a0b0c0d0e0f.control"
    assert ring_name(3, FIRST, 12) == "3-000102030405060708090a0b0c0d0e0f.ring-12"
    assert parse_name(control_name(3, FIRST)) == (3, FIRST, None)
    assert parse_name(ring_name(3, FIRST, 12)) == (3, FIRST, 12)
    good = ring_name(3, FIRST, 12)
    for name in ("", "3", good + ".new", good[:-2], "x" + good, good.replace("0102", "01zz"), "3-00.control", "3-"):
        assert parse_name(name) is None, name


def test_another_process_sees_the_same_words(directory: str) -> None:
    control = RuntimeDirectory(directory).create_control(7, FIRST)
    control[20] = 77
    code = (
        "import sys; from shmbroker.storage.runtime import RuntimeDirectory\n"
        "control = RuntimeDirectory(sys.argv[1]).create_control(7, bytes(range(16)))\n"
        "control[21] = control[20] + 1"
    )
    subprocess.run([sys.executable, "-c", code, directory], check=True, timeout=60)
    assert control[21] == 78


def test_rule_10_a_file_is_allocated_to_its_last_byte_and_private(directory: str) -> None:
    runtime = RuntimeDirectory(directory)
    runtime.create_ring(7, FIRST, 1, 1 * MIB)
    status = os.stat(Path(runtime.directory, ring_name(7, FIRST, 1)))
    assert status.st_blocks * 512 >= status.st_size == PAGE_SIZE + MIB
    assert status.st_mode & 0o077 == 0
    assert os.stat(runtime.directory).st_mode & 0o077 == 0


def test_rule_11_no_space_leaves_nothing(directory: str) -> None:
    runtime = RuntimeDirectory(directory)
    kept = runtime.create_ring(7, FIRST, 1, 1 * MIB)
    kept[0] = 5
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * MIB, hard))
    try:
        for generation in (1, 2):
            with pytest.raises(NoSpace, match="shared memory"):
                runtime.create_ring(7, FIRST, generation, 4 * MIB)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(runtime.directory) == [ring_name(7, FIRST, 1)]
    opened = runtime.open_ring(7, FIRST, 1)
    assert opened is not None
    assert opened[0] == 5
    with pytest.raises(NoSpace):
        MemoryRuntime(free_bytes=MIB).create_ring(7, FIRST, 1, 1 * MIB)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_rule_11_a_full_memory_file_system_is_an_error_and_no_signal(tmp_path: Path) -> None:
    mounted = tmp_path / "small"
    mounted.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(mounted)], check=False).returncode:
        pytest.skip("this root may not mount")
    try:
        runtime = RuntimeDirectory(str(mounted))
        ring = runtime.create_ring(7, FIRST, 1, 1 * MIB)
        with pytest.raises(NoSpace):
            runtime.create_ring(7, FIRST, 2, 4 * MIB)
        mapped = np.frombuffer(ring, np.uint8)
        mapped[:] = 1  # the whole ring takes stores although nothing is left for another
        assert runtime.list_rings(7, FIRST) == [1]
        del mapped, ring
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


def test_what_a_crash_left_half_made_is_no_obstacle(directory: str) -> None:
    runtime = RuntimeDirectory(directory)
    for name in (control_name(7, FIRST), ring_name(7, FIRST, 1)):
        Path(runtime.directory, name + ".new").write_bytes(b"rubbish")
    Path(runtime.directory, ring_name(7, FIRST, 2)).touch()
    assert runtime.list_rings(7, FIRST) == [2]
    assert runtime.open_ring(7, FIRST, 2) is None
    assert not any(runtime.create_control(7, FIRST))
    assert bytes(runtime.create_ring(7, FIRST, 1, 1 * MIB)[:7]) == bytes(7)


def test_a_copy_of_memory_is_a_process_crash_and_a_power_failure_leaves_none() -> None:
    memory = MemoryRuntime()
    ring = memory.create_ring(7, FIRST, 1, 1 * MIB)
    ring[70_000] = 3
    memory.create_control(7, FIRST)[4] = 9
    copy = memory.copy()
    ring[70_000] = 4
    copied = copy.open_ring(7, FIRST, 1)
    assert copied is not None
    assert copied[70_000] == 3
    assert copy.create_control(7, FIRST)[4] == 9
    assert copy.boot_id == memory.boot_id
    after = memory.after_power_failure()
    assert after.list_logs() == []
    assert after.boot_id != memory.boot_id
    assert mmap.PAGESIZE == PAGE_SIZE
