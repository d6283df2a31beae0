"""Durations and sizes as text: what is read, what is refused, and that what is written is read back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmbroker.formats.quantities import format_duration, format_size, parse_duration_us, parse_size
from shmbroker.limits import GIB, KIB, MIB, U64_MAX

SECOND_US = 1_000_000


@pytest.mark.parametrize(
    ("text", "duration_us"),
    [
        ("1us", 1),
        ("1 µs", 1),
        ("250ms", 250_000),
        ("30s", 30 * SECOND_US),
        ("30 seconds", 30 * SECOND_US),
        ("15m", 900 * SECOND_US),
        ("1h 30m", 5400 * SECOND_US),
        ("1h30min", 5400 * SECOND_US),
        (" 7 days ", 7 * 86_400 * SECOND_US),
        ("7days", 7 * 86_400 * SECOND_US),
        ("2 WEEKS", 14 * 86_400 * SECOND_US),
        ("1 month", 2_630_016 * SECOND_US),
        ("1M", 2_630_016 * SECOND_US),
        ("1y", 31_557_600 * SECOND_US),
        ("999ns", 0),
        ("1500ns", 1),
        ("0s", 0),
    ],
)
def test_durations(text: str, duration_us: int) -> None:
    assert parse_duration_us(text) == duration_us


@pytest.mark.parametrize(
    "text", ["", " ", "7", "s", "7 fortnights", "-1s", "1.5s", "1s 2", "1s,2s", "9999999999999999y"]
)
def test_what_is_not_a_duration(text: str) -> None:
    with pytest.raises(ValueError):
        parse_duration_us(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        ("1 B", 1),
        ("1kb", 1000),
        ("1 KiB", KIB),
        ("512MB", 512_000_000),
        ("16 MiB", 16 * MIB),
        ("1GiB", GIB),
        ("1.5 GiB", GIB + GIB // 2),
        ("0.5kb", 500),
        (" 2 gib ", 2 * GIB),
        ("18446744073709551615", U64_MAX),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "big", "-1", "1 XiB", "1.5 B", "1,5 GiB", "GiB", "1 GiB 2", "16777216 TiB", "1e3"]
)
def test_what_is_not_a_size(text: str) -> None:
    with pytest.raises(ValueError):
        parse_size(text)


@given(st.integers(0, U64_MAX))
def test_what_is_written_is_read_back(number: int) -> None:
    assert parse_duration_us(format_duration(number)) == number
    assert parse_size(format_size(number)) == number


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1000, "1000 B"), (4096, "4 KiB"), (GIB, "1 GiB"), (GIB + 1, "1073741825 B")]
)
def test_sizes_are_short(size: int, text: str) -> None:
    assert format_size(size) == text


@pytest.mark.parametrize(
    ("duration_us", "text"), [(0, "0s"), (5_400_000_000, "1h 30m"), (1, "1us"), (86_400_000_001, "1d 1us")]
)
def test_durations_are_short(duration_us: int, text: str) -> None:
    assert format_duration(duration_us) == text
