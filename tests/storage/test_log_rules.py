"""The rules that the log keeps by itself, each under its number."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from shmbroker.errors import DiskFailed, ErrorCode
from shmbroker.formats import control as words
from shmbroker.formats import segment as segment_format
from shmbroker.formats.batch import HEADER_SIZE, KIND_FILLER, unpack_header
from shmbroker.formats.control import State
from shmbroker.formats.lane import FLAG_DUPLICATE
from shmbroker.limits import OFFSET_RESERVATION, PAGE_SIZE, RING_SIZE_MIN
from shmbroker.storage.partition_log import PartitionLog
from shmbroker.storage.reservation import Reservation
from shmbroker.storage.superblock import SuperblockFile
from tests.storage.log_world import (
    DIRECTORY,
    LOG_ID,
    InlineExecutor,
    append,
    finish_pass,
    make_disk,
    new_world,
    open_log,
    read_files,
    record_of,
)
from tests.storage.memory_runtime import MemoryRuntime
from tests.storage.simulated_disk import SimulatedDisk
from tests.storage.test_recovery import contents_of, edit, segments_of

SEED = 4_711


def take(log: PartitionLog, record: bytes) -> int:
    """Appends a record; the status."""
    return int(log.append(memoryview(record), 2_000_000)[0])


# --- rule 2: recovery makes durable before it publishes -------------------------------------------------------------


def test_rule_02_what_recovery_accepts_survives_the_power_from_then_on() -> None:
    disk, runtime, log = new_world(messages_required_to_save=2)
    for number in range(9):
        append(log, [b"%d" % number * 500])
        finish_pass(log)
    log.abandon()
    image = disk.process_image()
    opened = open_log(image, runtime)
    assert opened.control[words.WORD_DURABLE_OFFSET] == opened.control[words.WORD_VISIBLE_OFFSET] == 9
    for left in image.images(SEED):
        log = open_log(left, runtime.after_power_failure())
        assert len(read_files(left)) == 9, left.label
        log.abandon()


def test_rule_02_after_a_failed_sync_the_cache_is_not_believed() -> None:
    disk, runtime, log = new_world()
    append(log, [b"safe" * 100])
    assert log.flush(sync=True) == 0
    append(log, [b"written" * 2000])
    assert log.flush(sync=False) == 0
    disk.fail(len(disk.points) + 1, errno.EIO)
    assert log.flush(sync=True) == ErrorCode.PARTITION_POISONED
    log.abandon()
    runtime = runtime.after_power_failure()
    log = open_log(disk, runtime, instance=2)
    accepted = read_files(disk)
    for left in disk.images(SEED):
        again = open_log(left, runtime.after_power_failure(), instance=3)
        assert read_files(left) == accepted, left.label
        again.abandon()


def test_rule_02_what_only_the_cache_holds_is_written_again() -> None:
    """A sync failed and the worker died before it could say so: the cache shows what will never reach the disk."""
    disk, runtime, log = new_world()
    append(log, [b"safe" * 100])
    assert log.flush(sync=True) == 0
    for number in range(5):
        append(log, [b"%d" % number * 9000])
    assert log.flush(sync=False) == 0
    assert log.segments.active is not None
    disk.fail(len(disk.points) + 1, errno.EIO)
    with pytest.raises(DiskFailed):
        log.segments.active.file.sync()
    log.abandon()
    opened = open_log(disk, runtime, instance=2)
    assert len(read_files(disk)) == 6
    for left in disk.images(SEED):
        again = open_log(left, runtime.after_power_failure(), instance=3)
        assert len(read_files(left)) == 6, left.label
        again.abandon()
    opened.abandon()


# --- rule 3: offsets ------------------------------------------------------------------------------------------------


def test_rule_03_a_matching_ring_names_the_end() -> None:
    disk, runtime, log = new_world()
    append(log, [b"one", b"two"])
    log.publish()
    log.abandon()
    assert open_log(disk, runtime).committed_offset == 2


def test_rule_03_a_clean_stop_record_names_the_end_and_is_gone_before_the_first_append() -> None:
    disk, runtime, log = new_world()
    append(log, [b"one"])
    log.close(5)
    runtime = runtime.after_power_failure()
    log = open_log(disk, runtime)
    assert log.committed_offset == 1
    assert log.superblock.current.clean == 1
    append(log, [b"two"])
    for left in disk.images(SEED):
        superblock = SuperblockFile.open(left, DIRECTORY, LOG_ID)
        superblock.close()
        assert superblock.current.clean == 0
        assert superblock.current.reserved_offset == 1 + OFFSET_RESERVATION


def test_rule_03_the_same_boot_proves_nothing_when_the_runtime_directory_was_deleted() -> None:
    disk, runtime, log = new_world()
    append(log, [b"one"])
    log.publish()
    log.abandon()
    emptied = MemoryRuntime(boot=runtime.boot)
    assert emptied.boot_id == runtime.boot_id
    log = open_log(disk, emptied)
    assert log.committed_offset == OFFSET_RESERVATION


def test_rule_03_the_segment_after_a_gap_says_so() -> None:
    disk, runtime, log = new_world()
    append(log, [b"kept"])
    assert log.flush(sync=True) == 0
    append(log, [b"lost"])
    log.publish()
    log.abandon()
    (image,) = [left for left in disk.images(SEED, subsets=0) if left.label.startswith("nothing")]
    log = open_log(image, runtime.after_power_failure())
    assert append(log, [b"after"]) == OFFSET_RESERVATION
    log.close(5)
    header = segment_format.unpack_header(contents_of(image, segments_of(image)[1]))
    assert header is not None
    assert header.gap_reason == segment_format.GAP_UNCLEAN_END
    assert (header.previous_end_offset, header.base_offset) == (1, OFFSET_RESERVATION)
    assert read_files(image) == [(0, b"kept"), (OFFSET_RESERVATION, b"after")]
    log = open_log(image, runtime.after_power_failure())
    assert log.committed_offset == OFFSET_RESERVATION + 1


def test_rule_03_respawns_without_appends_use_up_no_reservation() -> None:
    disk, runtime, log = new_world()
    append(log, [b"one"])
    log.publish()
    log.abandon()
    for _ in range(4):
        log = open_log(disk, runtime)
        assert log.committed_offset == 1
        log.abandon()


def test_rule_03_the_reservation_is_renewed_at_half_and_waited_for_at_the_end() -> None:
    disk = make_disk()
    superblock = SuperblockFile.open(disk, DIRECTORY, LOG_ID)
    reservation = Reservation(superblock, InlineExecutor())
    reservation.start(10)
    assert reservation.limit == superblock.current.reserved_offset == 10 + OFFSET_RESERVATION
    reservation.look_ahead(reservation.renew_at - 1)
    assert superblock.current.reserved_offset == 10 + OFFSET_RESERVATION
    assert reservation.renew_at == 10 + OFFSET_RESERVATION // 2
    reservation.look_ahead(reservation.renew_at)
    assert superblock.current.reserved_offset == 10 + 2 * OFFSET_RESERVATION
    assert reservation.limit == 10 + OFFSET_RESERVATION, "taken over only when asked again"
    reservation.ensure(10 + OFFSET_RESERVATION + 1)
    assert reservation.limit == 10 + 2 * OFFSET_RESERVATION
    reservation.ensure(10 + 2 * OFFSET_RESERVATION + 5)
    assert reservation.limit == superblock.current.reserved_offset > 10 + 2 * OFFSET_RESERVATION + 5
    superblock.close()


# --- rule 4: fillers ------------------------------------------------------------------------------------------------


def last_record_is_filler(disk: SimulatedDisk, log: PartitionLog) -> bool:
    contents = contents_of(disk, segments_of(disk)[-1])
    at, kind = PAGE_SIZE, 0
    while at + HEADER_SIZE <= len(contents) and (header := unpack_header(contents, at)).magic:
        at, kind = at + header.record_length, header.kind
    return kind == KIND_FILLER and at % PAGE_SIZE == 0


def test_rule_04_a_filler_closes_the_log_before_its_ring_is_given_back() -> None:
    disk, _, log = new_world()
    append(log, [b"one"])
    finish_pass(log)
    assert log.flush(sync=False) == 0
    log.maintain(5)
    assert log.control[words.WORD_CLOSED] == 0
    log.maintain(6)
    assert log.describe()["ring_size"] == 0
    assert log.control[words.WORD_CLOSED] == 1
    assert log.control[words.WORD_RING_GENERATION] == 0
    assert log.control[words.WORD_STABLE_POSITION] == log.control[words.WORD_COMMITTED_POSITION]
    assert last_record_is_filler(disk, log)
    append(log, [b"two"])
    assert log.control[words.WORD_RING_BASE] % PAGE_SIZE == 0
    assert log.control[words.WORD_CLOSED] == 0
    assert log.control[words.WORD_RING_GENERATION] == 2, "no generation is used twice"


def test_rule_04_a_filler_closes_the_log_at_stop_and_after_an_open() -> None:
    disk, runtime, log = new_world()
    append(log, [b"one"])
    log.publish()
    log.abandon()
    log = open_log(disk, runtime)
    assert last_record_is_filler(disk, log)
    assert log.control[words.WORD_CLOSED] == 1
    append(log, [b"two"])
    log.close(5)
    assert last_record_is_filler(disk, log)
    assert log.control[words.WORD_STATE] == State.CLOSED


# --- rule 5: identity -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["log id", "incarnation", "generation", "base beyond the end"])
def test_rule_05_a_ring_is_adopted_only_if_it_is_ours_and_joins(field: str) -> None:
    from shmbroker.formats import journal as journal_format

    disk, runtime, log = new_world()
    append(log, [b"one"])
    log.publish()
    log.abandon()
    mapping = next(iter(runtime.rings.values()))
    header = journal_format.unpack_header(mapping[:PAGE_SIZE])
    assert header is not None
    changed = {
        "log id": header._replace(log_id=8),
        "incarnation": header._replace(incarnation=bytes(16)),
        "generation": header._replace(generation=9),
        "base beyond the end": header._replace(ring_base=PAGE_SIZE),
    }[field]
    mapping[:76] = journal_format.pack_header(changed)
    log = open_log(disk, runtime)
    assert log.committed_offset == OFFSET_RESERVATION
    assert read_files(disk) == []


def test_rule_05_a_purge_gives_a_new_identity() -> None:
    disk, _, log = new_world()
    before = log.incarnation
    append(log, [b"old"])
    assert log.purge(5) == 0
    assert log.incarnation != before
    assert append(log, [b"new"]) == 0
    assert log.flush(sync=True) == 0
    assert read_files(disk) == [(0, b"new")]


# --- rule 6: overwrite_end before any byte --------------------------------------------------------------------------


class WatchedRecord:
    """A record that looks, when its content is asked for, whether the ring's end was announced."""

    def __init__(self, record: bytes, log: PartitionLog) -> None:
        self.record = record
        self.log = log
        self.announced = 0

    def __len__(self) -> int:
        return len(self.record)

    def __getitem__(self, place: slice) -> memoryview:
        if place.start == HEADER_SIZE:
            self.announced = self.log.control[words.WORD_OVERWRITE_END]
        return memoryview(self.record)[place]


def test_rule_06_the_ring_is_announced_before_its_first_byte_and_changes_nowhere_else() -> None:
    _, runtime, log = new_world(messages_required_to_save=10_000, size_required_to_save=1 << 30)
    append(log, [b"makes the ring"])
    ring = next(iter(runtime.rings.values()))
    for number in range(40):
        before = bytes(ring[PAGE_SIZE:])
        start = log.control[words.WORD_COMMITTED_POSITION]
        good = record_of([b"%d" % number * 9000])
        bad = bytearray(good)
        bad[-20] ^= number % 2
        watched: Any = WatchedRecord(bytes(bad), log)
        log.append(watched, 5)
        log.publish()
        if number % 5 == 0:
            assert log.flush(sync=False) == 0
        end = log.control[words.WORD_OVERWRITE_END]
        assert watched.announced <= end
        assert watched.announced >= start + len(good)
        after = bytes(ring[PAGE_SIZE:])
        size = log.control[words.WORD_RING_SIZE]
        if size != RING_SIZE_MIN:
            break
        announced = {position % size for position in range(start, end)}
        changed = [index for index in range(0, size, 8) if before[index : index + 8] != after[index : index + 8]]
        assert all(index in announced for index in changed)


# --- rule 7 through a crash -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["alive", "killed", "stopped", "power"])
def test_rule_07_a_retry_gets_its_first_confirmation(how: str) -> None:
    disk, runtime, log = new_world(persisted=True)
    append(log, [b"before"])
    assert append(log, [b"one", b"two"], producer_id=5, sequence=1) == 1
    finish_pass(log)
    if how == "stopped":
        log.close(5)
    elif how != "alive":
        log.abandon()
    if how != "alive":
        log = open_log(disk, runtime.after_power_failure() if how == "power" else runtime, persisted=True)
    retry = record_of([b"one", b"two"], producer_id=5, sequence=1)
    assert log.append(memoryview(retry), 5) == (0, 1, 2 | FLAG_DUPLICATE)
    assert log.append(memoryview(record_of([b"x"], producer_id=5, sequence=2)), 5)[0] == 0


def test_rule_07_the_window_reaches_back_over_a_roll() -> None:
    disk, runtime, log = new_world(segment_size=8192)
    for sequence in range(1, 30):
        append(log, [b"m" * 900], producer_id=5, sequence=sequence)
        finish_pass(log)
    assert log.segments.active is not None
    sealed_end = log.segments.infos[-2].end_offset
    log.close(5)
    log = open_log(disk, runtime, segment_size=8192)
    record = record_of([b"m" * 900], producer_id=5, sequence=sealed_end)
    assert log.append(memoryview(record), 5) == (0, sealed_end - 1, 1 | FLAG_DUPLICATE)


# --- rule 9: a cut writes zeros -------------------------------------------------------------------------------------


def test_rule_09_a_cut_writes_durable_zeros_and_never_shortens() -> None:
    disk, runtime, log = new_world(messages_required_to_save=1)
    for number in range(12):
        append(log, [b"%d" % number * 1500])
        finish_pass(log)
    log.abandon()
    path = segments_of(disk)[0]
    size = len(contents_of(disk, path))
    length = unpack_header(contents_of(disk, path), PAGE_SIZE).record_length
    edit(disk, path, PAGE_SIZE + length + 300, b"?")
    log = open_log(disk, runtime.after_power_failure())
    filler_end = PAGE_SIZE + length + -length % PAGE_SIZE
    for image in [disk, *disk.images(SEED)]:
        contents = contents_of(image, path)
        assert len(contents) == size
        assert not any(contents[filler_end + PAGE_SIZE :])
        assert len(read_files(image)) == 1
    log.abandon()
