"""Every command against every permission, over TCP: refused with 41 without, let through with any one that suffices.

The table below is the protocol's, written down again: everywhere | for the stream | for the topic. A user's session
stays open while the permissions change, so each row also shows that changes are felt at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shmbroker.client.embedded import Embedded
from shmbroker.core.permissions import (
    GLOBAL_FLAGS,
    STREAM_FLAGS,
    TOPIC_FLAGS,
    Permissions,
    StreamPermissions,
    TopicPermissions,
)
from shmbroker.errors import ErrorCode
from shmbroker.wire import groups, messages, offsets, streams, system, topics, users
from shmbroker.wire.codes import Code
from shmbroker.wire.frame import PROTOCOL_VERSION
from shmbroker.wire.primitives import CONSUMER_SINGLE, Consumer
from tests.iggy.batches import wire_batch
from tests.iggy.conftest import RawClient

PASSWORD = "alice's"
CONSUMER = Consumer(CONSUMER_SINGLE, "c")
READ_TOPIC = (
    "manage_streams read_streams manage_topics read_topics|manage_stream read_stream manage_topics read_topics|"
    "manage_topic read_topic"
)
MANAGE_TOPIC = "manage_streams manage_topics|manage_stream manage_topics|manage_topic"
POLL = (
    "poll_messages read_topics manage_topics read_streams manage_streams|"
    "poll_messages read_topics manage_topics read_stream manage_stream|manage_topic read_topic poll_messages"
)
SEND = "send_messages manage_streams manage_topics|send_messages manage_stream manage_topics|manage_topic send_messages"
MANAGE_STREAM = "manage_streams|manage_stream|"
TABLE: dict[int, tuple[Any, str]] = {
    Code.GET_STATS: (system.GetStats(), "manage_servers read_servers||"),
    Code.GET_SNAPSHOT: (system.GetSnapshot(1, b"\x04"), "manage_servers read_servers||"),
    Code.GET_CLIENT: (system.GetClient(1), "manage_servers read_servers||"),
    Code.GET_CLIENTS: (system.GetClients(), "manage_servers read_servers||"),
    Code.GET_USER: (users.GetUser(0), "manage_users read_users||"),
    Code.GET_USERS: (users.GetUsers(), "manage_users read_users||"),
    Code.CREATE_USER: (users.CreateUser("newcomer", "secret", 1), "manage_users||"),
    Code.DELETE_USER: (users.DeleteUser("newcomer"), "manage_users||"),
    Code.UPDATE_USER: (users.UpdateUser("robert", None, 1), "manage_users||"),
    Code.UPDATE_PERMISSIONS: (users.UpdatePermissions("robert", None), "manage_users||"),
    Code.CHANGE_PASSWORD: (users.ChangePassword("robert", "robert's", "robert's"), "manage_users||"),
    Code.GET_STREAMS: (streams.GetStreams(), "manage_streams read_streams||"),
    Code.GET_STREAM: (streams.GetStream("s"), "manage_streams read_streams|manage_stream read_stream|"),
    Code.CREATE_STREAM: (streams.CreateStream("another"), "manage_streams||"),
    Code.UPDATE_STREAM: (streams.UpdateStream("s", "s"), MANAGE_STREAM),
    Code.DELETE_STREAM: (streams.DeleteStream("s"), MANAGE_STREAM),
    Code.PURGE_STREAM: (streams.PurgeStream("s"), MANAGE_STREAM),
    Code.GET_TOPICS: (topics.GetTopics("s"), READ_TOPIC.rpartition("|")[0] + "|"),
    Code.GET_TOPIC: (topics.GetTopic("s", "t"), READ_TOPIC),
    Code.CREATE_TOPIC: (topics.CreateTopic("s", 0, "another"), MANAGE_TOPIC.rpartition("|")[0] + "|"),
    Code.UPDATE_TOPIC: (topics.UpdateTopic("s", "t", "t"), MANAGE_TOPIC),
    Code.DELETE_TOPIC: (topics.DeleteTopic("s", "t"), MANAGE_TOPIC),
    Code.PURGE_TOPIC: (topics.PurgeTopic("s", "t"), MANAGE_TOPIC),
    Code.CREATE_PARTITIONS: (topics.CreatePartitions("s", "t", 1), MANAGE_TOPIC),
    Code.DELETE_PARTITIONS: (topics.DeletePartitions("s", "t", 1), MANAGE_TOPIC),
    Code.DELETE_SEGMENTS: (topics.DeleteSegments("s", "t", 0, 1), MANAGE_TOPIC),
    Code.GET_GROUP: (groups.GetGroup("s", "t", "g"), READ_TOPIC),
    Code.GET_GROUPS: (groups.GetGroups("s", "t"), READ_TOPIC),
    Code.CREATE_GROUP: (groups.CreateGroup("s", "t", "another"), READ_TOPIC),
    Code.DELETE_GROUP: (groups.DeleteGroup("s", "t", "another"), READ_TOPIC),
    Code.JOIN_GROUP: (groups.JoinGroup("s", "t", "g"), READ_TOPIC),
    Code.LEAVE_GROUP: (groups.LeaveGroup("s", "t", "g"), READ_TOPIC),
    Code.POLL_MESSAGES: (messages.PollMessages(CONSUMER, "s", "t", 0, 3, 0, 1, False), POLL),
    Code.GET_CONSUMER_OFFSET: (offsets.GetConsumerOffset(CONSUMER, "s", "t", 0), POLL),
    Code.STORE_CONSUMER_OFFSET: (offsets.StoreConsumerOffset(CONSUMER, "s", "t", 0, 0), POLL),
    Code.DELETE_CONSUMER_OFFSET: (offsets.DeleteConsumerOffset(CONSUMER, "s", "t", 0), POLL),
    Code.SEND_MESSAGES: (
        messages.SendMessages("s", "t", messages.Partitioning(2, bytes(4)), 1, wire_batch([b"x"])),
        SEND,
    ),
    Code.FLUSH_UNSAVED_BUFFER: (messages.FlushUnsavedBuffer("s", "t", 0, False), SEND),
}
ANY_USER: dict[int, Any] = {
    Code.GET_ME: system.GetMe(),
    Code.GET_CLUSTER_METADATA: system.GetClusterMetadata(),
    Code.DESCRIBE_OPTIONS: system.DescribeOptions(1),
    Code.GET_TOKENS: users.GetTokens(),
    Code.CREATE_TOKEN: users.CreateToken("token", 0),
    Code.DELETE_TOKEN: users.DeleteToken("token"),
    Code.SYNC_GROUP: groups.SyncGroup("s", "t", "g"),
    Code.PING: system.Ping(),
}
SESSION = {Code.LOGIN, Code.LOGIN_WITH_TOKEN, Code.LOGOUT}
Raw = Callable[..., RawClient]


def some(names: tuple[str, ...], wanted: set[str]) -> tuple[bool, ...]:
    return tuple(name in wanted for name in names)


def permissions(everywhere: set[str], stream: set[str], topic: set[str]) -> Permissions:
    on_topic = TopicPermissions(0, some(TOPIC_FLAGS, topic))
    return Permissions(some(GLOBAL_FLAGS, everywhere), (StreamPermissions(0, some(STREAM_FLAGS, stream), (on_topic,)),))


class World:
    """Stream 0 "s" with topic 0 "t" of one partition with a message and group "g"; alice and robert; root and alice
    connected."""

    def __init__(self, raw: Raw) -> None:
        self.root = raw()
        for name in ("alice", "robert"):
            assert self.root.ask(users.CreateUser(name, f"{name}'s", 1)).status == 0
        self.alice = raw(login=False)
        log_in(self.alice, "alice", PASSWORD)

    def restore(self) -> None:
        """Makes again what a row has removed, and removes what it has made."""
        ask = self.root.ask
        if ask(streams.GetStream("s")).value is None:
            assert ask(streams.CreateStream("s")).value.stream_id == 0
        found = ask(topics.GetTopic("s", "t")).value
        if found is None:
            assert ask(topics.CreateTopic("s", 0, "t")).value.topic.topic_id == 0
        if found is None or not found.partitions:
            assert ask(topics.CreatePartitions("s", "t", 1)).status == 0
            ask(groups.CreateGroup("s", "t", "g"))
        for removed in (streams.DeleteStream("another"), topics.DeleteTopic("s", "another")):
            ask(removed)
        ask(users.CreateUser("newcomer", "secret", 1))

    def permit(self, permitted: Permissions | None) -> None:
        assert self.root.ask(users.UpdatePermissions("alice", permitted)).status == 0


def log_in(client: RawClient, username: str, password: str) -> int:
    answer = client.ask(users.Login(PROTOCOL_VERSION, "test", "1", username, password))
    if not answer.status:
        client.connection.session = answer.value.session
    return answer.status


@pytest.fixture
def world(raw: Raw) -> World:
    return World(raw)


def test_the_table_has_every_command() -> None:
    assert TABLE.keys() | ANY_USER.keys() | SESSION == set(Code)
    for code, (request, _) in TABLE.items():
        assert code == request.CODE


def test_each_command_asks_for_its_permission(world: World) -> None:
    wrong: list[str] = []
    for code, (request, row) in TABLE.items():
        name = Code(code).name
        allowing = [set(column.split()) for column in row.split("|")]
        world.restore()
        others = [
            set(names) - good for names, good in zip((GLOBAL_FLAGS, STREAM_FLAGS, TOPIC_FLAGS), allowing, strict=True)
        ]
        for missing in (None, permissions(set(), set(), set()), permissions(*others)):
            world.permit(missing)
            if world.alice.ask(request).status != ErrorCode.UNAUTHORIZED:
                wrong.append(f"{name} is let through with {missing}")
        for level, good in enumerate(allowing):
            for flag in sorted(good):
                world.restore()
                only: list[set[str]] = [set(), set(), set()]
                only[level] = {flag}
                world.permit(permissions(*only))
                status = world.alice.ask(request).status
                if status in (ErrorCode.UNAUTHORIZED, ErrorCode.UNAUTHENTICATED):
                    wrong.append(f"{name} is refused with {flag} at level {level}")
    assert not wrong, "\n".join(wrong)


def test_some_commands_need_no_permission_but_a_login(world: World, raw: Raw) -> None:
    world.restore()
    stranger = raw(login=False)
    for code, request in ANY_USER.items():
        assert world.alice.ask(request).status == 0, Code(code).name
        expected = 0 if code == Code.PING else ErrorCode.UNAUTHENTICATED
        stranger.connection.session = 1
        assert stranger.ask(request).status == expected, Code(code).name


def test_every_command_needs_a_login(raw: Raw) -> None:
    for code, (request, _) in TABLE.items():
        stranger = raw(login=False)
        stranger.connection.session = 1
        assert stranger.ask(request).status == ErrorCode.UNAUTHENTICATED, Code(code).name


def test_a_user_sees_itself_and_changes_its_own_password(world: World, raw: Raw) -> None:
    alice = world.alice
    me = alice.ask(system.GetMe()).value.client
    for user in ("alice", me.user_id):
        assert alice.ask(users.GetUser(user)).value.user.username == "alice"
    assert alice.ask(users.GetUser("robert")).status == ErrorCode.UNAUTHORIZED
    assert alice.ask(users.GetUser("nobody")).status == ErrorCode.UNAUTHORIZED, "nor who there is"
    changed = users.ChangePassword("alice", "wrong", "another")
    assert alice.ask(changed).status == ErrorCode.INVALID_CREDENTIALS
    assert alice.ask(users.ChangePassword("alice", PASSWORD, "another")).status == 0
    assert log_in(raw(login=False), "alice", PASSWORD) == ErrorCode.INVALID_CREDENTIALS
    assert log_in(raw(login=False), "alice", "another") == 0
    assert alice.ask(users.ChangePassword("robert", "robert's", "another")).status == ErrorCode.UNAUTHORIZED


def test_a_permission_is_for_that_stream_and_topic_only(world: World) -> None:
    world.restore()
    ask, alice = world.root.ask, world.alice
    assert ask(streams.CreateStream("s2")).value.stream_id == 1
    for stream in ("s", "s2"):
        assert ask(topics.CreateTopic(stream, 1, "t2")).status == 0
    world.permit(permissions(set(), set(), {"read_topic", "send_messages", "poll_messages", "manage_topic"}))
    assert alice.ask(topics.GetTopic("s", "t")).value.topic.name == "t"
    assert alice.ask(topics.GetTopic(0, 0)).value.topic.name == "t"
    refused = [("s", "t2"), ("s2", "t2"), (1, 0), ("s", "missing"), ("missing", "t"), (0, 7), (7, 0)]
    for stream, topic in refused:
        assert alice.ask(topics.GetTopic(stream, topic)).status == ErrorCode.UNAUTHORIZED, (stream, topic)
    # A new topic under the old id is another topic.
    assert ask(topics.DeleteTopic("s", "t")).status == 0
    assert ask(topics.CreateTopic("s", 0, "t")).value.topic.topic_id == 0
    assert alice.ask(topics.GetTopic("s", "t")).status == ErrorCode.UNAUTHORIZED


def test_a_session_ends_with_its_user(world: World) -> None:
    assert world.alice.ask(users.GetTokens()).status == 0
    assert world.root.ask(users.UpdateUser("alice", None, users.STATUS_INACTIVE)).status == 0
    assert world.alice.ask(users.GetTokens()).status == ErrorCode.USER_INACTIVE
    assert world.root.ask(users.UpdateUser("alice", None, users.STATUS_ACTIVE)).status == 0
    assert world.alice.ask(users.GetTokens()).status == 0
    alice = world.root.ask(users.GetUser("alice")).value.user.user_id
    assert world.root.ask(users.DeleteUser("alice")).status == 0
    again = world.root.ask(users.CreateUser("alice", PASSWORD, 1)).value.user.user_id
    assert again == alice, "the id is used again"
    assert world.alice.ask(users.GetTokens()).status == ErrorCode.UNAUTHORIZED
    assert world.alice.ask(system.Ping()).status == 0


def test_our_own_commands_are_not_for_tcp(broker: Embedded, raw: Raw) -> None:
    from shmbroker.wire import local

    client = raw()
    for request in (
        local.Stats(),
        local.Authenticate("iggy", "secret", None, "here"),
        local.AsUser(0, 0, Code.GET_STATS, ""),
        local.CheckUser(0, 0, Code.GET_TOPIC, "s", "t"),
        local.OpenPartition("s", "t", 0, ["read"]),
    ):
        assert client.ask(request).status == ErrorCode.INVALID_COMMAND
