"""Writing behind: a helper writes what a trigger made due while the worker goes on appending."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from shmbroker.errors import ErrorCode
from shmbroker.formats import control as words
from shmbroker.formats.control import State
from shmbroker.formats.index import IndexEntry, unpack_entries
from shmbroker.limits import PAGE_SIZE
from shmbroker.storage.index import IndexFile
from shmbroker.storage.partition_log import PartitionLog
from tests.storage.log_world import MIB, append, make_disk, new_world, open_log, read_files, record_of
from tests.storage.memory_runtime import MemoryRuntime

SEED = 20_261


class _LateFuture(Future[Any]):
    """Runs when somebody waits for it: the latest moment at which a helper may get to it."""

    def __init__(self, run: Callable[[], Any]) -> None:
        super().__init__()
        self._run: Callable[[], Any] | None = run

    def go(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            try:
                self.set_result(run())
            except Exception as error:
                self.set_exception(error)

    def result(self, timeout: float | None = None) -> Any:
        self.go()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self.go()
        return super().exception(timeout)


class LateExecutor(Executor):
    """Does nothing before it has to, or before :meth:`go`."""

    def __init__(self) -> None:
        self.futures: list[_LateFuture] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.futures.append(_LateFuture(lambda: fn(*args, **kwargs)))
        return self.futures[-1]

    def go(self) -> None:
        for future in self.futures:
            future.go()


def _silent() -> None:
    """Nobody to tell."""


def _numbers(disk: Any) -> list[bytes]:
    return [payload for _, payload in read_files(disk)]


def _begun(**options: Any) -> tuple[Any, PartitionLog, LateExecutor]:
    """A log with three messages that a helper is about to write, and two more appended meanwhile."""
    executor = LateExecutor()
    disk, _, log = new_world(executor=executor, messages_required_to_save=3, **options)
    append(log, [b"0", b"1", b"2"])
    log.publish()
    log.write_behind("count", _silent)
    append(log, [b"3"])
    append(log, [b"4"])
    log.publish()
    return disk, log, executor


def test_appends_go_on_and_are_not_in_what_is_written() -> None:
    told: list[int] = []
    executor = LateExecutor()
    disk, _, log = new_world(executor=executor, messages_required_to_save=3)
    append(log, [b"0", b"1", b"2"])
    log.publish()
    end = log.control[words.WORD_COMMITTED_POSITION]
    log.write_behind("count", lambda: told.append(1))
    append(log, [b"3", b"4", b"5"])
    log.publish()
    assert log.flush_due() is None, "one at a time"
    assert not log.settle_written()
    assert log.control[words.WORD_FILE_POSITION] == 0
    assert told == []
    executor.go()
    assert told == [1]
    assert log.settle_written()
    assert log.control[words.WORD_FILE_POSITION] == end
    assert log.control[words.WORD_STABLE_POSITION] == end - end % PAGE_SIZE
    assert _numbers(disk) == [b"0", b"1", b"2"]
    assert log.flush_due() == "count"
    log.write_behind("count", _silent)
    executor.go()
    assert log.settle_written()
    assert _numbers(disk) == [b"%d" % number for number in range(6)]
    log.close(3_000_000)


def test_rule_10_the_ring_keeps_what_is_being_written() -> None:
    """Appends that need its room wait for the helper, and the bytes that it writes are those that were committed."""
    chance = random.Random(SEED)
    print(f"seed {SEED}")
    executor = LateExecutor()
    disk, _, log = new_world(executor=executor, segment_size=16 * MIB)
    sent: list[bytes] = []
    for _ in range(300):
        sent.append(chance.randbytes(chance.randrange(1, 60_000)))
        append(log, [sent[-1]])
        log.publish()
        reason = log.flush_due()
        if reason is not None:
            log.write_behind(reason, _silent)
        if chance.random() < 0.1:
            executor.go()
            log.settle_written()
    log.close(3_000_000)
    assert _numbers(disk) == sent


@pytest.mark.parametrize("way", ["flush", "close", "ring", "maintain", "roll"])
def test_whatever_writes_waits_for_it_and_goes_on_from_there(way: str) -> None:
    disk, log, executor = _begun(segment_size=MIB)
    if way == "flush":
        assert log.flush(sync=True, reason="request") == 0
    elif way == "ring":
        assert log.give_back_ring(3_000_000)
    elif way == "maintain":
        log.maintain(3_000_000)
        assert log.control[words.WORD_FILE_POSITION] == 0, "never waits on the tick"
        executor.go()
        log.maintain(4_000_000)
        assert log.control[words.WORD_FILE_POSITION] > 0
    elif way == "roll":
        for _ in range(12):
            append(log, [bytes(100_000)])
            log.publish()
    log.close(5_000_000)
    assert _numbers(disk)[:5] == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("way", ["purge", "remove", "abandon"])
def test_files_are_not_closed_under_it(way: str) -> None:
    disk, log, executor = _begun()
    if way == "purge":
        assert log.purge(3_000_000) == 0
        append(log, [b"new"])
        assert log.flush(sync=False, reason="request") == 0
        assert _numbers(disk) == [b"new"]
        log.close(4_000_000)
    elif way == "remove":
        log.remove()
    else:
        log.abandon()
        assert _numbers(disk) == [b"0", b"1", b"2"]
    executor.go()
    assert all(future.exception() is None for future in executor.futures)


def test_rule_11_its_failure_poisons_the_partition() -> None:
    disk, log, executor = _begun()
    disk.fail(len(disk.points) + 1, errno.EIO)
    executor.go()
    assert log.settle_written()
    assert log.state is State.POISONED
    assert log.control[words.WORD_FILE_POSITION] == 0
    assert log.append(memoryview(record_of([b"5"])), 3_000_000)[0] == ErrorCode.PARTITION_POISONED
    log.abandon()


def test_a_log_that_was_poisoned_meanwhile_believes_nothing_of_it() -> None:
    _, log, executor = _begun()
    log.poison(OSError("another file of it"))
    executor.go()
    assert log.settle_written()
    assert log.control[words.WORD_FILE_POSITION] == 0
    log.abandon()


def test_a_worker_that_is_killed_in_between_finds_everything_again() -> None:
    disk, runtime = make_disk(), MemoryRuntime()
    executor = LateExecutor()
    log = open_log(disk, runtime, executor=executor)
    append(log, [b"0", b"1"])
    log.publish()
    log.write_behind("count", _silent)
    append(log, [b"2"])
    log.publish()
    # Killed before the helper got to it: what was committed is in the ring.
    survivor = open_log(disk, runtime, instance=2)
    assert survivor.committed_offset == 3
    survivor.close(3_000_000)
    assert _numbers(disk) == [b"0", b"1", b"2"]


def test_an_index_page_does_not_change_while_it_is_written() -> None:
    """A file system that keeps checksums would find it damaged."""
    disk = make_disk()
    disk.make_directory("/i")
    index = IndexFile.create(disk, "/i/a", bytes(16), 0, 2 * PAGE_SIZE)
    index.add(IndexEntry(0, 1, 0))
    write, seen = index.file.write, []

    def write_slowly(position: int, buffers: list[memoryview], *, sync: bool) -> None:
        before = [bytes(buffer) for buffer in buffers]
        index.add(IndexEntry(9, 2, MIB))
        seen.append([bytes(buffer) for buffer in buffers] == before)
        write(position, buffers, sync=sync)

    index.file.write = write_slowly
    index.write(sync=False)
    assert seen == [True]
    assert index.dirty, "what came meanwhile is of the next writing"
    index.file.write = write
    index.write(sync=True)
    entries = list(unpack_entries(index.file.read(0, 2 * PAGE_SIZE), bytes(16)))
    assert [entry.offset for entry in entries] == [0, 9]
