"""A batch that lies is refused whatever its shape, by the number for its lie; one that does not is accepted."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from shmbroker.errors import ErrorCode
from shmbroker.formats.batch import (
    BATCH_MAGIC,
    FLAG_WIRE_CHECKSUMS,
    FRAME_HEADER,
    FRAME_HEADER_SIZE,
    HEADER_SIZE,
    KIND_BATCH,
    BatchHeader,
    record_length_of,
    shape_fault,
)
from shmbroker.limits import MESSAGE_HEADERS_SIZE_MAX, MESSAGE_PAYLOAD_SIZE_MAX
from shmbroker.storage.validation import FEW_MESSAGES, content_fault

Message = tuple[int, int]
"""Sizes of payload and user headers."""

SHAPES: dict[str, list[Message]] = {
    "one": [(100, 0)],
    "one with headers": [(1, 20)],
    "few": [(60, 0), (140, 5), (1, 0)],
    "as many as the loop takes": [(60 + n, n) for n in range(FEW_MESSAGES)],
    "equal": [(100, 0)] * 50,
    "equal with headers": [(80, 20)] * 50,
    "equal frames, other split": [(80, 20), (70, 30)] * 25,
    "mixed": [(60 + n * 37 % 81, n % 3 * 7) for n in range(200)],
    "more than the prepared deltas": [(1 + n % 5, 0) for n in range(5000)],
    "many equal": [(3, 0)] * 5000,
}


class Crafted:
    """A batch whose parts can be changed before the checksums are put right over it."""

    def __init__(self, messages: list[Message], *, wire_checksums: bool = False) -> None:
        self.wire_checksums = wire_checksums
        self.frames = bytearray()
        self.starts: list[int] = []
        for number, (payload, headers) in enumerate(messages):
            self.starts.append(len(self.frames))
            self.frames += FRAME_HEADER.pack(0, random.Random(number).randbytes(16), number, 7, headers, payload, 0)
            self.frames += b"p" * payload + b"h" * headers
        self.lengths = [FRAME_HEADER_SIZE + payload + headers for payload, headers in messages]

    def word(self, number: int, position: int) -> int:
        value: int = struct.unpack_from("<I", self.frames, self.starts[number] + position)[0]
        return value

    def set_word(self, number: int, position: int, value: int) -> None:
        struct.pack_into("<I", self.frames, self.starts[number] + position, value & 0xFFFFFFFF)

    def seal_wire_checksums(self) -> None:
        for start, length in zip(self.starts, self.lengths, strict=True):
            checksum = xxh3_64_intdigest(bytes(self.frames[start + 8 : start + length]))
            struct.pack_into("<Q", self.frames, start, checksum)

    def fault(self) -> ErrorCode | None:
        header, content = self.sealed()
        assert shape_fault(header, header.record_length) is None
        return content_fault(header, content)

    def sealed(self) -> tuple[BatchHeader, memoryview]:
        index = [length & 0xFFFFFFFF for length in self.lengths]
        content = bytes(self.frames) + struct.pack(f"<{len(index)}I", *index)
        count = len(self.lengths)
        header = BatchHeader(
            0, 0, 0, 0, HEADER_SIZE + len(self.frames), 0, count, KIND_BATCH,
            FLAG_WIRE_CHECKSUMS if self.wire_checksums else 0, BATCH_MAGIC,
            record_length_of(len(self.frames), count), 0, 0, bytes(16), 0, 0, xxh3_64_intdigest(content),
        )  # fmt: skip
        return header, memoryview(content)


@pytest.fixture(params=SHAPES)
def messages(request: pytest.FixtureRequest) -> list[Message]:
    return SHAPES[request.param]


@pytest.mark.parametrize("wire_checksums", [False, True])
def test_an_honest_batch_is_accepted(messages: list[Message], wire_checksums: bool) -> None:
    batch = Crafted(messages, wire_checksums=wire_checksums)
    if wire_checksums:
        batch.seal_wire_checksums()
    assert batch.fault() is None


def test_a_changed_byte_is_noticed(messages: list[Message]) -> None:
    header, content = Crafted(messages).sealed()
    for where in (0, 48, -1, -5):
        broken = bytearray(content)
        broken[where] ^= 1
        assert content_fault(header, memoryview(broken)) == ErrorCode.INVALID_BATCH_CHECKSUM


def test_the_content_has_the_length_that_the_header_says(messages: list[Message]) -> None:
    header, content = Crafted(messages).sealed()
    for change in (-4, -1, 1, 4):
        other = memoryview(bytes(content) + bytes(4))[: len(content) + change]
        lying = header._replace(content_checksum=xxh3_64_intdigest(other))
        assert content_fault(lying, other) == ErrorCode.INVALID_FORMAT


def changed(position: int, change: int) -> Callable[[Crafted, int], None]:
    return lambda batch, number: batch.set_word(number, position, batch.word(number, position) + change)


def lengthened(change: int) -> Callable[[Crafted, int], None]:
    def lie(batch: Crafted, number: int) -> None:
        batch.lengths[number] = (batch.lengths[number] + change) & 0xFFFFFFFF

    return lie


def moved(batch: Crafted, number: int) -> None:
    """Both lengths lie and their sum does not, modulo 2^32."""
    batch.set_word(number, 32, batch.word(number, 32) + 50)
    batch.set_word(number, 36, batch.word(number, 36) - 50 - 100)
    batch.set_word(number, 32, batch.word(number, 32) + 100)


LIES: dict[str, Callable[[Crafted, int], None]] = {
    "delta one more": changed(24, 1),
    "delta one less": changed(24, -1),
    "headers longer": changed(32, 1),
    "payload longer": changed(36, 1),
    "headers longer by all bits": changed(32, -1),
    "reserved low": changed(40, 1),
    "reserved high": changed(44, 1 << 31),
    "index one more": lengthened(1),
    "index one less": lengthened(-1),
    "index huge": lengthened(1 << 31),
    "index zero": lambda batch, number: batch.lengths.__setitem__(number, 0),
    "index below a header": lambda batch, number: batch.lengths.__setitem__(number, FRAME_HEADER_SIZE - 1),
    "lengths that cancel modulo 2^32": moved,
}


def places_in(messages: list[Message]) -> set[int]:
    return {0, len(messages) // 2, len(messages) - 1}


@pytest.mark.parametrize("lie", LIES)
def test_a_checksum_over_a_lie_helps_nobody(lie: str) -> None:
    named = (ErrorCode.INVALID_FORMAT, ErrorCode.TOO_BIG_USER_HEADERS, ErrorCode.TOO_BIG_MESSAGE_PAYLOAD)
    for shape, messages in SHAPES.items():
        for number in places_in(messages):
            batch = Crafted(messages)
            LIES[lie](batch, number)
            assert batch.fault() in named, f"{shape}, message {number}"


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if len(SHAPES[shape]) > 1])
def test_an_index_that_only_adds_up_is_noticed(shape: str) -> None:
    messages = SHAPES[shape]
    batch = Crafted(messages)
    batch.lengths[0] += 1
    batch.lengths[-1] -= 1
    assert batch.fault() == ErrorCode.INVALID_FORMAT
    wrapped = Crafted(messages)
    wrapped.lengths[0] = (wrapped.lengths[0] + (1 << 31)) & 0xFFFFFFFF
    wrapped.lengths[-1] = (wrapped.lengths[-1] + (1 << 31)) & 0xFFFFFFFF
    assert wrapped.fault() == ErrorCode.INVALID_FORMAT


@pytest.mark.parametrize("change", [1000, 1, -1])
def test_frame_and_index_that_agree_on_a_lie_still_have_to_tile_the_batch(change: int) -> None:
    for shape, messages in SHAPES.items():
        for number in places_in(messages):
            batch = Crafted(messages)
            batch.lengths[number] += change
            batch.set_word(number, 36, batch.word(number, 36) + change)
            named = (ErrorCode.INVALID_FORMAT, ErrorCode.EMPTY_MESSAGE_PAYLOAD)
            assert batch.fault() in named, f"{shape}, message {number}"


@pytest.mark.parametrize("count", [2, 40])
@pytest.mark.parametrize("length", [0, 10, FRAME_HEADER_SIZE - 1])
def test_the_last_frame_has_a_whole_header(count: int, length: int) -> None:
    batch = Crafted([(100, 0)] * count)
    batch.lengths[-2] += batch.lengths[-1] - length
    batch.set_word(count - 2, 36, batch.lengths[-2] - FRAME_HEADER_SIZE)
    batch.lengths[-1] = length
    assert batch.fault() == ErrorCode.INVALID_FORMAT


def test_swapped_frames_are_noticed() -> None:
    for count in (2, 50):
        batch = Crafted([(100, 0)] * count)
        batch.set_word(0, 24, 1)
        batch.set_word(1, 24, 0)
        assert batch.fault() == ErrorCode.INVALID_FORMAT


@pytest.mark.parametrize("count", [1, 3, 40])
@pytest.mark.parametrize("equal", [True, False])
def test_bounds_of_a_message_have_their_numbers(count: int, equal: bool) -> None:
    def with_one(message: Message) -> list[Message]:
        return [message] * count if equal else [*((9 + n, 0) for n in range(count - 1)), message]

    assert Crafted(with_one((0, 5))).fault() == ErrorCode.EMPTY_MESSAGE_PAYLOAD
    assert Crafted(with_one((1, MESSAGE_HEADERS_SIZE_MAX))).fault() is None
    assert Crafted(with_one((1, MESSAGE_HEADERS_SIZE_MAX + 1))).fault() == ErrorCode.TOO_BIG_USER_HEADERS


def test_the_largest_payload_is_accepted_and_no_larger() -> None:
    assert Crafted([(MESSAGE_PAYLOAD_SIZE_MAX, 0)]).fault() is None
    assert Crafted([(MESSAGE_PAYLOAD_SIZE_MAX + 1, 0)]).fault() == ErrorCode.TOO_BIG_MESSAGE_PAYLOAD
    many = [*((1, 0) for _ in range(20)), (MESSAGE_PAYLOAD_SIZE_MAX + 1, 0)]
    assert Crafted(many).fault() == ErrorCode.TOO_BIG_MESSAGE_PAYLOAD


def test_a_wrong_wire_checksum_is_noticed(messages: list[Message]) -> None:
    for number in places_in(messages):
        for position in (7, FRAME_HEADER_SIZE):
            batch = Crafted(messages, wire_checksums=True)
            batch.seal_wire_checksums()
            batch.frames[batch.starts[number] + position] ^= 1
            assert batch.fault() == ErrorCode.INVALID_MESSAGE_CHECKSUM
            batch.wire_checksums = False
            assert batch.fault() is None, "without the flag nobody asks for them"


def is_honest(frames: bytes, lengths: list[int]) -> bool:
    """The rules once more, one message at a time and in no hurry."""
    start = 0
    for number, length in enumerate(lengths):
        if length < FRAME_HEADER_SIZE or start + length > len(frames):
            return False
        _, _, delta, _, headers, payload, reserved = FRAME_HEADER.unpack_from(frames, start)
        if delta != number or reserved or headers + payload + FRAME_HEADER_SIZE != length:
            return False
        if not 1 <= payload <= MESSAGE_PAYLOAD_SIZE_MAX or headers > MESSAGE_HEADERS_SIZE_MAX:
            return False
        start += length
    return start == len(frames)


WORDS = st.one_of(st.integers(0, 200), st.sampled_from([0, 1, 47, 48, 49, 1 << 31, (1 << 32) - 1, (1 << 32) - 48]))


@settings(deadline=None)
@given(
    messages=st.one_of(
        st.lists(st.tuples(st.integers(1, 90), st.integers(0, 9)), min_size=1, max_size=40),
        st.builds(
            lambda message, count: [message] * count, st.tuples(st.integers(1, 9), st.just(0)), st.integers(1, 40)
        ),
    ),
    lies=st.lists(st.tuples(st.integers(0, 39), st.sampled_from([24, 32, 36, 40, 44, -1]), WORDS), max_size=3),
    trade=st.integers(-60, 60),
)
def test_the_quick_checks_say_what_a_slow_one_says(
    messages: list[Message], lies: list[tuple[int, int, int]], trade: int
) -> None:
    batch = Crafted(messages)
    for number, position, value in lies:
        if position < 0:
            batch.lengths[number % len(messages)] = value
        else:
            batch.set_word(number % len(messages), position, value)
    if trade and len(messages) > 1 and min(batch.lengths[0], batch.lengths[-1]) > 60:
        batch.lengths[0] += trade
        batch.lengths[-1] -= trade
    header, content = batch.sealed()
    lengths = [length & 0xFFFFFFFF for length in batch.lengths]
    assert (content_fault(header, content) is None) == is_honest(bytes(batch.frames), lengths)


def test_random_content_is_refused(rng: random.Random) -> None:
    for _ in range(300):
        count = rng.randrange(1, 40)
        frames_length = rng.randrange(FRAME_HEADER_SIZE * count + 1, 200 * count)
        content = memoryview(rng.randbytes(frames_length + 4 * count))
        header = BatchHeader(
            0, 0, 0, 0, HEADER_SIZE + frames_length, 0, count, KIND_BATCH, 0, BATCH_MAGIC,
            record_length_of(frames_length, count), 0, 0, bytes(16), 0, 0, xxh3_64_intdigest(content),
        )  # fmt: skip
        assert shape_fault(header, header.record_length) is None
        assert content_fault(header, content) is not None
