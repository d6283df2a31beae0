"""Stored offsets over TCP: explicit ones, those of automatic commits, and both beside local consumers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shmbroker.client.embedded import Embedded
from shmbroker.errors import ErrorCode
from shmbroker.wire import messages, offsets
from shmbroker.wire.primitives import Consumer
from tests.iggy.batches import messages_of, wire_batch
from tests.iggy.conftest import RawClient

MakeRaw = Callable[..., RawClient]
NUMBERED = Consumer(1, 7)
NAMED = Consumer(1, "audit")


@pytest.fixture
def client(raw: MakeRaw, local: Any) -> RawClient:
    local.create_stream("s")
    local.create_topic("s", "t", partitions=2)
    connected = raw()
    for _ in range(10):
        request = messages.SendMessages("s", "t", messages.Partitioning.partition(0), 3, wire_batch([b"a", b"b", b"c"]))
        assert connected.ask(request).status == 0
    return connected


def stored(client: RawClient, consumer: Consumer, partition: int | None = 0) -> int | None:
    answer = client.ask(offsets.GetConsumerOffset(consumer, "s", "t", partition))
    assert answer.status == 0
    return None if answer.value is None else answer.value.stored_offset


def next_offsets(client: RawClient, consumer: Consumer, count: int, *, auto_commit: bool = True) -> list[int]:
    request = messages.PollMessages(consumer, "s", "t", 0, messages.POLL_NEXT, 0, count, auto_commit)
    answer = client.ask(request)
    assert answer.status == 0
    return [offset for offset, _ in messages_of(bytes(answer.value.records))]


@pytest.mark.parametrize("consumer", [NUMBERED, NAMED])
def test_an_offset_is_stored_read_and_deleted(client: RawClient, consumer: Consumer) -> None:
    assert stored(client, consumer) is None
    assert client.ask(offsets.StoreConsumerOffset(consumer, "s", "t", None, 12)).status == 0
    assert stored(client, consumer) == stored(client, consumer, None) == 12
    assert next_offsets(client, consumer, 4, auto_commit=False) == [13, 14, 15, 16]
    assert stored(client, consumer, 1) is None
    assert client.ask(offsets.StoreConsumerOffset(consumer, "s", "t", 0, 30)).status == ErrorCode.INVALID_OFFSET
    assert client.ask(offsets.StoreConsumerOffset(consumer, "s", "t", 1, 0)).status == ErrorCode.INVALID_OFFSET
    assert client.ask(offsets.StoreConsumerOffset(consumer, "s", "t", 2, 0)).status == ErrorCode.RESOURCE_NOT_FOUND
    assert client.ask(offsets.DeleteConsumerOffset(consumer, "s", "t", 0)).status == 0
    answer = client.ask(offsets.DeleteConsumerOffset(consumer, "s", "t", 0))
    assert answer.status == ErrorCode.CONSUMER_OFFSET_NOT_FOUND
    assert stored(client, consumer) is None


def test_an_automatic_commit_is_seen_by_every_later_request(client: RawClient) -> None:
    seen: list[int] = []
    for _ in range(15):
        seen += next_offsets(client, NUMBERED, 2)
        assert stored(client, NUMBERED) == seen[-1]
    assert seen == list(range(30))
    assert next_offsets(client, NUMBERED, 2) == []
    again = messages.PollMessages(NUMBERED, "s", "t", 0, messages.POLL_OFFSET, 3, 2, True)
    assert client.ask(again).status == 0
    assert stored(client, NUMBERED) == 29, "an automatic commit never lowers an offset"


def test_local_consumers_and_iggy_share_stored_offsets(client: RawClient, local: Any, broker: Embedded) -> None:
    assert next_offsets(client, NAMED, 5) == [0, 1, 2, 3, 4]
    with local.consumer("s", "t", partition=0, name="audit") as consumer:
        (first, *_) = consumer.poll(max_messages=4, timeout=5.0)
        assert first.messages()[0].offset == 5
        consumer.commit()
    assert next_offsets(client, NAMED, 100)[0] > 5


def test_what_cannot_be_polled_is_refused_by_number(client: RawClient) -> None:
    for stream, topic, partition, number in (
        ("x", "t", 0, ErrorCode.STREAM_NOT_FOUND),
        ("s", "x", 0, ErrorCode.TOPIC_NOT_FOUND),
        ("s", "t", 2, ErrorCode.PARTITION_NOT_FOUND),
    ):
        request = messages.PollMessages(NUMBERED, stream, topic, partition, messages.POLL_FIRST, 0, 1, False)
        assert client.ask(request).status == number
    request = messages.PollMessages(NUMBERED, "s", "t", 0, messages.POLL_FIRST, 0, 0, False)
    assert client.ask(request).status == ErrorCode.INVALID_MESSAGES_COUNT
    request = messages.PollMessages(Consumer(2, "none"), "s", "t", 0, messages.POLL_FIRST, 0, 1, False)
    assert client.ask(request).status == ErrorCode.GROUP_NOT_FOUND


def test_a_flush_and_the_bound_address(client: RawClient, local: Any, broker: Embedded) -> None:
    for fsync in (False, True):
        assert client.ask(messages.FlushUnsavedBuffer("s", "t", 0, fsync)).status == 0
    assert local.stats()["broker"]["tcp"] == broker.tcp_address
