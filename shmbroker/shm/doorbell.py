"""Doorbells: how a process that waits for shared memory to change is woken.

A doorbell carries no information: it says *look again*. A waiter drains it, scans what it waits for, and only then
waits (rule 12); whoever changes something stores it first and rings after (the system call is a full memory barrier).
Correctness never depends on the count: every wait is bounded (WAIT_S_MAX, by its caller), and a wait that ran out is
followed by a scan too. So a bell that a client flooded, emptied or silenced costs time and nothing else.

A doorbell is a pipe, of which every process has an open file description **of its own**: a ring is one byte written, a
full pipe has been rung more than enough, draining reads. Threads wait with poll, event loops watch its descriptor.

Why a pipe. A POSIX semaphore rings in 0.05 us instead of 0.25 and its ping-pong takes 2.6 us instead of 5.9 where both
processes share a core (bench.machine measures both), but it is memory that the client writes: one that scribbled on the
word that glibc calls "private" made the next sem_post and sem_wait of every other process abort ("The futex facility
returned an unexpected error code"), and one that cut the file killed them with SIGBUS. An eventfd (0.2 us, 3.7 us)
cannot be opened twice: its one description is shared by whoever holds it, and a client that clears O_NONBLOCK there and
fills the counter makes the worker block in its next ring. A pipe can be opened again, through /proc/self/fd or by its
path, and then no flag that a client sets reaches us.

Two ways to hand one over: :class:`EventDoorbell` has no name and travels as a descriptor (SCM_RIGHTS);
:class:`NamedDoorbell` is a FIFO that others open by its path. A name given only for a handover is unlinked after it;
what SIGKILL leaves in that moment is found by its prefix (:func:`sweep_names`).
"""

from __future__ import annotations

import os
import secrets
import select
import stat
from contextlib import suppress
from typing import Final, Protocol

from shmbroker.errors import Unavailable
from shmbroker.limits import DOORBELL_WAIT_MS_MAX

NAMES_DIRECTORY: Final = "/dev/shm"
WAIT_S_MAX: Final = DOORBELL_WAIT_MS_MAX / 1_000
_READ_SIZE: Final = 512
_READ_COUNT_MAX: Final = 128
"""Reads of one drain: 64 KiB, a full pipe. What a client writes beyond it meanwhile costs a scan."""
_FLAGS: Final = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC


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


class _PipeDoorbell:
    """What both kinds share. ``_own`` is an open file description that no other process has."""

    def __init__(self, own: int) -> None:
        self._own = own
        self._taken = False
        """Whether a wait took the rings after the last scan: the drain before the next one has nothing to do."""
        self._waiter = select.poll()
        self._waiter.register(own, select.POLLIN)

    def fileno(self) -> int:
        """Readable once rung: for the event loop of the waiter. Not for handing over."""
        return self._own

    def ring(self) -> None:
        """Wakes the waiter. A pipe that is full has been rung more than enough."""
        try:  # noqa: SIM105 - contextlib.suppress costs more than the ring
            os.write(self._own, b"!")
        except BlockingIOError:
            pass

    def wait(self, timeout_s: float) -> bool:
        """Waits until rung, at most ``timeout_s`` (by the monotonic clock, in whole milliseconds)."""
        if not self._waiter.poll(timeout_s * 1_000):
            return False
        self._take()
        self._taken = True
        return True

    def drain(self) -> None:
        """Forgets the rings so far. Free right after a wait that was rung, which has taken them."""
        if self._taken:
            self._taken = False
        else:
            self._take()

    def _take(self) -> None:
        own = self._own
        try:
            for _ in range(_READ_COUNT_MAX):
                if len(os.read(own, _READ_SIZE)) < _READ_SIZE:
                    return
        except BlockingIOError:
            pass  # empty, or emptied by a client

    def close(self) -> None:
        """Gives up this process's hold. The others keep theirs."""
        own, self._own = self._own, -1
        if own >= 0:
            os.close(own)


class EventDoorbell(_PipeDoorbell):
    """A doorbell without a name. Its maker sends ``fd``, a description that it never uses itself."""

    def __init__(self, fd: int) -> None:
        """The doorbell behind a descriptor that was received: closes it. Raises Unavailable where it is no pipe."""
        self.fd = -1
        try:
            if not stat.S_ISFIFO(os.fstat(fd).st_mode):
                raise Unavailable(f"descriptor {fd} is no doorbell: not a pipe")
            super().__init__(os.open(f"/proc/self/fd/{fd}", _FLAGS))
        finally:
            os.close(fd)

    @classmethod
    def create(cls) -> EventDoorbell:
        """A new one, not inherited by programs that this process starts."""
        reading, writing = os.pipe2(os.O_CLOEXEC)
        os.close(writing)
        shared = os.open(f"/proc/self/fd/{reading}", _FLAGS)
        bell = cls(reading)
        bell.fd = shared
        return bell

    def close_descriptor(self) -> None:
        """Closes ``fd`` once it has been sent to everybody. The doorbell stays."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def close(self) -> None:
        """Gives up this process's hold, the descriptor to be sent included."""
        self.close_descriptor()
        super().close()


class NamedDoorbell(_PipeDoorbell):
    """A doorbell that others open by its path, or by a name that lives as long as a handover."""

    @classmethod
    def create(cls, path: str) -> NamedDoorbell:
        """A new doorbell at ``path``, which is free (FileExistsError) and in a directory of ours."""
        os.mkfifo(path, 0o600)
        return cls.open(path)

    @classmethod
    def open(cls, path: str) -> NamedDoorbell:
        """Opens the doorbell at ``path``.

        Raises FileNotFoundError where it is gone (its worker was replaced), Unavailable where it is something else.
        """
        try:
            own = os.open(path, _FLAGS | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise Unavailable(f"{path}: cannot be opened as a doorbell: {error.strerror}") from error
        if not stat.S_ISFIFO(os.fstat(own).st_mode):
            os.close(own)
            raise Unavailable(f"{path}: is no doorbell: not a pipe")
        return cls(own)

    @classmethod
    def create_named(cls, prefix: str) -> tuple[NamedDoorbell, str]:
        """A new doorbell and the name by which others open it, until :func:`unlink_name`."""
        name = prefix + secrets.token_hex(8)
        return cls.create(path_of(name)), name

    @classmethod
    def open_named(cls, name: str) -> NamedDoorbell:
        """Opens the doorbell of this name. Raises FileNotFoundError where there is none."""
        return cls.open(path_of(name))


def path_of(name: str) -> str:
    """Where the doorbell of this name is."""
    return f"{NAMES_DIRECTORY}/{name}"


def unlink_name(name: str) -> None:
    """Takes a name away. Whoever holds the doorbell keeps it. A name that is gone already is fine."""
    with suppress(FileNotFoundError):
        os.unlink(path_of(name))


def sweep_names(prefix: str) -> int:
    """Takes away every name that starts with ``prefix``: what a killed process left in a handover. Returns how many."""
    assert prefix, "an empty prefix is everybody's"
    names = [entry.name for entry in os.scandir(NAMES_DIRECTORY) if entry.name.startswith(prefix)]
    fifos = [name for name in names if stat.S_ISFIFO(os.lstat(path_of(name)).st_mode)]
    for name in fifos:
        unlink_name(name)
    return len(fifos)
