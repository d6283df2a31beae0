"""A lane between two real processes: every byte of a few hundred thousand requests, and the death of either end."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from xxhash import xxh3_64_intdigest

from shmbroker.limits import LANE_SIZE_MIN, MIB
from shmbroker.shm.doorbell import WAIT_S_MAX, NamedDoorbell, unlink_name
from shmbroker.shm.lane import LaneClient, LaneServer, close_lane, create_lane
from shmbroker.shm.liveness import PipeWatch
from shmbroker.shm.region import Region

from .conftest import Peer
from .peer import body_of

REQUESTS = 200_000
GROUP = 2_000
StartPeer = Callable[..., Peer]


def check(completion: tuple[int, int, int, int, int], number: int) -> None:
    content = body_of(number)
    assert completion == (number, 0, len(content), xxh3_64_intdigest(content), number * 7)


@pytest.mark.parametrize("request_size", [LANE_SIZE_MIN, 1 * MIB])
def test_every_byte_of_many_requests_arrives_in_order(
    request_size: int, peer: StartPeer, bell: NamedDoorbell, prefix: str, shared_path: Path
) -> None:
    completion_bell, name = NamedDoorbell.create_named(prefix)
    region = create_lane(request_size, 3)
    server = peer("serve", region.fd, shared_path / "bell", name, fds=(region.fd,))
    server.line()
    unlink_name(name)
    client = LaneClient(region, bell)
    offered = completed = full = 0
    while completed < REQUESTS:
        for number in range(offered + 1, min(offered + GROUP, REQUESTS) + 1):
            body = body_of(number)
            if not client.offer(
                2 + number % 6, number % 65_536, number, number * 3, number * 5, [body[:3], body[3:]], len(body)
            ):
                full += 1
                break
            offered = number
        client.ring()
        completion_bell.drain()
        completions = client.completions()
        for completion in completions:
            completed += 1
            check(completion, completed)
        if not completions and (client.in_flight_count == offered - completed > 0):
            assert server.process.poll() is None, server.error()
            completion_bell.wait(WAIT_S_MAX)
    assert full > 0, "the ring was never full: wrap and refusal were not tried"
    completion_bell.close()


def test_what_a_killed_client_published_is_still_served(
    peer: StartPeer, bell: NamedDoorbell, prefix: str, shared_path: Path
) -> None:
    region = create_lane(1 * MIB, 3)
    client = peer("offer_and_stay", region.fd, shared_path / "bell", 300, fds=(region.fd,))
    server = LaneServer(Region.attach(os.dup(region.fd)), bell)
    assert client.line() == "offered"
    client.kill()
    assert bell.wait(10)
    requests = server.drain()
    assert [request[2] for request in requests] == list(range(1, 301))
    assert all(bytes(request[5]).startswith(body_of(request[2])) for request in requests)
    for request in requests:
        server.complete(request[2], 0, 0, 0, 0)
    server.release()
    assert server.publish()
    assert server.drain() == []


@pytest.mark.parametrize("passes", [1, 7, 60, 400])
def test_a_client_killed_in_the_middle_of_an_offer_leaves_whole_requests_only(
    passes: int, peer: StartPeer, bell: NamedDoorbell, shared_path: Path
) -> None:
    region = create_lane(LANE_SIZE_MIN, 3)
    server = LaneServer(Region.attach(os.dup(region.fd)), bell)
    client = peer("offer_for_ever", region.fd, shared_path / "bell", fds=(region.fd,))
    client.line()
    served = rounds = waits = 0
    while client.process.returncode is None or rounds < passes + 3:
        requests = server.drain()
        rounds += bool(requests) or rounds >= passes
        for kind, _, number, log_id, _, body in requests:
            served += 1
            content = body_of(number)
            assert (kind, number, log_id) == (2, served, served)
            assert bytes(body) == content + bytes(-len(content) % 8)
            server.complete(number, 0, 0, 0, 0)
        if not requests and rounds < passes:
            assert bell.wait(WAIT_S_MAX) or (waits := waits + 1) < 600, "the client offers nothing"
        del requests
        server.release()
        server.publish()
        if rounds == passes:
            client.kill()
    assert served >= passes
    assert server.drain() == []


def test_a_client_that_waits_for_a_killed_worker_is_told(
    peer: StartPeer, bell: NamedDoorbell, prefix: str, shared_path: Path
) -> None:
    """The front sees the worker's pipe end, closes the lane and rings; the client's bounded wait ends."""
    completion_bell, name = NamedDoorbell.create_named(prefix)
    region = create_lane(1 * MIB, 3)
    reading, writing = os.pipe()
    worker = peer("hold_descriptor", fds=(region.fd, writing))
    os.close(writing)
    worker.line()
    front_bell = NamedDoorbell.open_named(name)
    unlink_name(name)

    def close() -> None:
        close_lane(region, 20_009)
        front_bell.ring()

    watch = PipeWatch(reading, close)
    client = LaneClient(Region.attach(os.dup(region.fd)), bell)
    assert client.offer(2, 0, 1, 1, 0, [b"12345678"], 8)
    client.ring()
    killer = threading.Thread(target=worker.kill)
    waits = 0
    while not client.closed:
        assert waits < 600, "a dead worker was not noticed"
        completion_bell.wait(WAIT_S_MAX)
        waits += 1
        if waits == 1:
            killer.start()
    assert client.closed == 20_009
    assert client.completions() == []
    killer.join()
    watch.close()
    os.close(reading)
    completion_bell.close()
    front_bell.close()


def test_rule_12_requests_get_through_while_a_client_harasses_the_doorbell(
    peer: StartPeer, bell: NamedDoorbell, prefix: str, shared_path: Path, seed: int
) -> None:
    completion_bell, name = NamedDoorbell.create_named(prefix)
    region = create_lane(1 * MIB, 3)
    server = peer("serve", region.fd, shared_path / "bell", name, fds=(region.fd,))
    server.line()
    unlink_name(name)
    hostile = peer("harass_doorbell", shared_path / "bell", seed)
    hostile.line()
    client = LaneClient(region, bell)
    for number in range(1, 31):
        body = body_of(number)
        assert client.offer(2 + number % 6, number % 65_536, number, number * 3, number * 5, [body], len(body))
        client.ring()
        for _ in range(600):
            completions = client.completions()
            if completions:
                break
            assert server.process.poll() is None, server.error()
            completion_bell.wait(WAIT_S_MAX)
        [completion] = completions
        check(completion, number)
    assert hostile.process.poll() is None
    completion_bell.close()
