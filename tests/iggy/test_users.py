"""Users, tokens and logins through the published client: what it can do, and the text that it raises for each error."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from apache_iggy import GlobalPermissions, IggyClient, Permissions, UserStatus

import shmbroker
from shmbroker.client.embedded import Embedded
from shmbroker.errors import ErrorCode
from shmbroker.front.catalog_store import FILE_NAME
from shmbroker.limits import LOGIN_FAILURES_MAX, TOKEN_COUNT_PER_USER_MAX, U64_MAX, USER_COUNT_MAX
from shmbroker.wire import users
from shmbroker.wire.codes import Code
from shmbroker.wire.frame import PROTOCOL_VERSION, Eviction, EvictionReason
from tests.conftest import Eventually
from tests.iggy.conftest import ROOT, WAIT_S, Program, RawClient

Run = Callable[[Program], Any]
Raw = Callable[..., RawClient]


async def raised(call: Awaitable[Any]) -> str:
    """The text of the error that a call of the client raises."""
    with pytest.raises(RuntimeError) as caught:
        await asyncio.wait_for(call, WAIT_S)
    return str(caught.value)


async def request(client: IggyClient, body: Any) -> bytes:
    """A command that the client has no method for, or checks before it sends it."""
    answer: bytes = await client.send_binary_request(int(body.CODE), body.encode())
    return answer


async def by_token(address: str, token: str) -> IggyClient:
    client = IggyClient.from_connection_string(f"iggy://{token}@{address}")
    await client.connect()
    await client.ping()
    return client


async def new_token(client: IggyClient, name: str, expiry_us: int = 0) -> str:
    return users.TokenReply.decode(users.Reader(await request(client, users.CreateToken(name, expiry_us)))).token


# --- what the client can do -------------------------------------------------------------------------------------------
def test_users_are_made_found_changed_and_deleted(broker: Embedded, run: Run) -> None:
    async def program(client: IggyClient) -> None:
        flags = GlobalPermissions(read_streams=True, poll_messages=True)
        made = await client.create_user("alice", "her secret", UserStatus.Active, Permissions(flags))
        assert (made.id, made.username, made.status) == (1, "alice", UserStatus.Active)
        found = await client.get_user("alice")
        assert found is not None
        assert found.permissions.global_permissions.read_streams
        assert not found.permissions.global_permissions.manage_streams
        assert [user.username for user in await client.get_users()] == ["iggy", "alice"]
        root = await client.get_user(0)
        assert root is not None
        assert root.permissions.global_permissions.manage_servers
        await client.update_user("alice", "alison", UserStatus.Inactive)
        found = await client.get_user(1)
        assert found is not None
        assert (found.username, found.status) == ("alison", UserStatus.Inactive)
        await client.update_user(1, None, UserStatus.Active)
        await client.update_permissions("alison", None)
        found = await client.get_user("alison")
        assert found is not None
        assert found.permissions is None
        await client.change_password("alison", "her secret", "her other secret")
        other = IggyClient(broker.tcp_address)
        await other.connect()
        assert await raised(other.login_user("alison", "her secret")) == "Invalid credentials"
        await other.login_user("alison", "her other secret")
        assert await raised(other.get_streams()) == "Unauthorized"
        await client.delete_user("alison")
        assert await raised(other.get_streams()) == "Unauthorized"
        assert await client.get_user("alison") is None

    run(program)


def test_logging_out_and_in_again_as_another(run: Run) -> None:
    async def program(client: IggyClient) -> None:
        await client.create_user("alice", "her secret")
        await client.login_user("alice", "her secret")
        assert await raised(client.get_users()) == "Unauthorized"
        await client.logout_user()
        assert await raised(client.get_users()) == "Unauthenticated"
        await client.ping()
        await client.login_user("iggy", "secret")
        assert len(await client.get_users()) == 2

    run(program)


def test_a_token_logs_in_until_it_is_deleted(broker: Embedded, run: Run) -> None:
    async def program(client: IggyClient) -> None:
        await client.create_user("alice", "her secret")
        await client.login_user("alice", "her secret")
        token = await new_token(client, "for ever", U64_MAX)
        other = await by_token(broker.tcp_address, token)
        assert users.TokenEntry("for ever", 0).encode() == await request(other, users.GetTokens())
        assert await raised(other.get_users()) == "Unauthorized"
        await request(other, users.DeleteToken("for ever"))
        assert await request(other, users.GetTokens()) == b""
        assert await raised(by_token(broker.tcp_address, token)) == "Invalid personal access token"

    run(program)


def test_users_and_tokens_survive_a_restart(tmp_path: Path) -> None:
    async def first(client: IggyClient) -> str:
        await client.create_user("alice", "her secret")
        return await new_token(client, "kept")

    async def second(client: IggyClient) -> list[str]:
        return [user.username for user in await client.get_users()]

    async def login(address: str, program: Any, password: str) -> Any:
        client = IggyClient(address)
        await client.connect()
        await client.login_user("iggy", password)
        return await program(client)

    data = tmp_path / "data"
    with shmbroker.embedded(data, tcp="127.0.0.1:0", workers=1, environment=ROOT) as broker:
        token = asyncio.run(login(broker.tcp_address, first, "secret"))
    changed = {"IGGY_ROOT_USERNAME": "another", "IGGY_ROOT_PASSWORD": "and another"}
    with shmbroker.embedded(data, tcp="127.0.0.1:0", workers=1, environment=changed) as broker:
        assert broker.root_password is None
        assert asyncio.run(login(broker.tcp_address, second, "secret")) == ["iggy", "alice"]

        async def with_token() -> int:
            return len(await (await by_token(broker.tcp_address, token)).get_users())

        assert asyncio.run(with_token()) == 2


# --- errors -----------------------------------------------------------------------------------------------------------
def test_40_unauthenticated(broker: Embedded) -> None:
    async def program() -> None:
        client = IggyClient(broker.tcp_address)
        await client.connect()
        await client.ping()
        # The client knows that it has not logged in; a raw request it sends all the same.
        assert await raised(client.get_users()) == "Unauthenticated"
        assert await raised(client.send_binary_request(int(Code.GET_STATS), b"")) == "Unauthenticated"

    asyncio.run(program())


def test_40_reaches_whoever_asks_for_it_by_hand(raw: Raw) -> None:
    stranger = raw(login=False)
    assert stranger.ask(users.GetUsers()).status == ErrorCode.UNAUTHENTICATED


def test_41_to_56_as_the_client_says_them(broker: Embedded, run: Run) -> None:
    async def program(client: IggyClient) -> None:
        alice = IggyClient(broker.tcp_address)
        await alice.connect()
        await client.create_user("alice", "her secret")
        await alice.login_user("alice", "her secret")
        expected = {
            41: ("Unauthorized", alice.create_stream("s")),
            42: ("Invalid credentials", alice.change_password("alice", "not hers", "her secret")),
            43: ("Invalid username", client.update_user("alice", "al")),
            44: ("Invalid password", request(client, users.CreateUser("robert", "no", 1))),
            45: ("Invalid user status", request(client, users.CreateUser("robert", "secret", 7))),
            46: ("User already exists", client.create_user("alice", "secret")),
            48: ("Cannot delete user with ID: 0", client.delete_user("iggy")),
            49: ("Cannot change permissions for user with ID: 0", client.update_permissions("iggy", None)),
            50: ("Invalid personal access token name", request(client, users.CreateToken("no", 0))),
            51: ("already exists", twice(client)),
            52: ("has reached the maximum number", too_many_tokens(alice)),
            53: ("Invalid personal access token", by_token(broker.tcp_address, "no such token")),
            54: ("has expired", expired(client, broker.tcp_address)),
            56: ("Invalid personal access token expiry", request(client, users.CreateToken("too long", 2**63))),
        }
        for number, (text, call) in expected.items():
            assert text in await raised(call), number
        await client.update_user("alice", None, UserStatus.Inactive)
        assert await raised(request(alice, users.GetTokens())) == "User inactive"  # 47

    async def twice(client: IggyClient) -> None:
        await new_token(client, "token")
        await new_token(client, "token")

    async def too_many_tokens(client: IggyClient) -> None:
        for number in range(TOKEN_COUNT_PER_USER_MAX + 1):
            await new_token(client, f"token {number}")

    async def expired(client: IggyClient, address: str) -> None:
        await by_token(address, await new_token(client, "short", 1))

    run(program)


def test_55_too_many_users(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with shmbroker.embedded(data, workers=1, environment=ROOT):
        pass
    row = "INSERT INTO account VALUES (?, ?, 'no hash', 1, NULL, 1)"
    with closing(sqlite3.connect(data / FILE_NAME)) as connection, connection:
        connection.executemany(row, [(number, f"user {number}") for number in range(1, USER_COUNT_MAX)])

    async def program(address: str) -> None:
        client = IggyClient(address)
        await client.connect()
        await client.login_user("iggy", "secret")
        assert len(await client.get_users()) == USER_COUNT_MAX
        assert await raised(client.create_user("one more", "secret")) == "Users limit reached."
        await client.delete_user("user 7")
        assert (await client.create_user("one more", "secret")).id == 7

    with shmbroker.embedded(data, tcp="127.0.0.1:0", workers=1) as broker:
        asyncio.run(asyncio.wait_for(program(broker.tcp_address), WAIT_S))


def test_users_have_no_options(run: Run) -> None:
    async def program(client: IggyClient) -> None:
        await client.create_user("alice", "her secret")
        assert "Unsupported option key" in await raised(client.update_user("alice", options={"colour": "red"}))

    run(program)


# --- logins -----------------------------------------------------------------------------------------------------------
def test_an_inactive_user_is_told_only_with_the_right_password(broker: Embedded, run: Run) -> None:
    async def program(client: IggyClient) -> None:
        await client.create_user("alice", "her secret", UserStatus.Inactive)
        other = IggyClient(broker.tcp_address)
        await other.connect()
        assert await raised(other.login_user("alice", "not hers")) == "Invalid credentials"
        assert await raised(other.login_user("alice", "her secret")) == "Unauthenticated"

    run(program)


@pytest.mark.parametrize(
    ("version", "accepted"),
    [((0, 11, 0), True), ((0, 11, 7), True), ((0, 10, 9), False), ((0, 12, 0), False), ((1, 0, 0), False)],
)
def test_the_gate_for_versions(raw: Raw, version: tuple[int, int, int], accepted: bool) -> None:
    packed = version[0] << 20 | version[1] << 10 | version[2]
    client = raw(login=False)
    answer = client.ask(users.Login(packed, "test", "1", "iggy", "secret"))
    if accepted:
        assert answer.status == 0
        assert answer.value.user_id == 0
        return
    assert answer.header == Eviction(
        client.connection.client, EvictionReason.INCOMPATIBLE_PROTOCOL, PROTOCOL_VERSION | 0x3FF, PROTOCOL_VERSION
    )
    assert client.login().status == 0, "the connection goes on"


class Garbage:
    """A login of neither shape."""

    CODE = Code.LOGIN

    def __init__(self, body: bytes) -> None:
        self.body = body

    def encode(self) -> bytes:
        return self.body


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", EvictionReason.MALFORMED_LOGIN),
        (b"\1\2", EvictionReason.MALFORMED_LOGIN),
        (PROTOCOL_VERSION.to_bytes(4, "little") + b"\xff\xff", EvictionReason.MALFORMED_LOGIN),
        ((99 << 20).to_bytes(4, "little") + b"another shape", EvictionReason.INCOMPATIBLE_PROTOCOL),
    ],
)
def test_a_login_of_neither_shape(raw: Raw, body: bytes, reason: EvictionReason) -> None:
    client = raw(login=False)
    answer = client.ask(Garbage(body))
    assert isinstance(answer.header, Eviction)
    assert answer.header.reason == reason


def test_failed_logins_of_an_address_are_limited(broker: Embedded, raw: Raw, eventually: Eventually) -> None:
    clients = [raw(login=False) for _ in range(5)]
    statuses: list[int] = []

    def is_limited() -> bool:
        statuses.append(clients[len(statuses) % len(clients)].login(password="wrong").status)
        return statuses[-1] != ErrorCode.INVALID_CREDENTIALS

    eventually(is_limited, "the limit")
    assert statuses[-1] == ErrorCode.TRANSIENT_NOT_ACCEPTED
    assert len(statuses) > LOGIN_FAILURES_MAX

    # Not even the right password is looked at; after a while it is. The published client waits by itself.
    async def program() -> int:
        client = IggyClient(broker.tcp_address)
        await client.connect()
        await client.login_user("iggy", "secret")
        return len(await client.get_users())

    assert asyncio.run(asyncio.wait_for(program(), WAIT_S)) == 1
    answer = eventually(lambda: (found := clients[0].login(password="wrong")).status == 58 and found, "the limit")
    assert "too many failed logins from 127.0.0.1" in answer.text


# --- the root user ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("given", [{"IGGY_ROOT_USERNAME": "admin"}, {"IGGY_ROOT_PASSWORD": "secret"}])
def test_both_variables_or_neither(tmp_path: Path, given: dict[str, str]) -> None:
    with pytest.raises(shmbroker.errors.Unavailable, match="IGGY_ROOT_USERNAME, IGGY_ROOT_PASSWORD: give both"):
        shmbroker.embedded(tmp_path / "data", tcp="127.0.0.1:0", environment=given).start()


@pytest.mark.parametrize("given", [("ad", "secret"), ("admin", "no")])
def test_a_root_user_that_could_not_be_is_refused(tmp_path: Path, given: tuple[str, str]) -> None:
    environment = dict(zip(ROOT, given, strict=True))
    with pytest.raises(shmbroker.errors.Unavailable, match="has 3 to") as caught:
        shmbroker.embedded(tmp_path / "data", environment=environment).start()
    assert "'no'" not in str(caught.value)


def test_a_password_is_made_up_when_it_is_first_needed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = tmp_path / "data"
    caplog.set_level("DEBUG")

    async def program(address: str, password: str) -> int:
        client = IggyClient(address)
        await client.connect()
        await client.login_user("iggy", password)
        return len(await client.get_users())

    with shmbroker.embedded(data, workers=1) as broker:
        assert broker.root_password is None, "nobody can log in"
    with shmbroker.embedded(data, tcp="127.0.0.1:0", workers=1) as broker:
        password = broker.root_password
        assert password is not None
        assert asyncio.run(program(broker.tcp_address, password)) == 1
    with shmbroker.embedded(data, tcp="127.0.0.1:0", workers=1) as broker:
        assert broker.root_password is None, "said once"
        assert asyncio.run(program(broker.tcp_address, password)) == 1
    assert password not in caplog.text
