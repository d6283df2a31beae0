"""The unmodified ``apache-iggy`` client with its HTTP configuration: everything that it can call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import apache_iggy as iggy
import pytest

from .conftest import PASSWORD, USER, Served

Work = Callable[[iggy.IggyClient], Awaitable[None]]
TIMEOUT_S = 60


def run(served: Served, work: Work, *, logged_in: bool = True) -> None:
    async def everything() -> None:
        client = iggy.IggyClient(iggy.HttpConfig(api_url=served.url, retries=0))
        await client.connect()
        if logged_in:
            await client.login_user(USER, PASSWORD)
        await asyncio.wait_for(work(client), TIMEOUT_S)

    asyncio.run(everything())


def test_streams_and_topics(served: Served) -> None:
    async def work(client: iggy.IggyClient) -> None:
        await client.ping()
        await client.create_stream("orders")
        assert await client.get_stream("nobody") is None
        await client.create_topic("orders", "t", 2, durability=iggy.Durability.PERSISTED)
        topic = await client.get_topic("orders", "t")
        assert topic is not None
        assert (topic.name, topic.partitions_count, len(topic.partitions)) == ("t", 2, 2)
        assert "persisted" in repr(topic.options)
        assert [each.name for each in await client.get_topics("orders")] == ["t"]
        assert "orders" in [each.name for each in await client.get_streams()]
        await client.create_partitions("orders", "t", 1)
        await client.delete_partitions("orders", "t", 2)
        await client.update_topic("orders", "t", "renamed")
        await client.update_stream("orders", "orders-2")
        renamed = await client.get_topic("orders-2", "renamed")
        assert renamed is not None
        assert renamed.partitions_count == 1
        await client.purge_topic("orders-2", "renamed")
        await client.purge_stream("orders-2")
        await client.delete_topic("orders-2", "renamed")
        await client.delete_stream("orders-2")
        assert await client.get_stream("orders-2") is None

    run(served, work)


def test_messages_with_headers_of_every_partitioning(served: Served) -> None:
    async def work(client: iggy.IggyClient) -> None:
        await client.create_stream("mail")
        await client.create_topic("mail", "t", 1)
        first = iggy.SendMessage(b"\x00\xff", user_headers={"kind": "letter", "pages": 5, "ratio": 0.5}, id=77)
        for partitioning in (0, iggy.Partitioning.balanced(), iggy.Partitioning.messages_key(b"key")):
            reply = await client.send_messages("mail", "t", partitioning, [first, iggy.SendMessage("two")])
            assert len(reply.confirmations) == 1
        polled = await client.poll_messages(
            "mail", "t", consumer=iggy.Consumer.Single(9), partition_id=0,
            polling_strategy=iggy.PollingStrategy.First(), count=100, auto_commit=True,
        )  # fmt: skip
        assert [message.payload() for message in polled] == [b"\x00\xff", b"two"] * 3
        assert [message.offset() for message in polled] == list(range(6))
        assert polled[0].id() == 77
        assert "letter" in repr(polled[0].user_headers())
        assert len(polled[0].user_headers()) == 3
        with pytest.raises(RuntimeError, match="Feature is unavailable"):
            await client.consumer_group("g", "mail", "t")

    run(served, work)


def test_users_groups_and_the_broker(served: Served) -> None:
    async def work(client: iggy.IggyClient) -> None:
        await client.create_stream("staff")
        await client.create_topic("staff", "t", 1)
        await client.create_consumer_group("staff", "t", "g")
        assert [group.name for group in await client.get_consumer_groups("staff", "t")] == ["g"]
        assert (await client.get_consumer_group("staff", "t", "g")).name == "g"
        await client.delete_consumer_group("staff", "t", "g")
        await client.create_user("alice", "secret-1")
        permissions = iggy.Permissions(
            iggy.GlobalPermissions(read_streams=True), {0: iggy.StreamPermissions(send_messages=True)}
        )
        await client.update_permissions("alice", permissions)
        assert (await client.get_user("alice")).permissions == permissions
        await client.update_user("alice", username="bertha")
        await client.change_password("bertha", "secret-1", "secret-2")
        assert "bertha" in [user.username for user in await client.get_users()]
        await client.login_user("bertha", "secret-2")
        with pytest.raises(RuntimeError, match="Unauthorized"):
            await client.create_stream("forbidden")
        await client.login_user(USER, PASSWORD)
        await client.delete_user("bertha")
        assert (await client.get_stats()).streams_count >= 1
        assert "durability" in [option.key for option in await client.describe_options("topic")]
        await client.logout_user()
        with pytest.raises(RuntimeError, match="Unauthenticated"):
            await client.get_streams()

    run(served, work)


def test_the_texts_of_refusals(served: Served) -> None:
    async def work(client: iggy.IggyClient) -> None:
        with pytest.raises(RuntimeError, match="Unauthenticated"):
            await client.get_streams()
        with pytest.raises(RuntimeError, match="invalid_credentials"):
            await client.login_user(USER, "wrong")

    run(served, work, logged_in=False)
