"""Partitions that nobody uses cost no processor time, and little memory."""

from __future__ import annotations

import time
from pathlib import Path

from .conftest import WAIT_S, Start

PARTITION_COUNT = 300
WATCHED_S = 4.0
MEMORY_SIZE_MAX = 256 << 20
"""Front and worker together: 80 MiB are the interpreters and numpy; 1,000 partitions may take 1 GiB."""


def processor_ns(pid: int) -> int:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def memory_size(pid: int) -> int:
    """Proportional: what processes share is counted once."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def test_idle_partitions_cost_no_processor_and_little_memory(start: Start, eventually) -> None:
    broker = start("--workers=1").ready()
    with broker.connect() as client:
        client.create_stream("s")
        client.create_topic("s", "t", partitions=PARTITION_COUNT, timeout=WAIT_S)
    assert broker.stop() == 0
    broker = start("--workers=1").ready()
    processes = [broker.pid, *broker.workers()]
    assert sum(memory_size(pid) for pid in processes) < MEMORY_SIZE_MAX
    began = time.monotonic()
    before = [processor_ns(pid) for pid in processes]
    eventually(lambda: time.monotonic() > began + WATCHED_S, "the time to pass")
    used_ns = sum(processor_ns(pid) for pid in processes) - sum(before)
    share = used_ns / 1e9 / (time.monotonic() - began)
    assert share < 0.01, f"{share:.2%} of a processor for doing nothing"
    assert broker.stop() == 0
