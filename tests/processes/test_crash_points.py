"""SIGKILL at every named point, and of everything under load: what was acknowledged is there, once, in order.

The producer resends what has no known outcome with the same number, so the log must end up as the list of what was
sent: nothing lost, nothing twice. What a replicated topic acknowledged survives the death of all processes too.
"""

from __future__ import annotations

import os
import random
import threading

import pytest

from shmbroker import crash_points
from shmbroker.client.client import Client
from shmbroker.client.producer import Producer
from shmbroker.client.ticket import Ticket
from shmbroker.crash_points import parse
from shmbroker.errors import InvalidConfiguration, OutcomeUnknown, ShmbrokerError
from shmbroker.front.places import default_runtime

from .conftest import WAIT_S, Start
from .test_rules_of_processes import read_all

BATCH_COUNT = 40
IN_FLIGHT = 8
WORKER_POINTS = (
    crash_points.AFTER_APPEND,
    crash_points.BEFORE_GROUP_WRITE,
    crash_points.AFTER_GROUP_WRITE,
    crash_points.BEFORE_COMPLETIONS,
    crash_points.AFTER_COMPLETIONS,
    crash_points.DURING_ROLL,
)
REPLICATED_POINTS = (crash_points.AFTER_APPEND, crash_points.DURING_ROLL)
"""A replicated topic waits for no group."""


def settle(producer: Producer, tickets: list[Ticket]) -> list[int]:
    """The offset of every ticket, in the order of sending, whatever died in between.

    As soon as one outcome is unknown, all later tickets are waited for first: they were in flight on the same lane, and
    are sent again in their old order.
    """
    while True:
        unknown = []
        for index, ticket in enumerate(tickets):
            try:
                ticket.result(WAIT_S)
            except OutcomeUnknown:
                unknown.append(index)
        if not unknown:
            return [ticket.result(WAIT_S).base_offset for ticket in tickets]
        for index in unknown:
            tickets[index] = producer.resend(tickets[index])


def produce(client: Client, topic: str, rng: random.Random) -> dict[int, bytes]:
    """Sends BATCH_COUNT batches with several in flight: offset and payload of each message that was acknowledged."""
    acknowledged: dict[int, bytes] = {}
    with client.producer("s", topic) as producer:
        number = 0
        while number < BATCH_COUNT:
            batches = [
                [b"%d.%d." % (number + step, index) + rng.randbytes(rng.randrange(1, 3000)) for index in range(3)]
                for step in range(IN_FLIGHT)
            ]
            tickets = [producer.submit(batch, partition=0) for batch in batches]
            for base_offset, batch in zip(settle(producer, tickets), batches, strict=True):
                for index, payload in enumerate(batch):
                    assert base_offset + index not in acknowledged, "an offset is issued once"
                    acknowledged[base_offset + index] = payload
            number += IN_FLIGHT
    return acknowledged


@pytest.mark.parametrize(
    ("durability", "point"),
    [("persisted", point) for point in WORKER_POINTS] + [("replicated", point) for point in REPLICATED_POINTS],
)
def test_rule_07_worker_killed_at_a_named_point_loses_and_doubles_nothing(
    start: Start, rng: random.Random, durability: str, point: str
) -> None:
    count = 1 if point == crash_points.DURING_ROLL else rng.randrange(2, 6)
    print(f"crash at {point}:{count}")
    broker = start(crash_at=f"{point}:{count}").ready()
    first = broker.workers()
    with broker.connect() as client:
        client.create_stream("s")
        client.create_topic("s", "t", durability=durability, segment_size="1 MiB", messages_required_to_save=10)
        acknowledged = produce(client, "t", rng)
        assert broker.workers() != first, "the point was passed"
        assert dict(read_all(client, "s", "t")) == acknowledged
    assert broker.stop() == 0, broker.said()
    broker = start().ready()
    with broker.connect() as client:
        assert dict(read_all(client, "s", "t")) == acknowledged
    assert broker.stop() == 0


@pytest.mark.parametrize("durability", ["replicated", "persisted"])
@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_end_of_every_process_under_load_keeps_what_was_acknowledged(
    start: Start, rng: random.Random, durability: str, end: str
) -> None:
    """SIGKILL of all, and SIGTERM: after the second nothing is left in shared memory, all of it is in the files."""
    broker = start().ready()
    acknowledged: list[tuple[int, bytes]] = []
    enough = threading.Event()
    target = rng.randrange(20, 200)

    def load() -> None:
        with broker.connect() as client, client.producer("s", "t") as producer:
            number = 0
            while True:
                payload = b"%d." % number + rng.randbytes(100)
                try:
                    offset = producer.send([payload], partition=0, timeout=WAIT_S).base_offset
                except ShmbrokerError:
                    return
                acknowledged.append((offset, payload))
                number += 1
                if number == target:
                    enough.set()

    with broker.connect() as client:
        client.create_stream("s")
        client.create_topic("s", "t", durability=durability)
    thread = threading.Thread(target=load)
    thread.start()
    assert enough.wait(WAIT_S)
    if end == "killed":
        broker.kill_everything()
    else:
        assert broker.stop() == 0, broker.said()
        assert not os.path.exists(default_runtime(str(broker.data)))
    thread.join(WAIT_S)
    assert not thread.is_alive()
    broker = start().ready()
    with broker.connect() as client:
        found = read_all(client, "s", "t")
        assert found[: len(acknowledged)] == acknowledged
        assert len(found) <= len(acknowledged) + 1, "at most the one without an answer is there beyond"
        with client.producer("s", "t") as producer:
            assert producer.send([b"next"]).base_offset == len(found)
    assert broker.stop() == 0


def test_worker_that_dies_before_it_has_said_that_it_is_open_is_started_again(start: Start) -> None:
    broker = start(crash_at=crash_points.AFTER_OPEN).ready()
    with broker.connect() as client:
        client.create_stream("s")
        client.create_topic("s", "t")
    assert broker.stop() == 0


def test_points_that_nobody_knows_are_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="after-append"):
        parse("after-apend")
    with pytest.raises(InvalidConfiguration):
        parse("after-append:0")
    assert parse("after-append, during-roll:3") == {"after-append": 1, "during-roll": 3}
    assert not crash_points.ARMED, f"{crash_points.VARIABLE} is {os.environ.get(crash_points.VARIABLE)!r} here"
