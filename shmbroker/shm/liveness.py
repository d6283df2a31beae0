"""Signs of life: a lock says that a process lives, the end of a pipe says that it died.

Neither is a number in a file: a process id may belong to somebody else by the time it is read. The kernel gives both
back at any death, SIGKILL included.

:class:`FileLock` is held by one process for its whole life (rule 1: one writer). The file is never removed: a lock on
an unlinked file protects nothing. The text in it is for people only.

:class:`PipeWatch` calls back when the other end of a pipe or socket is closed by everybody who held it. It
reads nothing.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import threading
import time
from collections.abc import Callable
from typing import Final

from shmbroker.errors import Unavailable

_RETRY_MS: Final = 10
_HOLDER: Final = re.compile("process ([1-9][0-9]{0,8})")
_HOLDER_SIZE_MAX: Final = 200


class FileLock:
    """An exclusive ``flock`` on a file, from :meth:`acquire` to :meth:`release` or the death of the process.

    The descriptor is not inherited by programs that this process starts.
    """

    def __init__(self, path: str, fd: int) -> None:
        """Use :meth:`acquire`."""
        self.path = path
        self._fd = fd

    @classmethod
    def acquire(cls, path: str, *, timeout_s: float = 0.2) -> FileLock:
        """Takes the lock, creating the file (0600) if need be.

        Tries for ``timeout_s``, so that somebody who only looks (:meth:`is_free`) is no obstacle. Raises Unavailable
        naming the holder where it is held, and the reason where the file cannot be opened.
        """
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        except OSError as error:
            raise Unavailable(f"{path}: cannot open the lock file: {error.strerror}") from error
        deadline_s = time.monotonic() + timeout_s
        try:
            while not _try_lock(fd):
                if time.monotonic() >= deadline_s:
                    raise Unavailable(f"{path}: held by {_holder_of(fd)}: one process at a time may have it")
                _await_holder(fd)
            os.pwrite(fd, f"process {os.getpid()}".ljust(31).encode("ascii") + b"\n", 0)
        except BaseException:
            os.close(fd)
            raise
        return cls(path, fd)

    @staticmethod
    def is_free(path: str) -> bool:
        """Whether nobody holds it at this moment. True where there is no such file."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return True
        try:
            return _try_lock(fd)
        finally:
            os.close(fd)

    @staticmethod
    def wait_free(path: str, timeout_s: float) -> bool:
        """Waits until nobody holds it, at most ``timeout_s``. False where the time ran out."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return True
        deadline_s = time.monotonic() + timeout_s
        try:
            while not _try_lock(fd):
                if time.monotonic() >= deadline_s:
                    return False
                _await_holder(fd)
            return True
        finally:
            os.close(fd)

    def release(self) -> None:
        """Gives it up. The file stays."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder_of(fd: int) -> str:
    text = os.pread(fd, _HOLDER_SIZE_MAX, 0).decode("ascii", "replace").strip()
    return text or "an unnamed process"


def _await_holder(fd: int) -> None:
    """Waits a moment: until the process that the file names has ended, at most RETRY_MS.

    Short, since the text may be out of date and the lock given up by a process that lives on.
    """
    waiter = select.poll()
    named = _HOLDER.fullmatch(_holder_of(fd))
    try:
        process = os.pidfd_open(int(named[1])) if named else -1
    except ProcessLookupError:
        process = -1
    try:
        if process >= 0:
            waiter.register(process, select.POLLIN)
        waiter.poll(_RETRY_MS)
    finally:
        if process >= 0:
            os.close(process)


class PipeWatch:
    """Calls ``on_end`` once, on a thread of its own, when the other end of ``fd`` is gone."""

    def __init__(self, fd: int, on_end: Callable[[], None]) -> None:
        """Starts watching. ``fd`` (the reading end of a pipe, or a socket) stays the caller's and open meanwhile."""
        self._fd = fd
        self._on_end = on_end
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._watch, name="pipe-watch", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        waiter = select.poll()
        waiter.register(self._fd, select.POLLRDHUP)  # POLLHUP and POLLERR are always reported
        waiter.register(self._stop, select.POLLIN)
        ready = dict(waiter.poll())
        if self._stop not in ready:
            self._on_end()

    def close(self) -> None:
        """Stops watching; no call comes after this returns. Not from within ``on_end``."""
        if self._stop < 0:
            return
        os.eventfd_write(self._stop, 1)
        self._thread.join()
        os.close(self._stop)
        self._stop = -1
