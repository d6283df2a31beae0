"""The offsets store against a plain dict, on disks that lose, tear, fill up and fail (rule 17)."""

from __future__ import annotations

import errno
import logging
import random
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shmbroker.errors import Corrupt, DiskFailed, ErrorCode
from shmbroker.formats.offsets import (
    DATA_POSITION,
    FILE_NAME,
    KEY_CONSUMER,
    KEY_GROUP,
    name_key,
    number_key,
    unpack_record,
)
from shmbroker.limits import CONSUMER_OFFSETS_MAX, PAGE_SIZE
from shmbroker.storage.disk import FileDisk, aligned_buffer
from shmbroker.storage.offsets import FILE_SIZE_MIN, OffsetStore, read_offsets
from tests.storage.simulated_disk import Crashed, SimulatedDisk

INCARNATION = bytes(range(16, 32))
LOG_ID = 12
DIRECTORY = "/p/incarnation"
END = 1 << 40
Offsets = dict[bytes, int]


def a_disk(seed: int = 0, crash_at: int | None = None) -> SimulatedDisk:
    disk = SimulatedDisk(seed=seed, crash_at=crash_at)
    disk.make_directory("/p")
    disk.sync_directory("/")
    disk.make_directory(DIRECTORY)
    disk.sync_directory("/p")
    return disk


SETUP_POINTS = len(a_disk().points)


def a_store(disk: SimulatedDisk, *, persisted: bool = True) -> OffsetStore:
    return OffsetStore(disk, DIRECTORY, LOG_ID, INCARNATION, persisted=persisted)


def key_of(number: int) -> bytes:
    return number_key(KEY_CONSUMER, number)


def long_key(number: int) -> bytes:
    """Of the largest record: 400 of them fill the smallest file."""
    return name_key(KEY_GROUP, f"{number:0255}")


def put(store: OffsetStore, key: bytes, offset: int, *, automatic: bool = False) -> int:
    return store.store(key, offset, 1, automatic=automatic, end_offset=END)


def flush(store: OffsetStore, *, sync: bool) -> None:
    calls = store.prepare_flush(sync)
    for call in calls:
        call()
    if calls:
        store.finish_flush(None)


def dirt(store: OffsetStore) -> str:
    """What the worker has to do with what waits."""
    if store.dirty_sync:
        return "synchronised"
    return "written" if store.dirty else "nothing"


def fails_to_flush(store: OffsetStore, *, sync: bool) -> DiskFailed:
    (call,) = store.prepare_flush(sync)
    with pytest.raises(DiskFailed) as caught:
        call()
    store.finish_flush(caught.value)
    return caught.value


def offsets_in(disk: SimulatedDisk, *, persisted: bool = True) -> Offsets:
    store = a_store(disk, persisted=persisted)
    assert store.fault is None, store.fault
    return dict(store.items())


# --- semantics ----------------------------------------------------------------------------------------------------


def test_stored_offsets_come_back(tmp_path: Path) -> None:
    disk, directory = FileDisk(), str(tmp_path / "incarnation")
    store = OffsetStore(disk, directory, LOG_ID, INCARNATION, persisted=True)
    assert store.lowest() is None
    assert not tmp_path.joinpath("incarnation").exists(), "nothing is made before it is needed"
    assert put(store, key_of(1), 5) == ErrorCode.OK
    assert put(store, name_key(KEY_CONSUMER, "audit"), 9) == ErrorCode.OK
    assert put(store, name_key(KEY_GROUP, "audit"), 7) == ErrorCode.OK
    assert dirt(store) == "synchronised"
    flush(store, sync=True)
    assert dirt(store) == "nothing"
    assert store.delete(name_key(KEY_GROUP, "audit"), 2) == ErrorCode.OK
    assert put(store, key_of(1), 4) == ErrorCode.OK
    flush(store, sync=False)
    store.close()
    again = OffsetStore(disk, directory, LOG_ID, INCARNATION, persisted=True)
    assert dict(again.items()) == {key_of(1): 4, name_key(KEY_CONSUMER, "audit"): 9}
    assert again.get(key_of(1)) == again.lowest() == 4
    assert again.get(name_key(KEY_GROUP, "audit")) is None
    again.close()


def test_an_explicit_store_may_rewind_and_an_automatic_one_may_not() -> None:
    store = a_store(a_disk())
    put(store, key_of(1), 50)
    assert put(store, key_of(1), 10, automatic=True) == ErrorCode.OK
    assert store.get(key_of(1)) == 50
    assert put(store, key_of(1), 60, automatic=True) == ErrorCode.OK
    assert store.get(key_of(1)) == 60
    assert put(store, key_of(1), 10) == ErrorCode.OK
    assert store.get(key_of(1)) == 10


def test_rule_17_beyond_the_end_is_refused_when_stored_and_valid_when_found() -> None:
    disk = a_disk()
    store = a_store(disk)
    for automatic in (False, True):
        assert store.store(key_of(1), 0, 1, automatic=automatic, end_offset=0) == ErrorCode.INVALID_OFFSET
        assert store.store(key_of(1), 10, 1, automatic=automatic, end_offset=10) == ErrorCode.INVALID_OFFSET
    assert not store.dirty
    assert store.store(key_of(1), 9, 1, automatic=False, end_offset=10) == ErrorCode.OK
    flush(store, sync=True)
    again = a_store(disk)
    assert again.get(key_of(1)) == 9
    assert again.store(key_of(1), 9, 1, automatic=False, end_offset=3) == ErrorCode.OK, "it is no more than was there"
    assert again.store(key_of(1), 10, 1, automatic=False, end_offset=3) == ErrorCode.INVALID_OFFSET


@pytest.mark.parametrize("key", [b"", b"\3\1abcd", b"\1\1abc", b"\1\2", b"\1\3x", b"\2\2" + b"n" * 256])
def test_a_bad_key_is_refused(key: bytes) -> None:
    store = a_store(a_disk())
    assert put(store, key, 1) == ErrorCode.INVALID_IDENTIFIER
    assert store.delete(key, 1) == ErrorCode.INVALID_IDENTIFIER
    assert store.get(key) is None


def test_what_is_not_there_cannot_be_deleted() -> None:
    store = a_store(a_disk())
    assert store.delete(key_of(1), 1) == ErrorCode.CONSUMER_OFFSET_NOT_FOUND
    put(store, key_of(1), 1)
    assert store.delete(key_of(1), 1) == ErrorCode.OK
    assert store.delete(key_of(1), 1) == ErrorCode.CONSUMER_OFFSET_NOT_FOUND


def test_consumers_and_groups_have_a_bound_each() -> None:
    disk = a_disk()
    store = a_store(disk)
    for kind in (KEY_CONSUMER, KEY_GROUP):
        for number in range(CONSUMER_OFFSETS_MAX):
            assert put(store, number_key(kind, number), number) == ErrorCode.OK
        assert put(store, number_key(kind, CONSUMER_OFFSETS_MAX), 1) == ErrorCode.TOO_MANY_CONSUMER_OFFSETS
        assert put(store, number_key(kind, 0), 1) == ErrorCode.OK
    assert store.delete(key_of(7), 1) == ErrorCode.OK
    assert put(store, key_of(CONSUMER_OFFSETS_MAX), 1) == ErrorCode.OK
    flush(store, sync=True)
    again = a_store(disk)
    assert dict(again.items()) == dict(store.items())
    assert put(again, key_of(7), 1) == ErrorCode.TOO_MANY_CONSUMER_OFFSETS


def test_only_explicit_stores_of_a_persisted_store_are_waited_for() -> None:
    store = a_store(a_disk())
    put(store, key_of(1), 1, automatic=True)
    assert dirt(store) == "written"
    put(store, key_of(1), 2)
    assert dirt(store) == "synchronised"
    flush(store, sync=True)
    assert dirt(store) == "nothing"
    store.delete(key_of(1), 1)
    assert dirt(store) == "synchronised"
    replicated = a_store(a_disk(), persisted=False)
    put(replicated, key_of(1), 1)
    assert dirt(replicated) == "written"


def test_a_group_of_stores_is_one_write() -> None:
    disk = a_disk()
    store = a_store(disk)
    put(store, key_of(1), 1)
    before = len(disk.points)
    for number in range(20):
        put(store, key_of(number), number)
        put(store, key_of(1), 100 + number)
    flush(store, sync=True)
    assert [point.kind for point in disk.points[before:]] == ["sync_write"]


# --- crashes ------------------------------------------------------------------------------------------------------


class Ledger:
    """What the file should say: the records in the order in which they were packed, and how many must survive."""

    def __init__(self) -> None:
        self.base: Offsets = {}
        self.changes: list[tuple[bytes, int | None]] = []
        self.waiting: dict[bytes, int | None] = {}
        self.durable = 0

    def change(self, key: bytes, offset: int | None) -> None:
        self.waiting[key] = offset

    def pack(self) -> None:
        self.changes += self.waiting.items()
        self.waiting = {}

    def flushed(self, *, sync: bool) -> None:
        if sync:
            self.durable = len(self.changes)

    def state(self, count: int) -> Offsets:
        state = dict(self.base)
        for key, offset in self.changes[:count]:
            if offset is None:
                state.pop(key, None)
            else:
                state[key] = offset
        return state

    def after_power_failure(self) -> list[Offsets]:
        return [self.state(count) for count in range(self.durable, len(self.changes) + 1)]

    def latest(self) -> Offsets:
        state: dict[bytes, int | None] = {**self.state(len(self.changes)), **self.waiting}
        return {key: offset for key, offset in state.items() if offset is not None}

    def latest_of(self, key: bytes) -> int | None:
        return self.latest().get(key)


def scripted(disk: SimulatedDisk, ledger: Ledger, *, persisted: bool, seed: int) -> None:
    """Stores and deletes of long keys, flushed with and without a sync, until the file was compacted twice."""
    rng = random.Random(seed)
    store = a_store(disk, persisted=persisted)
    group = 0
    while sum(point.kind == "rename" for point in disk.points) < 3:
        group += 1
        for key in map(long_key, rng.choices(range(60), k=rng.randrange(10, 60))):
            points = len(disk.points)
            offset = None if rng.random() < 0.15 and store.get(key) is not None else rng.randrange(1000)
            if offset is None:
                assert store.delete(key, 1) == ErrorCode.OK
            else:
                assert put(store, key, offset) == ErrorCode.OK
            if len(disk.points) > points:  # it met a full file: everything before it was compacted
                ledger.pack()
                ledger.flushed(sync=True)
            ledger.change(key, offset)
        sync = group % 3 != 1
        ledger.pack()
        flush(store, sync=sync)
        ledger.flushed(sync=sync)


@pytest.mark.parametrize("persisted", [True, False])
def test_rule_17_a_crash_at_every_point_keeps_every_confirmed_offset(seed: int, persisted: bool) -> None:
    dry = a_disk()
    scripted(dry, Ledger(), persisted=persisted, seed=seed)
    kinds = [point.kind for point in dry.points]
    assert kinds.count("rename") == 3, "the file is made, and compacted twice"
    images = 0
    for crash_at in range(SETUP_POINTS + 1, len(dry.points) + 1):
        disk, ledger = a_disk(seed, crash_at), Ledger()
        with pytest.raises(Crashed):
            scripted(disk, ledger, persisted=persisted, seed=seed)
        # A compaction moves everything that was accepted by then, so what waits may have landed with it, whole.
        allowed = [*ledger.after_power_failure(), ledger.latest()]
        for image in disk.images(seed, subsets=4):
            images += 1
            found = offsets_in(image, persisted=persisted)
            assert found in allowed, f"crash at {disk.points[-1]}, {image.label}"
            if images % 5 == 0:
                for second in image.images(seed):
                    assert offsets_in(second, persisted=persisted) == found, "what was told is durable (rule 2)"
    assert images > 5 * len(dry.points)


def test_rule_17_a_process_crash_loses_nothing_that_was_flushed(seed: int) -> None:
    dry = a_disk()
    scripted(dry, Ledger(), persisted=False, seed=seed)
    for crash_at in range(SETUP_POINTS + 1, len(dry.points) + 1):
        disk, ledger = a_disk(seed, crash_at), Ledger()
        with pytest.raises(Crashed):
            scripted(disk, ledger, persisted=False, seed=seed)
        for image in disk.process_images():
            found = offsets_in(image, persisted=False)
            if disk.points[-1] == ("write", f"{DIRECTORY}/{FILE_NAME}"):
                assert found in [ledger.state(count) for count in range(len(ledger.changes) + 1)]
            elif disk.points[-1] != ("sync_write", f"{DIRECTORY}/{FILE_NAME}"):
                assert found in (ledger.state(len(ledger.changes)), ledger.latest()), "a compaction, done or not"


class OffsetsMachine(RuleBasedStateMachine):
    """Stores, deletes, flushes, crashes and restarts in any order, against the ledger."""

    @initialize(seed=st.integers(0, 2**32), persisted=st.booleans())
    def start(self, seed: int, persisted: bool) -> None:
        self.rng, self.persisted = random.Random(seed), persisted
        self.ledger = Ledger()
        self.disk = a_disk(seed)
        self.store = a_store(self.disk, persisted=persisted)

    @rule(key=st.integers(0, 6), offset=st.integers(0, 50), automatic=st.booleans())
    def put(self, key: int, offset: int, automatic: bool) -> None:
        current = self.ledger.latest_of(key_of(key))
        assert self.store.store(key_of(key), offset, 1, automatic=automatic, end_offset=40) == (
            ErrorCode.INVALID_OFFSET if offset >= 40 and (current is None or offset > current) else ErrorCode.OK
        )
        if offset < 40 and not (automatic and current is not None and offset <= current):
            self.ledger.change(key_of(key), offset)

    @rule(key=st.integers(0, 6))
    def delete(self, key: int) -> None:
        known = self.ledger.latest_of(key_of(key)) is not None
        assert self.store.delete(key_of(key), 1) == (ErrorCode.OK if known else ErrorCode.CONSUMER_OFFSET_NOT_FOUND)
        if known:
            self.ledger.change(key_of(key), None)

    @rule(sync=st.booleans())
    def flush(self, sync: bool) -> None:
        self.ledger.pack()
        flush(self.store, sync=sync)
        self.ledger.flushed(sync=sync)

    @rule()
    def compact(self) -> None:
        self.store._rewrite(0)
        self.ledger.pack()
        self.ledger.flushed(sync=True)

    @rule(pick=st.integers(0, 1000))
    def power_failure(self, pick: int) -> None:
        images = list(self.disk.images(pick))
        self.disk = images[pick % len(images)]
        self._restart(self.ledger.after_power_failure())

    @rule(pick=st.integers(0, 1000), sync=st.booleans())
    @precondition(lambda self: self.ledger.waiting)
    def power_failure_in_a_flush(self, pick: int, sync: bool) -> None:
        self.disk.crash_at = len(self.disk.points) + 1
        self.ledger.pack()
        with pytest.raises(Crashed):
            flush(self.store, sync=sync)
        images = list(self.disk.images(pick))
        self.disk = images[pick % len(images)]
        self._restart(self.ledger.after_power_failure())

    @rule()
    def process_crash(self) -> None:
        self.disk = self.disk.process_image()
        self._restart([self.ledger.state(len(self.ledger.changes))])

    def _restart(self, allowed: list[Offsets]) -> None:
        self.store = a_store(self.disk, persisted=self.persisted)
        assert self.store.fault is None
        found = dict(self.store.items())
        assert found in allowed
        self.ledger = Ledger()
        self.ledger.base = found

    @invariant()
    def the_store_says_what_the_ledger_says(self) -> None:
        if hasattr(self, "store"):
            offsets = dict(self.store.items())
            assert offsets == self.ledger.latest()
            assert self.store.lowest() == min(offsets.values(), default=None)
            assert len(self.store) == len(offsets)


TestOffsetsMachine = OffsetsMachine.TestCase
TestOffsetsMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


# --- damage -------------------------------------------------------------------------------------------------------


def damaged(disk: SimulatedDisk, position: int) -> None:
    """Turns over one byte of the durable file."""
    file = disk.open(f"{DIRECTORY}/{FILE_NAME}")
    page = position - position % PAGE_SIZE
    buffer = aligned_buffer(PAGE_SIZE)
    buffer[:] = file.read(page, PAGE_SIZE)
    buffer[position - page] ^= 0xFF
    file.write(page, [buffer], sync=True)


def three_synchronised_groups(*, persisted: bool) -> tuple[SimulatedDisk, list[int]]:
    """Groups of two stores each; the positions of their six records. The mark in the file covers the first two."""
    disk = a_disk()
    store = a_store(disk, persisted=persisted)
    for group in range(3):
        put(store, key_of(1), 10 * group + 1)
        put(store, key_of(2 + group), 10 * group + 2)
        flush(store, sync=True)
    contents = disk.open(f"{DIRECTORY}/{FILE_NAME}").read(0, FILE_SIZE_MIN)
    positions, position = list[int](), DATA_POSITION
    while (record := unpack_record(contents, position, INCARNATION)) is not None:
        positions.append(position)
        position += record.length
    return disk, positions


def test_rule_17_damage_at_or_above_the_mark_is_cut_with_what_is_behind_it(seed: int) -> None:
    disk, positions = three_synchronised_groups(persisted=True)
    assert len(positions) == 6
    damaged(disk, positions[4] + 17)
    store = a_store(disk)
    assert store.fault is None
    assert dict(store.items()) == {key_of(1): 11, key_of(2): 2, key_of(3): 12}
    put(store, key_of(9), 9)
    flush(store, sync=True)
    for image in disk.images(seed):
        assert offsets_in(image) == {key_of(1): 11, key_of(2): 2, key_of(3): 12, key_of(9): 9}, "nothing comes back"


def test_rule_09_a_cut_leaves_nothing_that_a_later_record_could_join() -> None:
    disk = a_disk()
    store = a_store(disk)
    page_full = [*map(long_key, range(2)), *map(key_of, range(62))]
    for key in [*page_full, key_of(100), key_of(101)]:
        put(store, key, 1)
    flush(store, sync=True)
    damaged(disk, DATA_POSITION + 17)
    store = a_store(disk)
    assert len(store) == 0
    for key in page_full:
        put(store, key, 2)
    (write,) = store.prepare_flush(True)
    write()
    assert store._end == DATA_POSITION + PAGE_SIZE, "the next record would stand where the old ones went on"
    assert offsets_in(disk) == dict.fromkeys(page_full, 2)


@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_rule_17_damage_below_the_mark_refuses_the_consumers_of_a_persisted_store(number: int) -> None:
    disk, positions = three_synchronised_groups(persisted=True)
    damaged(disk, positions[number] + 17)
    store = a_store(disk)
    assert isinstance(store.fault, Corrupt)
    assert store.fault.position == positions[number]
    assert store.fault.path == store.path
    assert "log repair" in str(store.fault)
    assert put(store, key_of(1), 1) == ErrorCode.OFFSETS_REFUSED
    assert store.delete(key_of(1), 1) == ErrorCode.OFFSETS_REFUSED
    assert store.get(key_of(1)) is None
    assert store.prepare_flush(True) == []
    assert a_store(disk).fault is not None, "looking does not repair"


def test_rule_17_damage_below_the_mark_resets_that_cursor_of_a_replicated_store(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk, positions = three_synchronised_groups(persisted=False)
    damaged(disk, positions[1] + 17)
    with caplog.at_level(logging.ERROR):
        store = a_store(disk, persisted=False)
    assert f"at byte {positions[1]}" in caplog.text
    assert dict(store.items()) == {key_of(1): 21, key_of(3): 12, key_of(4): 22}
    caplog.clear()
    assert offsets_in(disk, persisted=False) == {key_of(1): 21, key_of(3): 12, key_of(4): 22}
    assert not caplog.records, "it is said once"


@pytest.mark.parametrize("change", ["damage", "incarnation", "log"])
def test_rule_17_a_damaged_or_foreign_header_is_loss(change: str) -> None:
    disk, _ = three_synchronised_groups(persisted=True)
    log_id, incarnation = LOG_ID, INCARNATION
    if change == "damage":
        damaged(disk, 9)
    elif change == "log":
        log_id += 1
    else:
        incarnation = bytes(16)
    refused = OffsetStore(disk, DIRECTORY, log_id, incarnation, persisted=True)
    assert refused.fault is not None
    assert refused.fault.position == 0
    reset = OffsetStore(disk, DIRECTORY, log_id, incarnation, persisted=False)
    assert reset.fault is None
    assert put(reset, key_of(1), 1) == ErrorCode.OK


def test_random_damage_never_invents_an_offset(rng: random.Random) -> None:
    disk, _ = three_synchronised_groups(persisted=False)
    whole = bytearray(disk.open(f"{DIRECTORY}/{FILE_NAME}").read(0, 2 * PAGE_SIZE))
    true = {(key_of(1), n) for n in (1, 11, 21)} | {(key_of(2), 2), (key_of(3), 12), (key_of(4), 22)}
    for _ in range(500):
        broken = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            start = DATA_POSITION + rng.randrange(400)
            length = rng.randrange(1, 60)
            broken[start : start + length] = rng.randbytes(length)
        assert set(read_offsets(bytes(broken), LOG_ID, INCARNATION).offsets.items()) <= true


# --- a disk that is full or fails ---------------------------------------------------------------------------------


def filled(disk: SimulatedDisk, count: int = 500) -> tuple[OffsetStore, list[int]]:
    """A store after so many synchronised stores, and their statuses: one file is full after 400."""
    store, statuses = a_store(disk), []
    for number in range(count):
        expected = dict(store.items())
        statuses.append(put(store, long_key(number % 60), number))
        if statuses[-1] == ErrorCode.OK:
            expected[long_key(number % 60)] = number
        assert dict(store.items()) == expected
        flush(store, sync=True)
    return store, statuses


@pytest.mark.parametrize("time", [0, 1])
@pytest.mark.parametrize("kind", ["create", "allocate"])
def test_rule_11_no_space_refuses_the_store_and_changes_nothing(time: int, kind: str) -> None:
    dry = a_disk()
    filled(dry)
    disk = a_disk()
    disk.fail([n for n, point in enumerate(dry.points, 1) if point.kind == kind][time], errno.ENOSPC)
    store, statuses = filled(disk)
    assert statuses.count(ErrorCode.DISK_FULL) == 1
    assert statuses.count(ErrorCode.OK) == len(statuses) - 1
    assert disk.list(DIRECTORY) == [FILE_NAME]
    assert offsets_in(disk) == dict(store.items())


@pytest.mark.parametrize("kind", ["sync_write", "sync", "rename", "sync_directory"])
def test_rule_11_an_error_while_the_file_is_made_poisons(kind: str) -> None:
    disk = a_disk()
    put(a_store(disk), key_of(1), 1)
    number = next(n for n, point in enumerate(disk.points, 1) if n > SETUP_POINTS and point.kind == kind)
    disk = a_disk()
    disk.fail(number, errno.EIO)
    store = a_store(disk)
    with pytest.raises(DiskFailed):
        put(store, key_of(1), 1)
    assert put(store, key_of(1), 1) == ErrorCode.PARTITION_POISONED
    assert store.prepare_flush(True) == []


@pytest.mark.parametrize("sync", [True, False])
def test_rule_11_a_failed_flush_poisons_and_confirmed_offsets_stay(seed: int, sync: bool) -> None:
    disk = a_disk(seed)
    store = a_store(disk)
    put(store, key_of(1), 1)
    flush(store, sync=True)
    put(store, key_of(1), 2)
    disk.fail(len(disk.points) + 1, errno.EIO)
    fails_to_flush(store, sync=sync)
    assert put(store, key_of(1), 3) == ErrorCode.PARTITION_POISONED
    assert store.delete(key_of(1), 3) == ErrorCode.PARTITION_POISONED
    assert store.get(key_of(1)) == 2, "reads go on"
    again = a_store(disk)
    found = again.get(key_of(1))
    assert found in (1, 2)
    for image in disk.images(seed):
        assert offsets_in(image) == {key_of(1): found}


def stores_without_a_flush(store: OffsetStore) -> None:
    """So many that the file is full."""
    for number in range(1000):
        assert put(store, long_key(number), number) == ErrorCode.OK


def test_rule_11_what_was_accepted_before_a_failure_is_not_confirmed_after_it() -> None:
    disk = a_disk()
    store = a_store(disk)
    put(store, key_of(1), 1)
    flush(store, sync=True)
    disk.fail(len(disk.points) + 3, errno.EIO)  # the write of the compaction that the group below runs into
    with pytest.raises(DiskFailed):
        stores_without_a_flush(store)
    assert len(store) > 100
    for _ in range(2):
        assert dirt(store) == "synchronised"
        assert "earlier" in str(fails_to_flush(store, sync=True))
    assert offsets_in(disk) == {key_of(1): 1}


def test_an_unfinished_compaction_is_swept() -> None:
    disk = a_disk()
    store = a_store(disk)
    put(store, key_of(1), 1)
    flush(store, sync=True)
    disk.create(f"{DIRECTORY}/{FILE_NAME}.new").close()
    assert offsets_in(disk) == {key_of(1): 1}
    assert disk.list(DIRECTORY) == [FILE_NAME]
