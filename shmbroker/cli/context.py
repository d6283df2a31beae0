"""``shmbroker context``: named sets of the options that say which broker is meant."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from shmbroker.cli import output
from shmbroker.cli.connection import globals_of_run
from shmbroker.cli.kept import CONTEXT_KEYS, DEFAULT_CONTEXT, Kept
from shmbroker.cli.output import Json
from shmbroker.client.address import tcp_server
from shmbroker.errors import AlreadyExists, NotFound

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help=(
        "Contexts: which broker commands go to when nothing else says so.\n\n"
        "`shmbroker context create office --tcp-server-address 10.0.0.5:8090 --username desk`\n\n"
        "`shmbroker context use office`"
    ),
)  # fmt: skip

COLUMNS = {"active": "Active", "name": "Name", "broker": "Broker", "login": "Login"}
SECRETS = ("password", "token")
ContextName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the context.")]


def facts_of(name: str, kept: Kept) -> dict[str, Any]:
    """What a context says, secrets left out."""
    settings = kept.contexts.get(name, {})
    shown: dict[str, Any] = {
        key: ("(kept)" if key in SECRETS else settings[key]) for key in CONTEXT_KEYS if key in settings
    }
    return {"name": name, "active": name == kept.active, **shown}


def row_of(name: str, kept: Kept) -> dict[str, Any]:
    facts = facts_of(name, kept)
    broker = facts.get("tcp_server_address") or facts.get("data") or "--data"
    login = facts.get("username") or facts.get("token_name") or ("a token" if "token" in facts else None)
    return {**facts, "broker": broker, "login": login}


def existing(name: str, kept: Kept) -> str:
    if name != DEFAULT_CONTEXT and name not in kept.contexts:
        raise NotFound(f"there is no context {name!r}: `shmbroker context list` shows them")
    return name


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List the contexts.

    `shmbroker context list`
    """
    kept = Kept()
    rows = [row_of(name, kept) for name in (DEFAULT_CONTEXT, *sorted(kept.contexts))]
    output.print_rows(rows, COLUMNS, as_json=as_json, empty="There is no context.")


@app.command()
def use(name: ContextName, as_json: Json = False) -> None:
    """Make a context the one that commands follow; `default` follows none.

    `shmbroker context use office`
    """
    kept = Kept()
    kept.active = existing(name, kept)
    kept.save()
    output.print_done(f"Context {name} is active.", {"active": name}, as_json=as_json)


@app.command()
def create(
    name: ContextName,
    data: Annotated[str | None, typer.Option("--data", help="Data directory of a broker of this host.")] = None,
    tcp_server_address: Annotated[str | None, typer.Option("--tcp-server-address", metavar="HOST:PORT")] = None,
    username: Annotated[str | None, typer.Option("--username", "-u")] = None,
    password: Annotated[
        str | None, typer.Option("--password", "-p", help="Kept in the home directory; asked for if it is not.")
    ] = None,
    token: Annotated[str | None, typer.Option("--token", "-t", help="Kept in the home directory.")] = None,
    token_name: Annotated[
        str | None, typer.Option("--token-name", "-n", help="Of a token that pat create --store-token has kept.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Create a context. Options before the command's name count too.

    `shmbroker context create office --tcp-server-address 10.0.0.5:8090 --username desk`
    """
    kept = Kept()
    if name == DEFAULT_CONTEXT or name in kept.contexts:
        raise AlreadyExists(f"context {name!r} is there already: `shmbroker context delete {name}` removes it")
    given = globals_of_run()
    said: dict[str, Any] = {key: getattr(given, key, None) for key in CONTEXT_KEYS}
    own = {
        "data": data, "tcp_server_address": tcp_server_address, "username": username, "password": password,
        "token": token, "token_name": token_name,
    }  # fmt: skip
    settings = {**said, **{key: value for key, value in own.items() if value is not None}}
    settings = {key: value for key, value in settings.items() if value}
    if "data" in settings and len(settings) > 1:
        raise typer.BadParameter("--data is a broker of this host, the others are for one over TCP: give one of them")
    if not settings:
        raise typer.BadParameter("a context says which broker: give --data, or --tcp-server-address")
    if "tcp_server_address" in settings:
        tcp_server(settings["tcp_server_address"])  # raises now rather than at every use
    kept.contexts[name] = settings
    kept.save()
    output.print_done(f"Context {name} created.", facts_of(name, kept), as_json=as_json)


@app.command()
def delete(name: ContextName, as_json: Json = False) -> None:
    """Delete a context; if it was active, `default` is.

    `shmbroker context delete office`
    """
    kept = Kept()
    if name == DEFAULT_CONTEXT:
        raise typer.BadParameter(f"{DEFAULT_CONTEXT!r} is always there")
    del kept.contexts[existing(name, kept)]
    if kept.active == name:
        kept.active = DEFAULT_CONTEXT
    kept.save()
    output.print_done(f"Context {name} deleted.", {"deleted": name}, as_json=as_json)


@app.command()
def show(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="None: the active one.")] = None,
    as_json: Json = False,
) -> None:
    """Show what a context says, without its secrets.

    `shmbroker context show`
    """
    kept = Kept()
    chosen = kept.active if name is None else existing(name, kept)
    output.print_properties(facts_of(chosen, kept), as_json=as_json)
