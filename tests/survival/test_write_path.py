"""What has happened when a write is acknowledged, and what has not: seen from outside, on a running broker.

The positions of a partition say it: ``committed`` (acknowledged where replicated), ``file`` (written), ``durable``
(synchronised).
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from shmbroker.client.client import Client
from shmbroker.crash_points import FAULT_VARIABLE
from shmbroker.errors import ShmbrokerError
from shmbroker.front.places import default_runtime
from tests.conftest import Eventually
from tests.processes.conftest import WAIT_S, BrokerProcess, Start

from .load import read_log

HIGH = {"messages_required_to_save": 1_000_000, "size_of_messages_required_to_save": "512 MiB"}
QUIET_S = 3.0
"""The worker looks after quiet partitions every second."""


@pytest.fixture
def broker(start: Start) -> Iterator[BrokerProcess]:
    broker = start("--workers=1").ready()
    yield broker
    assert broker.stop() == 0, broker.said()


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[Client]:
    with broker.connect() as client:
        client.create_stream("s")
        yield client


def positions(client: Client, topic: str) -> tuple[int, int, int]:
    """committed, file, durable."""
    found = described(client, topic)
    return found["committed_position"], found["file_position"], found["durable_position"]


def described(client: Client, topic: str) -> dict[str, Any]:
    (found,) = (each for each in client.stats()["partitions"] if each["topic"] == topic)
    return dict(found)


def send(client: Client, topic: str, count: int, size: int = 100) -> None:
    with client.producer("s", topic) as producer:
        for _ in range(count):
            producer.send([bytes(size)], partition=0)


def test_a_persisted_write_is_durable_below_every_threshold(client: Client) -> None:
    """Without anything else being set: one message, and with it all that was committed before."""
    client.create_topic("s", "t", durability="persisted", **HIGH)
    for _ in range(3):
        send(client, "t", 1)
        committed, file, durable = positions(client, "t")
        assert committed == file == durable > 0


def test_a_replicated_write_stays_in_memory_below_the_thresholds_and_no_timer_writes_it(
    client: Client, eventually: Eventually
) -> None:
    client.create_topic("s", "t", **HIGH)
    send(client, "t", 10)
    committed, file, durable = positions(client, "t")
    assert committed > 0
    assert file == durable == 0
    start_s = client.stats()["workers"][0]["uptime_s"]
    eventually(lambda: client.stats()["workers"][0]["uptime_s"] > start_s + QUIET_S, "some quiet seconds")
    assert positions(client, "t") == (committed, 0, 0)
    assert len(read_log(client, "t")) == 10, "it is read all the same"


@pytest.mark.parametrize(
    ("counter", "options", "count", "size"),
    [
        ("flushes_by_count", {"messages_required_to_save": 20}, 20, 10),
        ("flushes_by_size", {"size_of_messages_required_to_save": "64 KiB"}, 7, 10_000),
        ("flushes_by_roll", {"segment_size": "1 MiB"}, 12, 100_000),
        ("flushes_by_pressure", {}, 15, 200_000),
    ],
)
def test_each_trigger_writes_what_is_committed(
    client: Client, eventually: Eventually, counter: str, options: dict[str, Any], count: int, size: int
) -> None:
    """Soon, that is: a replicated log is written behind its answers."""
    client.create_topic("s", "t", **{**HIGH, **options})
    send(client, "t", 1, size)
    assert described(client, "t")["counters"][counter] == 0
    assert positions(client, "t")[1] == 0
    send(client, "t", count - 1, size)
    eventually(lambda: described(client, "t")["counters"][counter], f"the counter {counter}")
    eventually(lambda: positions(client, "t")[1], "the file to be written")


def test_a_flush_on_request_writes_and_synchronises_as_it_was_asked(client: Client) -> None:
    client.create_topic("s", "t", **HIGH)
    send(client, "t", 5)
    client.flush("s", "t", 0, sync=False)
    committed, file, durable = positions(client, "t")
    assert file == committed > durable == 0
    client.flush("s", "t", 0)
    committed, file, durable = positions(client, "t")
    assert committed == file == durable


def test_a_threshold_of_one_writes_every_message_and_makes_none_durable(client: Client, eventually: Eventually) -> None:
    """Flushing often is not persistence."""
    client.create_topic("s", "t", messages_required_to_save=1)
    for _ in range(3):
        send(client, "t", 1)
        eventually(lambda: positions(client, "t")[0] == positions(client, "t")[1] > 0, "it to be written")
        assert positions(client, "t")[2] == 0


def test_a_persisted_offset_does_not_write_the_messages_before_it(client: Client) -> None:
    client.create_topic("s", "t", consumer_offset_durability="persisted", **HIGH)
    send(client, "t", 10)
    client.set_consumer_offset("s", "t", 0, 9, name="reader")
    committed, file, durable = positions(client, "t")
    assert committed > file == durable == 0
    assert client.get_consumer_offset("s", "t", 0, name="reader") == 9


def test_what_was_written_outlives_every_process_and_their_memory(start: Start, data: Path) -> None:
    """A completed write is in the page cache, whatever became of the ring."""
    broker = start().ready()
    with broker.connect() as client:
        client.create_stream("s")
        client.create_topic("s", "t", **HIGH)
        send(client, "t", 10)
        client.flush("s", "t", 0, sync=False)
    broker.kill_everything()
    shutil.rmtree(default_runtime(str(data)))
    broker = start().ready()
    with broker.connect() as client:
        assert [offset for offset, _ in read_log(client, "t")] == list(range(10))
    assert broker.stop() == 0


@pytest.mark.parametrize("durability", ["replicated", "persisted"])
def test_a_submission_is_no_confirmation(broker: BrokerProcess, client: Client, durability: str) -> None:
    """While the worker does nothing, a ticket is not done, and its batch is nowhere."""
    client.create_topic("s", "t", durability=durability)
    (worker,) = broker.workers()
    with client.producer("s", "t") as producer, client.consumer("s", "t", partition=0, first=True) as consumer:
        producer.send([b"before"], partition=0)
        assert [batch.payloads() for batch in consumer.poll(timeout=WAIT_S)] == [[b"before"]]
        os.kill(worker, signal.SIGSTOP)
        try:
            ticket = producer.submit([b"submitted"], partition=0)
            with pytest.raises(TimeoutError):
                ticket.result(0.2)
            assert not ticket.done()
            assert consumer.poll() == []
        finally:
            os.kill(worker, signal.SIGCONT)
        assert ticket.result(WAIT_S).base_offset == 1
        assert [batch.payloads() for batch in consumer.poll(timeout=WAIT_S)] == [[b"submitted"]]


def test_a_poll_that_commits_by_itself_proves_nothing_and_an_explicit_commit_does(
    start: Start, tmp_path: Path, eventually: Eventually
) -> None:
    """The offsets of this partition cannot be written: polls go on, the commit that is waited for says so."""
    switch = tmp_path / "worn-out"
    broker = start(environment={FAULT_VARIABLE: f"write:consumers:{switch}:EIO"}).ready()
    with broker.connect() as client:
        client.create_stream("s")
        client.create_topic("s", "t", consumer_offset_durability="persisted")
        send(client, "t", 10)
        client.set_consumer_offset("s", "t", 0, 1, name="reader")
        switch.touch()
        consumer = client.consumer("s", "t", partition=0, name="reader", auto_commit=True)
        assert [batch.base_offset for batch in consumer.poll(max_messages=3, timeout=WAIT_S)] == [2, 3, 4]
        with pytest.raises(ShmbrokerError):
            consumer.commit()
        with suppress(ShmbrokerError):  # It may still have its automatic commit's failure to tell.
            consumer.close()
    broker.kill_everything()
    broker = start().ready()
    with broker.connect() as client:
        assert client.get_consumer_offset("s", "t", 0, name="reader") == 1, "what was confirmed, and no more"
        with client.consumer("s", "t", partition=0, name="reader", auto_commit=True) as consumer:
            assert consumer.poll(max_messages=3, timeout=WAIT_S)[0].base_offset == 2
            consumer.poll(max_messages=1, timeout=WAIT_S)
        eventually(lambda: client.get_consumer_offset("s", "t", 0, name="reader") in (4, 5), "the automatic commit")
    assert broker.stop() == 0
