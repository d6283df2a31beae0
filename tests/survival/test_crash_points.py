"""SIGKILL at every named point that messages pass, early and late, under producers of both policies at once.

The producers repeat what has no known outcome under its own number (rule 7), so in the end each log holds exactly what
was sent: all of it, once, in order. Then every process is killed, and it must still do so.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
from pathlib import Path

import pytest

from shmbroker import crash_points
from shmbroker.errors import ShmbrokerError
from shmbroker.front.places import default_runtime
from tests.conftest import Eventually
from tests.processes.conftest import Start, is_alive

from .load import Load, check, read_log

POINTS = (
    crash_points.AFTER_APPEND,
    crash_points.BEFORE_GROUP_WRITE,
    crash_points.AFTER_GROUP_WRITE,
    crash_points.BEFORE_COMPLETIONS,
    crash_points.AFTER_COMPLETIONS,
    crash_points.DURING_ROLL,
)
OF_THE_CATALOG = (crash_points.DURING_PURGE, crash_points.BEFORE_CATALOG_COMMIT, crash_points.AFTER_CATALOG_COMMIT)
"""No message is under way there: tests/processes has them."""
ROUNDS_MAX = 300
LATE = {crash_points.DURING_ROLL: (2, 5)}
"""Where each topic's first segment is one, and a MiB each further one."""
TOPICS = ("replicated", "persisted")
"""Each named for its policy."""


def test_every_point_that_messages_pass_is_here() -> None:
    assert {*POINTS, *OF_THE_CATALOG, crash_points.AFTER_OPEN} == set(crash_points.NAMES)


@pytest.mark.parametrize("when", ["first", "soon", "late"])
@pytest.mark.parametrize("point", POINTS)
def test_rule_07_nothing_is_lost_or_doubled_under_producers_of_both_policies(
    start: Start, rng: random.Random, point: str, when: str
) -> None:
    low, high = LATE.get(point, (10, 60)) if when == "late" else (2, 10)
    if point == crash_points.DURING_ROLL and when == "soon":
        low, high = 2, 3
    count = 1 if when == "first" else rng.randrange(low, high)
    print(f"crash at {point}:{count}")
    broker = start(crash_at=f"{point}:{count}").ready()
    (first,) = broker.workers()
    with broker.connect() as client:
        client.create_stream("s")
        for topic in TOPICS:
            client.create_topic(
                "s", topic, durability=topic, segment_size="1 MiB", messages_required_to_save=50
            )  # fmt: skip
        loads = {
            topic: [
                Load(broker.connect, topic, rng, name=number, resends=True, size_max=12_000 // (number + 1)).start()
                for number in range(2)
            ]
            for topic in TOPICS
        }
        everybody = [load for each in loads.values() for load in each]
        for _ in range(ROUNDS_MAX):
            for load in everybody:
                load.await_acknowledged(20)
            if not is_alive(first):
                break
        assert not is_alive(first), "the point was never passed"
        for load in everybody:
            load.await_acknowledged(50)
        for load in everybody:
            assert load.stop().error is None
        for topic in TOPICS:
            check(read_log(client, topic), loads[topic], everything=True)
    broker.kill_everything()
    broker = start().ready()
    with broker.connect() as client:
        for topic in TOPICS:
            check(read_log(client, topic), loads[topic], everything=True)
            with client.producer("s", topic) as producer:
                assert producer.send([b"next"], partition=0).base_offset == sum(len(load.sent) for load in loads[topic])
    assert broker.stop() == 0


def test_a_recovery_that_is_killed_before_it_serves_is_repeated(start: Start, data: Path, rng: random.Random) -> None:
    """Everything dies under load; then the worker dies again and again with its partitions recovered, unpublished."""
    broker = start().ready()
    with broker.connect() as client:
        client.create_stream("s")
        for topic in TOPICS:
            client.create_topic("s", topic, durability=topic)
    loads = {topic: [Load(broker.connect, topic, rng).start()] for topic in TOPICS}
    for (load,) in loads.values():
        load.await_acknowledged(300)
    broker.kill_everything()
    for (load,) in loads.values():
        load.join()
    for _ in range(2):
        broker = start(crash_at=crash_points.AFTER_OPEN).ready()
        with broker.connect() as client:
            for topic in TOPICS:
                check(read_log(client, topic), loads[topic])
        broker.kill_everything()
    broker = start().ready()
    with broker.connect() as client:
        for topic in TOPICS:
            check(read_log(client, topic), loads[topic])
    assert broker.stop() == 0


def test_tickets_outlive_the_broker_that_died_and_their_repeats_are_told_the_first_answer(
    start: Start, rng: random.Random
) -> None:
    """All processes die with tickets under way; another client repeats them on the next broker, which knows them."""
    broker = start().ready()
    with broker.connect() as client:
        client.create_stream("s")
        for topic in TOPICS:
            client.create_topic("s", topic, durability=topic)
    client = broker.connect()
    tickets = {}
    payloads = [[b"%d" % number, rng.randbytes(500)] for number in range(40)]
    for topic in TOPICS:
        producer = client.producer("s", topic)
        tickets[topic] = [producer.submit(payload, partition=0) for payload in payloads]
        tickets[topic][0].result(60)
    broker.kill_everything()
    broker = start().ready()
    with broker.connect() as other:
        for topic, sent in tickets.items():
            with other.producer("s", topic) as producer:
                again = [producer.resend(ticket) for ticket in sent if ticket.exception(60) is not None]
                for ticket in again:
                    ticket.result(60)
            assert [payload for _, payload in read_log(other, topic)] == [piece for pair in payloads for piece in pair]
    try:
        client.close()
    except ShmbrokerError as error:
        print("as expected, the old client says:", error)
    assert broker.stop() == 0


@pytest.mark.parametrize("point", [point for point in POINTS if point != crash_points.DURING_ROLL])
def test_what_is_acknowledged_at_a_point_is_on_the_disk_and_not_in_memory_alone(
    start: Start, data: Path, rng: random.Random, eventually: Eventually, point: str
) -> None:
    """The worker dies at the point, nobody starts it again, and the shared memory is gone: as if the power had failed.

    The front is stopped meanwhile, which no producer notices.
    """
    count = rng.randrange(20, 60)
    print(f"crash at {point}:{count}")
    broker = start(crash_at=f"{point}:{count}").ready()
    (worker,) = broker.workers()
    with broker.connect() as client:
        client.create_stream("s")
        client.create_topic("s", "t", durability="persisted")
    gate = threading.Event()
    loads = [Load(broker.connect, "t", rng, name=name, in_flight=4, gate=gate).start() for name in range(2)]
    for load in loads:
        load.await_started()
    os.kill(broker.pid, signal.SIGSTOP)
    gate.set()
    eventually(lambda: not is_alive(worker), "the worker to die at its point", 60)
    broker.kill_everything()
    for load in loads:
        load.join()
    shutil.rmtree(default_runtime(str(data)))
    broker = start().ready()
    with broker.connect() as client:
        found = read_log(client, "t")
        check(found, loads)
        with client.producer("s", "t") as producer:
            assert producer.send([b"next"], partition=0).base_offset >= len(found)
    assert broker.stop() == 0
