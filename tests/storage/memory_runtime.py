"""Shared memory of a machine that the tests can kill: survives a process crash, dies with the power.

Views are anonymous mappings, page-aligned like the real ones. A ``copy`` is what a process crash leaves, to be used as
often as there are images of the disk; ``after_power_failure`` is an empty one of another boot.
"""

from __future__ import annotations

import mmap

from shmbroker.errors import NoSpace
from shmbroker.formats.control import CONTROL_SIZE
from shmbroker.limits import PAGE_SIZE

FREE_SPACE_DEFAULT = 1 << 32


class MemoryRuntime:
    """The Runtime protocol. ``free_bytes`` is what may still be allocated."""

    def __init__(self, *, boot: int = 1, free_bytes: int = FREE_SPACE_DEFAULT) -> None:
        self.boot_id = boot.to_bytes(16, "little")
        self.free_bytes = free_bytes
        self.boot = boot
        self.controls: dict[tuple[int, bytes], mmap.mmap] = {}
        self.rings: dict[tuple[int, bytes, int], mmap.mmap] = {}

    def create_control(self, log_id: int, incarnation: bytes) -> memoryview:
        key = (log_id, incarnation)
        if key not in self.controls:
            self.controls[key] = self._allocate(CONTROL_SIZE)
        return memoryview(self.controls[key]).cast("Q")

    def open_control(self, log_id: int, incarnation: bytes) -> memoryview | None:
        mapping = self.controls.get((log_id, incarnation))
        return None if mapping is None else memoryview(mapping).cast("Q")

    def create_ring(self, log_id: int, incarnation: bytes, generation: int, size: int) -> memoryview:
        mapping = self._allocate(PAGE_SIZE + size)
        self.remove_ring(log_id, incarnation, generation)
        self.rings[log_id, incarnation, generation] = mapping
        return memoryview(mapping)

    def open_ring(self, log_id: int, incarnation: bytes, generation: int) -> memoryview | None:
        mapping = self.rings.get((log_id, incarnation, generation))
        return None if mapping is None else memoryview(mapping)

    def remove_ring(self, log_id: int, incarnation: bytes, generation: int) -> None:
        self._free(self.rings.pop((log_id, incarnation, generation), None))

    def remove_control(self, log_id: int, incarnation: bytes) -> None:
        self._free(self.controls.pop((log_id, incarnation), None))

    def list_rings(self, log_id: int, incarnation: bytes) -> list[int]:
        return sorted(generation for log, name, generation in self.rings if (log, name) == (log_id, incarnation))

    def list_logs(self, log_id: int | None = None) -> list[tuple[int, bytes]]:
        found = {*self.controls, *((owner, incarnation) for owner, incarnation, _ in self.rings)}
        return sorted(each for each in found if log_id is None or each[0] == log_id)

    def free_space(self) -> int:
        return self.free_bytes

    def copy(self) -> MemoryRuntime:
        """The same contents in other memory. Pages of zeros are not copied, so large empty rings cost nothing."""
        other = MemoryRuntime(boot=self.boot, free_bytes=self.free_bytes)
        other.controls = {key: _copied(mapping) for key, mapping in self.controls.items()}
        other.rings = {key: _copied(mapping) for key, mapping in self.rings.items()}
        return other

    def after_power_failure(self) -> MemoryRuntime:
        return MemoryRuntime(boot=self.boot + 1)

    def _allocate(self, size: int) -> mmap.mmap:
        if size > self.free_bytes:
            raise NoSpace(f"cannot allocate {size} bytes of shared memory")
        self.free_bytes -= size
        return mmap.mmap(-1, size)

    def _free(self, mapping: mmap.mmap | None) -> None:
        if mapping is not None:
            self.free_bytes += len(mapping)


def _copied(mapping: mmap.mmap) -> mmap.mmap:
    other = mmap.mmap(-1, len(mapping))
    zeros = bytes(PAGE_SIZE)
    with memoryview(mapping) as source, memoryview(other) as target:
        for start in range(0, len(source), PAGE_SIZE):
            page = bytes(source[start : start + PAGE_SIZE])
            if page != zeros:
                target[start : start + PAGE_SIZE] = page
    return other
