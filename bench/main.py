"""``shmbroker bench``: chosen workloads on an embedded broker, the machine's limits, one report."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

import shmbroker
from shmbroker.errors import InvalidConfiguration

from . import machine, standing
from .actor import STREAM
from .result import Result, show, write_json
from .tcp import TCP_WORKLOADS
from .workloads import BOTH, WORKLOADS, Front, Setting

STANDING = {
    "recovery": "Opening a log after SIGKILL: a large active segment of batches of 1,000, and of one.",
    "sealed": "Opening a log beside one and beside eight sealed segments.",
    "idle": "A thousand idle partitions: start-up, memory, processor time.",
}
PIPE_WIDTH = 120
"""Columns where nobody is looking: in a file nothing needs to be folded."""
ON_A_BROKER = (*WORKLOADS, *TCP_WORKLOADS)
NAMES = (*(workload.name for workload in ON_A_BROKER), *STANDING)
PASSWORD = "only for the bench"


@dataclass(frozen=True)
class Options:
    """What to run: names of workloads (none means all), policies, seconds a workload, where, and the report's file."""

    names: Sequence[str] = ()
    durabilities: Sequence[str] = ("replicated", "persisted")
    seconds: float = 5.0
    directory: Path = Path()
    output: Path | None = None


def run(arguments: Sequence[str]) -> int:
    """The command: parses, runs, shows; the exit status. Raises InvalidConfiguration for a name that is none."""
    parser = argparse.ArgumentParser(prog="shmbroker bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="WORKLOAD")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--durability", choices=BOTH)
    parser.add_argument("--directory", type=Path, default=Path())
    parser.add_argument("--report", type=Path)
    parser.add_argument("--list", action="store_true")
    given = parser.parse_args(list(arguments))
    console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)
    if given.list:
        show_workloads(console)
        return 0
    durabilities = (given.durability,) if given.durability else BOTH
    measure(Options(given.names, durabilities, given.seconds, given.directory.resolve(), given.report), console)
    return 0


def show_workloads(console: Console) -> None:
    """Names and what they do."""
    table = Table("workload", "what it does")
    for workload in ON_A_BROKER:
        table.add_row(workload.name, workload.title)
    for name, text in STANDING.items():
        table.add_row(name, text)
    console.print(table)


def measure(options: Options, console: Console) -> list[Result]:
    """Runs and shows; the results."""
    names = options.names or NAMES
    for name in names:
        if name not in NAMES:
            raise InvalidConfiguration(f"no workload {name!r}: they are {', '.join(NAMES)}")
    limits = machine.measure(str(options.directory))
    console.print(machine.table_of(limits))
    results: list[Result] = []
    if any(name not in STANDING for name in names):
        results += _run_on_broker(options, names, console)
    if "recovery" in names:
        results += standing.recovery(options.directory)
    if "sealed" in names:
        results.append(standing.sealed(options.directory))
    if "idle" in names:
        results += standing.idle(options.directory)
    show(results, console)
    if options.output is not None:
        write_json(results, limits.as_dict(), options.output)
        console.print(f"report: {options.output}")
    return results


def _run_on_broker(options: Options, names: Sequence[str], console: Console) -> list[Result]:
    data = Path(tempfile.mkdtemp(prefix="shmbroker-bench-", dir=options.directory))
    results = []
    try:
        root = {"IGGY_ROOT_USERNAME": "iggy", "IGGY_ROOT_PASSWORD": PASSWORD}
        with (
            shmbroker.embedded(str(data), tcp="127.0.0.1:0", environment=root) as broker,
            broker.connect() as client,
        ):
            client.create_stream(STREAM)
            front = Front(broker.pid, (broker.tcp_address, PASSWORD))
            setting = Setting(client, f"shm://{data}", options.directory, options.seconds, front)
            for workload in ON_A_BROKER:
                if workload.name not in names:
                    continue
                for durability in workload.durabilities:
                    if durability in options.durabilities:
                        with console.status(f"{workload.name}, {durability}: {workload.title}"):
                            results.append(workload.run(setting, durability))
                        client.purge_stream(STREAM)
    finally:
        shutil.rmtree(data)
    return results
