"""Batches as a consumer holds them: slices, views, arrays."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmbroker.client.batch import Batch, Message
from shmbroker.client.encoding import encode_batch
from shmbroker.errors import InvalidMessage
from shmbroker.formats.batch import pack_header, unpack_header
from shmbroker.formats.headers import Headers
from shmbroker.storage.reader import RecordSlice


def slice_of(
    payloads: list[bytes], first: int = 0, count: int | None = None, headers: list[Headers | None] | None = None
) -> Batch:
    packed, content = encode_batch(payloads, id_base=100, origin_timestamp_us=50, headers=headers)
    header = unpack_header(packed)._replace(base_offset=1000, base_timestamp=60)
    record = memoryview(pack_header(header) + content)
    return Batch(RecordSlice(header, record, first, len(payloads) - first if count is None else count))


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=30), st.booleans(), st.data())
def test_every_slice(payloads: list[bytes], with_headers: bool, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(payloads) - 1))
    count = data.draw(st.integers(1, len(payloads) - first))
    headers: list[Headers | None] = [{"n": number} if number % 2 else None for number in range(len(payloads))]
    batch = slice_of(payloads, first, count, headers if with_headers else None)
    wanted = payloads[first : first + count]
    assert batch.payloads() == wanted
    assert [bytes(view) for view in batch.views()] == wanted
    assert (batch.base_offset, batch.next_offset, batch.count, len(batch)) == (
        1000 + first,
        1000 + first + count,
        count,
        count,
    )
    assert batch.messages() == [
        Message(1000 + number, 100 + number, 60, 50, payloads[number],
                dict(headers[number] or {}) if with_headers else {})
        for number in range(first, first + count)
    ]  # fmt: skip
    block = sum(13 for number in range(first, first + count) if number % 2) if with_headers else 0
    assert batch.size >= sum(map(len, wanted)) + 48 * count + (block and 1)


def test_payloads_that_end_in_zeros_are_whole() -> None:
    payloads = [b"abc\0\0", b"\0\0\0\0\0", b"defgh"]
    assert slice_of(payloads).payloads() == payloads


def test_large_payloads_are_cut_in_place(rng: random.Random) -> None:
    payloads = [rng.randbytes(rng.randint(5000, 300_000)) for _ in range(5)]
    assert slice_of(payloads).payloads() == payloads
    assert slice_of(payloads, 2, 2).payloads() == payloads[2:4]


def test_views_are_of_the_record_and_read_only() -> None:
    batch = slice_of([b"abc", b"defg"])
    view = batch.views()[1]
    assert view.obj is batch.record.obj
    with pytest.raises(TypeError):
        view[0] = 1


def test_arrays_of_items_and_of_rows() -> None:
    batch = slice_of([bytes(range(n, n + 8)) for n in range(10)], 2, 5)
    wanted = np.array([np.frombuffer(bytes(range(n, n + 8)), "<u8")[0] for n in range(2, 7)], "<u8")
    assert np.array_equal(batch.array("<u8"), wanted)
    assert batch.array("<u8").shape == (5,)
    assert batch.array("<u2").shape == (5, 4)
    assert np.array_equal(batch.array("<u2"), wanted.view("<u2").reshape(5, 4))
    assert batch.array().shape == (5, 8)


def test_an_array_where_frames_differ_for_their_headers_alone() -> None:
    batch = slice_of([b"12345678", b"abcdefgh"], headers=[None, {"k": 1}])
    assert batch.array("V8").tolist() == [b"12345678", b"abcdefgh"]
    equal = slice_of([b"12345678", b"abcdefgh"], headers=[{"j": 2}, {"k": 1}])
    assert equal.array("V8").tolist() == [b"12345678", b"abcdefgh"]
    assert equal.payloads() == [b"12345678", b"abcdefgh"]


@pytest.mark.parametrize(("payloads", "dtype"), [([b"a", b"bc"], "u1"), ([b"abc"], "<u2"), ([b"abcdefgh"], object)])
def test_arrays_that_do_not_fit(payloads: list[bytes], dtype: object) -> None:
    with pytest.raises(InvalidMessage):
        slice_of(payloads).array(dtype)  # type: ignore[arg-type]


def test_origin_times_are_those_of_the_messages() -> None:
    batch = slice_of([b"a", b"b"])
    record = bytearray(batch.record)
    record[256 + 49 + 28 : 256 + 49 + 32] = (7).to_bytes(4, "little")
    changed = Batch(RecordSlice(batch.header, memoryview(bytes(record)), 0, 2))
    assert [message.origin_timestamp_us for message in changed.messages()] == [50, 57]
    assert [message.timestamp_us for message in changed.messages()] == [60, 60]
