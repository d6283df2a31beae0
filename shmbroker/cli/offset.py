"""``shmbroker consumer-offset``: what a consumer, or a consumer group, has stored as its last processed message."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from shmbroker.cli import output
from shmbroker.cli.connection import DATA_DEFAULT, Data, PartitionId, StreamName, TopicName, connected, identifier
from shmbroker.cli.output import Json
from shmbroker.errors import NotFound
from shmbroker.limits import U64_MAX

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help=(
        "Stored offsets: where a consumer goes on.\n\n"
        "`shmbroker consumer-offset get audit market trades 0`"
    ),
)  # fmt: skip


class Kind(StrEnum):
    CONSUMER = "consumer"
    GROUP = "consumer-group"


ConsumerName = Annotated[str, typer.Argument(metavar="CONSUMER", help="Name or number of the consumer or the group.")]
KindOption = Annotated[Kind, typer.Option("--kind", "-k", help="Who stored it.")]


@app.command()
def get(
    consumer: ConsumerName,
    stream: StreamName,
    topic: TopicName,
    partition: PartitionId,
    kind: KindOption = Kind.CONSUMER,
    data: Data = DATA_DEFAULT,
    as_json: Json = False,
) -> None:
    """Show a stored offset, beside the newest one of the partition. Exit status 1 if nothing is stored.

    `shmbroker consumer-offset get audit market trades 0`
    """
    with connected(data) as client:
        stored = client.get_consumer_offset(identifier(stream), identifier(topic), partition, **key_of(consumer, kind))
        partitions = client.get_topic(identifier(stream), identifier(topic)).partitions
    if stored is None:
        raise NotFound(f"{kind.value} {consumer} has stored nothing for {stream}/{topic}/{partition}")
    current = next((entry.current_offset for entry in partitions if entry.id == partition), None)
    facts = {
        "consumer": consumer, "kind": kind.value, "stream": stream, "topic": topic, "partition": partition,
        "current_offset": current, "stored_offset": stored,
    }  # fmt: skip
    output.print_properties(facts, as_json=as_json)


@app.command("set")
def set_(
    consumer: ConsumerName,
    stream: StreamName,
    topic: TopicName,
    partition: PartitionId,
    offset: Annotated[int, typer.Argument(metavar="OFFSET", min=0, max=U64_MAX, help="Last message processed.")],
    kind: KindOption = Kind.CONSUMER,
    data: Data = DATA_DEFAULT,
    as_json: Json = False,
) -> None:
    """Store an offset; returns when the topic's consumer offset durability is met.

    `shmbroker consumer-offset set audit market trades 0 41`
    """
    with connected(data) as client:
        client.set_consumer_offset(identifier(stream), identifier(topic), partition, offset, **key_of(consumer, kind))
    facts = {"consumer": consumer, "kind": kind.value, "partition": partition, "stored_offset": offset}
    output.print_done(f"Offset {offset:,} stored for {kind.value} {consumer}.", facts, as_json=as_json)


@app.command()
def delete(
    consumer: ConsumerName,
    stream: StreamName,
    topic: TopicName,
    partition: PartitionId,
    kind: KindOption = Kind.CONSUMER,
    data: Data = DATA_DEFAULT,
    as_json: Json = False,
) -> None:
    """Forget a stored offset: the consumer starts at the beginning again.

    `shmbroker consumer-offset delete audit market trades 0`
    """
    with connected(data) as client:
        client.delete_consumer_offset(identifier(stream), identifier(topic), partition, **key_of(consumer, kind))
    facts = {"consumer": consumer, "kind": kind.value, "partition": partition, "deleted": True}
    output.print_done(f"Stored offset of {kind.value} {consumer} deleted.", facts, as_json=as_json)


def key_of(consumer: str, kind: Kind) -> dict[str, Any]:
    """The client's words for who stores."""
    who = identifier(consumer)
    if kind is Kind.GROUP:
        return {"group": who}
    return {"id": who} if isinstance(who, int) else {"name": who}
