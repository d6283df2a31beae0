"""Crash points within the disk's work, for tests with real processes: a real disk that passes them by.

Only where crash points are armed: otherwise the worker has the plain disk, and this costs nothing.
"""

from __future__ import annotations

from shmbroker import crash_points
from shmbroker.formats.segment import LOG_SUFFIX
from shmbroker.storage.disk import Disk, FileDisk, RealFile


class CrashPointDisk(FileDisk):
    """FileDisk, with ``during-roll`` after a segment file was made and ``during-purge`` before old files go."""

    def create(self, path: str, *, direct: bool = True) -> RealFile:
        file = super().create(path, direct=direct)
        if path.endswith(LOG_SUFFIX):
            crash_points.reach(crash_points.DURING_ROLL)
        return file

    def remove_tree(self, path: str) -> None:
        crash_points.reach(crash_points.DURING_PURGE)
        super().remove_tree(path)


def disk_for(disk: FileDisk) -> Disk:
    """``disk``, or one that passes the crash points."""
    return CrashPointDisk() if crash_points.ARMED else disk
