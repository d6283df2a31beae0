"""Making a refused partition start again: ``log repair``. Says what it gives up; does it only when told to.

What is whole stays, in its place, with its offsets. Given up is: a segment whose first page cannot be read or is
another log's; the rest of a segment behind its first damage; what is missing between two segments, or at the end. The
bytes that are given up are kept beside the log in files ending ``.given-up``, which no broker reads.

Then every kept segment is sealed, one that follows a loss says so in its header (GAP_REPAIR), and a new, empty segment
begins at the reservation and at a position that nothing intact speaks of: no offset and no position is used twice. The
ring and the control block go (rule 5). Last, the superblock counts one more repair. Each step leaves a log that is no
worse: a repair that was interrupted is planned anew from what is there, and gives up nothing more.

Where both slots of the superblock are gone, the log is numbered on from twice a whole reservation above its end.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Final

from shmbroker.errors import ClientMistake
from shmbroker.formats import offsets as offsets_format
from shmbroker.formats.batch import filler_length, pack_filler
from shmbroker.formats.segment import (
    DATA_POSITION,
    GAP_NONE,
    GAP_REPAIR,
    SEGMENT_MAGIC,
    SegmentHeader,
    index_name,
    log_name,
)
from shmbroker.formats.superblock import FILE_NAME as SUPERBLOCK_NAME
from shmbroker.formats.superblock import Superblock
from shmbroker.limits import MIB, OFFSET_RESERVATION, PAGE_SIZE, U64_MAX
from shmbroker.storage.disk import Disk, DiskFile, aligned_buffer
from shmbroker.storage.dump import GIVEN_UP_SUFFIX
from shmbroker.storage.index import IndexFile, index_size_of
from shmbroker.storage.inspect import (
    INCARNATION_NAME_SIZE,
    PartitionReport,
    Severity,
    WalkedSegment,
    data_directory_of,
    partitions_of,
    runtime_of,
    stopped,
    verify_partition,
    walk,
)
from shmbroker.storage.offsets import OffsetStore
from shmbroker.storage.runtime import Runtime
from shmbroker.storage.scan import FAULT_END
from shmbroker.storage.segment import SegmentInfo, seal_of, write_header_page
from shmbroker.storage.superblock import SuperblockFile

COPY_SIZE: Final = 4 * MIB
US_PER_S: Final = 1_000_000


@dataclass(frozen=True)
class Loss:
    """What is given up: ``text`` says it to the operator, ``path`` and ``position`` where it stood. Messages are those
    from ``first_offset`` up to ``end_offset`` at most; 0 and 0 where no messages are meant."""

    path: str
    position: int
    text: str
    first_offset: int = 0
    end_offset: int = 0


@dataclass
class Kept:
    """A segment that stays, as far as it is whole."""

    walked: WalkedSegment
    header: SegmentHeader
    """As it will be: with a gap where the one before it lost something."""
    info: SegmentInfo
    reseal: bool


@dataclass
class Plan:
    """What a repair of one partition would do."""

    directory: str
    report: PartitionReport
    superblock: Superblock | None = None
    incarnation: bytes = b""
    log_id: int = 0
    partition_id: int = 0
    losses: list[Loss] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    """Paths of segment files that are given up whole."""
    next_offset: int = 0
    next_position: int = 0
    log_lost: bool = False
    offsets_lost: bool = False

    @property
    def needed(self) -> bool:
        return self.log_lost or self.offsets_lost


def repair(disk: Disk, directory: str, *, yes: bool) -> list[Plan]:
    """The plans for every partition of a data directory (or the one partition) that needs a repair; with ``yes`` they
    are carried out. Raises ClientMistake where a partition cannot be repaired, Unavailable (a broker runs), NoSpace,
    DiskFailed."""
    partitions = partitions_of(directory)
    if not partitions:
        return []
    data = data_directory_of(partitions[0])
    with stopped(data):
        runtime = runtime_of(data)
        plans = [plan for partition in partitions if (plan := plan_repair(disk, runtime, partition)).needed]
        if yes:
            for plan in plans:
                apply_plan(disk, runtime, plan)
    return plans


# --- planning -------------------------------------------------------------------------------------------------------


def plan_repair(disk: Disk, runtime: Runtime, directory: str) -> Plan:
    """What has to be done, and what is given up by it. Changes nothing."""
    report = verify_partition(disk, runtime, directory)
    plan = Plan(directory, report, report.superblock)
    losses = [finding for finding in report.findings if finding.severity is Severity.LOSS]
    plan.offsets_lost = any(finding.case == "offsets" for finding in losses)
    plan.log_lost = any(finding.case != "offsets" for finding in losses)
    if not plan.needed:
        return plan
    _identify(disk, plan)
    if plan.offsets_lost:
        finding = next(finding for finding in losses if finding.case == "offsets")
        plan.losses.append(Loss(finding.path, finding.position, f"stored offsets that cannot be read: {finding.text}"))
    if plan.log_lost:
        _plan_log(disk, plan)
    return plan


def _identify(disk: Disk, plan: Plan) -> None:
    """Whose log it is: from the superblock, else from the only incarnation that is there."""
    superblock = plan.superblock
    if superblock is not None:
        plan.incarnation, plan.log_id, plan.partition_id = (
            superblock.incarnation, superblock.log_id, superblock.partition_id,
        )  # fmt: skip
        return
    names = [name for name in disk.list(plan.directory) if len(name) == INCARNATION_NAME_SIZE]
    headers = [
        walked.header
        for name in names
        for walked in walk(disk, f"{plan.directory}/{name}", None)
        if walked.header is not None
    ]
    owners = {(header.log_id, header.partition_id, header.incarnation) for header in headers}
    if len(owners) != 1:
        raise ClientMistake(
            f"{plan.directory}: the superblock is lost and {len(owners)} logs are there: restore it from a copy, or"
            " delete the topic"
        )
    [(plan.log_id, plan.partition_id, plan.incarnation)] = owners


def _plan_log(disk: Disk, plan: Plan) -> None:
    superblock, position, offset, highest = plan.superblock, 0, 0, 0
    directory = f"{plan.directory}/{plan.incarnation.hex()}"
    owner = (plan.log_id, plan.partition_id, plan.incarnation)
    for walked in walk(disk, directory, superblock):
        header = walked.header
        if header is None or walked.scan is None or (header.log_id, header.partition_id, header.incarnation) != owner:
            _give_up_file(plan, walked, "its first page cannot be read, or is another log's")
            continue
        highest = max(highest, walked.limit)
        if plan.kept and (header.base_position < position or header.base_offset < offset):
            _give_up_file(plan, walked, f"it begins at offset {header.base_offset}, below the end of the one before it")
            continue
        _give_up_rest(plan, walked)
        if walked.scan.position == header.base_position:
            plan.dropped.append(walked.path)
            continue
        _keep(plan, walked, header, position, offset)
        position = walked.scan.position + filler_length(walked.scan.position)
        offset = walked.scan.offset
    promised = 0 if superblock is None else max(superblock.durable_offset, superblock.end_offset * superblock.clean)
    if promised > offset:
        text = f"the messages from offset {offset} to {promised - 1} at the end of the log"
        plan.losses.append(Loss(directory, 0, text, offset, promised))
    mark = max(plan.report.mark, 0 if superblock is None else max(superblock.durable_position, superblock.end_position))
    reserved = offset + 2 * OFFSET_RESERVATION if superblock is None else superblock.reserved_offset
    if superblock is None:
        plan.losses.append(
            Loss(f"{plan.directory}/{SUPERBLOCK_NAME}", 0, "the reservation: numbers are skipped instead")
        )
    plan.next_offset = max(reserved, offset)
    plan.next_position = _page_end(max(position, highest, mark))


def _give_up_file(plan: Plan, walked: WalkedSegment, why: str) -> None:
    plan.dropped.append(walked.path)
    text = f"the whole segment from offset {walked.base_offset}: {why}"
    plan.losses.append(Loss(walked.path, 0, text, walked.base_offset, _end_of(walked)))


def _end_of(walked: WalkedSegment) -> int:
    return walked.seal.end_offset if walked.seal is not None else U64_MAX


def _give_up_rest(plan: Plan, walked: WalkedSegment) -> None:
    header, scan = walked.header, walked.scan
    assert header is not None
    assert scan is not None
    position = DATA_POSITION + scan.position - header.base_position
    if walked.seal is not None and walked.fault:
        last = walked.seal.end_offset - 1
        lost = (
            f"the messages from offset {scan.offset} to {last}" if last >= scan.offset else "no message, but a bad seal"
        )
        plan.losses.append(Loss(walked.path, position, f"{lost}: {walked.fault}", scan.offset, walked.seal.end_offset))
    elif walked.seal is None and scan.fault != FAULT_END:
        text = f"everything from offset {scan.offset} on: {scan.fault_text}"
        plan.losses.append(Loss(walked.path, position, text, scan.offset, U64_MAX))


def _keep(plan: Plan, walked: WalkedSegment, header: SegmentHeader, position: int, offset: int) -> None:
    scan = walked.scan
    assert scan is not None
    # A first segment joins by itself: what came before it was deleted by retention.
    gap = bool(plan.kept or plan.dropped) and not _joins(header, position, offset)
    if gap and header.base_offset > offset:
        lost = f"the messages from offset {offset} to {header.base_offset - 1}, as far as there were any"
        plan.losses.append(Loss(walked.path, 0, lost, offset, header.base_offset))
    if gap:
        header = header._replace(gap_reason=GAP_REPAIR, previous_end_offset=offset)
    info = SegmentInfo(
        header.base_offset, header.base_position, scan.offset, scan.position, scan.message_count,
        scan.first_timestamp, scan.last_timestamp, len(scan.entries), False, walked.file_size,
    )  # fmt: skip
    plan.kept.append(Kept(walked, header, info, reseal=gap or bool(walked.fault) or walked.seal is None))


def _joins(header: SegmentHeader, position: int, offset: int) -> bool:
    """Whether a segment goes on at this position and offset, or says itself why not."""
    if header.gap_reason == GAP_REPAIR:
        return header.base_position >= position and header.previous_end_offset == offset
    if header.base_position != position:
        return False
    return offset == (header.base_offset if header.gap_reason == GAP_NONE else header.previous_end_offset)


def _page_end(position: int) -> int:
    return -(-position // PAGE_SIZE) * PAGE_SIZE


# --- applying -------------------------------------------------------------------------------------------------------


def apply_plan(disk: Disk, runtime: Runtime, plan: Plan) -> None:
    """Carries a plan out. Raises NoSpace or DiskFailed; then it can be planned and carried out again."""
    directory = f"{plan.directory}/{plan.incarnation.hex()}"
    if not disk.exists(directory):
        disk.make_directory(directory)
        disk.sync_directory(plan.directory)
    if plan.offsets_lost:
        _repair_offsets(disk, plan, directory)
    if not plan.log_lost:
        return
    for generation in runtime.list_rings(plan.log_id, plan.incarnation):
        runtime.remove_ring(plan.log_id, plan.incarnation, generation)
    runtime.remove_control(plan.log_id, plan.incarnation)
    for path in plan.dropped:
        disk.rename(path, path + GIVEN_UP_SUFFIX)
    for kept in plan.kept:
        if kept.reseal:
            _reseal(disk, plan, kept)
    _begin_segment(disk, plan, directory)
    disk.sync_directory(directory)
    _write_superblock(disk, plan)


def _repair_offsets(disk: Disk, plan: Plan, directory: str) -> None:
    """The store keeps what it can read where it need not be whole; a copy of the file as it was stays beside it."""
    path = f"{directory}/{offsets_format.FILE_NAME}"
    file = disk.open(path, direct=False)
    try:
        _copy_out(disk, file, 0, file.size(), path + GIVEN_UP_SUFFIX)
    finally:
        file.close()
    store = OffsetStore(disk, directory, plan.log_id, plan.incarnation, persisted=False)
    store.close()


def _reseal(disk: Disk, plan: Plan, kept: Kept) -> None:
    """Ends a segment where it is whole: what is behind goes aside, a filler, zeros, header and seal."""
    info, walked = kept.info, kept.walked
    end, shift = info.end_position, DATA_POSITION - info.base_position
    stop = end + filler_length(end)
    file = disk.open(walked.path)
    try:
        size = _page_end(file.size())
        if end + shift < file.size() and _is_cut(walked):
            _copy_out(disk, file, end + shift, file.size(), walked.path + GIVEN_UP_SUFFIX)
        if stop + shift > file.size():
            file.allocate(file.size(), stop + shift - file.size())
        if stop > end:
            page = end - end % PAGE_SIZE
            buffer = aligned_buffer(stop - page)
            buffer[: end - page] = file.read(page + shift, end - page)
            buffer[end - page :] = pack_filler(
                plan.partition_id, info.end_offset, info.last_timestamp, end, end, plan.incarnation
            )
            file.write(page + shift, [buffer], sync=False)
        for position in range(stop + shift, size if _is_cut(walked) else 0, COPY_SIZE):
            file.write(position, [aligned_buffer(min(COPY_SIZE, size - position))], sync=False)
        file.sync()
        info.end_position = stop
        write_header_page(file, kept.header, seal_of(info, plan.incarnation))
        file.sync()
    finally:
        file.close()
    index_path = f"{os.path.dirname(walked.path)}/{index_name(info.base_offset)}"
    assert walked.scan is not None
    index, _ = IndexFile.restore(
        disk, index_path, plan.incarnation, info.base_offset, walked.scan.entries, index_size_of(info.size)
    )
    index.file.close()


def _is_cut(walked: WalkedSegment) -> bool:
    """Whether bytes behind the whole part have to go; else only the first page is written."""
    return bool(walked.fault) or walked.seal is None


def _copy_out(disk: Disk, file: DiskFile, start: int, end: int, path: str) -> None:
    """Bytes [start, end) of a file, without the zeros at their end, as a file; none where all are zeros."""
    pieces = []
    for position in range(start, end, COPY_SIZE):
        piece = file.read(position, min(COPY_SIZE, end - position))
        pieces.append(piece if any(piece) else len(piece))
    while pieces and isinstance(pieces[-1], int):
        pieces.pop()
    if not pieces:
        return
    contents = b"".join(bytes(piece) if isinstance(piece, int) else piece for piece in pieces).rstrip(b"\0")
    if disk.exists(path):
        disk.unlink(path)
    copy = disk.create(path)
    try:
        buffer = aligned_buffer(_page_end(len(contents)))
        buffer[: len(contents)] = contents
        copy.allocate(0, len(buffer))
        copy.write(0, [buffer], sync=True)
        copy.sync()
    finally:
        copy.close()


def _begin_segment(disk: Disk, plan: Plan, directory: str) -> None:
    """The empty segment in which the log goes on, behind a gap that it names."""
    previous = plan.kept[-1].info.end_offset if plan.kept else 0
    header = SegmentHeader(
        SEGMENT_MAGIC, plan.log_id, plan.incarnation, plan.partition_id, plan.next_offset, plan.next_position,
        previous, GAP_REPAIR, int(time.time() * US_PER_S),
    )  # fmt: skip
    path = f"{directory}/{log_name(plan.next_offset)}"
    if disk.exists(path):
        disk.rename(path, path + GIVEN_UP_SUFFIX)
    index_path = f"{directory}/{index_name(plan.next_offset)}"
    if disk.exists(index_path):
        disk.unlink(index_path)
    file = disk.create(path)
    try:
        file.allocate(0, PAGE_SIZE)
        write_header_page(file, header, None)
        file.sync()
    finally:
        file.close()


def _write_superblock(disk: Disk, plan: Plan) -> None:
    if plan.superblock is None:
        path = f"{plan.directory}/{SUPERBLOCK_NAME}"
        if disk.exists(path):
            disk.rename(path, path + GIVEN_UP_SUFFIX)
        file = SuperblockFile.create(disk, plan.directory, plan.log_id, plan.partition_id, plan.incarnation)
    else:
        file = SuperblockFile.open(disk, plan.directory, plan.log_id)
    try:
        file.write(
            clean=1, end_position=plan.next_position, end_offset=plan.next_offset,
            reserved_offset=max(plan.next_offset, file.current.reserved_offset), durable_position=plan.next_position,
            durable_offset=plan.next_offset, poison=0, repair_epoch=file.current.repair_epoch + 1,
        )  # fmt: skip
    finally:
        file.close()
