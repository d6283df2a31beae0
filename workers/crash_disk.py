"""Crashes and failures within the disk's work, for tests with real processes: a real disk that passes the points.

Only where they are armed by the environment; otherwise the worker has the plain disk, and this costs nothing.
``SHMBROKER_TEST_FAIL_WRITE="text:count"``: from the ``count``-th write on, writes to ``.log`` files whose path contains
``text`` fail with EIO, as a worn-out device would answer.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Final

from shmbroker import crash_points
from shmbroker.errors import DiskFailed
from shmbroker.formats.segment import LOG_SUFFIX
from shmbroker.storage.disk import Disk, FileDisk, RealFile

FAIL_VARIABLE: Final = "SHMBROKER_TEST_FAIL_WRITE"


class FailingFile(RealFile):
    """A segment file on a device that is wearing out."""

    def __init__(self, path: str, fd: int, direct: bool, writes_left: int) -> None:
        super().__init__(path, fd, direct)
        self._writes_left = writes_left

    def write(self, position: int, buffers: Sequence[memoryview], *, sync: bool) -> None:
        self._writes_left -= 1
        if self._writes_left < 0:
            self.failed = True
            raise DiskFailed(f"{self.path}: cannot write: {os.strerror(errno.EIO)}") from OSError(errno.EIO, "test")
        super().write(position, buffers, sync=sync)


class CrashPointDisk(FileDisk):
    """FileDisk, with ``during-roll`` after a segment file was made and ``during-purge`` before old files go."""

    def __init__(self, failing: str = "", writes_left: int = 0) -> None:
        super().__init__()
        self._failing = failing
        self._writes_left = writes_left

    def create(self, path: str, *, direct: bool = True) -> RealFile:
        file = super().create(path, direct=direct)
        if not path.endswith(LOG_SUFFIX):
            return file
        crash_points.reach(crash_points.DURING_ROLL)
        if self._failing and self._failing in path:
            file.close()
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            return FailingFile(path, fd, direct and self.direct(os.path.dirname(path)), self._writes_left)
        return file

    def remove_tree(self, path: str) -> None:
        crash_points.reach(crash_points.DURING_PURGE)
        super().remove_tree(path)


def disk_for(disk: FileDisk) -> Disk:
    """``disk``, or one that passes the points that are armed."""
    failing, _, count = os.environ.get(FAIL_VARIABLE, "").rpartition(":")
    if crash_points.ARMED or failing:
        return CrashPointDisk(failing, int(count or "0"))
    return disk
