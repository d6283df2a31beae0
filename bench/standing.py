"""Workloads about what stands still: recovery of an active segment, start-up beside sealed data, idle partitions."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import shmbroker
from shmbroker.client.encoding import encode_batch
from shmbroker.limits import GIB, MIB
from shmbroker.storage.disk import FileDisk
from shmbroker.storage.partition_log import JournalBudget, LogOptions, PartitionLog
from shmbroker.storage.runtime import RuntimeDirectory

from .actor import STREAM, payloads_of
from .result import Result, Yardstick

RECOVERY_SIZE = 512 * MIB
RECOVERY_SIZE_SINGLE = 128 * MIB
IDLE_PARTITIONS = 1_000
IDLE_OBSERVED_S = 5.0


class _Place:
    """One partition in a directory of its own, opened without a broker."""

    def __init__(self, directory: Path) -> None:
        self.data = Path(tempfile.mkdtemp(prefix="shmbroker-recovery-", dir=directory))
        self.runtime_path = Path(tempfile.mkdtemp(prefix="shmbroker-bench-", dir="/dev/shm"))
        self.disk = FileDisk()
        self.runtime = RuntimeDirectory(str(self.runtime_path))
        self.executor = ThreadPoolExecutor(2)
        self.directory = str(self.data / "partitions" / "1")
        PartitionLog.create(self.disk, self.directory, 1, 0)

    def open(self, segment_size: int = GIB) -> PartitionLog:
        return PartitionLog.open(
            self.disk, self.runtime, JournalBudget(GIB), self.directory, 1, 0,
            LogOptions(segment_size=segment_size), instance=1, now_us=time.time_ns() // 1000, executor=self.executor,
        )  # fmt: skip

    def fill(self, log: PartitionLog, size: int, batch_count: int) -> int:
        """Appends batches of 100 B messages until the log has ``size`` more bytes; how many batches."""
        messages = payloads_of(100, batch_count)
        batches = written = 0
        while written < size:
            buffers = encode_batch(
                messages, producer_id=0, sequence=0, id_base=batches * batch_count, origin_timestamp_us=1
            )
            record = memoryview(b"".join(buffers))
            status, _, _ = log.append(record, time.time_ns() // 1000)
            if status:
                raise AssertionError(f"append refused with {status}")
            log.publish()
            if log.flush_due() is not None:
                log.flush(sync=False, reason="count")
            written += len(record)
            batches += 1
        log.flush(sync=True, reason="request")
        return batches

    def close(self) -> None:
        self.executor.shutdown()
        shutil.rmtree(self.data)
        shutil.rmtree(self.runtime_path)


def _recover(directory: Path, size: int, batch_count: int) -> tuple[int, float]:
    """Batches of an active segment of ``size`` bytes, and the seconds that opening it after SIGKILL took, warm."""
    place = _Place(directory)
    try:
        log = place.open()
        batches = place.fill(log, size, batch_count)
        log.abandon()
        began = time.perf_counter()
        log = place.open()
        seconds = time.perf_counter() - began
        log.abandon()
        return batches, seconds
    finally:
        place.close()


def recovery(directory: Path) -> list[Result]:
    """Recovery of an active segment: 1,000 messages a batch, and one."""
    size = RECOVERY_SIZE
    batches, seconds = _recover(directory, size, 1000)
    rate = size / seconds
    large = Result(
        "recovery, 1,000 a batch", "", batches * 1000, size, seconds,
        target="1 GB/s", reached=rate >= 1e9, yardsticks=(),
    )  # fmt: skip
    size = RECOVERY_SIZE_SINGLE
    batches, seconds = _recover(directory, size, 1)
    small = Result(
        "recovery, one a batch", "", batches, size, seconds,
        target="300,000 batches/s", reached=batches / seconds >= 300_000,
    )  # fmt: skip
    return [large, small]


def sealed(directory: Path) -> Result:
    """Opening beside 8 sealed segments against opening beside one: the ratio of the times."""
    times = []
    for segments in (1, 8):
        place = _Place(directory)
        try:
            log = place.open(segment_size=16 * MIB)
            place.fill(log, (16 * segments + 1) * MIB, 1000)
            log.abandon()
            best = 1e9
            for _ in range(5):
                began = time.perf_counter()
                log = place.open(segment_size=16 * MIB)
                best = min(best, time.perf_counter() - began)
                log.abandon()
            times.append(best)
        finally:
            place.close()
    ratio = times[1] / times[0]
    yardstick = Yardstick("opening beside one sealed segment, s", times[0], ratio)
    return Result(
        "start beside 8 sealed segments", "", 0, 0, times[1], yardsticks=(yardstick,), target="ratio near 1",
        reached=ratio < 2,
    )  # fmt: skip


def _processes_of(pid: int) -> list[int]:
    """``pid`` and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                parent = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            children.setdefault(parent, []).append(int(entry))
    found = [pid]
    for process in found:
        found += children.get(process, [])
    return found


def _memory_of(pids: list[int]) -> int:
    """Proportional set size of the processes together, in bytes."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


def _processor_s_of(pids: list[int]) -> float:
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def idle(directory: Path) -> list[Result]:
    """A thousand idle partitions: start-up, memory, processor time."""
    data = Path(tempfile.mkdtemp(prefix="shmbroker-idle-", dir=directory))
    try:
        with shmbroker.embedded(str(data)) as broker, broker.connect() as client:
            client.create_stream(STREAM)
            client.create_topic(STREAM, "idle", partitions=IDLE_PARTITIONS, timeout=120.0)
        began = time.perf_counter()
        with shmbroker.embedded(str(data)) as broker, broker.connect() as client:
            client.ping()
            start_s = time.perf_counter() - began
            pids = _processes_of(broker.pid)
            before = _processor_s_of(pids)
            time.sleep(IDLE_OBSERVED_S)
            share = (_processor_s_of(pids) - before) / IDLE_OBSERVED_S
            memory = _memory_of(pids)
    finally:
        shutil.rmtree(data)
    figures: dict[str, Any] = {"memory_bytes": memory, "processor_share": share}
    return [
        Result("1,000 idle partitions, start", "", 0, 0, start_s, target="under 10 s", reached=start_s < 10,
               yardsticks=(Yardstick("10 s", 10.0, start_s / 10),)),
        Result("1,000 idle partitions, memory", "", 0, 0, 0, target="under 1 GiB", reached=memory < GIB,
               yardsticks=(Yardstick("1 GiB, B", float(GIB), memory / GIB),), extra=figures),
        Result("1,000 idle partitions, processor", "", 0, 0, IDLE_OBSERVED_S, target="under 1 % of a core",
               reached=bool(np.less(share, 0.01)), yardsticks=(Yardstick("one core", 1.0, share),)),
    ]  # fmt: skip
