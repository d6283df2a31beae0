"""``shmbroker serve``: runs a broker in this process until SIGTERM or SIGINT, and says whether it ended in order."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from shmbroker.cli import output
from shmbroker.config import Config, load
from shmbroker.limits import WORKER_COUNT_MAX


def serve(
    data: Annotated[
        Path | None, typer.Option("--data", help="Data directory; made if it is not there. [default: ./shmbroker-data]")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers", min=0, max=WORKER_COUNT_MAX, help="Partition workers; 0: the processors less one. [default: 0]"
        ),
    ] = None,
    tcp: Annotated[
        str | None,
        typer.Option("--tcp", metavar="HOST:PORT", help="Where Iggy's clients connect. [default: 127.0.0.1:8090]"),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(
            "--http",
            metavar="HOST:PORT",
            help="Where the HTTP API is served; needs the http extra. [default: not at all]",
        ),
    ] = None,
    no_tcp: Annotated[bool, typer.Option("--no-tcp", help="Serve local clients only.")] = False,
    config: Annotated[
        Path | None, typer.Option("--config", exists=True, dir_okay=False, help="Settings in TOML; see tuning.md.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say only what went wrong.")] = False,
) -> None:
    """Run a broker until SIGTERM or Ctrl-C, which write everything committed before they end it.

    Settings come from the file, then from SHMBROKER_SECTION_KEY variables, then from these flags. Exit status 0 says
    that all was written; 1 that something was not, or that the broker could not start.

    `shmbroker serve`

    `shmbroker serve --data /var/lib/shmbroker --workers 2 --tcp 0.0.0.0:8090`

    `SHMBROKER_PARTITION_JOURNAL_MEMORY_LIMIT=256MiB shmbroker serve`
    """
    from shmbroker.front import main

    level = logging.WARNING if quiet else logging.INFO
    logging.basicConfig(level=level, format="shmbroker %(levelname)s: %(message)s")
    flags = {"broker.data": None if data is None else str(data), "broker.workers": workers, "tcp.address": tcp}
    if http is not None:
        flags |= {"http.enabled": True, "http.address": http}
    if tcp is not None or no_tcp:
        flags["tcp.enabled"] = not no_tcp
    settings = load(config, flags=flags, defaults={"tcp.enabled": True})
    status = main.serve(settings, on_ready=None if quiet else lambda: announce(settings))
    raise typer.Exit(status)


def announce(settings: Config) -> None:
    data = Path(settings.broker.data).resolve()
    output.print_done(f"shmbroker is ready; its data is in {data}. Ctrl-C ends it.", {}, as_json=False)
