"""Text forms of durations and byte sizes, as people write them in a configuration, an option or a variable.

A duration is numbers with units, added up: ``7 days``, ``1h 30m``, ``250ms``. A size is one number with a unit:
``1 GiB``, ``512MB``, ``4096``; KiB, MiB, GiB are powers of 1,024, KB, MB, GB powers of 1,000. A size may have a
fraction where the result is whole bytes.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

from shmbroker.limits import U64_MAX

US_PER_S: Final = 1_000_000

_DURATION_PART: Final = re.compile(r"\s*([0-9]+)\s*([a-zA-Zµ]+)")
_SIZE: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*")
_MINUTE_NS: Final = 60 * 10**9
_DURATION_UNITS_NS: Final[dict[str, int]] = {
    name: factor
    for factor, names in (
        (1, "nanoseconds nanosecond nsecs nsec ns"),
        (1_000, "microseconds microsecond usecs usec us µs"),
        (1_000_000, "milliseconds millisecond msecs msec millis ms"),
        (10**9, "seconds second secs sec s"),
        (_MINUTE_NS, "minutes minute mins min m"),
        (60 * _MINUTE_NS, "hours hour hrs hr h"),
        (24 * 60 * _MINUTE_NS, "days day d"),
        (7 * 24 * 60 * _MINUTE_NS, "weeks week wks wk w"),
        # As humantime has them: 30.44 and 365.25 days.
        (2_630_016 * 10**9, "months month M"),
        (31_557_600 * 10**9, "years year yrs yr y"),
    )
    for name in names.split()
}
_SIZE_UNITS: Final[dict[str, int]] = {
    "": 1,
    "b": 1,
    **{unit: 1000 ** (power + 1) for power, unit in enumerate(("kb", "mb", "gb", "tb", "pb"))},
    **{unit: 1024 ** (power + 1) for power, unit in enumerate(("kib", "mib", "gib", "tib", "pib"))},
}


def parse_duration_us(text: str) -> int:
    """Microseconds, rounded down. Raises ValueError with what was wrong."""
    total_ns = 0
    position = 0
    while match := _DURATION_PART.match(text, position):
        number, unit = match.groups()
        factor = _DURATION_UNITS_NS.get(unit) or _DURATION_UNITS_NS.get(unit.lower())
        if factor is None:
            raise ValueError(f"{unit!r} is not a unit of time: say for example 30s, 15m, 12h or 7days")
        total_ns += int(number) * factor
        position = match.end()
    if position == 0 or text[position:].strip():
        raise ValueError(f"{text!r} is not a duration: say for example 30s, 15m, 12h or 7days")
    if total_ns // 1000 > U64_MAX:
        raise ValueError(f"{text!r} is longer than can be counted")
    return total_ns // 1000


def parse_size(text: str) -> int:
    """Bytes. Raises ValueError with what was wrong."""
    match = _SIZE.fullmatch(text)
    factor = _SIZE_UNITS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ValueError(f"{text!r} is not a size: say for example 4096, 512MB or 1GiB")
    size = Decimal(match[1]) * factor
    if size != int(size):
        raise ValueError(f"{text!r} is not a whole number of bytes")
    if size > U64_MAX:
        raise ValueError(f"{text!r} is more than can be counted")
    return int(size)


def format_duration(duration_us: int) -> str:
    """The shortest text of whole units that :func:`parse_duration_us` gives back exactly."""
    rest_ns = duration_us * 1000
    parts: list[str] = []
    for unit in ("d", "h", "m", "s", "ms", "us"):
        number, rest_ns = divmod(rest_ns, _DURATION_UNITS_NS[unit])
        if number:
            parts.append(f"{number}{unit}")
    return " ".join(parts) or "0s"


def format_size(size: int) -> str:
    """The largest binary unit that divides ``size``; what :func:`parse_size` gives back exactly."""
    for unit in ("PiB", "TiB", "GiB", "MiB", "KiB"):
        number, rest = divmod(size, _SIZE_UNITS[unit.lower()])
        if size and rest == 0:
            return f"{number} {unit}"
    return f"{size} B"
