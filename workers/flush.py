"""Group commit: the writes of several files, at once.

A flush target is a log or an offset store; one that has nothing to write drops out. All are prepared first, their
system calls run concurrently (they release the interpreter), and each target is told how its own calls ended: one that
failed poisons it alone. The first call runs on the loop's own thread, so that the usual group, one file, costs no
hand-over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from typing import Protocol, TypeVar

from shmbroker import crash_points
from shmbroker.errors import DiskFailed, NoSpace
from shmbroker.storage.partition_log import PartitionLog


class FlushTarget(Protocol):
    """PartitionLog and OffsetStore."""

    def prepare_flush(self, *, sync: bool) -> list[Callable[[], None]]: ...
    def finish_flush(self, error: BaseException | None) -> None: ...


Target = TypeVar("Target", bound=FlushTarget)


def flush_together(targets: Iterable[Target], executor: Executor, *, sync: bool) -> dict[Target, BaseException]:
    """Writes all targets, synchronously or not. Those that failed, with their errors; they know it already."""
    if crash_points.ARMED and sync:
        crash_points.reach(crash_points.BEFORE_GROUP_WRITE)
    calls: list[tuple[Target, Callable[[], None]]] = []
    prepared: list[Target] = []
    for target in targets:
        wanted = target.prepare_flush(sync=sync)
        if wanted:
            prepared.append(target)
            calls += [(target, call) for call in wanted]
    failed = _run(calls, executor) if calls else {}
    if crash_points.ARMED and sync:
        crash_points.reach(crash_points.AFTER_GROUP_WRITE)
    for target in prepared:
        target.finish_flush(failed.get(target))
    return failed


def poison_with(log: PartitionLog, error: BaseException | None) -> None:
    """Rule 11, for a log whose offset store met a disk that failed. One that found no space only refused."""
    if isinstance(error, DiskFailed):
        log.poison(error)


def _run(calls: list[tuple[Target, Callable[[], None]]], executor: Executor) -> dict[Target, BaseException]:
    """Runs every call to its end, whatever the others do."""
    others: list[tuple[Target, Future[None]]] = [(target, executor.submit(call)) for target, call in calls[1:]]
    failed: dict[Target, BaseException] = {}
    target, call = calls[0]
    try:
        call()
    except (DiskFailed, NoSpace) as error:
        failed[target] = error
    for target, future in others:
        failure = future.exception()
        if failure is not None:
            failed.setdefault(target, failure)
    return failed
