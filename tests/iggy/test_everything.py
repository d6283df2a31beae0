"""All that the published client can call, on a broker that is killed with everything of it and started again.

The broker is a front of its own that nobody starts again but the test, at a fixed port, as a server has. Each method of
the client's three classes is called before the death and after it, by ``Noted``, which knows what has been called.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any

import pytest
from apache_iggy import (
    AutoCommit,
    AutoCommitAfter,
    AutoLogin,
    BackgroundProducerConfig,
    Consumer,
    Durability,
    GlobalPermissions,
    IggyClient,
    IggyConsumer,
    IggyExpiry,
    IggyProducer,
    MaxTopicSize,
    Partitioning,
    Permissions,
    PollingStrategy,
    ReceiveMessage,
    SendMessage,
    TcpConfig,
    TcpReconnectionConfig,
    UserStatus,
)

from shmbroker.wire.system import GetMe
from tests.iggy.conftest import ROOT, WAIT_S
from tests.processes.conftest import BrokerProcess, Start, data, start

__all__ = ["data", "start"]
"""Fixtures of other tests."""
USER, PASSWORD = ROOT.values()
SOON = timedelta(milliseconds=50)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def serve(start: Start, port: int) -> BrokerProcess:
    return start("--workers=2", f"--tcp=127.0.0.1:{port}", environment=ROOT).ready()


def within(coroutine: Coroutine[Any, Any, Any], timeout_s: float = WAIT_S) -> Any:
    async def whole() -> Any:
        return await asyncio.wait_for(coroutine, timeout_s)

    return asyncio.run(whole())


def lasting(port: int, automatic: bool) -> IggyClient:
    """A client that connects and logs in again by itself, as long as it takes."""
    reconnection = TcpReconnectionConfig(enabled=True, interval=SOON, reestablish_after=SOON)
    login = AutoLogin.username_password(USER, PASSWORD) if automatic else AutoLogin.disabled()
    return IggyClient(TcpConfig(server_address=f"127.0.0.1:{port}", auto_login=login, reconnection=reconnection))


class Noted:
    """Passes calls on, and notes the names."""

    def __init__(self, target: Any, called: set[tuple[type, str]]) -> None:
        self._target, self._called = target, called

    def __getattr__(self, name: str) -> Any:
        self._called.add((type(self._target), name))
        return getattr(self._target, name)


def methods() -> set[tuple[type, str]]:
    classes = (IggyClient, IggyConsumer, IggyProducer)
    return {(kind, name) for kind in classes for name in dir(kind) if not name.startswith("_")}


def texts(messages: list[ReceiveMessage]) -> list[str]:
    return [message.payload().decode() for message in messages]


async def poll(client: Any, stream: str, strategy: PollingStrategy, partition: int = 0, **how: Any) -> list[Any]:
    how = {"consumer": Consumer.Single("reader"), "count": 100, "auto_commit": False, **how}
    found: list[Any] = await client.poll_messages(
        stream, "topic", polling_strategy=strategy, partition_id=partition, **how
    )
    return found


async def catalog(client: Any, stream: str, durability: Durability) -> None:
    """Streams, topics and partitions; leaves ``stream`` with ``topic`` of two partitions, and a group."""
    await client.create_stream(f"{stream} first name")
    await client.update_stream(f"{stream} first name", stream)
    found = await client.get_stream(stream)
    assert (found.name, found.topics_count, found.messages_count) == (stream, 0, 0)
    assert stream in [each.name for each in await client.get_streams()]
    await client.create_topic(
        stream, "a topic", 1, compression_algorithm="none", message_expiry=IggyExpiry.NeverExpire(),
        max_topic_size=MaxTopicSize.Unlimited(), segment_size=64 * 1024 * 1024, durability=durability,
        consumer_offset_durability=durability, messages_required_to_save=1_000_000,
        size_of_messages_required_to_save=64 * 1024 * 1024, preallocate_segments=False,
    )  # fmt: skip
    await client.update_topic(stream, "a topic", "topic", message_expiry=IggyExpiry.ExpireDuration(timedelta(hours=1)))
    await client.create_partitions(stream, "topic", 2)
    await client.delete_partitions(stream, "topic", 1)
    topic = await client.get_topic(stream, "topic")
    assert (topic.name, topic.partitions_count, topic.message_expiry.duration) == ("topic", 2, timedelta(hours=1))
    assert topic.options.to_scalar_dict()["durability"] == durability.value
    await client.create_topic(stream, "gone", 1)
    assert [each.name for each in await client.get_topics(stream)] == ["topic", "gone"]
    await client.delete_topic(stream, "gone")
    await client.create_stream(f"{stream} gone")
    await client.delete_stream(f"{stream} gone")
    assert await client.get_stream(f"{stream} gone") is None


async def messages(client: Any, stream: str, called: set[tuple[type, str]]) -> None:
    """Both ways to send, and to poll; purges; leaves 20 messages in partition 0 and 10 in partition 1."""
    await client.send_messages(stream, "topic", 0, [SendMessage("to be purged")])
    await client.purge_topic(stream, "topic")
    await client.send_messages(stream, "topic", 1, [SendMessage("to be purged")])
    await client.purge_stream(stream)
    answer = await client.send_messages(stream, "topic", 0, [SendMessage(f"{number}") for number in range(10)])
    assert answer.confirmations[0].base_offset == 0
    made = await client.producer(stream, "topic", partitioning=Partitioning.partition_id(0))
    async with made:
        producer = Noted(made, called)
        await producer.send([SendMessage(f"{number}") for number in range(10, 18)])
        await producer.send_one(SendMessage("18"))
        await producer.send_with_partitioning([SendMessage("0"), SendMessage("1")], Partitioning.partition_id(1))
        await producer.send_to(stream, "topic", [SendMessage("19")], Partitioning.partition_id(0))
    background = Noted(
        await client.producer(
            stream, "topic", partitioning=Partitioning.partition_id(1),
            mode=BackgroundProducerConfig(linger_time=timedelta(milliseconds=1)),
        ),
        called,
    )  # fmt: skip
    await background.send([SendMessage(f"{number}") for number in range(2, 10)])
    await background.shutdown()
    assert texts(await poll(client, stream, PollingStrategy.First())) == [f"{number}" for number in range(20)]
    assert texts(await poll(client, stream, PollingStrategy.Last(), 1, count=3)) == ["7", "8", "9"]
    assert len(await poll(client, stream, PollingStrategy.Next(), count=5, auto_commit=True)) == 5


async def group(client: Any, stream: str, called: set[tuple[type, str]]) -> None:
    """A group by hand, and one that the client runs; leaves partition 0 stored to its end, and partition 1 not."""
    await client.create_consumer_group(stream, "topic", "by hand")
    await client.join_consumer_group(stream, "topic", "by hand")
    assert (await client.get_consumer_group(stream, "topic", "by hand")).members[0].partitions == [0, 1]
    await client.leave_consumer_group(stream, "topic", "by hand")
    await client.delete_consumer_group(stream, "topic", "by hand")
    made = await client.consumer_group(
        "group", stream, "topic", polling_strategy=PollingStrategy.Next(), batch_length=10, poll_interval=SOON / 10,
        auto_commit=AutoCommit.After(AutoCommitAfter.ConsumingEachMessage()),
    )  # fmt: skip
    consumer = Noted(made, called)
    assert (consumer.name(), consumer.stream(), consumer.topic()) == ("group", stream, "topic")
    taken: list[tuple[int, str]] = []
    enough = asyncio.Event()

    async def take(message: ReceiveMessage) -> None:
        taken.append((message.partition_id(), message.payload().decode()))
        if len(taken) == 30:
            enough.set()

    await consumer.consume_messages(take, enough)
    expected = [(0, f"{number}") for number in range(20)] + [(1, f"{number}") for number in range(10)]
    assert sorted(taken) == sorted(expected)
    assert consumer.partition_id() in (0, 1)
    assert consumer.get_last_consumed_offset(0) == 19
    await consumer.store_offset(9, 1)
    assert consumer.get_last_stored_offset(1) == 9
    await consumer.delete_offset(1)
    await client.send_messages(stream, "topic", 0, [SendMessage("20")])
    async for message in consumer.iter_messages():
        if message.payload() == b"20":
            break
    await consumer.store_offset(20, 0)
    assert [each.name for each in await client.get_consumer_groups(stream, "topic")] == ["group"]


async def users(client: Any, name: str, port: int) -> None:
    """Leaves the user ``name``, who may read streams."""
    await client.create_user(f"{name} gone", "secret")
    await client.delete_user(f"{name} gone")
    assert await client.get_user(f"{name} gone") is None
    await client.create_user(f"{name} new", "secret", UserStatus.Inactive)
    await client.update_user(f"{name} new", name, UserStatus.Active)
    await client.update_permissions(name, Permissions(GlobalPermissions(read_streams=True)))
    await client.change_password(name, "secret", "another secret")
    assert name in [user.username for user in await client.get_users()]
    await client.login_user(name, "another secret")
    assert await client.get_streams() is not None
    await client.logout_user()
    await client.login_user(USER, PASSWORD)


async def everything(client: Any, life: str, durability: Durability, port: int, called: set[tuple[type, str]]) -> None:
    await catalog(client, life, durability)
    await messages(client, life, called)
    await group(client, life, called)
    await users(client, f"user {life}", port)
    assert (await client.get_stats()).messages_count >= 31
    assert "durability" in [option.key for option in await client.describe_options("topic")]
    await client.ping()
    assert await client.send_binary_request(int(GetMe.CODE), b"")


async def left_behind(client: Any, life: str) -> None:
    """What ``everything`` of a broker that was killed has left is there, and groups go on behind what they stored."""
    stream = await client.get_stream(life)
    assert [(topic.name, topic.partitions_count) for topic in stream.topics] == [("topic", 2)]
    found = texts(await poll(client, life, PollingStrategy.First()))
    assert found == [f"{number}" for number in range(21)]
    assert texts(await poll(client, life, PollingStrategy.First(), 1)) == [f"{number}" for number in range(10)]
    assert texts(await poll(client, life, PollingStrategy.Next())) == found[5:], "after the automatic commit"
    group = Consumer.Group("group")
    await client.join_consumer_group(life, "topic", "group")
    assert await poll(client, life, PollingStrategy.Next(), 0, consumer=group) == []
    assert len(await poll(client, life, PollingStrategy.Next(), 1, consumer=group)) == 10, "what was deleted stays so"
    await client.leave_consumer_group(life, "topic", "group")
    user = await client.get_user(f"user {life}")
    assert user.permissions.global_permissions.read_streams


@pytest.mark.parametrize("durability", [Durability.REPLICATED, Durability.PERSISTED], ids=lambda each: each.value)
def test_everything_that_the_client_can_call_twice_with_a_sigkill_between(start: Start, durability: Durability) -> None:
    port = free_port()
    broker = serve(start, port)
    lives = ("one", "two", "three")

    async def run(index: int) -> None:
        called: set[tuple[type, str]] = set()
        first = Noted(IggyClient.from_connection_string(f"iggy://{USER}:{PASSWORD}@127.0.0.1:{port}"), called)
        called.add((IggyClient, "from_connection_string"))
        await first.connect()
        client = Noted(IggyClient(f"127.0.0.1:{port}"), called)
        await client.connect()
        await client.login_user(USER, PASSWORD)
        for life in lives[:index]:
            await left_behind(client, life)
        await everything(client, lives[index], durability, port, called)
        assert called == methods()

    within(run(0), 60)
    for index in (1, 2):
        broker.kill_everything()
        broker = serve(start, port)
        within(run(index), 60)
    assert broker.stop() == 0, broker.said()


@pytest.mark.parametrize("automatic", [True, False])
def test_a_client_connects_and_logs_in_again_by_itself(start: Start, automatic: bool) -> None:
    """One client object over two deaths, with credentials given beforehand or by a login. A poll is repeated by the
    client; a send fails, since nobody knows what became of it, and the next one goes through."""
    port = free_port()
    broker = serve(start, port)
    client = lasting(port, automatic)

    async def kill_and_start(broker: BrokerProcess) -> BrokerProcess:
        broker.kill_everything()
        return await asyncio.to_thread(serve, start, port)

    async def send(text: str) -> None:
        await client.send_messages("stream", "topic", 0, [SendMessage(text)])

    async def program(broker: BrokerProcess) -> BrokerProcess:
        await client.connect()
        if not automatic:
            await client.login_user(USER, PASSWORD)
        await client.create_stream("stream")
        await client.create_topic("stream", "topic", 1)
        await send("before")
        broker = await kill_and_start(broker)
        assert texts(await poll(client, "stream", PollingStrategy.First())) == ["before"]
        await send("between")
        broker = await kill_and_start(broker)
        with pytest.raises(RuntimeError, match=r"^Disconnected$"):
            await send("lost")
        await send("after")
        assert texts(await poll(client, "stream", PollingStrategy.First())) == ["before", "between", "after"]
        return broker

    broker = within(program(broker), 60)
    assert broker.stop() == 0, broker.said()


def test_a_producer_of_the_client_sends_again_by_itself(start: Start) -> None:
    port = free_port()
    broker = serve(start, port)
    client = lasting(port, True)

    async def program(broker: BrokerProcess) -> BrokerProcess:
        await client.connect()
        made = await client.producer(
            "stream", "topic", partitioning=Partitioning.partition_id(0), send_retries=20, send_retry_interval=SOON
        )
        async with made as producer:
            await producer.send_one(SendMessage("before"))
            broker.kill_everything()
            broker = await asyncio.to_thread(serve, start, port)
            await producer.send_one(SendMessage("after"))
        assert texts(await poll(client, "stream", PollingStrategy.First())) == ["before", "after"]
        return broker

    broker = within(program(broker), 60)
    assert broker.stop() == 0, broker.said()
