"""Consumer groups over TCP: the published client as a member, and the fences by hand."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from apache_iggy import Consumer, IggyClient, PollingStrategy

import shmbroker
from shmbroker.client.embedded import Embedded
from shmbroker.errors import ErrorCode
from shmbroker.wire import groups, messages, offsets, users
from shmbroker.wire.frame import HEADER_SIZE, Eviction, EvictionReason, decode_reply_header
from shmbroker.wire.messages import PARTITION_RESYNC, POLL_NEXT
from shmbroker.wire.primitives import CONSUMER_GROUP
from shmbroker.wire.primitives import Consumer as Who
from tests.iggy.conftest import ROOT, WAIT_S, RawClient

Run = Callable[..., Any]
Raw = Callable[..., RawClient]
Eventually = Callable[..., Any]
GROUP = Who(CONSUMER_GROUP, "g")
WHERE = ("s", "t", "g")


def make_topic(local: Any, partitions: int = 2, messages_each: int = 10) -> None:
    local.create_stream("s")
    local.create_topic("s", "t", partitions=partitions)
    with local.producer("s", "t") as producer:
        for partition in range(partitions):
            producer.send([b"%d/%d" % (partition, number) for number in range(messages_each)], partition=partition)


def poll(client: RawClient, partition: int | None, *, auto_commit: bool = False, count: int = 100) -> Any:
    answer = client.ask(messages.PollMessages(GROUP, "s", "t", partition, POLL_NEXT, 0, count, auto_commit))
    assert answer.status == 0
    return answer.value


def store(client: RawClient, partition: int, offset: int) -> int:
    return client.ask(offsets.StoreConsumerOffset(GROUP, "s", "t", partition, offset)).status


def sync(client: RawClient) -> tuple[int, ...] | None:
    assignment = client.ask(groups.SyncGroup(*WHERE)).value
    return None if assignment is None else assignment.partition_ids


def test_groups_are_made_shown_and_removed_and_refusals_have_their_text(run: Run, local: Any) -> None:
    make_topic(local)

    async def program(client: IggyClient) -> None:
        async def refused(call: Any, text: str) -> None:
            with pytest.raises(RuntimeError) as caught:
                await call
            assert text in str(caught.value)

        await client.create_consumer_group("s", "t", "g")
        await refused(client.create_consumer_group("s", "t", "g"), "already exists")
        await refused(client.create_consumer_group("s", "none", "g"), "Topic with ID")
        await refused(client.create_consumer_group("none", "t", "g"), "Stream with ID")
        await refused(client.join_consumer_group("s", "t", "none"), "Consumer group with ID")
        await refused(client.delete_consumer_group("s", "t", "none"), "Consumer group with ID")
        await refused(client.leave_consumer_group("s", "t", "g"), "Consumer group member")
        await refused(client.get_consumer_group("s", "none", "g"), "Topic with ID")
        await refused(client.get_consumer_groups("none", "t"), "Stream with ID")
        assert await client.get_consumer_group("s", "t", "none") is None
        await client.create_consumer_group("s", "t", "h")
        found = await client.get_consumer_groups("s", "t")
        assert [(each.id, each.name, each.partitions_count, each.members_count) for each in found] == [
            (0, "g", 2, 0),
            (1, "h", 2, 0),
        ]
        await client.join_consumer_group("s", "t", "g")
        await client.join_consumer_group("s", "t", 0)
        group = await client.get_consumer_group("s", "t", "g")
        assert group is not None
        assert [(each.partitions_count, each.partitions) for each in group.members] == [(2, [0, 1])]
        await client.leave_consumer_group("s", "t", 0)
        await client.delete_consumer_group("s", "t", "g")
        assert await client.get_consumer_group("s", "t", "g") is None

    run(program)


def test_a_group_poll_without_a_partition_goes_through_all_of_the_members(run: Run, local: Any) -> None:
    make_topic(local, 3)

    async def program(client: IggyClient) -> None:
        await client.create_consumer_group("s", "t", "g")
        who = Consumer.Group("g")
        await client.join_consumer_group("s", "t", "g")
        got: list[bytes] = []
        for _ in range(12):
            found = await client.poll_messages(
                "s", "t", consumer=who, polling_strategy=PollingStrategy.Next(), count=4, auto_commit=True
            )
            got += [message.payload() for message in found]
        assert sorted(got) == sorted(b"%d/%d" % (partition, number) for partition in range(3) for number in range(10))

    run(program)


def test_only_the_owner_polls_and_stores(raw: Raw, local: Any) -> None:
    make_topic(local)
    local.create_group("s", "t", "g")
    first, second, stranger = raw(), raw(), raw()
    assert store(stranger, 0, 3) == 0, "of a group at rest"
    assert poll(stranger, 0).partition_id == PARTITION_RESYNC
    assert sync(stranger) is None
    for client in (first, second):
        assert client.ask(groups.JoinGroup(*WHERE)).status == 0
    mine, others = sync(first), sync(second)
    assert mine is not None
    assert others is not None
    assert sorted(mine + others) == [0, 1]
    (own,), (other,) = mine, others
    assert poll(first, own).partition_id == own
    assert poll(first, other).partition_id == PARTITION_RESYNC
    assert store(first, own, 2) == 0
    for client, partition in ((first, other), (stranger, own)):
        assert store(client, partition, 2) == ErrorCode.GROUP_PARTITION_NOT_OWNED
        delete = offsets.DeleteConsumerOffset(GROUP, "s", "t", partition)
        assert client.ask(delete).status == ErrorCode.GROUP_PARTITION_NOT_OWNED
    wrong = Who(CONSUMER_GROUP, "none")
    answer = first.ask(offsets.StoreConsumerOffset(wrong, "s", "t", 0, 1))
    assert answer.status in (ErrorCode.GROUP_NOT_FOUND, ErrorCode.RESOURCE_NOT_FOUND)


def test_what_is_being_worked_on_moves_when_it_is_committed(raw: Raw, local: Any) -> None:
    make_topic(local)
    local.create_group("s", "t", "g")
    first, second = raw(), raw()
    first.ask(groups.JoinGroup(*WHERE))
    assert sync(first) == (0, 1)
    assert [poll(first, partition).count for partition in (0, 1)] == [10, 10]
    second.ask(groups.JoinGroup(*WHERE))
    kept = sync(first)
    assert kept is not None
    assert len(kept) == 1
    assert sync(second) == ()
    going = 1 - kept[0]
    assert poll(first, going).partition_id == PARTITION_RESYNC
    assert store(first, going, 5) == 0
    assert sync(second) == ()
    assert store(first, going, 9) == 0
    assert sync(second) == (going,)
    assert store(first, going, 9) == ErrorCode.GROUP_PARTITION_NOT_OWNED
    assert poll(second, going).count == 0


@pytest.mark.parametrize("how", ["leave", "logout", "disconnect", "delete"])
def test_a_membership_ends(raw: Raw, local: Any, how: str, eventually: Eventually) -> None:
    make_topic(local)
    local.create_group("s", "t", "g")
    first, second = raw(), raw()
    for client in (first, second):
        client.ask(groups.JoinGroup(*WHERE))
    if how == "leave":
        assert first.ask(groups.LeaveGroup(*WHERE)).status == 0
        assert first.ask(groups.LeaveGroup(*WHERE)).status == ErrorCode.GROUP_MEMBER_NOT_FOUND
    elif how == "logout":
        assert first.ask(users.Logout()).status == 0
    elif how == "disconnect":
        first.close()
    else:
        local.delete_group("s", "t", "g")
        assert sync(second) is None
        local.create_group("s", "t", "g")
        assert sync(second) is None
        return
    eventually(lambda: sync(second) == (0, 1), "the other member to get everything")
    assert list(local.get_group("s", "t", "g").members.values()) == [(0, 1)]


class IggyMember:
    """A process of tests.iggy.group_member. ``got``: the payloads that its program consumed, in order."""

    def __init__(self, address: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.iggy.group_member", address],
            stdout=subprocess.PIPE,
        )
        self.got: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith(b"\n"):
                self.got.append(json.loads(line))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def member(broker: Embedded) -> Iterator[Callable[[], IggyMember]]:
    started: list[IggyMember] = []

    def start() -> IggyMember:
        started.append(IggyMember(broker.tcp_address))
        return started[-1]

    yield start
    for each in started:
        each.kill()


def test_members_of_the_published_client_fail_over_and_local_ones_join_them(
    broker: Embedded, local: Any, member: Callable[[], IggyMember], eventually: Eventually
) -> None:
    make_topic(local, 4, 100)
    first, second = member(), member()
    eventually(lambda: first.got, "messages for the first", timeout_s=WAIT_S)
    eventually(lambda: len(local.get_group("s", "t", "g").members) == 2, "two members", timeout_s=WAIT_S)
    eventually(lambda: len(first.got) + len(second.got) >= 400, "all messages", timeout_s=WAIT_S)
    shares = local.get_group("s", "t", "g").members.values
    eventually(lambda: sorted(map(len, shares())) == [2, 2], "equal shares", timeout_s=60)
    with local.producer("s", "t") as producer:
        for partition in range(4):
            producer.send([b"late %d/%d" % (partition, number) for number in range(50)], partition=partition)
        eventually(lambda: len(first.got) + len(second.got) >= 600, "what came later", timeout_s=WAIT_S)
        first.kill()
        with local.consumer("s", "t", group="g", auto_commit=True) as consumer:
            for partition in range(4):
                producer.send([b"last %d/%d" % (partition, number) for number in range(50)], partition=partition)
            mine: list[str] = []

            def everything() -> bool:
                for batch in consumer.poll(100, timeout=0.1):
                    mine.extend(payload.decode() for payload in batch.payloads())
                last = [text for text in first.got + second.got + mine if text.startswith("last")]
                return len(set(last)) == 200

            eventually(everything, "what came last", timeout_s=60)
            eventually(lambda: consumer.poll() == [] and len(consumer.partitions) == 2, "equal shares", timeout_s=60)
    counted = Counter(first.got + second.got + mine)
    assert len(counted) == 800
    assert not {text: count for text, count in counted.items() if count > 1 and text not in first.got}


def test_a_member_of_the_published_client_goes_on_after_the_broker_was_killed(
    broker: Embedded, member: Callable[[], IggyMember], eventually: Eventually
) -> None:
    with broker.connect() as local:
        make_topic(local, 2, 50)
        reader = member()
        eventually(lambda: len(reader.got) == 100, "what was there", timeout_s=WAIT_S)
        eventually(
            lambda: [local.get_consumer_offset("s", "t", part, group="g") for part in (0, 1)] == [49, 49],
            "the last commits",
            timeout_s=WAIT_S,
        )
    killed = broker.pid
    os.kill(killed, signal.SIGKILL)  # it is started again by whoever embeds it
    eventually(lambda: broker.pid not in (killed, 0), "the next broker", timeout_s=WAIT_S)
    with broker.connect() as local, local.producer("s", "t") as producer:
        for partition in (0, 1):
            producer.send([b"new %d/%d" % (partition, number) for number in range(50)], partition=partition)
        eventually(lambda: len(reader.got) >= 200, "what came after", timeout_s=60)
        assert len(reader.got) == len(set(reader.got)) == 200
        assert list(local.get_group("s", "t", "g").members.values()) == [(0, 1)]


def test_silent_members_are_out_of_their_groups_and_others_are_left_alone(
    tmp_path: Path, eventually: Eventually
) -> None:
    """The least heartbeat that can be set: 10 s, so 12 s of silence."""
    environment = {**ROOT, "SHMBROKER_HEARTBEAT_INTERVAL": "10s"}
    data = tmp_path / "data"
    with (
        shmbroker.embedded(data, tcp="127.0.0.1:0", workers=1, environment=environment) as broker,
        broker.connect() as local,
        tempfile.TemporaryFile() as spoken,
    ):
        make_topic(local, 3)
        local.create_group("s", "t", "g")
        silent, talking, idle = (RawClient(broker.tcp_address) for _ in range(3))
        stopped = subprocess.Popen(
            [sys.executable, "-m", "tests.processes.group_member", str(data), "1"],
            stdin=subprocess.PIPE,
            stdout=spoken,
        )
        try:
            stored = lambda: [local.get_consumer_offset("s", "t", part, group="g") for part in range(3)]  # noqa: E731
            eventually(lambda: stored() == [9, 9, 9], "the local member to have read everything")
            stopped.send_signal(signal.SIGSTOP)
            started = time.monotonic()
            for client in (silent, talking, idle):
                client.login()
            for client in (silent, talking):
                client.ask(groups.JoinGroup(*WHERE))
            assert len(local.get_group("s", "t", "g").members) == 3
            eventually(lambda: sync(talking) == (0, 1, 2), "all partitions", timeout_s=60)
            assert time.monotonic() - started > 11
            eviction = decode_reply_header(silent.socket.recv(HEADER_SIZE))
            assert isinstance(eviction, Eviction)
            assert eviction.reason == EvictionReason.STALE_CLIENT
            assert silent.is_closed()
            assert idle.ask(groups.GetGroups("s", "t")).status == 0
            with local.producer("s", "t") as producer:
                for partition in range(3):
                    producer.send([b"x"] * 5, partition=partition)
                    assert poll(talking, partition).count == 5
                    assert store(talking, partition, 14) == 0
                stopped.send_signal(signal.SIGCONT)
                eventually(lambda: len(local.get_group("s", "t", "g").members) == 2, "the local one to join again")
                for partition in range(3):
                    producer.send([b"y"], partition=partition)
                assert talking.ask(groups.LeaveGroup(*WHERE)).status == 0
            eventually(lambda: stored() == [15, 15, 15], "what came last to be read by the one that was stopped")
            lines = [json.loads(line) for line in os.pread(spoken.fileno(), 1 << 20, 0).splitlines()]
            firsts = sorted((line["partition"], line["first"]) for line in lines if line["what"] == "got")
            expected = [(partition, offset) for partition in range(3) for offset in (*range(10), 15)]
            assert firsts == expected, "it read nothing beside the owner, though it was stopped in the middle of a wait"
        finally:
            stopped.kill()
            stopped.wait(WAIT_S)
            assert stopped.stdin is not None
            stopped.stdin.close()
            for client in (silent, talking, idle):
                client.close()
