"""Clients that lie in their lanes or vanish, and what a worker does without being asked: retention, final flush."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shmbroker.cli.main import app
from shmbroker.client.connection import Connection
from shmbroker.client.encoding import encode_batch
from shmbroker.errors import ClientMistake, ErrorCode, NotFound, Unauthorized
from shmbroker.formats.lane import REQUEST_APPEND, REQUEST_CONTROL, REQUEST_STORE_OFFSET, WORD_REQUEST_HEAD, pack_key
from shmbroker.formats.offsets import KEY_CONSUMER, name_key
from shmbroker.front.places import default_runtime
from shmbroker.limits import LANE_SIZE_MIN
from shmbroker.shm.doorbell import Doorbell, EventDoorbell, NamedDoorbell
from shmbroker.shm.lane import LaneClient
from shmbroker.shm.region import Region
from shmbroker.wire import groups, local, streams, system
from shmbroker.wire.commands import Request
from shmbroker.wire.connection import Answer, ClientConnection

from .conftest import WAIT_S, BrokerProcess, Start
from .conftest import kill as send_signal
from .test_rules_of_processes import read_all, send_until_told


def deadline() -> float:
    return time.monotonic() + WAIT_S


@contextmanager
def connection_to(broker: BrokerProcess) -> Iterator[Connection]:
    connection = Connection(str(broker.data), version=version("shmbroker"), timeout=WAIT_S)
    try:
        yield connection
    finally:
        connection.close()


def with_topic(broker: BrokerProcess, **options: object) -> None:
    with broker.connect() as client:
        client.create_stream("s")
        client.create_topic("s", "t", **options)  # type: ignore[arg-type]


def record(number: int = 1) -> bytes:
    parts = encode_batch([b"x"], producer_id=9, sequence=number, id_base=number, origin_timestamp_us=1)
    return b"".join(parts)


def answer_of(lane: LaneClient, bell: Doorbell, number: int) -> tuple[int, int]:
    """Status and value of the completion of one request; status LANE_* where the lane was closed instead."""
    end = deadline()
    while time.monotonic() < end:
        for found, status, _, value, _ in lane.completions():
            if found == number:
                return status, value
        if lane.closed:
            return lane.closed, 0
        bell.wait(0.1)
    raise AssertionError(f"request {number} was not answered")


def test_a_lane_that_lies_is_closed_and_the_others_never_notice(start: Start, eventually) -> None:
    broker = start().ready()
    with_topic(broker)
    with broker.connect() as honest, honest.producer("s", "t") as producer, connection_to(broker) as connection:
        assert producer.send([b"before"]).base_offset == 0
        grant = connection.request(local.OpenPartition("s", "t", 0, ["append"]), deadline())
        lane, bell, _ = connection.open_lane(0, LANE_SIZE_MIN, deadline())
        body = record()
        assert lane.offer(REQUEST_APPEND, 0, 1, grant.log_id, 0, (body,), len(body))
        lane.ring()
        assert answer_of(lane, bell, 1) == (0, 1)
        lane._words[WORD_REQUEST_HEAD] = 1 << 40
        lane.ring()
        assert answer_of(lane, bell, 2) == (ErrorCode.LANE_PROTOCOL, 0)
        assert producer.send([b"after"]).base_offset == 2
        eventually(lambda: "was closed" in broker.said(), "the front to say so")
        # The connection lives, and may have another lane.
        lane, bell, _ = connection.open_lane(0, LANE_SIZE_MIN, deadline())
        assert lane.offer(REQUEST_APPEND, 0, 1, grant.log_id, 0, (record(2),), len(body))
        lane.ring()
        assert answer_of(lane, bell, 1) == (0, 3)
    assert broker.stop() == 0


def test_rule_12_only_the_front_may_ask_for_control(start: Start) -> None:
    broker = start().ready()
    with connection_to(broker) as connection:
        lane, bell, _ = connection.open_lane(0, LANE_SIZE_MIN, deadline())
        body = b'{"op": "stop"}'
        assert lane.offer(REQUEST_CONTROL, 0, 1, 0, len(body), (body,), len(body))
        lane.ring()
        assert answer_of(lane, bell, 1)[0] == ErrorCode.LANE_PROTOCOL
    with broker.connect() as client:
        client.create_stream("still serving")
    assert broker.stop() == 0


def test_a_lane_may_do_what_was_granted_and_nothing_else(start: Start) -> None:
    broker = start().ready()
    with_topic(broker, partitions=2)
    with connection_to(broker) as connection:
        lane, bell, _ = connection.open_lane(0, LANE_SIZE_MIN, deadline())
        body = record()

        def append(number: int, log_id: int) -> int:
            assert lane.offer(REQUEST_APPEND, 0, number, log_id, 0, (body,), len(body))
            lane.ring()
            return answer_of(lane, bell, number)[0]

        granted = connection.request(local.OpenPartition("s", "t", 0, ["read"]), deadline())
        assert append(1, granted.log_id) == ErrorCode.PARTITION_NOT_GRANTED, "reading is not appending"
        assert append(2, granted.log_id + 1) == ErrorCode.PARTITION_NOT_GRANTED
        assert append(3, 10**9) == ErrorCode.PARTITION_NOT_GRANTED
        connection.request(local.OpenPartition("s", "t", 0, ["append"]), deadline())
        assert append(4, granted.log_id) == 0, "a grant holds for lanes that are there already"
        key = pack_key(name_key(KEY_CONSUMER, "c"))
        assert lane.offer(REQUEST_STORE_OFFSET, 0, 5, granted.log_id, 0, (key,), len(key))
        lane.ring()
        assert answer_of(lane, bell, 5)[0] == ErrorCode.PARTITION_NOT_GRANTED
        with pytest.raises(Unauthorized):
            connection.watch([granted.log_id + 1], deadline())
        with pytest.raises(ClientMistake):
            connection.request(local.Confirm(["somebody-elses"]), deadline())
        with pytest.raises(ClientMistake):
            connection.request(local.CloseLane(10**6), deadline())
    assert broker.stop() == 0


def test_lanes_and_watches_of_an_event_loop(start: Start, eventually) -> None:
    """Their bells have no name: they travel as descriptors, and a respawned worker gets the watch's again."""
    broker = start().ready()
    with_topic(broker)
    with connection_to(broker) as connection:
        reply, descriptors = connection.call(local.OpenLane(0, LANE_SIZE_MIN, True), deadline())
        assert isinstance(reply, local.OpenLaneReply)
        assert reply.completion is None
        doorbell = NamedDoorbell.open(reply.doorbell)
        lane, bell = LaneClient(Region.attach(descriptors[0]), doorbell), EventDoorbell(descriptors[1])
        grant = connection.request(local.OpenPartition("s", "t", 0, ["append", "read"]), deadline())
        body = record()
        assert lane.offer(REQUEST_APPEND, 0, 1, grant.log_id, 0, (body,), len(body))
        lane.ring()
        assert bell.wait(WAIT_S)
        assert answer_of(lane, bell, 1) == (0, 0)
        watched, descriptors = connection.call(local.Watch([grant.log_id], True), deadline())
        assert isinstance(watched, local.WatchReply)
        watch_bell = EventDoorbell(descriptors[0])
        assert watch_bell.wait(WAIT_S)
        bell.drain()
        broker.kill_worker()
        assert bell.wait(WAIT_S), "a lane whose worker died wakes its client"
        assert answer_of(lane, bell, 2) == (ErrorCode.LANE_CLOSED, 0)
        assert watch_bell.wait(WAIT_S), "the next worker has the bell"
        connection.request(local.Unwatch(watched.watch_id), deadline())
        with pytest.raises(ClientMistake):
            connection.request(local.Unwatch(watched.watch_id), deadline())
        for each in (bell, watch_bell, doorbell):
            each.close()
        lane.close()
        with broker.connect() as client:
            eventually(lambda: client.stats()["workers"][0]["watches"] == 0, "the watch to be gone")
    assert broker.stop() == 0


def test_what_a_client_published_before_it_died_is_served(start: Start, eventually) -> None:
    """The client is killed and never rings: its lane is read all the same, and then given back."""
    broker = start().ready()
    with_topic(broker, durability="persisted")
    program = (
        "import sys, os, signal, time\n"
        "sys.path.insert(0, '.')\n"
        "from tests.processes.test_lanes_and_upkeep import *\n"
        "connection = Connection(sys.argv[1], version=version('shmbroker'), timeout=WAIT_S)\n"
        "grant = connection.request(local.OpenPartition('s', 't', 0, ['append']), deadline())\n"
        "lane, bell, _ = connection.open_lane(0, LANE_SIZE_MIN, deadline())\n"
        "for number in range(1, 21):\n"
        "    body = record(number)\n"
        "    assert lane.offer(REQUEST_APPEND, 0, number, grant.log_id, 0, (body,), len(body))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(broker.data)], timeout=WAIT_S, check=False)
    assert done.returncode == -signal.SIGKILL
    with broker.connect() as client:
        eventually(lambda: len(read_all(client, "s", "t")) == 20, "the dead client's messages")
        eventually(lambda: client.stats()["workers"][0]["lanes"] == 0, "its lane to be given back")
        assert send_until_told(client, "t", b"next") == 20
    assert broker.stop() == 0


def test_rule_17_stored_offsets_keep_their_policy(start: Start) -> None:
    """Both survive SIGKILL of every process; a delete does too."""
    broker = start().ready()
    for policy in ("replicated", "persisted"):
        with broker.connect() as client:
            if policy == "replicated":
                client.create_stream("s")
            client.create_topic("s", policy, consumer_offset_durability=policy)
            with client.producer("s", policy) as producer:
                producer.send([b"%d" % number for number in range(10)])
            client.set_consumer_offset("s", policy, 0, 3, name="a")
            client.set_consumer_offset("s", policy, 0, 7, group="g")
            client.set_consumer_offset("s", policy, 0, 5, id=4)
            client.delete_consumer_offset("s", policy, 0, id=4)
            with pytest.raises(NotFound):
                client.delete_consumer_offset("s", policy, 0, id=4)
    broker.kill_everything()
    broker = start().ready()
    with broker.connect() as client:
        for policy in ("replicated", "persisted"):
            assert client.get_consumer_offset("s", policy, 0, name="a") == 3
            assert client.get_consumer_offset("s", policy, 0, group="g") == 7
            assert client.get_consumer_offset("s", policy, 0, id=4) is None
    assert broker.stop() == 0


def test_retention_by_age_goes_round_quiet_partitions(start: Start, eventually) -> None:
    broker = start(environment={"SHMBROKER_RETENTION_INTERVAL": "1s"}).ready()
    with_topic(broker, segment_size="1 MiB", message_expiry="1s")
    with broker.connect() as client, client.producer("s", "t") as producer:
        for _ in range(3):
            producer.send([bytes(600_000), bytes(600_000)])
        assert client.get_topic("s", "t").partitions[0].segment_count == 3
        eventually(lambda: client.get_topic("s", "t").partitions[0].segment_count == 1, "expired segments to go")
        assert read_all(client, "s", "t")[0][0] == 4, "the newest segment never goes"
        assert client.get_topic("s", "t").message_count == 2
    assert broker.stop() == 0


def test_retention_that_is_switched_off_deletes_nothing(start: Start, eventually) -> None:
    broker = start(environment={"SHMBROKER_RETENTION_ENABLED": "false", "SHMBROKER_RETENTION_INTERVAL": "1s"}).ready()
    with_topic(broker, segment_size="1 MiB", message_expiry="1s")
    with broker.connect() as client, client.producer("s", "t") as producer:
        for _ in range(3):
            producer.send([bytes(600_000), bytes(600_000)])
        before_s = client.stats()["workers"][0]["uptime_s"]
        eventually(lambda: client.stats()["workers"][0]["uptime_s"] > before_s + 3, "three rounds to pass")
        assert client.get_topic("s", "t").partitions[0].segment_count == 3
        client.delete_segments("s", "t", 0, 1)
        assert client.get_topic("s", "t").partitions[0].segment_count == 2
    assert broker.stop() == 0


def test_figures_name_the_worker_that_hangs(start: Start) -> None:
    broker = start("--workers=2").ready()
    with broker.connect() as client:
        hung = client.stats()["workers"][1]["pid"]
        send_signal(hung, signal.SIGSTOP)
        try:
            states = [worker["state"] for worker in client.stats()["workers"]]
            shown = CliRunner().invoke(app, ["stats", "--data", str(broker.data)])
        finally:
            send_signal(hung, signal.SIGCONT)
        assert states == ["running", "silent"]
        assert shown.exit_code == 0
        assert "worker 1: it has not answered" in shown.stderr
        assert [worker["state"] for worker in client.stats()["workers"]] == ["running", "running"]
    assert broker.stop() == 0


def test_partitions_come_and_go_while_others_are_used(start: Start, data: Path) -> None:
    broker = start("--workers=2").ready()
    with_topic(broker, partitions=3)
    with broker.connect() as client:
        client.create_partitions("s", "t", 2)
        assert [send_until_told(client, "t", b"x", partition=number) for number in range(5)] == [0] * 5
        client.delete_partitions("s", "t", 3)
        with pytest.raises(NotFound):
            send_until_told(client, "t", b"x", partition=2)
        assert len(list((data / "partitions").iterdir())) == 2
        client.create_topic("s", "durable", partitions=2, durability="persisted")
        workers = {(entry["topic"], entry["worker"]) for entry in client.stats()["partitions"]}
        assert workers == {("t", 0), ("durable", 1)}, "the two policies are placed apart"
        client.purge_stream("s")
        assert client.get_stream("s").message_count == 0
        client.delete_stream("s")
        assert list((data / "partitions").iterdir()) == []
    assert broker.stop() == 0


def test_first_request_must_be_a_greeting(start: Start) -> None:
    broker = start().ready()
    codec = ClientConnection(client=7, session=local.LOCAL_SESSION)
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(WAIT_S)
        raw.connect(f"{default_runtime(str(broker.data))}/broker.sock")

        def status_of(request: Request) -> int:
            raw.sendall(codec.request(request))
            while not isinstance(answer := codec.next_answer(), Answer):
                assert answer is None
                codec.feed(raw.recv(65_536))
            return answer.status

        assert status_of(streams.GetStreams()) == ErrorCode.UNAUTHENTICATED
        assert status_of(system.Ping()) == 0
        assert status_of(local.Hello("0.0.0", 1)) == ErrorCode.INVALID_COMMAND, "another version"
        assert status_of(streams.GetStreams()) == ErrorCode.UNAUTHENTICATED
        assert status_of(local.Hello(version("shmbroker"), 1)) == 0
        assert status_of(streams.GetStreams()) == 0
        assert status_of(groups.JoinGroup("s", "t", "g")) == ErrorCode.STREAM_NOT_FOUND
        raw.sendall(bytes(300))
        assert raw.recv(1) == b"", "what is no frame ends the connection"
    assert broker.stop() == 0
