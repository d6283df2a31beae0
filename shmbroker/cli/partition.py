"""``shmbroker partition``: add partitions to a topic, or remove its last ones."""

from __future__ import annotations

from typing import Annotated

import typer

from shmbroker.cli import output
from shmbroker.cli.connection import DATA_DEFAULT, Data, StreamName, TopicName, connected, identifier
from shmbroker.cli.output import Json
from shmbroker.limits import PARTITION_COUNT_PER_REQUEST_MAX

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help=(
        "Partitions of a topic: order is kept within each.\n\n"
        "`shmbroker partition create market trades 4`"
    ),
)  # fmt: skip

Count = Annotated[
    int, typer.Argument(metavar="COUNT", min=1, max=PARTITION_COUNT_PER_REQUEST_MAX, help="How many partitions.")
]


def counted(count: int) -> str:
    return f"{count:,} partition{'' if count == 1 else 's'}"


@app.command()
def create(
    stream: StreamName, topic: TopicName, count: Count, data: Data = DATA_DEFAULT, as_json: Json = False
) -> None:
    """Add partitions after the last one. Keys hash differently from then on.

    `shmbroker partition create market trades 4`
    """
    with connected(data) as client:
        client.create_partitions(identifier(stream), identifier(topic), count)
    facts = {"stream": stream, "topic": topic, "created": count}
    output.print_done(f"{counted(count)} added to {stream}/{topic}.", facts, as_json=as_json)


@app.command()
def delete(
    stream: StreamName, topic: TopicName, count: Count, data: Data = DATA_DEFAULT, as_json: Json = False
) -> None:
    """Remove the last partitions of a topic, with their messages.

    `shmbroker partition delete market trades 1`
    """
    with connected(data) as client:
        client.delete_partitions(identifier(stream), identifier(topic), count)
    facts = {"stream": stream, "topic": topic, "deleted": count}
    output.print_done(f"The last {counted(count)} of {stream}/{topic} deleted.", facts, as_json=as_json)
