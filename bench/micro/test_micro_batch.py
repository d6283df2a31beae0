"""What a batch costs before and after the lane: laying it out, its checksums, copying it, checking it."""

from __future__ import annotations

import mmap
import secrets
from typing import Any

import numpy as np
import pytest
from crc32c import crc32c
from xxhash import xxh3_64_intdigest

from shmbroker.client.encoding import encode_array, encode_batch
from shmbroker.formats.batch import content_length_of, unpack_header
from shmbroker.limits import MIB
from shmbroker.storage.validation import content_fault


def messages_of(count: int, lengths: str) -> list[bytes]:
    """``count`` messages of 100 B, or of 60 to 140 B."""
    sizes = [100] * count if lengths == "equal" else [60 + number * 37 % 81 for number in range(count)]
    return [secrets.token_bytes(size) for size in sizes]


@pytest.mark.parametrize("lengths", ["equal", "mixed"])
@pytest.mark.parametrize("count", [1, 10, 100, 1_000])
def test_encode_a_list(benchmark: Any, count: int, lengths: str) -> None:
    messages = messages_of(count, lengths)
    benchmark(lambda: encode_batch(messages, id_base=1, origin_timestamp_us=1, producer_id=1, sequence=1))


@pytest.mark.parametrize("count", [1_000, 100_000])
def test_encode_an_array(benchmark: Any, count: int) -> None:
    array = np.zeros(count, dtype=[("price", "f8"), ("size", "u4"), ("symbol", "S12")])
    benchmark(lambda: encode_array(array, id_base=1, origin_timestamp_us=1, producer_id=1, sequence=1))


@pytest.mark.parametrize("lengths", ["equal", "mixed"])
@pytest.mark.parametrize("count", [1, 10, 1_000])
def test_check_the_content(benchmark: Any, count: int, lengths: str) -> None:
    header_bytes, content = encode_batch(
        messages_of(count, lengths), id_base=1, origin_timestamp_us=1, producer_id=1, sequence=1
    )
    header = unpack_header(header_bytes)
    whole = memoryview(content)[: content_length_of(header)]
    assert benchmark(lambda: content_fault(header, whole)) is None


@pytest.mark.parametrize("size", [100, 4_096, 150_000, MIB])
@pytest.mark.parametrize("name", ["xxh3_64", "crc32c"])
def test_checksum(benchmark: Any, name: str, size: int) -> None:
    function = {"xxh3_64": xxh3_64_intdigest, "crc32c": crc32c}[name]
    block = memoryview(secrets.token_bytes(size))
    benchmark(lambda: function(block))


@pytest.mark.parametrize("size", [400, 150_000, MIB])
def test_copy_between_mappings(benchmark: Any, size: int) -> None:
    source, target = memoryview(mmap.mmap(-1, MIB)), memoryview(mmap.mmap(-1, MIB))

    def copy() -> None:
        target[:size] = source[:size]

    benchmark(copy)
