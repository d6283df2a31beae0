"""Two kinds of program on one topic: what either produces the other reads, with all that belongs to a message."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from apache_iggy import Consumer, HeaderKey, HeaderValue, IggyClient, PollingStrategy, ReceiveMessage, SendMessage

from shmbroker.formats.headers import HeaderField, HeaderKind, field_of, typed
from tests.iggy.conftest import Program

Run = Callable[[Program], Any]
IGGY_NAMES = {
    HeaderKind.RAW: "Raw", HeaderKind.STRING: "String", HeaderKind.BOOL: "Bool", HeaderKind.INT8: "Int8",
    HeaderKind.INT16: "Int16", HeaderKind.INT32: "Int32", HeaderKind.INT64: "Int64", HeaderKind.INT128: "Int128",
    HeaderKind.UINT8: "UnsignedInt8", HeaderKind.UINT16: "UnsignedInt16", HeaderKind.UINT32: "UnsignedInt32",
    HeaderKind.UINT64: "UnsignedInt64", HeaderKind.UINT128: "UnsignedInt128", HeaderKind.FLOAT32: "Float32",
    HeaderKind.FLOAT64: "Float64",
}  # fmt: skip
VALUES: dict[HeaderKind, tuple[Any, ...]] = {
    HeaderKind.RAW: (b"\0\xff raw",), HeaderKind.STRING: ("text, äöü",), HeaderKind.BOOL: (True, False),
    **{kind: (-(1 << bits - 1), -1, (1 << bits - 1) - 1) for kind, bits in (
        (HeaderKind.INT8, 8), (HeaderKind.INT16, 16), (HeaderKind.INT32, 32), (HeaderKind.INT64, 64),
        (HeaderKind.INT128, 128))},
    **{kind: (0, (1 << bits) - 1) for kind, bits in (
        (HeaderKind.UINT8, 8), (HeaderKind.UINT16, 16), (HeaderKind.UINT32, 32), (HeaderKind.UINT64, 64),
        (HeaderKind.UINT128, 128))},
    HeaderKind.FLOAT32: (0.5, -1.25), HeaderKind.FLOAT64: (0.1, 1e300),
}  # fmt: skip
SIZES = (1, 3, 7, 2, 20, 1, 40, 5)
"""Of the batches of the test of slices, in messages, made by the two in turn."""


@pytest.fixture
def topic(local: Any) -> None:
    local.create_stream("s")
    local.create_topic("s", "t", partitions=1)


def cases() -> list[tuple[HeaderKind, Any]]:
    return [(kind, value) for kind in HeaderKind for value in VALUES[kind]]


async def poll(client: IggyClient, offset: int = 0, count: int = 1000) -> list[ReceiveMessage]:
    return await client.poll_messages(
        "s", "t", consumer=Consumer.Single("c"), polling_strategy=PollingStrategy.Offset(offset), count=count,
        auto_commit=False, partition_id=0,
    )  # fmt: skip


def read(local: Any) -> list[Any]:
    with local.consumer("s", "t", partition=0, first=True) as consumer:
        return [message for batch in consumer.poll(1000, timeout=5.0) for message in batch.messages()]


def test_headers_of_every_kind_as_keys_and_as_values_read_locally(run: Run, local: Any, topic: None) -> None:
    async def program(client: IggyClient) -> None:
        messages = []
        for kind, value in cases():
            name = IGGY_NAMES[kind]
            headers = {"value": getattr(HeaderValue, name)(value), getattr(HeaderKey, name)(value): "key"}
            messages.append(SendMessage("m", user_headers=headers))
        await client.send_messages("s", "t", 0, messages)

    run(program)
    found = read(local)
    assert len(found) == len(cases())
    for (kind, value), message in zip(cases(), found, strict=True):
        fields = {field_of(key): field_of(item) for key, item in message.headers.items()}
        expected = typed(kind, value)
        scalars = message.headers
        assert scalars["value"] == value, kind
        assert type(scalars["value"]) is type(value)
        assert scalars[value] == "key"
        # A scalar has the smallest kind that holds it, so only the raw bytes of the field can be compared.
        assert fields[field_of("value")] in (expected, field_of(value))


def test_headers_of_every_kind_as_keys_and_as_values_read_by_iggy(run: Run, local: Any, topic: None) -> None:
    with local.producer("s", "t") as producer:
        headers = []
        for kind, value in cases():
            field = typed(kind, value)
            assert isinstance(field, HeaderField)
            headers.append({"value": field, field: "key"})
        producer.send([b"m"] * len(headers), partition=0, headers=headers)

    async def program(client: IggyClient) -> None:
        found = await poll(client)
        assert len(found) == len(cases())
        for (kind, value), message in zip(cases(), found, strict=True):
            name = IGGY_NAMES[kind]
            received = message.user_headers()
            assert received is not None
            item = received[HeaderKey.String("value")]
            assert type(item) is type(getattr(HeaderValue, name)(value)), kind
            assert item.value == value
            assert received[getattr(HeaderKey, name)(value)].value == "key"

    run(program)


def test_ids_timestamps_and_payloads_are_the_same_for_both(run: Run, local: Any, topic: None) -> None:
    ids = [1, 2**64, 2**128 - 1]
    with local.producer("s", "t") as producer:
        producer.send([b"\0", b"local", b"\xff" * 1000], partition=0, ids=ids)
        producer.send([b"an id of its own"], partition=0)

    async def program(client: IggyClient) -> list[tuple[Any, ...]]:
        messages = [SendMessage(payload, id=number) for payload, number in zip((b"\0", b"i"), ids[1:], strict=True)]
        await client.send_messages("s", "t", 0, [*messages, SendMessage("an id of its own")])
        return [
            (each.offset(), each.id(), each.timestamp(), each.origin_timestamp(), each.payload(), each.partition_id())
            for each in await poll(client)
        ]

    found = run(program)
    assert [(*message[:5], 0) for message in read(local)] == found
    assert [message[1] for message in found if message[0] in (0, 1, 2, 4, 5)] == ids + ids[1:]
    assert len({message[1] for message in found if message[0] in (3, 6)} - {0}) == 2
    timestamps = [message[2] for message in found]
    assert timestamps == sorted(timestamps)
    assert all(abs(message[2] - message[3]) < 60_000_000 for message in found)


def test_any_slice_of_batches_of_both_is_the_same_messages(
    run: Run, local: Any, topic: None, rng: random.Random
) -> None:
    async def program(client: IggyClient) -> None:
        payloads: list[bytes] = []
        with local.producer("s", "t") as producer:
            for number, size in enumerate(SIZES):
                batch = [rng.randbytes(rng.choice((1, 100, 100, 1000))) for _ in range(size)]
                if number % 2:
                    producer.send(batch, partition=0)
                else:
                    await client.send_messages("s", "t", 0, [SendMessage(payload) for payload in batch])
                payloads += batch
        whole = [(m.offset(), m.payload(), m.id(), m.timestamp(), m.checksum()) for m in await poll(client)]
        assert [message[1] for message in whole] == payloads
        for first in range(len(payloads)):
            count = rng.choice((1, 2, 3, 10, 100))
            part = await poll(client, first, count)
            assert [(m.offset(), m.payload(), m.id(), m.timestamp(), m.checksum()) for m in part] == whole[
                first : first + count
            ]

    run(program)
    with local.consumer("s", "t", partition=0, offset=sum(SIZES) // 2) as consumer:
        (first, *_) = consumer.poll(3, timeout=5.0)
        assert first.base_offset == sum(SIZES) // 2
