"""The rules about room and failure that the log keeps: allocation, rings, errors, rolls, purges, sizes."""

from __future__ import annotations

import errno
import itertools
import random
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from shmbroker.errors import Corrupt, DiskFailed, ErrorCode
from shmbroker.formats import control as words
from shmbroker.formats.batch import HEADER_SIZE, KIND_FILLER, pack_header, unpack_header
from shmbroker.formats.control import State
from shmbroker.formats.offsets import KEY_CONSUMER, number_key
from shmbroker.limits import ALLOCATION_STEP_MIN, PAGE_SIZE, RETENTION_SEGMENTS_PER_STEP, RING_SIZE_LARGE_RECORD
from shmbroker.storage.disk import FileDisk
from shmbroker.storage.journal import JournalBudget
from shmbroker.storage.log_core import LogOptions
from shmbroker.storage.partition_log import PartitionLog
from shmbroker.storage.runtime import RuntimeDirectory
from tests.storage.log_oracle import Oracle
from tests.storage.log_world import (
    DIRECTORY,
    LOG_ID,
    MIB,
    InlineExecutor,
    append,
    finish_pass,
    make_disk,
    new_world,
    open_log,
    read_files,
    record_of,
    record_of_size,
)
from tests.storage.memory_runtime import MemoryRuntime
from tests.storage.simulated_disk import Crashed, SimulatedDisk
from tests.storage.test_recovery import base_of, edit, segments_of

SEED = 4_711


def take(log: PartitionLog, record: bytes) -> int:
    """Appends a record; the status."""
    return int(log.append(memoryview(record), 2_000_000)[0])


# --- rule 10: allocation --------------------------------------------------------------------------------------------


def test_rule_10_segments_are_allocated_in_synchronised_doubling_steps_ahead_of_need() -> None:
    disk, _, log = new_world(segment_size=32 * MIB, persisted=True)
    sizes: list[int] = []
    for _ in range(40):
        assert take(log, record_of_size(200_000)) == 0
        finish_pass(log)
        active = log.segments.active
        assert active is not None
        allocated = active.allocator.allocated
        assert log.control[words.WORD_ACTIVE_ALLOCATED] <= allocated
        assert active.file_position(log.control[words.WORD_COMMITTED_POSITION]) < allocated
        if not sizes or allocated != sizes[-1]:
            sizes.append(allocated)
    steps = [sizes[0]] + [after - before for before, after in pairwise(sizes)]
    assert steps[0] == ALLOCATION_STEP_MIN
    assert steps == [ALLOCATION_STEP_MIN << number for number in range(len(steps))]
    path = segments_of(disk)[0]
    kinds = [point.kind for point in disk.points if point.path == path]
    for number, kind in enumerate(kinds):
        if kind == "allocate":
            assert kinds[number + 1] == "sync"


def test_rule_10_a_ring_grows_at_a_filler_boundary() -> None:
    disk, runtime, log = new_world(
        segment_size=64 * MIB, messages_required_to_save=1 << 20, size_required_to_save=1 << 30
    )
    sizes, bases = [], []
    for _ in range(40):
        assert take(log, record_of_size(200_000)) == 0
        sizes.append(log.control[words.WORD_RING_SIZE])
        bases.append(log.control[words.WORD_RING_BASE])
    assert sorted(set(sizes)) == [MIB, 4 * MIB, 16 * MIB]
    assert sizes == sorted(sizes)
    assert all(base % PAGE_SIZE == 0 for base in bases)
    assert len(runtime.rings) == 1
    log.publish()
    log.abandon()
    log = open_log(disk, runtime, segment_size=64 * MIB)
    assert len(read_files(disk)) == 40


def test_rule_10_rings_come_out_of_one_budget_and_pressure_flushes_the_oldest() -> None:
    disk, runtime = make_disk(), MemoryRuntime()
    budget = JournalBudget(2 * MIB)
    logs = []
    for log_id in range(20, 23):
        directory = f"/partitions/{log_id:020}"
        PartitionLog.create(disk, directory, log_id, 0)
        logs.append(
            PartitionLog.open(
                disk, runtime, budget, directory, log_id, 0, LogOptions(), instance=1, now_us=1,
                executor=InlineExecutor(),
            )
        )  # fmt: skip
    for log in logs:
        append(log, [b"message"])
        log.publish()
        assert budget.used <= budget.limit
    assert [log.describe()["ring_size"] for log in logs] == [0, MIB, MIB]
    assert logs[0].describe()["durable_offset"] == 1, "it was flushed for the others' sake"
    append(logs[0], [b"again"])
    assert budget.used == 2 * MIB
    for log in logs:
        log.close(5)
    assert budget.used == 0


def test_rule_10_no_ring_is_a_named_refusal_that_changes_nothing() -> None:
    disk, _, log = new_world(limit=MIB // 2)
    before = len(disk.points)
    assert take(log, record_of([b"message"])) == ErrorCode.JOURNAL_FULL
    assert len(disk.points) == before
    disk, runtime = make_disk(), MemoryRuntime(free_bytes=MIB // 2)
    log = open_log(disk, runtime)
    assert take(log, record_of([b"message"])) == ErrorCode.JOURNAL_FULL
    runtime.free_bytes = 1 << 30
    assert append(log, [b"message"]) == 0


# --- rule 11: errors ------------------------------------------------------------------------------------------------


def workload_points(options: dict[str, Any]) -> list[tuple[int, str]]:
    disk = make_disk()
    log = open_log(disk, MemoryRuntime(), **options)
    first = len(disk.points) + 1
    for number in range(5):
        append(log, [b"%d" % number * 6000])
        finish_pass(log)
    return [(number, point.kind) for number, point in enumerate(disk.points, 1) if number >= first]


FULL: dict[str, Any] = {"segment_size": 12_288, "persisted": True}


@pytest.mark.parametrize("number", ["ENOSPC", "EDQUOT"])
def test_rule_11_no_space_refuses_the_request_and_changes_nothing(number: str) -> None:
    places = [point for point, kind in workload_points(FULL) if kind in ("allocate", "create")]
    assert len(places) >= 6
    for place in places:
        disk, runtime = make_disk(), MemoryRuntime()
        log = open_log(disk, runtime, **FULL)
        disk.fail(place, getattr(errno, number))
        taken, refused = [], 0
        for count in range(5):
            payload = b"%d" % count * 6000
            status = take(log, record_of([payload]))
            while status:
                assert status == ErrorCode.DISK_FULL, (place, status)
                assert log.state is State.OPEN
                assert log.control[words.WORD_STATE] == State.OPEN
                refused += 1
                assert refused <= 2
                status = take(log, record_of([payload]))
            taken.append(payload)
            finish_pass(log)
        assert refused >= 1, place
        assert [payload for _, payload in read_files(disk)] == taken
        log.close(5)
        assert open_log(disk, runtime, **FULL).committed_offset == 5


def test_rule_11_any_other_error_poisons_until_the_broker_is_started_again() -> None:
    places = workload_points(FULL)
    assert len(places) > 15
    for place, kind in places:
        if kind in ("create", "unlink"):
            continue
        disk, runtime = make_disk(seed=SEED), MemoryRuntime()
        log = open_log(disk, runtime, **FULL)
        oracle = Oracle(log)
        disk.fail(place, errno.EIO)
        poisoned = False
        for count in range(5):
            try:
                oracle.append(log, [b"%d" % count * 6000])
                oracle.finish_pass(log)
            except AssertionError:
                poisoned = True
                break
        label = f"point {place} {kind} seed {SEED}"
        assert poisoned, label
        assert log.state is State.POISONED, label
        assert log.control[words.WORD_STATE] == State.POISONED
        for _ in range(3):
            assert take(log, record_of([b"refused"])) == ErrorCode.PARTITION_POISONED
            assert log.flush(sync=True) == ErrorCode.PARTITION_POISONED
        log.abandon()
        again = open_log(disk, runtime.copy(), **FULL)
        assert again.state is State.POISONED, "a respawned worker of the same run"
        assert take(again, record_of([b"refused"])) == ErrorCode.PARTITION_POISONED
        again.abandon()
        if log.superblock.current.poison:
            other = open_log(disk.process_image(), runtime.after_power_failure(), **FULL)
            assert other.state is State.POISONED, "the disk remembers it too"
            other.abandon()
        recovered = open_log(disk, runtime, instance=2, **FULL)
        assert recovered.state is State.OPEN
        oracle.check(recovered, disk, power=False)
        assert recovered.superblock.current.poison == 0
        oracle.append(recovered, [b"goes on"])
        oracle.finish_pass(recovered)
        recovered.close(5)


def test_rule_11_a_clean_stop_that_fails_says_so() -> None:
    disk, _, log = new_world()
    append(log, [b"message"])
    disk.fail(len(disk.points) + 1, errno.EIO)
    with pytest.raises(DiskFailed):
        log.close(5)
    assert log.control[words.WORD_STATE] == State.POISONED


# --- rule 13: the order of a roll -----------------------------------------------------------------------------------


OLD_SEGMENT_ENDS = {
    # Written before by flushes without sync: everything has to be brought along now.
    "replicated": [("write", "old.log"), ("sync", "old.log"), ("sync", "old.index"), ("sync_write", "old.log")],
    "persisted": [("sync_write", "old.log"), ("sync_write", "old.log")],
}


@pytest.mark.parametrize("policy", ["replicated", "persisted"])
def test_rule_13_a_roll_keeps_its_order(policy: str) -> None:
    disk, _, log = new_world(segment_size=8192, persisted=policy == "persisted")
    append(log, [b"x" * 9000])
    finish_pass(log)
    before = len(disk.points)
    append(log, [b"y" * 100])
    points = disk.points[before:]
    base = base_of(disk)
    old, new = (path.removesuffix(".log") for path in segments_of(disk))
    steps = [(point.kind, point.path.replace(old, "old").replace(new, "new")) for point in points]
    wanted = [
        *OLD_SEGMENT_ENDS[policy],
        ("create", "new.log"), ("allocate", "new.log"), ("sync", "new.log"), ("sync_write", "new.log"),
        ("create", "new.index"), ("allocate", "new.index"), ("sync_write", "new.index"), ("sync", "new.index"),
        ("sync_directory", base),
    ]  # fmt: skip
    assert steps == wanted


def test_rule_13_a_creation_is_durable_with_its_names_and_can_be_repeated_after_any_crash() -> None:
    whole = make_disk()
    for point in range(1, len(whole.points) + 1):
        disk = SimulatedDisk(crash_at=point)
        with pytest.raises(Crashed):
            PartitionLog.create(disk, DIRECTORY, LOG_ID, 3)
        for image in [disk.process_image(), *disk.images(SEED)]:
            PartitionLog.create(image, DIRECTORY, LOG_ID, 3)
            for left in image.images(SEED):
                log = open_log(left, MemoryRuntime())
                assert append(log, [b"first"]) == 0
                log.abandon()


def test_rule_13_a_log_is_not_created_over_another() -> None:
    disk, _, log = new_world()
    append(log, [b"first"])
    log.close(5)
    with pytest.raises(FileExistsError):
        PartitionLog.create(disk, DIRECTORY, LOG_ID, 3)


# --- rule 14: purge -------------------------------------------------------------------------------------------------


def test_rule_14_readers_of_the_old_incarnation_are_told_and_everything_old_goes() -> None:
    disk, runtime, log = new_world()
    append(log, [b"old"])
    finish_pass(log)
    old_control, old = log.control, log.incarnation
    assert log.purge(5) == 0
    assert old_control[words.WORD_STATE] == State.REPLACED
    assert log.control[words.WORD_STATE] == State.OPEN
    assert disk.list(DIRECTORY) == [log.incarnation.hex(), "superblock"]
    assert runtime.open_control(LOG_ID, old) is None
    assert [key[1] for key in runtime.rings] == []


def test_rule_14_a_respawned_worker_uses_the_control_block_that_is_there() -> None:
    disk, runtime, log = new_world()
    append(log, [b"message"])
    log.publish()
    reader = runtime.open_control(LOG_ID, log.incarnation)
    assert reader is not None
    log.abandon()
    log = open_log(disk, runtime)
    append(log, [b"another"])
    log.publish()
    assert reader[words.WORD_COMMITTED_OFFSET] == 2


# --- rule 18: sizes -------------------------------------------------------------------------------------------------


def test_rule_18_a_record_above_a_quarter_of_its_ring_gets_a_larger_one() -> None:
    disk, _, log = new_world(segment_size=64 * MIB)
    append(log, [b"small"])
    assert log.control[words.WORD_RING_SIZE] == MIB
    assert take(log, record_of_size(MIB // 4 + 8)) == 0
    assert log.control[words.WORD_RING_SIZE] == 2 * MIB
    assert take(log, record_of_size(17 * MIB)) == 0
    assert log.control[words.WORD_RING_SIZE] == RING_SIZE_LARGE_RECORD
    log.close(5)
    assert len(read_files(disk)) == 3


def test_rule_18_without_memory_for_its_ring_a_record_is_too_large() -> None:
    disk, _, log = new_world(segment_size=64 * MIB, limit=2 * MIB)
    append(log, [b"small"])
    assert take(log, record_of_size(2 * MIB)) == ErrorCode.BATCH_TOO_LARGE
    assert append(log, [b"goes on"]) == 1
    log.close(5)
    assert len(read_files(disk)) == 2


# --- retention, with all its parts --------------------------------------------------------------------------


def test_expired_segments_go_but_not_what_a_consumer_still_needs() -> None:
    disk, runtime, log = new_world(segment_size=8192, message_expiry_us=1_000, offsets_persisted=True)
    for number in range(12):
        append(log, [b"%d" % number * 3000], now_us=2_000_000 + number)
        finish_pass(log)
    assert log.flush(sync=True) == 0
    sealed = log.segments.deletable()
    assert len(sealed) >= 2
    key = number_key(KEY_CONSUMER, 1)
    stored = sealed[0].end_offset - 1
    assert log.offsets.store(key, stored, 5, automatic=False, end_offset=log.committed_offset) == 0
    log.maintain(2_000_500)
    assert log.describe()["first_offset"] == 0, "nothing is old enough"
    log.maintain(3_000_000)
    assert log.describe()["first_offset"] == sealed[0].end_offset == log.control[words.WORD_FIRST_OFFSET]
    assert read_files(disk)[0][0] == stored + 1
    assert log.superblock.current.durable_position >= sealed[0].end_position, "the mark went first"
    for image in disk.images(SEED):
        again = open_log(image, runtime.after_power_failure(), segment_size=8192)
        assert again.describe()["first_offset"] == stored + 1, image.label
        again.abandon()
    log.abandon()


def test_the_newest_segment_is_never_deleted() -> None:
    disk, runtime, log = new_world(segment_size=8192)
    for _ in range(9):
        append(log, [b"message" * 500])
        finish_pass(log)
    count = log.describe()["segment_count"]
    assert isinstance(count, int)
    assert log.delete_segments(100) == count - 1
    assert log.delete_segments(100) == 0
    assert log.describe()["segment_count"] == 1
    log.close(5)
    log = open_log(disk, runtime, segment_size=8192)
    assert append(log, [b"next"]) == 9


# --- what no record may do ----------------------------------------------------------------------------------


def test_random_and_crafted_records_are_refused_and_change_nothing() -> None:
    rng = random.Random(SEED)
    _, _, log = new_world()
    assert append(log, [b"good"]) == 0
    good = record_of([b"one" * 30, b"two", b"three" * 9], producer_id=5, sequence=1)
    header = unpack_header(good)
    crafted = [
        header._replace(kind=KIND_FILLER), header._replace(kind=0), header._replace(flags=2),
        header._replace(message_count=0), header._replace(message_count=4), header._replace(message_count=1 << 31),
        header._replace(record_length=header.record_length + 8), header._replace(batch_length=256),
        header._replace(batch_length=1 << 60), header._replace(content_checksum=1), header._replace(magic=0),
    ]  # fmt: skip
    records = [pack_header(lie) + good[HEADER_SIZE:] for lie in crafted]
    records += [good[:-8], good + bytes(8), good[:256], b"", b"x" * 100, bytes(512), rng.randbytes(4096)]
    for _ in range(300):
        changed = bytearray(good)
        changed[rng.randrange(header.batch_length)] ^= 1 << rng.randrange(8)
        records.append(bytes(changed))
    for record in records:
        status, value, argument = log.append(memoryview(record), 5)
        assert status != 0, f"seed {SEED}: {record[:64].hex()}"
        assert (value, argument) == (0, 0)
    assert log.committed_offset == 1
    assert log.state is State.OPEN
    assert log.append(memoryview(good), 5) == (0, 1, 3)
    log.publish()
    log.abandon()


def test_a_refused_record_is_not_found_by_recovery() -> None:
    disk, runtime, log = new_world()
    append(log, [b"good"])
    log.publish()
    stamped = unpack_header(record_of([b"lie" * 100]))._replace(
        base_offset=1, log_position=log.control[words.WORD_COMMITTED_POSITION], incarnation=log.incarnation,
        partition_id=log.partition_id, content_checksum=7,
    )  # fmt: skip
    assert log.append(memoryview(pack_header(stamped) + record_of([b"lie" * 100])[HEADER_SIZE:]), 5)[0] != 0
    log.abandon()
    log = open_log(disk, runtime)
    assert log.committed_offset == 1
    assert [payload for _, payload in read_files(disk)] == [b"good"]


# --- the real disk ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["replicated", "persisted"])
def test_a_log_on_the_real_disk_with_helper_threads(tmp_path: Path, policy: str) -> None:
    """Rolls, wraps and grows with everything real; killed, adopted, stopped; every message is there."""
    disk, runtime = FileDisk(), RuntimeDirectory(str(tmp_path))
    directory = f"{tmp_path}/partitions/{LOG_ID:020}"
    PartitionLog.create(disk, directory, LOG_ID, 3)
    rng = random.Random(SEED)
    wanted: list[bytes] = []
    options: dict[str, Any] = {"segment_size": 3 * MIB, "persisted": policy == "persisted", "directory": directory}
    with ThreadPoolExecutor(2) as executor:
        for life in range(3):
            log = open_log(disk, runtime, executor=executor, instance=life + 1, **options)
            assert log.committed_offset == len(wanted), f"seed {SEED}"
            for _ in range(60):
                for _ in range(rng.randrange(1, 6)):
                    payloads = [rng.randbytes(rng.randrange(1, 30_000)) for _ in range(rng.randrange(1, 6))]
                    assert append(log, payloads, now_us=5) == len(wanted)
                    wanted += payloads
                finish_pass(log)
            if life == 1:
                log.close(5)
            else:
                log.abandon()
        log = open_log(disk, runtime, executor=executor, instance=9, **options)
        messages = read_files(disk, directory)
        assert [offset for offset, _ in messages] == list(range(len(wanted)))
        assert [payload for _, payload in messages] == wanted, f"seed {SEED}"
        assert log.control[words.WORD_SEGMENT_COUNT] >= 4
        log.remove()
    assert not disk.exists(directory)
    assert runtime.list_logs() == []


def test_a_refused_partition_can_be_discarded() -> None:
    disk, runtime, log = new_world()
    append(log, [b"message"])
    log.close(5)
    control = log.control
    edit(disk, segments_of(disk)[0], 0, bytes(8))
    with pytest.raises(Corrupt):
        open_log(disk, runtime)
    PartitionLog.discard(disk, runtime, DIRECTORY, LOG_ID)
    assert control[words.WORD_STATE] == State.DELETED
    assert not disk.exists(DIRECTORY)
    assert runtime.list_logs() == []
    PartitionLog.discard(disk, runtime, DIRECTORY, LOG_ID)


def test_rule_08_the_mark_of_a_replicated_log_moves_with_the_steps_of_its_allocation() -> None:
    disk, runtime, log = new_world(segment_size=64 * MIB, size_required_to_save=100_000)
    for _ in range(40):
        assert take(log, record_of_size(200_000)) == 0
        finish_pass(log)
    durable = log.control[words.WORD_DURABLE_POSITION]
    assert 2 * MIB < durable < log.control[words.WORD_FILE_POSITION]
    log.abandon()
    nothing, *_ = disk.images(SEED, subsets=0)
    again = open_log(nothing, runtime.after_power_failure(), segment_size=64 * MIB)
    assert again.control[words.WORD_DURABLE_POSITION] >= durable
    assert len(read_files(nothing)) == log.control[words.WORD_DURABLE_OFFSET]
    again.abandon()


@pytest.mark.parametrize(("second_of_a_step", "passes"), [(0.0, 1), (1.0, 3)])
def test_retention_keeps_up_with_small_segments_within_the_time_of_a_pass(
    monkeypatch: pytest.MonkeyPatch, second_of_a_step: float, passes: int
) -> None:
    """Full speed makes hundreds of segments a second; a slow disk must not hold the worker up for all of them."""
    _, _, log = new_world(segment_size=8192, message_expiry_us=1_000)
    while len(log.segments.deletable()) < 2 * RETENTION_SEGMENTS_PER_STEP + 1:
        append(log, [bytes(3000)], now_us=2_000_000)
        finish_pass(log)
    clock = itertools.count(step=second_of_a_step)
    monkeypatch.setattr("shmbroker.storage.partition_log.time.monotonic", lambda: next(clock))
    for number in range(passes):
        assert log.segments.deletable(), number
        log.maintain(3_000_000 + number)
    assert not log.segments.deletable()
