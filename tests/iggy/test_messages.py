"""Messages through the published client: what is sent is polled, by every strategy, with the checksums of the wire."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from apache_iggy import Consumer, IggyClient, Partitioning, PollingStrategy, SendMessage
from xxhash import xxh32_intdigest

from shmbroker.client.embedded import Embedded
from shmbroker.wire import messages
from tests.iggy.batches import wire_batch
from tests.iggy.conftest import Program, RawClient

Run = Callable[[Program], Any]


async def topic(client: IggyClient, partitions: int = 1, **options: Any) -> None:
    await client.create_stream("s")
    await client.create_topic("s", "t", partitions, **options)


async def poll(client: IggyClient, strategy: Any, count: int = 1000, **how: Any) -> list[Any]:
    arguments = {"consumer": Consumer.Single("c"), "auto_commit": False, "partition_id": 0, **how}
    return await client.poll_messages("s", "t", polling_strategy=strategy, count=count, **arguments)


def texts(messages: list[Any]) -> list[str]:
    return [message.payload().decode() for message in messages]


@pytest.mark.parametrize("durability", ["replicated", "persisted"])
def test_what_is_sent_is_polled_by_every_strategy(run: Run, durability: str) -> None:
    async def program(client: IggyClient) -> None:
        await topic(client, options={"durability": durability})
        for start in range(0, 100, 10):
            batch = [SendMessage(f"message {number}") for number in range(start, start + 10)]
            answer = await client.send_messages("s", "t", Partitioning.partition_id(0), batch)
            (confirmation,) = answer.confirmations
            assert (confirmation.base_offset, confirmation.partition_id) == (start, 0)
        everything = await poll(client, PollingStrategy.First())
        assert texts(everything) == [f"message {number}" for number in range(100)]
        assert [message.offset() for message in everything] == list(range(100))
        for first, count in ((0, 1), (7, 5), (15, 30), (99, 10), (100, 10), (1000, 1)):
            found = await poll(client, PollingStrategy.Offset(first), count)
            assert [message.offset() for message in found] == list(range(first, min(100, first + count)))
            assert texts(found) == [f"message {message.offset()}" for message in found]
        assert [message.offset() for message in await poll(client, PollingStrategy.Last(), 15)] == list(range(85, 100))
        middle = everything[50].timestamp()
        since = await poll(client, PollingStrategy.Timestamp(middle))
        assert since[0].offset() <= 50
        assert all(message.timestamp() >= middle for message in since)
        assert await poll(client, PollingStrategy.Timestamp(2**62)) == []

    run(program)


def test_next_goes_on_where_the_automatic_commit_stopped(run: Run) -> None:
    async def program(client: IggyClient) -> None:
        await topic(client)
        await client.send_messages("s", "t", 0, [SendMessage(str(number)) for number in range(30)])
        taken: list[str] = []
        while found := await poll(client, PollingStrategy.Next(), 7, auto_commit=True):
            taken += texts(found)
        assert taken == [str(number) for number in range(30)]
        # Another consumer begins anew, and one that does not commit gets the same again.
        for _ in range(2):
            found = await poll(client, PollingStrategy.Next(), 7, consumer=Consumer.Single("other"))
            assert [message.offset() for message in found] == list(range(7))

    run(program)


def test_every_way_to_choose_a_partition(run: Run) -> None:
    async def program(client: IggyClient) -> None:
        await topic(client, 3)
        chosen = []
        for _ in range(6):
            answer = await client.send_messages("s", "t", Partitioning.balanced(), [SendMessage("m")])
            chosen.append(answer.confirmations[0].partition_id)
        assert sorted(chosen) == [0, 0, 1, 1, 2, 2]
        for key in ("a", "b", "c", "d"):
            answer = await client.send_messages("s", "t", Partitioning.messages_key(key), [SendMessage("m")])
            assert answer.confirmations[0].partition_id == xxh32_intdigest(key.encode()) % 3

    run(program)


def test_headers_and_ids_arrive_as_they_were_sent(run: Run) -> None:
    async def program(client: IggyClient) -> None:
        await topic(client)
        headers = {"text": "one", "number": 7, "raw": b"\0\1", "flag": True, "float": 0.5}
        await client.send_messages("s", "t", 0, [SendMessage(b"\0\xff", user_headers=headers, id=2**100)])
        (message,) = await poll(client, PollingStrategy.First())
        assert message.payload() == b"\0\xff"
        assert message.id() == 2**100
        assert message.user_headers().to_scalar_dict() == headers

    run(program)


def test_messages_of_local_producers_are_served_with_checksums(run: Run, local: Any) -> None:
    local.create_stream("s")
    local.create_topic("s", "t", partitions=1)
    with local.producer("s", "t") as producer:
        producer.send([b"local %d" % number for number in range(50)], partition=0)
        producer.send([b"x" * number for number in range(1, 40)], partition=0)

    async def program(client: IggyClient) -> None:
        found = await poll(client, PollingStrategy.First())
        assert [message.payload() for message in found[:50]] == [b"local %d" % number for number in range(50)]
        assert [len(message.payload()) for message in found[50:]] == list(range(1, 40))
        assert all(message.checksum() for message in found)
        again = await poll(client, PollingStrategy.Offset(60), 3)
        assert [message.checksum() for message in again] == [message.checksum() for message in found[60:63]]

    run(program)


def test_messages_of_iggy_are_read_locally(run: Run, local: Any) -> None:
    async def program(client: IggyClient) -> None:
        await topic(client)
        await client.send_messages("s", "t", 0, [SendMessage(f"{number}" * (1 + number % 3)) for number in range(100)])

    run(program)
    with local.consumer("s", "t", partition=0, name="c") as consumer:
        payloads = [payload for batch in consumer.poll(timeout=5.0) for payload in batch.payloads()]
    assert payloads == [(f"{number}" * (1 + number % 3)).encode() for number in range(100)]


def test_a_large_batch_and_a_large_message(run: Run) -> None:
    async def program(client: IggyClient) -> None:
        await topic(client)
        await client.send_messages("s", "t", 0, [SendMessage(b"x" * 10_000) for _ in range(1000)])
        answer = await client.send_messages("s", "t", 0, [SendMessage(b"y" * 20_000_000)])
        assert answer.confirmations[0].base_offset == 1000
        total = 0
        while total < 1001:
            found = await poll(client, PollingStrategy.Offset(total), 1001)
            assert found[0].offset() == total
            total += len(found)
        assert found[-1].payload() == b"y" * 20_000_000

    run(program)


def test_a_purge_is_seen_by_the_next_poll(run: Run) -> None:
    async def program(client: IggyClient) -> None:
        await topic(client)
        await client.send_messages("s", "t", 0, [SendMessage("old")])
        assert texts(await poll(client, PollingStrategy.First())) == ["old"]
        await client.purge_topic("s", "t")
        assert await poll(client, PollingStrategy.First()) == []
        await client.send_messages("s", "t", 0, [SendMessage("new")])
        assert texts(await poll(client, PollingStrategy.First())) == ["new"]
        await client.delete_topic("s", "t")
        with pytest.raises(RuntimeError, match="Topic with ID"):
            await poll(client, PollingStrategy.First())

    run(program)


def test_many_clients_at_once(run: Run, broker: Embedded) -> None:
    async def one(number: int) -> None:
        client = IggyClient(broker.tcp_address)
        await client.connect()
        await client.login_user("iggy", "secret")
        for round_number in range(20):
            await client.send_messages("s", "t", 0, [SendMessage(f"{number} {round_number}")])

    async def program(client: IggyClient) -> None:
        await topic(client)
        await asyncio.gather(*(one(number) for number in range(8)))
        found = texts(await poll(client, PollingStrategy.First()))
        assert sorted(found) == sorted(f"{number} {turn}" for number in range(8) for turn in range(20))
        for number in range(8):
            mine = [text for text in found if text.startswith(f"{number} ")]
            assert mine == [f"{number} {turn}" for turn in range(20)]

    run(program)


def test_raw_partitionings_of_other_clients(run: Run, raw: Callable[..., RawClient]) -> None:
    async def program(client: IggyClient) -> None:
        await topic(client, 3)

    run(program)
    client = raw()
    chosen = []
    for kind, value in ((1, b""), (1, b""), (1, b""), (3, b"key"), (3, b"key")):
        request = messages.SendMessages("s", "t", messages.Partitioning(kind, value), 2, wire_batch([b"a", b"bb"]))
        answer = client.ask(request)
        assert answer.status == 0
        chosen.append(answer.value.confirmations[0].partition_id)
    assert sorted(chosen[:3]) == [0, 1, 2]
    assert chosen[3] == chosen[4] == xxh32_intdigest(b"key") % 3


def test_a_consumer_that_waits_at_the_end_gets_what_comes(run: Run) -> None:
    async def program(client: IggyClient) -> None:
        await topic(client)
        assert await poll(client, PollingStrategy.First()) == []
        for number in range(20):
            for strategy in (PollingStrategy.Next(), PollingStrategy.Offset(number)):
                assert await poll(client, strategy) == []
            await client.send_messages("s", "t", 0, [SendMessage(str(number))])
            assert texts(await poll(client, PollingStrategy.Offset(number))) == [str(number)]
            assert texts(await poll(client, PollingStrategy.First()))[-1] == str(number)
            assert texts(await poll(client, PollingStrategy.Next(), auto_commit=True)) == [str(number)]
        await client.purge_topic("s", "t")
        assert await poll(client, PollingStrategy.Offset(20)) == []
        assert await poll(client, PollingStrategy.Next()) == []

    run(program)
