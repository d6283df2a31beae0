"""What a local process of the broker's own user may ask in the name of others, and what others may not."""

from __future__ import annotations

import contextlib
import os
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import shmbroker
from shmbroker.client.connection import Connection, deadline_of
from shmbroker.client.embedded import Embedded
from shmbroker.core.permissions import GLOBAL_FLAGS, Permissions
from shmbroker.errors import ErrorCode, ShmbrokerError
from shmbroker.limits import CONTROL_FRAME_SIZE_MAX, LOGIN_FAILURES_MAX, U64_MAX
from shmbroker.wire import groups, local, streams, system, topics, users
from shmbroker.wire.codes import Code
from shmbroker.wire.commands import decode_reply
from tests.conftest import Eventually

WAIT_S = 30.0
NOBODY = 65_534
READ_ONLY = Permissions(tuple(name == "read_streams" for name in GLOBAL_FLAGS))


class Gateway:
    """A connection, as the HTTP gateway has one."""

    def __init__(self, data: Path) -> None:
        self.connection = Connection(str(data), version=version("shmbroker"), timeout=WAIT_S)

    def ask(self, request: Any) -> Any:
        return self.connection.request(request, deadline_of(WAIT_S))

    def by_password(self, username: str, password: str, address: str = "192.0.2.1") -> local.AuthenticateReply:
        reply: local.AuthenticateReply = self.ask(local.Authenticate(username, password, None, address))
        return reply

    def as_user(self, who: local.AuthenticateReply, request: Any) -> Any:
        body = b64encode(request.encode()).decode()
        reply = self.ask(local.AsUser(who.user_id, who.created_at_us, request.CODE, body))
        return decode_reply(request.CODE, b64decode(reply.body))

    def may(self, who: local.AuthenticateReply, code: int, stream: int | str, topic: int | str) -> bool:
        try:
            self.ask(local.CheckUser(who.user_id, who.created_at_us, code, stream, topic))
        except ShmbrokerError as error:
            if error.number != ErrorCode.UNAUTHORIZED:
                raise
            return False
        return True


@pytest.fixture
def gateway(broker: Embedded, tmp_path: Path) -> Iterator[Gateway]:
    made = Gateway(tmp_path / "data")
    made.ask(streams.CreateStream("s"))
    made.ask(topics.CreateTopic("s", 0, "t"))
    made.ask(users.CreateUser("alice", "her secret", 1, READ_ONLY))
    yield made
    made.connection.close()


def refused(code: int, call: Callable[..., Any], *arguments: Any) -> str:
    with pytest.raises(ShmbrokerError) as caught:
        call(*arguments)
    assert caught.value.number == code
    return str(caught.value)


def test_who_it_is_by_password_and_by_token(gateway: Gateway) -> None:
    alice = gateway.by_password("alice", "her secret")
    assert (alice.user_id, alice.username, alice.expires_at_us) == (1, "alice", None)
    refused(ErrorCode.INVALID_CREDENTIALS, gateway.by_password, "alice", "not hers")
    refused(ErrorCode.INVALID_CREDENTIALS, gateway.by_password, "nobody", "her secret")
    refused(ErrorCode.INVALID_CREDENTIALS, gateway.by_password, "iggy", "iggy")
    token = gateway.as_user(alice, users.CreateToken("token", U64_MAX)).token
    assert gateway.ask(local.Authenticate(None, None, token, "")) == alice
    short = gateway.as_user(alice, users.CreateToken("an hour", 3_600_000_000)).token
    assert gateway.ask(local.Authenticate(None, None, short, "")).expires_at_us > alice.created_at_us
    refused(ErrorCode.INVALID_TOKEN, gateway.ask, local.Authenticate(None, None, token + "x", ""))
    for wrong in (
        (None, None, None),
        ("alice", None, None),
        ("alice", "her secret", token),
        (None, "her secret", token),
    ):
        refused(ErrorCode.INVALID_COMMAND, gateway.ask, local.Authenticate(*wrong, ""))


def test_attempts_are_those_of_the_address_that_the_gateway_names(gateway: Gateway, eventually: Eventually) -> None:
    refusals: list[ShmbrokerError] = []

    def is_limited() -> bool:
        with pytest.raises(ShmbrokerError) as caught:
            gateway.by_password("alice", "not hers", f"192.0.2.7:{len(refusals)}")
        refusals.append(caught.value)
        return caught.value.number != ErrorCode.INVALID_CREDENTIALS

    eventually(is_limited, "the limit")
    assert len(refusals) > LOGIN_FAILURES_MAX
    assert refusals[-1].number == ErrorCode.TRANSIENT_NOT_ACCEPTED
    assert "192.0.2.7" in str(refusals[-1])
    assert gateway.by_password("alice", "her secret", "192.0.2.8:1").username == "alice"


def test_a_command_in_the_name_of_a_user(gateway: Gateway) -> None:
    alice = gateway.by_password("alice", "her secret")
    assert gateway.as_user(alice, streams.GetStream("s")).stream.name == "s"
    assert gateway.as_user(alice, streams.GetStream("missing")) is None
    me = gateway.as_user(alice, system.GetMe()).client
    assert (me.user_id, me.transport) == (alice.user_id, 3)
    refused(ErrorCode.UNAUTHORIZED, gateway.as_user, alice, streams.CreateStream("another"))
    refused(ErrorCode.UNAUTHORIZED, gateway.as_user, alice, users.GetUsers())
    for request in (groups.JoinGroup("s", "t", "g"), groups.SyncGroup("s", "t", "g"), users.Logout(), local.Stats()):
        refused(ErrorCode.INVALID_COMMAND, gateway.as_user, alice, request)
    wrong_bodies = ("not base64!", b64encode(b"not a body").decode())
    for body in wrong_bodies:
        asked = local.AsUser(alice.user_id, alice.created_at_us, Code.GET_STREAM, body)
        refused(ErrorCode.INVALID_COMMAND, gateway.ask, asked)


def test_the_current_password_is_asked_of_users_not_of_the_owner(gateway: Gateway) -> None:
    alice = gateway.by_password("alice", "her secret")
    refused(ErrorCode.INVALID_CREDENTIALS, gateway.as_user, alice, users.ChangePassword("alice", "wrong", "another"))
    gateway.ask(users.ChangePassword("iggy", "", "root's"))
    root = gateway.by_password("iggy", "root's")
    refused(ErrorCode.INVALID_CREDENTIALS, gateway.as_user, root, users.ChangePassword("iggy", "wrong", "another"))
    refused(ErrorCode.INVALID_CREDENTIALS, gateway.as_user, root, users.ChangePassword("alice", "wrong", "another"))
    gateway.as_user(alice, users.ChangePassword("alice", "her secret", "another"))
    assert gateway.by_password("alice", "another") == alice


def test_the_logs_are_for_who_may_look_at_the_server(gateway: Gateway) -> None:
    alice = gateway.by_password("alice", "her secret")
    refused(ErrorCode.UNAUTHORIZED, gateway.as_user, alice, local.Logs())
    flags = tuple(name == "read_servers" for name in GLOBAL_FLAGS)
    gateway.ask(users.UpdatePermissions("alice", Permissions(flags)))
    assert gateway.as_user(alice, local.Logs()).figures["topics"] == 1
    gateway.ask(users.DeleteUser("alice"))
    refused(ErrorCode.UNAUTHENTICATED, gateway.as_user, alice, local.Logs())


def test_what_the_socket_does_not_carry_is_refused_and_the_connection_stays(gateway: Gateway) -> None:
    assert "hidden" not in refused(ErrorCode.INVALID_FORMAT, gateway.by_password, "alice", "\ud800hidden")
    refused(ErrorCode.INVALID_COMMAND, gateway.by_password, "alice", "x" * CONTROL_FRAME_SIZE_MAX)
    assert gateway.by_password("alice", "her secret").username == "alice"


def test_wrong_current_passwords_of_one_user_do_not_count_for_another(gateway: Gateway) -> None:
    alice = gateway.by_password("alice", "her secret")
    gateway.ask(users.ChangePassword("iggy", "", "root's"))
    root = gateway.by_password("iggy", "root's")
    numbers = set()
    for _ in range(2 * LOGIN_FAILURES_MAX):
        with pytest.raises(ShmbrokerError) as caught:
            gateway.as_user(alice, users.ChangePassword("alice", "wrong", "another"))
        numbers.add(caught.value.number)
    assert numbers == {ErrorCode.INVALID_CREDENTIALS, ErrorCode.TRANSIENT_NOT_ACCEPTED}
    gateway.as_user(root, users.ChangePassword("iggy", "root's", "another"))


def test_whether_a_user_may(gateway: Gateway) -> None:
    alice = gateway.by_password("alice", "her secret")
    assert gateway.may(alice, Code.POLL_MESSAGES, "s", "t")
    assert not gateway.may(alice, Code.SEND_MESSAGES, "s", "t")
    assert not gateway.may(alice, Code.SEND_MESSAGES, "missing", 7)
    gateway.ask(users.UpdatePermissions("alice", None))
    assert not gateway.may(alice, Code.POLL_MESSAGES, "s", "t")
    for code in (Code.GET_USER, Code.GET_STATS, Code.PING, 77):
        refused(ErrorCode.INVALID_COMMAND, gateway.may, alice, code, "s", "t")


def test_a_user_that_is_gone_is_not_the_next_of_its_id(gateway: Gateway) -> None:
    alice = gateway.by_password("alice", "her secret")
    gateway.ask(users.UpdateUser("alice", None, users.STATUS_INACTIVE))
    refused(ErrorCode.UNAUTHENTICATED, gateway.as_user, alice, system.GetMe())
    refused(ErrorCode.USER_INACTIVE, gateway.by_password, "alice", "her secret")
    gateway.ask(users.UpdateUser("alice", None, users.STATUS_ACTIVE))
    assert gateway.as_user(alice, system.GetMe()).client.user_id == 1
    gateway.ask(users.DeleteUser("alice"))
    assert gateway.ask(users.CreateUser("robert", "secret", 1)).user.user_id == alice.user_id
    refused(ErrorCode.UNAUTHENTICATED, gateway.as_user, alice, system.GetMe())
    refused(ErrorCode.UNAUTHENTICATED, gateway.may, alice, Code.POLL_MESSAGES, "s", "t")


def test_rights_end_with_the_partition(gateway: Gateway) -> None:
    """A session may live for years, and log ids are never used again."""
    gateway.ask(topics.CreatePartitions("s", "t", 1))
    opened = gateway.ask(local.OpenPartition("s", "t", 0, ["read"]))
    watch = gateway.ask(local.Watch([opened.log_id], True))
    gateway.ask(local.Unwatch(watch.watch_id))
    gateway.ask(topics.DeleteTopic("s", "t"))
    refused(ErrorCode.PARTITION_NOT_GRANTED, gateway.ask, local.Watch([opened.log_id], True))


@contextlib.contextmanager
def other_user() -> Iterator[None]:
    """As who the kernel sees this process connect."""
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.root
@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user, which needs root")
def test_another_local_user_is_told_the_way_in(tmp_path: Path) -> None:
    """Even one to whom somebody opened the directories: shared memory is the broker's own user's alone."""
    with shmbroker.embedded(tmp_path / "data") as broker:
        own = Gateway(tmp_path / "data")
        directory = Path(own.connection.hello.runtime)
        directory.chmod(0o711)
        (directory / "broker.sock").chmod(0o666)
        for above in (tmp_path, *tmp_path.parents):
            if above.stat().st_uid == 0 and above != Path("/"):
                above.chmod(above.stat().st_mode | 0o011)
        (tmp_path / "data").chmod(0o711)
        (tmp_path / "data" / "runtime").chmod(0o644)
        with other_user():
            text = refused(ErrorCode.UNAUTHORIZED, Gateway, tmp_path / "data")
        assert broker.pid
        assert "TCP" in text
        assert str(NOBODY) in text
        assert own.ask(streams.CreateStream("s")).name == "s", "the owner goes on"
        own.connection.close()
