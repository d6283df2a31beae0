"""Rules 1, 7, 11, 12, 13, 14 and 15, with real processes and real deaths."""

from __future__ import annotations

import os
import shutil
import signal
import time
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import pytest

import shmbroker
from shmbroker.client.client import Client
from shmbroker.client.connection import Connection
from shmbroker.core.options import Durability
from shmbroker.errors import NotFound, OutcomeUnknown, PartitionPoisoned, PartitionRefused, ShmbrokerError, Unavailable
from shmbroker.front.places import default_runtime
from shmbroker.shm.doorbell import NamedDoorbell
from shmbroker.shm.liveness import FileLock
from shmbroker.wire import local

from .conftest import WAIT_S, Start, is_alive


def read_all(client: Client, stream: str, topic: str, partition: int = 0) -> list[tuple[int, bytes]]:
    """Everything that is visible: offset and payload."""
    found: list[tuple[int, bytes]] = []
    with client.consumer(stream, topic, partition=partition, first=True) as consumer:
        while batches := consumer.poll(max_messages=10_000, timeout=0.0):
            for batch in batches:
                found += [(batch.base_offset + index, payload) for index, payload in enumerate(batch.payloads())]
    return found


def send_until_told(client: Client, topic: str, payload: bytes, *, partition: int = 0) -> int:
    """The offset of a message, sent again with the same producer and sequence as often as its outcome is unknown."""
    with client.producer("s", topic) as producer:
        ticket = producer.submit([payload], partition=partition)
        while True:
            try:
                return ticket.result(WAIT_S).base_offset
            except OutcomeUnknown:
                ticket = producer.resend(ticket)


def test_rule_01_new_front_waits_for_the_worker_of_a_killed_one(start: Start, data: Path, eventually) -> None:
    first = start().ready()
    worker = first.workers()[0]
    os.kill(worker, signal.SIGSTOP)
    os.kill(first.pid, signal.SIGKILL)
    first.process.wait(WAIT_S)
    second = start()
    eventually(lambda: not FileLock.is_free(str(data / "broker.lock")), "the second front to hold the data directory")
    assert not second.is_ready(0.5), "nothing is read while the old worker may still write"
    assert not FileLock.is_free(str(data / "worker-0.lock"))
    os.kill(worker, signal.SIGCONT)
    second.ready()
    assert not is_alive(worker)
    assert second.stop() == 0


def test_rule_01_workers_end_with_their_front_and_lose_nothing(start: Start, eventually) -> None:
    broker = start("--workers=2").ready()
    with broker.connect() as client:
        client.create_stream("s")
        client.create_topic("s", "t", durability=Durability.REPLICATED)
        assert send_until_told(client, "t", b"acknowledged") == 0
    workers = broker.workers()
    assert len(workers) == 2
    os.kill(broker.pid, signal.SIGKILL)
    broker.process.wait(WAIT_S)
    eventually(lambda: not any(is_alive(pid) for pid in workers), "the workers to end")
    broker = start("--workers=2").ready()
    with broker.connect() as client:
        assert read_all(client, "s", "t") == [(0, b"acknowledged")]
        assert send_until_told(client, "t", b"next") == 1, "the ring was taken over: no gap"
    assert broker.stop() == 0


@pytest.mark.parametrize("durability", ["replicated", "persisted"])
def test_rule_07_lanes_die_with_their_worker_and_a_resend_is_told_the_first_answer(
    start: Start, durability: str
) -> None:
    """The worker dies when everything of the pass is done but the answers."""
    point = "before-completions:3" if durability == "persisted" else "after-append:3"
    broker = start(crash_at=point).ready()
    with broker.connect() as client:
        client.create_stream("s")
        client.create_topic("s", "t", durability=durability)
        with client.producer("s", "t") as producer:
            assert producer.send([b"0"]).base_offset == 0
            assert producer.send([b"1"]).base_offset == 1
            ticket = producer.submit([b"2"])
            with pytest.raises(OutcomeUnknown):
                ticket.result(WAIT_S)
            confirmation = producer.resend(ticket).result(WAIT_S)
            assert (confirmation.base_offset, confirmation.count, confirmation.duplicate) == (2, 1, True)
            assert producer.send([b"3"]).base_offset == 3
        assert read_all(client, "s", "t") == [(number, b"%d" % number) for number in range(4)]
    assert broker.stop() == 0


def test_rule_11_poison_spares_the_others_survives_a_respawn_and_ends_with_the_run(start: Start, eventually) -> None:
    log_directory = f"{1:020}/"
    broker = start(environment={"SHMBROKER_FAIL_AT": f"write:{log_directory}*.log:3:EIO"}).ready()
    with broker.connect() as client:
        client.create_stream("s")
        client.create_topic("s", "t", partitions=2, durability="persisted")
        with client.producer("s", "t") as producer:
            kept = 0
            with suppress(PartitionPoisoned):
                while kept < 10:
                    producer.send([b"kept"], partition=0)
                    kept += 1
            assert 1 <= kept < 10
            with pytest.raises(PartitionPoisoned):
                producer.send([b"refused"], partition=0)
            assert producer.send([b"fine"], partition=1).base_offset == 0
        before = broker.kill_worker()
        eventually(lambda: broker.workers() not in ([], [before]), "another worker")
        with client.producer("s", "t") as producer:
            assert producer.send([b"fine"], partition=1).base_offset == 1
            with pytest.raises(PartitionPoisoned):
                producer.send([b"refused"], partition=0)
    assert broker.stop() == 1, "not everything was written"
    assert "poisoned" in broker.said()
    broker = start().ready()
    with broker.connect() as client:
        assert [payload for _, payload in read_all(client, "s", "t")][:kept] == [b"kept"] * kept
        assert send_until_told(client, "t", b"again") >= kept
    assert broker.stop() == 0


def test_rule_12_a_flooded_doorbell_holds_up_nobody(start: Start) -> None:
    broker = start().ready()
    with broker.connect() as client:
        client.create_stream("s")
        client.create_topic("s", "t")
        doorbells = Path(default_runtime(str(broker.data)), "doorbells")
        bell = NamedDoorbell.open(str(next(doorbells.glob("worker-0-*"))))
        for _ in range(200_000):
            bell.ring()
        client.create_topic("s", "u")
        bell.drain()
        assert send_until_told(client, "u", b"still there") == 0
        bell.close()
    assert broker.stop() == 0


@pytest.mark.parametrize("point", ["before-catalog-commit", "after-catalog-commit"])
def test_rule_13_partitions_are_durable_before_the_catalog_knows_them(start: Start, data: Path, point: str) -> None:
    """The front dies right before, and right after, the commit that creates a topic: the third, after the root's and
    the stream's."""
    broker = start(crash_at=f"{point}:3").ready()
    with broker.connect() as client:
        client.create_stream("s")
        with pytest.raises(ShmbrokerError):
            client.create_topic("s", "t", partitions=3)
    assert broker.wait() == -signal.SIGKILL
    broker = start().ready()
    directories = sorted(path.name for path in (data / "partitions").iterdir())
    with broker.connect() as client:
        if point == "before-catalog-commit":
            with pytest.raises(NotFound):
                client.get_topic("s", "t")
            assert directories == [], "what the catalog never knew is swept"
            client.create_topic("s", "t", partitions=3)
        assert client.get_topic("s", "t").partition_count == 3
        assert [send_until_told(client, "t", b"x", partition=number) for number in range(3)] == [0, 0, 0]
    names = [int(path.name) for path in (data / "partitions").iterdir()]
    assert min(names) == (4 if point == "before-catalog-commit" else 1), "no log id is issued twice"
    assert broker.stop() == 0


def test_rule_13_a_partition_that_is_missing_refuses_and_the_others_start(start: Start, data: Path) -> None:
    broker = start().ready()
    with broker.connect() as client:
        client.create_stream("s")
        client.create_topic("s", "t", partitions=2)
        send_until_told(client, "t", b"here", partition=1)
    assert broker.stop() == 0
    shutil.rmtree(data / "partitions" / f"{1:020}")
    broker = start().ready()
    with broker.connect() as client:
        with pytest.raises(PartitionRefused):
            send_until_told(client, "t", b"lost", partition=0)
        assert send_until_told(client, "t", b"fine", partition=1) == 1
        refused = next(entry for entry in client.stats()["partitions"] if entry["partition"] == 0)
        assert f"{1:020}" in refused["reason"]
    assert broker.stop() == 0


def test_rule_13_deleted_partitions_are_gone_after_a_crash_in_between(start: Start, data: Path) -> None:
    broker = start(crash_at="after-catalog-commit:4").ready()
    with broker.connect() as client:
        client.create_stream("s")
        client.create_topic("s", "t", partitions=2)
        with pytest.raises(ShmbrokerError):
            client.delete_topic("s", "t")
    assert broker.wait() == -signal.SIGKILL
    assert len(list((data / "partitions").iterdir())) == 2
    broker = start().ready()
    assert list((data / "partitions").iterdir()) == []
    with broker.connect() as client, pytest.raises(NotFound):
        client.get_topic("s", "t")
    assert broker.stop() == 0


@pytest.mark.parametrize("crash_at", ["", "during-purge"])
def test_rule_14_purge_begins_at_offset_0_and_a_crash_in_it_is_completed(
    start: Start, data: Path, crash_at: str
) -> None:
    broker = start(crash_at=crash_at).ready()
    with broker.connect() as client:
        client.create_stream("s")
        client.create_topic("s", "t", durability="persisted")
        for number in range(3):
            assert send_until_told(client, "t", b"old") == number
        client.set_consumer_offset("s", "t", 0, 1, name="reader")
        if crash_at:
            with pytest.raises(Unavailable):
                client.purge_topic("s", "t")
        else:
            client.purge_topic("s", "t")
        assert send_until_told(client, "t", b"new") == 0
        assert read_all(client, "s", "t") == [(0, b"new")]
        assert client.get_consumer_offset("s", "t", 0, name="reader") is None
    incarnations = [path for path in (data / "partitions" / f"{1:020}").iterdir() if path.is_dir()]
    assert len(incarnations) == 1, "the old files are gone"
    assert broker.stop() == 0


def test_rule_15_a_watch_rings_for_its_partition_alone_and_survives_the_worker(start: Start, eventually) -> None:
    broker = start().ready()
    with broker.connect() as client, broker.connect() as other:
        client.create_stream("s")
        client.create_topic("s", "t", partitions=2, durability="persisted")
        with (
            client.consumer("s", "t", partition=0, first=True) as consumer,
            other.producer("s", "t") as producer,
        ):
            assert consumer.poll(max_messages=1, timeout=0.05) == []
            producer.send([b"for nobody"], partition=1)
            producer.send([b"zero"], partition=0)
            (batch,) = consumer.poll(max_messages=10, timeout=WAIT_S)
            assert batch.payloads() == [b"zero"]
            before = broker.kill_worker()
            eventually(lambda: broker.workers() not in ([], [before]), "another worker")
            send_until_told(other, "t", b"one")
            (batch,) = consumer.poll(max_messages=10, timeout=WAIT_S)
            assert batch.payloads() == [b"one"]
    assert broker.stop() == 0


def test_rule_15_a_bell_rings_for_its_own_log_only_and_again_after_a_respawn(start: Start, eventually) -> None:
    broker = start().ready()
    with broker.connect() as client:
        client.create_stream("s")
        client.create_topic("s", "t", partitions=2)
        producer = client.producer("s", "t")
        connection = Connection(str(broker.data), version=version("shmbroker"), timeout=WAIT_S)
        deadline = time.monotonic() + WAIT_S
        grant = connection.request(local.OpenPartition("s", "t", 0, ["read"]), deadline)
        _, bell = connection.watch([grant.log_id], deadline)
        assert bell.wait(WAIT_S), "what was visible before the watch is not waited for"
        bell.drain()
        producer.send([b"1"], partition=1)
        producer.send([b"1"], partition=1)  # Its answer comes after the bells of the pass before.
        assert not bell.wait(0.0)
        producer.send([b"0"], partition=0)
        assert bell.wait(WAIT_S)
        bell.drain()
        broker.kill_worker()
        assert bell.wait(WAIT_S), "a respawned worker gets the bell again"
        bell.close()
        connection.close()
    assert broker.stop() == 0


def test_embedded_ends_with_a_program_that_is_killed(data: Path, eventually) -> None:
    import subprocess
    import sys

    program = (
        "import shmbroker, sys, time\n"
        "broker = shmbroker.embedded(sys.argv[1]).start()\n"
        "client = broker.connect()\n"
        "client.create_stream('s'); client.create_topic('s', 't')\n"
        "producer = client.producer('s', 't')\n"
        "producer.send([b'acknowledged'])\n"
        "print(*broker.process_ids(), flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(data)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        assert len(pids) == 2
        process.kill()
        process.wait(WAIT_S)
    eventually(lambda: not any(is_alive(pid) for pid in pids), "the broker to end with its program", timeout_s=WAIT_S)
    assert not os.path.exists(default_runtime(str(data))), "it drained and ended in order"
    with shmbroker.embedded(data) as broker, broker.connect() as client:
        assert read_all(client, "s", "t") == [(0, b"acknowledged")]


def test_embedded_starts_a_front_that_died_again(data: Path, eventually) -> None:
    with shmbroker.embedded(data) as broker:
        first = broker.pid
        with broker.connect() as client:
            client.create_stream("s")
            client.create_topic("s", "t")
            send_until_told(client, "t", b"acknowledged")
        os.kill(first, signal.SIGKILL)
        eventually(lambda: broker.pid != first, "another front", timeout_s=WAIT_S)
        with broker.connect() as client:
            assert read_all(client, "s", "t") == [(0, b"acknowledged")]
