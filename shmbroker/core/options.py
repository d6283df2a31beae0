"""Topic options: every key with its kind, default, bounds and text forms; which may change; what is reported.

A value comes as bytes of a wire kind (:class:`OptionValue`), whoever asks: the wire's block as it is, the command line
and Python through :func:`option_values`. It is parsed once, here, into :class:`TopicOptions`, whose values are the
effective ones: "server default" is resolved at creation and frozen. ``explicit`` names the keys that the creator set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple

from shmbroker.errors import ErrorCode, InvalidOption, UnsupportedOption, error_from
from shmbroker.formats.headers import SIZES, HeaderKind
from shmbroker.formats.quantities import US_PER_S, format_duration, format_size, parse_duration_us, parse_size
from shmbroker.limits import (
    GIB,
    MESSAGES_REQUIRED_TO_SAVE_DEFAULT,
    MESSAGES_REQUIRED_TO_SAVE_MAX,
    NAME_SIZE_MAX,
    OPTION_COUNT_MAX,
    SEGMENT_SIZE_DEFAULT,
    SEGMENT_SIZE_MAX,
    SEGMENT_SIZE_MIN,
    SEGMENT_SIZE_MULTIPLE,
    SIZE_REQUIRED_TO_SAVE_DEFAULT,
    SIZE_REQUIRED_TO_SAVE_MAX,
    U32_MAX,
    U64_MAX,
)

KIND_STRING: Final = int(HeaderKind.STRING)
KIND_BOOL: Final = int(HeaderKind.BOOL)
KIND_U8: Final = int(HeaderKind.UINT8)
KIND_U32: Final = int(HeaderKind.UINT32)
KIND_U64: Final = int(HeaderKind.UINT64)

NEVER: Final = U64_MAX
"""``message_expiry_us`` of a topic whose messages never expire."""
UNLIMITED: Final = U64_MAX
"""``max_topic_size`` of a topic without a limit."""
SERVER_DEFAULT: Final = 0
PREALLOCATION_SIZE_MAX: Final = 64 * GIB
"""segment_size x partitions of one request that preallocates."""


class Durability(StrEnum):
    """What an acknowledgement waits for."""

    REPLICATED = "replicated"
    """Committed and applied; on one host it may live in memory only."""
    PERSISTED = "persisted"
    """Also on stable storage."""


class OptionValue(NamedTuple):
    """One option as it travels: its key, and the bytes of a value of the given wire kind."""

    key: str
    kind: int
    value: bytes


class OptionReport(NamedTuple):
    """One option as get shows it: its effective value as text, and whether the creator set it."""

    value: str
    explicit: bool


class OptionDefault(NamedTuple):
    """One line of the option catalogue: key, kind, default in that kind's encoding, what it does."""

    key: str
    kind: int
    default: bytes
    description: str


@dataclass(frozen=True, slots=True)
class TopicDefaults:
    """What "server default" means: settings of the broker, frozen into a topic when it is created."""

    message_expiry_us: int = NEVER
    max_topic_size: int = UNLIMITED


STANDARD_DEFAULTS: Final = TopicDefaults()


@dataclass(frozen=True, slots=True)
class TopicOptions:
    """The effective options of one topic. ``message_expiry_us`` may be NEVER, ``max_topic_size`` UNLIMITED."""

    compression_algorithm: str = "none"
    message_expiry_us: int = NEVER
    max_topic_size: int = UNLIMITED
    segment_size: int = SEGMENT_SIZE_DEFAULT
    durability: Durability = Durability.REPLICATED
    consumer_offset_durability: Durability = Durability.REPLICATED
    messages_required_to_save: int = MESSAGES_REQUIRED_TO_SAVE_DEFAULT
    size_of_messages_required_to_save: int = SIZE_REQUIRED_TO_SAVE_DEFAULT
    preallocate_segments: bool = False
    explicit: frozenset[str] = frozenset()

    def report(self) -> dict[str, OptionReport]:
        """Every option as text, in the order of the keys."""
        texts = {key: SPECS[key].to_text(getattr(self, SPECS[key].field)) for key in KEYS}
        return {key: OptionReport(text, key in self.explicit) for key, text in texts.items()}

    def explicit_values(self) -> tuple[OptionValue, ...]:
        """What the creator set, in canonical kinds, in the order of the keys."""
        return tuple(self._value(key) for key in KEYS if key in self.explicit)

    def derived_values(self) -> tuple[OptionValue, ...]:
        """What the broker filled in, in canonical kinds, in the order of the keys."""
        return tuple(self._value(key) for key in KEYS if key not in self.explicit)

    def _value(self, key: str) -> OptionValue:
        spec = SPECS[key]
        return OptionValue(key, spec.kind, _encode(spec.kind, getattr(self, spec.field)))


class _Spec(NamedTuple):
    """How one key is read, checked and shown. ``parse`` gets a text, ``check`` the value; both raise ValueError."""

    field: str
    kind: int
    updatable: bool
    parse: Callable[[str], int | bool | str]
    check: Callable[[int], object]
    to_text: Callable[[int], str]
    description: str


def _encode(kind: int, value: int | bool | str) -> bytes:
    if isinstance(value, str):
        return value.encode()
    return int(value).to_bytes(SIZES[kind], "little")


def _parse_expiry(text: str) -> int:
    word = text.strip().lower()
    if word in ("never_expire", "none", "unlimited"):
        return NEVER
    if word == "server_default":
        return SERVER_DEFAULT
    duration_us = parse_duration_us(text)
    if duration_us > U32_MAX * US_PER_S:
        raise ValueError(f"longer than {U32_MAX} seconds")
    if duration_us == 0:
        raise ValueError("an expiry of nothing: say server_default or never_expire")
    return duration_us


def _parse_topic_size(text: str) -> int:
    word = text.strip().lower()
    if word == "unlimited":
        return UNLIMITED
    return SERVER_DEFAULT if word == "server_default" else parse_size(text)


def _parse_count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError("not a decimal number")
    return int(text)


def _parse_bool(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("neither true nor false")
    return text == "true"


def _parse_policy(text: str) -> Durability:
    if text not in ("replicated", "persisted"):
        raise ValueError("neither replicated nor persisted")
    return Durability(text)


def _parse_compression(text: str) -> str:
    if text not in ("none", "gzip"):
        raise ValueError("neither none nor gzip")
    return text


def _check_segment_size(size: int) -> None:
    if not SEGMENT_SIZE_MIN <= size <= SEGMENT_SIZE_MAX or size % SEGMENT_SIZE_MULTIPLE:
        raise ValueError(f"a multiple of {SEGMENT_SIZE_MULTIPLE} from {SEGMENT_SIZE_MIN} to {SEGMENT_SIZE_MAX}")


def _check_count(count: int) -> None:
    if not 1 <= count <= MESSAGES_REQUIRED_TO_SAVE_MAX:
        raise ValueError(f"1 to {MESSAGES_REQUIRED_TO_SAVE_MAX}")


def _check_save_size(size: int) -> None:
    if not 1 <= size <= SIZE_REQUIRED_TO_SAVE_MAX:
        raise ValueError(f"at most {SIZE_REQUIRED_TO_SAVE_MAX}")


def _anything(value: int) -> None:
    del value


def _expiry_text(value: int) -> str:
    return "never_expire" if value == NEVER else format_duration(value)


def _topic_size_text(value: int) -> str:
    return "unlimited" if value == UNLIMITED else format_size(value)


def _bool_text(value: int) -> str:
    return "true" if value else "false"


SPECS: Final[dict[str, _Spec]] = {
    "compression_algorithm": _Spec(
        "compression_algorithm", KIND_STRING, True, _parse_compression, _anything, str,
        "How producers compress payloads: none or gzip. The broker never compresses.",
    ),
    "consumer_offset_durability": _Spec(
        "consumer_offset_durability", KIND_STRING, False, _parse_policy, _anything, str,
        "What storing or deleting a consumer offset waits for: replicated or persisted.",
    ),
    "durability": _Spec(
        "durability", KIND_STRING, False, _parse_policy, _anything, str,
        "What the acknowledgement of messages waits for: replicated or persisted.",
    ),
    "max_topic_size": _Spec(
        "max_topic_size", KIND_U64, True, _parse_topic_size, _anything, _topic_size_text,
        "Bytes above which the oldest segments are deleted, or unlimited.",
    ),
    "message_expiry": _Spec(
        "message_expiry_us", KIND_U64, True, _parse_expiry, _anything, _expiry_text,
        "Age at which messages may be deleted, or never_expire.",
    ),
    "messages_required_to_save": _Spec(
        "messages_required_to_save", KIND_U32, False, _parse_count, _check_count, str,
        "Committed messages in the journal of a partition that make it write them to the segment.",
    ),
    "preallocate_segments": _Spec(
        "preallocate_segments", KIND_BOOL, False, _parse_bool, _anything, _bool_text,
        "Allocate the whole of a segment when it is made.",
    ),
    "segment_size": _Spec(
        "segment_size", KIND_U64, False, parse_size, _check_segment_size, format_size,
        "Bytes at which a segment is full and the next one begins.",
    ),
    "size_of_messages_required_to_save": _Spec(
        "size_of_messages_required_to_save", KIND_U64, False, parse_size, _check_save_size, format_size,
        "Committed bytes in the journal of a partition that make it write them to the segment.",
    ),
}  # fmt: skip
KEYS: Final = tuple(sorted(SPECS))
"""All option keys, in byte order."""
UPDATABLE: Final = frozenset(key for key, spec in SPECS.items() if spec.updatable)
CREATE_ONLY: Final = frozenset(SPECS) - UPDATABLE
REPLACED: Final[dict[str, str]] = {
    "enforce_fsync": "durability",
    "consumer_offset_enforce_fsync": "consumer_offset_durability",
}
"""Former keys, refused by name, and the topic option that took their place."""
_ZERO_IS_DEFAULT: Final = frozenset(
    {"max_topic_size", "message_expiry", "segment_size", "size_of_messages_required_to_save"}
)


def describe() -> tuple[OptionDefault, ...]:
    """The catalogue of topic options, in the order of the keys."""
    return tuple(
        OptionDefault(value.key, value.kind, value.value, SPECS[value.key].description)
        for value in TopicOptions().derived_values()
    )


def option_values(settings: Mapping[str, str | int | bool | None]) -> tuple[OptionValue, ...]:
    """Python values as options, in the order of the keys. None is left out, a number has its key's kind.

    Nothing is checked here but what could not be encoded: the broker decides.
    """
    found: list[OptionValue] = []
    for key in sorted(settings):
        value = settings[key]
        if value is None:
            continue
        kind = KIND_STRING
        if not isinstance(value, str):
            kind = SPECS[key].kind if key in SPECS else KIND_U64
            if isinstance(value, bool):
                kind = KIND_BOOL
        if kind in (KIND_U8, KIND_U32, KIND_U64) and not 0 <= int(value) < 256 ** SIZES[kind]:
            raise _invalid(key, f"{value} is out of range")
        encoded = _encode(kind, str(value) if kind == KIND_STRING else value)
        if not 1 <= len(encoded) <= NAME_SIZE_MAX:
            raise _invalid(key, f"a value has 1 to {NAME_SIZE_MAX} bytes")
        found.append(OptionValue(key, kind, encoded))
    return tuple(found)


def create_options(
    values: Iterable[OptionValue], defaults: TopicDefaults = STANDARD_DEFAULTS, partitions_count: int = 1
) -> TopicOptions:
    """The options of a new topic. Raises UnsupportedOption (4041), InvalidOption (4042), or 1019, 4043."""
    settings = _parse(values, frozenset(SPECS))
    explicit = {key for key, value in settings.items() if not (key in _ZERO_IS_DEFAULT and value == SERVER_DEFAULT)}
    chosen = {SPECS[key].field: settings[key] for key in explicit}
    base = TopicOptions(message_expiry_us=defaults.message_expiry_us, max_topic_size=defaults.max_topic_size)
    options = replace(base, explicit=frozenset(explicit), **chosen)  # type: ignore[arg-type]
    if "max_topic_size" not in explicit and options.max_topic_size < options.segment_size:
        # The limit is the broker's, the segment size the caller's: what they did not ask for cannot refuse them.
        options = replace(options, max_topic_size=options.segment_size)
    _check_sizes(options)
    check_preallocation(options, partitions_count)
    return options


def update_options(
    options: TopicOptions, values: Iterable[OptionValue], defaults: TopicDefaults = STANDARD_DEFAULTS
) -> TopicOptions:
    """The options after a patch: absent keys stay. A number 0 leaves its key as it is, since some clients always send
    one; the text ``server_default`` sets the default of today. Raises as :func:`create_options`; create-only: 4041."""
    values = tuple(values)
    settings = _parse(values, UPDATABLE)
    kinds = {value.key: value.kind for value in values}
    chosen: dict[str, object] = {}
    for key, value in settings.items():
        if not (key in _ZERO_IS_DEFAULT and value == SERVER_DEFAULT):
            chosen[key] = value
        elif kinds[key] == KIND_STRING:
            chosen[key] = getattr(defaults, SPECS[key].field)
    fields = {SPECS[key].field: value for key, value in chosen.items()}
    updated = replace(options, explicit=options.explicit | chosen.keys(), **fields)  # type: ignore[arg-type]
    _check_sizes(updated)
    return updated


def check_preallocation(options: TopicOptions, partitions_count: int) -> None:
    """Raises 4042 where so many new partitions would preallocate more than PREALLOCATION_SIZE_MAX."""
    if options.preallocate_segments and options.segment_size * partitions_count > PREALLOCATION_SIZE_MAX:
        raise _invalid(
            "preallocate_segments",
            f"{partitions_count} segments of {format_size(options.segment_size)} are more than "
            f"{format_size(PREALLOCATION_SIZE_MAX)}",
        )


def _check_sizes(options: TopicOptions) -> None:
    if options.max_topic_size < options.segment_size:
        text = f"max_topic_size {options.max_topic_size} is below segment_size {options.segment_size}"
        raise error_from(ErrorCode.INVALID_TOPIC_SIZE, text)


def _parse(values: Iterable[OptionValue], known: frozenset[str]) -> dict[str, int | bool | str]:
    values = tuple(values)
    if len(values) > OPTION_COUNT_MAX:
        raise error_from(ErrorCode.OPTIONS_BLOCK_TOO_LARGE, f"more than {OPTION_COUNT_MAX} options")
    settings: dict[str, int | bool | str] = {}
    for value in values:
        if value.key not in known:
            raise _unsupported(value.key)
        if value.key in settings:
            raise _invalid(value.key, "given twice")
        try:
            settings[value.key] = _decode(SPECS[value.key], value)
        except ValueError as error:
            raise _invalid(value.key, str(error)) from None
    return settings


def _decode(spec: _Spec, value: OptionValue) -> int | bool | str:
    """One value, from its canonical kind or one of the others it is accepted as. Raises ValueError."""
    decoded: int | bool | str
    if value.kind == KIND_STRING:
        decoded = spec.parse(str(value.value, "utf-8"))
    elif spec.field == "compression_algorithm" and value.kind == KIND_U8 and value.value in (b"\1", b"\2"):
        decoded = ("none", "gzip")[value.value[0] - 1]
    elif spec.kind != KIND_STRING and value.kind == spec.kind and len(value.value) == SIZES[spec.kind]:
        decoded = int.from_bytes(value.value, "little")
        if spec.kind == KIND_BOOL:
            decoded = _parse_bool({0: "false", 1: "true"}.get(decoded, "neither"))
    else:
        raise ValueError(f"a value of kind {value.kind} and {len(value.value)} bytes")
    zero_allowed = value.key in _ZERO_IS_DEFAULT and decoded == SERVER_DEFAULT
    if isinstance(decoded, int) and not zero_allowed:
        spec.check(decoded)
    return decoded


def _unsupported(key: str) -> UnsupportedOption:
    if key in REPLACED:
        return UnsupportedOption(f"Unsupported option key: {key}. Use the topic option {REPLACED[key]} instead")
    if key in CREATE_ONLY:
        return UnsupportedOption(f"Unsupported option key: {key} can only be given when the topic is created")
    return UnsupportedOption(f"Unsupported option key: {key}")


def _invalid(key: str, fault: str) -> InvalidOption:
    return InvalidOption(f"Invalid option value for key: {key}: {fault}")
