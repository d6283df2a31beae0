"""The superblock of a partition on disk: the few facts that must survive whatever happens to its log.

Owns ``superblock`` in the partition's directory; written by the worker that owns the partition, on any of its threads,
one at a time. A change is one synchronous page write of the next sequence number into the slot that does not hold the
current one, so a crash leaves the old facts or the new ones (rule 3).

Opening writes the slot that won once more: after the death of a process it may be in the page cache only, and what is
issued on the strength of it (offsets up to the reservation) must not outlive it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from shmbroker.errors import Corrupt, NoSpace
from shmbroker.formats.superblock import (
    FILE_NAME,
    SUPERBLOCK_MAGIC,
    SUPERBLOCK_SIZE,
    Superblock,
    newest,
    pack_slot,
    slot_position,
)
from shmbroker.limits import PAGE_SIZE
from shmbroker.storage.disk import aligned_buffer

if TYPE_CHECKING:
    from shmbroker.storage.disk import Disk, DiskFile

REMEDY = "Restore the partition's directory from a copy, or delete the topic"


class SuperblockFile:
    """An open superblock. ``current`` is what is on stable storage."""

    def __init__(self, file: DiskFile, current: Superblock) -> None:
        self.path = file.path
        self.current = current
        self._file = file
        self._page = aligned_buffer(PAGE_SIZE)
        self._lock = threading.Lock()

    @classmethod
    def create(
        cls, disk: Disk, directory: str, log_id: int, partition_id: int, incarnation: bytes, *, reserved_offset: int = 0
    ) -> SuperblockFile:
        """A new one, durable with its name in ``directory`` (not the directory's own). Raises FileExistsError, NoSpace,
        DiskFailed."""
        first = Superblock(
            magic=SUPERBLOCK_MAGIC, sequence=1, log_id=log_id, partition_id=partition_id, incarnation=incarnation,
            reserved_offset=reserved_offset, durable_position=0, durable_offset=0, clean=0, end_position=0,
            end_offset=0, poison=0, broker_instance=0, repair_epoch=0,
        )  # fmt: skip
        file = disk.create(f"{directory}/{FILE_NAME}")
        try:
            file.allocate(0, SUPERBLOCK_SIZE)
            # Both pages, so that later writes have no metadata to bring along.
            file.write(0, [aligned_buffer(SUPERBLOCK_SIZE)], sync=True)
            superblock = cls(file, first)
            superblock._put(first)
            disk.sync_directory(directory)
        except NoSpace:
            file.close()
            disk.unlink(file.path)
            raise
        except BaseException:
            file.close()
            raise
        return superblock

    @classmethod
    def open(cls, disk: Disk, directory: str, log_id: int) -> SuperblockFile:
        """The one that is there. Raises Corrupt where it is missing, where both slots are damaged (the reservation is
        never guessed) or where it belongs to another log; DiskFailed."""
        path = f"{directory}/{FILE_NAME}"
        try:
            file = disk.open(path)
        except FileNotFoundError:
            raise Corrupt(path, 0, "the superblock is missing", REMEDY) from None
        try:
            current = newest(file.read_uncached(0, SUPERBLOCK_SIZE))
            if current is None:
                raise Corrupt(path, 0, "both slots of the superblock are damaged", REMEDY)
            if current.log_id != log_id:
                raise Corrupt(path, 0, f"the superblock belongs to log {current.log_id}, not {log_id}", REMEDY)
            superblock = cls(file, current)
            superblock._put(current)
        except BaseException:
            file.close()
            raise
        return superblock

    def write(self, **changes: int | bytes) -> Superblock:
        """Makes the changed fields durable and returns the new superblock. Thread-safe. Raises DiskFailed: what counts
        then is decided at the next start, and this object takes no more."""
        with self._lock:
            changed = self.current._replace(sequence=self.current.sequence + 1, **changes)  # type: ignore[arg-type]
            assert changed.log_id == self.current.log_id
            if changed.incarnation == self.current.incarnation:
                assert changed.reserved_offset >= self.current.reserved_offset
            self._put(changed)
            self.current = changed
            return changed

    def close(self) -> None:
        self._file.close()

    def _put(self, superblock: Superblock) -> None:
        self._page[:] = pack_slot(superblock)
        self._file.write(slot_position(superblock.sequence), [self._page], sync=True)
