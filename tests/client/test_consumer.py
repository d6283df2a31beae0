"""Consumers on a real broker: where they start, what they wait for, and what they store."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shmbroker import Client, Consumer, Producer
from shmbroker.client.embedded import Embedded
from shmbroker.errors import (
    BrokerGone,
    ClientMistake,
    Closed,
    InvalidOffset,
    NotFound,
    OutcomeUnknown,
    PartitionRefused,
    PartitionReplaced,
    ShmbrokerError,
)
from tests.conftest import wait_until

LONG_S = 30.0


@pytest.fixture
def producer(client: Client) -> Iterator[Producer]:
    """Of a topic with three partitions."""
    client.create_stream("stream")
    client.create_topic("stream", "topic", partitions=3)
    with client.producer("stream", "topic") as made:
        yield made


def fill(producer: Producer, partition: int = 0, batches: int = 10, count: int = 10) -> None:
    """Messages b"0", b"1", ... in so many batches."""
    for batch in range(batches):
        producer.send([b"%d" % number for number in range(batch * count, (batch + 1) * count)], partition=partition)


def numbers(batches: list[Any]) -> list[int]:
    return [int(payload) for batch in batches for payload in batch.payloads()]


def drain(consumer: Consumer, **options: Any) -> list[int]:
    found: list[int] = []
    while batches := consumer.poll(**options):
        found += numbers(batches)
    return found


def until_it_fails(consumer: Consumer) -> tuple[list[int], ShmbrokerError]:
    """What came before the first error, and the error."""
    found: list[int] = []
    try:
        while batches := consumer.poll(timeout=LONG_S):
            found += numbers(batches)
    except ShmbrokerError as error:
        return found, error
    pytest.fail("nothing came, and no error")


@pytest.mark.parametrize(
    ("start", "first_number"),
    [({}, 0), ({"first": True}, 0), ({"offset": 0}, 0), ({"offset": 37}, 37), ({"last": 1}, 99), ({"last": 25}, 75),
     ({"last": 1000}, 0), ({"timestamp": 0}, 0), ({"offset": 100}, 100), ({"next": True, "name": "new"}, 0)],
)  # fmt: skip
def test_where_it_starts(client: Client, producer: Producer, start: dict[str, Any], first_number: int) -> None:
    fill(producer)
    with client.consumer("stream", "topic", partition=0, **start) as consumer:
        assert drain(consumer) == list(range(first_number, 100))
        producer.send([b"100"], partition=0)
        assert numbers(consumer.poll(timeout=LONG_S)) == [100]


def test_a_timestamp_starts_at_the_first_batch_taken_then_or_later(client: Client, producer: Producer) -> None:
    fill(producer)
    with client.consumer("stream", "topic", partition=0) as consumer:
        stamps = [batch.timestamp_us for batch in consumer.poll()]
        for batch, stamp in enumerate(stamps):
            consumer.seek(timestamp=stamp)
            assert numbers(consumer.poll())[0] == 10 * stamps.index(stamp)
            assert stamps.index(stamp) <= batch
        consumer.seek(timestamp=stamps[-1] + 1)
        assert consumer.poll() == []


def test_rule_18_a_poll_returns_what_was_asked_for_and_goes_on_there(client: Client, producer: Producer) -> None:
    fill(producer)
    with client.consumer("stream", "topic", partition=0, name="slices", offset=3) as consumer:
        batches = consumer.poll(12)
        assert [(batch.base_offset, batch.count) for batch in batches] == [(3, 7), (10, 5)]
        assert numbers(batches) == list(range(3, 15))
        consumer.commit()
        assert client.get_consumer_offset("stream", "topic", 0, name="slices") == 14
        assert consumer.positions() == {0: 15}
        assert drain(consumer, max_messages=7) == list(range(15, 100))
        consumer.seek(first=True)
        assert len(drain(consumer, max_messages=100, max_bytes=1)) == 100


def test_several_partitions_take_turns(client: Client, producer: Producer) -> None:
    for partition in range(3):
        fill(producer, partition)
    with client.consumer("stream", "topic") as consumer:
        assert consumer.partitions == (0, 1, 2)
        firsts = [consumer.poll(5)[0].header.partition_id for _ in range(6)]
        assert firsts == [0, 1, 2, 0, 1, 2]
        assert sorted(drain(consumer) + list(range(10)) * 3) == sorted(list(range(100)) * 3)
        assert consumer.end_offsets() == consumer.positions() == {0: 100, 1: 100, 2: 100}
    with client.consumer("stream", "topic", partition=[2, 0]) as consumer:
        assert len(drain(consumer)) == 200


def test_stored_offsets_are_where_the_next_one_goes_on(client: Client, producer: Producer) -> None:
    fill(producer)
    for who in ({"name": "audit"}, {"id": 7}, {"group": "billing"}):
        with client.consumer("stream", "topic", partition=0, **who) as consumer:
            assert numbers(consumer.poll(30)) == list(range(30))
            consumer.commit()
            assert numbers(consumer.poll(30)) == list(range(30, 60)), "not committed: comes again"
        with client.consumer("stream", "topic", partition=0, **who) as consumer:
            assert numbers(consumer.poll(1)) == [30]
            consumer.commit(offset=9)
        with client.consumer("stream", "topic", partition=0, **who) as consumer:
            assert numbers(consumer.poll(1)) == [10], "an explicit store may go back"
            with pytest.raises(InvalidOffset, match="beyond the last message"):
                consumer.commit(offset=10_000)
    assert client.get_consumer_offset("stream", "topic", 0, name="7") is None, "a name is no number"


def test_auto_commit_follows_and_never_goes_back(client: Client, producer: Producer) -> None:
    fill(producer)
    with client.consumer("stream", "topic", partition=0, name="auto", auto_commit=True) as consumer:
        consumer.poll(40)
        wait_until(lambda: client.get_consumer_offset("stream", "topic", 0, name="auto") == 39, "the stored offset")
        consumer.seek(first=True)
        consumer.poll(10)
        consumer.poll(10)
        assert client.get_consumer_offset("stream", "topic", 0, name="auto") == 39
    with client.consumer("stream", "topic", partition=0, name="auto", auto_commit=True) as consumer:
        assert numbers(consumer.poll(5)) == list(range(40, 45))
    assert client.get_consumer_offset("stream", "topic", 0, name="auto") == 44, "closing finishes what was begun"


def test_mistakes_are_told(client: Client, producer: Producer) -> None:
    open_consumer = client.consumer
    for wrong in (
        {"offset": 1, "first": True}, {"next": True}, {"offset": -1}, {"last": -1}, {"partition": []},
        {"partition": [0, 0]}, {"name": "a", "id": 1}, {"name": ""}, {"id": 2**32}, {"auto_commit": True},
        {"offset": 1.5}, {"timestamp": 1e15}, {"last": 0.5},
    ):  # fmt: skip
        with pytest.raises(ClientMistake):
            open_consumer("stream", "topic", **wrong)
    for partition, stream, topic in ((3, "stream", "topic"), (0, "other", "topic"), (0, "stream", "other")):
        with pytest.raises(NotFound):
            open_consumer(stream, topic, partition=partition)
    with open_consumer("stream", "topic") as consumer:
        for call in (
            consumer.commit, lambda: consumer.poll(0), lambda: consumer.seek(5, first=True),
            lambda: consumer.seek(next=True),
        ):  # fmt: skip
            with pytest.raises(ClientMistake):
                call()
    with open_consumer("stream", "topic", partition=0, name="a") as consumer:
        for offset in (-1, 1 << 64, 1.5):
            with pytest.raises(ClientMistake, match=str(offset)):
                consumer.commit(offset=offset)
    with pytest.raises(Closed):
        consumer.poll()
    consumer.close()


def test_rule_15_a_waiting_poll_is_woken_and_an_empty_one_ends(client: Client, producer: Producer) -> None:
    with client.consumer("stream", "topic") as consumer:
        started = time.monotonic()
        assert consumer.poll(timeout=0.25) == []
        assert time.monotonic() - started >= 0.25
        for partition in (2, 0, 1):
            found: list[Any] = []
            thread = threading.Thread(target=lambda found=found: found.extend(consumer.poll(timeout=LONG_S)))
            thread.start()
            producer.send([b"%d" % partition], partition=partition)
            thread.join(LONG_S)
            assert numbers(found) == [partition]


def test_rule_15_an_idle_consumer_takes_no_processor_time(client: Client, producer: Producer) -> None:
    with client.consumer("stream", "topic") as consumer:
        consumer.poll(timeout=0.01)
        before = time.thread_time()
        assert consumer.poll(timeout=1.0) == []
        used_s = time.thread_time() - before
    print(f"{used_s * 1000:.1f} ms of processor time in a second of waiting")
    assert used_s < 0.1, "a loop that polls takes all of it"


def test_iterating_waits_for_each_batch(client: Client, producer: Producer) -> None:
    fill(producer, batches=2)
    with client.consumer("stream", "topic", partition=0) as consumer:
        found = []
        for batch in consumer:
            found += numbers([batch])
            if len(found) == 20:
                break
    assert found == list(range(20))


def test_rule_14_a_purge_is_told_once_and_then_the_new_beginning_is_read(client: Client, producer: Producer) -> None:
    fill(producer)
    with client.consumer("stream", "topic", partition=0, name="purged") as consumer:
        kept = consumer.poll(5)
        consumer.commit()
        client.purge_topic("stream", "topic")
        finished, error = until_it_fails(consumer)
        assert isinstance(error, PartitionReplaced)
        assert "purged" in str(error)
        assert finished == list(range(5, 5 + len(finished)))
        assert consumer.poll() == []
        fill(producer, batches=1)
        assert numbers(consumer.poll(timeout=LONG_S)) == list(range(10))
        assert numbers(kept) == list(range(5)), "what was handed out stays readable"
        assert client.get_consumer_offset("stream", "topic", 0, name="purged") is None


def test_a_deleted_topic_ends_its_consumers(client: Client, producer: Producer) -> None:
    fill(producer)
    with client.consumer("stream", "topic", partition=0) as consumer:
        consumer.poll(5)
        client.delete_topic("stream", "topic")
        assert isinstance(until_it_fails(consumer)[1], NotFound | PartitionReplaced)


def test_messages_that_retention_took_are_skipped(client: Client, producer: Producer) -> None:
    client.create_topic("stream", "small", partitions=1, segment_size="1 MiB")
    with client.producer("stream", "small") as small:
        for number in range(40):
            small.send([b"%d" % number + bytes(100_000)])
        client.flush("stream", "small", 0)
        with client.consumer("stream", "small") as consumer:
            first = consumer.poll(1)
            client.delete_segments("stream", "small", 0, 2)
            rest = [batch.base_offset for batch in iter_all(consumer)]
        assert rest == sorted(rest)
        assert rest[-1] == 39
        with client.consumer("stream", "small") as consumer:
            earliest = consumer.poll(1)[0].base_offset
        assert 1 < earliest < 39
        assert first[0].payloads()[0].startswith(b"0")


def iter_all(consumer: Consumer) -> Iterator[Any]:
    while batches := consumer.poll():
        yield from batches


@pytest.mark.parametrize("durability", ["replicated", "persisted"])
def test_a_killed_worker_does_not_disturb_a_waiting_consumer(broker: Embedded, durability: str) -> None:
    with broker.connect() as client:
        client.create_stream("stream")
        client.create_topic("stream", "topic", durability=durability)
        with client.producer("stream", "topic") as producer:
            consumer = client.consumer("stream", "topic", name="reader")
            fill(producer, batches=3)
            assert drain(consumer) == list(range(30))
            consumer.commit()
            for _ in range(2):
                for worker in client.stats()["workers"]:
                    os.kill(worker["pid"], signal.SIGKILL)
                while True:
                    try:
                        producer.send([b"30"])
                        break
                    except OutcomeUnknown:
                        continue
                found = numbers(consumer.poll(timeout=LONG_S))
                assert found
                assert set(found) == {30}
            while True:
                try:
                    consumer.commit()
                    break
                except OutcomeUnknown:
                    continue
        assert client.get_consumer_offset("stream", "topic", 0, name="reader") == consumer.positions()[0] - 1


def test_a_refused_partition_says_so_to_both_sides_and_the_others_go_on(tmp_path: Path) -> None:
    import shmbroker

    data = tmp_path / "data"
    with shmbroker.embedded(data) as broker, broker.connect() as client:
        client.create_stream("stream")
        client.create_topic("stream", "topic", partitions=2, durability="persisted")
        with client.producer("stream", "topic") as producer:
            fill(producer, 0)
            fill(producer, 1)
    damaged = sorted(data.rglob("*.log"))[0]
    with damaged.open("r+b") as file:
        file.seek(4096 + 400)
        file.write(b"damage")
    with shmbroker.embedded(data) as broker, broker.connect() as client:
        (refused,) = [each for each in client.stats()["partitions"] if each["state"] == "refused"]
        with pytest.raises(PartitionRefused, match=r"\.log.*repair"):
            client.consumer("stream", "topic", partition=refused["partition"])
        whole = 1 - refused["partition"]
        with client.producer("stream", "topic") as producer:
            with pytest.raises(PartitionRefused):
                producer.send([b"m"], partition=refused["partition"])
            assert producer.send([b"m"], partition=whole).base_offset == 100
        with client.consumer("stream", "topic", partition=whole) as consumer:
            assert sum(batch.count for batch in consumer.poll()) == 101
        with client.consumer("stream", "topic", group="group") as consumer:
            with pytest.raises(PartitionRefused, match=r"\.log.*repair"):
                consumer.poll()
            assert sum(batch.count for batch in consumer.poll()) == 101
            assert consumer.partitions == (whole,)


def test_a_broker_that_ends_ends_a_waiting_poll(tmp_path: Path) -> None:
    import shmbroker

    with shmbroker.embedded(tmp_path / "data") as broker, broker.connect() as client:
        client.create_stream("stream")
        client.create_topic("stream", "topic")
        consumer = client.consumer("stream", "topic")
        assert consumer.poll(timeout=0.01) == []
        errors: list[BaseException] = []

        def wait() -> None:
            try:
                consumer.poll(timeout=LONG_S)
            except BrokerGone as error:
                errors.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        broker.close()
        thread.join(LONG_S)
        assert len(errors) == 1
        with pytest.raises(BrokerGone):
            consumer.poll()
