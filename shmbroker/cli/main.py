"""The command ``shmbroker``: its tree of groups, and the one place where an error becomes a line of text.

Exit status: 0 done, 1 not found, refused or failed, 2 the command line was not understood, 130 interrupted. No command
catches ShmbrokerError or OSError to print it: they all arrive in :meth:`Application.invoke`.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from typing import Annotated, Any

import typer
from rich.text import Text
from typer.core import TyperGroup

from shmbroker import errors
from shmbroker.cli import (
    bench,
    context,
    demo,
    group,
    log,
    message,
    offset,
    output,
    partition,
    segment,
    serve,
    session,
    stats,
    stream,
    system,
    token,
    topic,
    user,
)
from shmbroker.cli.connection import Globals, set_globals
from shmbroker.errors import ShmbrokerError

TRACEBACK_VARIABLE = "SHMBROKER_TRACEBACK"

REMEDIES: dict[type[BaseException], str] = {
    errors.OutcomeUnknown: "It may have been carried out: look before you repeat it.",
    errors.DiskFull: "Free some space, or let retention remove old segments, then repeat it.",
    errors.PartitionPoisoned: "Look at the disk, then start the broker again.",
    errors.PartitionRefused: "Stop the broker and run `shmbroker log verify DATA`.",
    errors.NotAccepted: "Nothing was done: repeating it is safe.",
}
"""What to do next, for errors whose text does not say so itself. The first kind that fits counts."""

_STREAMS = "`shmbroker stream list` shows what there is."
_TOPICS = "`shmbroker topic list STREAM` shows what there is."
_GROUPS = "`shmbroker consumer-group list STREAM TOPIC` shows what there is."
NOT_FOUND_REMEDIES: dict[int, str] = {
    errors.ErrorCode.STREAM_NOT_FOUND: _STREAMS,
    errors.ErrorCode.STREAM_NAME_NOT_FOUND: _STREAMS,
    errors.ErrorCode.TOPIC_NOT_FOUND: _TOPICS,
    errors.ErrorCode.TOPIC_NAME_NOT_FOUND: _TOPICS,
    errors.ErrorCode.PARTITION_NOT_FOUND: "`shmbroker topic get STREAM TOPIC` says how many partitions there are.",
    errors.ErrorCode.SEGMENT_NOT_FOUND: "`shmbroker topic get STREAM TOPIC` says what its partitions hold.",
    errors.ErrorCode.GROUP_NOT_FOUND: _GROUPS,
    errors.ErrorCode.GROUP_NAME_NOT_FOUND: _GROUPS,
    errors.ErrorCode.GROUP_MEMBER_NOT_FOUND: "`shmbroker consumer-group get STREAM TOPIC GROUP` shows its members.",
    errors.ErrorCode.CLIENT_NOT_FOUND: "`shmbroker client list` shows who is connected.",
    errors.ErrorCode.CONSUMER_OFFSET_NOT_FOUND: "`shmbroker consumer-offset set` stores one.",
}
"""The same for what is not there, by the number of the error: each is found elsewhere."""


class Application(TyperGroup):
    """The root of the tree; everything that a command raises passes here."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (ShmbrokerError, OSError) as error:
            if isinstance(error, BrokenPipeError):
                raise
            fail(message_of(error))
            raise typer.Exit(1) from error


app = typer.Typer(
    name="shmbroker",
    cls=Application,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help=(
        "A message broker for one Linux host, over shared memory.\n\n"
        "Start one, then talk to it from another terminal:\n\n"
        "`shmbroker serve`\n\n"
        "`shmbroker stream create market`\n\n"
        "`shmbroker topic create market trades 4 none --durability persisted`\n\n"
        '`shmbroker message send market trades "hello" --partition-id 0`\n\n'
        "`shmbroker message poll market trades 0 --first --message-count 10`\n\n"
        "`shmbroker demo` shows all of it on real input, with a broker of its own."
    ),
)

for tree, name, alias in (
    (stream.app, "stream", "s"),
    (topic.app, "topic", "t"),
    (partition.app, "partition", "p"),
    (segment.app, "segment", "seg"),
    (message.app, "message", "m"),
    (offset.app, "consumer-offset", "o"),
    (group.app, "consumer-group", "g"),
    (user.app, "user", "u"),
    (system.client_app, "client", "c"),
    (system.cluster_app, "cluster", "cl"),
    (context.app, "context", "ctx"),
    (session.app, "session", "sess"),
):
    app.add_typer(tree, name=name)
    app.add_typer(tree, name=alias, hidden=True)
app.add_typer(log.app, name="log")
app.add_typer(token.app, name="pat")
app.command("serve")(serve.serve)
for command, name, alias in (
    (session.login, "login", "li"),
    (session.logout, "logout", "lo"),
):
    app.command(name)(command)
    app.command(alias, hidden=True)(command)
app.command("ping")(system.ping)
app.command("me")(system.me)
app.command("options")(system.options)
app.command("snapshot")(system.snapshot)
app.command("stats")(stats.stats)
app.command("demo")(demo.demo)
app.command("bench")(bench.bench)


def print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"shmbroker {version('shmbroker')}")
        raise typer.Exit


@app.callback()
def root(
    tcp_server_address: Annotated[
        str | None,
        typer.Option("--tcp-server-address", metavar="HOST:PORT", help="A broker over TCP instead of one of --data."),
    ] = None,
    username: Annotated[str | None, typer.Option("--username", "-u", help="Who logs in there.")] = None,
    password: Annotated[
        str | None, typer.Option("--password", "-p", help="Asked for where it is not given. [env: IGGY_PASSWORD]")
    ] = None,
    token: Annotated[str | None, typer.Option("--token", "-t", help="Log in with this personal access token.")] = None,
    token_name: Annotated[
        str | None, typer.Option("--token-name", "-n", help="Log in with one that `pat create --store-token` kept.")
    ] = None,
    tcp_tls_enabled: Annotated[bool, typer.Option("--tcp-tls-enabled", help="TLS over TCP.")] = False,
    tcp_tls_ca_file: Annotated[
        str | None, typer.Option("--tcp-tls-ca-file", metavar="FILE", help="Certificates to trust, in PEM.")
    ] = None,
    tcp_tls_domain: Annotated[
        str | None, typer.Option("--tcp-tls-domain", metavar="NAME", help="The name in the broker's certificate.")
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    set_globals(
        Globals(
            tcp_server_address, username, password, token, token_name, tcp_tls_enabled, tcp_tls_ca_file, tcp_tls_domain
        )
    )


def message_of(error: BaseException) -> str:
    """One line: what happened, then what to do about it."""
    if isinstance(error, OSError) and not isinstance(error, ShmbrokerError):
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error)
        if error.errno == errno.EACCES:
            what += " (which user runs this, and who owns it?)"
        return what
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, errors.NotFound):
        remedy = NOT_FOUND_REMEDIES.get(error.number, "")
    else:
        remedy = next((remedy for kind, remedy in REMEDIES.items() if isinstance(error, kind)), "")
    if remedy and "shmbroker " not in text:
        text = f"{text.rstrip('.')}. {remedy}"
    return text


def fail(text: str) -> None:
    if os.environ.get(TRACEBACK_VARIABLE):
        traceback.print_exc()
    line = Text("error: ", style="bold red")
    line.append(output.escaped(text), style="not bold default")
    output.console(stderr=True).print(line, soft_wrap=True)


def main() -> None:
    try:
        app()
    except KeyboardInterrupt:  # before a command has begun
        sys.exit(130)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{os.path.basename(last.filename)}:{last.lineno}"
        fail(
            f"a fault in shmbroker itself: {type(error).__name__}: {error} ({where}). With"
            f" {TRACEBACK_VARIABLE}=1 in the environment it shows the whole way there: please report that."
        )
        sys.exit(1)


if __name__ == "__main__":
    main()
