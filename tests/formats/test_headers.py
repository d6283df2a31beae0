"""User headers: kinds, bounds, and both ways without loss."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmbroker.errors import ErrorCode, InvalidMessage
from shmbroker.formats.headers import (
    SIGNED_SIZES,
    UNSIGNED_SIZES,
    HeaderField,
    HeaderKind,
    Scalar,
    decode_headers,
    encode_headers,
    field_of,
    scalar_of,
    typed,
    unpack_pairs,
)

INTEGERS = st.integers(-(1 << 127), (1 << 128) - 1)
TEXTS = st.text(min_size=1, max_size=60)
SCALARS = TEXTS | st.binary(min_size=1, max_size=255) | st.booleans() | INTEGERS | st.floats(allow_nan=False)
KEYS = TEXTS | st.binary(min_size=1, max_size=255)


@pytest.mark.parametrize(
    ("value", "kind", "data"),
    [
        ("v", HeaderKind.STRING, b"v"),
        (b"xy", HeaderKind.RAW, b"xy"),
        (True, HeaderKind.BOOL, b"\1"),
        (0, HeaderKind.UINT8, b"\0"),
        (255, HeaderKind.UINT8, b"\xff"),
        (256, HeaderKind.UINT16, b"\0\1"),
        (65_535, HeaderKind.UINT16, b"\xff\xff"),
        (65_536, HeaderKind.UINT32, b"\0\0\1\0"),
        (2**32, HeaderKind.UINT64, b"\0\0\0\0\1\0\0\0"),
        (2**64, HeaderKind.UINT128, b"\0" * 8 + b"\1" + b"\0" * 7),
        (-1, HeaderKind.INT8, b"\xff"),
        (-128, HeaderKind.INT8, b"\x80"),
        (-129, HeaderKind.INT16, b"\x7f\xff"),
        (-(2**15) - 1, HeaderKind.INT32, b"\xff\x7f\xff\xff"),
        (-(2**31) - 1, HeaderKind.INT64, b"\xff\xff\xff\x7f\xff\xff\xff\xff"),
        (-(2**63) - 1, HeaderKind.INT128, b"\xff" * 7 + b"\x7f" + b"\xff" * 8),
        (1.5, HeaderKind.FLOAT32, b"\0\0\xc0\x3f"),
        (math.inf, HeaderKind.FLOAT32, b"\0\0\x80\x7f"),
        (0.1, HeaderKind.FLOAT64, b"\x9a\x99\x99\x99\x99\x99\xb9\x3f"),
        (1e300, HeaderKind.FLOAT64, b"\x9c\x75\x00\x88\x3c\xe4\x37\x7e"),
    ],
)
def test_a_scalar_takes_the_smallest_kind_that_holds_it(value: Scalar, kind: HeaderKind, data: bytes) -> None:
    assert field_of(value) == HeaderField(kind, data)
    assert scalar_of(HeaderField(kind, data)) == value


@given(st.dictionaries(KEYS, SCALARS, max_size=20))
def test_scalars_come_back(headers: dict[str | bytes, Scalar]) -> None:
    block = encode_headers(headers)
    decoded = decode_headers(block)
    assert decoded == headers
    assert {key: type(value) for key, value in decoded.items()} == {key: type(value) for key, value in headers.items()}
    assert encode_headers(decoded) == block


@given(st.dictionaries(TEXTS, SCALARS, min_size=2), st.randoms())
def test_equal_headers_have_equal_bytes(headers: dict[str, Scalar], random: object) -> None:
    pairs = list(headers.items())
    random.shuffle(pairs)  # type: ignore[attr-defined]
    assert encode_headers(dict(pairs)) == encode_headers(headers)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_block_or_are_refused(block: bytes) -> None:
    try:
        pairs = unpack_pairs(block)
    except InvalidMessage:
        return
    assert sum(10 + len(key.data) + len(value.data) for key, value in pairs) == len(block)
    decode_headers(block)


@pytest.mark.parametrize("kind", [*SIGNED_SIZES, *UNSIGNED_SIZES])
def test_typed_numbers_of_every_kind(kind: HeaderKind) -> None:
    size = {**SIGNED_SIZES, **UNSIGNED_SIZES}[kind]
    for value in (0, 1, 127):
        field = typed(kind, value)
        assert (field.kind, len(field.data), scalar_of(field)) == (kind, size, value)
    with pytest.raises(InvalidMessage) as caught:
        typed(kind, 1 << 8 * size)
    assert caught.value.number == ErrorCode.INVALID_HEADER_VALUE


def test_kinds_that_are_not_known_are_carried_untouched() -> None:
    headers = {HeaderField(77, b"key"): HeaderField(200, b"value"), "plain": HeaderField(HeaderKind.UINT32, b"odd")}
    assert decode_headers(encode_headers(headers)) == headers  # type: ignore[arg-type]
    assert decode_headers(encode_headers({"t": HeaderField(HeaderKind.STRING, b"\xff")})) == {
        "t": HeaderField(HeaderKind.STRING, b"\xff")
    }
    assert scalar_of(HeaderField(HeaderKind.BOOL, b"\2")) == HeaderField(HeaderKind.BOOL, b"\2")


@pytest.mark.parametrize(
    ("headers", "number"),
    [
        ({"": "v"}, ErrorCode.INVALID_HEADER_KEY),
        ({"k" * 256: "v"}, ErrorCode.INVALID_HEADER_KEY),
        ({"k": ""}, ErrorCode.INVALID_HEADER_VALUE),
        ({"k": b"v" * 256}, ErrorCode.INVALID_HEADER_VALUE),
        ({"k": 1 << 128}, ErrorCode.INVALID_HEADER_VALUE),
        ({"k": -(1 << 127) - 1}, ErrorCode.INVALID_HEADER_VALUE),
        ({"k": None}, ErrorCode.INVALID_HEADER_KIND),
        ({"k": [1]}, ErrorCode.INVALID_HEADER_KIND),
        ({"k": HeaderField(0, b"v")}, ErrorCode.INVALID_HEADER_KIND),
        ({f"{n:03}": b"v" * 255 for n in range(400)}, ErrorCode.TOO_BIG_USER_HEADERS),
    ],
)
def test_bounds(headers: dict[str, Scalar], number: ErrorCode) -> None:
    with pytest.raises(InvalidMessage) as caught:
        encode_headers(headers)
    assert caught.value.number == number


@pytest.mark.parametrize("wrong", ["0001000000", "02ffffffff", "0200000000", "02010000006b", "02010000006b0201000000"])
def test_blocks_that_are_cut_or_lie(wrong: str) -> None:
    with pytest.raises(InvalidMessage):
        unpack_pairs(bytes.fromhex(wrong))
