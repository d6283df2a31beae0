"""``shmbroker log``: the files of a stopped broker, without a broker.

``verify`` reads everything and changes nothing; ``dump`` shows what is in the records; ``repair`` gives up what is
lost, after it has named that and was told to. All three hold the broker's locks, so that none starts meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shmbroker.cli import output
from shmbroker.cli.output import Json

if TYPE_CHECKING:
    from shmbroker.storage.inspect import Finding, PartitionReport

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help=(
        "The files themselves, with the broker stopped.\n\n"
        "`shmbroker log verify shmbroker-data`\n\n"
        "`shmbroker log dump shmbroker-data --lines 20`\n\n"
        "`shmbroker log repair shmbroker-data`"
    ),
)

Directory = Annotated[
    Path,
    typer.Argument(metavar="DIR", exists=True, file_okay=False, help="A data directory, or one partition's in it."),
]

COLUMNS = {
    "partition": "Partition", "state": "State", "segments": "Segments", "messages": "Messages", "first_offset": "First",
    "end_offset": "Next offset", "stored_offsets": "Stored offsets", "directory": "Directory",
}  # fmt: skip


@app.command()
def verify(directory: Directory, as_json: Json = False) -> None:
    """Read every record of every partition and say what is damaged. Exit status 1 if anything acknowledged is lost.

    `shmbroker log verify shmbroker-data`
    """
    from shmbroker.storage import inspect
    from shmbroker.storage.disk import FileDisk

    reports = list(inspect.verify(FileDisk(read_only=True), str(directory)))
    names = names_of(directory)
    if as_json:
        output.print_json([report_facts(report, names) for report in reports])
    else:
        rows = [report_facts(report, names) for report in reports]
        output.print_rows(rows, COLUMNS, as_json=False, empty="There are no partitions.")
        for report in reports:
            for finding in report.findings:
                output.print_note(finding_text(finding))
    if not all(report.whole for report in reports):
        raise typer.Exit(1)


def report_facts(report: PartitionReport, names: Mapping[int, str]) -> dict[str, Any]:
    changes = bool(report.findings)
    return {
        "partition": names.get(log_id_of(report.directory), "?"),
        "state": "LOSS" if not report.whole else "whole, to be tidied at the next start" if changes else "whole",
        "segments": report.segment_count,
        "messages": report.message_count,
        "first_offset": report.first_offset,
        "end_offset": report.end_offset,
        "stored_offsets": len(report.stored_offsets),
        "size": report.size,
        "directory": report.directory,
        "findings": [{**asdict(finding), "severity": finding.severity.value} for finding in report.findings],
    }


def finding_text(finding: Finding) -> str:
    remedy = f". {finding.remedy}" if finding.remedy else ""
    return (
        f"{finding.severity.value} ({finding.case}): {finding.path}: at byte {finding.position}: {finding.text}{remedy}"
    )


def names_of(directory: Path) -> dict[int, str]:
    """stream/topic/partition of every log that the catalog knows; empty where there is no catalog beside the files, or
    one that cannot be read: the partitions are looked at all the same."""
    from shmbroker.core.options import TopicDefaults
    from shmbroker.errors import Corrupt, DiskFailed, InvalidConfiguration
    from shmbroker.front.catalog_store import FILE_NAME, CatalogStore
    from shmbroker.storage import inspect

    data = directory if (directory / FILE_NAME).exists() else Path(inspect.data_directory_of(str(directory)))
    if not (data / FILE_NAME).exists():
        return {}
    try:
        with closing(CatalogStore.open(str(data), may_make=False)) as store:
            logs = store.load(TopicDefaults()).logs
    except (Corrupt, DiskFailed, InvalidConfiguration) as error:
        output.print_note(f"The partitions have no names here: {error}")
        return {}
    return {
        log_id: f"{place.stream.name}/{place.topic.name}/{place.partition.partition_id}"
        for log_id, place in logs.items()
    }


@app.command()
def repair(
    directory: Directory,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask: give up what is named.")] = False,
    as_json: Json = False,
) -> None:
    """Make partitions that were refused start again: name what is lost, ask, and give exactly that up.

    The bytes given up are kept beside the log, in files ending .given-up. Exit status 1 if you said no.

    `shmbroker log repair shmbroker-data`

    `shmbroker log repair shmbroker-data --yes --json`
    """
    from shmbroker.storage.disk import FileDisk
    from shmbroker.storage.repair import repair as repair_files

    plans = repair_files(FileDisk(), str(directory), yes=False)
    names = names_of(directory)
    rows = [
        {"partition": names.get(log_id_of(plan.directory), "?"), **asdict(loss)}
        for plan in plans
        for loss in plan.losses
    ]
    if not plans:
        output.print_done("Nothing is lost: there is nothing to repair.", {"losses": []}, as_json=as_json)
        return
    columns = {"partition": "Partition", "path": "File", "position": "At byte", "text": "Given up"}
    if not as_json:
        output.print_rows(rows, columns, as_json=False, empty="Nothing is given up; the partitions are put in order.")
    if not yes and not typer.confirm("Give this up for good?", err=True):
        raise typer.Exit(1)
    repair_files(FileDisk(), str(directory), yes=True)
    output.print_done(f"{len(plans)} partitions repaired.", {"losses": rows, "repaired": True}, as_json=as_json)


def log_id_of(partition_directory: str) -> int:
    return int(os.path.basename(partition_directory))


@app.command()
def dump(
    path: Annotated[Path, typer.Argument(metavar="PATH", exists=True, help="A file, or a directory of them.")],
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="At most so many of each file.")] = 1_000,
) -> None:
    """Show what files hold: headers, records, index entries, stored offsets, and whether each checksum holds.

    `shmbroker log dump shmbroker-data --lines 20`
    """
    from shmbroker.storage.dump import dump as lines_of

    for line in lines_of(str(path), lines_max=lines):
        typer.echo(output.escaped(line))
