"""Single commands about the broker and who is connected: ping, me, client, options, cluster, snapshot."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from shmbroker.cli import output
from shmbroker.cli.connection import DATA_DEFAULT, Data, connected
from shmbroker.cli.output import Json

client_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="markdown", help="Who is connected.\n\n`shmbroker client list`"
)
cluster_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="markdown", help="The cluster: one node.\n\n`shmbroker cluster metadata`"
)

CLIENT_COLUMNS = {"id": "ID", "user": "User", "transport": "Transport", "address": "Address", "groups": "Groups"}
OPTION_COLUMNS = {"key": "Option", "default": "Default", "description": "Description"}
NODE_COLUMNS = {
    "name": "Name", "ip": "IP", "tcp_port": "TCP", "http_port": "HTTP", "role": "Role", "status": "Status",
}  # fmt: skip


class Scope(StrEnum):
    TOPIC = "topic"
    STREAM = "stream"
    USER = "user"


def session_facts(session: Any) -> dict[str, Any]:
    return {
        "id": session.id,
        "user": session.user_id,
        "transport": session.transport,
        "address": session.address,
        "groups": session.group_count,
    }


def membership_facts(session: Any) -> list[dict[str, int]]:
    return [{"stream": stream, "topic": topic, "group": group} for stream, topic, group in session.groups]


def ping(
    count: Annotated[int, typer.Option("--count", "-c", min=1, help="How often.")] = 1,
    data: Data = DATA_DEFAULT,
    as_json: Json = False,
) -> None:
    """Ask the broker for a sign of life, and say how long it took.

    `shmbroker ping --count 5`
    """
    times_ms = []
    with connected(data) as client:
        for number in range(count):
            times_ms.append(round(client.ping() * 1000, 3))
            if not as_json:
                output.print_done(f"{client.name}: answer {number + 1} after {times_ms[-1]:.3f} ms", {}, as_json=False)
        name = client.name
    if as_json:
        output.print_json({"broker": name, "times_ms": times_ms})


def me(data: Data = DATA_DEFAULT, as_json: Json = False) -> None:
    """Show this very session, as the broker sees it.

    `shmbroker me`
    """
    with connected(data) as client:
        session = client.me()
    output.print_properties({**session_facts(session), "memberships": membership_facts(session)}, as_json=as_json)


def options(
    scope: Annotated[Scope, typer.Argument(metavar="SCOPE", help="topic, stream or user.")] = Scope.TOPIC,
    data: Data = DATA_DEFAULT,
    as_json: Json = False,
) -> None:
    """Show the options that something can be created with, and what they are by default.

    `shmbroker options topic`
    """
    with connected(data) as client:
        found = client.describe_options(scope.value)
    rows = [{"key": each.key, "default": each.default, "description": each.description} for each in found]
    output.print_rows(rows, OPTION_COLUMNS, as_json=as_json, empty=f"A {scope.value} has no options.")


def snapshot(
    output_file: Annotated[Path, typer.Option("--output-file", "-o", dir_okay=False)] = Path("snapshot.zip"),
    data: Data = DATA_DEFAULT,
    as_json: Json = False,
) -> None:
    """Write an archive of facts for support: processes, resources, settings without secrets.

    `shmbroker snapshot --output-file snapshot.zip`
    """
    with connected(data) as client:
        archive = client.snapshot()
    output_file.write_bytes(archive)
    facts = {"output_file": str(output_file), "size_bytes": len(archive)}
    output.print_done(f"{output.size_text(len(archive))} written to {output_file}.", facts, as_json=as_json)


@client_app.command("get")
def get_client(
    client_id: Annotated[int, typer.Argument(metavar="CLIENT", min=0, help="Number of the client.")],
    data: Data = DATA_DEFAULT,
    as_json: Json = False,
) -> None:
    """Show one client with its consumer groups. Exit status 1 if there is none.

    `shmbroker client get 7`
    """
    with connected(data) as client:
        found = client.get_client(client_id)
    output.print_properties({**session_facts(found), "memberships": membership_facts(found)}, as_json=as_json)


@client_app.command("list")
def list_clients(data: Data = DATA_DEFAULT, as_json: Json = False) -> None:
    """List the clients.

    `shmbroker client list`
    """
    with connected(data) as client:
        rows = [session_facts(each) for each in client.list_clients()]
    output.print_rows(rows, CLIENT_COLUMNS, as_json=as_json, empty="Nobody is connected.")


@cluster_app.command()
def metadata(data: Data = DATA_DEFAULT, as_json: Json = False) -> None:
    """Show the nodes.

    `shmbroker cluster metadata`
    """
    with connected(data) as client:
        name, nodes = client.cluster()
    rows = [
        {
            "name": node.name, "ip": node.ip, "tcp_port": node.tcp_port, "http_port": node.http_port,
            "role": node.role, "status": node.status,
        }
        for node in nodes
    ]  # fmt: skip
    if as_json:
        output.print_json({"name": name, "nodes": rows})
        return
    output.print_rows(rows, NODE_COLUMNS, as_json=False, empty="The cluster has no nodes.")
