"""Applies what recovery decided: after it the log is whole, durable, closed by a filler, and numbered (rules 2, 4, 9).

The order is what makes a crash in here harmless, wherever it is: first zeros over what is cut, synchronised, so that
no stale record can ever follow what comes next; then everything above the mark written again and synchronised; then
what the ring has; then the filler; then, last, the superblock says where the log ends. Doing any prefix of it again
gives the same log. The ring is removed by the caller after that, never before.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shmbroker.errors import Corrupt
from shmbroker.formats.batch import filler_length, pack_filler
from shmbroker.formats.index import unpack_entries
from shmbroker.formats.segment import INDEX_SUFFIX, base_offset_of, index_name, log_name
from shmbroker.limits import PAGE_SIZE
from shmbroker.storage.disk import Disk, aligned_buffer
from shmbroker.storage.examination import Examination, reader_of
from shmbroker.storage.index import IndexFile, index_is_whole, index_size_of
from shmbroker.storage.recovery import REPAIR, FileDecision, NumberDecision
from shmbroker.storage.scan import FAULT_END, Scan, scan
from shmbroker.storage.segment import ActiveSegment, SegmentInfo, remove_segment_files
from shmbroker.storage.segments import SegmentSet

REWRITE_SIZE = 4 << 20
WINDOW_SIZE = 8 << 20
"""Bytes of the log before the newest segment that are scanned for the producers' sequence numbers."""


@dataclass(slots=True)
class Opened:
    """A log that is whole and durable up to ``end_position``, a page boundary."""

    end_position: int
    next_offset: int
    last_timestamp: int
    changed: bool
    """Whether anything was written, so that the superblock has to say so."""
    producers: list[tuple[int, int, int, int]] = field(default_factory=list)


def apply(found: Examination, segments: SegmentSet, *, segment_size: int, now_us: int, uncached: bool) -> Opened:
    """Raises Corrupt, NoSpace or DiskFailed. ``segments`` is empty and is filled."""
    file_row, number_row = found.file_row, found.number_row
    assert file_row is not None
    assert number_row is not None
    assert file_row.decision is not FileDecision.REFUSE
    assert number_row.decision is not NumberDecision.REFUSE
    disk, superblock = segments.disk, found.superblock
    if file_row.decision is FileDecision.DROP_NEWEST:
        remove_segment_files(disk, found.directory, found.newest_bad_offset)
        disk.sync_directory(found.directory)
    _remove_orphans(disk, found)
    segments.infos = [segment.info for segment in found.segments]
    segments.previous_end_offset = found.end_offset
    clean = number_row.decision is NumberDecision.AT_CLEAN_END
    opened = Opened(found.end_position, found.end_offset, _last_timestamp(found), not clean)
    if found.segments and not found.segments[-1].info.sealed:
        _restore_newest(found, segments, segment_size=segment_size, clean=clean, uncached=uncached)
    _rebuild_sealed_indexes(segments)
    opened.producers = _producers(found, segments)
    if number_row.decision is NumberDecision.ADOPT_RING:
        _adopt(found, segments, opened, segment_size=segment_size, now_us=now_us)
    elif clean:
        opened.next_offset = superblock.end_offset
    else:
        opened.next_offset = max(superblock.reserved_offset, found.end_offset)
    _close(segments, opened, found)
    return opened


def _last_timestamp(found: Examination) -> int:
    return max((segment.info.last_timestamp for segment in found.segments), default=0)


def _remove_orphans(disk: Disk, found: Examination) -> None:
    """Index files without a log: their segments were deleted, or never came to be."""
    kept = {segment.header.base_offset for segment in found.segments}
    for name in disk.list(found.directory):
        if name.endswith(INDEX_SUFFIX) and (offset := base_offset_of(name)) is not None and offset not in kept:
            disk.unlink(f"{found.directory}/{name}")


def _restore_newest(
    found: Examination, segments: SegmentSet, *, segment_size: int, clean: bool, uncached: bool
) -> None:
    """Cuts, reopens and makes durable the segment that was being written."""
    newest, scanned = found.segments[-1], found.scan
    assert scanned is not None
    if found.residue_end > scanned.position:
        _cut(segments.disk, found, newest.info, uncached=uncached)
    active = ActiveSegment.reopen(
        segments.disk, found.directory, newest.header, newest.info, scanned.entries,
        segment_size=segment_size, executor=segments.executor,
    )  # fmt: skip
    segments.active = active
    if clean:
        active.unsynced = False
        return
    _write_again(found, active, scanned, uncached=uncached)


def _cut(disk: Disk, found: Examination, info: SegmentInfo, *, uncached: bool) -> None:
    """Zeros from the end of the whole part to the end of the residue, durable. The file keeps its length (rule 9)."""
    path = f"{found.directory}/{log_name(info.base_offset)}"
    file = disk.open(path)
    try:
        shift = file_shift(info)
        start = info.end_position - info.end_position % PAGE_SIZE
        keep = info.end_position - start
        end = -(-found.residue_end // PAGE_SIZE) * PAGE_SIZE
        buffer = aligned_buffer(min(REWRITE_SIZE, end - start))
        if keep:
            read = file.read_uncached if uncached else file.read
            buffer[:keep] = read(start + shift, keep)
        if file.size() < end + shift:
            file.allocate(file.size(), end + shift - file.size())
        for position in range(start, end, REWRITE_SIZE):
            file.write(position + shift, [buffer[: min(REWRITE_SIZE, end - position)]], sync=False)
            buffer[:keep] = bytes(keep)
            keep = 0
        file.sync()
    finally:
        file.close()


def file_shift(info: SegmentInfo) -> int:
    """File position less log position."""
    return PAGE_SIZE - info.base_position


def _write_again(found: Examination, active: ActiveSegment, scanned: Scan, *, uncached: bool) -> None:
    """What was accepted above the mark is not durable by having been read: it is written again, synchronised, and
    read back from the disk (rule 2)."""
    mark = max(found.mark, active.info.base_position)
    start = mark - mark % PAGE_SIZE
    end = scanned.position
    read = reader_of(active.file, active.info.base_position, uncached=uncached)
    buffer = aligned_buffer(REWRITE_SIZE)
    for position in range(start, end, REWRITE_SIZE):
        size = min(REWRITE_SIZE, end - position)
        whole = -(-size // PAGE_SIZE) * PAGE_SIZE
        buffer[:size] = read(position, size)
        buffer[size:whole] = bytes(whole - size)
        active.write(position, [buffer[:whole]], sync=False)
    active.unsynced = True
    active.write(start, [], sync=True)
    if start >= end:
        return
    entries = [entry for entry in scanned.entries if entry.position <= start]
    begin = Scan(active.info.base_position, active.info.base_offset, scanned.incarnation, scanned.partition_id)
    if entries:
        begin.position, begin.offset = entries[-1].position, entries[-1].offset
    again = scan(reader_of(active.file, active.info.base_position, uncached=True), begin, end)
    if again.position != end or again.fault != FAULT_END:
        raise Corrupt(
            active.file.path, again.position + file_shift(active.info),
            f"what was just written and synchronised reads back damaged: {again.fault_text}", REPAIR,
        )  # fmt: skip


def _rebuild_sealed_indexes(segments: SegmentSet) -> None:
    """Writes the index of a sealed segment anew where its file is missing, short or torn."""
    for info in segments.infos:
        if not info.sealed:
            continue
        path = f"{segments.directory}/{index_name(info.base_offset)}"
        if index_is_whole(segments.disk, path, segments.incarnation, info.base_offset, info.index_entry_count):
            continue
        file = segments.disk.open(f"{segments.directory}/{log_name(info.base_offset)}")
        try:
            begin = Scan(info.base_position, info.base_offset, segments.incarnation, segments.partition_id)
            result = scan(reader_of(file, info.base_position, uncached=False), begin, info.end_position)
        finally:
            file.close()
        if result.position != info.end_position:
            at = result.position + file_shift(info)
            raise Corrupt(file.path, at, f"a sealed segment is damaged: {result.fault_text}", REPAIR)
        index, _ = IndexFile.restore(
            segments.disk, path, segments.incarnation, info.base_offset, result.entries, index_size_of(info.size)
        )
        index.file.close()
        segments.disk.sync_directory(segments.directory)


def _producers(found: Examination, segments: SegmentSet) -> list[tuple[int, int, int, int]]:
    """The sequence numbers of the newest segment, and of the end of the one before it where that is short."""
    scanned = found.scan
    recent = list(scanned.producers) if scanned is not None else []
    sealed = [info for info in segments.infos if info.sealed]
    if not sealed or (scanned is not None and found.end_position - sealed[-1].end_position >= WINDOW_SIZE):
        return recent
    info = sealed[-1]
    begin = Scan(info.base_position, info.base_offset, segments.incarnation, segments.partition_id)
    index_file = segments.disk.open(f"{segments.directory}/{index_name(info.base_offset)}")
    file = segments.disk.open(f"{segments.directory}/{log_name(info.base_offset)}")
    try:
        contents = index_file.read(0, index_file.size())
        for entry in unpack_entries(contents, segments.incarnation):
            if entry.position <= info.end_position - WINDOW_SIZE:
                begin.position, begin.offset = entry.position, entry.offset
        scan(reader_of(file, info.base_position, uncached=False), begin, info.end_position)
    finally:
        index_file.close()
        file.close()
    return begin.producers + recent


def _adopt(found: Examination, segments: SegmentSet, opened: Opened, *, segment_size: int, now_us: int) -> None:
    """Writes the ring's records behind the end of the files, durably."""
    ring, result = found.ring, found.ring_scan
    assert ring is not None
    assert result is not None
    start, end = opened.end_position, result.position
    opened.next_offset = result.offset
    if start == end:
        return
    if segments.active is None:
        segments.create_active(opened.next_offset - result.message_count, start, now_us,
                               segment_size=segment_size, preallocate=False)  # fmt: skip
    active = segments.active
    assert active is not None
    page, stop = start - start % PAGE_SIZE, -(-end // PAGE_SIZE) * PAGE_SIZE
    active.allocator.ensure(active.file_position(stop))
    last = aligned_buffer(PAGE_SIZE)
    whole = end - end % PAGE_SIZE
    buffers = ring.pieces(page, whole) if whole > page else []
    if stop > whole:
        last[: end - whole] = ring.get(whole, end - whole)
        buffers = [*buffers, last]
    active.write(page, [buffer for buffer in buffers if len(buffer)], sync=True)
    for entry in result.entries:
        active.index.add(entry)
    active.index.write(sync=True)
    info = active.info
    info.end_position, info.end_offset = end, result.offset
    info.message_count += result.message_count
    info.first_timestamp = info.first_timestamp or result.first_timestamp
    info.last_timestamp = result.last_timestamp or info.last_timestamp
    opened.end_position = end
    opened.last_timestamp = max(opened.last_timestamp, result.last_timestamp)
    opened.producers += result.producers


def _close(segments: SegmentSet, opened: Opened, found: Examination) -> None:
    """A filler to the page boundary, and a seal where the next segment has to record a gap (rules 3 and 4)."""
    active = segments.active
    if active is None:
        if segments.infos:
            segments.previous_end_offset = segments.infos[-1].end_offset
        return
    end = opened.end_position
    if end % PAGE_SIZE:
        opened.changed = True
        page = end - end % PAGE_SIZE
        stop = end + filler_length(end)
        active.allocator.ensure(active.file_position(stop))
        buffer = aligned_buffer(stop - page)
        buffer[: end - page] = active.file.read(active.file_position(page), end - page)
        buffer[end - page :] = pack_filler(
            segments.partition_id, active.info.end_offset, opened.last_timestamp, end, end, segments.incarnation
        )
        active.write(page, [buffer], sync=True)
        opened.end_position = active.info.end_position = stop
    segments.previous_end_offset = active.info.end_offset
    if opened.next_offset != active.info.end_offset:
        opened.changed = True
        active.write(end, [], sync=True)
        active.index.write(sync=True)
        segments.seal_active()
