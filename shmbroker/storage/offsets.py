"""The consumers' offsets of a partition: a dict in memory, behind it an append-only file (rule 17).

Owns ``consumers.offsets`` in the incarnation's directory; written by the worker that owns the partition, read by nobody
else while it runs. The file is made at the first store.

- A store or delete changes the dict at once and waits in ``_pending``, one change for each key: a consumer that stores
  twice within a group costs one record. ``prepare_flush`` appends the pending ones and returns the write to be done.
- ``_image`` is the file in memory: an append writes the pages that it touches, the last of them again and again with
  the same prefix. They go through the page cache: 1 us where nobody waits for them, and with a sync no slower than
  direct ones (100 us each for 4 KiB on ext4; bench/micro/test_micro_storage.py).
- A record is durable only if everything before it is, since reading stops at the first damage. So a synchronous flush
  writes from the durable length on, whatever was written there without waiting.
- The file never grows. Before a change that would not fit is accepted, the live offsets move to a new file (temporary
  file, synchronous write, rename, directory sync), made large enough that this stays rare. So no space refuses the
  change and alters nothing (rule 11), and what was accepted always has room.
- ``durable_length`` is written into every record: the mark. Damage below it is loss: a ``persisted`` store then refuses
  (``fault`` says why), any other keeps what it can read and logs an error. Damage at or above it was never promised: it
  is cut, intact records behind it included, and zeros are written over it.
- Opening makes durable what it accepted before anybody is told of it (rule 2).

An offset beyond the log's end is valid where it is found: messages that were not durable are gone, their numbers are
never issued again, and the consumer goes on after the gap.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from shmbroker.errors import Corrupt, DiskFailed, ErrorCode, NoSpace
from shmbroker.formats.offsets import (
    DATA_POSITION,
    FILE_NAME,
    KIND_DELETE,
    KIND_STORE,
    OFFSETS_MAGIC,
    RECORD,
    RECORD_CHECKSUM,
    RECORD_SIZE_MAX,
    OffsetRecord,
    OffsetsHeader,
    key_fault,
    pack_header,
    pack_record,
    unpack_header,
    unpack_record,
)
from shmbroker.limits import CONSUMER_OFFSETS_MAX, KIB, PAGE_SIZE
from shmbroker.storage.disk import aligned_buffer

if TYPE_CHECKING:
    from shmbroker.storage.disk import Disk, DiskFile

FILE_SIZE_MIN: Final = 128 * KIB
"""2,600 records of numbered consumers between two compactions, each of which costs a few milliseconds."""
SLACK_FACTOR: Final = 4
"""A new file has room for this many times the live offsets."""
UNFINISHED_SUFFIX: Final = ".new"
REMEDY: Final = "`shmbroker log repair` keeps the offsets that can be read"

LOGGER: Final = logging.getLogger(__name__)


class OffsetStore:
    """The offsets of one partition. One thread; the calls that ``prepare_flush`` returns may run on another while this
    object is left alone. Raises DiskFailed from the constructor where the disk fails."""

    def __init__(self, disk: Disk, directory: str, log_id: int, incarnation: bytes, *, persisted: bool) -> None:
        self.path = f"{directory}/{FILE_NAME}"
        self.persisted = persisted
        self.dirty_sync = False
        """A change waits that is to be on stable storage before it is confirmed: flush with ``sync=True``."""
        self.fault: Corrupt | None = None
        """Why every call is refused with OFFSETS_REFUSED: loss below the mark of a ``persisted`` store."""
        self._disk = disk
        self._directory = directory
        self._log_id = log_id
        self._incarnation = incarnation
        self._offsets: dict[bytes, int] = {}
        self._counts: dict[int, int] = {}
        self._pending: dict[bytes, tuple[int, int, int]] = {}
        self._pending_size = 0
        self._file: DiskFile | None = None
        self._image = memoryview(b"")
        self._generation = 0
        self._sequence = 0
        self._end = self._written = self._durable = 0
        self._flush: tuple[int, bool] | None = None
        self._failed = False
        self._load()

    # --- what a worker asks -----------------------------------------------------------------------------------------

    def store(self, key: bytes, offset: int, now_us: int, *, automatic: bool, end_offset: int) -> int:
        """Sets the last processed offset of a consumer key; returns a status. ``end_offset`` is the log's end: the
        offset must be below it, or not above the stored one. An ``automatic`` store never lowers and waits for nothing.
        Raises DiskFailed: the partition is poisoned."""
        status = self._refusal(key)
        if status:
            return status
        current = self._offsets.get(key)
        if automatic and current is not None and offset <= current:
            return ErrorCode.OK
        if offset >= end_offset and (current is None or offset > current):
            return ErrorCode.INVALID_OFFSET
        if current is None and self._counts.get(key[0], 0) >= CONSUMER_OFFSETS_MAX:
            return ErrorCode.TOO_MANY_CONSUMER_OFFSETS
        status = self._add(key, KIND_STORE, offset, now_us)
        if status:
            return status
        if current is None:
            self._counts[key[0]] = self._counts.get(key[0], 0) + 1
        self._offsets[key] = offset
        self.dirty_sync |= self.persisted and not automatic
        return ErrorCode.OK

    def delete(self, key: bytes, now_us: int) -> int:
        """Forgets the offset of a consumer key; returns a status. Raises DiskFailed: the partition is poisoned."""
        status = self._refusal(key)
        if status:
            return status
        if key not in self._offsets:
            return ErrorCode.CONSUMER_OFFSET_NOT_FOUND
        status = self._add(key, KIND_DELETE, 0, now_us)
        if status:
            return status
        del self._offsets[key]
        self._counts[key[0]] -= 1
        self.dirty_sync |= self.persisted
        return ErrorCode.OK

    def get(self, key: bytes) -> int | None:
        """The stored offset; None where there is none, or where ``fault`` is set."""
        return self._offsets.get(key)

    def lowest(self) -> int | None:
        """The lowest stored offset: retention keeps the segments above it. None where there is none."""
        return min(self._offsets.values(), default=None)

    def items(self) -> list[tuple[bytes, int]]:
        return list(self._offsets.items())

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def dirty(self) -> bool:
        """Something is to be written this pass: so that it survives the process, or with ``sync`` if ``dirty_sync``."""
        return self.dirty_sync or bool(self._pending)

    # --- writing ----------------------------------------------------------------------------------------------------

    def prepare_flush(self, sync: bool) -> list[Callable[[], None]]:
        """Packs what is pending; returns the system calls that write it, and with ``sync`` all that is not durable yet.
        Empty where there is nothing to do. Else ``finish_flush`` follows before any other call."""
        assert self._flush is None
        if self._failed:
            return self._prepare_refusal(sync)
        if self._file is None:
            return []
        for key, (kind, offset, now_us) in self._pending.items():
            self._append(kind, offset, now_us, key)
        self._pending.clear()
        self._pending_size = 0
        start = self._durable if sync else self._written
        if start == self._end:
            self.dirty_sync = False
            return []
        first = start - start % PAGE_SIZE
        pages = self._image[first : _page_end(self._end)]
        self._flush = (self._end, sync)
        file = self._file
        return [lambda: file.write(first, [pages], sync=sync)]

    def _prepare_refusal(self, sync: bool) -> list[Callable[[], None]]:
        """After a failure: whoever waits for a change that was accepted before it must not take it for done."""
        if not self.dirty:
            return []
        self._flush = (self._end, sync)

        def refuse() -> None:
            raise DiskFailed(f"{self.path}: an earlier write or sync failed: nothing more is written to it")

        return [refuse]

    def finish_flush(self, error: BaseException | None) -> None:
        """Takes note of how the calls ended. An error is final: every later change returns PARTITION_POISONED."""
        assert self._flush is not None
        end, sync = self._flush
        self._flush = None
        if error is not None:
            self._failed = True
            return
        assert not self._failed
        self._written = end
        if sync:
            self._durable = end
            self.dirty_sync = False

    def close(self) -> None:
        """Writes nothing: flush with ``sync`` before, at a clean stop."""
        if self._file is not None:
            self._file.close()
            self._file = None

    # --- within -----------------------------------------------------------------------------------------------------

    def _refusal(self, key: bytes) -> int:
        assert self._flush is None
        if self._failed:
            return ErrorCode.PARTITION_POISONED
        if self.fault is not None:
            return ErrorCode.OFFSETS_REFUSED
        return ErrorCode.INVALID_IDENTIFIER if key_fault(key) else ErrorCode.OK

    def _add(self, key: bytes, kind: int, offset: int, now_us: int) -> int:
        """Takes a change up, with room for its record; a status where there is none."""
        size = 0 if key in self._pending else _record_size(key)
        if self._end + self._pending_size + size > len(self._image):
            try:
                self._rewrite(_record_size(key))
            except NoSpace:
                return ErrorCode.DISK_FULL
            except DiskFailed:
                self._failed = True
                raise
            size = _record_size(key)
        self._pending[key] = (kind, offset, now_us)
        self._pending_size += size
        return ErrorCode.OK

    def _append(self, kind: int, offset: int, now_us: int, key: bytes) -> None:
        self._sequence += 1
        record = pack_record(kind, self._sequence, offset, now_us, self._durable, key, self._incarnation)
        assert self._end + len(record) <= len(self._image)
        self._image[self._end : self._end + len(record)] = record
        self._end += len(record)

    def _rewrite(self, needed: int) -> None:
        """A new file with the offsets as they are in memory, pending changes included, and room for more: durable, its
        name too, on return. NoSpace leaves everything as it was."""
        live = DATA_POSITION + sum(_record_size(key) for key in self._offsets)
        size = max(FILE_SIZE_MIN, _page_end(SLACK_FACTOR * live + needed))
        before = (self._image, self._end, self._durable, self._sequence, self._generation)
        self._image, self._end, self._durable = aligned_buffer(size), DATA_POSITION, live
        self._generation += 1
        for key, offset in self._offsets.items():
            self._append(KIND_STORE, offset, 0, key)
        assert self._end == live
        header = pack_header(OffsetsHeader(OFFSETS_MAGIC, self._log_id, self._incarnation, self._generation, live))
        self._image[: len(header)] = header
        try:
            file = self._put_file(size)
        except NoSpace:
            self._image, self._end, self._durable, self._sequence, self._generation = before
            raise
        if self._file is not None:
            self._file.close()
        self._file, self._written = file, live
        self._pending.clear()
        self._pending_size = 0
        # What was pending is durable now, so nothing waits; a change that is about to be added says so itself.
        self.dirty_sync = False

    def _put_file(self, size: int) -> DiskFile:
        if not self._disk.exists(self._directory):
            self._disk.make_directory(self._directory)
            self._disk.sync_directory(posixpath.dirname(self._directory))
        unfinished = self.path + UNFINISHED_SUFFIX
        if self._disk.exists(unfinished):
            self._disk.unlink(unfinished)
        file = self._disk.create(unfinished, direct=False)
        try:
            file.allocate(0, size)
            # Zeros included: a sync into extents that were written before has no metadata to bring along.
            file.write(0, [self._image], sync=True)
            file.sync()
            self._disk.rename(unfinished, self.path)
        except BaseException as error:
            file.close()
            if isinstance(error, NoSpace):
                self._disk.unlink(unfinished)
            raise
        self._disk.sync_directory(self._directory)
        file.close()
        return self._disk.open(self.path, direct=False)

    # --- recovery ---------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        unfinished = self.path + UNFINISHED_SUFFIX
        if self._disk.exists(unfinished):
            self._disk.unlink(unfinished)
        if not self._disk.exists(self.path):
            return
        file = self._disk.open(self.path, direct=False)
        try:
            contents = file.read_uncached(0, file.size())
            found = read_offsets(contents, self._log_id, self._incarnation)
            if found.lost_position is not None and self.persisted:
                self.fault = Corrupt(self.path, found.lost_position, found.fault, REMEDY)
                LOGGER.error("consumer offsets refused: %s", self.fault)
                file.close()
                return
            self._accept(file, contents, found)
        except BaseException:
            file.close()
            raise

    def _accept(self, file: DiskFile, contents: bytes, found: FoundOffsets) -> None:
        """Takes over what was read, and makes the file say exactly that, durably, before anybody hears of it."""
        self._offsets = dict(found.offsets)
        for key in self._offsets:
            self._counts[key[0]] = self._counts.get(key[0], 0) + 1
        self._sequence, self._generation = found.sequence, found.generation
        if found.lost_position is not None:
            LOGGER.error(
                "%s: at byte %d: %s: the consumers whose offsets stood there go on from an older one or the beginning",
                self.path, found.lost_position, found.fault,
            )  # fmt: skip
            file.close()
            self._rewrite(0)
            return
        self._file = file
        self._image = aligned_buffer(max(PAGE_SIZE, _page_end(len(contents))))
        self._image[: found.end] = contents[: found.end]
        self._end = self._written = self._durable = found.end
        tail = len(contents[found.end :].rstrip(b"\0"))
        if found.end > found.mark or tail:
            first = found.mark - found.mark % PAGE_SIZE
            file.write(first, [self._image[first : _page_end(found.end + tail)]], sync=True)


class FoundOffsets:
    """What an offsets file says: the offsets, where its records end, its mark, and what is lost below it."""

    def __init__(self) -> None:
        self.offsets: dict[bytes, int] = {}
        self.sequence = 0
        self.generation = 0
        self.end = DATA_POSITION
        self.mark = 0
        self.lost_position: int | None = None
        """Where the first damage below the mark is; None where nothing is lost."""
        self.fault = ""

    def take(self, record: OffsetRecord) -> None:
        self.sequence = record.sequence
        self.mark = max(self.mark, record.durable_length)
        if record.kind == KIND_STORE:
            self.offsets[record.key] = record.offset
        else:
            self.offsets.pop(record.key, None)


def read_offsets(contents: bytes, log_id: int, incarnation: bytes) -> FoundOffsets:
    """Reads a whole offsets file. Pure; a file with a loss still gives every offset that can be read."""
    found = FoundOffsets()
    header = unpack_header(contents)
    intact = header is not None and (header.log_id, header.incarnation) == (log_id, incarnation)
    if header is not None and intact:
        found.generation, found.mark = header.generation, header.durable_length
    position = DATA_POSITION
    while (record := unpack_record(contents, position, incarnation)) is not None:
        if found.sequence and record.sequence != found.sequence + 1:
            break
        found.take(record)
        position += record.length
    found.end = position
    behind = list(_records_behind(contents, position, incarnation, found.sequence))
    mark = max([found.mark, *(record.durable_length for record in behind)])
    if not intact:
        # Header and name became durable together, so a header that is not there was lost.
        found.lost_position, found.fault = 0, "the header of the offsets file is damaged or another partition's"
    elif position < mark:
        found.lost_position = position
        found.fault = f"damage below byte {mark}, up to which the offsets file was on stable storage"
    if found.lost_position is not None:
        for record in behind:
            found.take(record)
    return found


def _records_behind(contents: bytes, position: int, incarnation: bytes, sequence: int) -> Iterator[OffsetRecord]:
    """The intact records after the damage at ``position``, in order. Usually there are only zeros."""
    end = len(contents.rstrip(b"\0"))
    while position < end:
        record = unpack_record(contents, position, incarnation)
        if record is not None and record.sequence > sequence:
            sequence = record.sequence
            yield record
            position += record.length
        else:
            position += 8


def _record_size(key: bytes) -> int:
    size = (RECORD.size + len(key) + 7 & ~7) + RECORD_CHECKSUM.size
    assert size <= RECORD_SIZE_MAX
    return size


def _page_end(position: int) -> int:
    return -(-position // PAGE_SIZE) * PAGE_SIZE
