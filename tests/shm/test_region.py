"""Regions: allocated, sealed, gone with their last holder; attaching trusts nothing."""

from __future__ import annotations

import ctypes
import fcntl
import os
from collections.abc import Callable

import pytest

from shmbroker.errors import LaneBroken
from shmbroker.shm.region import Region

FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE = 1, 2


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_both_ends_see_the_same_bytes() -> None:
    created = Region.create(8_192)
    attached = Region.attach(os.dup(created.fd))
    created.view[5_000:5_003] = b"abc"
    assert bytes(attached.view[5_000:5_003]) == b"abc"
    attached.words[7] = 12
    assert created.words[7] == 12


def test_a_peer_cannot_cut_or_grow_a_region(peer: Callable[..., object]) -> None:
    region = Region.create(8_192)
    other = peer("cut", region.fd, fds=(region.fd,))
    assert [other.line() for _ in range(3)] == ["0: refused", "4096: refused", f"{1 << 30}: refused"]
    region.view[8_191] = 1
    assert os.fstat(region.fd).st_size == 8_192


def test_a_region_is_allocated_before_anybody_sees_it() -> None:
    region = Region.create(1 << 20)
    assert os.fstat(region.fd).st_blocks * 512 >= 1 << 20


def test_a_hole_punched_by_a_peer_reads_as_zeros() -> None:
    region = Region.create(8_192)
    region.view[:] = b"x" * 8_192
    fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)
    assert fallocate(region.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 8_192) == 0
    assert bytes(region.view) == bytes(8_192)
    region.view[0] = 1


@pytest.mark.parametrize("sealable", [False, True])
def test_attach_refuses_what_could_be_cut_or_is_no_memory_file(sealable: bool, tmp_path: object) -> None:
    before = open_descriptors()
    fd = os.memfd_create("loose", os.MFD_ALLOW_SEALING if sealable else 0)
    os.ftruncate(fd, 4_096)
    with pytest.raises(LaneBroken, match="seals"):
        Region.attach(fd)
    reading, writing = os.pipe()
    os.close(writing)
    with pytest.raises(LaneBroken, match="not a memory file"):
        Region.attach(reading)
    with pytest.raises(LaneBroken, match=r"seals|memory file"):
        Region.attach(os.open(f"{tmp_path}/file", os.O_RDWR | os.O_CREAT))
    assert open_descriptors() == before


@pytest.mark.parametrize("size", [0, 100, 4_097])
def test_attach_refuses_a_size_that_is_no_whole_number_of_pages(size: int) -> None:
    fd = os.memfd_create("odd", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    with pytest.raises(LaneBroken, match="whole number of pages"):
        Region.attach(fd)


def test_closing_gives_back_descriptors_and_never_pulls_memory_from_under_a_view() -> None:
    before = open_descriptors()
    region = Region.create(4_096)
    other = Region.attach(os.dup(region.fd))
    view = region.view[10:20]
    view[:] = b"0123456789"
    region.close()
    region.close()
    assert bytes(view) == b"0123456789"
    del view
    other.close()
    assert open_descriptors() == before


def test_regions_have_no_name() -> None:
    region = Region.create(4_096, "shmbroker-nameless")
    assert not [name for name in os.listdir("/dev/shm") if "nameless" in name]
    assert os.readlink(f"/proc/self/fd/{region.fd}") == "/memfd:shmbroker-nameless (deleted)"
