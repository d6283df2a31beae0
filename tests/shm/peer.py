"""The other process of the tests beside it: ``python peer.py WHAT ARGUMENTS``. Reads a line where it must wait for the
test, prints a line where the test must wait for it. Ends when its standard input does."""

from __future__ import annotations

import fcntl
import os
import random
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress

import posix_ipc
from xxhash import xxh3_64_intdigest

from shmbroker.formats.lane import WORD_REQUEST_HEAD, WORD_REQUEST_TAIL
from shmbroker.shm import words as shared
from shmbroker.shm.doorbell import NamedDoorbell
from shmbroker.shm.lane import LaneClient, LaneServer
from shmbroker.shm.liveness import FileLock
from shmbroker.shm.region import Region

PATTERNS = (0x1111111111111111, 0xEEEEEEEEEEEEEEEE)
WORD_UNDER_TEST = 64
WORD_STOP = 80
BLOCK = random.Random(7).randbytes(200_000)
SECONDS_MAX = 60.0


def say(text: str) -> None:
    print(text, flush=True)


def body_of(number: int) -> bytes:
    """The body of request ``number``: what either process can compute."""
    size = (number * 2_654_435_761) % 397
    if number % 997 == 0:
        size *= 61
    start = (number * 31) % 100_000
    return BLOCK[start : start + size]


def wait_for_end() -> None:
    sys.stdin.read()


def store_words(fd: str) -> None:
    """Stores the two patterns alternately, the right way, until told to stop."""
    region = Region.attach(int(fd))
    words = region.words
    say("ready")
    deadline_s = time.monotonic() + SECONDS_MAX
    while not shared.load(words, WORD_STOP) and time.monotonic() < deadline_s:
        for _ in range(1_000):
            shared.store(words, WORD_UNDER_TEST, PATTERNS[0])
            shared.store(words, WORD_UNDER_TEST, PATTERNS[1])


def pack_words(fd: str) -> None:
    """The same with struct.pack_into: the wrong way."""
    region = Region.attach(int(fd))
    pack = struct.Struct("<Q").pack_into
    say("ready")
    deadline_s = time.monotonic() + SECONDS_MAX
    while not shared.load(region.words, WORD_STOP) and time.monotonic() < deadline_s:
        for _ in range(1_000):
            pack(region.view, WORD_UNDER_TEST * 8, PATTERNS[0])
            pack(region.view, WORD_UNDER_TEST * 8, PATTERNS[1])


def serve(fd: str, doorbell_path: str, completion_name: str) -> None:
    """A worker: checks every byte of every request and answers with its checksum, until its standard input ends."""
    doorbell = NamedDoorbell.open(doorbell_path)
    server = LaneServer(Region.attach(int(fd)), NamedDoorbell.open_named(completion_name))
    say("ready")
    parent = os.getppid()
    expected = 1
    while os.getppid() == parent:
        doorbell.drain()
        requests = server.drain()
        for kind, flags, number, log_id, argument, body in requests:
            content = body_of(number)
            right = (number, 2 + number % 6, number % 65_536, number * 3, number * 5)
            assert (expected, kind, flags, log_id, argument) == right, (expected, number)
            assert bytes(body) == content + bytes(-len(content) % 8), number
            server.complete(number, 0, len(content), xxh3_64_intdigest(content), number * 7)
            expected += 1
        del requests
        server.release()
        if not server.publish():
            doorbell.wait(0.1)


def offer_and_stay(fd: str, doorbell_path: str, count: str) -> None:
    """A client: publishes ``count`` requests and lives on until it is killed."""
    client = LaneClient(Region.attach(int(fd)), NamedDoorbell.open(doorbell_path))
    for number in range(1, int(count) + 1):
        body = body_of(number)
        assert client.offer(2, 0, number, 1, 0, [body], len(body))
    client.ring()
    say("offered")
    wait_for_end()


def offer_for_ever(fd: str, doorbell_path: str) -> None:
    """A client: offers one request after the other, as fast as the lane takes them, until it is killed."""
    client = LaneClient(Region.attach(int(fd)), NamedDoorbell.open(doorbell_path))
    say("ready")
    parent = os.getppid()
    number = 1
    while os.getppid() == parent:
        body = body_of(number)
        if client.offer(2, 0, number, number, 0, [body], len(body)):
            number += 1
        client.ring()
        client.completions()


def scribble_lane(fd: str, seed: str) -> None:
    """A hostile client: random bytes over requests, and heads that are now sound, now not, until told to stop."""
    region = Region.attach(int(fd))
    words, rng = region.words, random.Random(int(seed))
    say("ready")
    deadline_s = time.monotonic() + SECONDS_MAX
    while not shared.load(words, WORD_STOP) and time.monotonic() < deadline_s:
        tail = shared.load(words, WORD_REQUEST_TAIL)
        place = region.size - 65_536 + tail % 65_536
        for _ in range(20):
            length = rng.choice((32, 40, 64, 0, 8, 4_294_967_288, 65_536, rng.randrange(2**32)))
            start = max(0, min(place + 8 * rng.randrange(16), region.size - 32))
            region.view[start : start + 8] = struct.pack("<IHH", length, rng.randrange(9), 0)
            head = tail + rng.choice((32, 64, 128, 65_536, 65_544, 2**63, -8, 4))
            shared.store(words, WORD_REQUEST_HEAD, head % 2**64)


def harass_doorbell(path: str, seed: str) -> None:
    """A hostile client: floods a doorbell, empties it, changes every flag that it can, until stdin ends."""
    rng = random.Random(int(seed))
    fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    say("ready")
    parent = os.getppid()
    while os.getppid() == parent:
        fcntl.fcntl(fd, fcntl.F_SETFL, os.O_NONBLOCK | rng.choice((0, os.O_DIRECT, os.O_ASYNC)))
        with suppress(BlockingIOError):
            if rng.random() < 0.5:
                os.write(fd, bytes(rng.choice((1, 4_096, 65_536))))
            else:
                os.read(fd, 65_536)
        with suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, rng.choice((4_096, 65_536)))


def unblock_descriptor(fd: str) -> None:
    """A hostile client: makes the description that it was sent blocking, and fills the pipe behind it."""
    description = int(fd)
    with suppress(BlockingIOError):
        while True:
            os.write(description, bytes(4_096))
    fcntl.fcntl(description, fcntl.F_SETFL, 0)
    assert os.get_blocking(description)
    say("full and blocking")
    sys.stdin.readline()
    os.set_blocking(description, False)
    with suppress(BlockingIOError):
        while True:
            os.read(description, 65_536)
    fcntl.fcntl(description, fcntl.F_SETFL, 0)
    say("empty and blocking")
    wait_for_end()


def scribble_semaphore(name: str) -> None:
    """What a client could do to a POSIX semaphore, which is why doorbells are none."""
    semaphore = posix_ipc.Semaphore(name)
    fd = os.open(f"/dev/shm/sem.{name[1:]}", os.O_RDWR)
    os.pwrite(fd, b"\xff" * 32, 0)
    say("scribbled")
    os.close(fd)
    semaphore.close()


def post_semaphore(name: str) -> None:
    semaphore = posix_ipc.Semaphore(name)
    say("ready")
    sys.stdin.readline()
    for _ in range(3):
        semaphore.release()
    say("posted")


def pong(ping_path: str, pong_path: str, count: str) -> None:
    """Answers each ring of the first doorbell with one of the second."""
    ping, pong = NamedDoorbell.open(ping_path), NamedDoorbell.open(pong_path)
    say("ready")
    for _ in range(int(count)):
        if not ping.wait(SECONDS_MAX):
            raise SystemExit("a ring was lost")
        pong.ring()


def leave_name(prefix: str) -> None:
    """Makes a named doorbell and stays in the middle of the handover."""
    _, name = NamedDoorbell.create_named(prefix)
    say(name)
    wait_for_end()


def hold_lock(path: str) -> None:
    lock = FileLock.acquire(path)
    say("held")
    sys.stdin.readline()
    lock.release()
    say("released")
    wait_for_end()


def hold_descriptor() -> None:
    """Lives, and with it what it inherited."""
    say("ready")
    wait_for_end()


def cut(fd: str) -> None:
    """Tries what a client could try to pull the memory away. Says what the kernel answered."""
    region_fd = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
    for size in (0, 4_096, 1 << 30):
        try:
            os.ftruncate(region_fd, size)
            say(f"{size}: done")
        except PermissionError:
            say(f"{size}: refused")


ROLES: dict[str, Callable[..., None]] = {
    role.__name__: role
    for role in (
        *(
            store_words,
            pack_words,
            serve,
            offer_and_stay,
            offer_for_ever,
            scribble_lane,
            harass_doorbell,
            unblock_descriptor,
        ),
        *(scribble_semaphore, post_semaphore, pong, leave_name, hold_lock, hold_descriptor, cut),
    )
}

if __name__ == "__main__":
    ROLES[sys.argv[1]](*sys.argv[2:])
