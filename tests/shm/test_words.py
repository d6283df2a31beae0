"""One aligned item of memoryview.cast("Q") is never seen half-stored by another process; pack_into is."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from shmbroker.shm import words as shared
from shmbroker.shm.region import Region

from .peer import PATTERNS, WORD_STOP, WORD_UNDER_TEST

LOADS = 2_000_000


def test_a_stored_word_is_never_seen_torn(peer: Callable[..., object]) -> None:
    region = Region.create(4_096)
    shared.store(region.words, WORD_UNDER_TEST, PATTERNS[0])
    writer = peer("store_words", region.fd, fds=(region.fd,))
    writer.line()
    words = region.words
    seen: dict[int, int] = dict.fromkeys(PATTERNS, 0)
    for _ in range(LOADS):
        value = words[WORD_UNDER_TEST]
        seen[value] = seen.get(value, 0) + 1
    shared.store(words, WORD_STOP, 1)
    assert writer.wait() == 0
    assert seen.keys() == set(PATTERNS), f"torn: {[hex(value) for value in seen]}"
    assert min(seen.values()) > 0, "the writer never ran beside the reader: this proved nothing"


def test_pack_into_is_seen_torn_which_is_why_it_is_banned(peer: Callable[..., object]) -> None:
    region = Region.create(4_096)
    shared.store(region.words, WORD_UNDER_TEST, PATTERNS[0])
    writer = peer("pack_words", region.fd, fds=(region.fd,))
    writer.line()
    words = region.words
    deadline_s = time.monotonic() + 30
    while time.monotonic() < deadline_s:
        values = {words[WORD_UNDER_TEST] for _ in range(100_000)}
        if not values <= set(PATTERNS):
            break
    else:
        pytest.fail("pack_into was not seen torn in 30 s: is the reason for shm.words gone?")
    shared.store(words, WORD_STOP, 1)
    assert writer.wait() == 0


def test_a_view_of_words_is_the_memory_itself() -> None:
    buffer = bytearray(64)
    words = shared.words_of(buffer)
    shared.store(words, 3, 0x0102030405060708)
    assert buffer[24:32] == bytes([8, 7, 6, 5, 4, 3, 2, 1])
    assert shared.load(words, 3) == 0x0102030405060708
    with pytest.raises(ValueError, match="invalid value"):
        shared.store(words, 0, -1)
