"""Members of a group as real processes: shared partitions, deaths, and that nothing is skipped or read by two."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from shmbroker import Client
from shmbroker.errors import NotFound, PartitionRevoked, ShmbrokerError
from tests.processes.conftest import WAIT_S, Start

PARTITIONS = 4
Eventually = Callable[..., Any]


class Member:
    """A process of tests.processes.group_member. ``lines``: what it said, in order."""

    def __init__(self, data: Path, max_messages: int = 7) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.processes.group_member", str(data), str(max_messages)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.lines: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith(b"\n"):
                self.lines.append(json.loads(line))

    def said(self, what: str) -> list[dict[str, Any]]:
        return [line for line in list(self.lines) if line["what"] == what]

    def kill(self) -> None:
        self.process.kill()
        self.join()

    def leave(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.join()
        assert self.process.returncode == 0
        assert self.lines[-1]["what"] == "left"

    def join(self) -> None:
        self.process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


class Members:
    """All that a test starts; ``spoken`` is what all of them said that they were handed, by time."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self.all: list[Member] = []
        self.alive: list[Member] = []
        self.killed: set[int] = set()

    def start(self) -> Member:
        member = Member(self._data)
        self.all.append(member)
        self.alive.append(member)
        return member

    def leave(self, member: Member) -> None:
        self.alive.remove(member)
        member.leave()

    def kill(self, member: Member) -> None:
        self.alive.remove(member)
        self.killed.add(member.process.pid)
        member.kill()

    def handed_out(self) -> list[dict[str, Any]]:
        return sorted((line for member in self.all for line in member.said("got")), key=lambda line: line["at"])

    def count(self) -> int:
        return len({(line["partition"], offset) for line in self.handed_out() for offset in _offsets(line)})


def _offsets(line: dict[str, Any]) -> range:
    return range(line["first"], line["last"] + 1)


@pytest.fixture
def members(data: Path) -> Iterator[Members]:
    started = Members(data)
    yield started
    for member in started.alive:
        member.kill()


@contextmanager
def producing(client: Client) -> Iterator[list[int]]:
    """Sends small batches to all partitions in turn until the end of the block; yields how many messages each has."""
    sent = [0] * PARTITIONS
    stop = threading.Event()

    def produce() -> None:
        with client.producer("s", "t") as producer:
            turn = 0
            while not stop.wait(0.002):
                partition = turn % PARTITIONS
                confirmation = producer.send([b"%d" % turn] * 3, partition=partition)
                sent[partition] = confirmation.base_offset + confirmation.count
                turn += 1

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield sent
    finally:
        stop.set()
        thread.join(WAIT_S)


def check_reading(members: Members, sent: list[int]) -> None:
    """Everything was handed out; twice only what a killed process had not committed."""
    seen: dict[tuple[int, int], list[int]] = defaultdict(list)
    for line in members.handed_out():
        for offset in _offsets(line):
            seen[line["partition"], offset].append(line["pid"])
    for partition, count in enumerate(sent):
        missing = [offset for offset in range(count) if (partition, offset) not in seen]
        assert not missing, f"partition {partition} skipped {missing[:5]}"
    for place, pids in seen.items():
        assert set(pids[:-1]) <= members.killed, f"{place} was handed out by {pids}, killed were {members.killed}"


def test_members_that_come_and_go_read_everything_exactly_once(
    start: Start, members: Members, eventually: Eventually, rng: random.Random
) -> None:
    broker = start().ready()
    with broker.connect() as client:
        client.create_stream("s")
        client.create_topic("s", "t", partitions=PARTITIONS)
        with producing(client) as sent:
            members.start()
            for _ in range(4):
                joining = members.start()
                eventually(lambda joining=joining: joining.said("got"), "messages for who joined", timeout_s=WAIT_S)
                members.leave(rng.choice(members.alive))
        eventually(lambda: members.count() == sum(sent), "all messages", timeout_s=WAIT_S)
        assert len(client.get_group("s", "t", "g").members) == len(members.alive)
        for member in list(members.alive):
            members.leave(member)
        check_reading(members, sent)
        assert client.get_group("s", "t", "g").members == {}
        for partition in range(PARTITIONS):
            assert client.get_consumer_offset("s", "t", partition, group="g") == sent[partition] - 1
    assert broker.stop() == 0


def test_members_that_are_killed_lose_nothing_and_others_take_over(
    start: Start, members: Members, eventually: Eventually, rng: random.Random
) -> None:
    broker = start().ready()
    with broker.connect() as client:
        client.create_stream("s")
        client.create_topic("s", "t", partitions=PARTITIONS, consumer_offset_durability="persisted")
        with producing(client) as sent:
            for _ in range(2):
                members.start()
            for _ in range(4):
                joining = members.start()
                eventually(lambda joining=joining: joining.said("got"), "messages for who joined", timeout_s=WAIT_S)
                members.kill(rng.choice(members.alive))
                before = members.count()
                eventually(lambda before=before: members.count() > before + 50, "the others to go on")
        eventually(lambda: members.count() == sum(sent), "all messages", timeout_s=WAIT_S)
        for member in list(members.alive):
            members.leave(member)
        check_reading(members, sent)
    assert broker.stop() == 0


def test_a_killed_broker_forgets_members_and_keeps_what_they_committed(
    start: Start, members: Members, eventually: Eventually
) -> None:
    broker = start().ready()
    with broker.connect() as client:
        client.create_stream("s")
        client.create_topic("s", "t", partitions=PARTITIONS)
        with client.producer("s", "t") as producer:
            for partition in range(PARTITIONS):
                producer.send([b"x"] * 5, partition=partition)
        with client.consumer("s", "t", group="g") as consumer:
            assert sum(batch.count for batch in consumer.poll(100, timeout=WAIT_S)) == 5 * PARTITIONS
            consumer.commit()
        broker.kill_everything()
    again = start().ready()
    with again.connect() as client:
        (group,) = client.list_groups("s", "t")
        assert (group.name, group.member_count) == ("g", 0)
        with client.producer("s", "t") as producer:
            offsets = {part: producer.send([b"y"], partition=part).base_offset for part in range(PARTITIONS)}
        member = members.start()
        eventually(lambda: len(member.said("got")) == PARTITIONS, "what is new")
        members.leave(member)
        assert {line["partition"]: line["first"] for line in member.said("got")} == offsets
    assert again.stop() == 0


def test_a_group_shares_its_partitions_and_rebalances(start: Start, eventually: Eventually) -> None:
    broker = start().ready()
    with broker.connect() as client, broker.connect() as other:
        client.create_stream("s")
        client.create_topic("s", "t", partitions=4)
        with client.producer("s", "t") as producer:
            for partition in range(4):
                producer.send([b"%d" % number for number in range(10)], partition=partition)
        first = client.consumer("s", "t", group="g")
        assert first.partitions == (0, 1, 2, 3)
        assert sum(batch.count for batch in first.poll(100)) == 40
        second = other.consumer("s", "t", group="g")
        assert second.poll(100) == []
        members = client.get_group("s", "t", "g").members
        assert sorted(map(len, members.values())) == [0, 4], "nothing moves before it is committed"
        eventually(lambda: first.poll(10) == [] and len(first.partitions) == 2, "the first to stop reading two")
        assert second.partitions == ()
        first.commit()
        eventually(lambda: second.poll(10) == [] and len(second.partitions) == 2, "the second to get them")
        assert not set(first.partitions) & set(second.partitions)
        second.close()
        eventually(lambda: first.poll(10) == [] and first.partitions == (0, 1, 2, 3), "the return")
        first.close()
    assert broker.stop() == 0


def test_two_consumers_of_one_client_are_two_members(start: Start, eventually: Eventually) -> None:
    broker = start().ready()
    with broker.connect() as client:
        client.create_stream("s")
        client.create_topic("s", "t", partitions=2)
        first = client.consumer("s", "t", group="g", auto_commit=True)
        second = client.consumer("s", "t", group="g", auto_commit=True)
        with client.producer("s", "t") as producer:
            for partition in range(2):
                producer.send([b"x"] * 10, partition=partition)
        got: list[tuple[int, int]] = []

        def shared() -> bool:
            for consumer in (first, second):
                for batch in consumer.poll(3):
                    got.extend((batch.header.partition_id, batch.base_offset + n) for n in range(batch.count))
            return len(got) >= 20 and len(first.partitions) == len(second.partitions) == 1

        eventually(shared, "both to have one partition")
        assert len(got) == len(set(got)) == 20
        assert client.get_consumer_offset("s", "t", 0, group="g") == 9
    assert broker.stop() == 0


def test_partitions_that_are_added_are_read_and_a_group_that_is_deleted_ends_its_members(
    start: Start, eventually: Eventually
) -> None:
    broker = start().ready()
    with broker.connect() as client:
        client.create_stream("s")
        client.create_topic("s", "t", partitions=1)
        with client.consumer("s", "t", group="g") as consumer:
            assert consumer.partitions == (0,)
            client.create_partitions("s", "t", 2)
            with client.producer("s", "t") as producer:
                producer.send([b"new"], partition=2)
            (batch,) = eventually(lambda: consumer.poll(10, timeout=1.0), "the new partition")
            assert batch.header.partition_id == 2
            assert batch.payloads() == [b"new"]
            consumer.commit()
            assert client.get_consumer_offset("s", "t", 2, group="g") == 0
            client.delete_group("s", "t", "g")
            with pytest.raises(NotFound):
                eventually(lambda: consumer.poll(10, timeout=1.0), "the end")
        assert client.list_groups("s", "t") == []
    assert broker.stop() == 0


def test_a_group_whose_offsets_cannot_be_forgotten_stays_and_a_new_one_of_its_name_begins_anew(start: Start) -> None:
    broker = start("--workers=1").ready()
    (worker,) = broker.workers()
    with broker.connect() as client:
        client.create_stream("s")
        client.create_topic("s", "t", partitions=2)
        with client.producer("s", "t") as producer:
            producer.send([b"0", b"1"], partition=1)
        client.create_group("s", "t", "g")
        client.set_consumer_offset("s", "t", 1, 1, group="g")
        os.kill(worker, signal.SIGSTOP)
        try:
            with pytest.raises(ShmbrokerError):
                client.delete_group("s", "t", "g", timeout=WAIT_S)
        finally:
            os.kill(worker, signal.SIGCONT)
        assert [group.name for group in client.list_groups("s", "t")] == ["g"]
        client.delete_group("s", "t", "g")
        client.create_group("s", "t", "g")
        assert client.get_consumer_offset("s", "t", 1, group="g") is None
    assert broker.stop() == 0


def test_what_a_member_has_lost_it_cannot_commit(start: Start) -> None:
    """The broker took it for dead while it worked on its messages."""
    broker = start().ready()
    with broker.connect() as client, broker.connect() as other:
        client.create_stream("s")
        client.create_topic("s", "t")
        with client.producer("s", "t") as producer:
            producer.send([b"x"] * 10, partition=0)
        first = client.consumer("s", "t", group="g")
        assert sum(batch.count for batch in first.poll(4)) == 4
        first._membership.leave(time.monotonic() + WAIT_S)  # type: ignore[attr-defined]
        second = other.consumer("s", "t", group="g")
        assert [batch.base_offset for batch in second.poll(6, timeout=WAIT_S)] == [0]
        second.commit()
        with pytest.raises(PartitionRevoked):
            first.commit()
        assert client.get_consumer_offset("s", "t", 0, group="g") == 5
        first.close()
        second.close()
    assert broker.stop() == 0


def test_a_member_that_is_killed_while_it_is_stopped_is_gone_at_once(
    start: Start, members: Members, eventually: Eventually
) -> None:
    broker = start().ready()
    with broker.connect() as client:
        client.create_stream("s")
        client.create_topic("s", "t", partitions=2)
        member = members.start()
        eventually(lambda: member.said("joined"), "the member")
        member.process.send_signal(signal.SIGSTOP)
        with client.consumer("s", "t", group="g") as consumer:
            members.kill(member)
            eventually(lambda: not consumer.poll(1, timeout=0.1) and consumer.partitions == (0, 1), "its partitions")
    assert broker.stop() == 0
