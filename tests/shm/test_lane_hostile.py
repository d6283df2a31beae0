"""A client that lies: the worker's end names what lied, and never looks outside of the request ring."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable

import pytest

from shmbroker.errors import LaneBroken
from shmbroker.formats.lane import (
    REQUEST,
    REQUEST_SKIP,
    REQUEST_WORD,
    REQUESTS_POSITION,
    WORD_COMPLETION_COUNT,
    WORD_COMPLETION_TAIL,
    WORD_MAGIC,
    WORD_REQUEST_HEAD,
    WORD_REQUEST_SIZE,
    WORD_REQUEST_TAIL,
)
from shmbroker.limits import LANE_COMPLETION_COUNT, LANE_IN_FLIGHT_MAX, LANE_SIZE_MIN
from shmbroker.shm import words as shared
from shmbroker.shm.doorbell import EventDoorbell
from shmbroker.shm.lane import LaneClient, LaneServer, create_lane
from shmbroker.shm.region import Region

from .conftest import Peer
from .peer import WORD_STOP

SIZE = LANE_SIZE_MIN
ROUNDS = 3_000


class Hostile:
    """A lane whose client's end is raw memory."""

    def __init__(self) -> None:
        self.region = create_lane(SIZE, 1)
        self.words = self.region.words
        self.ring = self.region.view[REQUESTS_POSITION:]
        self.bell = EventDoorbell.create()
        self.server = self.serve()

    def serve(self) -> LaneServer:
        return LaneServer(Region.attach(os.dup(self.region.fd)), self.bell)

    def request(self, index: int, length: int, kind: int = 2, number: int = 1) -> None:
        REQUEST.pack_into(self.ring, index, length, kind, 0, number, 0, 0)

    def skip(self, index: int, length: int) -> None:
        REQUEST_WORD.pack_into(self.ring, index, length, REQUEST_SKIP, 0)

    def head(self, value: int) -> None:
        shared.store(self.words, WORD_REQUEST_HEAD, value)

    def tail(self, value: int) -> None:
        shared.store(self.words, WORD_COMPLETION_TAIL, value)

    def advance(self, to: int) -> None:
        """Has the worker consume honest requests up to byte ``to`` of the ring."""
        index = 0
        while index < to:
            length = min(4_096, to - index)
            length -= 32 * (0 < to - index - length < 32)
            self.request(index, length)
            index += length
        self.head(index)
        for request in self.server.drain():
            self.server.complete(request[2], 0, 0, 0, 0)
        self.server.release()
        self.server.publish()
        self.tail(self.server.taken_count)


@pytest.fixture
def hostile() -> Hostile:
    return Hostile()


def cross(lane: Hostile, place: int, then: Callable[[Hostile], None]) -> None:
    lane.advance(place)
    then(lane)


LIES: dict[str, tuple[Callable[[Hostile], object], str]] = {
    "head beyond capacity": (lambda lane: lane.head(SIZE + 8), "request_head .* beyond the capacity"),
    "head far beyond": (lambda lane: lane.head(2**64 - 8), "request_head .* beyond the capacity"),
    "head unaligned": (lambda lane: lane.head(36), "request_head 36 is no multiple of 8"),
    "head backwards": (lambda lane: (lane.advance(128), lane.head(64)), "request_head ran backwards, from 128 to 64"),
    "head to zero": (lambda lane: (lane.advance(128), lane.head(0)), "request_head ran backwards, from 128 to 0"),
    "length zero": (lambda lane: (lane.request(0, 0), lane.head(64)), "length 0 "),
    "length below the header": (lambda lane: (lane.request(0, 24), lane.head(64)), "length 24 "),
    "length unaligned": (lambda lane: (lane.request(0, 36), lane.head(64)), "length 36 "),
    "length beyond the head": (
        lambda lane: (lane.request(0, 72), lane.head(64)),
        "length 72 reaches beyond what was published",
    ),
    "length beyond the region": (
        lambda lane: (lane.request(0, 2**32 - 8), lane.head(SIZE)),
        "length 4294967288 reaches beyond what was published",
    ),
    "length across the end of the ring": (
        lambda lane: (lane.advance(SIZE - 64), lane.request(SIZE - 64, 128), lane.head(SIZE + 64)),
        "length 128 reaches beyond what was published",
    ),
    "kind zero": (lambda lane: (lane.request(0, 64, kind=0), lane.head(64)), "kind 0 is not known"),
    "kind unknown": (lambda lane: (lane.request(0, 64, kind=8), lane.head(64)), "kind 8 is not known"),
    "kind largest": (lambda lane: (lane.request(0, 64, kind=65_535), lane.head(64)), "kind 65535 is not known"),
    "nothing but zeros": (lambda lane: lane.head(4_096), "kind 0 is not known"),
    "request number zero": (lambda lane: (lane.request(0, 64, number=0), lane.head(64)), "request_number is 0"),
    "skip in the middle": (lambda lane: (lane.skip(0, 64), lane.head(128)), "skip of length 64 does not end"),
    "skip too short": (
        lambda lane: (lane.advance(SIZE - 64), lane.skip(SIZE - 64, 56), lane.head(SIZE + 64)),
        "skip of length 56 does not end",
    ),
    "skip across the end": (
        lambda lane: (lane.advance(SIZE - 64), lane.skip(SIZE - 64, 128), lane.head(SIZE + 64)),
        "skip of length 128 does not end",
    ),
    "skip not published whole": (
        lambda lane: (lane.advance(SIZE - 64), lane.skip(SIZE - 64, 64), lane.head(SIZE - 32)),
        "skip of length 64 does not end",
    ),
    "skip that ends with what was published": (
        lambda lane: (lane.skip(0, 64), lane.head(64)),
        "skip of length 64 does not end with the ring",
    ),
    "skip of length zero": (lambda lane: (lane.skip(0, 0), lane.head(64)), "skip of length 0 does not end"),
    "no room for a header before the end": (
        lambda lane: (
            lane.advance(SIZE - 8),
            lane.ring.__setitem__(slice(SIZE - 8, SIZE), REQUEST_WORD.pack(8, 2, 0)),
            lane.head(SIZE + 64),
        ),
        "length 8 is not that of a request",
    ),
    "a whole length where there is no room": (
        lambda lane: (
            lane.advance(SIZE - 8),
            lane.ring.__setitem__(slice(SIZE - 8, SIZE), REQUEST_WORD.pack(32, 2, 0)),
            lane.head(SIZE + 64),
        ),
        "length 32 reaches beyond what was published",
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_named(lie: str, hostile: Hostile) -> None:
    tell, expected = LIES[lie]
    tell(hostile)
    with pytest.raises(LaneBroken, match=expected):
        hostile.server.drain()
    with pytest.raises(LaneBroken, match=expected):
        hostile.server.drain()


@pytest.mark.parametrize("tail", [1, LANE_COMPLETION_COUNT, 2**64 - 1])
def test_a_completion_tail_beyond_what_was_published_is_named(tail: int, hostile: Hostile) -> None:
    for index in range(2 * LANE_IN_FLIGHT_MAX):
        hostile.request(index * 32, 32)
    hostile.head(LANE_IN_FLIGHT_MAX * 32)
    assert len(hostile.server.drain()) == LANE_IN_FLIGHT_MAX
    hostile.server.complete(1, 0, 0, 0, 0)
    hostile.tail(tail)
    hostile.head(2 * LANE_IN_FLIGHT_MAX * 32)
    with pytest.raises(LaneBroken, match=f"completion_tail is {tail}, after 0, with 0 published"):
        hostile.server.drain()


def test_a_completion_tail_that_runs_backwards_is_named(hostile: Hostile) -> None:
    for index in range(SIZE // 32):
        hostile.request(index * 32, 32)
    for count in (800, 1_600):
        hostile.head(count * 32)
        for request in hostile.server.drain():
            hostile.server.complete(request[2], 0, 0, 0, 0)
        hostile.server.publish()
        hostile.tail(800)
    hostile.tail(799)
    hostile.head(SIZE)
    with pytest.raises(LaneBroken, match="completion_tail is 799, after 800"):
        hostile.server.drain()


def test_requests_without_a_completion_slot_are_not_taken(hostile: Hostile) -> None:
    """More in flight than there are slots: the worker could not answer, and must not wait for the client to read."""
    for index in range(LANE_IN_FLIGHT_MAX + 1):
        hostile.request(index * 32, 32, number=index + 1)
    hostile.head((LANE_IN_FLIGHT_MAX + 1) * 32)
    requests = hostile.server.drain(5_000)
    assert [request[2] for request in requests] == list(range(1, LANE_IN_FLIGHT_MAX + 1))
    for request in requests:
        hostile.server.complete(request[2], 0, 0, 0, 0)
    hostile.server.publish()
    with pytest.raises(LaneBroken, match="more than 1023 requests in flight"):
        hostile.server.drain()


def test_requests_before_a_lie_are_handed_out_first(hostile: Hostile) -> None:
    hostile.request(0, 64, number=5)
    hostile.request(64, 32, number=6)
    hostile.request(96, 20, number=7)
    hostile.head(128)
    assert [request[2] for request in hostile.server.drain()] == [5, 6]
    with pytest.raises(LaneBroken, match=r"request at 96 .* length 20 "):
        hostile.server.drain()


@pytest.mark.parametrize(
    ("word", "value", "expected"),
    [
        (WORD_MAGIC, 0, "magic"),
        (WORD_REQUEST_SIZE, SIZE * 2, "request_size says 131072, the region has room for 65536"),
        (WORD_COMPLETION_COUNT, 2**40, "completion_count"),
    ],
)
def test_a_lane_that_describes_itself_wrongly_is_refused(
    word: int, value: int, expected: str, hostile: Hostile
) -> None:
    shared.store(hostile.words, word, value)
    with pytest.raises(LaneBroken, match=expected):
        hostile.serve()
    with pytest.raises(LaneBroken, match=expected):
        LaneClient(hostile.region, hostile.bell)


def test_a_region_too_small_for_a_lane_is_refused() -> None:
    with pytest.raises(LaneBroken, match=r"magic|no lane"):
        LaneServer(Region.create(4_096), EventDoorbell.create())


def test_a_size_changed_later_changes_nothing(hostile: Hostile) -> None:
    """The size comes from the sealed region, once; what the words say afterwards is not looked at."""
    shared.store(hostile.words, WORD_REQUEST_SIZE, 2**40)
    shared.store(hostile.words, WORD_REQUEST_TAIL, 2**40)
    hostile.request(0, 64)
    hostile.head(64)
    assert len(hostile.server.drain()) == 1
    hostile.server.release()
    assert shared.load(hostile.words, WORD_REQUEST_TAIL) == 64


def bounded(lane: Hostile, consumed: int, head: int) -> int:
    """Drains once; every body must be made of bytes of the ring between ``consumed`` and ``head``. Bytes taken."""
    taken = 0
    for kind, flags, number, log_id, argument, body in lane.server.drain():
        assert 2 <= kind <= 7
        assert 0 <= flags < 2**16
        assert min(number, log_id, argument) >= 0
        assert number != 0
        assert body.nbytes % 8 == 0
        assert body.obj is lane.server._mapping
        taken += 32 + body.nbytes
    assert taken <= head - consumed
    return taken


def test_random_bytes_everywhere_end_in_a_named_error_or_in_bounded_requests(rng: random.Random) -> None:
    """Random regions; after the random bytes, words that make it past the first checks more often."""
    outcomes = {"broken": 0, "refused": 0, "taken": 0}
    lane = Hostile()
    sealed = bytes(lane.region.view[:40])
    for _ in range(ROUNDS):
        start = rng.randrange(lane.region.size - 64)
        lane.region.view[start : start + 64] = rng.randbytes(64)
        lane.region.view[:40] = sealed if rng.random() < 0.95 else rng.randbytes(40)
        for _ in range(8):
            length = rng.choice((32, 40, 64, 96, rng.randrange(128), rng.randrange(2**32)))
            place = 8 * rng.randrange(32)
            lane.ring[place : place + 8] = struct.pack("<IHH", length, rng.choice((0, 1, 2, 7, 8)), rng.randrange(9))
        head = rng.choice((8 * rng.randrange(64), rng.randrange(SIZE), rng.getrandbits(64), SIZE))
        lane.head(head)
        lane.tail(rng.choice((0, 0, rng.getrandbits(64))))
        try:
            lane.server = lane.serve()
            outcomes["taken"] += bounded(lane, 0, head) > 0
            bounded(lane, 0, head)
        except LaneBroken as error:
            outcomes["refused" if "magic" in str(error) else "broken"] += 1
    assert min(outcomes.values()) > 5, outcomes


def test_a_client_that_scribbles_while_the_worker_reads(peer: Callable[..., Peer], seed: int) -> None:
    """Another process changes lengths and heads all the time: what was checked is what is used."""
    lane = Hostile()
    scribbler = peer("scribble_lane", lane.region.fd, seed, fds=(lane.region.fd,))
    scribbler.line()
    broken = taken = 0
    while broken < 2_000 or taken < 2_000:
        lane.server = lane.serve()
        try:
            for _ in range(10):
                taken += bounded(lane, 0, SIZE) > 0
                lane.server.release()
        except LaneBroken:
            broken += 1
        shared.store(lane.words, WORD_REQUEST_TAIL, 0)
        assert scribbler.process.poll() is None, scribbler.error()
    shared.store(lane.words, WORD_STOP, 1)
    assert scribbler.wait() == 0


def test_the_client_does_not_believe_an_impossible_worker_either() -> None:
    region = create_lane(SIZE, 1)
    client = LaneClient(region, EventDoorbell.create())
    shared.store(region.words, 384 // 8, 1)
    with pytest.raises(LaneBroken, match="completion_head is 1, after 0, with 0 requests made"):
        client.completions()
    shared.store(region.words, WORD_REQUEST_TAIL, 2**50)
    body = bytes(client.body_length_max)
    with pytest.raises(LaneBroken, match="request_tail is"):  # noqa: PT012 - the third offer is where it looks
        for number in range(1, 4):
            client.offer(2, 0, number, 1, 0, [body], len(body))
