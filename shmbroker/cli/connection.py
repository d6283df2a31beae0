"""How a command reaches its broker: the options that commands share, and the readings of their values.

Over the Unix socket of ``--data`` unless something says TCP: ``--tcp-server-address``, credentials, or the active
context. Who logs in there is the first of: ``--token-name``, ``--token``, ``--username`` with ``--password`` (asked for
where it is missing); the session of an earlier ``login``; the same three of the context; IGGY_USERNAME with
IGGY_PASSWORD. So what is said counts before what is kept. A command that finds no broker says where it looked.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shmbroker.cli.kept import Kept
from shmbroker.client.address import Address, LocalAddress, TcpAddress, tcp_server
from shmbroker.errors import ErrorCode, Unauthorized
from shmbroker.limits import U32_MAX

if TYPE_CHECKING:
    from shmbroker.client.client import Client

Data = Annotated[
    Path | None,
    typer.Option(
        "--data", envvar="SHMBROKER_DATA", help="Data directory of the running broker. [default: shmbroker-data]"
    ),
]
DATA_DEFAULT: Path | None = None
"""Not given: the active context, else DATA_USUAL."""
DATA_USUAL = Path("shmbroker-data")
SERVER_DEFAULT = "127.0.0.1:8090"

StreamName = Annotated[str, typer.Argument(metavar="STREAM", help="Name or number of the stream.")]
TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="Name or number of the topic.")]
PartitionId = Annotated[int, typer.Argument(metavar="PARTITION", min=0, help="Number of the partition.")]


@dataclass(frozen=True, slots=True)
class Globals:
    """The options before the command's name."""

    tcp_server_address: str | None = None
    username: str | None = None
    password: str | None = None
    token: str | None = None
    token_name: str | None = None
    tcp_tls_enabled: bool = False
    tcp_tls_ca_file: str | None = None
    tcp_tls_domain: str | None = None

    @property
    def has_credentials(self) -> bool:
        return any((self.username, self.token, self.token_name))


_run: ContextVar[Globals | None] = ContextVar("run", default=None)


def set_globals(given: Globals) -> None:
    """By the root command, before any other."""
    _run.set(given)


def globals_of_run() -> Globals:
    """What the root command was given."""
    return _run.get() or Globals()


@contextmanager
def connected(data: Path | None) -> Iterator[Client]:
    """A client of the broker that the command line means."""
    import shmbroker.client.client

    with shmbroker.client.client.Client(address(data)) as client:
        yield client


def address(data: Path | None) -> Address:
    """Where that broker is, and who logs in."""
    given = globals_of_run()
    kept = Kept()
    context = kept.context()
    says_tcp = given.tcp_server_address is not None or given.has_credentials
    if data is not None and says_tcp:
        raise typer.BadParameter("--data is the broker of this host, the others go over TCP: give one of them")
    if not says_tcp and (data is not None or "tcp_server_address" not in context):
        return LocalAddress(str((data or Path(context.get("data", DATA_USUAL))).resolve()))
    return with_credentials(server(given, context), given, kept)


def server(given: Globals, context: dict[str, Any]) -> TcpAddress:
    """The server over TCP, without credentials."""
    found = tcp_server(given.tcp_server_address or context.get("tcp_server_address") or SERVER_DEFAULT)
    return replace(
        found,
        tls=given.tcp_tls_enabled or bool(context.get("tcp_tls_enabled")),
        tls_ca_file=given.tcp_tls_ca_file or context.get("tcp_tls_ca_file"),
        tls_domain=given.tcp_tls_domain or context.get("tcp_tls_domain"),
    )


def with_credentials(server: TcpAddress, given: Globals, kept: Kept) -> TcpAddress:
    """The same with whoever logs in there. Raises Unauthorized where nobody is known."""
    if not given.has_credentials:
        session = kept.sessions.get(server.name)
        if session is not None and (session["expires_at_us"] or 2**63) > time.time_ns() // 1000:
            return replace(server, token=session["token"])
    context = kept.context()
    names = ("username", "password", "token", "token_name")
    for said in (given, Globals(**{name: context[name] for name in names if name in context})):
        if said.token_name:
            return replace(server, token=_stored_token(kept, server, said.token_name))
        if said.token:
            return replace(server, token=said.token)
        if said.username:
            password = said.password
            if password is None:
                password = os.environ.get("IGGY_PASSWORD") or typer.prompt("Password", hide_input=True, err=True)
            return replace(server, username=said.username, password=password)
    username, password = os.environ.get("IGGY_USERNAME"), os.environ.get("IGGY_PASSWORD")
    if username and password is not None:
        return replace(server, username=username, password=password)
    raise Unauthorized(
        f"who logs in at {server.name}? Give --username and --password, or --token, or run `shmbroker login` first",
        number=ErrorCode.INVALID_CREDENTIALS,
    )


def _stored_token(kept: Kept, server: TcpAddress, name: str) -> str:
    try:
        return kept.tokens[server.name][name]
    except KeyError:
        raise Unauthorized(
            f"no token {name!r} is stored for {server.name}: shmbroker pat create {name} --store-token",
            number=ErrorCode.INVALID_TOKEN,
        ) from None


def identifier(text: str) -> int | str:
    """A number where the text is one that fits 32 bits, else a name: the rule of every textual interface."""
    return int(text) if text.isascii() and text.isdecimal() and int(text) <= U32_MAX else text
