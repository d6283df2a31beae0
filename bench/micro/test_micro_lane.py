"""What a lane costs: an offer, a drain, a completion, and a request's whole way with both ends in one process.

Run: ``pytest bench/micro --benchmark-enable``. Figures are of a group; divide by its count (in the name).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from shmbroker.limits import LANE_SIZE_DEFAULT
from shmbroker.shm.doorbell import EventDoorbell
from shmbroker.shm.lane import LaneClient, LaneServer, Request, create_lane
from shmbroker.shm.region import Region

Ends = tuple[LaneClient, LaneServer]
HEADER, CONTENT = bytes(256), bytes(144)
"""A record of one message of about 100 B, in the two parts that the encoder gives."""
LENGTH = len(HEADER) + len(CONTENT)


@pytest.fixture
def ends() -> Iterator[Ends]:
    region = create_lane(LANE_SIZE_DEFAULT, 1)
    doorbell = EventDoorbell.create()
    client, server = LaneClient(region, doorbell), LaneServer(Region.attach(os.dup(region.fd)), doorbell)
    yield client, server
    server.close(8)
    client.close()
    doorbell.close()


def offer(client: LaneClient, count: int) -> None:
    for number in range(1, count + 1):
        if not client.offer(2, 0, number, 7, 0, (HEADER, CONTENT), LENGTH):
            raise AssertionError("full")


def answer(server: LaneServer, requests: list[Request]) -> None:
    for _, _, number, _, _, _ in requests:
        server.complete(number, 0, 0, 1, 1)


@pytest.mark.parametrize("count", [1, 64, 512])
def test_offer(benchmark: Any, ends: Ends, count: int) -> None:
    client, server = ends

    def empty() -> None:
        answer(server, server.drain())
        server.release()
        server.publish()
        client.completions()

    benchmark.pedantic(lambda: offer(client, count), setup=empty, rounds=500)


@pytest.mark.parametrize("count", [1, 64, 512])
def test_drain(benchmark: Any, ends: Ends, count: int) -> None:
    client, server = ends

    def fill() -> None:
        server.release()
        server.publish()
        client.completions()
        offer(client, count)

    def drain() -> None:
        requests = server.drain()
        assert len(requests) == count
        taken.append(requests)

    taken: list[list[Request]] = []

    def settle() -> None:
        for requests in taken:
            answer(server, requests)
        taken.clear()
        fill()

    benchmark.pedantic(drain, setup=settle, rounds=500)


@pytest.mark.parametrize("count", [1, 64, 512])
def test_complete_and_publish(benchmark: Any, ends: Ends, count: int) -> None:
    client, server = ends
    taken: list[Request] = []

    def fill() -> None:
        client.completions()
        offer(client, count)
        taken[:] = server.drain()
        server.release()

    def complete() -> None:
        answer(server, taken)
        server.publish()

    benchmark.pedantic(complete, setup=fill, rounds=500)


@pytest.mark.parametrize("count", [1, 64, 512])
def test_there_and_back(benchmark: Any, ends: Ends, count: int) -> None:
    """Everything that the two processes do for a request, bells included, but the waiting."""
    client, server = ends

    def there_and_back() -> int:
        offer(client, count)
        client.ring()
        answer(server, server.drain())
        server.release()
        server.publish()
        return len(client.completions())

    assert benchmark(there_and_back) == count


def test_drain_of_an_idle_lane(benchmark: Any, ends: Ends) -> None:
    """What each lane without work costs a pass of the worker."""
    assert benchmark(ends[1].drain) == []


@pytest.mark.parametrize("size", [4_096, 140_000, 1_000_000])
def test_offer_and_drain_of_a_large_record(benchmark: Any, ends: Ends, size: int) -> None:
    """The copy of the record into the lane, which is the only one that the client makes."""
    client, server = ends
    body = (HEADER, bytes(size))

    def pass_one() -> None:
        client.offer(2, 0, 1, 7, 0, body, 256 + size)
        answer(server, server.drain())
        server.release()
        server.publish()
        client.completions()

    benchmark(pass_one)
