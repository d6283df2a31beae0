"""Doorbells: how a process that waits for shared memory to change is woken.

A doorbell carries no information: it says *look again*. A waiter drains it, scans what it waits for, and only then
waits (rule 12); whoever changes something stores it first and rings after. Correctness never depends on the count:
every wait is bounded (WAIT_S_MAX, by its caller), and a wait that ran out is followed by a scan too. So a bell that a
client scribbled on, flooded or silenced costs time and nothing else.

Two kinds. Processes wait on a POSIX semaphore: ringing costs 0.1 us while nobody sleeps, is a full memory barrier and
cannot lose a wake-up. Event loops wait on an eventfd (a system call, 0.5 us).

Names. A semaphore is a small file in /dev/shm, and glibc opens it by name only. So a name is random, exists for the
moment of the handover, and is then unlinked; the memory lives on in whoever opened it. A doorbell that more clients are
to open later is kept as a hard link in a directory of ours (0700) on the same file system: to open it, link it to a
random name, open that, unlink it. What SIGKILL leaves in that moment is found by its prefix (:func:`sweep_names`).

What a client can do to a semaphore that it may write: any of its 32 bytes. The value can lie (a flood: the waiter scans
more often than it needs; 2^31 - 1 and more: ringing reports EOVERFLOW, which counts as rung), the count of waiters can
lie (the ring wakes nobody: the bounded wait does). It could also cut the file, which kills (SIGBUS) whoever touches the
semaphore next; but whoever may open it has the broker's uid and could kill it outright.
"""

from __future__ import annotations

import errno
import os
import secrets
import select
from contextlib import suppress
from typing import Final, Protocol

import posix_ipc

from shmbroker.limits import DOORBELL_WAIT_MS_MAX

SEMAPHORE_DIRECTORY: Final = "/dev/shm"
SEMAPHORE_FILE_PREFIX: Final = "sem."
"""What glibc puts before the name."""
DRAIN_COUNT_MAX: Final = 4_096
"""Rings that one drain forgets, 0.1 us each. More remain only where a client floods: they cost a scan each."""
WAIT_S_MAX: Final = DOORBELL_WAIT_MS_MAX / 1_000


class Doorbell(Protocol):
    """What rings and what waits. One waiter, any number of ringers."""

    def ring(self) -> None:
        """Wakes the waiter, now or at its next wait. Never blocks, never fails for being full."""

    def wait(self, timeout_s: float) -> bool:
        """Waits until rung, at most ``timeout_s``. False where the time ran out. Either way: scan."""

    def drain(self) -> None:
        """Forgets the rings so far. Before the scan, never after it."""

    def close(self) -> None:
        """Gives up this process's hold."""


class SemaphoreDoorbell:
    """A doorbell between processes. Waiting blocks the thread (other threads run)."""

    def __init__(self, semaphore: posix_ipc.Semaphore) -> None:
        """Use :meth:`create`, :meth:`open`, :meth:`create_named` or :meth:`open_named`."""
        self._semaphore = semaphore

    @classmethod
    def create(cls, link_path: str, prefix: str) -> SemaphoreDoorbell:
        """A new doorbell that others open by ``link_path``, a path on the file system of /dev/shm that is free.

        Raises FileExistsError where the path is taken, OSError (EXDEV) where it is on another file system.
        """
        bell, name = cls.create_named(prefix)
        try:
            os.link(path_of(name), link_path)
        except OSError:
            bell.close()
            raise
        finally:
            unlink_name(name)
        return bell

    @classmethod
    def open(cls, link_path: str, prefix: str) -> SemaphoreDoorbell:
        """Opens the doorbell at ``link_path``. Raises FileNotFoundError where it is gone (its worker was replaced)."""
        name = prefix + secrets.token_hex(8)
        os.link(link_path, path_of(name))
        try:
            return cls.open_named(name)
        finally:
            unlink_name(name)

    @classmethod
    def create_named(cls, prefix: str) -> tuple[SemaphoreDoorbell, str]:
        """A new doorbell and the name by which others open it, until :func:`unlink_name`."""
        name = prefix + secrets.token_hex(8)
        return cls(posix_ipc.Semaphore("/" + name, posix_ipc.O_CREX, 0o600, 0)), name

    @classmethod
    def open_named(cls, name: str) -> SemaphoreDoorbell:
        """Opens the doorbell of this name. Raises FileNotFoundError where there is none."""
        try:
            return cls(posix_ipc.Semaphore("/" + name))
        except posix_ipc.ExistentialError as error:
            raise FileNotFoundError(f"no doorbell of name {name}") from error

    def ring(self) -> None:
        """Wakes the waiter. A semaphore that is full (EOVERFLOW) has been rung more than enough."""
        try:
            self._semaphore.release()
        except OSError as error:
            if error.errno != errno.EOVERFLOW:
                raise

    def wait(self, timeout_s: float) -> bool:
        """Waits until rung, at most ``timeout_s`` by the wall clock, which is what sem_timedwait goes by."""
        try:
            self._semaphore.acquire(timeout_s)
        except (posix_ipc.BusyError, posix_ipc.SignalError):
            return False
        return True

    def drain(self) -> None:
        """Takes the semaphore to zero, or DRAIN_COUNT_MAX lower."""
        semaphore = self._semaphore
        count = semaphore.value
        if not count:
            return
        acquire = semaphore.acquire
        try:
            for _ in range(min(count, DRAIN_COUNT_MAX)):
                acquire(0)
        except (posix_ipc.BusyError, posix_ipc.SignalError):
            pass  # a scribbler took it to zero first

    def close(self) -> None:
        """Unmaps the semaphore."""
        self._semaphore.close()


class EventDoorbell:
    """A doorbell for an event loop: an eventfd that is readable once rung. Travels as a descriptor."""

    def __init__(self, fd: int) -> None:
        """Takes ``fd`` over."""
        self.fd = fd
        os.set_blocking(fd, False)

    @classmethod
    def create(cls) -> EventDoorbell:
        """A new one, not inherited by child processes."""
        return cls(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))

    def fileno(self) -> int:
        return self.fd

    def ring(self) -> None:
        """Makes it readable. One that is full has been rung more than enough."""
        with suppress(BlockingIOError):
            os.eventfd_write(self.fd, 1)

    def wait(self, timeout_s: float) -> bool:
        """For threads; a loop watches ``fd``. Takes all rings so far where it returns True."""
        waiter = select.poll()
        waiter.register(self.fd, select.POLLIN)
        if not waiter.poll(timeout_s * 1_000):
            return False
        self.drain()
        return True

    def drain(self) -> None:
        """Makes it unreadable."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.fd)

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def path_of(name: str) -> str:
    """Where a semaphore of this name is."""
    return f"{SEMAPHORE_DIRECTORY}/{SEMAPHORE_FILE_PREFIX}{name}"


def unlink_name(name: str) -> None:
    """Takes a name away. Whoever holds the doorbell keeps it. A name that is gone already is fine."""
    with suppress(FileNotFoundError):
        os.unlink(path_of(name))


def sweep_names(prefix: str) -> int:
    """Takes away every name that starts with ``prefix``: what a killed process left in a handover. Returns how many."""
    assert prefix, "an empty prefix is everybody's"
    start = SEMAPHORE_FILE_PREFIX + prefix
    names = [name for name in os.listdir(SEMAPHORE_DIRECTORY) if name.startswith(start)]
    for name in names:
        unlink_name(name.removeprefix(SEMAPHORE_FILE_PREFIX))
    return len(names)
