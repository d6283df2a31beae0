"""A lane against plain lists: whatever the order of offers, drains and completions, wrap and skip included."""

from __future__ import annotations

import os
from collections import deque

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shmbroker.errors import BatchTooLarge, LaneBroken
from shmbroker.formats.lane import WORD_CLOSED
from shmbroker.limits import LANE_IN_FLIGHT_MAX, LANE_SIZE_MIN
from shmbroker.shm.doorbell import EventDoorbell
from shmbroker.shm.lane import LaneClient, LaneServer, close_lane, create_lane
from shmbroker.shm.region import Region

SIZES = st.one_of(
    st.integers(0, 64), st.integers(0, 4_000), st.integers(20_000, LANE_SIZE_MIN // 2 - 32), st.just(LANE_SIZE_MIN // 8)
)
U64 = st.integers(0, 2**64 - 1)
NONZERO = 0x8080808080808080
"""No byte of a body is zero, so that padding that was not zeroed shows."""


class LaneMachine(RuleBasedStateMachine):
    """The model: what was offered, what was drained, what was completed, as lists of tuples."""

    @initialize()
    def start(self) -> None:
        region = create_lane(LANE_SIZE_MIN, 9)
        self.doorbell, self.bell = EventDoorbell.create(), EventDoorbell.create()
        self.server = LaneServer(Region.attach(os.dup(region.fd)), self.bell)
        self.client = LaneClient(region, self.doorbell)
        self.number = 0
        self.offered: deque[tuple[int, int, int, int, int, bytes]] = deque()
        self.drained: deque[int] = deque()
        self.completed: list[tuple[int, int, int, int, int]] = []
        self.published: list[tuple[int, int, int, int, int]] = []
        self.place = 0  # in the ring, of the next request
        self.sizes: deque[int] = deque()  # of the requests not drained, each with the skip before it
        self.size_drained = 0
        self.size_held = 0  # not released

    @rule(kind=st.integers(2, 7), flags=st.integers(0, 2**16 - 1), log_id=U64, argument=U64, size=SIZES, cut=U64)
    def offer(self, kind: int, flags: int, log_id: int, argument: int, size: int, cut: int) -> None:
        number = self.number + 1
        body = ((number | NONZERO).to_bytes(8, "little") * (size // 8 + 1))[:size]
        middle = cut % (size + 1)
        length = 32 + (size + 7 & ~7)
        accepted = self.client.offer(
            kind, flags, number, log_id, argument, [body[:middle], memoryview(body)[middle:]], size
        )
        gap = LANE_SIZE_MIN - self.place
        needed = length if length <= gap else gap + length
        assert accepted == (self.size_held + needed <= LANE_SIZE_MIN and self.in_flight < LANE_IN_FLIGHT_MAX)
        if accepted:
            self.number = number
            self.place = self.place + length if length <= gap else length
            self.size_held += needed
            self.sizes.append(needed)
            self.offered.append((kind, flags, number, log_id, argument, body + bytes(-size % 8)))

    @property
    def in_flight(self) -> int:
        return len(self.offered) + len(self.drained) + len(self.completed) + len(self.published)

    @rule(count=st.integers(1, LANE_IN_FLIGHT_MAX))
    def offer_many_small(self, count: int) -> None:
        for _ in range(count):
            self.offer(2, 0, 3, 4, 8, 5)

    @rule(limit=st.integers(1, 1_200))
    def drain(self, limit: int) -> None:
        requests = self.server.drain(limit)
        assert len(requests) == min(limit, len(self.offered))
        for kind, flags, number, log_id, argument, body in requests:
            assert (kind, flags, number, log_id, argument, bytes(body)) == self.offered.popleft()
            self.drained.append(number)
            self.size_drained += self.sizes.popleft()

    @rule()
    def release(self) -> None:
        self.server.release()
        self.size_held -= self.size_drained
        self.size_drained = 0

    @precondition(lambda self: self.drained)
    @rule(count=st.integers(1, 1_100), status=st.integers(0, 2**32 - 1), value=U64, newest_first=st.booleans())
    def complete(self, count: int, status: int, value: int, newest_first: bool) -> None:
        for _ in range(min(count, len(self.drained))):
            number = self.drained.pop() if newest_first else self.drained.popleft()
            completion = (number, status, 2**32 - 1 - status, value, number * 3)
            self.server.complete(*completion)
            self.completed.append(completion)

    @rule()
    def publish(self) -> None:
        assert self.server.publish() is bool(self.completed)
        assert self.bell.wait(0) is bool(self.completed)
        self.published += self.completed
        self.completed.clear()

    @rule()
    def take_completions(self) -> None:
        assert self.client.completions() == self.published
        self.published.clear()

    @invariant()
    def counts_agree(self) -> None:
        if hasattr(self, "client"):
            assert self.client.in_flight_count == self.in_flight

    def teardown(self) -> None:
        if hasattr(self, "client"):
            self.server.close(8)
            self.client.close()
            self.bell.close()
            self.doorbell.close()


LaneMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
test_a_lane_behaves_like_a_list = LaneMachine.TestCase


@pytest.fixture
def pair() -> tuple[LaneClient, LaneServer, Region]:
    region = create_lane(LANE_SIZE_MIN, 77)
    doorbell = EventDoorbell.create()
    return LaneClient(region, doorbell), LaneServer(Region.attach(os.dup(region.fd)), doorbell), region


def test_the_gap_at_the_end_may_be_any_multiple_of_eight(pair: tuple[LaneClient, LaneServer, Region]) -> None:
    client, server, _ = pair
    number = wraps = 0
    for gap in range(0, 200, 8):
        place = server._index
        fill = LANE_SIZE_MIN - place - gap
        for length in (fill // 2 & ~7, fill - (fill // 2 & ~7), 64):
            number += 1
            body = bytes([number % 256]) * (length - 32)
            assert client.offer(2, 0, number, 1, 0, [body], len(body))
            [request] = server.drain()
            assert request[2] == number
            assert bytes(request[5]) == body
            server.complete(number, 0, 0, 0, 0)
            del request
            server.release()
        wraps += 1
        server.publish()
        assert len(client.completions()) == 3
    assert wraps == 25


def test_the_largest_body_fits_wherever_the_end_is_and_a_larger_one_is_refused(
    pair: tuple[LaneClient, LaneServer, Region],
) -> None:
    client, server, _ = pair
    body = bytes(client.body_length_max)
    for number in range(1, 200):
        assert client.offer(2, 0, 2 * number, 1, 0, [bytes(8 * (number % 50))], 8 * (number % 50))
        server.drain()
        server.release()
        assert client.offer(2, 0, 2 * number + 1, 1, 0, [body], len(body))
        assert len(server.drain()) == 1
        server.release()
        server.complete(1, 0, 0, 0, 0)
        server.complete(2, 0, 0, 0, 0)
        server.publish()
        client.completions()
    with pytest.raises(BatchTooLarge):
        client.offer(2, 0, 1, 1, 0, [body, b"x"], len(body) + 1)


def test_a_ring_is_full_to_the_byte(pair: tuple[LaneClient, LaneServer, Region]) -> None:
    client, server, _ = pair
    number = 0

    def offer(length: int) -> bool:
        nonlocal number
        number += 1
        return client.offer(2, 0, number, 1, 0, [bytes(length - 32)], length - 32)

    assert offer(4_096)
    server.drain()
    server.release()
    for _ in range(15):
        assert offer(4_096)
    assert offer(4_096 - 32)  # wrapped: 32 bytes are left before the first request that is held
    assert not offer(40)
    assert offer(32)
    assert not offer(32)
    assert len(server.drain()) == 17
    server.release()
    assert offer(4_096)


def test_buffers_that_do_not_add_up_publish_nothing(pair: tuple[LaneClient, LaneServer, Region]) -> None:
    client, server, _ = pair
    for body_length in (15, 17, 24):
        with pytest.raises(AssertionError, match="the buffers add up to 16 bytes"):
            client.offer(2, 0, 1, 1, 0, [bytes(16)], body_length)
    assert server.drain() == []


def test_a_closed_lane_says_why_and_still_hands_out_what_was_completed(
    pair: tuple[LaneClient, LaneServer, Region],
) -> None:
    client, server, _ = pair
    assert client.closed == 0
    assert client.offer(2, 0, 1, 1, 0, [b""], 0)
    server.drain()
    server.complete(1, 5, 6, 7, 8)
    server.close(20_008)
    assert client.closed == 20_008
    assert client.completions() == [(1, 5, 6, 7, 8)]


def test_the_front_closes_the_lane_of_a_dead_worker(pair: tuple[LaneClient, LaneServer, Region]) -> None:
    client, _, region = pair
    close_lane(region, 20_009)
    assert client.closed == region.words[WORD_CLOSED] == 20_009


def test_rule_07_a_used_lane_is_never_taken_by_another_client(pair: tuple[LaneClient, LaneServer, Region]) -> None:
    client, _, region = pair
    client.offer(2, 0, 1, 1, 0, [b""], 0)
    with pytest.raises(LaneBroken, match="another client"):
        LaneClient(region, EventDoorbell.create())
