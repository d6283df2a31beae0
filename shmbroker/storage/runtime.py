"""The runtime directory: the shared memory of the partitions, as files that outlive every process of the broker.

Owns ``RUNTIME/logs``: for each incarnation of a log a control block ``{log_id}-{incarnation}.control`` and its rings
``{log_id}-{incarnation}.ring-{generation}``. Written by the worker that owns the partition, mapped by readers to read.

- A file appears under its name complete: it is made under another name, allocated to its last byte (a store into a
  sparse page of a full tmpfs kills the process with SIGBUS), then renamed.
- A control block's inode lives as long as its incarnation: ``create_control`` returns the one that is there, with what
  is in it (rule 14). It is never shortened.
- Nothing here is synchronised: it survives the processes and not the machine, and ``boot_id`` tells the two apart.

A control view is words (``cast("Q")``): one assignment of an item is one aligned move, as shm.words has it.
"""

from __future__ import annotations

import errno
import mmap
import os
from typing import Final, Protocol
from uuid import UUID

from shmbroker.errors import DiskFailed, NoSpace
from shmbroker.formats.control import CONTROL_SIZE
from shmbroker.limits import PAGE_SIZE
from shmbroker.paths import open_file
from shmbroker.storage.disk import DIRECTORY_MODE, FILE_MODE, NO_SPACE_ERRORS

LOGS_DIRECTORY: Final = "logs"
CONTROL_SUFFIX: Final = ".control"
RING_SUFFIX: Final = ".ring-"
UNFINISHED_SUFFIX: Final = ".new"
INCARNATION_SIZE: Final = 16
NO_MEMORY_ERRORS: Final = NO_SPACE_ERRORS | {errno.ENOMEM}


class Runtime(Protocol):
    """Shared memory for logs, each named by log id and incarnation (16 bytes)."""

    @property
    def boot_id(self) -> bytes:
        """16 bytes that change when the machine starts again."""

    def create_control(self, log_id: int, incarnation: bytes) -> memoryview:
        """The control block as 512 words: the one that is there, else a new one of zeros. Raises NoSpace."""

    def open_control(self, log_id: int, incarnation: bytes) -> memoryview | None:
        """The control block as 512 writable words, or None."""

    def create_ring(self, log_id: int, incarnation: bytes, generation: int, size: int) -> memoryview:
        """A new file of one header page and ``size`` bytes, zeros, page-aligned, all allocated; replaces one of the
        same generation. Raises NoSpace with nothing changed."""

    def open_ring(self, log_id: int, incarnation: bytes, generation: int) -> memoryview | None:
        """The whole file, header page first, writable; or None."""

    def remove_ring(self, log_id: int, incarnation: bytes, generation: int) -> None:
        """Unlinks it; mappings stay readable. One that is not there is fine."""

    def remove_control(self, log_id: int, incarnation: bytes) -> None:
        """Unlinks it; mappings stay readable. One that is not there is fine."""

    def list_rings(self, log_id: int, incarnation: bytes) -> list[int]:
        """The generations that are there, ascending."""

    def list_logs(self, log_id: int | None = None) -> list[tuple[int, bytes]]:
        """(log id, incarnation) of everything that has a control block or a ring; of one log only where it is given."""

    def free_space(self) -> int:
        """Bytes that may still be allocated, roughly."""


def control_name(log_id: int, incarnation: bytes) -> str:
    assert len(incarnation) == INCARNATION_SIZE
    return f"{log_id}-{incarnation.hex()}{CONTROL_SUFFIX}"


def ring_name(log_id: int, incarnation: bytes, generation: int) -> str:
    assert len(incarnation) == INCARNATION_SIZE
    return f"{log_id}-{incarnation.hex()}{RING_SUFFIX}{generation}"


def parse_name(name: str) -> tuple[int, bytes, int | None] | None:
    """(log id, incarnation, generation; None for a control block) of a file name, or None for any other name."""
    log_text, dash, rest = name.partition("-")
    incarnation_text, kind = rest[: 2 * INCARNATION_SIZE], rest[2 * INCARNATION_SIZE :]
    if not dash or not _is_number(log_text) or len(incarnation_text) != 2 * INCARNATION_SIZE:
        return None
    try:
        incarnation = bytes.fromhex(incarnation_text)
    except ValueError:
        return None
    if len(incarnation) != INCARNATION_SIZE:
        return None
    if kind == CONTROL_SUFFIX:
        return int(log_text), incarnation, None
    if kind.startswith(RING_SUFFIX) and _is_number(kind[len(RING_SUFFIX) :]):
        return int(log_text), incarnation, int(kind[len(RING_SUFFIX) :])
    return None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def boot_id_of_kernel() -> bytes:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return UUID(file.read().strip()).bytes


class RuntimeDirectory:
    """The real runtime directory. ``path`` exists; ``logs`` is made in it."""

    def __init__(self, path: str) -> None:
        self.boot_id = boot_id_of_kernel()
        self.directory = os.path.join(path, LOGS_DIRECTORY)
        os.makedirs(self.directory, DIRECTORY_MODE, exist_ok=True)

    def create_control(self, log_id: int, incarnation: bytes) -> memoryview:
        existing = self.open_control(log_id, incarnation)
        if existing is not None:
            return existing
        return self._create(control_name(log_id, incarnation), CONTROL_SIZE).cast("Q")

    def open_control(self, log_id: int, incarnation: bytes) -> memoryview | None:
        view = self._open(control_name(log_id, incarnation))
        return None if view is None or len(view) != CONTROL_SIZE else view.cast("Q")

    def create_ring(self, log_id: int, incarnation: bytes, generation: int, size: int) -> memoryview:
        assert size > 0
        assert size % PAGE_SIZE == 0
        return self._create(ring_name(log_id, incarnation, generation), PAGE_SIZE + size)

    def open_ring(self, log_id: int, incarnation: bytes, generation: int) -> memoryview | None:
        view = self._open(ring_name(log_id, incarnation, generation))
        return None if view is None or len(view) <= PAGE_SIZE else view

    def remove_ring(self, log_id: int, incarnation: bytes, generation: int) -> None:
        self._remove(ring_name(log_id, incarnation, generation))

    def remove_control(self, log_id: int, incarnation: bytes) -> None:
        self._remove(control_name(log_id, incarnation))

    def list_rings(self, log_id: int, incarnation: bytes) -> list[int]:
        prefix = f"{log_id}-{incarnation.hex()}{RING_SUFFIX}"
        names = (name for name in os.listdir(self.directory) if name.startswith(prefix))
        return sorted(int(name[len(prefix) :]) for name in names if _is_number(name[len(prefix) :]))

    def list_logs(self, log_id: int | None = None) -> list[tuple[int, bytes]]:
        # Names are only taken apart where they matter: each of a thousand partitions asks for its own at the start.
        prefix = "" if log_id is None else f"{log_id}-"
        parsed = (parse_name(name) for name in os.listdir(self.directory) if name.startswith(prefix))
        return sorted({(found[0], found[1]) for found in parsed if found is not None})

    def free_space(self) -> int:
        status = os.statvfs(self.directory)
        return status.f_bavail * status.f_frsize

    def _create(self, name: str, size: int) -> memoryview:
        path = os.path.join(self.directory, name)
        unfinished = path + UNFINISHED_SUFFIX
        try:
            fd = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
            try:
                os.posix_fallocate(fd, 0, size)
                mapping = mmap.mmap(fd, size)
                os.rename(unfinished, path)
            finally:
                os.close(fd)
        except OSError as error:
            self._remove(name + UNFINISHED_SUFFIX)
            kind = NoSpace if error.errno in NO_MEMORY_ERRORS else DiskFailed
            raise kind(f"{path}: cannot allocate {size} bytes of shared memory: {error.strerror}") from error
        return memoryview(mapping)

    def _open(self, name: str) -> memoryview | None:
        path = os.path.join(self.directory, name)
        try:
            fd = open_file(path, os.O_RDWR)
        except FileNotFoundError:
            return None
        try:
            size = os.fstat(fd).st_size
            return memoryview(mmap.mmap(fd, size)) if size else None
        finally:
            os.close(fd)

    def _remove(self, name: str) -> None:
        try:
            os.unlink(os.path.join(self.directory, name))
        except FileNotFoundError:
            return
