"""``shmbroker bench``: the workloads of ``bench/``, each beside this machine's own limits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def bench(
    workloads: Annotated[
        list[str] | None, typer.Argument(metavar="WORKLOAD", help="Names; none: all of them. --list shows them.")
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="How long each measures.")] = 3.0,
    durability: Annotated[
        str | None, typer.Option("--durability", help="Only replicated or persisted. [default: both]")
    ] = None,
    directory: Annotated[
        Path | None, typer.Option("--directory", help="Where the data is written: measures that disk. [default: here]")
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", dir_okay=False, help="Also write everything as JSON.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Show the workloads and what they measure.")] = False,
) -> None:
    """Measure throughput and latency on a broker of its own, beside the limits of this machine in the same run.

    `shmbroker bench`

    `shmbroker bench single --durability persisted --seconds 10 --report single.json`
    """
    from shmbroker.bench import main

    arguments = [*(workloads or ()), "--seconds", str(seconds)]
    for name, value in (("--durability", durability), ("--directory", directory), ("--report", report)):
        if value is not None:
            arguments += [name, str(value)]
    raise typer.Exit(main.run([*arguments, *(["--list"] if list_ else [])]))
