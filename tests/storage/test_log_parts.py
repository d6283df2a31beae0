"""The smaller parts of the log by themselves: ring, budget, scan, allocation, retention."""

from __future__ import annotations

import dataclasses
import random
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import pytest

from shmbroker.errors import DiskFailed, NoSpace
from shmbroker.formats.batch import HEADER_SIZE, pack_filler, pack_header, unpack_header
from shmbroker.limits import ALLOCATION_STEP_MAX, ALLOCATION_STEP_MIN, INDEX_INTERVAL, PAGE_SIZE, RING_SIZE_MIN
from shmbroker.storage.allocation import StepAllocator
from shmbroker.storage.journal import JournalBudget, RingJournal
from shmbroker.storage.read_ahead import BLOCK_SIZE, ReadAhead
from shmbroker.storage.retention import deletable_count
from shmbroker.storage.scan import (
    CHUNK_SIZE,
    FAULT_DAMAGE,
    FAULT_END,
    FAULT_FOREIGN,
    FAULT_GAP,
    Scan,
    scan,
    search_residue,
)
from shmbroker.storage.segment import SegmentInfo
from tests.storage.log_world import MIB, InlineExecutor, record_of_size
from tests.storage.memory_runtime import MemoryRuntime
from tests.storage.simulated_disk import SimulatedDisk

SEED = 99
INCARNATION = bytes(range(16))


# --- ring -----------------------------------------------------------------------------------------------------------


def test_a_ring_gives_back_what_was_put_wherever_it_wraps() -> None:
    rng = random.Random(SEED)
    ring = RingJournal.create(MemoryRuntime(), 1, INCARNATION, 1, RING_SIZE_MIN, 0)
    position = 0
    for _ in range(300):
        contents = rng.randbytes(rng.randrange(1, 60_000))
        ring.put(position, contents)
        assert ring.get(position, len(contents)) == contents, f"seed {SEED}, position {position}"
        end = ring.zero_to_page(position + len(contents))
        assert end % PAGE_SIZE == 0
        assert not any(ring.get(position + len(contents), end - position - len(contents)))
        assert b"".join(ring.pieces(position, position + len(contents))) == contents
        position += len(contents)


def test_a_ring_is_found_again_by_its_name_only_if_it_is_whole() -> None:
    runtime = MemoryRuntime()
    ring = RingJournal.create(runtime, 1, INCARNATION, 4, RING_SIZE_MIN, 8 * PAGE_SIZE)
    ring.put(8 * PAGE_SIZE, b"content")
    again = RingJournal.adopt(runtime, 1, INCARNATION, 4)
    assert again is not None
    assert (again.base, again.size, again.get(8 * PAGE_SIZE, 7)) == (8 * PAGE_SIZE, RING_SIZE_MIN, b"content")
    assert RingJournal.adopt(runtime, 1, INCARNATION, 5) is None
    runtime.rings[1, INCARNATION, 4][8] ^= 1
    assert RingJournal.adopt(runtime, 1, INCARNATION, 4) is None


class Holder:
    def __init__(self, budget: JournalBudget, size: int, *, willing: bool = True) -> None:
        self.budget, self.size, self.willing, self.asked = budget, size, willing, 0

    def give_back_ring(self, now_us: int) -> bool:
        self.asked += 1
        if self.willing:
            self.budget.give_back(self.size, self)
        return self.willing


def test_the_budget_asks_the_oldest_holders_first_and_never_the_one_who_asks() -> None:
    budget = JournalBudget(100)
    stubborn, old, young = Holder(budget, 40, willing=False), Holder(budget, 30), Holder(budget, 30)
    for holder in (stubborn, old, young):
        assert budget.take(holder.size, holder)
    assert budget.take(20, young)
    assert (stubborn.asked, old.asked, young.asked) == (1, 1, 0)
    assert budget.used == 90
    assert not budget.take(101)
    assert not budget.take(100, young)
    assert budget.used <= 100


# --- scan -----------------------------------------------------------------------------------------------------------


def stamped(record: bytes, offset: int, position: int, durable: int = 0) -> bytes:
    header = unpack_header(record)._replace(
        base_offset=offset, base_timestamp=5, log_position=position, durable_position=durable,
        incarnation=INCARNATION, partition_id=3,
    )  # fmt: skip
    return pack_header(header) + record[HEADER_SIZE:]


def log_of(sizes: list[int]) -> tuple[bytes, list[int]]:
    """A log of records of these sizes, a filler after it, zeros behind; and where each begins."""
    log, places = bytearray(), []
    for number, size in enumerate(sizes):
        places.append(len(log))
        log += stamped(record_of_size(size, number % 251 + 1), number, len(log))
    if len(log) % PAGE_SIZE:
        log += pack_filler(3, len(sizes), 5, len(log), 0, INCARNATION)
    return bytes(log) + bytes(4 * PAGE_SIZE), places


def scanned(log: bytes) -> Scan:
    return scan(lambda position, size: log[position : position + size], Scan(0, 0, INCARNATION, 3), len(log))


def test_a_scan_crosses_its_chunks_with_records_of_any_size() -> None:
    rng = random.Random(SEED)
    sizes = [rng.choice((400, 4000, 40_000, 900_000, CHUNK_SIZE + 80)) for _ in range(40)]
    log, places = log_of(sizes)
    found = scanned(log)
    assert (found.offset, found.message_count, found.fault) == (40, 40, FAULT_END), f"seed {SEED}"
    assert len(log) - 4 * PAGE_SIZE == found.position
    wanted, due = [], 0
    for number, place in enumerate(places):
        if place >= due:
            wanted.append((number, place))
            due = place + INDEX_INTERVAL
    assert [(entry.offset, entry.position) for entry in found.entries] == wanted


@pytest.mark.parametrize(
    ("at", "fault"),
    [(5, FAULT_DAMAGE), (60, FAULT_DAMAGE), (200, FAULT_DAMAGE), (254, FAULT_DAMAGE), (300, FAULT_DAMAGE)],
)
def test_a_scan_stops_at_any_changed_byte(at: int, fault: str) -> None:
    log, places = log_of([400, 800, 1200, 640])
    damaged = bytearray(log)
    damaged[places[2] + at] ^= 0x10
    found = scanned(bytes(damaged))
    assert (found.position, found.offset, found.fault) == (places[2], 2, fault)


def test_a_scan_names_foreign_records_and_missing_offsets() -> None:
    log, places = log_of([400, 800, 1200, 640])
    header = unpack_header(log, places[1])
    for changes, fault in (
        ({"incarnation": bytes(16)}, FAULT_FOREIGN),
        ({"partition_id": 4}, FAULT_FOREIGN),
        ({"base_offset": 9}, FAULT_GAP),
        ({"log_position": 8}, FAULT_DAMAGE),
        ({"record_length": 0}, FAULT_DAMAGE),
        ({"record_length": 1 << 40}, FAULT_DAMAGE),
        ({"batch_length": 1 << 50}, FAULT_DAMAGE),
    ):
        changed = bytearray(log)
        changed[places[1] : places[1] + HEADER_SIZE] = pack_header(header._replace(**changes))
        found = scanned(bytes(changed))
        assert (found.position, found.fault) == (places[1], fault), changes


def test_a_record_that_the_file_cuts_short_is_damage() -> None:
    log, places = log_of([400, 800, 1200])
    found = scanned(log[: places[2] + 1000])
    assert (found.position, found.fault) == (places[2], FAULT_DAMAGE)
    found = scanned(log[: places[2]])
    assert (found.position, found.fault) == (places[2], FAULT_END)


def test_rule_08_the_search_behind_damage_believes_only_records_that_stand_where_they_say() -> None:
    rng = random.Random(SEED)
    log = bytearray(rng.randbytes(64 * PAGE_SIZE))
    true = stamped(record_of_size(400), 7, 40 * PAGE_SIZE + 16, durable=12_345)
    log[40 * PAGE_SIZE + 16 : 40 * PAGE_SIZE + 416] = true
    elsewhere = stamped(record_of_size(400), 7, 8, durable=99_999)
    log[20 * PAGE_SIZE : 20 * PAGE_SIZE + 400] = elsewhere
    torn = bytearray(stamped(record_of_size(400), 7, 10 * PAGE_SIZE, durable=88_888))
    torn[80] ^= 1
    log[10 * PAGE_SIZE : 10 * PAGE_SIZE + 400] = torn
    read = lambda position, size: bytes(log[position : position + size])  # noqa: E731
    residue = search_residue(read, 8, len(log), INCARNATION)
    assert residue.mark == 12_345, f"seed {SEED}"
    assert residue.end == len(log)
    assert search_residue(read, 8, len(log), bytes(16)).mark == 0
    zeros = search_residue(lambda position, size: bytes(size), 8, 4096, INCARNATION)
    assert (zeros.end, zeros.mark) == (8, 0)


# --- allocation -----------------------------------------------------------------------------------------------------


class LateExecutor(Executor):
    """Runs what was submitted when it is told to: a helper thread that is slow."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Future[Any], Any, Any]] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, fn, args))
        return future

    def run(self) -> None:
        for future, fn, args in self.waiting:
            try:
                future.set_result(fn(*args))
            except Exception as error:
                future.set_exception(error)
        self.waiting.clear()


def test_rule_10_the_next_step_is_asked_for_at_half_and_believed_when_it_is_done() -> None:
    disk, executor = SimulatedDisk(), LateExecutor()
    file = disk.create("/file")
    allocator = StepAllocator(file, 0, 1 << 30, executor)
    allocator.ensure(PAGE_SIZE)
    assert allocator.allocated == file.size() == ALLOCATION_STEP_MIN
    allocator.look_ahead(allocator.ahead_at - 1)
    assert not executor.waiting
    allocator.look_ahead(allocator.ahead_at)
    assert len(executor.waiting) == 1
    allocator.look_ahead(allocator.allocated)
    assert allocator.allocated == ALLOCATION_STEP_MIN, "the helper has not answered"
    executor.run()
    allocator.look_ahead(allocator.allocated)
    assert allocator.allocated == file.size() == 3 * ALLOCATION_STEP_MIN
    steps = []
    for _ in range(9):
        before = allocator.allocated
        allocator.look_ahead(allocator.ahead_at)
        executor.run()
        allocator.look_ahead(0)
        steps.append(allocator.allocated - before)
    assert max(steps) == steps[-1] == ALLOCATION_STEP_MAX
    allocator.settle()
    file.close()


def test_rule_10_a_step_without_space_is_forgotten_until_it_is_needed() -> None:
    import errno

    disk = SimulatedDisk()
    file = disk.create("/file")
    allocator = StepAllocator(file, 0, 1 << 30, InlineExecutor())
    allocator.ensure(PAGE_SIZE)
    disk.fail(len(disk.points) + 1, errno.ENOSPC)
    allocator.look_ahead(allocator.ahead_at)
    allocator.look_ahead(allocator.ahead_at)
    disk.fail(len(disk.points) + 1, errno.ENOSPC)
    with pytest.raises(NoSpace):
        allocator.ensure(2 * MIB)
    assert allocator.allocated == ALLOCATION_STEP_MIN
    allocator.ensure(2 * MIB)
    disk.fail(len(disk.points) + 1, errno.EIO)
    with pytest.raises(DiskFailed):
        allocator.ensure(1 << 29)
    file.close()


# --- retention ------------------------------------------------------------------------------------------------------


def info(number: int, size: int = 100, last_timestamp: int = 10) -> SegmentInfo:
    return SegmentInfo(
        number * 10, number * size, number * 10 + 10, number * size + size, 10, 1, last_timestamp, 1, True, 0
    )


LIMITS: dict[str, Any] = {
    "now_us": 1_000,
    "expiry_us": 0,
    "size_max": 0,
    "segment_size": 0,
    "lowest_stored_offset": None,
}


def test_retention_without_limits_keeps_everything() -> None:
    assert deletable_count([info(n) for n in range(5)], **LIMITS) == 0


def test_retention_by_age_takes_the_oldest_run_of_expired_segments() -> None:
    segments = [info(0, last_timestamp=10), info(1, last_timestamp=20), info(2, last_timestamp=990), info(3)]
    assert deletable_count(segments, **{**LIMITS, "expiry_us": 980}) == 2
    assert deletable_count(segments, **{**LIMITS, "expiry_us": 981}) == 1


def test_retention_by_age_is_not_held_up_by_a_segment_without_messages() -> None:
    """What a loss of power right after a roll leaves: no message, no time."""
    empty = dataclasses.replace(info(1, last_timestamp=0), message_count=0)
    segments = [info(0, last_timestamp=10), empty, info(2, last_timestamp=20), info(3, last_timestamp=990)]
    assert deletable_count(segments, **{**LIMITS, "expiry_us": 980}) == 3
    assert deletable_count(segments, **LIMITS) == 0, "nothing is asked to go"


def test_retention_by_size_keeps_at_least_a_segment() -> None:
    segments = [info(n) for n in range(5)]
    assert deletable_count(segments, **{**LIMITS, "size_max": 250}) == 3
    assert deletable_count(segments, **{**LIMITS, "size_max": 500}) == 0
    assert deletable_count(segments, **{**LIMITS, "size_max": 1, "segment_size": 300}) == 2


def test_retention_keeps_what_a_consumer_has_still_to_read() -> None:
    segments = [info(n) for n in range(40)]
    everything = {**LIMITS, "expiry_us": 1}
    assert deletable_count(segments, **everything) == 40
    assert deletable_count(segments, **{**everything, "lowest_stored_offset": 18}) == 1
    assert deletable_count(segments, **{**everything, "lowest_stored_offset": 19}) == 2


# --- read ahead ---------------------------------------------------------------------------------------------


def test_reading_ahead_gives_the_same_bytes_in_any_order() -> None:
    rng = random.Random(SEED)
    size = 3 * BLOCK_SIZE + 12_345
    contents = rng.randbytes(size)
    start, limit = 4096, 4096 + size
    plain = lambda position, wanted: contents[position - start : position - start + wanted]  # noqa: E731
    with ThreadPoolExecutor(2) as executor:
        ahead = ReadAhead(plain, start, limit, executor)
        for _ in range(60):
            position = rng.randrange(start, limit + 10)
            wanted = rng.choice((0, 1, 4096, BLOCK_SIZE, BLOCK_SIZE + 1, size))
            assert bytes(ahead(position, wanted)) == plain(position, min(wanted, max(0, limit - position)))
        ahead.settle()
