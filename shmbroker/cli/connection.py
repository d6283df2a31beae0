"""How a command reaches its broker: the options that every command shares, and the readings of their values.

A command that fails to find a broker says which directory it looked at and how to start one there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shmbroker.limits import U32_MAX

if TYPE_CHECKING:
    from shmbroker.client.client import Client

Data = Annotated[
    Path,
    typer.Option("--data", envvar="SHMBROKER_DATA", help="Data directory of the running broker.", show_default=True),
]
DATA_DEFAULT = Path("shmbroker-data")

StreamName = Annotated[str, typer.Argument(metavar="STREAM", help="Name or number of the stream.")]
TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="Name or number of the topic.")]
PartitionId = Annotated[int, typer.Argument(metavar="PARTITION", min=0, help="Number of the partition.")]


@contextmanager
def connected(data: Path) -> Iterator[Client]:
    import shmbroker

    with shmbroker.connect(f"shm://{data.resolve()}") as client:
        yield client


def identifier(text: str) -> int | str:
    """A number where the text is one that fits 32 bits, else a name: the rule of every textual interface."""
    return int(text) if text.isascii() and text.isdecimal() and int(text) <= U32_MAX else text
