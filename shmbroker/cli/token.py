"""``shmbroker pat``: personal access tokens of whoever is logged in."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from shmbroker.cli import output
from shmbroker.cli.connection import DATA_DEFAULT, Data, address, connected
from shmbroker.cli.kept import Kept
from shmbroker.cli.output import Json
from shmbroker.client.address import TcpAddress
from shmbroker.formats.quantities import parse_duration_us

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help=(
        "Personal access tokens: log in without a password.\n\n"
        "`shmbroker pat create desk 7days --store-token`, then `shmbroker --token-name desk stream list`"
    ),
)  # fmt: skip

COLUMNS = {"name": "Name", "expires": "Expires"}
TokenName = Annotated[str, typer.Argument(metavar="NAME", help="3 to 30 bytes; unique among the user's own.")]


def expiry_of(text: str) -> timedelta | None:
    """A duration in words ("15m", "7days"); None for "none"."""
    if text.lower() in ("none", "never", "unlimited"):
        return None
    try:
        return timedelta(microseconds=parse_duration_us(text))
    except ValueError as fault:
        raise typer.BadParameter(str(fault)) from fault


@app.command()
def create(
    name: TokenName,
    expiry: Annotated[str, typer.Argument(metavar="EXPIRY", help="How long it lasts: 15m, 7days, none.")] = "none",
    store_token: Annotated[
        bool, typer.Option("--store-token", "-s", help="Keep it for --token-name instead of showing it.")
    ] = False,
    data: Data = DATA_DEFAULT,
    as_json: Json = False,
) -> None:
    """Create a token. It is shown once; --store-token keeps it in the home directory.

    `shmbroker pat create desk 7days`
    """
    duration = expiry_of(expiry)
    where = address(data)
    if store_token and not isinstance(where, TcpAddress):
        raise typer.BadParameter("a token is for TCP: say which server with --tcp-server-address to store it for that")
    with connected(data) as client:
        token = client.create_token(name, expiry=duration)
    if store_token and isinstance(where, TcpAddress):
        kept = Kept()
        kept.tokens.setdefault(where.name, {})[name] = token
        kept.save()
        facts = {"name": name, "stored_for": where.name}
        output.print_done(f"Token {name} created and stored for {where.name}.", facts, as_json=as_json)
        return
    output.print_done(f"Token {name} created: {token}", {"name": name, "token": token}, as_json=as_json)


@app.command()
def delete(name: TokenName, data: Data = DATA_DEFAULT, as_json: Json = False) -> None:
    """Delete a token: nobody can log in with it any more.

    `shmbroker pat delete desk`
    """
    where = address(data)
    with connected(data) as client:
        client.delete_token(name)
    if isinstance(where, TcpAddress):
        kept = Kept()
        if kept.tokens.get(where.name, {}).pop(name, None) is not None:
            kept.save()
    output.print_done(f"Token {name} deleted.", {"deleted": name}, as_json=as_json)


@app.command("list")
def list_(data: Data = DATA_DEFAULT, as_json: Json = False) -> None:
    """List the tokens of whoever is logged in, without their text.

    `shmbroker pat list`
    """
    with connected(data) as client:
        rows = [
            {
                "name": token.name,
                "expires": output.time_text(token.expires_at_us) if token.expires_at_us else "never",
                "expires_at_us": token.expires_at_us,
            }
            for token in client.list_tokens()
        ]
    output.print_rows(rows, COLUMNS, as_json=as_json, empty="There is no token.")
