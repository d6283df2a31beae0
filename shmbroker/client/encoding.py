"""Laying out a batch record once, in the producer: the bytes that lane, journal, file and reply then share.

A batch is given back as two buffers, header and content (frames, frame index, padding), to be copied into a lane in one
go. The header says what a producer knows; partition, base offset, positions and incarnation are zero until the worker
stamps them. Its checksums are valid as it stands.

Many messages are laid out by numpy and one join: an array of frame headers is cut into bytes objects in C and
interleaved with the payloads. A single message is packed directly, since numpy costs more than it saves there. Sizes
are checked before anything is copied. (``bench/micro`` has both.)

Message ids are 128-bit numbers, counted up from ``id_base``. A producer takes ``producer_id << 64`` plus a running
number: unique without a random number for each message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Any, Final, NoReturn

import numpy as np
import numpy.typing as npt
from crc32c import crc32c
from xxhash import xxh3_64_intdigest

from shmbroker.errors import BatchTooLarge, ErrorCode, InvalidMessage
from shmbroker.formats.batch import (
    BATCH_MAGIC,
    CHECKSUM,
    CHECKSUM_POSITION,
    FLAG_WIRE_CHECKSUMS,
    FRAME_HEADER_SIZE,
    FRAME_INDEX_ENTRY_SIZE,
    HEADER_SIZE,
    KIND_BATCH,
    record_length_of,
)
from shmbroker.formats.headers import Headers, encode_headers
from shmbroker.limits import BATCH_MESSAGE_COUNT_MAX, BATCH_SIZE_MAX, MESSAGE_PAYLOAD_SIZE_MAX, U64_MAX

INDEX_ENTRY: Final = Struct("<I")
NEW_HEADER: Final = Struct("<24xQQ8xIHHQQ32xQQQ124x")
"""A batch header up to its checksum, of what a producer fills in: the rest, the reserved bytes too, is packed as zeros.
In order: origin timestamp, batch length, message count, kind, flags, magic, record length, producer id, sequence,
content checksum."""
ONE_FRAME_HEADER: Final = Struct("<8x16s12xI8x")
"""A frame header of a message without user headers that is the first of its batch: id, payload length."""
PADDINGS: Final = tuple(bytes(size) for size in range(8))
TEMPLATE_COUNT: Final = 4096

# A frame header as six words: checksum, id (low, high), deltas (offset, timestamp), lengths (headers, payload), zero.
FRAME_WORDS: Final = FRAME_HEADER_SIZE // 8
WORD_CHECKSUM: Final = 0
WORD_ID_LOW: Final = 1
WORD_ID_HIGH: Final = 2
WORD_DELTAS: Final = 3
HALF_HEADERS_LENGTH: Final = 8
HALF_PAYLOAD_LENGTH: Final = 9

assert NEW_HEADER.size == CHECKSUM_POSITION
assert ONE_FRAME_HEADER.size == FRAME_HEADER_SIZE

Words = npt.NDArray[np.uint64]
Lengths = npt.NDArray[np.int64]
Buffer = bytes | memoryview


def _template_of(count: int) -> Words:
    """Frame headers that are zero but for the offset deltas 0, 1, 2, ..."""
    words = np.zeros((count, FRAME_WORDS), np.uint64)
    words[:, WORD_DELTAS] = np.arange(count, dtype=np.uint64)
    words.flags.writeable = False
    return words


_pack_new_header = NEW_HEADER.pack
_pack_one_frame_header = ONE_FRAME_HEADER.pack
_pack_index_entry = INDEX_ENTRY.pack
_pack_checksum = CHECKSUM.pack
_TEMPLATE: Final = _template_of(TEMPLATE_COUNT)
_NUMBERS: Final = np.arange(TEMPLATE_COUNT, dtype=np.uint64)


def encode_batch(
    messages: Sequence[Buffer],
    *,
    id_base: int,
    origin_timestamp_us: int,
    producer_id: int = 0,
    sequence: int = 0,
    headers: Sequence[Headers | None] | Headers | None = None,
    ids: Sequence[int] | None = None,
    wire_checksums: bool = False,
) -> tuple[bytes, bytes]:
    """The record of a batch: (header of 256 bytes, content with its padding).

    ``messages`` are payloads of 1 to 64,000,000 bytes each. ``id_base`` is the 128-bit id of the first message.
    ``headers`` is one mapping for all messages, or a sequence with a mapping or None for each. ``ids`` has an id for
    each message; where it is 0 the running one is taken. ``wire_checksums`` fills in the checksum of each frame, which
    costs a step a message: for batches that leave over TCP.

    Raises InvalidMessage with the wire's number (empty or too big payload, no or too many messages, bad header or id),
    BatchTooLarge for a record above ``batch_size_max``.
    """
    if isinstance(messages, str | bytes | bytearray | memoryview):
        raise InvalidMessage("a batch is a list of payloads: write [payload] for a single one")
    check_lists(messages, headers, ids)
    count = len(messages)
    if wire_checksums:
        messages = _contiguous(messages) or messages
    if count == 1 and headers is None and not wire_checksums and (ids is None or len(ids) == 1):
        message_id = ids[0] or id_base if ids else id_base
        return encode_one(messages[0], message_id, origin_timestamp_us, producer_id, sequence)
    _check_count(count)
    lengths = _lengths_of(messages, count)
    words = _frame_words(count, id_base)
    halves = words.view(np.uint32)
    halves[:, HALF_PAYLOAD_LENGTH] = lengths
    blocks = None
    if headers is not None:
        blocks = _header_blocks(headers, count)
        header_lengths = np.fromiter(map(len, blocks), np.int64, count)
        halves[:, HALF_HEADERS_LENGTH] = header_lengths
        lengths = lengths + header_lengths
    if ids is not None:
        _set_ids(words, ids)
    frames_length = int(lengths.sum()) + FRAME_HEADER_SIZE * count
    record_length = _checked_record_length(frames_length, count)
    if wire_checksums:
        _set_wire_checksums(words, messages, blocks)
    index = (lengths + FRAME_HEADER_SIZE).astype("<u4").tobytes()
    content_length = frames_length + len(index)
    padding = PADDINGS[record_length - HEADER_SIZE - content_length]
    content = _join(words, messages, blocks, index + padding, content_length + len(padding))
    checksum = xxh3_64_intdigest(memoryview(content)[:content_length])
    flags = FLAG_WIRE_CHECKSUMS if wire_checksums else 0
    header = _pack_header(
        origin_timestamp_us, frames_length, count, flags, record_length, producer_id, sequence, checksum
    )
    return header, content


def encode_array(
    array: npt.NDArray[Any],
    *,
    id_base: int,
    origin_timestamp_us: int,
    producer_id: int = 0,
    sequence: int = 0,
) -> tuple[bytes, memoryview]:
    """The record of a batch with one message for each item of ``array``: (header of 256 bytes, content).

    ``array`` is one-dimensional of any dtype without Python objects (a structured one, say), each item a payload; or
    two-dimensional of ``uint8``, each row a payload. No step is taken for a single message. Errors as in encode_batch.
    """
    rows = _rows_of(array)
    count, payload_size = rows.shape
    _check_count(count)
    _check_payload_size(payload_size)
    frame_size = FRAME_HEADER_SIZE + payload_size
    frames_length = frame_size * count
    record_length = _checked_record_length(frames_length, count)
    words = _frame_words(count, id_base)
    words.view(np.uint32)[:, HALF_PAYLOAD_LENGTH] = payload_size
    content = np.empty(record_length - HEADER_SIZE, np.uint8)
    frame_type = np.dtype([("header", f"V{FRAME_HEADER_SIZE}"), ("payload", f"V{payload_size}")])
    frames = content[:frames_length].view(frame_type)
    frames["header"] = words.view(f"V{FRAME_HEADER_SIZE}")[:, 0]
    frames["payload"] = rows.view(f"V{payload_size}")[:, 0]
    content_length = frames_length + FRAME_INDEX_ENTRY_SIZE * count
    content[frames_length:content_length] = np.full(count, frame_size, "<u4").view(np.uint8)
    content[content_length:] = 0
    checksum = xxh3_64_intdigest(content.data[:content_length])
    header = _pack_header(origin_timestamp_us, frames_length, count, 0, record_length, producer_id, sequence, checksum)
    return header, content.data


def encode_one(
    message: Buffer, message_id: int, origin_timestamp_us: int, producer_id: int, sequence: int
) -> tuple[bytes, bytes]:
    """:func:`encode_batch` for one message without user headers, where each step is felt."""
    try:
        payload_length = len(message)
    except TypeError:
        _refuse_type([message])
    if not 1 <= payload_length <= MESSAGE_PAYLOAD_SIZE_MAX:
        _check_payload_size(payload_length)
    frame_length = 48 + payload_length  # FRAME_HEADER_SIZE: constants are quicker than names
    try:
        identity = message_id.to_bytes(16, "little")
    except (OverflowError, AttributeError, TypeError):
        _refuse_id(message_id)
    try:
        content = b"".join((_pack_one_frame_header(identity, payload_length), message, _pack_index_entry(frame_length)))
    except TypeError:
        if copies := _contiguous([message]):
            return encode_one(copies[0], message_id, origin_timestamp_us, producer_id, sequence)
        _refuse_type([message])
    content_length = frame_length + 4  # FRAME_INDEX_ENTRY_SIZE
    if len(content) != content_length:
        _refuse_type([message])
    padding = -content_length & 7
    body = _pack_new_header(
        origin_timestamp_us, 256 + frame_length, 1, KIND_BATCH, 0, BATCH_MAGIC, 256 + content_length + padding,
        producer_id, sequence, xxh3_64_intdigest(content),
    )  # fmt: skip
    if padding:
        content += PADDINGS[padding]
    return body + _pack_checksum(crc32c(body)), content


def _pack_header(
    origin_timestamp_us: int,
    frames_length: int,
    count: int,
    flags: int,
    record_length: int,
    producer_id: int,
    sequence: int,
    content_checksum: int,
) -> bytes:
    """formats.batch.pack_header of what a producer knows."""
    body = NEW_HEADER.pack(
        origin_timestamp_us, HEADER_SIZE + frames_length, count, KIND_BATCH, flags, BATCH_MAGIC, record_length,
        producer_id, sequence, content_checksum,
    )  # fmt: skip
    return body + CHECKSUM.pack(crc32c(body))


def check_lists(messages: Any, headers: Any, ids: Any) -> None:
    """Raises InvalidMessage naming the argument that cannot be one."""
    if not hasattr(messages, "__len__"):
        raise InvalidMessage(f"messages: a list of payloads, not {type(messages).__name__}")
    if ids is not None and not hasattr(ids, "__len__"):
        raise InvalidMessage(f"ids: a list of numbers, not {type(ids).__name__}")
    if headers is None or isinstance(headers, Mapping):
        return
    if isinstance(headers, str | bytes) or not hasattr(headers, "__len__"):
        raise InvalidMessage(f"headers: a mapping, or one for each message, not {type(headers).__name__}")
    for each in headers:
        if each is not None and not isinstance(each, Mapping):
            raise InvalidMessage(f"headers: a mapping for each message, or None, not {type(each).__name__}")


def _check_count(count: int) -> None:
    if count == 0:
        raise InvalidMessage("a batch has at least one message", number=ErrorCode.INVALID_MESSAGES_COUNT)
    if count > BATCH_MESSAGE_COUNT_MAX:
        raise InvalidMessage(
            f"{count} messages in one batch; at most {BATCH_MESSAGE_COUNT_MAX} are allowed",
            number=ErrorCode.TOO_MANY_MESSAGES,
        )


def _check_payload_size(size: int) -> None:
    if size == 0:
        raise InvalidMessage("a payload is empty", number=ErrorCode.EMPTY_MESSAGE_PAYLOAD)
    if size > MESSAGE_PAYLOAD_SIZE_MAX:
        raise InvalidMessage(
            f"a payload of {size} bytes; at most {MESSAGE_PAYLOAD_SIZE_MAX} are allowed",
            number=ErrorCode.TOO_BIG_MESSAGE_PAYLOAD,
        )


def _checked_record_length(frames_length: int, count: int) -> int:
    length = record_length_of(frames_length, count)
    if length > BATCH_SIZE_MAX:
        raise BatchTooLarge(f"the batch takes {length} bytes; at most {BATCH_SIZE_MAX} are allowed: send smaller ones")
    return length


def _lengths_of(messages: Sequence[Buffer], count: int) -> Lengths:
    try:
        lengths = np.fromiter(map(len, messages), np.int64, count)
    except TypeError:
        _refuse_type(messages)
    except ValueError as fault:
        raise InvalidMessage("the list of messages changed while it was read") from fault
    _check_payload_size(int(lengths.min()))
    _check_payload_size(int(lengths.max()))
    return lengths


def _frame_words(count: int, id_base: int) -> Words:
    """Frame headers of ``count`` messages, without payloads: ids and offset deltas."""
    if not 0 <= id_base < 1 << 128:
        _refuse_id(id_base)
    template, numbers = (_TEMPLATE, _NUMBERS) if count <= TEMPLATE_COUNT else (_template_of(count), None)
    if numbers is None:
        numbers = np.arange(count, dtype=np.uint64)
    words = template[:count].copy()
    low, high = id_base & U64_MAX, id_base >> 64
    np.add(numbers[:count], np.uint64(low), out=words[:, WORD_ID_LOW])
    words[:, WORD_ID_HIGH] = high
    if low + count > U64_MAX:
        words[words[:, WORD_ID_LOW] < low, WORD_ID_HIGH] = (high + 1) & U64_MAX
    return words


def _set_ids(words: Words, ids: Sequence[int]) -> None:
    if len(ids) != len(words):
        raise InvalidMessage(f"{len(ids)} ids for {len(words)} messages")
    given = np.frombuffer(b"".join(map(_id_bytes, ids)), np.uint64).reshape(-1, 2)
    chosen = given.any(axis=1)
    words[chosen, WORD_ID_LOW : WORD_ID_HIGH + 1] = given[chosen]


def _id_bytes(message_id: int) -> bytes:
    try:
        return message_id.to_bytes(16, "little")
    except (OverflowError, AttributeError, TypeError):
        _refuse_id(message_id)


def _header_blocks(headers: Sequence[Headers | None] | Headers, count: int) -> list[bytes]:
    if isinstance(headers, Mapping):
        return [encode_headers(headers)] * count
    if len(headers) != count:
        raise InvalidMessage(f"headers for {len(headers)} messages, but there are {count}")
    return [encode_headers(each) if each else b"" for each in headers]


def _set_wire_checksums(words: Words, messages: Sequence[Buffer], blocks: list[bytes] | None) -> None:
    heads = np.ascontiguousarray(words[:, 1:]).view(f"V{FRAME_HEADER_SIZE - 8}")[:, 0].tolist()
    frames = zip(heads, messages, blocks or [b""] * len(messages), strict=True)
    words[:, WORD_CHECKSUM] = [xxh3_64_intdigest(b"".join(frame)) for frame in frames]


def _join(
    words: Words, messages: Sequence[Buffer], blocks: list[bytes] | None, tail: bytes, content_size: int
) -> bytes:
    """Header, payload and user headers of each message in turn, then ``tail``: ``content_size`` bytes in all."""
    step = 2 if blocks is None else 3
    pieces: list[Any] = [None] * (step * len(words))
    try:
        pieces[0::step] = words.view(f"V{FRAME_HEADER_SIZE}")[:, 0].tolist()
        pieces[1::step] = messages
        if blocks is not None:
            pieces[2::step] = blocks
        pieces.append(tail)
        content = b"".join(pieces)
    except (TypeError, ValueError):
        if copies := _contiguous(messages):
            return _join(words, copies, blocks, tail, content_size)
        _refuse_type(messages)
    if len(content) != content_size:
        _refuse_type(messages)
    return content


def _rows_of(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """The payloads as rows of bytes, without copying where the array is contiguous."""
    if array.dtype.hasobject:
        raise InvalidMessage("an array of Python objects has no bytes to send")
    if array.ndim == 2 and array.dtype == np.uint8:
        return np.ascontiguousarray(array)
    if array.ndim != 1:
        raise InvalidMessage(f"an array of {array.ndim} dimensions: give one of records, or rows of uint8")
    if array.dtype.itemsize == 0:
        _check_payload_size(0)
    flat = np.ascontiguousarray(array)
    return flat.view(np.uint8).reshape(len(flat), flat.dtype.itemsize)


def _contiguous(messages: Sequence[Buffer]) -> list[Buffer] | None:
    """With copies of the views that skip bytes; None where there are none. Not asked before it has to be: it takes a
    step for each message."""

    def skips(message: object) -> bool:
        return isinstance(message, memoryview) and not message.c_contiguous

    if not any(map(skips, messages)):
        return None
    return [message.tobytes() if skips(message) else message for message in messages]  # type: ignore[union-attr]


def _refuse_type(messages: Sequence[Buffer]) -> NoReturn:
    for message in messages:
        if not isinstance(message, bytes | bytearray | memoryview) or memoryview(message).nbytes != len(message):
            raise InvalidMessage(f"a payload is bytes (or a view of single bytes), not {type(message).__name__}")
    raise InvalidMessage("the list of messages changed while it was read")


def _refuse_id(message_id: object) -> NoReturn:
    raise InvalidMessage(f"{message_id!r} is not a message id: they are numbers from 0 to 2^128 - 1")
