"""Messages in JSON and in batches: the body of a production to payloads, headers and ids; records to a poll's answer.

All of it runs on a carrier's thread: a body of some megabytes takes a while to decode.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from struct import Struct
from typing import Annotated, Any, Final, Literal, NamedTuple
from uuid import UUID

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from xxhash import xxh3_64_intdigest

from shmbroker.errors import ErrorCode, InvalidMessage
from shmbroker.formats.batch import FRAME_HEADER, FRAME_HEADER_SIZE, FRAME_INDEX_ENTRY_SIZE, HEADER_SIZE, BatchHeader
from shmbroker.formats.headers import SIZES, HeaderField, HeaderKind, Headers, unpack_pairs
from shmbroker.limits import MESSAGES_KEY_SIZE_MAX
from shmbroker.storage.reader import RecordSlice

KIND_NAMES: Final = {int(kind): kind.name.lower() for kind in HeaderKind}
KINDS: Final = {name: kind for kind, name in KIND_NAMES.items()}
ID_MAX: Final = 2**128 - 1
INDEX_ENTRY: Final = Struct("<I")
assert INDEX_ENTRY.size == FRAME_INDEX_ENTRY_SIZE


def _from_base64(value: object) -> bytes:
    if not isinstance(value, str):
        raise ValueError("text in base64 is wanted")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"not base64: {error}") from None


def _id_of(value: object) -> int:
    if isinstance(value, bool):
        raise ValueError("an id is a number or text")
    if isinstance(value, int):
        number = value
    elif isinstance(value, str):
        number = int(value) if value.isascii() and value.isdigit() and len(value) < 40 else UUID(value).int
    else:
        raise ValueError("an id is a number, decimal digits or a UUID")
    if not 0 <= number <= ID_MAX:
        raise ValueError("an id has at most 128 bits")
    return number


BASE64_PATTERN: Final = r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"


def _base64_schema(least: int) -> dict[str, Any]:
    return {"type": "string", "contentEncoding": "base64", "pattern": BASE64_PATTERN, "minLength": least}


Base64 = Annotated[bytes, BeforeValidator(_from_base64), WithJsonSchema(_base64_schema(0))]
Base64Some = Annotated[bytes, BeforeValidator(_from_base64), Field(min_length=1), WithJsonSchema(_base64_schema(4))]
MessageId = Annotated[
    int,
    BeforeValidator(_id_of),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 0, "maximum": ID_MAX},
                {"type": "string", "pattern": "^[0-9]{1,38}$"},
                {"type": "string", "format": "uuid"},
            ]
        }
    ),
]
KindName = Literal[
    "raw", "string", "bool", "int8", "int16", "int32", "int64", "int128", "uint8", "uint16", "uint32", "uint64",
    "uint128", "float32", "float64",
]  # fmt: skip


class Forbidding(BaseModel):
    """A body in which an unknown field is an error."""

    model_config = ConfigDict(extra="forbid")


class FieldBody(Forbidding):
    """A key or a value of a user header, its bytes in base64."""

    kind: KindName
    value: Base64Some


class HeaderBody(Forbidding):
    """One user header."""

    key: FieldBody
    value: FieldBody


class MessageBody(Forbidding):
    """One message. An id of 0, or none, has one made."""

    id: MessageId = 0
    payload: Base64Some
    user_headers: list[HeaderBody] | None = None


class PartitioningBody(Forbidding):
    """``balanced``: the next partition in turn; ``partition_id``: ``value`` is four bytes, little-endian;
    ``messages_key``: the partition of the hash of 1 to 255 bytes."""

    kind: Literal["balanced", "partition_id", "messages_key"]
    value: Base64 = b""


class ProduceBody(Forbidding):
    """A batch: all of it goes to one partition."""

    partitioning: PartitioningBody = PartitioningBody(kind="balanced")
    messages: list[MessageBody] = Field(min_length=1)


class Batching(NamedTuple):
    """What encode_batch takes, and where it goes: a partition, or a key, or neither."""

    payloads: list[bytes]
    headers: list[Headers | None] | None
    ids: list[int] | None
    partition: int | None
    key: bytes | None


def batching_of(body: ProduceBody) -> Batching:
    """Raises InvalidMessage for what Iggy's rules forbid."""
    messages = body.messages
    ids = [message.id for message in messages]
    headers: list[Headers | None] | None = None
    if any(message.user_headers for message in messages):
        headers = [_headers_of(message.user_headers or ()) or None for message in messages]
    partition, key = _target_of(body.partitioning)
    return Batching([message.payload for message in messages], headers, ids if any(ids) else None, partition, key)


def _target_of(partitioning: PartitioningBody) -> tuple[int | None, bytes | None]:
    value = partitioning.value
    if partitioning.kind == "partition_id":
        if len(value) != 4:
            raise InvalidMessage("partitioning: a partition id is four bytes in base64")
        return int.from_bytes(value, "little"), None
    if partitioning.kind == "messages_key":
        if not 1 <= len(value) <= MESSAGES_KEY_SIZE_MAX:
            text = f"partitioning: a key has 1 to {MESSAGES_KEY_SIZE_MAX} bytes"
            raise InvalidMessage(text, number=ErrorCode.INVALID_KEY_VALUE_LENGTH)
        return None, value
    return None, None


def _headers_of(headers: Sequence[HeaderBody]) -> Headers:
    return {_field_of(header.key): _field_of(header.value) for header in headers}


def _field_of(field: FieldBody) -> HeaderField:
    kind = KINDS[field.kind]
    size = SIZES.get(kind, len(field.value))
    if len(field.value) != size:
        text = f"a user header of kind {field.kind} has {size} bytes, not {len(field.value)}"
        raise InvalidMessage(text, number=ErrorCode.INVALID_HEADER_VALUE)
    return HeaderField(kind, field.value)


# --- polls ------------------------------------------------------------------------------------------------------------
class MessageHeader(BaseModel):
    """Times in microseconds; the broker's and the producer's."""

    checksum: int
    id: int
    offset: int
    timestamp: int
    origin_timestamp: int
    user_headers_length: int
    payload_length: int
    reserved: int


class FieldEntry(BaseModel):
    """A key or a value of a user header, its bytes in base64. ``kind`` is as in a production, or ``kind_N``."""

    kind: str
    value: str


class HeaderEntry(BaseModel):
    """One user header."""

    key: FieldEntry
    value: FieldEntry


class PolledMessage(BaseModel):
    """One message, its payload in base64. ``user_headers`` is empty where its bytes are no headers."""

    header: MessageHeader
    payload: str
    user_headers: list[HeaderEntry]


class PolledMessages(BaseModel):
    """``current_offset`` is that of the partition's last message, or 0."""

    partition_id: int
    current_offset: int
    count: int
    messages: list[PolledMessage]


def entries_of(piece: RecordSlice, size_left: int, *, is_first: bool) -> tuple[list[dict[str, Any]], int]:
    """The messages of a slice as JSON values, as many as ``size_left`` bytes of frames hold, but at least one of the
    first slice of an answer; and what is left of it then, below 0 where some were left out."""
    header, record, first, count = piece
    index = record[HEADER_SIZE + header.frames_length :].cast("B")
    lengths = [length for (length,) in INDEX_ENTRY.iter_unpack(index[: (first + count) * FRAME_INDEX_ENTRY_SIZE])]
    start = HEADER_SIZE + sum(lengths[:first])
    entries: list[dict[str, Any]] = []
    for length in lengths[first:]:
        size_left -= length
        if size_left < 0 and (entries or not is_first):
            break
        entries.append(_entry_of(bytes(record[start : start + length]), header))
        start += length
    return entries, size_left


def _entry_of(frame: bytes, header: BatchHeader) -> dict[str, Any]:
    """One frame as a JSON value. The wire's checksum is reckoned here where the producer left it out."""
    checksum, number, offset_delta, time_delta, headers_length, payload_length, _ = FRAME_HEADER.unpack_from(frame)
    end = FRAME_HEADER_SIZE + payload_length
    return {
        "header": {
            "checksum": checksum or xxh3_64_intdigest(frame[8:]),
            "id": int.from_bytes(number, "little"),
            "offset": header.base_offset + offset_delta,
            "timestamp": header.base_timestamp,
            "origin_timestamp": header.origin_timestamp + time_delta,
            "user_headers_length": headers_length,
            "payload_length": payload_length,
            "reserved": 0,
        },
        "payload": base64.b64encode(frame[FRAME_HEADER_SIZE:end]).decode("ascii"),
        "user_headers": _headers_entries(frame[end:]),
    }


def _headers_entries(block: bytes) -> list[dict[str, dict[str, str]]]:
    """None for bytes that are no user headers: the broker keeps what a sender gave it, and others are read on."""
    try:
        return [{"key": _entry(key), "value": _entry(value)} for key, value in unpack_pairs(block)]
    except InvalidMessage:
        return []


def _entry(field: HeaderField) -> dict[str, str]:
    kind = KIND_NAMES.get(field.kind, f"kind_{field.kind}")
    return {"kind": kind, "value": base64.b64encode(field.data).decode("ascii")}


def encode(value: Any) -> bytes:
    """Compact JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
