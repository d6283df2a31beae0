"""Looking at the files of a stopped broker: ``log verify``. Changes nothing.

Recovery trusts sealed segments by their seal; this walks every record of every segment. What it says comes from the
same tables: the letter of a finding is that of the row in :mod:`shmbroker.storage.recovery`. Findings beyond those rows
have a word: ``superblock``, ``offsets``, ``index``, ``purge``, ``poison``.

A finding is LOSS where the partition (or its consumers) would be refused or a reader would meet damage, CHANGE where
the next start will put something right without losing what was acknowledged as durable.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from shmbroker.errors import ClientMistake, Corrupt, Unavailable
from shmbroker.formats import offsets as offsets_format
from shmbroker.formats.segment import (
    DATA_POSITION,
    LOG_SUFFIX,
    Seal,
    SegmentHeader,
    base_offset_of,
    index_name,
    log_name,
    unpack_header,
    unpack_seal,
)
from shmbroker.formats.superblock import FILE_NAME as SUPERBLOCK_NAME
from shmbroker.formats.superblock import SUPERBLOCK_SIZE, Superblock, newest
from shmbroker.limits import PAGE_SIZE
from shmbroker.paths import default_runtime, open_file, read_runtime_name
from shmbroker.storage.disk import Disk
from shmbroker.storage.examination import examine, reader_of
from shmbroker.storage.index import index_is_whole
from shmbroker.storage.offsets import read_offsets
from shmbroker.storage.recovery import REPAIR, FileDecision, NumberDecision
from shmbroker.storage.runtime import LOGS_DIRECTORY, Runtime, RuntimeDirectory
from shmbroker.storage.scan import FAULT_END, Scan, scan

PARTITIONS_DIRECTORY: Final = "partitions"
LOCK_SUFFIX: Final = ".lock"
INCARNATION_NAME_SIZE: Final = 32


class Severity(Enum):
    LOSS = "loss"
    CHANGE = "change"


@dataclass(frozen=True)
class Finding:
    severity: Severity
    case: str
    """A letter of the recovery tables, or a word."""
    path: str
    position: int
    """Byte of that file."""
    text: str
    remedy: str = ""


@dataclass
class PartitionReport:
    """What one partition's directory holds. Positions and sizes in bytes of the log."""

    directory: str
    superblock: Superblock | None = None
    segment_count: int = 0
    message_count: int = 0
    size: int = 0
    first_offset: int = 0
    end_offset: int = 0
    end_position: int = 0
    mark: int = 0
    stored_offsets: dict[bytes, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """Whether nothing is lost."""
        return all(finding.severity is not Severity.LOSS for finding in self.findings)


@dataclass
class WalkedSegment:
    """One segment file, read to its end. ``scan`` is how far it is whole."""

    path: str
    base_offset: int
    header: SegmentHeader | None
    seal: Seal | None
    file_size: int
    scan: Scan | None

    @property
    def limit(self) -> int:
        """The log position where it ends: by its seal, else by its file."""
        assert self.header is not None
        return self.seal.end_position if self.seal else self.header.base_position + self.file_size - DATA_POSITION

    @property
    def fault(self) -> str:
        """What is wrong within a sealed segment, or an empty text."""
        if self.seal is None or self.scan is None:
            return ""
        if self.scan.position != self.seal.end_position:
            return self.scan.fault_text or "it ends before its seal says"
        if (self.scan.offset, self.scan.message_count) != (self.seal.end_offset, self.seal.message_count):
            return f"{self.scan.message_count} messages, its seal says {self.seal.message_count}"
        return ""


class NoRuntime(RuntimeDirectory):
    """The runtime directory of a broker that left none: nothing is there."""

    def __init__(self) -> None:
        self.boot_id = bytes(16)
        self.directory = "/nonexistent"

    def list_rings(self, log_id: int, incarnation: bytes) -> list[int]:
        return []

    def list_logs(self, log_id: int | None = None) -> list[tuple[int, bytes]]:
        return []


def partitions_of(directory: str) -> list[str]:
    """The partition directories in a data directory, or the directory itself where it is one. Raises ClientMistake."""
    directory = os.path.realpath(directory)
    if os.path.exists(f"{directory}/{SUPERBLOCK_NAME}") or os.path.basename(os.path.dirname(directory)) == (
        PARTITIONS_DIRECTORY
    ):
        return [directory]
    parent = f"{directory}/{PARTITIONS_DIRECTORY}"
    if not os.path.isdir(parent):
        raise ClientMistake(f"{directory} is neither a data directory nor a partition's")
    return sorted(entry.path for entry in os.scandir(parent) if entry.is_dir() and entry.name.isdigit())


def data_directory_of(partition_directory: str) -> str:
    return os.path.dirname(os.path.dirname(os.path.realpath(partition_directory)))


@contextmanager
def stopped(data_directory: str) -> Iterator[None]:
    """Holds every lock of a broker's data directory, so that none can start. Raises Unavailable where one runs."""
    with ExitStack() as stack:
        names = [name for name in os.listdir(data_directory) if name.endswith(LOCK_SUFFIX)]
        for name in sorted(names):
            file = stack.enter_context(os.fdopen(open_file(f"{data_directory}/{name}", os.O_RDONLY), "rb"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Unavailable(f"a broker is running on {data_directory} ({name} is held): stop it first") from None
        yield


def runtime_of(data_directory: str) -> Runtime:
    """The runtime directory that this data directory names, else the one that it has by default: without the ring the
    newest of a replicated log would be missed. An empty one where that is gone. Raises DiskFailed."""
    try:
        path = read_runtime_name(data_directory)
    except (FileNotFoundError, ValueError):  # a file of this name that is damaged names nothing
        path = default_runtime(data_directory)
    return RuntimeDirectory(path) if os.path.isdir(f"{path}/{LOGS_DIRECTORY}") else NoRuntime()


def verify(disk: Disk, directory: str) -> Iterator[PartitionReport]:
    """A report for each partition of a data directory (or the one partition), every record read. Raises ClientMistake,
    Unavailable (a broker runs), DiskFailed."""
    partitions = partitions_of(directory)
    data = data_directory_of(partitions[0]) if partitions else os.path.realpath(directory)
    with stopped(data):
        runtime = runtime_of(data)
        for partition in partitions:
            yield verify_partition(disk, runtime, partition)


def verify_partition(disk: Disk, runtime: Runtime, directory: str) -> PartitionReport:
    report = PartitionReport(directory)
    superblock = read_superblock(disk, directory)
    report.superblock = superblock
    if superblock is None:
        path = f"{directory}/{SUPERBLOCK_NAME}"
        report.findings.append(
            Finding(
                Severity.LOSS,
                "superblock",
                path,
                0,
                "the superblock is missing, or both of its slots are damaged",
                REPAIR,
            )
        )
        return report
    _verify_log(disk, runtime, report, superblock)
    incarnation_directory = f"{directory}/{superblock.incarnation.hex()}"
    for walked in walk(disk, incarnation_directory, superblock):
        _verify_segment(disk, report, walked, superblock)
    _verify_offsets(disk, report, incarnation_directory, superblock)
    _verify_leftovers(disk, report, superblock)
    return report


def read_superblock(disk: Disk, directory: str) -> Superblock | None:
    """The current superblock, read without touching it; None where there is no valid one."""
    try:
        file = disk.open(f"{directory}/{SUPERBLOCK_NAME}")
    except FileNotFoundError:
        return None
    try:
        return newest(file.read(0, SUPERBLOCK_SIZE))
    finally:
        file.close()


def walk(disk: Disk, directory: str, superblock: Superblock | None) -> Iterator[WalkedSegment]:
    """Every segment of an incarnation's directory in order, each read up to its end or its first fault."""
    try:
        names = [name for name in disk.list(directory) if name.endswith(LOG_SUFFIX)]
    except FileNotFoundError:
        return
    for base_offset in sorted(offset for name in names if (offset := base_offset_of(name)) is not None):
        path = f"{directory}/{log_name(base_offset)}"
        file = disk.open(path)
        try:
            page, size = file.read(0, PAGE_SIZE), file.size()
            header, seal = unpack_header(page), unpack_seal(page)
            walked = WalkedSegment(path, base_offset, header, seal, size, None)
            if header is not None and header.base_offset == base_offset and _owned(header, seal, superblock):
                begin = Scan(header.base_position, base_offset, header.incarnation, header.partition_id)
                limit = min(walked.limit, header.base_position + size - DATA_POSITION)
                walked.scan = scan(reader_of(file, header.base_position, uncached=False), begin, limit)
        finally:
            file.close()
        yield walked


def _owned(header: SegmentHeader, seal: Seal | None, superblock: Superblock | None) -> bool:
    if seal is not None and seal.incarnation != header.incarnation:
        return False
    if superblock is None:
        return True
    return (header.log_id, header.partition_id, header.incarnation) == (
        superblock.log_id, superblock.partition_id, superblock.incarnation,
    )  # fmt: skip


def _verify_log(disk: Disk, runtime: Runtime, report: PartitionReport, superblock: Superblock) -> None:
    """What recovery would find and decide."""
    directory = f"{report.directory}/{superblock.incarnation.hex()}"
    control = runtime.open_control(superblock.log_id, superblock.incarnation)
    try:
        found = examine(disk, runtime, directory, superblock, control, uncached=False)
        report.mark, report.end_position, report.end_offset = found.mark, found.end_position, found.end_offset
        row = found.file_row
        assert row is not None
        try:
            found.require()
        except Corrupt as error:
            refused = row if row.decision is FileDecision.REFUSE else found.number_row
            assert refused is not None
            report.findings.append(_loss(refused.letter, error))
            return
    except Corrupt as error:
        report.findings.append(_loss("B", error))
        return
    if row.decision is not FileDecision.ACCEPT:
        report.findings.append(
            Finding(
                Severity.CHANGE,
                row.letter,
                found.fault_path,
                found.fault_position,
                f"{row.text}: the next start cuts it",
            )
        )
    number = found.number_row
    assert number is not None
    if number.decision is NumberDecision.AT_RESERVATION and superblock.reserved_offset:
        text = f"{number.text}: the next start goes on at offset {max(superblock.reserved_offset, found.end_offset)}"
        report.findings.append(Finding(Severity.CHANGE, number.letter, report.directory, 0, text))
    elif number.decision is NumberDecision.ADOPT_RING:
        text = f"{number.text}: the next start takes over what is in the ring"
        report.findings.append(Finding(Severity.CHANGE, number.letter, report.directory, 0, text))


def _loss(case: str, error: Corrupt) -> Finding:
    return Finding(Severity.LOSS, case, error.path, error.position, error.fault, error.remedy)


def _verify_segment(disk: Disk, report: PartitionReport, walked: WalkedSegment, superblock: Superblock) -> None:
    if report.segment_count == 0:
        report.first_offset = walked.base_offset
    report.segment_count += 1
    if walked.scan is None or walked.header is None:
        # Headers that cannot be read or are foreign are found by the examination; all of them are named here.
        if not any(finding.path == walked.path for finding in report.findings):
            text = "its first page cannot be read, or is another log's"
            report.findings.append(Finding(Severity.LOSS, "E", walked.path, 0, text, REPAIR))
        return
    report.message_count += walked.scan.message_count
    report.size += walked.scan.position - walked.header.base_position
    position = DATA_POSITION + walked.scan.position - walked.header.base_position
    if walked.fault:
        report.findings.append(
            Finding(Severity.LOSS, "E", walked.path, position, f"a sealed segment is damaged: {walked.fault}", REPAIR)
        )
    elif walked.seal is None and walked.scan.fault != FAULT_END and not _is_named(report, walked.path):
        text = f"its records end at offset {walked.scan.offset}: {walked.scan.fault_text}"
        report.findings.append(Finding(Severity.LOSS, "K", walked.path, position, text, REPAIR))
    entry_count = walked.seal.index_entry_count if walked.seal else 0
    path = f"{os.path.dirname(walked.path)}/{index_name(walked.base_offset)}"
    if not index_is_whole(disk, path, superblock.incarnation, walked.base_offset, entry_count):
        text = "the index is missing or torn: the next start writes it anew"
        report.findings.append(Finding(Severity.CHANGE, "index", path, 0, text))


def _is_named(report: PartitionReport, path: str) -> bool:
    return any(finding.path == path for finding in report.findings)


def _verify_offsets(disk: Disk, report: PartitionReport, directory: str, superblock: Superblock) -> None:
    path = f"{directory}/{offsets_format.FILE_NAME}"
    if not disk.exists(path):
        return
    file = disk.open(path, direct=False)
    try:
        found = read_offsets(file.read(0, file.size()), superblock.log_id, superblock.incarnation)
    finally:
        file.close()
    report.stored_offsets = found.offsets
    if found.lost_position is not None:
        text = f"{found.fault}; the stored offsets of {len(found.offsets)} consumers can still be read"
        report.findings.append(Finding(Severity.LOSS, "offsets", path, found.lost_position, text, REPAIR))


def _verify_leftovers(disk: Disk, report: PartitionReport, superblock: Superblock) -> None:
    if superblock.poison:
        text = f"a write or a sync failed (error {superblock.poison}): the next start reads the disk itself again"
        report.findings.append(Finding(Severity.CHANGE, "poison", f"{report.directory}/{SUPERBLOCK_NAME}", 0, text))
    for name in disk.list(report.directory):
        if len(name) == INCARNATION_NAME_SIZE and name != superblock.incarnation.hex():
            text = "what a purge left over: the next start removes it"
            report.findings.append(Finding(Severity.CHANGE, "purge", f"{report.directory}/{name}", 0, text))
