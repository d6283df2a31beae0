"""The log of one partition, as the worker that owns it holds it. (Interface first; the body follows in minutes.)

Written by its worker alone, from one thread. The helper threads of the executor only allocate and renew reservations.

The shape of a pass::

    for every request:  status, value, argument = log.append(record, now_us)
    for every touched log:  log.publish()                       # committed, and visible where the topic is replicated
    for every log with log.options.persisted and log.dirty, or log.flush_due():
        calls = log.prepare_flush(sync=log.options.persisted)   # run all calls of all logs, concurrently if several
        log.finish_flush(error or None)                         # one error of any of its calls poisons the log
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from shmbroker.formats.control import State
from shmbroker.storage.disk import Disk
from shmbroker.storage.offsets import OffsetStore
from shmbroker.storage.runtime import Runtime


@dataclass(frozen=True)
class LogOptions:
    """What the topic's options mean to one partition. Sizes in bytes, times in microseconds."""

    persisted: bool = False
    offsets_persisted: bool = False
    messages_required_to_save: int = 1024
    size_required_to_save: int = 1 << 20
    segment_size: int = 1 << 30
    message_expiry_us: int = 0
    size_max: int = 0
    preallocate: bool = False


class JournalBudget:
    """The memory for rings that one worker may use. Lives in journal.py."""

    def __init__(self, limit: int) -> None: ...
    def take(self, size: int) -> bool: ...
    def give_back(self, size: int) -> None: ...


class PartitionLog:
    log_id: int
    partition_id: int
    incarnation: bytes
    options: LogOptions
    offsets: OffsetStore
    control: memoryview
    state: State
    dirty: bool
    """Whether something is committed that was not written to the segment yet: what a persisted topic must flush."""
    visible_moved: bool
    """The visible position moved since somebody reset this: who rings readers resets it."""
    committed_offset: int
    """The offset that the next message gets."""

    @staticmethod
    def create(disk: Disk, directory: str, log_id: int, partition_id: int) -> None:
        """Makes the directory and superblock of a new partition, durable up to the parent of ``directory``."""

    @classmethod
    def open(
        cls, disk: Disk, runtime: Runtime, budget: JournalBudget, directory: str, log_id: int, partition_id: int,
        options: LogOptions, *, instance: int, now_us: int, executor: Executor,
    ) -> PartitionLog: # fmt: skip
        """Recovers and opens. Raises Corrupt (refused; the control block says so) or DiskFailed."""

    def append(self, record: memoryview, now_us: int) -> tuple[int, int, int]:
        """(status, value, argument) of the completion. ``record`` is exactly one record, in memory that may change."""

    def publish(self) -> None: ...
    def flush_due(self) -> str | None:
        """"count" or "size" where a trigger has fired, else None."""

    def prepare_flush(self, *, sync: bool, reason: str = "request") -> list[Callable[[], None]]: ...
    def finish_flush(self, error: BaseException | None) -> None: ...
    def flush(self, *, sync: bool, reason: str = "request") -> int:
        """The three in sequence; the status: 0 or PARTITION_POISONED. reason: count, size, roll, pressure, request."""

    def maintain(self, now_us: int) -> None: ...
    def purge(self, now_us: int) -> int:
        """Everything goes, offsets begin at 0 again; 0 or a status. Consumer offsets go too: ``offsets`` is a new object."""

    def delete_segments(self, count: int) -> int:
        """Deletes up to ``count`` of the oldest sealed segments; how many went."""

    def update_options(self, options: LogOptions) -> None: ...
    def close(self, now_us: int) -> None:
        """The clean stop: everything durable, the end recorded. Raises DiskFailed where that is not so."""

    def abandon(self) -> None:
        """Closes files without writing anything: for a poisoned log, and for tests that play a crash."""

    def remove(self) -> None:
        """Deletes the partition: control block says DELETED, ring, files and directory go."""

    def describe(self) -> dict[str, object]:
        """state, reason, error, first_offset, committed_offset, durable_offset, visible_offset, committed_position,
        durable_position, file_position, segment_count, size, ring_size, direct_io, durability, incarnation."""
