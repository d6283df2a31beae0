"""Recovery's table: one test for each letter, on a real log that something was done to; and the table's own shape."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from shmbroker.errors import Corrupt
from shmbroker.formats import control as words
from shmbroker.formats import segment as segment_format
from shmbroker.formats.batch import HEADER_SIZE, pack_header, unpack_header
from shmbroker.formats.control import State
from shmbroker.limits import OFFSET_RESERVATION, PAGE_SIZE
from shmbroker.storage.disk import aligned_buffer
from shmbroker.storage.examination import examine
from shmbroker.storage.partition_log import PartitionLog
from shmbroker.storage.recovery import (
    FILE_ROWS,
    NUMBER_ROWS,
    Chain,
    Clean,
    FileDecision,
    Mark,
    Ring,
    Tail,
    decide_files,
    decide_number,
)
from shmbroker.storage.superblock import SuperblockFile
from tests.storage.log_world import (
    DIRECTORY,
    LOG_ID,
    PARTITION_ID,
    append,
    finish_pass,
    make_disk,
    open_log,
    read_files,
    record_of,
)
from tests.storage.memory_runtime import MemoryRuntime
from tests.storage.simulated_disk import SimulatedDisk


def edit(disk: SimulatedDisk, path: str, position: int, contents: bytes) -> None:
    """Changes bytes of a file behind everybody's back, durably."""
    file = disk.open(path)
    start = position - position % PAGE_SIZE
    end = -(-(position + len(contents)) // PAGE_SIZE) * PAGE_SIZE
    buffer = aligned_buffer(end - start)
    before = file.read(start, end - start)
    buffer[: len(before)] = before
    buffer[position - start : position - start + len(contents)] = contents
    file.write(start, [buffer], sync=True)
    file.close()


def base_of(disk: SimulatedDisk) -> str:
    superblock = SuperblockFile.open(disk, DIRECTORY, LOG_ID)
    superblock.close()
    return f"{DIRECTORY}/{superblock.current.incarnation.hex()}"


def segments_of(disk: SimulatedDisk) -> list[str]:
    base = base_of(disk)
    return [f"{base}/{name}" for name in disk.list(base) if name.endswith(".log")]


def contents_of(disk: SimulatedDisk, path: str) -> bytes:
    file = disk.open(path)
    contents = file.read(0, file.size())
    file.close()
    return contents


def letters(disk: SimulatedDisk, runtime: MemoryRuntime) -> tuple[str, str]:
    """The rows that fit, without changing anything but the superblock's own slot."""
    superblock = SuperblockFile.open(disk, DIRECTORY, LOG_ID)
    superblock.close()
    current = superblock.current
    control = runtime.open_control(LOG_ID, current.incarnation)
    found = examine(disk, runtime, base_of(disk), current, control, uncached=False)
    assert found.file_row is not None
    return found.file_row.letter, found.number_row.letter if found.number_row else ""


def refusal(disk: SimulatedDisk, runtime: MemoryRuntime) -> Corrupt:
    """Opening refuses, says so in the control block, and changes nothing."""
    base = base_of(disk)
    before = {name: contents_of(disk, f"{base}/{name}") for name in disk.list(base)}
    with pytest.raises(Corrupt) as caught:
        open_log(disk, runtime)
    assert {name: contents_of(disk, f"{base}/{name}") for name in disk.list(base)} == before
    superblock = SuperblockFile.open(disk, DIRECTORY, LOG_ID)
    superblock.close()
    control = runtime.open_control(LOG_ID, superblock.current.incarnation)
    assert control is not None
    assert control[words.WORD_STATE] == State.REFUSED
    assert caught.value.path.startswith(DIRECTORY)
    assert caught.value.remedy
    return caught.value


def written(*, groups: int = 4, close: bool = True, **options: Any) -> tuple[SimulatedDisk, MemoryRuntime]:
    """A log of several groups, stopped cleanly or left as a killed process leaves it."""
    disk, runtime = make_disk(), MemoryRuntime()
    log = open_log(disk, runtime, **options)
    for number in range(groups):
        append(log, [b"%d-%d" % (number, n) * 100 for n in range(3)])
        finish_pass(log)
    if close:
        log.close(9)
    else:
        log.abandon()
    return disk, runtime


def several_segments(**options: Any) -> tuple[SimulatedDisk, MemoryRuntime]:
    disk, runtime = written(groups=40, segment_size=8192, **options)
    assert len(segments_of(disk)) >= 4
    return disk, runtime


def test_case_a_an_empty_partition_is_accepted() -> None:
    disk, runtime = make_disk(), MemoryRuntime()
    assert letters(disk, runtime) == ("A", "R")
    log = open_log(disk, runtime)
    assert append(log, [b"first"]) == 0
    log.abandon()


def test_case_b_no_segment_where_messages_were_durable_refuses() -> None:
    disk, runtime = written()
    for path in segments_of(disk):
        disk.unlink(path)
    assert letters(disk, runtime)[0] == "B"
    assert "case B" in str(refusal(disk, runtime))


def test_case_c_a_segment_of_another_partition_refuses() -> None:
    disk, runtime = written()
    path = segments_of(disk)[0]
    page = contents_of(disk, path)[:PAGE_SIZE]
    header = segment_format.unpack_header(page)
    assert header is not None
    edit(disk, path, 0, segment_format.pack_page(header._replace(log_id=LOG_ID + 1), None))
    assert letters(disk, runtime)[0] == "C"
    assert "log 8" in str(refusal(disk, runtime))
    edit(disk, path, 0, segment_format.pack_page(header._replace(incarnation=bytes(16)), None))
    assert letters(disk, runtime)[0] == "C"
    edit(disk, path, 0, segment_format.pack_page(header._replace(partition_id=PARTITION_ID + 1), None))
    assert letters(disk, runtime)[0] == "C"


def test_case_d_a_missing_segment_between_two_others_refuses() -> None:
    disk, runtime = several_segments()
    disk.unlink(segments_of(disk)[1])
    assert letters(disk, runtime)[0] == "D"
    assert refusal(disk, runtime).path == segments_of(disk)[1]


@pytest.mark.parametrize("position", [3, segment_format.SEAL_POSITION + 3], ids=["header", "seal"])
def test_case_e_a_damaged_older_segment_refuses(position: int) -> None:
    disk, runtime = several_segments()
    path = segments_of(disk)[1]
    edit(disk, path, position, b"\xff\xff")
    assert letters(disk, runtime)[0] == "E"
    assert refusal(disk, runtime).path == path


def test_case_f_a_newest_segment_without_header_that_nobody_was_promised_is_dropped() -> None:
    disk, runtime = written(close=False)
    path = segments_of(disk)[0]
    edit(disk, path, 0, bytes(PAGE_SIZE))
    runtime = runtime.after_power_failure()
    assert letters(disk, runtime) == ("F", "R")
    log = open_log(disk, runtime)
    assert segments_of(disk) == []
    assert append(log, [b"goes on"]) == OFFSET_RESERVATION
    log.abandon()


def test_case_g_a_newest_segment_without_header_that_held_durable_messages_refuses() -> None:
    disk, runtime = written()
    edit(disk, segments_of(disk)[0], 0, bytes(8))
    assert letters(disk, runtime)[0] == "G"
    refusal(disk, runtime)


def test_case_h_and_n_a_clean_stop_goes_on_where_it_was() -> None:
    disk, runtime = written()
    assert letters(disk, runtime) == ("H", "N")
    before = len(disk.points)
    log = open_log(disk, runtime)
    assert [point.kind for point in disk.points[before:]] == ["sync_write"], "only the superblock, as it is opened"
    assert append(log, [b"next"]) == 12
    log.abandon()


def test_case_i_a_log_that_ends_in_zeros_below_the_mark_refuses() -> None:
    disk, runtime = written(persisted=True)
    path = segments_of(disk)[0]
    size = len(contents_of(disk, path))
    edit(disk, path, 2 * PAGE_SIZE, bytes(size - 2 * PAGE_SIZE))
    edit(disk, path, PAGE_SIZE + record_length(disk, path), bytes(PAGE_SIZE - record_length(disk, path)))
    assert letters(disk, runtime)[0] == "I"
    error = refusal(disk, runtime)
    assert error.position == PAGE_SIZE + record_length(disk, path)


def record_length(disk: SimulatedDisk, path: str) -> int:
    """Of the first record."""
    return unpack_header(contents_of(disk, path), PAGE_SIZE).record_length


def test_case_j_damage_at_or_above_the_mark_is_cut_with_the_intact_records_behind_it() -> None:
    # Written, never synchronised: the second record is damaged, the third is whole.
    disk, runtime = written(close=False, messages_required_to_save=1)
    path = segments_of(disk)[0]
    length = record_length(disk, path)
    edit(disk, path, PAGE_SIZE + length + HEADER_SIZE + 70, b"?")
    runtime = runtime.after_power_failure()
    assert letters(disk, runtime) == ("J", "R")
    log = open_log(disk, runtime)
    assert [offset for offset, _ in read_files(disk)] == [0, 1, 2]
    assert append(log, [b"goes on"]) == OFFSET_RESERVATION
    log.abandon()


def test_case_k_damage_below_the_mark_refuses_with_the_place() -> None:
    disk, runtime = written(persisted=True)
    path = segments_of(disk)[0]
    length = record_length(disk, path)
    edit(disk, path, PAGE_SIZE + length + HEADER_SIZE + 70, b"?")
    assert letters(disk, runtime)[0] == "K"
    error = refusal(disk, runtime)
    assert (error.path, error.position) == (path, PAGE_SIZE + length)


def test_case_k_the_mark_is_found_in_an_intact_record_behind_the_damage() -> None:
    disk, runtime = written(persisted=True, close=False)
    runtime = runtime.after_power_failure()
    path = segments_of(disk)[0]
    edit(disk, path, PAGE_SIZE + 60, b"?")
    assert letters(disk, runtime)[0] == "K", "the superblock knows nothing yet; the last record says what was durable"


def test_case_l_an_intact_record_of_another_incarnation_refuses() -> None:
    disk, runtime = written(close=False, messages_required_to_save=1)
    runtime = runtime.after_power_failure()
    path = segments_of(disk)[0]
    header = unpack_header(contents_of(disk, path), PAGE_SIZE)
    edit(disk, path, PAGE_SIZE, pack_header(header._replace(incarnation=bytes(range(16)))))
    assert letters(disk, runtime)[0] == "L"
    refusal(disk, runtime)


def test_case_m_an_offset_missing_within_a_segment_refuses() -> None:
    disk, runtime = written(close=False, messages_required_to_save=1)
    runtime = runtime.after_power_failure()
    path = segments_of(disk)[0]
    header = unpack_header(contents_of(disk, path), PAGE_SIZE)
    edit(disk, path, PAGE_SIZE, pack_header(header._replace(base_offset=5)))
    assert letters(disk, runtime)[0] == "M"
    refusal(disk, runtime)


def test_case_o_a_log_that_goes_on_behind_its_clean_stop_refuses() -> None:
    disk, runtime = written()
    stopped = contents_of(disk, f"{DIRECTORY}/superblock")
    log = open_log(disk, runtime)
    append(log, [b"later"])
    log.close(9)
    edit(disk, f"{DIRECTORY}/superblock", 0, stopped)
    assert letters(disk, runtime) == ("H", "O")
    refusal(disk, runtime)


def test_case_p_the_ring_of_killed_processes_is_adopted() -> None:
    disk, runtime = written(close=False)
    assert read_files(disk) == [], "nothing was flushed"
    assert letters(disk, runtime) == ("H", "P")
    log = open_log(disk, runtime)
    assert len(read_files(disk)) == 12
    assert append(log, [b"next"]) == 12
    log.abandon()


def test_case_q_a_ring_that_lost_committed_records_is_not_numbered_after() -> None:
    disk, runtime = written(close=False)
    mapping = next(iter(runtime.rings.values()))
    length = len(record_of([b"0-0" * 100] * 3))
    mapping[PAGE_SIZE + 2 * length : PAGE_SIZE + 2 * length + 8] = b"\xff" * 8
    assert letters(disk, runtime) == ("H", "Q")
    log = open_log(disk, runtime)
    assert append(log, [b"goes on"]) == OFFSET_RESERVATION
    log.abandon()


@pytest.mark.parametrize("lost", ["power", "runtime directory deleted", "ring of another boot", "ring torn"])
def test_case_r_without_a_ring_numbering_goes_on_at_the_reservation(lost: str) -> None:
    disk, runtime = written(close=False)
    if lost == "power":
        runtime = runtime.after_power_failure()
    elif lost == "runtime directory deleted":
        runtime = MemoryRuntime(boot=runtime.boot)
    elif lost == "ring of another boot":
        runtime.boot_id = b"another boot....".ljust(16)
    else:
        next(iter(runtime.rings.values()))[20] ^= 1
    assert letters(disk, runtime) == ("H", "R")
    log = open_log(disk, runtime)
    assert append(log, [b"goes on"]) == OFFSET_RESERVATION
    log.abandon()


def test_case_s_a_log_above_its_reservation_refuses() -> None:
    disk, runtime = make_disk(), MemoryRuntime()
    born = contents_of(disk, f"{DIRECTORY}/superblock")
    log = open_log(disk, runtime)
    append(log, [b"message"])
    log.close(9)
    edit(disk, f"{DIRECTORY}/superblock", 0, born)
    assert letters(disk, runtime)[1] == "S"
    refusal(disk, runtime)


def test_both_superblock_slots_damaged_refuse() -> None:
    disk, runtime = written()
    edit(disk, f"{DIRECTORY}/superblock", 0, b"\xff" * (2 * PAGE_SIZE))
    with pytest.raises(Corrupt, match="superblock"):
        open_log(disk, runtime)


def test_every_combination_of_facts_has_one_row_or_cannot_occur() -> None:
    occurring = set()
    for chain, tail, mark in itertools.product(Chain, Tail, Mark):
        rows = [row for row in FILE_ROWS if chain in row.chain and tail in row.tail and mark in row.mark]
        assert len(rows) <= 1
        occurring |= {row.letter for row in rows}
        if not rows:
            assert (tail is Tail.NONE) != (chain in (Chain.NONE, Chain.NEWEST_HEADER_BAD))
            with pytest.raises(AssertionError, match="no single row"):
                decide_files(chain, tail, mark)
    assert occurring == set("ABCDEFGHIJKLM")
    for clean, ring, within in itertools.product(Clean, Ring, (True, False)):
        occurring.add(decide_number(clean, ring, within).letter)
    assert occurring == {row.letter for row in FILE_ROWS} | {row.letter for row in NUMBER_ROWS}


def test_every_letter_has_a_test_and_every_refusal_a_remedy() -> None:
    names = " ".join(name for name in globals() if name.startswith("test_case_"))
    for row in (*FILE_ROWS, *NUMBER_ROWS):
        letter = row.letter.lower()
        assert f"_{letter}_" in names, f"case {letter} has no test"
        refuses = row.decision.name == FileDecision.REFUSE.name
        assert bool(row.remedy) == refuses


@pytest.mark.parametrize("spoiled", ["missing", "short", "torn", "foreign"])
def test_an_index_is_rebuilt_from_the_log(spoiled: str) -> None:
    disk, runtime = several_segments()
    base = base_of(disk)
    wanted = {name: contents_of(disk, f"{base}/{name}") for name in disk.list(base) if name.endswith(".index")}
    for name in wanted:
        if spoiled == "missing":
            disk.unlink(f"{base}/{name}")
        elif spoiled == "short":
            disk.unlink(f"{base}/{name}")
            disk.create(f"{base}/{name}").close()
        elif spoiled == "torn":
            edit(disk, f"{base}/{name}", 40, b"\xff")
        else:
            edit(disk, f"{base}/{name}", 8, bytes(16))
    open_log(disk, runtime, segment_size=8192).abandon()
    for name, contents in wanted.items():
        assert contents_of(disk, f"{base}/{name}")[:200] == contents[:200]


def test_a_refused_partition_does_not_hold_up_another() -> None:
    disk, runtime = written()
    other = DIRECTORY[:-1] + "8"
    PartitionLog.create(disk, other, LOG_ID + 1, 0)
    edit(disk, segments_of(disk)[0], 0, bytes(8))
    refusal(disk, runtime)
    superblock = SuperblockFile.open(disk, other, LOG_ID + 1)
    superblock.close()
    assert superblock.current.log_id == LOG_ID + 1
