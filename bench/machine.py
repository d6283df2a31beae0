"""The limits of this machine, without the broker: what every figure of the broker is compared with, in the same run.

Only ratios carry over from one machine to another, and machines change their speed from minute to minute, so each
function here takes well under a second and is called just before or after what it is compared with. They use the same
means as the broker: CPython, shared mappings, whole pages from page-aligned memory into a preallocated file.

The ping-pong between two processes has two answers that differ tenfold, depending on whether the scheduler leaves both
on one processor or wakes the other one from its sleep; :func:`measure_ping_pong` gives what it got when free to choose,
and both others by pinning.
"""

from __future__ import annotations

import mmap
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import posix_ipc
from crc32c import crc32c
from rich.table import Table
from xxhash import xxh3_64_intdigest

from shmbroker.client.encoding import encode_batch
from shmbroker.limits import KIB, MIB, PAGE_SIZE
from shmbroker.shm.doorbell import EventDoorbell

MEASURE_S: Final = 0.25
ROUND_TRIPS: Final = 4_000
WARM_UP_TRIPS: Final = 500
WRITES_MIN: Final = 20
FILE_SIZE_MIN: Final = 16 * MIB
COPY_SIZE: Final = 1 * MIB
COPY_SOURCE_SIZE: Final = 4 * MIB
COPY_TARGET_SIZE: Final = 64 * MIB
WRITE_SIZES: Final = (4 * KIB, 64 * KIB, 128 * KIB, 1 * MIB, 4 * MIB)
TRIP_S_MAX: Final = 10.0


@dataclass(frozen=True)
class Latency:
    """Of one operation, in microseconds."""

    p50_us: float
    p99_us: float


@dataclass(frozen=True)
class Write:
    """Writes of ``size`` bytes, one after the other, each durable when it returns."""

    size: int
    direct: bool
    """Whether the file system has O_DIRECT; elsewhere these are buffered writes and fdatasync."""
    p50_us: float
    p99_us: float
    size_rate: float
    """Bytes a second."""


@dataclass(frozen=True)
class PingPong:
    """There and back between two processes: as the scheduler places them, on one processor, on two."""

    p50_us: float
    p99_us: float
    together: Latency
    apart: Latency | None
    """None where there is one processor only."""


@dataclass(frozen=True)
class Limits:
    """All of it. Rates are bytes a second unless the name says otherwise."""

    copy_rate: float
    xxh3_rate: float
    crc32c_rate: float
    encode_message_rate: float
    """Messages of 100 B a second, 1,000 a batch, into records: the producer alone."""
    semaphore: PingPong
    doorbell: PingPong
    direct_writes: tuple[Write, ...]
    sync: Write
    buffered_rate: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure(directory: str, write_sizes: Sequence[int] = WRITE_SIZES) -> Limits:
    """Everything, in about five seconds. ``directory`` is on the file system to measure."""
    return Limits(
        copy_rate=measure_copy(),
        xxh3_rate=measure_hash(xxh3_64_intdigest),
        crc32c_rate=measure_hash(crc32c),
        encode_message_rate=measure_encode(message_size=100, batch_count=1_000),
        semaphore=measure_ping_pong(),
        doorbell=measure_doorbell(),
        direct_writes=tuple(measure_direct_write(directory, size) for size in write_sizes),
        sync=measure_sync(directory),
        buffered_rate=measure_buffered_write(directory),
    )


# --- memory and processor -------------------------------------------------------------------------------------------


def measure_copy() -> float:
    """Bytes a second, 1 MiB at a time out of one shared mapping of 4 MiB into another of 64 MiB: a lane into a ring."""
    source = memoryview(mmap.mmap(-1, COPY_SOURCE_SIZE))
    target = memoryview(mmap.mmap(-1, COPY_TARGET_SIZE))
    source[:] = secrets.token_bytes(COPY_SOURCE_SIZE)
    target[:] = bytes(COPY_TARGET_SIZE)
    pairs = [
        (slice(to, to + COPY_SIZE), source[to % COPY_SOURCE_SIZE :][:COPY_SIZE])
        for to in range(0, COPY_TARGET_SIZE, COPY_SIZE)
    ]

    def copy() -> None:
        for to, block in pairs:
            target[to] = block

    return COPY_TARGET_SIZE / _median_s(copy)


def measure_hash(function: Callable[[Any], int]) -> float:
    """Bytes a second of a checksum over 1 MiB of a mapping."""
    block = memoryview(mmap.mmap(-1, COPY_SIZE))
    block[:] = secrets.token_bytes(COPY_SIZE)
    return COPY_SIZE / _median_s(lambda: function(block))


def measure_encode(message_size: int, batch_count: int) -> float:
    """Messages a second that a producer alone lays out as records, from a ``list[bytes]``."""
    messages = [secrets.token_bytes(message_size) for _ in range(batch_count)]
    sequence = 0

    def encode() -> None:
        nonlocal sequence
        sequence += 1
        encode_batch(messages, id_base=sequence << 32, origin_timestamp_us=1, producer_id=1, sequence=sequence)

    return batch_count / _median_s(encode)


def _median_s(action: Callable[[], object]) -> float:
    """Seconds that one call takes: the median over as many as fit into MEASURE_S, at least three."""
    action()
    times_ns: list[int] = []
    end_ns = time.perf_counter_ns() + int(MEASURE_S * 1e9)
    while len(times_ns) < 3 or time.perf_counter_ns() < end_ns:
        begin_ns = time.perf_counter_ns()
        action()
        times_ns.append(time.perf_counter_ns() - begin_ns)
    return float(np.median(times_ns)) / 1e9


# --- waking another process -----------------------------------------------------------------------------------------


def measure_ping_pong() -> PingPong:
    """There and back over two POSIX semaphores."""
    return _everywhere("semaphore")


def measure_doorbell() -> PingPong:
    """There and back over two of the broker's doorbells."""
    return _everywhere("doorbell")


def _everywhere(kind: str) -> PingPong:
    processors = sorted(os.sched_getaffinity(0))
    free = _ping_pong(kind, processors, processors)
    together = _ping_pong(kind, processors[:1], processors[:1])
    apart = _ping_pong(kind, processors[:1], processors[1:2]) if len(processors) > 1 else None
    return PingPong(free.p50_us, free.p99_us, together, apart)


class _SemaphoreBell:
    def __init__(self, name: str) -> None:
        self._semaphore = posix_ipc.Semaphore(name, posix_ipc.O_CREAT, 0o600, 0)

    def ring(self) -> None:
        self._semaphore.release()

    def wait(self, timeout_s: float) -> bool:
        try:
            self._semaphore.acquire(timeout_s)
        except posix_ipc.BusyError:
            return False
        return True

    def close(self) -> None:
        self._semaphore.close()


def _ping_pong(kind: str, mine: Sequence[int], theirs: Sequence[int]) -> Latency:
    """One ping-pong with this process and the other one pinned to these processors."""
    before = os.sched_getaffinity(0)
    names = [f"/shmbroker-bench-{secrets.token_hex(8)}" for _ in range(2)]
    bells: list[Any]
    if kind == "semaphore":
        bells, words, fds = [_SemaphoreBell(name) for name in names], names, []
    else:
        bells = [EventDoorbell.create() for _ in range(2)]
        fds = [bell.fd for bell in bells]
        words = [str(fd) for fd in fds]
    arguments = [sys.executable, "-m", "shmbroker.bench.machine", kind, *words, ",".join(map(str, theirs))]
    process = subprocess.Popen(arguments, pass_fds=fds, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.read(1)
        os.sched_setaffinity(0, mine)
        times_ns = [_trip_ns(*bells) for _ in range(WARM_UP_TRIPS + ROUND_TRIPS)][WARM_UP_TRIPS:]
    finally:
        os.sched_setaffinity(0, before)
        process.kill()
        process.communicate()
        for bell in bells:
            bell.close()
        for name in names if kind == "semaphore" else ():
            posix_ipc.unlink_semaphore(name)
    p50_ns, p99_ns = np.percentile(times_ns, (50, 99))
    return Latency(float(p50_ns) / 1e3, float(p99_ns) / 1e3)


def _trip_ns(ping: Any, pong: Any) -> int:
    begin_ns = time.perf_counter_ns()
    ping.ring()
    if not pong.wait(TRIP_S_MAX):
        raise TimeoutError("the other process of the ping-pong does not answer")
    return time.perf_counter_ns() - begin_ns


def _answer(kind: str, ping_word: str, pong_word: str, processors: str) -> None:
    """The other process: a ring for a ring."""
    os.sched_setaffinity(0, {int(number) for number in processors.split(",")})
    ping, pong = (
        _SemaphoreBell(word) if kind == "semaphore" else EventDoorbell(int(word)) for word in (ping_word, pong_word)
    )
    sys.stdout.write("r")
    sys.stdout.flush()
    while ping.wait(TRIP_S_MAX):
        pong.ring()


# --- the disk -------------------------------------------------------------------------------------------------------


def measure_direct_write(directory: str, size: int) -> Write:
    """Synchronous writes of ``size`` bytes (rounded up to pages), one after the other, into a preallocated file.

    ``O_DIRECT|O_DSYNC``, or buffered with fdatasync where the file system has no O_DIRECT.
    """
    size = -(-size // PAGE_SIZE) * PAGE_SIZE
    with _scratch_file(directory, size) as path:
        try:
            fd = os.open(path, os.O_WRONLY | os.O_DIRECT | os.O_DSYNC)
        except OSError:
            return _measure_writes(path, os.open(path, os.O_WRONLY), size, direct=False)
        return _measure_writes(path, fd, size, direct=True)


def measure_sync(directory: str, size: int = PAGE_SIZE) -> Write:
    """A buffered write of ``size`` bytes into a preallocated file and the fdatasync after it."""
    with _scratch_file(directory, size) as path:
        return _measure_writes(path, os.open(path, os.O_WRONLY), size, direct=False)


def measure_buffered_write(directory: str, size: int = 1 * MIB) -> float:
    """Bytes a second of buffered writes into new pages of a preallocated file, without any sync."""
    with _scratch_file(directory, size, FILE_SIZE_MIN * 4) as path:
        fd = os.open(path, os.O_WRONLY)
        block = _random_pages(size)
        begin_s = time.perf_counter()
        for position in range(0, FILE_SIZE_MIN * 4, size):
            os.pwrite(fd, block, position)
        seconds = time.perf_counter() - begin_s
        os.close(fd)
        return FILE_SIZE_MIN * 4 / seconds


def _measure_writes(path: str, fd: int, size: int, *, direct: bool) -> Write:
    """Writes over the file from its beginning, each position once as far as it goes, for MEASURE_S. Closes ``fd``."""
    block = _random_pages(size)
    count = os.stat(path).st_size // size
    times_ns: list[int] = []
    end_ns = time.perf_counter_ns() + int(MEASURE_S * 1e9)
    while len(times_ns) < WRITES_MIN or time.perf_counter_ns() < end_ns:
        begin_ns = time.perf_counter_ns()
        os.pwrite(fd, block, len(times_ns) % count * size)
        if not direct:
            os.fdatasync(fd)
        times_ns.append(time.perf_counter_ns() - begin_ns)
    os.close(fd)
    p50_ns, p99_ns = np.percentile(times_ns, (50, 99))
    return Write(size, direct, float(p50_ns) / 1e3, float(p99_ns) / 1e3, size * len(times_ns) * 1e9 / sum(times_ns))


def _random_pages(size: int) -> memoryview:
    """``size`` random bytes at the start of a page."""
    block = memoryview(mmap.mmap(-1, size))
    block[:] = secrets.token_bytes(size)
    return block


@contextmanager
def _scratch_file(directory: str, size: int, file_size: int = FILE_SIZE_MIN) -> Iterator[str]:
    """A preallocated file with room for at least WRITES_MIN writes of ``size``."""
    with tempfile.TemporaryDirectory(prefix="shmbroker-bench-", dir=directory) as scratch:
        path = f"{scratch}/file"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.posix_fallocate(fd, 0, max(file_size, size * WRITES_MIN))
            os.fsync(fd)
        finally:
            os.close(fd)
        yield path


# --- how it is shown ------------------------------------------------------------------------------------------------


def table_of(limits: Limits) -> Table:
    """The limits for the terminal."""
    table = Table(title="Limits of this machine")
    for heading, justify in (("what", "left"), ("rate", "right"), ("p50 us", "right"), ("p99 us", "right")):
        table.add_column(heading, justify="right" if justify == "right" else "left")

    def rate(name: str, value: float) -> None:
        table.add_row(name, f"{value / 1e6:,.0f} MB/s", "", "")

    def latency(name: str, value: Latency | PingPong) -> None:
        table.add_row(name, "", f"{value.p50_us:,.1f}", f"{value.p99_us:,.1f}")

    rate("copy between mappings, 1 MiB at a time", limits.copy_rate)
    rate("xxh3_64 of 1 MiB", limits.xxh3_rate)
    rate("crc32c of 1 MiB", limits.crc32c_rate)
    table.add_row("encoding alone, 1,000 messages of 100 B", f"{limits.encode_message_rate / 1e6:,.2f} M msg/s", "", "")
    for name, ping_pong in (("semaphore", limits.semaphore), ("doorbell", limits.doorbell)):
        latency(f"{name} ping-pong, two processes", ping_pong)
        latency("  both on one processor", ping_pong.together)
        if ping_pong.apart is not None:
            latency("  on two processors", ping_pong.apart)
    for write in (*limits.direct_writes, limits.sync):
        kind = "O_DIRECT|O_DSYNC write" if write.direct else "write + fdatasync"
        table.add_row(
            f"{kind} of {write.size // KIB:,} KiB",
            f"{write.size_rate / 1e6:,.0f} MB/s",
            f"{write.p50_us:,.0f}",
            f"{write.p99_us:,.0f}",
        )
    rate("buffered write, 1 MiB at a time, not synchronised", limits.buffered_rate)
    return table


if __name__ == "__main__":
    if len(sys.argv) > 2:
        _answer(*sys.argv[1:])
    else:
        from rich.console import Console

        Console().print(table_of(measure(sys.argv[1] if len(sys.argv) > 1 else ".")))
