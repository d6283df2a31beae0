"""``shmbroker stream``: create, delete, update, get, list and purge streams."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from shmbroker.cli import output
from shmbroker.cli.connection import DATA_DEFAULT, Data, StreamName, connected, identifier
from shmbroker.cli.output import Json

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help=(
        "Streams: the namespaces of topics.\n\n"
        "`shmbroker stream create market`\n\n"
        "`shmbroker stream list --json`"
    ),
)  # fmt: skip

COLUMNS = {
    "id": "ID", "created": "Created", "name": "Name", "size_bytes": "Size (B)", "messages": "Messages",
    "topics": "Topics",
}  # fmt: skip


def facts_of(stream: Any) -> dict[str, Any]:
    return {
        "id": stream.id,
        "created": output.time_text(stream.created_at_us),
        "name": stream.name,
        "size_bytes": stream.size,
        "messages": stream.message_count,
        "topics": stream.topic_count,
    }


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="1 to 255 bytes; unique.")],
    stream_id: Annotated[int | None, typer.Option("--stream-id", "-s", hidden=True)] = None,
    data: Data = DATA_DEFAULT,
    as_json: Json = False,
) -> None:
    """Create a stream. The broker assigns its number.

    `shmbroker stream create market`
    """
    with connected(data) as client:
        stream = client.create_stream(name)
    output.warn_of_number(stream.name)
    output.print_done(f"Stream {stream.name} created; its number is {stream.id}.", facts_of(stream), as_json=as_json)


@app.command()
def delete(stream: StreamName, data: Data = DATA_DEFAULT, as_json: Json = False) -> None:
    """Delete a stream with all its topics and messages.

    `shmbroker stream delete market`
    """
    with connected(data) as client:
        client.delete_stream(identifier(stream))
    output.print_done(f"Stream {stream} deleted.", {"deleted": stream}, as_json=as_json)


@app.command()
def update(
    stream: StreamName,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new name.")],
    data: Data = DATA_DEFAULT,
    as_json: Json = False,
) -> None:
    """Give a stream another name.

    `shmbroker stream update market exchange`
    """
    with connected(data) as client:
        client.update_stream(identifier(stream), name=name)
    output.warn_of_number(name)
    output.print_done(f"Stream {stream} is now called {name}.", {"updated": stream, "name": name}, as_json=as_json)


@app.command()
def get(stream: StreamName, data: Data = DATA_DEFAULT, as_json: Json = False) -> None:
    """Show one stream. Exit status 1 if there is none.

    `shmbroker stream get market`
    """
    with connected(data) as client:
        found = client.get_stream(identifier(stream))
    facts = facts_of(found)
    names = [topic.name for topic in found.topics]
    output.print_properties({**facts, "topic_names": names}, as_json=as_json)


@app.command("list")
def list_(data: Data = DATA_DEFAULT, as_json: Json = False) -> None:
    """List the streams.

    `shmbroker stream list`
    """
    with connected(data) as client:
        rows = [facts_of(stream) for stream in client.list_streams()]
    output.print_rows(rows, COLUMNS, as_json=as_json, empty="There is no stream yet: shmbroker stream create NAME")


@app.command()
def purge(stream: StreamName, data: Data = DATA_DEFAULT, as_json: Json = False) -> None:
    """Drop all messages and stored offsets of a stream; offsets start at 0 again.

    `shmbroker stream purge market`
    """
    with connected(data) as client:
        client.purge_stream(identifier(stream))
    output.print_done(f"Stream {stream} purged.", {"purged": stream}, as_json=as_json)
