"""``shmbroker consumer-group``: groups of a topic, and which of their members has which partitions."""

from __future__ import annotations

from typing import Annotated

import typer

from shmbroker.cli import output
from shmbroker.cli.connection import DATA_DEFAULT, Data, StreamName, TopicName, connected, identifier
from shmbroker.cli.output import Json

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help=(
        "Consumer groups: members that share the partitions of a topic.\n\n"
        "`shmbroker consumer-group create market trades billing`"
    ),
)  # fmt: skip

GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="Name or number of the group.")]
COLUMNS = {"id": "ID", "name": "Name", "partitions": "Partitions", "members": "Members"}


@app.command()
def create(
    stream: StreamName,
    topic: TopicName,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the new group.")],
    data: Data = DATA_DEFAULT,
    as_json: Json = False,
) -> None:
    """Create a group. Consumers join it by its name.

    `shmbroker consumer-group create market trades billing`
    """
    with connected(data) as client:
        group = client.create_group(identifier(stream), identifier(topic), name)
    facts = {"id": group.id, "name": group.name}
    output.warn_of_number(name)
    output.print_done(f"Consumer group {name} created with ID {group.id}.", facts, as_json=as_json)


@app.command()
def get(
    stream: StreamName, topic: TopicName, group: GroupName, data: Data = DATA_DEFAULT, as_json: Json = False
) -> None:
    """Show a group with its members and their partitions. Exit status 1 if there is none.

    `shmbroker consumer-group get market trades billing`
    """
    with connected(data) as client:
        found = client.get_group(identifier(stream), identifier(topic), identifier(group))
    facts = {"id": found.id, "name": found.name, "partitions": found.partition_count}
    if as_json:
        members = [{"id": member, "partitions": list(ids)} for member, ids in found.members.items()]
        output.print_json({**facts, "members": members})
        return
    each = {f"member {member}": ids for member, ids in found.members.items()}
    output.print_properties({**facts, "members": found.member_count, **each}, as_json=False)


@app.command("list")
def list_(stream: StreamName, topic: TopicName, data: Data = DATA_DEFAULT, as_json: Json = False) -> None:
    """List the groups of a topic.

    `shmbroker consumer-group list market trades`
    """
    with connected(data) as client:
        groups = client.list_groups(identifier(stream), identifier(topic))
    rows = [
        {"id": each.id, "name": each.name, "partitions": each.partition_count, "members": each.member_count}
        for each in groups
    ]
    output.print_rows(rows, COLUMNS, as_json=as_json, empty=f"{stream}/{topic} has no consumer groups.")


@app.command()
def delete(
    stream: StreamName, topic: TopicName, group: GroupName, data: Data = DATA_DEFAULT, as_json: Json = False
) -> None:
    """Delete a group with its stored offsets; its members lose their partitions.

    `shmbroker consumer-group delete market trades billing`
    """
    with connected(data) as client:
        client.delete_group(identifier(stream), identifier(topic), identifier(group))
    facts = {"stream": stream, "topic": topic, "group": group, "deleted": True}
    output.print_done(f"Consumer group {group} deleted.", facts, as_json=as_json)
