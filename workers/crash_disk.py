"""Crashes and failures within the disk's work, for tests with real processes: a real disk that passes the points.

Only where something is armed by the environment (:mod:`shmbroker.crash_points` says how); otherwise the worker has the
plain disk, and this costs nothing.

A call that is made to fail has done what it would have done on a device that fails late: a ``sync`` has written its
bytes, so that they are in the files as every other process sees them, and was refused only the barrier. A ``write`` or
an ``allocate`` has done nothing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence

from shmbroker import crash_points
from shmbroker.crash_points import Fault, parse_faults
from shmbroker.errors import DiskFailed, NoSpace
from shmbroker.formats.segment import LOG_SUFFIX
from shmbroker.storage.disk import NO_SPACE_ERRORS, Disk, FileDisk, RealFile


class FaultyFile(RealFile):
    """A file on a device that is wearing out, or full. ``faults`` are those of its disk."""

    def __init__(self, path: str, fd: int, direct: bool) -> None:
        super().__init__(path, fd, direct)
        self.faults = CrashPointDisk.faults

    def allocate(self, position: int, length: int) -> None:
        number = self.faults.strike("allocate", self.path)
        if number in NO_SPACE_ERRORS:
            raise NoSpace(f"{self.path}: cannot allocate {length} bytes: {os.strerror(number)}") from OSError(number)
        if number:
            raise self._failure("allocate", OSError(number, os.strerror(number)))
        super().allocate(position, length)

    def write(self, position: int, buffers: Sequence[memoryview], *, sync: bool) -> None:
        if number := self.faults.strike("write", self.path):
            raise self._refused("write", number)
        if sync and (number := self.faults.strike("sync", self.path)):
            super().write(position, buffers, sync=False)
            raise self._refused("write", number)
        super().write(position, buffers, sync=sync)

    def sync(self) -> None:
        if number := self.faults.strike("sync", self.path):
            raise self._refused("synchronise", number)
        super().sync()

    def _refused(self, action: str, number: int) -> DiskFailed:
        error = OSError(number, os.strerror(number))
        failure = self._failure(action, error)
        failure.__cause__ = error
        return failure


class ArmedFaults:
    """The faults of this process, and how many calls each has counted. Thread-safe."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self._counts = dict.fromkeys(faults, 0)
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._counts)

    def strike(self, operation: str, path: str) -> int:
        """The errno with which this call fails, or 0."""
        with self._lock:
            for fault in self._counts:
                if fault.concerns(operation, path):
                    self._counts[fault] += 1
                    if os.path.exists(fault.switch) if fault.switch else self._counts[fault] >= fault.first:
                        return fault.number
        return 0


class CrashPointDisk(FileDisk):
    """FileDisk with faults, with ``during-roll`` after a segment file was made and ``during-purge`` before old files
    go."""

    FILE_KIND = FaultyFile
    faults = ArmedFaults(parse_faults(os.environ.get(crash_points.FAULT_VARIABLE, "")))

    def create(self, path: str, *, direct: bool = True) -> RealFile:
        file = super().create(path, direct=direct)
        if path.endswith(LOG_SUFFIX):
            crash_points.reach(crash_points.DURING_ROLL)
        return file

    def sync_directory(self, directory: str) -> None:
        if number := self.faults.strike("sync-directory", directory):
            raise DiskFailed(f"{directory}: cannot synchronise the directory: {os.strerror(number)}") from OSError(
                number, os.strerror(number)
            )
        super().sync_directory(directory)

    def remove_tree(self, path: str) -> None:
        crash_points.reach(crash_points.DURING_PURGE)
        super().remove_tree(path)


def disk_for(disk: FileDisk) -> Disk:
    """``disk``, or one that passes the points that are armed."""
    return CrashPointDisk() if crash_points.ARMED or CrashPointDisk.faults else disk
