"""``shmbroker stats``: what the broker's processes and partitions are doing, once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shmbroker.cli import output
from shmbroker.cli.connection import DATA_DEFAULT, Data, connected
from shmbroker.cli.output import Json

WORKER_COLUMNS = {
    "worker": "Worker", "pid": "Process", "state": "State", "restarts": "Restarts", "uptime_s": "Up (s)",
    "processor_s": "Processor (s)", "memory": "Memory", "lanes": "Lanes",
}  # fmt: skip
PARTITION_COLUMNS = {
    "name": "Partition", "worker": "Worker", "durability": "Durability", "state": "State", "messages": "Messages",
    "size": "Size", "first_offset": "First offset", "committed_offset": "Next offset",
    "durable_offset": "Durable up to", "batches_to_each_write": "Batches/write", "direct_io": "Direct I/O",
}  # fmt: skip


def stats(data: Data = DATA_DEFAULT, as_json: Json = False) -> None:
    """Show workers, partitions, and how well writes are shared; over TCP the broker alone. JSON has every counter.

    `shmbroker stats`

    `shmbroker stats --json`
    """
    with connected(data) as client:
        facts = client.stats()
    if as_json:
        output.print_json(facts)
        return
    if not facts["workers"]:  # over TCP: the figures that Iggy's protocol has
        output.print_properties(facts["broker"], as_json=False)
        return
    broker = {
        **facts["broker"],
        "pid": str(facts["broker"]["pid"]),
        "instance": f"{facts['broker']['instance']:x}",
        "memory_max": output.size_text(facts["broker"]["memory_max"]),
    }
    output.print_properties(broker, as_json=False)
    output.print_rows(list(map(worker_row, facts["workers"])), WORKER_COLUMNS, as_json=False, empty="No workers.")
    for worker in facts["workers"]:
        if worker.get("reason"):
            output.print_note(f"worker {worker['worker']}: {worker['reason']}")
    rows = [partition_row(partition) for partition in facts["partitions"]]
    output.print_rows(rows, PARTITION_COLUMNS, as_json=False, empty="No partitions yet.")
    for partition in facts["partitions"]:
        if partition.get("reason"):
            output.print_note(f"{name_of(partition)}: {partition['reason']}")


def worker_row(worker: Mapping[str, Any]) -> dict[str, Any]:
    """A worker that is down has no figures."""
    pid, memory = worker.get("pid"), worker.get("memory_max")
    return {
        **worker,
        "pid": None if pid is None else str(pid),
        "memory": None if memory is None else output.size_text(memory),
    }


def name_of(partition: Mapping[str, Any]) -> str:
    return f"{partition['stream']}/{partition['topic']}/{partition['partition']}"


def partition_row(partition: Mapping[str, Any]) -> dict[str, Any]:
    counters = partition.get("counters", {})
    return {
        **partition,
        "name": name_of(partition),
        "messages": counters.get("messages_retained"),
        "size": output.size_text(partition["size"]) if partition.get("size") is not None else None,
        "batches_to_each_write": batches_to_each_write(counters),
        "direct_io": bool(partition.get("direct_io")),
    }


def batches_to_each_write(*counters: Mapping[str, int]) -> float | None:
    """How many batches shared a group write, over these partitions; None where there was none."""
    groups = sum(each.get("groups", 0) for each in counters)
    return sum(each.get("batches", 0) for each in counters) / groups if groups else None
