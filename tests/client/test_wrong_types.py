"""Arguments of a wrong type are the caller's mistake: an error of ours that names the argument, and nothing is sent."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import shmbroker
from shmbroker.errors import ClientMistake


@pytest.fixture
def topic(client: Any) -> Any:
    client.create_stream("s")
    client.create_topic("s", "t", partitions=2)
    return client


def test_a_path_is_an_address(broker: Any, tmp_path: Path) -> None:
    with shmbroker.connect(tmp_path / "data") as client:
        assert client.list_streams() == []
    with pytest.raises(ClientMistake, match="url"):
        shmbroker.connect(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"key": 5}, "key"),
        ({"headers": ["x"]}, "headers"),
        ({"headers": "x"}, "headers"),
        ({"headers": 5}, "headers"),
        ({"ids": 5}, "ids"),
        ({"partition": 1.5}, "partition"),
        ({"timeout": math.nan}, "timeout"),
        ({"timeout": "soon"}, "timeout"),
        ({"messages": 5}, "messages"),
        ({"messages": (each for each in [b"x"])}, "messages"),
    ],
)
@pytest.mark.parametrize("linger", [0.0, 0.01])
def test_a_batch_with_a_wrong_argument(topic: Any, arguments: dict[str, Any], name: str, linger: float) -> None:
    given = {"messages": [b"x"], **arguments}
    with topic.producer("s", "t", linger=linger) as producer:
        for call in (producer.send, producer.submit):
            with pytest.raises(ClientMistake, match=name):
                call(given["messages"], **{key: value for key, value in given.items() if key != "messages"})


def test_other_wrong_arguments(topic: Any) -> None:
    for call, name in (
        (lambda: topic.set_consumer_offset("s", "t", 0, 1.5, name="c"), "offset"),
        (lambda: topic.create_stream(5), "CreateStream"),
        (lambda: topic.list_streams(timeout=math.nan), "timeout"),
        (lambda: topic.producer("s", "t", linger="x"), "linger"),
        (lambda: topic.producer("s", "t", batch_count=1.5), "batch_count"),
        (lambda: topic.consumer("s", "t", partition=1.5), "partition"),
        (lambda: topic.get_topic(None, "t"), "GetTopic"),
    ):
        with pytest.raises(ClientMistake, match=name):
            call()
    assert topic.list_streams()[0].name == "s", "the connection goes on"


def test_views_that_skip_bytes_are_copied(topic: Any) -> None:
    whole = memoryview(b"a-b-c-")
    with topic.producer("s", "t") as producer:
        producer.send([whole[::2]], partition=0)
        producer.send([whole[::2], b"plain", whole[1::2]], partition=0)
    with topic.consumer("s", "t", partition=0, first=True) as consumer:
        got = [payload for batch in consumer.poll(timeout=30) for payload in batch.payloads()]
        got += [payload for batch in consumer.poll(timeout=0) for payload in batch.payloads()]
    assert [bytes(payload) for payload in got] == [b"abc", b"abc", b"plain", b"---"]
