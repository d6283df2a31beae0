"""Frames recorded from Iggy's own client, and answers it accepted: both ways byte for byte, and field by field.

``vectors.json.gz``: a list of {name, code, direction (request, reply, computed), hex, header, eviction, body, result};
``body`` is what an independent decoder read.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from xxhash import xxh3_64_intdigest, xxh32_intdigest

from shmbroker.errors import ErrorCode
from shmbroker.limits import FRAME_SIZE_MAX
from shmbroker.wire.codes import BY_CODE, BY_OPERATION, PLAIN, Code
from shmbroker.wire.commands import decode_reply, decode_request, encode_reply
from shmbroker.wire.connection import ClientConnection, Incoming, ServerConnection
from shmbroker.wire.frame import (
    HEADER_SIZE,
    OPERATION_PLAIN,
    RESULT_OK,
    Eviction,
    ReplyHeader,
    RequestHeader,
    decode_reply_header,
    decode_request_header,
    result_error,
    split_result,
)
from shmbroker.wire.topics import COMPRESSION_CODES

VECTORS: list[dict[str, Any]] = json.loads(gzip.decompress(Path(__file__, "../vectors.json.gz").resolve().read_bytes()))
UNKNOWN_CODE = 9999
"""A code that no command has: recorded to show that it travels as operation 2."""


def vectors(direction: str) -> list[Any]:
    return [pytest.param(vector, id=vector["name"]) for vector in VECTORS if vector["direction"] == direction]


def test_all_vectors_are_there() -> None:
    counts = {name: len(vectors(name)) for name in ("request", "reply", "computed")}
    assert counts == {"request": 212, "reply": 212, "computed": 12}


@pytest.mark.parametrize("vector", vectors("request"))
def test_request(vector: dict[str, Any]) -> None:
    frame = bytes.fromhex(vector["hex"])
    header = decode_request_header(frame)
    assert isinstance(header, RequestHeader)
    expected = vector["header"]
    assert header.encode() == frame[:HEADER_SIZE]
    assert (header.size, header.client, header.checksum) == tuple(
        int(expected[key]) for key in ("size", "client", "request_checksum")
    )
    assert (header.request_number, header.operation, header.session, header.code) == tuple(
        int(expected[key]) for key in ("request", "operation", "session", "nr_code")
    )
    body = frame[HEADER_SIZE:]
    spec = PLAIN.get(header.code) if header.operation == OPERATION_PLAIN else BY_OPERATION[header.operation]
    if vector["code"] == UNKNOWN_CODE:
        assert spec is None
        assert decode_request(UNKNOWN_CODE, body) == ErrorCode.INVALID_COMMAND
        return
    assert spec is not None
    request = decode_request(spec.code, body)
    assert not isinstance(request, ErrorCode)
    assert vector["code"] == request.CODE
    assert request.encode() == body
    assert leaves(request) == reference_leaves(vector["body"], vector["code"])
    # The server's connection understands it, and our client's would have sent the same.
    server = ServerConnection(FRAME_SIZE_MAX)
    server.feed(frame)
    incoming = server.next_request()
    assert isinstance(incoming, Incoming)
    assert not isinstance(incoming.request, ErrorCode)
    assert leaves(incoming.request) == leaves(request)
    client = ClientConnection(header.client, header.session)
    client.request_number = header.request_number
    assert client.request(request) == frame
    numbered = BY_CODE[request.CODE].numbered
    assert client.request_number == header.request_number + numbered


@pytest.mark.parametrize("vector", vectors("reply"))
def test_reply(vector: dict[str, Any]) -> None:
    frame = bytes.fromhex(vector["hex"])
    header = decode_reply_header(frame)
    assert not isinstance(header, ErrorCode)
    if isinstance(header, Eviction):
        assert header.encode() == frame
        assert header.reason in range(1, 16)
        assert not vector["header"]
        return
    assert header.encode() == frame[:HEADER_SIZE]
    expected = vector["header"]
    assert_reply_header(header, expected)
    body = memoryview(frame)[HEADER_SIZE:]
    if header.status:
        assert not body
        return
    spec = BY_CODE.get(vector["code"])
    if spec is None:
        assert vector["code"] == UNKNOWN_CODE
        return
    if spec.framed:
        code, rest = split_result(body)
        if code:
            assert code == vector["body"]["result_section"][0]["result"]
            assert result_error(code) == bytes(body)
            return
        assert bytes(body[:4]) == RESULT_OK
        body = rest
    value = decode_reply(spec.code, body)
    assert not isinstance(value, ErrorCode)
    assert encode_reply(value) == bytes(body)
    assert leaves(value) == reference_leaves(vector["body"], vector["code"])


def assert_reply_header(header: ReplyHeader, expected: dict[str, Any]) -> None:
    assert (header.size, header.request_checksum, header.client) == tuple(
        int(expected[key]) for key in ("size", "request_checksum", "client")
    )
    numbers = (header.operation_number, header.commit_number, header.timestamp, header.request_number)
    assert numbers == tuple(int(expected[key]) for key in ("op", "commit", "timestamp", "request"))
    assert (header.operation, header.status) == (expected["operation"], expected["status"])


@pytest.mark.parametrize("vector", vectors("computed"))
def test_computed(vector: dict[str, Any]) -> None:
    """The hashes that the wire is built on are those of our libraries."""
    data = bytes.fromhex(vector["hex"])
    decoded = vector["decoded"]
    if "xxh3_64" in decoded:
        assert xxh3_64_intdigest(data) == int(decoded["xxh3_64"])
    elif "xxh32_seed0" in decoded:
        assert xxh32_intdigest(data, 0) == decoded["xxh32_seed0"]
        assert xxh32_intdigest(data, 0) % 3 == decoded["partition_of_3"]
    else:
        count = int.from_bytes(data[48:52], "little")
        hashed = bytearray(data[:40] + data[48:52])
        position = HEADER_SIZE
        for _ in range(count):
            headers_size, payload_size = (
                int.from_bytes(data[position + at : position + at + 4], "little") for at in (32, 36)
            )
            end = position + 48 + headers_size + payload_size
            assert xxh3_64_intdigest(data[position + 8 : end]) == int.from_bytes(
                data[position : position + 8], "little"
            )
            hashed += data[position : position + 8]
            position = end
        assert position == len(data)
        assert xxh3_64_intdigest(bytes(hashed)) == int.from_bytes(data[40:48], "little")


# --- field by field ---------------------------------------------------------------------------------------------------
# Both sides become the list of their plain values in the order of the wire. A value that the two decoders cut
# differently (a batch, an option's bytes) is left as bytes or counted.
LEFT_OUT = frozenset(
    {
        "result_section", "empty", "raw_hex", "shape", "metadata_length", "batch_offset", "batch", "batches",
        "partitioning_kind", "partitioning_value", "key_kind", "members_count", "groups_count",
    }
)  # fmt: skip
"""Of the reference: what it counted or derived, and what other tests of this file compare as bytes."""
COUNTED = frozenset({"memberships_count", "members_count", "records", "batch", "partitioning", "archive"})


def leaves(value: object) -> list[object]:
    """The plain values of one of our objects."""
    if is_dataclass(value) and not isinstance(value, type):
        named = [(field.name, getattr(value, field.name)) for field in fields(value)]
        return [
            leaf
            for name, inner in named
            if name not in COUNTED
            for leaf in (list(inner) if name == "kinds" else leaves(inner))
        ]
    if isinstance(value, tuple | list):
        return [leaf for inner in value for leaf in leaves(inner)]
    if isinstance(value, bytes):
        return [value.hex()]
    if value in COMPRESSION_CODES:
        return [COMPRESSION_CODES[str(value)]]
    return [] if value is None else [int(value) if isinstance(value, bool) else value]


def _number(key: str, value: object) -> object:
    """The reference keeps these two as text, since JSON's numbers may be too small for them."""
    return int(str(value)) if key in ("message_expiry", "max_topic_size") else value


def reference_leaves(body: object, code: int) -> list[object]:
    """The plain values of what the independent decoder read."""
    if isinstance(body, dict):
        left_out = LEFT_OUT | ({"count"} if code == Code.GET_TOPICS else set())
        return [
            leaf
            for key, inner in body.items()
            if key not in left_out
            for leaf in ([inner] if key.endswith("_hex") else reference_leaves(_number(key, inner), code))
        ]
    if isinstance(body, list):
        return [leaf for inner in body for leaf in reference_leaves(inner, code)]
    return [] if body is None else [int(body) if isinstance(body, bool) else body]
