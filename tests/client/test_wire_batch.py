"""Batches for the wire and from it: round trips, slices, and what a broker (or the way from it) may have damaged."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from shmbroker.client.batch import Batch
from shmbroker.client.encoding import encode_array, encode_batch
from shmbroker.client.wire_batch import HASHED_HEADER, WIRE_HEADER, slices_of, wire_batch_of
from shmbroker.errors import Corrupt
from shmbroker.formats.batch import HEADER_SIZE, header_checksum_holds, shape_fault, unpack_header
from shmbroker.storage.validation import content_fault

ORIGIN_US = 1_700_000_000_000_000


def on_the_wire(payloads: list[bytes], **how: object) -> bytes:
    record = encode_batch(payloads, id_base=7, origin_timestamp_us=ORIGIN_US, **how)  # type: ignore[arg-type]
    return b"".join(wire_batch_of(record))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=60), st.booleans())
def test_a_batch_comes_back_as_it_went(payloads: list[bytes], has_headers: bool) -> None:
    headers = {"key": "value"} if has_headers else None
    (piece,) = slices_of(memoryview(on_the_wire(payloads, headers=headers)), "here")
    batch = Batch(piece)
    assert batch.payloads() == payloads
    assert batch.ids() == list(range(7, 7 + len(payloads)))
    assert batch.headers() == [headers or {}] * len(payloads)
    record, header = piece.record, unpack_header(piece.record)
    assert header_checksum_holds(record)
    assert shape_fault(header, len(record)) is None
    content_end = HEADER_SIZE + header.frames_length + 4 * header.message_count
    assert content_fault(header, record[HEADER_SIZE:content_end]) is None


def test_arrays_and_batches_that_have_their_checksums_already() -> None:
    array = np.arange(50, dtype="<u4")
    record = encode_array(array, id_base=1, origin_timestamp_us=ORIGIN_US)
    (piece,) = slices_of(memoryview(b"".join(wire_batch_of(record))), "here")
    assert np.array_equal(Batch(piece).array("<u4"), array)
    payloads = [b"a", b"bb", b"ccc"]
    assert on_the_wire(payloads, wire_checksums=True) == on_the_wire(payloads)


def test_a_slice_has_the_offsets_of_its_batch() -> None:
    """Messages 3 to 5 of a batch that starts at offset 100, as a broker serves them."""
    whole = on_the_wire([b"%d" % number for number in range(10)])
    frame = (len(whole) - HEADER_SIZE) // 10
    frames = whole[HEADER_SIZE + 3 * frame : HEADER_SIZE + 6 * frame]
    length = HEADER_SIZE + len(frames)
    checksums = b"".join(frames[start : start + 8] for start in range(0, len(frames), frame))
    checksum = xxh3_64_intdigest(HASHED_HEADER.pack(2, 100, 5, ORIGIN_US, length, 3) + checksums)
    header = WIRE_HEADER.pack(2, 100, 5, ORIGIN_US, length, checksum, 3).ljust(HEADER_SIZE, b"\0")
    first, second = slices_of(memoryview(header + frames + header + frames), "here")
    batch = Batch(first)
    assert first == second
    assert (batch.base_offset, batch.next_offset, batch.timestamp_us) == (103, 106, 5)
    assert [message.offset for message in batch.messages()] == [103, 104, 105]
    assert batch.payloads() == [b"3", b"4", b"5"]


def test_every_damaged_byte_that_means_something_is_found() -> None:
    whole = bytearray(on_the_wire([b"payload", b"another", b"third of another length"]))
    meaningless = range(WIRE_HEADER.size, HEADER_SIZE)  # reserved: zero, and never read
    for position in set(range(len(whole))) - set(meaningless):
        damaged = bytearray(whole)
        damaged[position] ^= 0x41
        with pytest.raises(Corrupt, match="here"):
            slices_of(memoryview(damaged), "here")
    for end in range(1, len(whole)):
        with pytest.raises(Corrupt):
            slices_of(memoryview(whole)[:end], "here")


def test_noise_is_refused_in_words() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(300):
        noise = bytearray(rng.randbytes(rng.randrange(1, 600)))
        if len(noise) > HEADER_SIZE:  # some with a length and a count that could be
            WIRE_HEADER.pack_into(noise, 0, 0, 0, 0, 0, len(noise), 0, rng.randrange(0, 8))
        with pytest.raises(Corrupt):
            slices_of(memoryview(noise), "here")


def test_nothing_is_no_batch() -> None:
    assert slices_of(memoryview(b""), "here") == []
