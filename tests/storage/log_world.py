"""What the tests of the log stand on: records, an executor without threads, and a log read back without its reader."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from struct import Struct
from typing import Any

from shmbroker.formats.batch import (
    BATCH_MAGIC,
    FRAME_HEADER,
    HEADER_SIZE,
    KIND_BATCH,
    BatchHeader,
    content_checksum_of,
    pack_header,
    record_length_of,
    unpack_header,
)
from shmbroker.formats.control import State
from shmbroker.formats.segment import LOG_SUFFIX, base_offset_of
from shmbroker.formats.segment import unpack_header as unpack_segment
from shmbroker.limits import PAGE_SIZE
from shmbroker.storage.journal import JournalBudget
from shmbroker.storage.log_core import LogOptions
from shmbroker.storage.partition_log import PartitionLog
from shmbroker.storage.superblock import SuperblockFile
from tests.storage.memory_runtime import MemoryRuntime
from tests.storage.simulated_disk import SimulatedDisk

DIRECTORY = "/partitions/00000000000000000007"
LOG_ID = 7
PARTITION_ID = 3
MIB = 1 << 20
SMALL = {"segment_size": MIB}


class InlineExecutor(Executor):
    """Runs everything at once in the caller: the same points in the same order each time. A crash goes straight up."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def record_of(payloads: list[bytes], *, producer_id: int = 0, sequence: int = 0) -> bytes:
    """A batch record as a producer lays it out."""
    frames = b"".join(
        FRAME_HEADER.pack(0, number.to_bytes(16, "little"), number, 0, 0, len(payload), 0) + payload
        for number, payload in enumerate(payloads)
    )
    index = Struct(f"<{len(payloads)}I").pack(*(FRAME_HEADER.size + len(payload) for payload in payloads))
    content = frames + index
    length = record_length_of(len(frames), len(payloads))
    header = BatchHeader(
        0, 0, 0, 1, HEADER_SIZE + len(frames), 0, len(payloads), KIND_BATCH, 0, BATCH_MAGIC, length, 0, 0, bytes(16),
        producer_id, sequence, content_checksum_of(content),
    )  # fmt: skip
    return (pack_header(header) + content).ljust(length, b"\0")


def record_of_size(size: int, fill: int = 0) -> bytes:
    """A record with one message, of exactly ``size`` bytes."""
    payload = size - record_length_of(FRAME_HEADER.size, 1) + 4
    record = record_of([bytes((fill,)) * payload])
    assert len(record) == size, (len(record), size)
    return record


def payloads_of(record: bytes | memoryview) -> list[bytes]:
    header = unpack_header(record)
    payloads = []
    at = HEADER_SIZE
    for _ in range(header.message_count):
        length = FRAME_HEADER.unpack_from(record, at)[5]
        at += FRAME_HEADER.size
        payloads.append(bytes(record[at : at + length]))
        at += length
    return payloads


def make_disk(**arguments: Any) -> SimulatedDisk:
    """A disk with a new partition, durable."""
    disk = SimulatedDisk(**arguments)
    PartitionLog.create(disk, DIRECTORY, LOG_ID, PARTITION_ID)
    return disk


def open_log(
    disk: Any, runtime: Any, *, directory: str = DIRECTORY, instance: int = 1, now_us: int = 1_000_000,
    limit: int = 1 << 30, budget: JournalBudget | None = None, executor: Executor | None = None, **options: Any,
) -> PartitionLog:  # fmt: skip
    return PartitionLog.open(
        disk, runtime, budget or JournalBudget(limit), directory, LOG_ID, PARTITION_ID,
        LogOptions(**{**SMALL, **options}),
        instance=instance, now_us=now_us, executor=executor or InlineExecutor(),
    )  # fmt: skip


def append(log: PartitionLog, payloads: list[bytes], *, now_us: int = 2_000_000, **producer: int) -> int:
    """Appends one batch that has to be taken; its base offset."""
    status, value, argument = log.append(memoryview(record_of(payloads, **producer)), now_us)
    assert status == 0, status
    assert argument == len(payloads)
    return value


def finish_pass(log: PartitionLog) -> None:
    """What a worker does after it has appended everything that was there."""
    log.publish()
    reason = log.flush_due()
    if log.options.persisted:
        assert log.flush(sync=True, reason=reason or "request") == 0
    elif reason:
        log.write_behind(reason, lambda: None)
        log.settle()
        assert log.state is State.OPEN


def read_files(disk: Any, directory: str = DIRECTORY) -> list[tuple[int, bytes]]:
    """(offset, payload) of every message in the segment files of the current incarnation, checked on the way."""
    superblock = SuperblockFile.open(disk, directory, LOG_ID)
    incarnation = superblock.current.incarnation
    superblock.close()
    base = f"{directory}/{incarnation.hex()}"
    messages: list[tuple[int, bytes]] = []
    offsets = sorted(
        n for name in disk.list(base) if name.endswith(LOG_SUFFIX) and (n := base_offset_of(name)) is not None
    )
    for offset in offsets:
        file = disk.open(f"{base}/{offset:020}.log")
        contents = file.read(0, file.size())
        file.close()
        header = unpack_segment(contents)
        assert header is not None
        at = PAGE_SIZE
        while at + HEADER_SIZE <= len(contents):
            batch = unpack_header(contents, at)
            if batch.magic != BATCH_MAGIC:
                break
            assert batch.incarnation == incarnation
            assert batch.log_position == header.base_position + at - PAGE_SIZE
            payloads = payloads_of(contents[at : at + batch.record_length])
            messages += [(batch.base_offset + number, payload) for number, payload in enumerate(payloads)]
            at += batch.record_length
    return messages


def new_world(**options: Any) -> tuple[SimulatedDisk, MemoryRuntime, PartitionLog]:
    """A disk, a runtime and an open log of a new partition."""
    disk, runtime = make_disk(), MemoryRuntime()
    return disk, runtime, open_log(disk, runtime, **options)
