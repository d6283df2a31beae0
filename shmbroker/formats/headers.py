"""User headers: the key-value block that follows a message's payload, as on the Iggy wire. Options use the same bytes.

A block is pairs back to back, with no count; its length stands in the frame's ``headers_length``::

    0    1    key kind         one of HeaderKind, but not zero
    1    4    key length       1 to 255
    5         key
         1    value kind
         4    value length     1 to 255
              value

Numbers are little-endian. Writers sort pairs by (key kind, key bytes), so that equal headers have equal bytes. A kind
above 15 is not known here and is carried untouched: it decodes to a :class:`HeaderField`.

Python scalars take the smallest kind that holds them: ``str`` STRING, ``bytes`` RAW, ``bool`` BOOL, an ``int`` from 0
the smallest unsigned kind, below 0 the smallest signed one, a ``float`` FLOAT32 where that is exact, else FLOAT64.
:func:`typed` asks for another kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from struct import Struct, error
from typing import Final, NamedTuple, TypeAlias

from shmbroker.errors import ErrorCode, InvalidMessage
from shmbroker.limits import MESSAGE_HEADER_KEY_SIZE_MAX, MESSAGE_HEADER_VALUE_SIZE_MAX, MESSAGE_HEADERS_SIZE_MAX

FIELD_PREFIX: Final = Struct("<BI")
FIELD_PREFIX_SIZE: Final = 5
FLOAT32: Final = Struct("<f")
FLOAT64: Final = Struct("<d")

assert FIELD_PREFIX.size == FIELD_PREFIX_SIZE


class HeaderKind(IntEnum):
    """What the bytes of a key or a value mean."""

    RAW = 1
    STRING = 2
    BOOL = 3
    INT8 = 4
    INT16 = 5
    INT32 = 6
    INT64 = 7
    INT128 = 8
    UINT8 = 9
    UINT16 = 10
    UINT32 = 11
    UINT64 = 12
    UINT128 = 13
    FLOAT32 = 14
    FLOAT64 = 15


class HeaderField(NamedTuple):
    """A key or a value with its kind spelled out: ``data`` is its bytes on the wire."""

    kind: int
    data: bytes


Scalar: TypeAlias = str | bytes | bool | int | float
HeaderItem: TypeAlias = Scalar | HeaderField
Headers: TypeAlias = Mapping[HeaderItem, HeaderItem]

SIGNED_SIZES: Final[dict[int, int]] = {
    HeaderKind.INT8: 1, HeaderKind.INT16: 2, HeaderKind.INT32: 4, HeaderKind.INT64: 8, HeaderKind.INT128: 16,
}  # fmt: skip
UNSIGNED_SIZES: Final[dict[int, int]] = {
    HeaderKind.UINT8: 1, HeaderKind.UINT16: 2, HeaderKind.UINT32: 4, HeaderKind.UINT64: 8, HeaderKind.UINT128: 16,
}  # fmt: skip
SIZES: Final[dict[int, int]] = {
    HeaderKind.BOOL: 1, **SIGNED_SIZES, **UNSIGNED_SIZES, HeaderKind.FLOAT32: 4, HeaderKind.FLOAT64: 8,
}  # fmt: skip
"""Bytes of a key or value of each kind of fixed size."""


def encode_headers(headers: Headers) -> bytes:
    """The block for ``headers``, sorted. InvalidMessage, with the wire's number, where a key, value or size is bad."""
    block = pack_pairs((field_of(key), field_of(value)) for key, value in headers.items())
    if len(block) > MESSAGE_HEADERS_SIZE_MAX:
        raise InvalidMessage(
            f"the user headers take {len(block)} bytes; at most {MESSAGE_HEADERS_SIZE_MAX} are allowed",
            number=ErrorCode.TOO_BIG_USER_HEADERS,
        )
    return block


def decode_headers(block: bytes | bytearray | memoryview) -> dict[HeaderItem, HeaderItem]:
    """What a block says, as Python scalars. Keys equal in Python (1, True, 1.0) fall together: the last one stays."""
    return {scalar_of(key): scalar_of(value) for key, value in unpack_pairs(block)}


def pack_pairs(pairs: Iterable[tuple[HeaderField, HeaderField]]) -> bytes:
    """The bytes of ``pairs``, sorted by key kind and key bytes; InvalidMessage where one breaks a bound."""
    parts: list[bytes] = []
    for key, value in sorted(pairs, key=lambda pair: pair[0]):
        _check(key, MESSAGE_HEADER_KEY_SIZE_MAX, "key", ErrorCode.INVALID_HEADER_KEY)
        _check(value, MESSAGE_HEADER_VALUE_SIZE_MAX, "value", ErrorCode.INVALID_HEADER_VALUE)
        parts += (FIELD_PREFIX.pack(key.kind, len(key.data)), key.data)
        parts += (FIELD_PREFIX.pack(value.kind, len(value.data)), value.data)
    return b"".join(parts)


def unpack_pairs(block: bytes | bytearray | memoryview) -> list[tuple[HeaderField, HeaderField]]:
    """The pairs of a block in their order; InvalidMessage where the bytes are not a block."""
    pairs = []
    position = 0
    while position < len(block):
        key, position = _take(block, position, MESSAGE_HEADER_KEY_SIZE_MAX, "key", ErrorCode.INVALID_HEADER_KEY)
        value, position = _take(block, position, MESSAGE_HEADER_VALUE_SIZE_MAX, "value", ErrorCode.INVALID_HEADER_VALUE)
        pairs.append((key, value))
    return pairs


def typed(kind: HeaderKind, value: Scalar) -> HeaderField:
    """``value`` as a field of exactly this kind; InvalidMessage where it does not fit."""
    try:
        return HeaderField(kind, _data_of(kind, value))
    except (OverflowError, TypeError, ValueError, error, AttributeError) as fault:
        raise InvalidMessage(
            f"{value!r} is not a header of kind {kind.name}", number=ErrorCode.INVALID_HEADER_VALUE
        ) from fault


def field_of(item: HeaderItem) -> HeaderField:
    """The field for a Python scalar, with the smallest kind that holds it; a HeaderField passes through."""
    if isinstance(item, HeaderField):
        return item
    if isinstance(item, str):
        return typed(HeaderKind.STRING, item)
    if isinstance(item, bytes):
        return HeaderField(HeaderKind.RAW, item)
    if isinstance(item, bool):
        return HeaderField(HeaderKind.BOOL, bytes((item,)))
    if isinstance(item, int):
        return _integer_field(item)
    if isinstance(item, float):
        return _float_field(item)
    raise InvalidMessage(
        f"a header is str, bytes, bool, int or float, not {type(item).__name__}", number=ErrorCode.INVALID_HEADER_KIND
    )


def scalar_of(field: HeaderField) -> HeaderItem:
    """The Python scalar of a field; the field itself where its kind is unknown or its bytes do not fit the kind."""
    kind, data = field
    size = SIZES.get(kind)
    if size is not None and size != len(data):
        return field
    if kind in SIGNED_SIZES or kind in UNSIGNED_SIZES:
        return int.from_bytes(data, "little", signed=kind in SIGNED_SIZES)
    if kind == HeaderKind.RAW:
        return data
    if kind == HeaderKind.STRING:
        return _text_or_field(field)
    if kind == HeaderKind.BOOL:
        return bool(data[0]) if data[0] <= 1 else field
    if kind == HeaderKind.FLOAT32:
        return float(FLOAT32.unpack(data)[0])
    if kind == HeaderKind.FLOAT64:
        return float(FLOAT64.unpack(data)[0])
    return field


def _text_or_field(field: HeaderField) -> HeaderItem:
    try:
        return field.data.decode()
    except UnicodeDecodeError:
        return field


def _data_of(kind: HeaderKind, value: Scalar) -> bytes:
    if kind == HeaderKind.RAW and isinstance(value, bytes):
        return value
    if kind == HeaderKind.STRING and isinstance(value, str):
        return value.encode()
    if kind == HeaderKind.BOOL and isinstance(value, bool):
        return bytes((value,))
    if kind == HeaderKind.FLOAT32 and isinstance(value, float | int):
        return FLOAT32.pack(value)
    if kind == HeaderKind.FLOAT64 and isinstance(value, float | int):
        return FLOAT64.pack(value)
    if kind in SIGNED_SIZES and isinstance(value, int):
        return value.to_bytes(SIGNED_SIZES[kind], "little", signed=True)
    if kind in UNSIGNED_SIZES and isinstance(value, int):
        return value.to_bytes(UNSIGNED_SIZES[kind], "little")
    raise TypeError(kind.name)


def _integer_field(value: int) -> HeaderField:
    sizes = UNSIGNED_SIZES if value >= 0 else SIGNED_SIZES
    for kind, size in sizes.items():
        try:
            return HeaderField(HeaderKind(kind), value.to_bytes(size, "little", signed=value < 0))
        except OverflowError:
            continue
    raise InvalidMessage(f"{value} does not fit into 128 bits", number=ErrorCode.INVALID_HEADER_VALUE)


def _float_field(value: float) -> HeaderField:
    try:
        data = FLOAT32.pack(value)
    except OverflowError:
        return HeaderField(HeaderKind.FLOAT64, FLOAT64.pack(value))
    if FLOAT32.unpack(data)[0] == value:
        return HeaderField(HeaderKind.FLOAT32, data)
    return HeaderField(HeaderKind.FLOAT64, FLOAT64.pack(value))


def _check(field: HeaderField, size_max: int, what: str, number: ErrorCode) -> None:
    if not 1 <= field.kind <= 255:
        raise InvalidMessage(f"kind {field.kind} of a header {what}", number=ErrorCode.INVALID_HEADER_KIND)
    if not 1 <= len(field.data) <= size_max:
        raise InvalidMessage(f"a header {what} of {len(field.data)} bytes; 1 to {size_max} are allowed", number=number)


def _take(
    block: bytes | bytearray | memoryview, position: int, size_max: int, what: str, number: ErrorCode
) -> tuple[HeaderField, int]:
    start = position + FIELD_PREFIX_SIZE
    if start > len(block):
        raise InvalidMessage(f"the user headers are cut short in a {what}", number=number)
    kind, length = FIELD_PREFIX.unpack_from(block, position)
    if kind == 0:
        raise InvalidMessage(f"kind 0 of a header {what}", number=ErrorCode.INVALID_HEADER_KIND)
    if not 1 <= length <= size_max:
        raise InvalidMessage(f"a header {what} of {length} bytes; 1 to {size_max} are allowed", number=number)
    if start + length > len(block):
        raise InvalidMessage(f"the user headers are cut short in a {what}", number=number)
    return HeaderField(kind, bytes(block[start : start + length])), start + length
