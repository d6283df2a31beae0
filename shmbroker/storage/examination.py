"""The examination: finds the facts about a partition that recovery decides on. Changes nothing.

Reads the first page of every segment, scans the newest one where it has no seal, looks behind the damage, then looks at
the ring. Sealed segments are trusted by their seal, so the time grows with the newest segment and not with the data.
After a failed sync (``uncached``) the newest segment is read past the page cache, which may show what never reached the
disk (rule 2).
"""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Final

from shmbroker.errors import Corrupt
from shmbroker.formats import control as control_format
from shmbroker.formats.segment import (
    DATA_POSITION,
    GAP_NONE,
    GAP_REPAIR,
    LOG_SUFFIX,
    Seal,
    SegmentHeader,
    base_offset_of,
    log_name,
    unpack_header,
    unpack_seal,
)
from shmbroker.formats.superblock import Superblock
from shmbroker.limits import PAGE_SIZE
from shmbroker.storage.disk import Disk, DiskFile
from shmbroker.storage.journal import RingJournal
from shmbroker.storage.read_ahead import BLOCK_SIZE, ReadAhead
from shmbroker.storage.recovery import (
    RESTORE,
    Chain,
    Clean,
    FileDecision,
    FileRow,
    Mark,
    NumberDecision,
    NumberRow,
    Ring,
    Tail,
    decide_files,
    decide_number,
)
from shmbroker.storage.runtime import Runtime
from shmbroker.storage.scan import (
    FAULT_DAMAGE,
    FAULT_END,
    FAULT_FOREIGN,
    FAULT_GAP,
    ReadLog,
    Residue,
    Scan,
    scan,
    search_residue,
)
from shmbroker.storage.segment import SegmentInfo

READ_AHEAD_FROM: Final = BLOCK_SIZE
"""Smaller logs are read in one call anyway."""


@dataclass(slots=True)
class FoundSegment:
    """A segment whose header was readable."""

    header: SegmentHeader
    info: SegmentInfo


@dataclass(slots=True)
class Examination:
    """The facts, and the rows that fit them."""

    directory: str
    """Of the incarnation."""
    superblock: Superblock
    segments: list[FoundSegment] = field(default_factory=list)
    newest_bad: str | None = None
    """Path of the newest segment where its header cannot be read."""
    newest_bad_offset: int = 0
    chain: Chain = Chain.NONE
    tail: Tail = Tail.NONE
    mark: int = 0
    scan: Scan | None = None
    residue_end: int = 0
    fault_path: str = ""
    fault_position: int = 0
    """Byte of that file."""
    fault_text: str = ""
    ring: RingJournal | None = None
    ring_scan: Scan | None = None
    ring_fact: Ring = Ring.NONE
    clean: Clean = Clean.NO
    file_row: FileRow | None = None
    number_row: NumberRow | None = None

    @property
    def end_position(self) -> int:
        """Where the whole part of the files ends."""
        if self.scan is not None:
            return self.scan.position
        return self.segments[-1].info.end_position if self.segments else 0

    @property
    def end_offset(self) -> int:
        """The offset after the last message in the whole part of the files."""
        if self.scan is not None:
            return self.scan.offset
        return self.segments[-1].info.end_offset if self.segments else 0

    def require(self) -> None:
        """Raises Corrupt where a row refuses."""
        row = self.file_row
        if row is not None and row.decision is FileDecision.REFUSE:
            text = f"{row.text} (case {row.letter})" + (f": {self.fault_text}" if self.fault_text else "")
            if row.letter in "BGIK":
                text += f"; the log is whole up to position {self.end_position}, stable storage held {self.mark}"
            raise Corrupt(self.fault_path or self.directory, self.fault_position, text, row.remedy)
        number = self.number_row
        if number is not None and number.decision is NumberDecision.REFUSE:
            text = (
                f"{number.text} (case {number.letter}): the files end at {self.end_position}, offset {self.end_offset}"
            )
            raise Corrupt(self.fault_path or self.directory, self.fault_position, text, number.remedy)


def examine(
    disk: Disk, runtime: Runtime, directory: str, superblock: Superblock, control: memoryview | None, *, uncached: bool,
    executor: Executor | None = None,
) -> Examination:  # fmt: skip
    """Everything there is to know before anything is changed. Raises DiskFailed where it cannot be read. With an
    ``executor`` the newest segment is read ahead of its scan."""
    found = Examination(directory, superblock)
    _examine_chain(disk, found)
    if found.chain is Chain.WHOLE:
        _examine_tail(disk, found, uncached, executor)
    found.mark = max(
        found.mark,
        superblock.durable_position,
        *(segment.info.end_position for segment in found.segments if segment.info.sealed),
    )
    reached = Mark.REACHED if found.end_position >= found.mark else Mark.MISSED
    found.file_row = decide_files(found.chain, found.tail, reached)
    if found.file_row.decision is FileDecision.REFUSE:
        return found
    _examine_ring(disk, runtime, found, control)
    if superblock.clean:
        exact = superblock.end_position == found.end_position and superblock.end_offset >= found.end_offset
        found.clean = Clean.EXACT if exact else Clean.OTHER
    end_offset = found.end_offset
    if found.clean is Clean.EXACT:
        end_offset = superblock.end_offset
    elif found.ring_scan is not None and found.ring_fact is Ring.REACHES:
        end_offset = found.ring_scan.offset
    found.number_row = decide_number(found.clean, found.ring_fact, end_offset <= superblock.reserved_offset)
    return found


def _examine_chain(disk: Disk, found: Examination) -> None:
    try:
        names = [name for name in disk.list(found.directory) if name.endswith(LOG_SUFFIX)]
    except FileNotFoundError as error:
        raise Corrupt(found.directory, 0, "the directory of this incarnation is missing", RESTORE) from error
    offsets = sorted(offset for name in names if (offset := base_offset_of(name)) is not None)
    for number, base_offset in enumerate(offsets):
        path = f"{found.directory}/{log_name(base_offset)}"
        chain, fault = _examine_segment(disk, found, path, base_offset, newest=number == len(offsets) - 1)
        if chain is not Chain.WHOLE:
            found.chain, found.fault_text = chain, fault
            found.fault_path, found.fault_position = path, 0
            return
        found.chain = Chain.WHOLE


def _examine_segment(disk: Disk, found: Examination, path: str, base_offset: int, *, newest: bool) -> tuple[Chain, str]:
    file = disk.open(path)
    try:
        page, size = file.read(0, PAGE_SIZE), file.size()
    finally:
        file.close()
    header, seal = unpack_header(page), unpack_seal(page)
    if header is None:
        if not newest:
            return Chain.INNER_BAD, "its header cannot be read"
        found.newest_bad, found.newest_bad_offset = path, base_offset
        return Chain.NEWEST_HEADER_BAD, "its header cannot be read"
    superblock = found.superblock
    if (header.log_id, header.incarnation, header.partition_id, header.base_offset) != (
        superblock.log_id, superblock.incarnation, superblock.partition_id, base_offset,
    ):  # fmt: skip
        return Chain.FOREIGN, f"its header says log {header.log_id}, offset {header.base_offset}"
    fault = _joint_fault(found.segments[-1].info, header) if found.segments else None
    if fault is not None:
        return Chain.GAP, fault
    if seal is not None and seal.incarnation != header.incarnation:
        return Chain.FOREIGN, "its seal is of another incarnation"
    if seal is None and not newest:
        return Chain.INNER_BAD, "its seal is missing"
    if seal is not None and size < DATA_POSITION + seal.end_position - header.base_position:
        return Chain.INNER_BAD, f"it has {size} bytes, its seal says more"
    found.segments.append(FoundSegment(header, _info_of(header, seal, size)))
    return Chain.WHOLE, ""


def _joint_fault(previous: SegmentInfo, header: SegmentHeader) -> str | None:
    """What is wrong between a segment and the one before it, or None."""
    if header.gap_reason == GAP_REPAIR:
        whole = header.base_position >= previous.end_position and header.base_offset >= previous.end_offset
        return None if whole else "it begins before the one before it ends"
    if header.base_position != previous.end_position:
        return f"it begins at position {header.base_position}, the one before it ends at {previous.end_position}"
    if header.gap_reason == GAP_NONE:
        whole = header.base_offset == previous.end_offset
    else:
        whole = header.previous_end_offset == previous.end_offset <= header.base_offset
    return None if whole else f"it begins at offset {header.base_offset}, the one before ends at {previous.end_offset}"


def _info_of(header: SegmentHeader, seal: Seal | None, size: int) -> SegmentInfo:
    if seal is None:
        position, offset = header.base_position, header.base_offset
        return SegmentInfo(offset, position, offset, position, 0, 0, 0, 0, False, size)
    return SegmentInfo(
        header.base_offset, header.base_position, seal.end_offset, seal.end_position, seal.message_count,
        seal.first_timestamp, seal.last_timestamp, seal.index_entry_count, True, size,
    )  # fmt: skip


def reader_of(file: DiskFile, base_position: int, *, uncached: bool) -> ReadLog:
    """A function that reads a segment file by log position."""
    read = file.read_uncached if uncached else file.read
    shift = DATA_POSITION - base_position
    return lambda position, size: read(position + shift, size)


def _examine_tail(disk: Disk, found: Examination, uncached: bool, executor: Executor | None) -> None:
    newest = found.segments[-1]
    found.fault_path = f"{found.directory}/{log_name(newest.header.base_offset)}"
    if newest.info.sealed:
        found.tail = Tail.SEALED
        found.fault_position = newest.info.file_size
        return
    header = newest.header
    file = disk.open(found.fault_path)
    try:
        limit = header.base_position + max(0, file.size() - DATA_POSITION)
        result, residue = _scan_newest(
            reader_of(file, header.base_position, uncached=uncached), header, limit, found.superblock, executor
        )
    finally:
        file.close()
    found.scan = result
    found.residue_end = residue.end
    found.mark = max(result.mark, residue.mark)
    found.fault_position = DATA_POSITION + result.position - header.base_position
    found.fault_text = result.fault_text
    if result.fault in (FAULT_END, FAULT_DAMAGE):
        found.tail = Tail.RESIDUE if residue.end > result.position else Tail.ZEROS
    else:
        found.tail = {FAULT_FOREIGN: Tail.FOREIGN, FAULT_GAP: Tail.GAP}[result.fault]
    info = newest.info
    info.end_position, info.end_offset, info.message_count = result.position, result.offset, result.message_count
    info.first_timestamp, info.last_timestamp = result.first_timestamp, result.last_timestamp


def _scan_newest(
    read: ReadLog, header: SegmentHeader, limit: int, superblock: Superblock, executor: Executor | None
) -> tuple[Scan, Residue]:
    """Scans, and looks behind the end; not behind that of a clean stop that nothing follows: there are zeros only."""
    base = header.base_position
    begin = Scan(base, header.base_offset, header.incarnation, header.partition_id)
    stop = superblock.end_position
    if superblock.clean and base <= stop < limit and not any(read(stop, PAGE_SIZE)):
        limit = stop
    if executor is None or limit - base <= READ_AHEAD_FROM:
        result = scan(read, begin, limit)
        return result, search_residue(read, result.position, limit, header.incarnation)
    ahead = ReadAhead(read, base, limit, executor)
    try:
        result = scan(ahead, begin, limit)
        return result, search_residue(ahead, result.position, limit, header.incarnation)
    finally:
        ahead.settle()


def _examine_ring(disk: Disk, runtime: Runtime, found: Examination, control: memoryview | None) -> None:
    superblock = found.superblock
    if control is None or control[control_format.WORD_MAGIC] != control_format.CONTROL_MAGIC:
        return
    generation = control[control_format.WORD_RING_GENERATION]
    if generation == 0:
        return
    found.ring_fact = Ring.OTHER
    ring = RingJournal.adopt(runtime, superblock.log_id, superblock.incarnation, generation)
    if ring is None or not _joins(disk, found, ring, control[control_format.WORD_OVERWRITE_END]):
        return
    end = found.end_position
    result = Scan(end, found.end_offset, superblock.incarnation, superblock.partition_id)
    if found.scan is not None:
        result.next_entry_position = found.scan.next_entry_position
    page = end - end % PAGE_SIZE
    scan(ring.get, result, page + ring.size)
    found.ring, found.ring_scan = ring, result
    reaches = result.position >= control[control_format.WORD_COMMITTED_POSITION]
    found.ring_fact = Ring.REACHES if reaches else Ring.SHORT


def _joins(disk: Disk, found: Examination, ring: RingJournal, overwrite_end: int) -> bool:
    """Whether the ring goes on where the files end: it holds the last page of them, byte for byte (rule 5)."""
    end = found.end_position
    page = end - end % PAGE_SIZE
    if ring.base > page or overwrite_end - ring.size > page:
        return False
    if page == end:
        return True
    info = found.segments[-1].info
    file = disk.open(f"{found.directory}/{log_name(info.base_offset)}")
    try:
        return file.read(DATA_POSITION + page - info.base_position, end - page) == ring.get(page, end - page)
    finally:
        file.close()
