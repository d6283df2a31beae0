"""Settings of the broker: a TOML file, then SHMBROKER_SECTION_KEY variables, then flags; the later wins.

Everything is validated once, here, into frozen dataclasses; nobody else reads the environment for settings. An unknown
key refuses and names itself and the nearest known one. What belongs to topics is refused by name wherever it is given:
durability is chosen for each topic, when it is created.

Values are TOML's own types or text; durations and sizes are text such as ``1m`` and ``256 MiB``, or numbers of
seconds and bytes.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

from shmbroker.errors import InvalidConfiguration
from shmbroker.formats.quantities import US_PER_S, parse_duration_us, parse_size
from shmbroker.limits import (
    HEARTBEAT_INTERVAL_S_MIN,
    HTTP_BODY_SIZE_LIMIT,
    KIB,
    MIB,
    U32_MAX,
    U64_MAX,
    WORKER_COUNT_MAX,
)

VARIABLE_PREFIX: Final = "SHMBROKER_"
FOREIGN_PREFIX: Final = "IGGY_"
"""Variables of this prefix are not ours; only those that ask for durability are looked at, to refuse them."""
_NO_SETTINGS: Final = frozenset({"SHMBROKER_CRASH_AT", "SHMBROKER_FAIL_AT", "SHMBROKER_HOME", "SHMBROKER_TRACEBACK"})
_TEST_PREFIX: Final = "SHMBROKER_TEST_"
_DATA_VARIABLE: Final = "SHMBROKER_DATA"
"""Another name of broker.data, which the client commands read too."""

TOPIC_ONLY: Final[dict[str, str]] = {
    "consumer_offset_enforce_fsync": "consumer_offset_durability",
    "consumer_offset_durability": "consumer_offset_durability",
    "enforce_fsync": "durability",
    "durability": "durability",
}
"""Keys refused wherever they stand, and the topic option that decides instead. Longer ones come first."""

_JOURNAL_MEMORY_MIN: Final = MIB
_HTTP_BODY_SIZE_MIN: Final = 64 * KIB
_ORIGIN: Final = re.compile(r"\*|https?://[^\s/,]+")


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """``runtime`` None: a directory of its own under /dev/shm. ``workers`` 0: the processors less one, at least one."""

    data: str
    runtime: str | None
    workers: int


@dataclass(frozen=True, slots=True)
class PartitionConfig:
    """``journal_memory_limit``: bytes for all ring journals; 0: a quarter of the free runtime file system."""

    journal_memory_limit: int


@dataclass(frozen=True, slots=True)
class RetentionConfig:
    """Whether, and how often, expired and surplus segments are looked for."""

    enabled: bool
    interval_us: int


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """What "server default" means to a topic created from now on. 2^64 - 1: never, and no limit."""

    message_expiry_us: int
    max_topic_size: int


@dataclass(frozen=True, slots=True)
class TcpConfig:
    """The binary protocol: ``host`` and ``port``, of which 0 lets the system choose. ``certificate`` and
    ``private_key``: files in PEM, both (TLS) or neither."""

    enabled: bool
    host: str
    port: int
    certificate: str | None
    private_key: str | None


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """The HTTP gateway. ``certificate`` and ``private_key``: files in PEM, both or neither. ``origins``: those that a
    browser's scripts may come from; none: CORS is off. ``body_size_max``: of a request. ``time_limit_us``: what one
    request may take. ``token_expiry_us``: of the access tokens that a login gives out."""

    enabled: bool
    host: str
    port: int
    certificate: str | None
    private_key: str | None
    origins: tuple[str, ...]
    body_size_max: int
    time_limit_us: int
    token_expiry_us: int


@dataclass(frozen=True, slots=True)
class HeartbeatConfig:
    """Every client says something in each ``interval_us``; members of groups that are silent for 1.2 of it are out."""

    interval_us: int


@dataclass(frozen=True, slots=True)
class Config:
    """All settings."""

    broker: BrokerConfig
    partition: PartitionConfig
    retention: RetentionConfig
    topic: TopicConfig
    tcp: TcpConfig
    http: HttpConfig
    heartbeat: HeartbeatConfig


class _Setting(NamedTuple):
    """``parse`` takes a TOML value or text and raises ValueError; ``default`` is such a value too."""

    parse: Callable[[object], object]
    default: object


def _text(value: object) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError("some text is wanted")
    return value


def _optional_path(value: object) -> str | None:
    return None if value == "" else _text(value)


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ValueError("true or false is wanted")


def _number(value: object, least: int, most: int) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"a number from {least} to {most} is wanted")
    return value


def _workers(value: object) -> int:
    return 0 if value == "auto" else _number(value, 0, WORKER_COUNT_MAX)


def _size(value: object) -> int:
    return parse_size(value) if isinstance(value, str) else _number(value, 0, U64_MAX)


def _journal_memory(value: object) -> int:
    size = 0 if value == "auto" else _size(value)
    if 0 < size < _JOURNAL_MEMORY_MIN:
        raise ValueError(f"at least {_JOURNAL_MEMORY_MIN} bytes, or auto")
    return size


def _interval_us(value: object) -> int:
    duration_us = parse_duration_us(value) if isinstance(value, str) else _number(value, 1, U32_MAX) * US_PER_S
    if not US_PER_S <= duration_us <= U32_MAX * US_PER_S:
        raise ValueError(f"1 to {U32_MAX} seconds")
    return duration_us


def _heartbeat_us(value: object) -> int:
    interval_us = _interval_us(value)
    if interval_us < HEARTBEAT_INTERVAL_S_MIN * US_PER_S:
        raise ValueError(f"at least {HEARTBEAT_INTERVAL_S_MIN} seconds")
    return interval_us


def _expiry_us(value: object) -> int:
    return U64_MAX if value in ("never_expire", "none", "unlimited") else _interval_us(value)


def _topic_size(value: object) -> int:
    size = U64_MAX if value == "unlimited" else _size(value)
    if size < MIB:
        raise ValueError(f"at least {MIB} bytes, or unlimited")
    return size


def _body_size(value: object) -> int:
    size = _size(value)
    if not _HTTP_BODY_SIZE_MIN <= size <= HTTP_BODY_SIZE_LIMIT:
        raise ValueError(f"{_HTTP_BODY_SIZE_MIN} to {HTTP_BODY_SIZE_LIMIT} bytes")
    return size


def _origins(value: object) -> tuple[str, ...]:
    words = value.replace(",", " ").split() if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) and _ORIGIN.fullmatch(word) for word in words):
        raise ValueError("a list of origins such as https://console.example.com is wanted, or *")
    return tuple(words)


def _address(value: object) -> tuple[str, int]:
    host, colon, port = _text(value).rpartition(":")
    if not colon or not host:
        raise ValueError("HOST:PORT is wanted, an IPv6 address in brackets")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError("an IPv6 address stands in brackets: [::1]:8090")
    return host, _number(port, 0, 65_535)


_SETTINGS: Final[dict[tuple[str, str], _Setting]] = {
    ("broker", "data"): _Setting(_text, "./shmbroker-data"),
    ("broker", "runtime"): _Setting(_optional_path, ""),
    ("broker", "workers"): _Setting(_workers, "auto"),
    ("partition", "journal_memory_limit"): _Setting(_journal_memory, "auto"),
    ("retention", "enabled"): _Setting(_flag, True),
    ("retention", "interval"): _Setting(_interval_us, "1m"),
    ("topic", "message_expiry"): _Setting(_expiry_us, "never_expire"),
    ("topic", "max_topic_size"): _Setting(_topic_size, "unlimited"),
    ("tcp", "enabled"): _Setting(_flag, False),
    ("tcp", "address"): _Setting(_address, "127.0.0.1:8090"),
    ("tcp", "certificate"): _Setting(_optional_path, ""),
    ("tcp", "private_key"): _Setting(_optional_path, ""),
    ("http", "enabled"): _Setting(_flag, False),
    ("http", "address"): _Setting(_address, "127.0.0.1:3000"),
    ("http", "certificate"): _Setting(_optional_path, ""),
    ("http", "private_key"): _Setting(_optional_path, ""),
    ("http", "origins"): _Setting(_origins, ""),
    ("http", "body_size_max"): _Setting(_body_size, "2 MB"),
    ("http", "time_limit"): _Setting(_interval_us, "10s"),
    ("http", "token_expiry"): _Setting(_interval_us, "1h"),
    ("heartbeat", "interval"): _Setting(_heartbeat_us, "30s"),
}
_SECTIONS: Final = frozenset(section for section, _ in _SETTINGS)
KEYS: Final = tuple(f"{section}.{key}" for section, key in _SETTINGS)
"""All settings as ``section.key``: what flags are called, too."""
VARIABLES: Final[dict[str, tuple[str, str]]] = {
    f"{VARIABLE_PREFIX}{section}_{key}".upper(): (section, key) for section, key in _SETTINGS
}
"""The environment variable of each setting."""


def load(
    path: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
    defaults: Mapping[str, object] | None = None,
) -> Config:
    """The settings from a file, the environment (None: this process's) and flags named ``section.key`` (None values are
    not given). ``defaults``: the caller's own, for some settings. Raises InvalidConfiguration, which names what is
    wrong and where it stands."""
    own = defaults or {}
    values: dict[tuple[str, str], tuple[object, str]] = {
        (section, key): (own.get(f"{section}.{key}", spec.default), "the default")
        for (section, key), spec in _SETTINGS.items()
    }
    if path is not None:
        values.update(_from_file(os.fspath(path)))
    values.update(_from_environment(os.environ if environment is None else environment))
    values.update(_from_flags(flags or {}))
    return _build({setting: _parse(setting, *value) for setting, value in values.items()})


def _parse(setting: tuple[str, str], value: object, source: str) -> Any:
    try:
        return _SETTINGS[setting].parse(value)
    except ValueError as error:
        raise InvalidConfiguration(f"{source}: {'.'.join(setting)} = {value!r}: {error}") from None


def _build(parsed: Mapping[tuple[str, str], Any]) -> Config:
    return Config(
        broker=BrokerConfig(*(parsed["broker", key] for key in ("data", "runtime", "workers"))),
        partition=PartitionConfig(parsed["partition", "journal_memory_limit"]),
        retention=RetentionConfig(parsed["retention", "enabled"], parsed["retention", "interval"]),
        topic=TopicConfig(parsed["topic", "message_expiry"], parsed["topic", "max_topic_size"]),
        tcp=_build_tcp(parsed),
        http=_build_http(parsed),
        heartbeat=HeartbeatConfig(parsed["heartbeat", "interval"]),
    )


def _build_tcp(parsed: Mapping[tuple[str, str], Any]) -> TcpConfig:
    host, port = parsed["tcp", "address"]
    files = parsed["tcp", "certificate"], parsed["tcp", "private_key"]
    config = TcpConfig(parsed["tcp", "enabled"], host, port, *files)
    if (config.certificate is None) != (config.private_key is None):
        raise InvalidConfiguration("tcp.certificate and tcp.private_key belong together: set both or neither")
    return config


def _build_http(parsed: Mapping[tuple[str, str], Any]) -> HttpConfig:
    rest = ("certificate", "private_key", "origins", "body_size_max", "time_limit", "token_expiry")
    config = HttpConfig(parsed["http", "enabled"], *parsed["http", "address"], *(parsed["http", key] for key in rest))
    if (config.certificate is None) != (config.private_key is None):
        raise InvalidConfiguration("http.certificate and http.private_key belong together: set both or neither")
    return config


# --- the three sources ------------------------------------------------------------------------------------------------
_Given = dict[tuple[str, str], tuple[object, str]]


def _from_file(path: str) -> _Given:
    try:
        with open(path, "rb") as file:
            content = tomllib.load(file)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidConfiguration(f"{path}: not TOML: {error}") from None
    except OSError as error:
        raise InvalidConfiguration(f"{path}: cannot be read: {error.strerror}") from error
    for trail in _trails(content):
        _refuse_topic_only(trail[-1], f"{path}: {'.'.join(trail)}")
    found: _Given = {}
    for section, table in content.items():
        if section not in _SECTIONS:
            raise _unknown(f"{path}: [{section}]", section, _SECTIONS)
        if not isinstance(table, dict):
            raise InvalidConfiguration(f"{path}: {section} is a section: write [{section}]")
        for key, value in table.items():
            if (section, key) not in _SETTINGS:
                raise _unknown(f"{path}: {section}.{key}", f"{section}.{key}", KEYS)
            found[section, key] = value, path
    return found


def _trails(table: Mapping[str, object], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every key in a TOML file, however deep, with the keys above it."""
    for key, value in table.items():
        yield (*above, key)
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, dict):
                yield from _trails(inner, (*above, key))


def _from_environment(environment: Mapping[str, str]) -> _Given:
    found: _Given = {}
    if (data := environment.get(_DATA_VARIABLE)) is not None:
        found["broker", "data"] = data, _DATA_VARIABLE
    for name, value in sorted(environment.items()):
        if not name.upper().startswith((VARIABLE_PREFIX, FOREIGN_PREFIX)):
            continue
        _refuse_topic_only(name, name)
        if not name.startswith(VARIABLE_PREFIX) or name.startswith(_TEST_PREFIX):
            continue
        if name in VARIABLES:
            found[VARIABLES[name]] = value, name
        elif name not in _NO_SETTINGS and name != _DATA_VARIABLE:
            raise _unknown(name, name, VARIABLES)
    return found


def _from_flags(flags: Mapping[str, object]) -> _Given:
    found: _Given = {}
    for name, value in flags.items():
        if value is None:
            continue
        _refuse_topic_only(name, f"flag {name}")
        section, _, key = name.partition(".")
        if (section, key) not in _SETTINGS:
            raise _unknown(f"flag {name}", name, KEYS)
        found[section, key] = value, f"flag {name}"
    return found


def _refuse_topic_only(key: str, where: str) -> None:
    """Raises where ``key`` is, or ends with, a key that belongs to topics."""
    plain = key.lower().replace("-", "_")
    for banned, option in TOPIC_ONLY.items():
        if plain == banned or plain.endswith((f"_{banned}", f".{banned}")):
            raise InvalidConfiguration(
                f"{where}: {banned} is not a setting of the broker. Each topic has its own: create it with the topic "
                f"option {option}=persisted (or replicated, the default)"
            )


def _unknown(where: str, name: str, known: Mapping[str, object] | tuple[str, ...] | frozenset[str]) -> Exception:
    nearest = get_close_matches(name, sorted(known), n=1, cutoff=0.0)
    return InvalidConfiguration(f"{where} is not known; the nearest is {nearest[0]}")
