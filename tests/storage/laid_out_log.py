"""A log laid out byte by byte with the formats alone: readers are tested against it without the code that writes logs.

Real files, a real ring and a real control block; one step at a time, so that a test decides what stands where. Words
are stored in the order that readers rely on.
"""

from __future__ import annotations

import mmap
import os
import random
from pathlib import Path

from shmbroker.client.batch import Batch
from shmbroker.client.encoding import encode_batch
from shmbroker.formats import control as words_of
from shmbroker.formats import index as index_format
from shmbroker.formats import journal as journal_format
from shmbroker.formats import segment as segment_format
from shmbroker.formats.batch import BatchHeader, filler_length, pack_filler, pack_header, unpack_header
from shmbroker.formats.control import CONTROL_MAGIC, CONTROL_SIZE, State
from shmbroker.limits import MIB, PAGE_SIZE
from shmbroker.storage.reader import LogReader, RecordSlice

LOG_ID = 7
PARTITION_ID = 3
BOOT_ID = bytes(range(16))


def shared_file(path: Path, size: int) -> memoryview:
    with open(path, "xb+") as file:
        os.posix_fallocate(file.fileno(), 0, size)
        return memoryview(mmap.mmap(file.fileno(), size))


class LaidOutLog:
    """``control_path`` and ``directory`` are for a LogReader; ``expected`` is every (offset, payload) appended."""

    def __init__(self, path: Path, *, ring_size: int = MIB, incarnation: bytes = bytes(range(100, 116))) -> None:
        self.incarnation = incarnation
        self.directory = str(path / "partition")
        self.files = path / "partition" / incarnation.hex()
        self.files.mkdir(parents=True)
        self.runtime = path / "logs"
        self.runtime.mkdir(exist_ok=True)
        self.stem = self.runtime / f"{LOG_ID}-{incarnation.hex()}"
        self.control_path = f"{self.stem}.control"
        self.words = shared_file(Path(self.control_path), CONTROL_SIZE).cast("Q")
        self.ring_size = ring_size
        self.ring: memoryview | None = None
        self.generation = 0
        self.position = self.offset = self.file_position = 0
        self.ring_base = 0
        self.base_offset = self.base_position = 0
        self.log = bytearray()
        """Every byte since position 0: what the ring is filled from, and the files."""
        self.index: list[index_format.IndexEntry] = []
        self.timestamps: list[int] = []
        self.segments: list[int] = []
        self.expected: list[tuple[int, bytes]] = []
        self.set(
            WORD_STATE=State.OPEN, WORD_LOG_ID=LOG_ID,
            WORD_INCARNATION_LOW=int.from_bytes(incarnation[:8], "little"),
            WORD_INCARNATION_HIGH=int.from_bytes(incarnation[8:], "little"), WORD_MAGIC=CONTROL_MAGIC,
        )  # fmt: skip

    def set(self, **values: int) -> None:
        """Stores words of the control block by name, in this order."""
        for name, value in values.items():
            self.words[getattr(words_of, name)] = value

    def take_ring(self) -> None:
        self.generation += 1
        self.ring_base = self.position
        view = shared_file(Path(f"{self.stem}.ring-{self.generation}"), PAGE_SIZE + self.ring_size)
        header = journal_format.pack_header(
            journal_format.JournalHeader(
                journal_format.JOURNAL_MAGIC, LOG_ID, self.incarnation, self.generation, self.ring_size, self.position,
                BOOT_ID,
            )
        )  # fmt: skip
        view[: len(header)] = header
        self.ring = view
        self.set(WORD_RING_SIZE=self.ring_size, WORD_RING_BASE=self.position, WORD_OVERWRITE_END=self.position)
        self.set(WORD_RING_GENERATION=self.generation)

    def start_segment(self, *, base_offset: int | None = None, gap_reason: int = 0) -> None:
        previous = self.offset
        if base_offset is not None:
            self.offset = base_offset
        self.base_offset, self.base_position = self.offset, self.position
        self.index, self.timestamps = [], []
        self.segments.append(self.base_offset)
        header = segment_format.SegmentHeader(
            segment_format.SEGMENT_MAGIC, LOG_ID, self.incarnation, PARTITION_ID, self.base_offset, self.base_position,
            previous, gap_reason, 0,
        )  # fmt: skip
        self.segment_header = header
        self.log_path().write_bytes(segment_format.pack_page(header, None))
        os.truncate(self.log_path(), PAGE_SIZE + 4 * MIB)
        self._write_index()
        self.set(WORD_ACTIVE_BASE_POSITION=self.base_position, WORD_ACTIVE_BASE_OFFSET=self.base_offset)
        self.set(WORD_SEGMENTS_GENERATION=self.words[words_of.WORD_SEGMENTS_GENERATION] + 1)

    def log_path(self, base_offset: int | None = None) -> Path:
        return self.files / segment_format.log_name(self.base_offset if base_offset is None else base_offset)

    def append(self, payloads: list[bytes], *, timestamp_us: int = 1, publish: bool = True) -> None:
        """One batch into the ring, for all to see."""
        if not self.segments:
            self.start_segment()
        if self.ring is None:
            self.take_ring()
        header, content = encode_batch(payloads, id_base=1 << 64, origin_timestamp_us=5)
        stamped = self._stamped(unpack_header(header), timestamp_us)
        if not self.index or self.position - self.index[-1].position >= 4096:
            self.index.append(index_format.IndexEntry(self.offset, timestamp_us, self.position))
        self.timestamps.append(timestamp_us)
        self.expected += [(self.offset + number, payload) for number, payload in enumerate(payloads)]
        self.offset += len(payloads)
        self._put(pack_header(stamped) + content)
        if publish:
            self.publish()

    def _stamped(self, header: BatchHeader, timestamp_us: int) -> BatchHeader:
        return header._replace(
            partition_id=PARTITION_ID, base_offset=self.offset, base_timestamp=timestamp_us,
            log_position=self.position, durable_position=self.file_position, incarnation=self.incarnation,
        )  # fmt: skip

    def publish(self) -> None:
        self.set(WORD_VISIBLE_OFFSET=self.offset, WORD_VISIBLE_POSITION=self.position)

    def _put(self, record: bytes) -> None:
        end = self.position + len(record)
        assert end - self.file_position // PAGE_SIZE * PAGE_SIZE <= self.ring_size, "flush first"
        assert self.ring is not None
        self.set(WORD_OVERWRITE_END=max(end, self.words[words_of.WORD_OVERWRITE_END]))
        for at in range(0, len(record), PAGE_SIZE):
            piece = record[at : at + PAGE_SIZE]
            start = (self.position + at) % self.ring_size
            first = min(len(piece), self.ring_size - start)
            self.ring[PAGE_SIZE + start : PAGE_SIZE + start + first] = piece[:first]
            self.ring[PAGE_SIZE : PAGE_SIZE + len(piece) - first] = piece[first:]
        self.log += record
        self.position = end

    def flush(self) -> None:
        """Everything to the segment file; whole pages are stable from here on."""
        with open(self.log_path(), "r+b") as file:
            file.seek(PAGE_SIZE + self.file_position - self.base_position)
            file.write(self.log[self.file_position : self.position])
        self.file_position = self.position
        self._write_index()
        stable = self.position // PAGE_SIZE * PAGE_SIZE
        self.set(WORD_FILE_POSITION=self.position, WORD_STABLE_POSITION=stable)

    def _write_index(self) -> None:
        entries = [index_format.pack_entry(entry, self.incarnation) for entry in self.index]
        path = self.files / segment_format.index_name(self.base_offset)
        path.write_bytes(index_format.pack_header(self.incarnation, self.base_offset) + b"".join(entries) + bytes(4096))

    def close_to_page(self) -> None:
        """The filler, and everything stable."""
        if filler_length(self.position):
            self._put(pack_filler(PARTITION_ID, self.offset, 1, self.position, self.file_position, self.incarnation))
        self.flush()
        self.publish()

    def roll(self, *, base_offset: int | None = None, gap_reason: int = 0) -> None:
        """Seals the active segment and starts the next, with a gap in the numbers where ``base_offset`` is given."""
        self.close_to_page()
        self.seal()
        self.start_segment(base_offset=base_offset, gap_reason=gap_reason)

    def seal(self) -> None:
        seal = segment_format.Seal(
            segment_format.SEAL_MAGIC, self.incarnation, self.offset, self.position, self.offset - self.base_offset,
            min(self.timestamps, default=0), max(self.timestamps, default=0), len(self.index),
        )  # fmt: skip
        with open(self.log_path(), "r+b") as file:
            file.write(segment_format.pack_page(self.segment_header, seal))

    def give_ring_back(self) -> None:
        self.close_to_page()
        os.unlink(f"{self.stem}.ring-{self.generation}")
        self.ring = None
        self.set(WORD_CLOSED=1, WORD_RING_GENERATION=0)

    def delete_first_segment(self) -> None:
        base_offset = self.segments.pop(0)
        self.set(WORD_FIRST_OFFSET=self.segments[0])
        self.set(WORD_SEGMENTS_GENERATION=self.words[words_of.WORD_SEGMENTS_GENERATION] + 1)
        self.log_path(base_offset).unlink()
        (self.files / segment_format.index_name(base_offset)).unlink()
        self.expected = [pair for pair in self.expected if pair[0] >= self.segments[0]]


def reader_of(log: LaidOutLog) -> LogReader:
    return LogReader(log.control_path, log.directory)


def pairs_of(slices: list[RecordSlice]) -> list[tuple[int, bytes]]:
    batches = [Batch(piece) for piece in slices]
    return [
        (batch.base_offset + number, payload) for batch in batches for number, payload in enumerate(batch.payloads())
    ]


def read_all(reader: LogReader, max_messages: int = 1000, max_bytes: int = MIB) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    while slices := reader.read(max_messages, max_bytes):
        assert sum(piece.count for piece in slices) <= max_messages
        assert len(slices) == 1 or sum(len(piece.record) for piece in slices) <= max_bytes
        found += pairs_of(slices)
    return found


def payloads(rng: random.Random, count: int, size_max: int = 300) -> list[bytes]:
    return [rng.randbytes(rng.randint(1, size_max)) for _ in range(count)]


def fill(log: LaidOutLog, rng: random.Random, batches: int, count: int = 20, *, flush_each: int = 0) -> None:
    for number in range(batches):
        log.append(payloads(rng, count), timestamp_us=1000 + log.offset)
        if flush_each and number % flush_each == flush_each - 1:
            log.flush()
