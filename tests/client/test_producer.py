"""Producers on a real broker: where batches go, what comes back, and what happens when the worker dies."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import xxhash

import shmbroker
from shmbroker import Client, Durability, Producer, Ticket
from shmbroker.client.embedded import Embedded
from shmbroker.errors import (
    BatchTooLarge,
    BrokerGone,
    ClientMistake,
    Closed,
    InvalidMessage,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from shmbroker.formats.batch import FRAME_HEADER_SIZE, HEADER_SIZE
from shmbroker.limits import BATCH_SIZE_MAX, MESSAGE_PAYLOAD_SIZE_MAX, MIB
from tests.conftest import wait_until

LONG_S = 30.0


@pytest.fixture
def topic(client: Client) -> str:
    client.create_stream("stream")
    client.create_topic("stream", "topic", partitions=3)
    return "topic"


def everything(client: Client, topic: str, partition: int | None = None) -> list[bytes]:
    with client.consumer("stream", topic, partition=partition) as consumer:
        found: list[bytes] = []
        while batches := consumer.poll(100_000):
            for batch in batches:
                found += batch.payloads()
        return found


def test_send_returns_where_the_messages_are(client: Client, topic: str) -> None:
    with client.producer("stream", topic) as producer:
        first = producer.send([b"one", b"two"], partition=1)
        second = producer.send([b"three"], partition=1)
    assert (first.partition, first.base_offset, first.count, first.duplicate) == (1, 0, 2, False)
    assert (second.partition, second.base_offset, second.count) == (1, 2, 1)
    assert everything(client, topic) == [b"one", b"two", b"three"]


def test_keys_pick_the_partition_that_iggy_picks(client: Client, topic: str) -> None:
    with client.producer("stream", topic) as producer:
        for key in (b"AAPL", "MSFT", b"x" * 255, "\u00e9"):
            expected = xxhash.xxh32_intdigest(key.encode() if isinstance(key, str) else key, 0) % 3
            assert producer.send([b"m"], key=key).partition == expected
        for wrong in (b"", b"x" * 256):
            with pytest.raises(InvalidMessage):
                producer.send([b"m"], key=wrong)
        with pytest.raises(ClientMistake, match="not both"):
            producer.send([b"m"], key=b"k", partition=1)


def test_without_a_key_partitions_take_turns_batch_by_batch(client: Client, topic: str) -> None:
    with client.producer("stream", topic) as producer:
        assert [producer.send([b"m", b"n"]).partition for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_headers_and_ids_arrive(client: Client, topic: str) -> None:
    with client.producer("stream", topic) as producer:
        producer.send([b"a", b"b"], partition=0, headers={"kind": "trade", "n": 7}, ids=[5, 0])
        producer.send([b"c", b"d"], partition=0, headers=[None, {"x": b"y"}])
    with client.consumer("stream", topic, partition=0) as consumer:
        messages = [message for batch in consumer.poll() for message in batch.messages()]
    assert [message.payload for message in messages] == [b"a", b"b", b"c", b"d"]
    assert messages[0].id == 5
    assert len({message.id for message in messages}) == 4
    assert all(message.id for message in messages)
    assert [len(message.headers) for message in messages] == [2, 2, 0, 1]


def test_arrays_go_as_they_are(client: Client, topic: str) -> None:
    records = np.zeros(10_000, dtype=[("price", "<f8"), ("size", "<u4")])
    records["price"] = np.arange(10_000) / 7
    with client.producer("stream", topic) as producer:
        assert producer.send_array(records, partition=2).count == 10_000
        ticket = producer.submit_array(records[:10], partition=2)
        assert ticket.result(LONG_S).base_offset == 10_000
    with client.consumer("stream", topic, partition=2) as consumer:
        batches = consumer.poll(20_000)
    assert (np.concatenate([batch.array(records.dtype) for batch in batches]) == np.append(records, records[:10])).all()


@pytest.mark.parametrize("durability", list(Durability))
def test_many_threads_lose_and_mix_nothing(client: Client, durability: Durability, seed: int) -> None:
    client.create_stream("stream")
    client.create_topic("stream", "topic", partitions=2, durability=durability)
    threads, batches = 8, 30
    chances = [random.Random(seed + number) for number in range(threads)]
    sent: list[list[bytes]] = [[] for _ in range(threads)]
    with client.producer("stream", "topic") as producer:

        def work(number: int) -> None:
            tickets: list[Ticket] = []
            for batch in range(batches):
                count = chances[number].randrange(1, 50)
                messages = [b"%d-%d-%d" % (number, batch, index) for index in range(count)]
                sent[number] += messages
                partition = chances[number].randrange(2)
                if chances[number].random() < 0.3:
                    assert producer.send(messages, partition=partition).count == count
                else:
                    tickets.append(producer.submit(messages, partition=partition))
            assert all(ticket.result(LONG_S).count for ticket in tickets)

        with ThreadPoolExecutor(threads) as pool:
            for done in [pool.submit(work, number) for number in range(threads)]:
                done.result(120)
    found = everything(client, "topic")
    assert Counter(found) == Counter(message for messages in sent for message in messages)
    for partition in range(2):
        order = [tuple(map(int, message.split(b"-"))) for message in everything(client, "topic", partition)]
        for number in range(threads):
            mine = [each for each in order if each[0] == number]
            assert mine == sorted(mine), "each producer's batches keep their order within a partition"


def test_flush_waits_for_everything_so_far_and_close_flushes(client: Client, topic: str) -> None:
    producer = client.producer("stream", topic, linger=3600)
    tickets = [producer.submit([b"m"]) for _ in range(9)]
    assert not any(ticket.done() for ticket in tickets)
    producer.flush()
    assert all(ticket.done() for ticket in tickets)
    late = producer.submit([b"m"], partition=0)
    producer.close()
    assert late.done()
    assert late.result(0).base_offset == 3
    assert len(everything(client, topic)) == 10
    with pytest.raises(Closed):
        producer.submit([b"m"])
    producer.close()


def test_linger_puts_many_submissions_into_few_batches(client: Client, topic: str) -> None:
    with client.producer("stream", topic, linger=0.005, batch_count=200) as producer:
        tickets = [producer.submit([b"%d" % number], partition=0) for number in range(1000)]
        offsets = [ticket.result(LONG_S).base_offset for ticket in tickets]
    assert offsets == list(range(1000))
    with client.consumer("stream", topic, partition=0) as consumer:
        batches = consumer.poll(2000)
    assert [payload for batch in batches for payload in batch.payloads()] == [b"%d" % number for number in range(1000)]
    assert len(batches) <= 500


def test_rule_18_batches_of_every_size_up_to_the_largest(client: Client, topic: str) -> None:
    with client.producer("stream", topic) as producer:
        largest = BATCH_SIZE_MAX - MESSAGE_PAYLOAD_SIZE_MAX - HEADER_SIZE - 2 * (FRAME_HEADER_SIZE + 4)
        for sizes in ((1,), (MIB + 1,), (9 * MIB,), (MESSAGE_PAYLOAD_SIZE_MAX, largest)):
            messages = [b"z" * size for size in sizes]
            confirmation = producer.send(messages, partition=0, timeout=60)
            with client.consumer("stream", topic, partition=0, offset=confirmation.base_offset) as consumer:
                (batch,) = consumer.poll(2)
                assert batch.payloads() == messages
                del batch
        with pytest.raises(BatchTooLarge):
            producer.send([b"z" * MESSAGE_PAYLOAD_SIZE_MAX, b"z" * (largest + 8)], partition=0)
        with pytest.raises(InvalidMessage):
            producer.send([b"z" * (MESSAGE_PAYLOAD_SIZE_MAX + 1)], partition=0)


@pytest.mark.parametrize("messages", [[], [b""], ["text"], b"bytes", [b"x", 1]])
def test_what_is_no_batch_is_refused_and_harms_nothing(client: Client, topic: str, messages: Any) -> None:
    with client.producer("stream", topic) as producer:
        with pytest.raises(InvalidMessage):
            producer.send(messages, partition=0)
        assert producer.send([b"x"], partition=0).base_offset == 0


def test_what_is_not_there_is_not_found(client: Client, topic: str) -> None:
    for stream, name in (("stream", "other"), ("other", topic)):
        with pytest.raises(NotFound):
            client.producer(stream, name)
    with client.producer("stream", topic) as producer:
        with pytest.raises(NotFound):
            producer.send([b"m"], partition=3)
        for wrong in (-1, 2**70, "0"):
            with pytest.raises(ClientMistake, match="a partition is a number"):
                producer.send([b"m"], partition=wrong)  # type: ignore[arg-type]
    client.create_topic("stream", "empty", partitions=0)
    with client.producer("stream", "empty") as producer, pytest.raises(ClientMistake, match="no partitions"):
        producer.send([b"m"])
    for options in ({"linger": -1}, {"max_in_flight": 256}, {"max_in_flight": 0}, {"batch_count": 0}):
        with pytest.raises(ClientMistake):
            client.producer("stream", topic, **options)


def test_a_deleted_topic_refuses_its_producers(client: Client, topic: str) -> None:
    with client.producer("stream", topic) as producer:
        producer.send([b"m"], partition=0)
        client.delete_topic("stream", topic)
        with pytest.raises((ClientMistake, Unavailable), match="deleted"):
            producer.send([b"m"], partition=0, timeout=5)


def test_rule_07_a_killed_worker_and_resend(broker: Embedded) -> None:
    """Whatever was under way when the worker died is sent again, and stands in the log exactly once."""
    client = broker.connect()
    client.create_stream("stream")
    client.create_topic("stream", "kept", partitions=1, durability="persisted")
    producer = client.producer("stream", "kept")
    producer.send([b"first"], partition=0)
    workers = client.stats()["workers"]
    tickets: list[Ticket] = []

    def load() -> None:
        """Sends until the first failure: what failed has to be sent again before it is 256 batches ago."""
        answered = 0
        while answered == len(tickets) or not tickets[answered].done() or not tickets[answered].exception(0):
            answered += answered < len(tickets) and tickets[answered].done()
            tickets.append(producer.submit([b"%d" % len(tickets)], partition=0, timeout=20))

    thread = threading.Thread(target=load)
    thread.start()
    wait_until(lambda: len(tickets) > 300, "some load")
    for worker in workers:
        os.kill(worker["pid"], signal.SIGKILL)
    thread.join(60)
    assert not thread.is_alive()
    errors = [ticket.exception(LONG_S) for ticket in tickets]
    unknown = [ticket for ticket, error in zip(tickets, errors, strict=True) if error is not None]
    assert unknown
    assert all(type(error) is OutcomeUnknown for error in errors if error is not None)
    again = [producer.resend(ticket, timeout=LONG_S) for ticket in unknown]
    confirmations = [ticket.result(LONG_S) for ticket in again]
    print(f"{len(unknown)} unknown, {sum(each.duplicate for each in confirmations)} of them had been appended")
    producer.send([b"last"], partition=0)
    expected = [b"first", *(b"%d" % number for number in range(len(tickets))), b"last"]
    assert Counter(everything(client, "kept")) == Counter(expected)
    client.close()


def test_flush_tells_of_a_failure_that_nobody_has_seen_once(broker: Embedded) -> None:
    with broker.connect() as client:
        client.create_stream("stream")
        client.create_topic("stream", "topic")
        producer = client.producer("stream", "topic")
        producer.send([b"m"])
        for is_seen in (False, True):
            (worker,) = client.stats()["workers"]
            os.kill(worker["pid"], signal.SIGSTOP)
            ticket = producer.submit([b"lost"])
            os.kill(worker["pid"], signal.SIGKILL)
            if is_seen:
                assert isinstance(ticket.exception(LONG_S), OutcomeUnknown)
            else:
                with pytest.raises(OutcomeUnknown):
                    producer.flush()
            producer.flush()
            assert producer.send([b"m"]).count == 1


def submit_until_it_fails(producer: Producer, tickets: list[Ticket]) -> None:
    try:
        while len(tickets) < 1_000_000:
            tickets.append(producer.submit([b"%d" % len(tickets)]))
    except (BrokerGone, OutcomeUnknown):
        return
    pytest.fail("a dead broker takes everything")


@pytest.mark.parametrize("durability", list(Durability))
def test_rule_07_every_process_killed_and_resent_by_a_new_client(broker: Embedded, durability: Durability) -> None:
    """Confirmed under either policy is there; unknown is sent again by a new client; nothing stands there twice."""
    client = broker.connect()
    client.create_stream("stream")
    client.create_topic("stream", "topic", durability=durability)
    producer = client.producer("stream", "topic", max_in_flight=100)
    tickets = [producer.submit([b"%d" % number]) for number in range(200)]
    tickets[0].result(LONG_S)
    for pid in broker.process_ids():
        os.kill(pid, signal.SIGKILL)
    submit_until_it_fails(producer, tickets)
    errors = [ticket.exception(LONG_S) for ticket in tickets]
    unknown = [ticket for ticket, error in zip(tickets, errors, strict=True) if error is not None]
    assert all(type(error) is OutcomeUnknown for error in errors if error is not None)
    client.close()

    def connected() -> Client | None:
        try:
            return broker.connect()
        except Unavailable:
            return None

    with wait_until(connected, "the broker to be started again") as after, after.producer("stream", "topic") as second:
        duplicates = [second.resend(ticket).result(LONG_S).duplicate for ticket in unknown]
        print(f"{len(tickets)} sent, {len(unknown)} unknown, {sum(duplicates)} of them had been appended")
        found = everything(after, "topic")
    assert sorted(map(int, found)) == list(range(len(tickets)))


def test_a_ticket_is_sent_again_by_another_client_and_found(
    shared_broker: Embedded, client: Client, topic: str
) -> None:
    producer = client.producer("stream", topic)
    ticket = producer.submit([b"once"], partition=1)
    record, size = ticket.record, ticket.size
    confirmed = ticket.result(LONG_S)
    assert producer.resend(ticket) is ticket
    # As if the answer had been lost: the record, with its producer id and sequence, comes from a new client.
    ticket._record, ticket._size = record, size
    with shared_broker.connect() as other, other.producer("stream", topic) as second:
        again = second.resend(ticket).result(LONG_S)
    assert again.duplicate
    assert (again.base_offset, again.count) == (confirmed.base_offset, 1)
    assert everything(client, topic) == [b"once"]
    ticket._status = 1  # as if it had failed; it has nothing left
    with pytest.raises(ClientMistake, match="sent again already"):
        producer.resend(ticket)


def test_a_broker_that_ends_raises_and_never_hangs(tmp_path: Any) -> None:
    with shmbroker.embedded(tmp_path / "data") as broker:
        client = broker.connect()
        client.create_stream("stream")
        client.create_topic("stream", "topic")
        producer = client.producer("stream", "topic")
        producer.send([b"m"])
        broker.close()
        with pytest.raises((BrokerGone, OutcomeUnknown)):
            producer.send([b"m"], timeout=LONG_S)
        with pytest.raises((BrokerGone, OutcomeUnknown)):
            client.ping()
        with pytest.raises(BrokerGone):
            producer.submit([b"m"])
        with pytest.raises(Unavailable, match="shmbroker serve"):
            shmbroker.connect(f"shm://{tmp_path}/data")
        client.close()
        with pytest.raises((Closed, BrokerGone)):
            client.ping()
