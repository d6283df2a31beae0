"""Doorbells: no ring is lost, none blocks, no hostile client reaches through them, no name is left."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import posix_ipc
import pytest

from shmbroker.errors import Unavailable
from shmbroker.shm.doorbell import (
    WAIT_S_MAX,
    EventDoorbell,
    NamedDoorbell,
    path_of,
    sweep_names,
    unlink_name,
)

from .conftest import Peer

Bell = EventDoorbell | NamedDoorbell
StartPeer = Callable[..., Peer]
MOMENT_S = 0.01


@pytest.fixture(params=["event", "named"])
def pair(request: pytest.FixtureRequest, prefix: str) -> Iterator[tuple[Bell, Bell]]:
    """The same doorbell as its maker and as its receiver hold it."""
    made: Bell
    received: Bell
    if request.param == "event":
        made = EventDoorbell.create()
        received = EventDoorbell(os.dup(made.fd))
    else:
        made, name = NamedDoorbell.create_named(prefix)
        received = NamedDoorbell.open_named(name)
        unlink_name(name)
    yield made, received
    made.close()
    received.close()


# --- the contract of both kinds ---------------------------------------------------------------------------------------


def test_a_ring_before_the_wait_is_not_lost(pair: tuple[Bell, Bell]) -> None:
    ringer, waiter = pair
    assert waiter.wait(0) is False
    ringer.ring()
    assert waiter.wait(10) is True
    assert waiter.wait(MOMENT_S) is False


def test_rule_12_a_drain_goes_to_zero_whatever_the_count(pair: tuple[Bell, Bell]) -> None:
    ringer, waiter = pair
    for count in (0, 1, 511, 512, 513, 20_000):
        for _ in range(count):
            ringer.ring()
        waiter.drain()
        assert waiter.wait(0) is False, count


def test_rule_12_a_ring_between_drain_and_wait_ends_the_wait(pair: tuple[Bell, Bell]) -> None:
    ringer, waiter = pair
    for _ in range(3):
        ringer.ring()
        assert waiter.wait(10)
        ringer.ring()
        waiter.drain()
        ringer.ring()
        assert waiter.wait(10) is True


def test_a_ring_right_after_a_wait_may_be_drained_but_the_next_one_is_seen(pair: tuple[Bell, Bell]) -> None:
    """A drain right after a wait is free: what rings between the two costs one more scan, never one too few."""
    ringer, waiter = pair
    ringer.ring()
    assert waiter.wait(10)
    waiter.drain()
    assert waiter.wait(0) is False
    ringer.ring()
    waiter.drain()
    assert waiter.wait(0) is False


def test_rule_12_a_doorbell_that_is_full_counts_as_rung(pair: tuple[Bell, Bell]) -> None:
    ringer, waiter = pair
    for _ in range(70_000):
        ringer.ring()
    assert waiter.wait(0)
    waiter.drain()
    assert waiter.wait(0) is False
    ringer.ring()
    assert waiter.wait(10)


def test_a_closed_doorbell_leaves_the_others_theirs(pair: tuple[Bell, Bell]) -> None:
    ringer, waiter = pair
    ringer.close()
    ringer.close()
    assert waiter.wait(MOMENT_S) is False
    waiter.ring()
    assert waiter.wait(10)


def test_rule_15_a_waiting_reader_uses_no_processor(pair: tuple[Bell, Bell]) -> None:
    _, waiter = pair
    before_s = time.thread_time()
    for _ in range(5):
        waiter.drain()
        assert waiter.wait(WAIT_S_MAX) is False
    assert time.thread_time() - before_s < 5 * WAIT_S_MAX / 10


def test_an_event_loop_sees_it_readable(pair: tuple[Bell, Bell]) -> None:
    import asyncio

    ringer, waiter = pair

    async def watch() -> int:
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(waiter.fileno(), woken.set)
        loop.call_soon(ringer.ring)
        async with asyncio.timeout(20):
            await woken.wait()
        loop.remove_reader(waiter.fileno())
        waiter.drain()
        return 1

    assert asyncio.run(watch()) == 1
    assert waiter.wait(0) is False


def test_rule_15_no_ring_is_lost_between_two_processes(peer: StartPeer, shared_path: Path) -> None:
    ping = NamedDoorbell.create(str(shared_path / "ping"))
    pong = NamedDoorbell.create(str(shared_path / "pong"))
    other = peer("pong", shared_path / "ping", shared_path / "pong", 20_000)
    other.line()
    for number in range(20_000):
        ping.ring()
        assert pong.wait(30), f"ring {number} was lost: {other.process.poll()}"
    assert other.wait() == 0
    ping.close()
    pong.close()


# --- hostile clients --------------------------------------------------------------------------------------------------


def test_rule_12_a_client_that_harasses_a_doorbell_blocks_and_breaks_nobody(
    peer: StartPeer, bell: NamedDoorbell, shared_path: Path, seed: int
) -> None:
    hostile = peer("harass_doorbell", shared_path / "bell", seed)
    hostile.line()
    for _ in range(20_000):
        bell.ring()
        bell.drain()
        bell.wait(0)
    assert hostile.process.poll() is None
    hostile.kill()
    bell._take()
    bell.ring()
    assert bell.wait(10)


def test_rule_12_flags_that_a_client_sets_on_what_it_was_sent_do_not_reach_us(peer: StartPeer) -> None:
    bell = EventDoorbell.create()
    hostile = peer("unblock_descriptor", bell.fd, fds=(bell.fd,))
    assert hostile.line() == "full and blocking"
    for _ in range(3):
        bell.ring()  # would block for ever on the description that was sent
    assert os.get_blocking(bell.fd)
    hostile.tell()
    assert hostile.line() == "empty and blocking"
    bell.drain()
    assert bell.wait(0) is False
    bell.close()


@pytest.mark.parametrize("fault", ["scribbled", "cut"])
def test_a_semaphore_would_kill_whoever_touches_it_which_is_why_doorbells_are_none(
    fault: str, peer: StartPeer, prefix: str
) -> None:
    name = f"/{prefix}x"
    semaphore = posix_ipc.Semaphore(name, posix_ipc.O_CREX, 0o600, 0)
    victim = peer("post_semaphore", name)
    victim.line()
    if fault == "scribbled":
        assert peer("scribble_semaphore", name).line() == "scribbled"
    else:
        os.truncate(f"/dev/shm/sem.{prefix}x", 0)
    victim.tell()
    assert victim.wait() == (-signal.SIGABRT if fault == "scribbled" else -signal.SIGBUS)
    semaphore.unlink()


# --- names and files --------------------------------------------------------------------------------------------------


def test_no_name_is_left_after_the_handover(prefix: str) -> None:
    made, name = NamedDoorbell.create_named(prefix)
    received = NamedDoorbell.open_named(name)
    assert os.path.exists(path_of(name))
    unlink_name(name)
    unlink_name(name)
    assert not os.path.exists(path_of(name))
    with pytest.raises(FileNotFoundError):
        NamedDoorbell.open_named(name)
    made.ring()
    assert received.wait(10)
    made.close()
    received.close()


def test_the_names_that_a_killed_process_left_are_swept(peer: StartPeer, prefix: str) -> None:
    stranger, other_name = NamedDoorbell.create_named("other-" + prefix)
    left = peer("leave_name", prefix)
    name = left.line()
    left.kill()
    assert os.path.exists(path_of(name))
    assert sweep_names(prefix) == 1
    assert sweep_names(prefix) == 0
    assert not os.path.exists(path_of(name))
    assert os.path.exists(path_of(other_name))
    unlink_name(other_name)
    stranger.close()


def test_a_doorbell_whose_worker_was_replaced_is_gone_by_name_only(bell: NamedDoorbell, shared_path: Path) -> None:
    path = str(shared_path / "bell")
    held = NamedDoorbell.open(path)
    os.unlink(path)
    with pytest.raises(FileNotFoundError):
        NamedDoorbell.open(path)
    held.ring()
    assert bell.wait(10)
    held.close()


def test_a_path_that_is_taken_is_an_error(bell: NamedDoorbell, shared_path: Path) -> None:
    with pytest.raises(FileExistsError):
        NamedDoorbell.create(str(shared_path / "bell"))


def test_what_is_no_doorbell_is_refused(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    file = tmp_path / "file"
    file.write_bytes(b"")
    (tmp_path / "link").symlink_to(file)
    for path in (file, tmp_path / "link", tmp_path):
        with pytest.raises(Unavailable, match="doorbell"):
            NamedDoorbell.open(str(path))
    with pytest.raises(Unavailable, match="no doorbell"):
        EventDoorbell(os.open(file, os.O_RDONLY))
    with pytest.raises(Unavailable, match="no doorbell"):
        EventDoorbell(os.eventfd(0))
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_named_doorbell_is_for_its_owner_only(bell: NamedDoorbell, shared_path: Path) -> None:
    assert os.stat(shared_path / "bell").st_mode & 0o777 == 0o600


def test_descriptors_are_given_back() -> None:
    before = len(os.listdir("/proc/self/fd"))
    made = EventDoorbell.create()
    received = EventDoorbell(os.dup(made.fd))
    made.close_descriptor()
    made.ring()
    assert received.wait(10)
    made.close()
    received.close()
    assert len(os.listdir("/proc/self/fd")) == before
