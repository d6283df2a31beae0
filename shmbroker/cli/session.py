"""``shmbroker login``, ``logout`` and ``session status``: a token that the broker made, kept for the next commands."""

from __future__ import annotations

import secrets
import time
from datetime import timedelta
from typing import Annotated, Any

import typer

from shmbroker.cli import output
from shmbroker.cli.connection import globals_of_run, server, with_credentials
from shmbroker.cli.kept import Kept
from shmbroker.cli.output import Json
from shmbroker.cli.token import expiry_of
from shmbroker.errors import NotFound, ShmbrokerError, Unauthorized

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="markdown", help="The login session.\n\n`shmbroker session status`"
)


def login(
    expiry: Annotated[str, typer.Argument(metavar="EXPIRY", help="How long it lasts: 15m, 7days, none.")] = "15m",
    as_json: Json = False,
) -> None:
    """Log in at a broker over TCP; commands that go there need no credentials until the session ends.

    `shmbroker login 1h`

    `shmbroker --tcp-server-address 10.0.0.5:8090 --username iggy login`
    """
    from shmbroker.client.client import Client

    given = globals_of_run()
    duration: timedelta | None = expiry_of(expiry)
    kept = Kept()
    where = server(given, kept.context())
    before = kept.sessions.pop(where.name, None)
    name = f"session-{secrets.token_hex(6)}"
    with Client(with_credentials(where, given, kept)) as client:
        token = client.create_token(name, expiry=duration)
        user = client.get_user(client.me().user_id or 0).name
        if before is not None:
            forget_token(client, before["token_name"])
    expires_at_us = None if duration is None else time.time_ns() // 1000 + duration // timedelta(microseconds=1)
    kept.sessions[where.name] = {
        "user": user, "token_name": name, "token": token, "expires_at_us": expires_at_us
    }  # fmt: skip
    kept.save()
    facts = facts_of(where.name, kept.sessions[where.name])
    output.print_done(f"Logged in at {where.name} as {user}; the session ends {facts['ends']}.", facts, as_json=as_json)


def logout(as_json: Json = False) -> None:
    """End the login session: its token is deleted here and at the broker.

    `shmbroker logout`
    """
    from shmbroker.client.client import Client

    kept = Kept()
    where = server(globals_of_run(), kept.context())
    session = kept.sessions.get(where.name)
    if session is None:
        raise NotFound(f"there is no login session at {where.name}")
    try:
        with Client(with_credentials(where, globals_of_run(), kept)) as client:
            client.delete_token(session["token_name"])
    except (NotFound, Unauthorized):
        pass  # it has expired, or somebody else deleted it: nothing is left to end there
    del kept.sessions[where.name]
    kept.save()
    output.print_done(f"Logged out at {where.name}.", {"server": where.name}, as_json=as_json)


@app.command()
def status(as_json: Json = False) -> None:
    """Show the login session at the broker. Exit status 1 if there is none.

    `shmbroker session status`
    """
    kept = Kept()
    where = server(globals_of_run(), kept.context())
    session = kept.sessions.get(where.name)
    if session is None:
        raise NotFound(f"there is no login session at {where.name}")
    output.print_properties(facts_of(where.name, session), as_json=as_json)


def facts_of(name: str, session: dict[str, Any]) -> dict[str, Any]:
    expires_at_us = session["expires_at_us"]
    return {
        "server": name,
        "user": session["user"],
        "ends": "never" if expires_at_us is None else output.time_text(expires_at_us),
        "has_ended": expires_at_us is not None and expires_at_us <= time.time_ns() // 1000,
    }


def forget_token(client: Any, name: str) -> None:
    """Of the session before: whether or not the broker still knows it, the new one counts."""
    try:
        client.delete_token(name)
    except ShmbrokerError as error:
        output.print_note(f"the session before could not be ended: {error}")
