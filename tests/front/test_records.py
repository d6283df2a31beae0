"""Wire batches to records and back: what is refused, with which number, and that slices are batches of their own."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmbroker.errors import ErrorCode
from shmbroker.formats.batch import HEADER_SIZE, content_length_of, header_checksum_holds, shape_fault, unpack_header
from shmbroker.front.records import record_of, slice_of, wire_header_of, with_checksums
from shmbroker.storage.validation import content_fault
from tests.iggy.batches import join_frames, split_batches, wire_batch, wire_frame

PAYLOADS = st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=40)


def record_from(batch: bytes) -> memoryview:
    made = record_of(memoryview(batch), 7, 1)
    assert not isinstance(made, ErrorCode), made
    buffers, length = made
    record = b"".join(buffers)
    assert len(record) == length
    return memoryview(record)


@given(payloads=PAYLOADS)
def test_a_batch_becomes_a_record_that_the_worker_accepts(payloads: list[bytes]) -> None:
    record = record_from(wire_batch(payloads))
    header = unpack_header(record)
    assert header_checksum_holds(record)
    assert shape_fault(header, len(record)) is None
    assert (header.producer_id, header.producer_sequence) == (7, 1)
    assert content_fault(header, record[HEADER_SIZE : HEADER_SIZE + content_length_of(header)]) is None


@given(payloads=PAYLOADS, data=st.data())
def test_a_slice_is_served_as_a_batch_of_its_own(payloads: list[bytes], data: st.DataObject) -> None:
    record = record_from(wire_batch(payloads))
    header = unpack_header(record)._replace(partition_id=3, base_offset=1000, base_timestamp=5)
    frames, index = record[HEADER_SIZE : header.batch_length], record[header.batch_length :][: 4 * len(payloads)]
    first = data.draw(st.integers(0, len(payloads) - 1))
    count = data.draw(st.integers(1, len(payloads) - first))
    part, part_index = slice_of(frames, index, first, count)
    ((partition, base, found),) = split_batches(wire_header_of(header, part, part_index) + bytes(part))
    assert (partition, base) == (3, 1000)
    assert [frame[48:] for frame in found] == payloads[first : first + count]
    assert [int.from_bytes(frame[24:28], "little") for frame in found] == list(range(first, first + count))


@given(payloads=PAYLOADS)
def test_checksums_are_filled_in_as_the_wire_has_them(payloads: list[bytes]) -> None:
    frames = [wire_frame(payload, delta) for delta, payload in enumerate(payloads)]
    bare = b"".join(bytes(8) + frame[8:] for frame in frames)
    index = memoryview(struct.pack(f"<{len(frames)}I", *map(len, frames)))
    assert with_checksums(memoryview(bare), index) == b"".join(frames)


def _patched(batch: bytes, position: int, value: bytes) -> bytes:
    return batch[:position] + value + batch[position + len(value) :]


GOOD = wire_batch([b"one", b"four", b"x" * 20])
EQUAL = wire_batch([b"abcd"] * 5)


@pytest.mark.parametrize(
    ("batch", "number"),
    [
        pytest.param(_patched(GOOD, 40, bytes(8)), ErrorCode.INVALID_BATCH_CHECKSUM, id="batch checksum"),
        pytest.param(_patched(GOOD, 256, bytes(8)), ErrorCode.INVALID_BATCH_CHECKSUM, id="a message's checksum"),
        pytest.param(_patched(EQUAL, 256, bytes(8)), ErrorCode.INVALID_BATCH_CHECKSUM, id="of equal messages"),
        pytest.param(_patched(GOOD, 24, b"\1"), ErrorCode.INVALID_BATCH_CHECKSUM, id="origin"),
        pytest.param(_patched(GOOD, 60, b"\1"), ErrorCode.INVALID_COMMAND, id="reserved"),
        pytest.param(_patched(GOOD, 256 + 36, b"\xff\xff\xff\xff"), ErrorCode.INVALID_COMMAND, id="payload length"),
        pytest.param(_patched(GOOD, 256 + 36, b"\2"), ErrorCode.INVALID_COMMAND, id="a frame too short"),
        pytest.param(_patched(EQUAL, 256 + 36, b"\5"), ErrorCode.INVALID_COMMAND, id="equal but one"),
        pytest.param(_patched(GOOD, 48, b"\2"), ErrorCode.INVALID_COMMAND, id="count"),
        pytest.param(_patched(GOOD, 48, b"\4"), ErrorCode.INVALID_COMMAND, id="count too high"),
        pytest.param(_patched(GOOD, 48, b"\xff\xff\xff\xff"), ErrorCode.TOO_MANY_MESSAGES, id="count beyond all"),
        pytest.param(join_frames([b"\0" * 48], 1), ErrorCode.INVALID_COMMAND, id="no payload"),
    ],
)
def test_a_batch_that_is_none_is_refused(batch: bytes, number: ErrorCode) -> None:
    assert record_of(memoryview(batch), 0, 0) == number


def test_damage_anywhere_is_noticed_by_front_or_worker(rng: random.Random) -> None:
    for _ in range(2_000):
        damaged = bytearray(rng.choice((GOOD, EQUAL)))
        position = rng.randrange(len(damaged))
        if position < 24 or 32 <= position < 40 or 48 <= position < 52:
            continue  # What the broker stamps; length and count, which the request's decoding compares with the body.
        damaged[position] ^= 1 << rng.randrange(8)
        made = record_of(memoryview(bytes(damaged)), 0, 0)
        if isinstance(made, ErrorCode):
            continue
        record = memoryview(b"".join(made[0]))
        header = unpack_header(record)
        content = record[HEADER_SIZE : HEADER_SIZE + content_length_of(header)]
        assert content_fault(header, content) is not None, f"bit at {position}"
