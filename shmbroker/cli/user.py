"""``shmbroker user``: create, delete, get, list users; their names, status, passwords and permissions."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from shmbroker.cli import output
from shmbroker.cli.connection import DATA_DEFAULT, Data, connected, identifier
from shmbroker.cli.output import Json
from shmbroker.cli.permissions import facts_of, permissions_of, rows_of

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help=(
        "Users, and what each of them may do.\n\n"
        "`shmbroker user create desk s3cret --global-permissions read_streams,poll_messages`"
    ),
)  # fmt: skip

COLUMNS = {"id": "ID", "created": "Created", "name": "Name", "status": "Status"}
UserName = Annotated[str, typer.Argument(metavar="USER", help="Name or number of the user.")]
GlobalPermissions = Annotated[
    str | None, typer.Option("--global-permissions", "-g", metavar="FLAG,...", help="For everything: read_streams,...")
]
StreamPermissions = Annotated[
    list[str] | None,
    typer.Option(
        "--stream-permissions", "-s", metavar="STREAM[:FLAG,...][#TOPIC[:FLAG,...]]", help="For one stream; repeat it."
    ),
]
HIDDEN = "Asked for where it is not given."


class Status(StrEnum):
    ACTIVE = "active"
    INACTIVE = "inactive"


def user_facts(user: Any) -> dict[str, Any]:
    return {
        "id": user.id,
        "created": output.time_text(user.created_at_us),
        "name": user.name,
        "status": (Status.ACTIVE if user.is_active else Status.INACTIVE).value,
    }


@app.command()
def create(
    username: Annotated[str, typer.Argument(metavar="USERNAME", help="3 to 50 bytes; unique.")],
    password: Annotated[str | None, typer.Argument(metavar="PASSWORD", help=f"3 to 100 bytes. {HIDDEN}")] = None,
    status: Annotated[Status, typer.Option("--user-status", "-u", help="Who is inactive cannot log in.")] = (
        Status.ACTIVE
    ),
    global_permissions: GlobalPermissions = None,
    stream_permissions: StreamPermissions = None,
    data: Data = DATA_DEFAULT,
    as_json: Json = False,
) -> None:
    """Create a user. Without permissions it may log in, and see to its own password and tokens.

    `shmbroker user create desk s3cret --global-permissions read_streams,poll_messages`

    `shmbroker user create feed s3cret --stream-permissions "0:read_topics#1:send_messages"`
    """
    permissions = permissions_of(global_permissions, stream_permissions or [])
    if password is None:
        password = asked_for("Password", confirmed=True)
    with connected(data) as client:
        user = client.create_user(username, password, active=status is Status.ACTIVE, permissions=permissions)
    output.warn_of_number(user.name)
    output.print_done(f"User {user.name} created; its number is {user.id}.", user_facts(user), as_json=as_json)


@app.command()
def delete(user: UserName, data: Data = DATA_DEFAULT, as_json: Json = False) -> None:
    """Delete a user and its tokens.

    `shmbroker user delete desk`
    """
    with connected(data) as client:
        client.delete_user(identifier(user))
    output.print_done(f"User {user} deleted.", {"deleted": user}, as_json=as_json)


@app.command()
def get(user: UserName, data: Data = DATA_DEFAULT, as_json: Json = False) -> None:
    """Show a user with its permissions. Exit status 1 if there is none.

    `shmbroker user get desk`
    """
    with connected(data) as client:
        found = client.get_user(identifier(user))
    permissions = facts_of(found.permissions) if found.permissions is not None else None
    if as_json:
        output.print_json({**user_facts(found), "permissions": permissions})
        return
    rows = rows_of(permissions) if permissions is not None else {"permissions": "none"}
    output.print_properties({**user_facts(found), **rows}, as_json=False)


@app.command("list")
def list_(data: Data = DATA_DEFAULT, as_json: Json = False) -> None:
    """List the users.

    `shmbroker user list`
    """
    with connected(data) as client:
        rows = [user_facts(user) for user in client.list_users()]
    output.print_rows(rows, COLUMNS, as_json=as_json, empty="There is no user.")


@app.command()
def name(
    user: UserName,
    username: Annotated[str, typer.Argument(metavar="USERNAME", help="The new name.")],
    data: Data = DATA_DEFAULT,
    as_json: Json = False,
) -> None:
    """Give a user another name.

    `shmbroker user name desk front-desk`
    """
    with connected(data) as client:
        client.update_user(identifier(user), name=username)
    output.warn_of_number(username)
    output.print_done(f"User {user} is now called {username}.", {"updated": user, "name": username}, as_json=as_json)


@app.command()
def status(user: UserName, status: Status, data: Data = DATA_DEFAULT, as_json: Json = False) -> None:
    """Let a user log in, or not any more.

    `shmbroker user status desk inactive`
    """
    with connected(data) as client:
        client.update_user(identifier(user), active=status is Status.ACTIVE)
    facts = {"updated": user, "status": status.value}
    output.print_done(f"User {user} is {status.value}.", facts, as_json=as_json)


@app.command()
def password(
    user: UserName,
    current: Annotated[str | None, typer.Argument(metavar="CURRENT", help=HIDDEN)] = None,
    new: Annotated[str | None, typer.Argument(metavar="NEW", help=HIDDEN)] = None,
    data: Data = DATA_DEFAULT,
    as_json: Json = False,
) -> None:
    """Change a user's password.

    `shmbroker user password desk`
    """
    if current is None:
        current = asked_for("Current password")
    if new is None:
        new = asked_for("New password", confirmed=True)
    with connected(data) as client:
        client.change_password(identifier(user), current, new)
    output.print_done(f"Password of user {user} changed.", {"updated": user}, as_json=as_json)


@app.command()
def permissions(
    user: UserName,
    global_permissions: GlobalPermissions = None,
    stream_permissions: StreamPermissions = None,
    data: Data = DATA_DEFAULT,
    as_json: Json = False,
) -> None:
    """Give a user these permissions instead of those that it has; none are given where none are said.

    `shmbroker user permissions desk --stream-permissions "0:read_topics,poll_messages"`
    """
    wanted = permissions_of(global_permissions, stream_permissions or [])
    with connected(data) as client:
        client.update_permissions(identifier(user), wanted)
    facts = {"updated": user, "permissions": facts_of(wanted) if wanted is not None else None}
    output.print_done(f"Permissions of user {user} set.", facts, as_json=as_json)


def asked_for(what: str, *, confirmed: bool = False) -> str:
    """A secret from the terminal, not shown there."""
    answer: str = typer.prompt(what, hide_input=True, confirmation_prompt=confirmed, err=True)
    return answer
