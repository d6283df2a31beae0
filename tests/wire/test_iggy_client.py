"""Iggy's own client against our end of the wire and our catalog, over a socket: it must understand what we say.

The server here is as small as can be: one task for each connection, the catalog in memory, no messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from shmbroker.core import options
from shmbroker.core.catalog import Catalog, Topic
from shmbroker.core.model import Stream
from shmbroker.errors import ErrorCode, ShmbrokerError
from shmbroker.limits import GIB, MIB
from shmbroker.wire import groups, streams, system, topics, users
from shmbroker.wire.codes import Code
from shmbroker.wire.commands import encode_reply
from shmbroker.wire.connection import Incoming, ServerConnection
from shmbroker.wire.frame import PROTOCOL_VERSION, EvictionReason

apache_iggy: Any = pytest.importorskip("apache_iggy")
TIMEOUT_S = 60
NOW_US = 1_700_000_000_000_000


def topic_entry(topic: Topic) -> topics.TopicEntry:
    chosen = topic.options
    return topics.TopicEntry(
        topic.topic_id, topic.created_at_us, len(topic.partitions), chosen.message_expiry_us,
        chosen.compression_algorithm, chosen.max_topic_size, 5 * MIB, 77, topic.name,
        chosen.explicit_values(), chosen.derived_values(),
    )  # fmt: skip


def topic_details(topic: Topic) -> topics.TopicDetails:
    rows = (topics.PartitionEntry(each.partition_id, each.created_at_us, 1, 41, 99, 42) for each in topic.partitions)
    return topics.TopicDetails(topic_entry(topic), tuple(rows))


def stream_entry(stream: Stream) -> streams.StreamEntry:
    return streams.StreamEntry(stream.stream_id, stream.created_at_us, len(stream.topics), 5 * MIB, 77, stream.name)


class Server:
    """Answers requests from a catalog; ``port`` is known once it listens."""

    def __init__(self) -> None:
        self.catalog = Catalog()
        self.port = 0
        self.log_count = 0
        self.seen: list[int] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.ended = asyncio.Semaphore(0)
        self.handlers: dict[int, Callable[[Any], Any]] = {
            Code.PING: lambda _: None,
            Code.LOGOUT: lambda _: None,
            Code.LOGIN: lambda _: users.LoginReply(0, 7, PROTOCOL_VERSION, "0.11.0"),
            Code.GET_CLUSTER_METADATA: lambda _: self.cluster(),
            Code.GET_STATS: lambda _: system.StatsBody(streams_count=3, host_name="host", run_time_us=5_000_000),
            Code.DESCRIBE_OPTIONS: lambda _: system.OptionsCatalogue(options.describe()),
            Code.GET_STREAM: self.get_stream,
            Code.GET_STREAMS: lambda _: [stream_entry(each) for each in self.catalog.streams.values()],
            Code.CREATE_STREAM: self.create_stream,
            Code.UPDATE_STREAM: lambda r: self.change(self.catalog.update_stream(r.stream, r.name)),
            Code.DELETE_STREAM: lambda r: self.change(self.catalog.delete_stream(r.stream)),
            Code.GET_TOPIC: self.get_topic,
            Code.GET_TOPICS: self.get_topics,
            Code.CREATE_TOPIC: self.create_topic,
            Code.UPDATE_TOPIC: lambda r: self.change(self.catalog.update_topic(r.stream, r.topic, r.name, r.options)),
            Code.DELETE_TOPIC: lambda r: self.change(self.catalog.delete_topic(r.stream, r.topic)),
            Code.CREATE_PARTITIONS: self.create_partitions,
            Code.DELETE_PARTITIONS: lambda r: self.change(self.catalog.delete_partitions(r.stream, r.topic, r.count)),
            Code.GET_GROUP: self.get_group,
            Code.GET_GROUPS: self.get_groups,
            Code.CREATE_GROUP: self.create_group,
            Code.DELETE_GROUP: lambda r: self.change(self.catalog.delete_group(r.stream, r.topic, r.group)),
        }

    def cluster(self) -> system.ClusterMetadata:
        return system.ClusterMetadata("single-node", (system.ClusterNode("shmbroker", "127.0.0.1", self.port),))

    def change(self, changes: Any) -> None:
        self.catalog.apply(changes)

    def logs(self, count: int) -> list[int]:
        self.log_count += count
        return list(range(self.log_count - count, self.log_count))

    def create_stream(self, request: streams.CreateStream) -> Any:
        self.change(self.catalog.create_stream(request.name, NOW_US))
        return stream_entry(self.catalog.stream(request.name))

    def get_stream(self, request: streams.GetStream) -> Any:
        found = self.catalog.find_stream(request.stream)
        return found and streams.StreamDetails(stream_entry(found), tuple(map(topic_entry, found.topics.values())))

    def create_topic(self, request: topics.CreateTopic) -> Any:
        self.catalog.check_topic(request.stream, request.name, request.partitions_count, request.options)
        log_ids = self.logs(request.partitions_count)
        self.change(self.catalog.create_topic(request.stream, request.name, log_ids, request.options, NOW_US))
        return topic_details(self.catalog.topic(request.stream, request.name))

    def get_topic(self, request: topics.GetTopic) -> Any:
        found = self.catalog.find_topic(request.stream, request.topic)
        return found and topic_details(found)

    def get_topics(self, request: topics.GetTopics) -> Any:
        found = self.catalog.find_stream(request.stream)
        return topics.TopicList(tuple(map(topic_entry, found.topics.values())) if found else ())

    def create_partitions(self, request: topics.CreatePartitions) -> None:
        self.catalog.check_partitions(request.stream, request.topic, request.count)
        log_ids = self.logs(request.count)
        self.change(self.catalog.create_partitions(request.stream, request.topic, log_ids, NOW_US))

    def group_entry(self, topic: Topic, name: str) -> groups.GroupEntry:
        return groups.GroupEntry(topic.group_ids[name], len(topic.partitions), 0, name)

    def create_group(self, request: groups.CreateGroup) -> Any:
        self.change(self.catalog.create_group(request.stream, request.topic, request.name))
        entry = self.group_entry(self.catalog.topic(request.stream, request.topic), request.name)
        return groups.GroupDetails(entry)

    def get_group(self, request: groups.GetGroup) -> Any:
        topic = self.catalog.topic(request.stream, request.topic)
        return (
            groups.GroupDetails(self.group_entry(topic, str(request.group)))
            if request.group in topic.group_ids
            else None
        )

    def get_groups(self, request: groups.GetGroups) -> Any:
        topic = self.catalog.topic(request.stream, request.topic)
        return [self.group_entry(topic, name) for name in topic.group_ids]

    def answer(self, wire: ServerConnection, incoming: Incoming) -> bytes:
        self.seen.append(incoming.code)
        request = incoming.request
        if isinstance(request, ErrorCode):
            return wire.refusal(incoming, request)
        if isinstance(request, users.Login) and request.password != "iggy":
            return wire.eviction(incoming, EvictionReason.INVALID_CREDENTIALS)
        handler = self.handlers.get(incoming.code)
        if handler is None:
            return wire.refusal(incoming, ErrorCode.FEATURE_UNAVAILABLE)
        try:
            return wire.reply(incoming, encode_reply(handler(request)))
        except ShmbrokerError as error:
            return wire.refusal(incoming, error.number, str(error))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wire = ServerConnection()
        self.writers.append(writer)
        try:
            while data := await reader.read(65_536):
                wire.feed(data)
                while (incoming := wire.next_request()) is not None:
                    assert isinstance(incoming, Incoming), incoming
                    writer.write(self.answer(wire, incoming))
                    await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()
            self.ended.release()

    async def stop(self) -> None:
        """Ends every connection, and waits until the tasks that served them have ended too."""
        for writer in self.writers:
            writer.transport.abort()
        for _ in self.writers:
            await self.ended.acquire()


@asynccontextmanager
async def connected(password: str = "iggy") -> AsyncIterator[tuple[Server, Any]]:
    server = Server()
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listener.sockets[0].getsockname()[1]
    once = apache_iggy.TcpReconnectionConfig(enabled=False)
    client = apache_iggy.IggyClient(apache_iggy.TcpConfig(server_address=f"127.0.0.1:{server.port}", reconnection=once))
    try:
        await client.connect()
        await client.login_user("iggy", password)
        yield server, client
    finally:
        listener.close()
        await server.stop()


def run(scenario: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), TIMEOUT_S))


def test_streams() -> None:
    async def scenario() -> None:
        async with connected() as (server, client):
            await client.create_stream("market")
            await client.create_stream("other")
            found = await client.get_stream("market")
            assert (found.id, found.name, found.topics_count) == (0, "market", 0)
            assert [stream.name for stream in await client.get_streams()] == ["market", "other"]
            await client.update_stream("other", "renamed")
            assert (await client.get_stream(1)).name == "renamed"
            with pytest.raises(RuntimeError, match="already exists"):
                await client.create_stream("market")
            await client.delete_stream("renamed")
            assert await client.get_stream("renamed") is None
            with pytest.raises(RuntimeError, match="was not found"):
                await client.delete_stream("renamed")
            assert {Code.PING, Code.LOGIN, Code.GET_CLUSTER_METADATA} <= set(server.seen)

    run(scenario)


def test_topics_and_their_options() -> None:
    async def scenario() -> None:
        async with connected() as (server, client):
            await client.create_stream("market")
            await client.create_topic("market", "plain", 3)
            await client.create_topic(
                "market", "full", 2, compression_algorithm="gzip",
                message_expiry=apache_iggy.IggyExpiry.ExpireDuration(timedelta(hours=1)),
                max_topic_size=apache_iggy.MaxTopicSize.Custom(5 * GIB),
                segment_size=2 * MIB, durability=apache_iggy.Durability.PERSISTED,
                consumer_offset_durability=apache_iggy.Durability.PERSISTED, messages_required_to_save=7,
                size_of_messages_required_to_save=MIB, preallocate_segments=True,
            )  # fmt: skip
            stored = server.catalog.topic("market", "full").options
            assert (stored.durability, stored.consumer_offset_durability) == ("persisted", "persisted")
            assert (stored.segment_size, stored.messages_required_to_save) == (2 * MIB, 7)
            assert (stored.message_expiry_us, stored.compression_algorithm) == (3600 * 1_000_000, "gzip")
            plain = await client.get_topic("market", "plain")
            assert (plain.id, plain.name, plain.partitions_count) == (0, "plain", 3)
            assert [topic.name for topic in await client.get_topics("market")] == ["plain", "full"]
            assert await client.get_topics("nowhere") == []
            assert await client.get_topic("market", "nowhere") is None
            await client.update_topic("market", "plain", "renamed")
            assert server.catalog.topic("market", "renamed").options.message_expiry_us == options.NEVER
            await client.create_partitions("market", "renamed", 2)
            await client.delete_partitions("market", "renamed", 1)
            assert (await client.get_topic("market", "renamed")).partitions_count == 4
            await client.delete_topic("market", "renamed")
            assert (await client.get_stream("market")).topics_count == 1

    run(scenario)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"enforce_fsync": "true"}, "(?i)unsupported option key"),
        ({"messages_required_to_save": "many"}, "(?i)invalid option value"),
    ],
)
def test_options_that_are_refused(settings: dict[str, str], message: str) -> None:
    async def scenario() -> None:
        async with connected() as (_, client):
            await client.create_stream("market")
            with pytest.raises(RuntimeError, match=message):
                await client.create_topic("market", "trades", 1, options=settings)
            with pytest.raises(RuntimeError, match=r"(?i)partitions"):
                await client.create_topic("market", "trades", 1001)

    run(scenario)


def test_groups_stats_and_the_catalogue_of_options() -> None:
    async def scenario() -> None:
        async with connected() as (_, client):
            await client.create_stream("market")
            await client.create_topic("market", "trades", 2)
            await client.create_consumer_group("market", "trades", "billing")
            group = await client.get_consumer_group("market", "trades", "billing")
            assert (group.id, group.name, group.partitions_count, group.members_count) == (0, "billing", 2, 0)
            assert await client.get_consumer_group("market", "trades", "nobody") is None
            assert len(await client.get_consumer_groups("market", "trades")) == 1
            await client.delete_consumer_group("market", "trades", "billing")
            assert (await client.get_stats()).streams_count == 3
            described = await client.describe_options("topic")
            assert [entry.key for entry in described] == list(options.KEYS)
            await client.ping()
            await client.logout_user()

    run(scenario)


def test_a_wrong_password_is_an_eviction() -> None:
    async def scenario() -> None:
        with pytest.raises(RuntimeError, match=r"(?i)invalid credentials"):
            async with connected("wrong"):
                pass

    run(scenario)
