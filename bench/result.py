"""What a workload measured, and how it is shown: a table in the terminal, JSON for scripts.

A figure is never alone: it stands beside the machine's own limit, measured in the same run, and the ratio between them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

PERCENTILES = (50.0, 99.0, 99.9)


@dataclass(frozen=True)
class Yardstick:
    """A limit of the machine in the unit of the figure, and the ratio of the figure to it."""

    name: str
    value: float
    ratio: float


@dataclass(frozen=True)
class Result:
    """One row. Rates are per second; latencies in microseconds."""

    workload: str
    durability: str
    messages: int
    size: int
    """Payload bytes in all."""
    seconds: float
    latency_us: tuple[float, ...] = ()
    """At PERCENTILES; empty where the workload has none."""
    batches_per_sync: float | None = None
    yardsticks: tuple[Yardstick, ...] = ()
    target: str = ""
    reached: bool | None = None
    extra: dict[str, float] = field(default_factory=dict)

    @property
    def message_rate(self) -> float:
        return self.messages / self.seconds if self.seconds else 0.0

    @property
    def size_rate(self) -> float:
        return self.size / self.seconds if self.seconds else 0.0

    def as_dict(self) -> dict[str, Any]:
        return {
            "workload": self.workload,
            "durability": self.durability,
            "messages": self.messages,
            "seconds": self.seconds,
            "messages_per_second": self.message_rate,
            "bytes_per_second": self.size_rate,
            "latency_us": dict(zip(("p50", "p99", "p99.9"), self.latency_us, strict=False)),
            "batches_per_sync": self.batches_per_sync,
            "yardsticks": [{"name": y.name, "value": y.value, "ratio": y.ratio} for y in self.yardsticks],
            "target": self.target,
            "reached": self.reached,
            **self.extra,
        }


def percentiles_of(latencies_ns: NDArray[np.int64]) -> tuple[float, ...]:
    """The PERCENTILES of latencies given in nanoseconds, in microseconds."""
    if len(latencies_ns) == 0:
        return ()
    return tuple(float(value) / 1e3 for value in np.percentile(latencies_ns, PERCENTILES))


def show(results: list[Result], console: Console) -> None:
    """Two tables of one row a result: what was measured, and how that stands to the machine and to the aim."""
    figures = Table(title="What the workloads reached")
    limits = Table(title="Beside the machine's own limit in the same run")
    for table in (figures, limits):
        table.add_column("workload", no_wrap=True)
        table.add_column("policy", no_wrap=True)
    for heading in ("msg/s", "MB/s", "p50 us", "p99 us", "p99.9 us", "batches/sync"):
        figures.add_column(heading, justify="right", no_wrap=True)
    for heading in ("ratio to the limit", "to reach", "reached"):
        limits.add_column(heading)
    for result in results:
        latencies = [f"{value:,.0f}" for value in result.latency_us] or ["", "", ""]
        group = "" if result.batches_per_sync is None else f"{result.batches_per_sync:.1f}"
        rate = f"{result.message_rate:,.0f}" if result.messages else ""
        size_rate = f"{result.size_rate / 1e6:,.1f}" if result.size else ""
        figures.add_row(result.workload, result.durability, rate, size_rate, *latencies, group)
        yardsticks = "; ".join(f"{y.ratio:.2f} of {y.name} ({_short(y.value)})" for y in result.yardsticks)
        mark = {True: "[green]yes[/]", False: "[red]no[/]", None: ""}[result.reached]
        limits.add_row(result.workload, result.durability, yardsticks, result.target, mark)
    console.print(figures)
    console.print(limits)


def _short(value: float) -> str:
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g}{suffix}"
    return f"{value:.3g}"


def write_json(results: list[Result], machine: dict[str, Any], path: Path) -> None:
    """The whole report as JSON, with the machine's limits."""
    report = {"machine": machine, "results": [result.as_dict() for result in results]}
    path.write_text(json.dumps(report, indent=2) + "\n")
