"""The numbers of refusals as the published client says them. Those of users are in test_users, of groups in
test_groups, of damaged batches in test_failures; each row here is one provoked by a call, or by a command's body where
the client has no call that reaches it.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from apache_iggy import Consumer, IggyClient, MaxTopicSize, PollingStrategy, SendMessage

import shmbroker
from shmbroker.core.options import OptionValue
from shmbroker.errors import ErrorCode
from shmbroker.front.catalog_store import FILE_NAME
from shmbroker.limits import (
    CONSUMER_OFFSETS_MAX,
    DEDUPLICATION_WINDOW,
    OPTIONS_SIZE_MAX,
    TOPIC_COUNT_PER_STREAM_MAX,
    U32_MAX,
)
from shmbroker.wire import groups, messages, offsets, streams, topics
from shmbroker.wire.primitives import Consumer as Who
from tests.iggy.batches import wire_batch
from tests.iggy.conftest import ROOT, Program, RawClient, run_program

Run = Callable[[Program], Any]
Raw = Callable[..., RawClient]
GROUP = Who(2, "g")
ONE = Who(1, 1)
TEXT = 2
"""The kind of an option's value that is text."""


class Garbage:
    """A command with a body that is none."""

    def __init__(self, code: int, body: bytes) -> None:
        self.CODE, self.body = code, body

    def encode(self) -> bytes:
        return self.body


def nameless(request: Any) -> Garbage:
    """The request, whose body ends in a name of one letter, without it: what no client sends, for it looks first."""
    return Garbage(int(request.CODE), request.encode()[:-2] + b"\0")


def asked(request: Any) -> Callable[[IggyClient], Any]:
    body = request.encode()
    return lambda client: client.send_binary_request(int(request.CODE), body)


def sent(kind: messages.Partitioning, count: int, batch: bytes) -> Callable[[IggyClient], Any]:
    return asked(messages.SendMessages("s", "t", kind, count, batch))


def polled(stream: str, topic: str, partition: int) -> Callable[[IggyClient], Any]:
    return lambda client: client.poll_messages(
        stream, topic, consumer=Consumer.Single(1), polling_strategy=PollingStrategy.First(), count=1,
        auto_commit=False, partition_id=partition,
    )  # fmt: skip


def options_of(size: int) -> tuple[OptionValue, ...]:
    return tuple(OptionValue(f"key {number:05}", TEXT, b"x" * 200) for number in range(size // 200))


TO_0 = messages.Partitioning.partition(0)
CASES: list[tuple[int, str, Callable[[IggyClient], Any]]] = [
    (3, "Invalid command", asked(Garbage(9999, b""))),
    (3, "Invalid command", asked(Garbage(topics.CreateTopic.CODE, b"\x01"))),
    (20, "Resource with key", lambda client: client.delete_user("nobody")),
    (1009, "Stream with ID", lambda client: client.delete_stream("none")),
    (1012, "Stream with name", lambda client: client.create_stream("s")),
    (3, "Invalid command", asked(nameless(streams.CreateStream("x")))),
    (1019, "max topic size", lambda client: client.create_topic("s", "new", 1, max_topic_size=MaxTopicSize.Custom(1))),
    (2010, "Topic with ID", lambda client: client.delete_topic("s", "none")),
    (2010, "Topic with ID", lambda client: client.create_partitions("s", "none", 1)),
    (2013, "Topic with name", lambda client: client.create_topic("s", "t", 1)),
    (3, "Invalid command", asked(nameless(topics.CreateTopic("s", 1, "x")))),
    (2015, "Too many partitions", asked(topics.CreateTopic("s", 1001, "new"))),
    (2019, "Invalid partitions count", lambda client: client.delete_partitions("s", "t", 5)),
    (3007, "Partition with ID", polled("s", "t", 7)),
    (3007, "Partition with ID", asked(topics.DeleteSegments("s", "t", 7, 1))),
    (3021, "Consumer offset for consumer", asked(offsets.DeleteConsumerOffset(ONE, "s", "t", 0))),
    (4009, "Invalid messages count", lambda client: client.send_messages("s", "t", 0, [])),
    (4009, "Invalid messages count", sent(TO_0, 0, wire_batch([b"m"]))),
    (4028, "Invalid key value length", sent(messages.Partitioning(3, b""), 1, wire_batch([b"m"]))),
    (4041, "Unsupported option key", lambda client: client.create_topic("s", "new", 1, options={"enforce_fsync": "1"})),
    (4041, "Unsupported option key", lambda client: client.update_topic("s", "t", "t", options={"segment_size": "1"})),
    (4042, "Invalid option value", lambda client: client.create_topic("s", "n", 1, options={"durability": "maybe"})),
    (4043, "Options block", asked(topics.CreateTopic("s", 1, "new", options_of(2 * OPTIONS_SIZE_MAX)))),
    (4100, "Invalid offset", asked(offsets.StoreConsumerOffset(ONE, "s", "t", 0, 10**9))),
    (5000, "Consumer group with ID", lambda client: client.delete_consumer_group("s", "t", "none")),
    (5004, "Consumer group with name", lambda client: client.create_consumer_group("s", "t", "g")),
    (3, "Invalid command", asked(nameless(groups.CreateGroup("s", "t", "x")))),
    (5006, "Consumer group member", lambda client: client.leave_consumer_group("s", "t", "g")),
    (5009, "does not own partition: 0", asked(offsets.StoreConsumerOffset(GROUP, "s", "t", 0, 0))),
]


def test_each_number_as_the_client_says_it(run: Run, raw: Raw) -> None:
    async def program(client: IggyClient) -> None:
        await client.create_stream("s")
        await client.create_topic("s", "t", 2)
        await client.create_consumer_group("s", "t", "g")
        await client.send_messages("s", "t", 0, [SendMessage("m")])
        assert raw().ask(groups.JoinGroup("s", "t", "g")).status == 0
        wrong = []
        for number, text, call in CASES:
            try:
                await asyncio.wait_for(call(client), 20)
                said = "nothing"
            except RuntimeError as error:
                said = str(error)
            if text.lower() not in said.lower():
                wrong.append(f"{number}: {said!r}, not {text!r}")
        assert not wrong, "\n".join(wrong)
        assert [stream.name for stream in await client.get_streams()] == ["s"]
        assert [topic.name for topic in await client.get_topics("s")] == ["t"]

    run(program)


def test_the_numbers_themselves(run: Run, raw: Raw) -> None:
    """Some texts are alike; so the same bodies by hand, and the number of each refusal."""

    async def program(client: IggyClient) -> None:
        await client.create_stream("s")
        await client.create_topic("s", "t", 2)
        await client.create_consumer_group("s", "t", "g")

    run(program)
    client = raw()
    for request, number in (
        (streams.CreateStream("s"), ErrorCode.STREAM_NAME_ALREADY_EXISTS),
        (nameless(streams.CreateStream("x")), ErrorCode.INVALID_COMMAND),
        (streams.DeleteStream("none"), ErrorCode.STREAM_NOT_FOUND),
        (topics.DeleteTopic("s", "none"), ErrorCode.TOPIC_NOT_FOUND),
        (topics.CreateTopic("s", 1, "t"), ErrorCode.TOPIC_NAME_ALREADY_EXISTS),
        (nameless(topics.CreateTopic("s", 1, "x")), ErrorCode.INVALID_COMMAND),
        (topics.CreateTopic("s", 1001, "new"), ErrorCode.TOO_MANY_PARTITIONS),
        (topics.CreatePartitions("s", "t", 0), ErrorCode.INVALID_PARTITIONS_COUNT),
        (topics.DeletePartitions("s", "t", 5), ErrorCode.INVALID_PARTITIONS_COUNT),
        (topics.DeleteSegments("s", "t", 7, 1), ErrorCode.PARTITION_NOT_FOUND),
        (offsets.DeleteConsumerOffset(ONE, "s", "t", 0), ErrorCode.CONSUMER_OFFSET_NOT_FOUND),
        (offsets.StoreConsumerOffset(ONE, "s", "t", 0, 10**9), ErrorCode.INVALID_OFFSET),
        (offsets.StoreConsumerOffset(ONE, "s", "none", 0, 0), ErrorCode.RESOURCE_NOT_FOUND),
        (groups.JoinGroup("s", "t", "none"), ErrorCode.GROUP_NOT_FOUND),
        (groups.LeaveGroup("s", "t", "g"), ErrorCode.GROUP_MEMBER_NOT_FOUND),
    ):
        assert client.ask(request).status == number, request


def test_3024_too_many_stored_offsets(raw: Raw, local: Any) -> None:
    local.create_stream("s")
    local.create_topic("s", "t", partitions=1)
    with local.producer("s", "t") as producer:
        producer.send([b"m"], partition=0)
    client = raw()
    for number in range(1, CONSUMER_OFFSETS_MAX + 1):
        assert client.ask(offsets.StoreConsumerOffset(Who(1, number), "s", "t", 0, 0)).status == 0
    answer = client.ask(offsets.StoreConsumerOffset(Who(1, U32_MAX), "s", "t", 0, 0))
    assert answer.status == ErrorCode.TOO_MANY_CONSUMER_OFFSETS
    assert client.ask(offsets.DeleteConsumerOffset(Who(1, 1), "s", "t", 0)).status == 0
    assert client.ask(offsets.StoreConsumerOffset(Who(1, U32_MAX), "s", "t", 0, 0)).status == 0


def test_59_a_request_so_old_that_its_reply_is_forgotten(raw: Raw, local: Any) -> None:
    local.create_stream("s")
    local.create_topic("s", "t", partitions=1)
    client = raw()
    request = messages.SendMessages("s", "t", TO_0, 1, wire_batch([b"m"]))
    for number in range(DEDUPLICATION_WINDOW + 2):
        assert client.ask(request).value.confirmations[0].base_offset == number
    client.connection.request_number = 1
    assert client.ask(request).status == ErrorCode.REQUEST_ALREADY_APPLIED


def test_2021_too_many_topics(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with shmbroker.embedded(data, workers=1, environment=ROOT) as broker, broker.connect() as local:
        local.create_stream("s")
        local.create_topic("s", "t", partitions=1)
    copy = "INSERT INTO topic SELECT stream_id, ?, ?, created_at_us, options, next_group_id FROM topic WHERE name = 't'"
    with closing(sqlite3.connect(data / FILE_NAME)) as connection, connection:
        connection.executemany(copy, [(number, f"t {number}") for number in range(1, TOPIC_COUNT_PER_STREAM_MAX)])

    async def program(client: IggyClient) -> None:
        assert len(await client.get_topics("s")) == TOPIC_COUNT_PER_STREAM_MAX
        with pytest.raises(RuntimeError, match="Too many topics"):
            await client.create_topic("s", "one more", 1)
        await client.delete_topic("s", "t 7")
        await client.create_topic("s", "one more", 1)

    with shmbroker.embedded(data, tcp="127.0.0.1:0", workers=1) as broker:
        run_program(broker, program)
