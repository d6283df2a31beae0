"""What bodies are made of: a reader that cannot run past the end, and the bytes of identifiers, strings and options.

``Malformed`` stays inside the package: ``commands`` turns it into an error number. A body is consumed exactly: what is
left over is malformed too.

    identifier    u8 kind (1 number, 2 name), u8 length (4, or 1..255), u32 or UTF-8
    str8          u8 length 1..255, UTF-8                     bytes8, str32: the same with u8 or u32, may be empty
    consumer      u8 kind (1 single, 2 group), identifier
    partition     u8 present, u32 (0 where absent): always 5 bytes
    options       a block of formats.headers to the end; keys are strings, none twice
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Final, NamedTuple

from shmbroker.core.options import OptionValue
from shmbroker.errors import ErrorCode, InvalidMessage
from shmbroker.formats.headers import HeaderField, HeaderKind, pack_pairs, scalar_of, unpack_pairs
from shmbroker.limits import NAME_SIZE_MAX, OPTION_COUNT_MAX, OPTIONS_SIZE_MAX, U32_MAX

U8: Final = Struct("<B")
U16: Final = Struct("<H")
U32: Final = Struct("<I")
U64: Final = Struct("<Q")
F32: Final = Struct("<f")
_PARTITION: Final = Struct("<BI")

Identifier = int | str
"""A number, or a name."""

KIND_NUMERIC: Final = 1
KIND_NAME: Final = 2
CONSUMER_SINGLE: Final = 1
CONSUMER_GROUP: Final = 2


class Malformed(Exception):
    """A body is not what its command says. Never leaves the package."""

    def __init__(self, fault: str, code: ErrorCode = ErrorCode.INVALID_COMMAND) -> None:
        super().__init__(fault)
        self.fault = fault
        self.code = code


class Consumer(NamedTuple):
    """Who an offset belongs to: ``kind`` is CONSUMER_SINGLE or CONSUMER_GROUP."""

    kind: int
    id: Identifier


class Reader:
    """Takes a body apart from front to back. Every method raises :class:`Malformed` rather than run past the end."""

    __slots__ = ("_body", "_position")

    def __init__(self, body: bytes | memoryview) -> None:
        self._body = memoryview(body)
        self._position = 0

    @property
    def remaining(self) -> int:
        """Bytes not yet taken."""
        return len(self._body) - self._position

    def finish(self) -> None:
        """Raises unless everything was taken."""
        if self.remaining:
            raise Malformed(f"{self.remaining} bytes after the end")

    def take(self, size: int) -> memoryview:
        """The next ``size`` bytes, not copied."""
        start = self._position
        end = start + size
        if end > len(self._body):
            raise Malformed(f"{size} bytes wanted, {len(self._body) - start} there")
        self._position = end
        return self._body[start:end]

    def rest(self) -> memoryview:
        """All that is left, not copied."""
        return self.take(self.remaining)

    def _number(self, form: Struct) -> int:
        value: int = form.unpack(self.take(form.size))[0]
        return value

    def u8(self) -> int:
        """One byte."""
        return self._number(U8)

    def u16(self) -> int:
        """Two bytes."""
        return self._number(U16)

    def u32(self) -> int:
        """Four bytes."""
        return self._number(U32)

    def u64(self) -> int:
        """Eight bytes."""
        return self._number(U64)

    def f32(self) -> float:
        """Four bytes of floating point."""
        value: float = F32.unpack(self.take(4))[0]
        return value

    def flag(self) -> bool:
        """One byte, 0 or 1."""
        value = self.u8()
        if value > 1:
            raise Malformed(f"a flag of {value}")
        return value == 1

    def text(self, size: int) -> str:
        """``size`` bytes of UTF-8."""
        try:
            return str(self.take(size), "utf-8")
        except UnicodeDecodeError:
            raise Malformed("text that is not UTF-8") from None

    def str8(self) -> str:
        """A string of 1 to 255 bytes."""
        size = self.u8()
        if size == 0:
            raise Malformed("an empty string")
        return self.text(size)

    def short8(self) -> str:
        """A string of 0 to 255 bytes."""
        return self.text(self.u8())

    def str32(self) -> str:
        """A string with a u32 before it; may be empty."""
        return self.text(self.u32())

    def identifier(self) -> Identifier:
        """A number or a name."""
        kind = self.u8()
        size = self.u8()
        if kind == KIND_NUMERIC and size == 4:
            return self.u32()
        if kind == KIND_NAME and size > 0:
            return self.text(size)
        raise Malformed(f"an identifier of kind {kind} and length {size}")

    def consumer(self) -> Consumer:
        """A single consumer or a group."""
        kind = self.u8()
        if kind not in (CONSUMER_SINGLE, CONSUMER_GROUP):
            raise Malformed(f"a consumer of kind {kind}")
        return Consumer(kind, self.identifier())

    def optional_partition(self) -> int | None:
        """A partition id, or None."""
        present = self.flag()
        value = self.u32()
        return value if present else None

    def options(self, size: int | None = None) -> tuple[OptionValue, ...]:
        """An options block of ``size`` bytes, or to the end of the body. Keys are strings, none twice."""
        block = self.take(self.remaining if size is None else size)
        if len(block) > OPTIONS_SIZE_MAX:
            raise Malformed("the options block is too large", ErrorCode.OPTIONS_BLOCK_TOO_LARGE)
        try:
            pairs = unpack_pairs(block)
        except InvalidMessage as error:
            raise Malformed(f"options: {error}") from None
        if len(pairs) > OPTION_COUNT_MAX:
            raise Malformed("too many options", ErrorCode.OPTIONS_BLOCK_TOO_LARGE)
        found: dict[str, OptionValue] = {}
        for key, value in pairs:
            name = scalar_of(key)
            if key.kind != HeaderKind.STRING or not isinstance(name, str):
                raise Malformed(f"an option key of kind {key.kind} that is not a string")
            if name in found:
                raise Malformed(f"option {name} twice")
            found[name] = OptionValue(name, value.kind, value.data)
        return tuple(found.values())


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise Malformed(f"{text!r} is not text that UTF-8 can carry", ErrorCode.INVALID_FORMAT) from None


def str8(text: str) -> bytes:
    """A string of 1 to 255 bytes."""
    encoded = _utf8(text)
    if not 1 <= len(encoded) <= NAME_SIZE_MAX:
        raise Malformed(f"a name has 1 to {NAME_SIZE_MAX} bytes, not {len(encoded)}", ErrorCode.INVALID_FORMAT)
    return U8.pack(len(encoded)) + encoded


def short8(text: str) -> bytes:
    """A string of 0 to 255 bytes."""
    return str8(text) if text else b"\0"


def str32(text: str) -> bytes:
    """A string with a u32 before it."""
    encoded = _utf8(text)
    return U32.pack(len(encoded)) + encoded


def identifier(value: Identifier) -> bytes:
    """A number or a name."""
    if isinstance(value, str):
        return U8.pack(KIND_NAME) + str8(value)
    if not 0 <= value <= U32_MAX:
        raise Malformed(f"an id is 0 to {U32_MAX}, not {value}", ErrorCode.INVALID_IDENTIFIER)
    return bytes((KIND_NUMERIC, 4)) + U32.pack(value)


def consumer(value: Consumer) -> bytes:
    """A single consumer or a group."""
    return U8.pack(value.kind) + identifier(value.id)


def optional_partition(value: int | None) -> bytes:
    """A partition id or its absence."""
    return _PARTITION.pack(0, 0) if value is None else _PARTITION.pack(1, value)


def options(values: Iterable[OptionValue]) -> bytes:
    """An options block without a length, sorted by key."""
    try:
        return pack_pairs(
            (HeaderField(HeaderKind.STRING, _utf8(value.key)), HeaderField(value.kind, value.value)) for value in values
        )
    except InvalidMessage as error:
        raise Malformed(f"options: {error}", ErrorCode.INVALID_OPTION_VALUE) from None


def options32(values: Iterable[OptionValue]) -> bytes:
    """An options block with a u32 length before it."""
    block = options(values)
    return U32.pack(len(block)) + block
