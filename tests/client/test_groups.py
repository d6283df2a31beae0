"""Members of a group through our own client, over shared memory, over TCP, and one of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import shmbroker
from shmbroker import Client
from shmbroker.client.embedded import Embedded
from shmbroker.errors import AlreadyExists, ClientMistake, NotFound, PartitionReplaced, PartitionRevoked

Eventually = Callable[..., Any]
Connect = Callable[[str], Client]
ROOT = {"IGGY_ROOT_USERNAME": "iggy", "IGGY_ROOT_PASSWORD": "secret"}
WAIT_S = 30.0
WAYS = ["local", "tcp"]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    data = tmp_path_factory.mktemp("groups") / "data"
    with shmbroker.embedded(data, tcp="127.0.0.1:0", environment=ROOT) as broker:
        yield broker


@pytest.fixture
def connect(served: Embedded) -> Iterator[Connect]:
    """``connect("local")``, ``connect("tcp")``: a new client; the stream ``s`` goes with the test."""
    made: list[Client] = []

    def to(way: str) -> Client:
        url = f"iggy://iggy:secret@{served.tcp_address}"
        made.append(served.connect() if way == "local" else shmbroker.connect(url, timeout=WAIT_S))
        return made[-1]

    to("local").create_stream("s")
    yield to
    for client in reversed(made[1:]):
        client.close()
    made[0].delete_stream("s")
    made[0].close()


def fill(client: Client, partitions: int = 4, messages: int = 20) -> set[bytes]:
    client.create_topic("s", "t", partitions=partitions)
    return send(client, range(partitions), "early", messages)


def send(client: Client, partitions: range, text: str, messages: int = 20) -> set[bytes]:
    payloads = {part: [b"%s %d/%d" % (text.encode(), part, n) for n in range(messages)] for part in partitions}
    with client.producer("s", "t") as producer:
        for part, batch in payloads.items():
            producer.send(batch, partition=part)
    return {payload for batch in payloads.values() for payload in batch}


def payloads_of(batches: list[Any]) -> list[bytes]:
    return [payload for batch in batches for payload in batch.payloads()]


@pytest.mark.parametrize("way", WAYS)
def test_groups_are_made_shown_and_removed(connect: Connect, way: str) -> None:
    client = connect(way)
    client.create_topic("s", "t", partitions=3)
    created = client.create_group("s", "t", "billing")
    assert (created.id, created.name, created.partition_count, created.member_count) == (0, "billing", 3, 0)
    with pytest.raises(AlreadyExists):
        client.create_group("s", "t", "billing")
    assert client.get_group("s", "t", 0) == created
    assert client.list_groups("s", "t") == [created]
    for missing in (("s", "t", "none"), ("s", "none", "billing"), ("none", "t", "billing")):
        with pytest.raises(NotFound):
            client.get_group(*missing)
        with pytest.raises(NotFound):
            client.delete_group(*missing)
    with client.consumer("s", "t", group="billing") as consumer:
        assert consumer.partitions == (0, 1, 2)
        (member,) = client.get_group("s", "t", "billing").members.values()
        assert member == (0, 1, 2)
    assert client.get_group("s", "t", "billing").members == {}
    client.delete_group("s", "t", "billing")
    assert client.list_groups("s", "t") == []
    with pytest.raises(NotFound):
        client.consumer("s", "t", group=7)


@pytest.mark.parametrize("auto_commit", [False, True])
@pytest.mark.parametrize(("one", "other"), [("local", "local"), ("tcp", "tcp"), ("local", "tcp"), ("tcp", "local")])
def test_two_members_share_and_read_everything_once(
    connect: Connect, eventually: Eventually, one: str, other: str, auto_commit: bool
) -> None:
    first_client, second_client = connect(one), connect(other)
    expected = fill(first_client)
    first = first_client.consumer("s", "t", group="g", auto_commit=auto_commit)
    got = payloads_of(first.poll(30, timeout=WAIT_S))
    assert got
    second = second_client.consumer("s", "t", group="g", auto_commit=auto_commit)

    def step() -> bool:
        for consumer in (first, second):
            got.extend(payloads_of(consumer.poll(7)))
            if not auto_commit:
                consumer.commit()
        return len(got) >= len(expected) and len(first.partitions) == len(second.partitions) == 2

    eventually(step, "the shares", timeout_s=WAIT_S)
    expected |= send(first_client, range(4), "late")
    eventually(lambda: step() and len(got) >= len(expected), "what came later", timeout_s=WAIT_S)
    assert len(got) == len(expected)
    assert set(got) == expected
    second.close()
    expected |= send(first_client, range(4), "last")
    eventually(
        lambda: got.extend(payloads_of(first.poll(50))) or len(got) >= len(expected), "the rest", timeout_s=WAIT_S
    )
    assert sorted(got) == sorted(expected)
    assert first.partitions == (0, 1, 2, 3)
    first.close()
    stored = [first_client.get_consumer_offset("s", "t", part, group="g") for part in range(4)]
    if auto_commit:
        assert stored == [59] * 4
    else:
        assert stored == [39] * 4, "what nobody committed"


@pytest.mark.parametrize("way", WAYS)
def test_what_was_not_committed_is_handed_out_again(connect: Connect, way: str) -> None:
    client = connect(way)
    fill(client, 1, 10)
    with client.consumer("s", "t", group="g") as consumer:
        assert len(payloads_of(consumer.poll(4, timeout=WAIT_S))) == 4
        consumer.commit()
        assert len(payloads_of(consumer.poll(4, timeout=WAIT_S))) == 4
    with client.consumer("s", "t", group="g") as consumer:
        (batch,) = consumer.poll(100, timeout=WAIT_S)
        assert batch.base_offset == 4
        consumer.commit(partition=0, offset=6)
        with pytest.raises(ClientMistake):
            consumer.commit(partition=1)
    assert client.get_consumer_offset("s", "t", 0, group="g") == 6


@pytest.mark.parametrize("way", WAYS)
def test_where_a_member_starts_is_for_partitions_without_an_offset(connect: Connect, way: str) -> None:
    client = connect(way)
    fill(client, 2, 10)
    client.create_group("s", "t", "g")
    client.set_consumer_offset("s", "t", 0, 4, group="g")
    with client.consumer("s", "t", group="g", last=2) as consumer:
        got: list[Any] = []
        while len(got) < 2:
            got += consumer.poll(100, timeout=WAIT_S)
        assert {batch.header.partition_id: (batch.base_offset, batch.count) for batch in got} == {0: (5, 5), 1: (8, 2)}


@pytest.mark.parametrize("way", WAYS)
def test_a_purge_under_a_member_is_told_once_and_read_on_from(connect: Connect, way: str) -> None:
    client = connect(way)
    fill(client, 1, 10)
    with client.consumer("s", "t", group="g", auto_commit=True) as consumer:
        assert len(payloads_of(consumer.poll(100, timeout=WAIT_S))) == 10
        assert client.get_consumer_offset("s", "t", 0, group="g") == 9
        client.purge_topic("s", "t")
        with pytest.raises(PartitionReplaced):
            consumer.poll(100, timeout=WAIT_S)
        expected = send(client, range(1), "new", 10)
        assert set(payloads_of(consumer.poll(100, timeout=WAIT_S))) == expected
        assert client.get_consumer_offset("s", "t", 0, group="g") == 9


@pytest.mark.parametrize("way", WAYS)
def test_partitions_that_are_deleted_go_without_an_error(connect: Connect, eventually: Eventually, way: str) -> None:
    client = connect(way)
    fill(client, 3, 10)
    with client.consumer("s", "t", group="g") as consumer:
        assert payloads_of(consumer.poll(100, timeout=WAIT_S))
        client.delete_partitions("s", "t", 2)
        expected = send(client, range(1), "late", 10)
        got: set[bytes] = set()
        eventually(lambda: got.update(payloads_of(consumer.poll(100))) or expected <= got, "what came later")
        eventually(lambda: not consumer.poll(100) and consumer.partitions == (0,), "the end of the others")
        with pytest.raises(PartitionRevoked, match="1, 2"):
            consumer.commit()
        consumer.commit()
        client.delete_topic("s", "t")
        with pytest.raises(NotFound):
            eventually(lambda: consumer.poll(100, timeout=1.0), "the end")
