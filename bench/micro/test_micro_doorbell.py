"""What a word and a doorbell cost, beside the POSIX semaphore and the eventfd that doorbells are not."""

from __future__ import annotations

import os
import secrets
from typing import Any

import posix_ipc

from shmbroker.shm import words as shared
from shmbroker.shm.doorbell import EventDoorbell
from shmbroker.shm.region import Region


def test_load_and_store_a_word_by_call(benchmark: Any) -> None:
    words = Region.create(4_096).words
    load, store = shared.load, shared.store

    def both() -> int:
        store(words, 16, 5)
        return load(words, 16)

    assert benchmark(both) == 5


def test_load_and_store_a_word_by_item(benchmark: Any) -> None:
    words = Region.create(4_096).words

    def both() -> int:
        words[16] = 5
        return int(words[16])

    assert benchmark(both) == 5


def test_ring_and_drain_a_doorbell(benchmark: Any) -> None:
    bell = EventDoorbell.create()

    def both() -> None:
        bell.ring()
        bell.drain()

    benchmark(both)
    bell.close()


def test_ring_and_wait_for_a_doorbell(benchmark: Any) -> None:
    bell = EventDoorbell.create()

    def both() -> bool:
        bell.ring()
        return bell.wait(1.0)

    assert benchmark(both)
    bell.close()


def test_post_and_wait_for_a_semaphore(benchmark: Any) -> None:
    name = f"/shmbroker-bench-{secrets.token_hex(8)}"
    semaphore = posix_ipc.Semaphore(name, posix_ipc.O_CREX, 0o600, 0)
    semaphore.unlink()

    def both() -> None:
        semaphore.release()
        semaphore.acquire(1.0)

    benchmark(both)
    semaphore.close()


def test_write_and_read_an_eventfd(benchmark: Any) -> None:
    fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def both() -> int:
        os.eventfd_write(fd, 1)
        return os.eventfd_read(fd)

    assert benchmark(both) == 1
    os.close(fd)
