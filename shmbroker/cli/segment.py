"""``shmbroker segment``: delete the oldest files of a partition."""

from __future__ import annotations

from typing import Annotated

import typer

from shmbroker.cli import output
from shmbroker.cli.connection import DATA_DEFAULT, Data, PartitionId, StreamName, TopicName, connected, identifier
from shmbroker.cli.output import Json
from shmbroker.limits import U32_MAX

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help=(
        "Segments: the files that a partition's messages are kept in.\n\n"
        "`shmbroker segment delete market trades 0 1`"
    ),
)  # fmt: skip


@app.callback()
def group() -> None:
    pass


@app.command()
def delete(
    stream: StreamName,
    topic: TopicName,
    partition: PartitionId,
    count: Annotated[int, typer.Argument(metavar="COUNT", min=1, max=U32_MAX, help="How many segments at most.")],
    data: Data = DATA_DEFAULT,
    as_json: Json = False,
) -> None:
    """Delete the oldest segments of a partition, never the one that is being written.

    `shmbroker segment delete market trades 0 1`
    """
    with connected(data) as client:
        client.delete_segments(identifier(stream), identifier(topic), partition, count)
    facts = {"stream": stream, "topic": topic, "partition": partition, "asked": count}
    output.print_done(f"Up to {count:,} of the oldest segments of {stream}/{topic}/{partition} deleted.", facts,
                      as_json=as_json)  # fmt: skip
