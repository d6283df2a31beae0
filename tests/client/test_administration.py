"""The catalog, stored offsets and the rest of what a client asks for, on a real broker."""

from __future__ import annotations

from datetime import timedelta

import pytest

from shmbroker import Client, Durability
from shmbroker.client.descriptions import NEVER
from shmbroker.errors import (
    AlreadyExists,
    ClientMistake,
    InvalidOption,
    LimitReached,
    NotFound,
    ShmbrokerError,
    UnsupportedOption,
)
from shmbroker.limits import GIB, MIB
from tests.conftest import wait_until


@pytest.fixture
def stream(client: Client) -> str:
    client.create_stream("stream")
    return "stream"


def test_streams_are_made_found_renamed_and_deleted(client: Client) -> None:
    made = client.create_stream("one")
    assert (made.name, made.topic_count, made.message_count) == ("one", 0, 0)
    assert client.get_stream("one") == client.get_stream(made.id) == made
    with pytest.raises(AlreadyExists):
        client.create_stream("one")
    client.create_stream("two")
    assert [each.name for each in client.list_streams()] == ["one", "two"]
    client.update_stream("one", "renamed")
    with pytest.raises(NotFound, match="one"):
        client.get_stream("one")
    client.create_topic("renamed", "topic")
    assert [topic.name for topic in client.get_stream(made.id).topics] == ["topic"]
    client.delete_stream(made.id)
    assert [each.name for each in client.list_streams()] == ["two"]
    for call in (client.delete_stream, client.purge_stream, client.get_stream):
        with pytest.raises(NotFound):
            call("renamed")


def test_topic_options_and_their_defaults(client: Client, stream: str) -> None:
    plain = client.create_topic(stream, "plain")
    assert plain.durability is Durability.REPLICATED
    assert plain.consumer_offset_durability is Durability.REPLICATED
    assert (plain.partition_count, plain.message_expiry_us, plain.max_topic_size) == (1, NEVER, NEVER)
    assert plain.options["segment_size"] == "1 GiB"
    assert not plain.explicit
    full = client.create_topic(
        stream, "full", partitions=4, durability="persisted", consumer_offset_durability=Durability.PERSISTED,
        messages_required_to_save=10, size_of_messages_required_to_save=64 * 1024, segment_size="2 MiB",
        max_topic_size=GIB, message_expiry=timedelta(days=7), preallocate_segments=True,
        options={"compression_algorithm": "gzip"},
    )  # fmt: skip
    assert full == client.get_topic(stream, "full")
    assert (full.durability, full.consumer_offset_durability) == (Durability.PERSISTED, Durability.PERSISTED)
    assert (full.partition_count, len(full.partitions)) == (4, 4)
    assert (full.message_expiry_us, full.max_topic_size) == (7 * 86_400_000_000, GIB)
    assert full.options["segment_size"] == "2 MiB"
    assert full.options["messages_required_to_save"] == "10"
    assert full.options["compression_algorithm"] == "gzip"
    assert len(full.explicit) == 9
    assert [topic.name for topic in client.list_topics(stream)] == ["plain", "full"]


@pytest.mark.parametrize("option", ["enforce_fsync", "consumer_offset_enforce_fsync"])
def test_former_options_are_refused_by_name_saying_what_to_use(client: Client, stream: str, option: str) -> None:
    instead = "consumer_offset_durability" if option.startswith("consumer") else "durability"
    with pytest.raises(UnsupportedOption, match=f"{option}.*{instead}"):
        client.create_topic(stream, "topic", **{option: True})  # type: ignore[arg-type]
    with pytest.raises(UnsupportedOption, match=f"{option}.*{instead}"):
        client.create_topic(stream, "topic", options={option: "true"})
    assert client.list_topics(stream) == []


def test_bad_options_are_refused_by_name(client: Client, stream: str) -> None:
    with pytest.raises(UnsupportedOption, match="no_such_thing"):
        client.create_topic(stream, "topic", no_such_thing=1)
    with pytest.raises(InvalidOption, match="durability"):
        client.create_topic(stream, "topic", durability="always")
    with pytest.raises(InvalidOption, match="segment_size"):
        client.create_topic(stream, "topic", segment_size=1000)
    with pytest.raises(LimitReached):
        client.create_topic(stream, "topic", partitions=1001)
    with pytest.raises(ShmbrokerError):
        client.create_topic(stream, "topic", segment_size=2 * MIB, max_topic_size=MIB)
    client.create_topic(stream, "topic")
    with pytest.raises(UnsupportedOption, match="durability"):
        client.update_topic(stream, "topic", durability="persisted")


def test_topics_are_updated_where_they_may_be(client: Client, stream: str) -> None:
    client.create_topic(stream, "topic", message_expiry="1 h")
    client.update_topic(stream, "topic", max_topic_size="10 GiB")
    found = client.get_topic(stream, "topic")
    assert (found.max_topic_size, found.message_expiry_us) == (10 * GIB, 3_600_000_000)
    client.update_topic(stream, "topic", name="renamed", message_expiry="never_expire", compression_algorithm="gzip")
    found = client.get_topic(stream, "renamed")
    assert (found.max_topic_size, found.message_expiry_us) == (10 * GIB, NEVER)
    client.delete_topic(stream, "renamed")
    with pytest.raises(NotFound):
        client.get_topic(stream, "renamed")


def test_partitions_come_and_go(client: Client, stream: str) -> None:
    client.create_topic(stream, "topic", partitions=2)
    client.create_partitions(stream, "topic", 3)
    assert [each.id for each in client.get_topic(stream, "topic").partitions] == [0, 1, 2, 3, 4]
    with client.producer(stream, "topic") as producer:
        assert producer.send([b"m"], partition=4).base_offset == 0
        client.delete_partitions(stream, "topic", 4)
        assert [each.id for each in client.get_topic(stream, "topic").partitions] == [0]
        assert producer.send([b"m"], partition=0).base_offset == 0
    with pytest.raises(ClientMistake):
        client.delete_partitions(stream, "topic", 2)
    with pytest.raises(ClientMistake):
        client.create_partitions(stream, "topic", 0)


def test_figures_follow_what_was_sent(client: Client, stream: str) -> None:
    client.create_topic(stream, "topic", partitions=2)
    with client.producer(stream, "topic") as producer:
        producer.send([b"m"] * 10, partition=1)
    client.flush(stream, "topic", sync=True)
    wait_until(lambda: client.get_topic(stream, "topic").message_count, "the counts, which are kept once a second")
    found = client.get_topic(stream, "topic")
    assert (found.message_count, found.partitions[1].message_count, found.partitions[1].current_offset) == (10, 10, 9)
    assert found.size == found.partitions[1].size > 0
    assert client.get_stream(stream).message_count == 10
    (partition,) = [
        each for each in client.stats()["partitions"] if each["topic"] == "topic" and each["partition"] == 1
    ]
    assert partition["durable_offset"] == partition["committed_offset"] == 10
    with pytest.raises(NotFound):
        client.flush(stream, "topic", 2)
    client.purge_topic(stream, "topic")
    wait_until(lambda: client.get_topic(stream, "topic").message_count == 0, "an empty topic")
    client.purge_stream(stream)
    assert client.ping() > 0


@pytest.mark.parametrize("policy", list(Durability))
def test_offsets_are_stored_read_and_deleted(client: Client, stream: str, policy: Durability) -> None:
    client.create_topic(stream, "topic", consumer_offset_durability=policy)
    with client.producer(stream, "topic") as producer:
        producer.send([b"m"] * 10)
    for who in ({"name": "audit"}, {"id": 3}, {"group": "billing"}):
        assert client.get_consumer_offset(stream, "topic", 0, **who) is None
        client.set_consumer_offset(stream, "topic", 0, 7, **who)
        assert client.get_consumer_offset(stream, "topic", 0, **who) == 7
        client.set_consumer_offset(stream, "topic", 0, 3, **who)
        assert client.get_consumer_offset(stream, "topic", 0, **who) == 3
        client.delete_consumer_offset(stream, "topic", 0, **who)
        with pytest.raises(NotFound):
            client.delete_consumer_offset(stream, "topic", 0, **who)
    with pytest.raises(ClientMistake, match="offset"):
        client.set_consumer_offset(stream, "topic", 0, 10_000, name="audit")
    with pytest.raises(ClientMistake, match="exactly one"):
        client.get_consumer_offset(stream, "topic", 0)
    with pytest.raises(NotFound):
        client.get_consumer_offset(stream, "topic", 0, group=5)
