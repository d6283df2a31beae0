"""Batches laid out and cut up again: every message comes back, and the bytes are those of the wire."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmbroker.client.batch import Batch
from shmbroker.client.encoding import TEMPLATE_COUNT, encode_array, encode_batch
from shmbroker.errors import BatchTooLarge, ErrorCode, InvalidMessage
from shmbroker.formats.batch import (
    FLAG_WIRE_CHECKSUMS,
    FRAME_HEADER,
    HEADER_SIZE,
    content_checksum_of,
    content_length_of,
    header_checksum_holds,
    shape_fault,
    unpack_header,
)
from shmbroker.formats.headers import HeaderField
from shmbroker.limits import BATCH_MESSAGE_COUNT_MAX, BATCH_SIZE_MAX, MESSAGE_PAYLOAD_SIZE_MAX
from shmbroker.storage.reader import RecordSlice

RECORDED: list[dict[str, Any]] = json.loads((Path(__file__).parent / "recorded_batches.json").read_text())
PAYLOADS = st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=50)
IDS = st.integers(0, (1 << 128) - 1)
HEADERS = st.dictionaries(st.text(min_size=1, max_size=5), st.integers(0, 1000) | st.binary(min_size=1), max_size=3)


def batch_of(buffers: tuple[bytes, bytes | memoryview], first: int = 0, count: int | None = None) -> Batch:
    """The batch as a consumer gets it; everything that a worker checks holds."""
    record = memoryview(b"".join(buffers))
    header = unpack_header(record)
    assert header_checksum_holds(record)
    assert shape_fault(header, len(record)) is None
    assert header.record_length == len(record)
    end = HEADER_SIZE + content_length_of(header)
    assert content_checksum_of(record[HEADER_SIZE:end]) == header.content_checksum
    assert not any(record[end:])
    assert (header.partition_id, header.base_offset, header.log_position, header.incarnation) == (0, 0, 0, bytes(16))
    return Batch(RecordSlice(header, record, first, header.message_count - first if count is None else count))


@given(PAYLOADS, IDS, st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_messages_come_back(payloads: list[bytes], id_base: int, producer_id: int, sequence: int) -> None:
    batch = batch_of(
        encode_batch(payloads, id_base=id_base, origin_timestamp_us=77, producer_id=producer_id, sequence=sequence)
    )
    assert batch.payloads() == payloads
    assert batch.views() == payloads
    assert batch.ids() == [(id_base + number) % (1 << 128) for number in range(len(payloads))]
    assert (batch.header.producer_id, batch.header.producer_sequence) == (producer_id, sequence)
    assert (batch.header.origin_timestamp, batch.header.flags) == (77, 0)
    assert len(batch) == len(payloads)


@given(PAYLOADS, st.data())
def test_ids_and_headers_come_back(payloads: list[bytes], data: st.DataObject) -> None:
    count = len(payloads)
    ids = data.draw(st.none() | st.lists(IDS, min_size=count, max_size=count))
    headers = data.draw(st.none() | HEADERS | st.lists(st.none() | HEADERS, min_size=count, max_size=count))
    wire = data.draw(st.booleans())
    buffers = encode_batch(payloads, id_base=9, origin_timestamp_us=5, headers=headers, ids=ids, wire_checksums=wire)
    batch = batch_of(buffers)
    wanted = [headers] * count if isinstance(headers, dict) else headers or [None] * count
    messages = batch.messages()
    assert [message.payload for message in messages] == payloads
    assert [message.headers for message in messages] == [each or {} for each in wanted]
    assert [message.id for message in messages] == [
        each or 9 + number for number, each in enumerate(ids or [0] * count)
    ]
    assert batch.views() == payloads
    assert (batch.header.flags == FLAG_WIRE_CHECKSUMS) is wire
    assert all(check != 0 for check in frame_checksums(batch)) is wire


def frame_checksums(batch: Batch) -> list[int]:
    starts, _ = batch._bounds()
    return [FRAME_HEADER.unpack_from(batch.record, start)[0] for start in starts.tolist()]


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda recorded: recorded["name"])
def test_the_frames_are_those_that_the_client_of_iggy_sends(recorded: dict[str, Any]) -> None:
    wire = bytes.fromhex(recorded["batch"])
    headers = {
        HeaderField(kind, key.encode()): HeaderField(value_kind, bytes.fromhex(value))
        for kind, key, value_kind, value in recorded["headers"]
    }
    header, content = encode_batch(
        [bytes.fromhex(recorded["payload"])], id_base=int(recorded["id"]), wire_checksums=True,
        origin_timestamp_us=recorded["origin_timestamp"], headers=headers or None,
    )  # fmt: skip
    assert content[: len(wire) - HEADER_SIZE] == wire[HEADER_SIZE:]
    # Of the header everything but the batch checksum, which whoever sends it fills in.
    assert header[:40] + wire[40:48] + header[48:52] == wire[:52]


def test_scalars_as_headers_are_those_that_the_client_of_iggy_sends() -> None:
    [recorded] = [recorded for recorded in RECORDED if recorded["name"] == "send_messages headers scalar"]
    wire = bytes.fromhex(recorded["batch"])
    _, content = encode_batch(
        [b"h"], id_base=77, origin_timestamp_us=recorded["origin_timestamp"], wire_checksums=True,
        headers=[{"str": "v", "bytes": b"xy", "bool": True, "int": 7, "float": 1.5}],
    )  # fmt: skip
    assert content[: len(wire) - HEADER_SIZE] == wire[HEADER_SIZE:]


@pytest.mark.parametrize("count", [1, 2, TEMPLATE_COUNT - 1, TEMPLATE_COUNT, TEMPLATE_COUNT + 1, 10_000])
def test_counts_around_the_template(count: int) -> None:
    payloads = [bytes((number % 251 + 1,)) * (number % 7 + 1) for number in range(count)]
    batch = batch_of(encode_batch(payloads, id_base=(1 << 64) - 5, origin_timestamp_us=0))
    assert batch.payloads() == payloads
    assert batch.ids() == [(1 << 64) - 5 + number for number in range(count)]


@pytest.mark.parametrize(
    ("encode", "number"),
    [
        (list, ErrorCode.INVALID_MESSAGES_COUNT),
        (lambda: [b"x"] * (BATCH_MESSAGE_COUNT_MAX + 1), ErrorCode.TOO_MANY_MESSAGES),
        (lambda: [b""], ErrorCode.EMPTY_MESSAGE_PAYLOAD),
        (lambda: [b"x", b"", b"y"], ErrorCode.EMPTY_MESSAGE_PAYLOAD),
        (lambda: [bytes(MESSAGE_PAYLOAD_SIZE_MAX + 1)], ErrorCode.TOO_BIG_MESSAGE_PAYLOAD),
        (lambda: [b"x", bytes(MESSAGE_PAYLOAD_SIZE_MAX + 1)], ErrorCode.TOO_BIG_MESSAGE_PAYLOAD),
        (lambda: ["text"], ErrorCode.INVALID_FORMAT),
        (lambda: [b"x", "text"], ErrorCode.INVALID_FORMAT),
        (lambda: [b"x", 5], ErrorCode.INVALID_FORMAT),
        (lambda: [5], ErrorCode.INVALID_FORMAT),
        (lambda: [memoryview(bytes(8)).cast("Q")], ErrorCode.INVALID_FORMAT),
        (lambda: [b"x", memoryview(bytes(8)).cast("Q")], ErrorCode.INVALID_FORMAT),
        (lambda: b"payload", ErrorCode.INVALID_FORMAT),
        (lambda: "payload", ErrorCode.INVALID_FORMAT),
    ],
)  # fmt: skip
def test_messages_that_are_refused(encode: Callable[[], Any], number: ErrorCode) -> None:
    with pytest.raises(InvalidMessage) as caught:
        encode_batch(encode(), id_base=1, origin_timestamp_us=0)
    assert caught.value.number == number


@pytest.mark.parametrize(
    ("arguments", "number"),
    [
        ({"ids": [1]}, ErrorCode.INVALID_FORMAT),
        ({"ids": [1, -1]}, ErrorCode.INVALID_FORMAT),
        ({"ids": [1, 1 << 128]}, ErrorCode.INVALID_FORMAT),
        ({"ids": [1, "2"]}, ErrorCode.INVALID_FORMAT),
        ({"id_base": -1}, ErrorCode.INVALID_FORMAT),
        ({"id_base": 1 << 128}, ErrorCode.INVALID_FORMAT),
        ({"headers": [None]}, ErrorCode.INVALID_FORMAT),
        ({"headers": {"k": ""}}, ErrorCode.INVALID_HEADER_VALUE),
        ({"headers": [None, {"": 1}]}, ErrorCode.INVALID_HEADER_KEY),
    ],
)
def test_ids_and_headers_that_are_refused(arguments: dict[str, Any], number: ErrorCode) -> None:
    with pytest.raises(InvalidMessage) as caught:
        encode_batch([b"x", b"y"], **{"id_base": 1, "origin_timestamp_us": 0, **arguments})
    assert caught.value.number == number


def test_one_message_with_two_ids_is_refused() -> None:
    with pytest.raises(InvalidMessage):
        encode_batch([b"x"], id_base=1, origin_timestamp_us=0, ids=[1, 2])


def test_the_largest_batch_and_one_byte_more() -> None:
    half = bytes((BATCH_SIZE_MAX - HEADER_SIZE - 2 * (FRAME_HEADER.size + 4)) // 2)
    batch = batch_of(encode_batch([half, half], id_base=1, origin_timestamp_us=0))
    assert batch.header.record_length == BATCH_SIZE_MAX
    with pytest.raises(BatchTooLarge):
        encode_batch([half, half + b"x"], id_base=1, origin_timestamp_us=0)
    with pytest.raises(BatchTooLarge):
        encode_array(np.zeros((2, len(half) + 1), np.uint8), id_base=1, origin_timestamp_us=0)
    single = batch_of(encode_batch([bytes(MESSAGE_PAYLOAD_SIZE_MAX)], id_base=1, origin_timestamp_us=0))
    assert len(single.payloads()[0]) == MESSAGE_PAYLOAD_SIZE_MAX


# --- fixed-size records ---------------------------------------------------------------------------------------------

TRADE = np.dtype([("price", "<f8"), ("size", "<u4"), ("side", "S1")])


@given(st.integers(1, 300), st.integers(1, 64), st.integers(0, 2**32))
def test_rows_of_bytes_come_back(count: int, size: int, seed: int) -> None:
    rows = np.random.default_rng(seed).integers(0, 256, (count, size), np.uint8)
    batch = batch_of(encode_array(rows, id_base=7, origin_timestamp_us=3, producer_id=2, sequence=1))
    assert batch.payloads() == [row.tobytes() for row in rows]
    assert np.array_equal(batch.array().reshape(rows.shape), rows)
    assert batch.ids() == list(range(7, 7 + count))
    same, _ = encode_batch(batch.payloads(), id_base=7, origin_timestamp_us=3, producer_id=2, sequence=1)
    assert bytes(batch.record[:HEADER_SIZE]) == same


def test_records_come_back_without_a_copy() -> None:
    trades = np.zeros(1000, TRADE)
    trades["price"] = np.arange(1000) / 3
    trades["side"] = b"B"
    batch = batch_of(encode_array(trades, id_base=1, origin_timestamp_us=0))
    found = batch.array(TRADE)
    assert np.array_equal(found, trades)
    assert not found.flags.writeable
    assert np.shares_memory(found, np.frombuffer(batch.record, np.uint8))
    strided = batch_of(encode_array(trades[::3], id_base=1, origin_timestamp_us=0))
    assert np.array_equal(strided.array(TRADE), trades[::3])


@pytest.mark.parametrize(
    "array",
    [np.array([object()]), np.zeros((2, 2, 2), np.uint8), np.zeros((2, 2), np.float64), np.zeros(0, np.int64),
     np.zeros(3, np.dtype([])), np.zeros((3, 0), np.uint8)],
)  # fmt: skip
def test_arrays_that_are_refused(array: Any) -> None:
    with pytest.raises(InvalidMessage):
        encode_array(array, id_base=1, origin_timestamp_us=0)
