"""Where a broker lives: its data directory, its runtime directory, and the locks that make it the only one.

``DATA/broker.lock`` is held by the front for its whole life, ``DATA/worker-N.lock`` by each worker (rule 1): a front
that was killed may have left workers that are still answering their last group, so the next one waits for all of those
to be free before it reads anything. ``DATA/runtime`` names the runtime directory for clients and for whoever sweeps.

The runtime directory is on the file system of /dev/shm (doorbells are linked there and back), belongs to this user
alone (0700), and outlives the processes: it holds the rings. What else is in it from an earlier run is swept at start.
After a stop in which everything was written it is removed.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from xxhash import xxh3_64_hexdigest

from shmbroker.errors import InvalidConfiguration, Unavailable
from shmbroker.paths import RUNTIME_NAME_FILE, default_runtime
from shmbroker.shm.doorbell import NAMES_DIRECTORY, sweep_names
from shmbroker.shm.liveness import FileLock
from shmbroker.storage.runtime import LOGS_DIRECTORY, parse_name

BROKER_LOCK: Final = "broker.lock"
SOCKET_NAME: Final = "broker.sock"
DOORBELLS_DIRECTORY: Final = "doorbells"
PARTITIONS_DIRECTORY: Final = "partitions"
WORKER_LOCK_WAIT_S: Final = 30.0
"""A worker whose front died answers its group and exits: as long as its slowest write."""
SOCKET_PATH_SIZE_MAX: Final = 107
"""Of sun_path, without its end."""
PRIVATE_MODE: Final = 0o700


class Places:
    """The directories of this broker, held by its lock until :meth:`release`."""

    def __init__(self, data: str, runtime: str, lock: FileLock, *, made_runtime: bool) -> None:
        """Use :meth:`take`."""
        self.data = data
        self.runtime = runtime
        self._made_runtime = made_runtime
        self.socket_path = f"{runtime}/{SOCKET_NAME}"
        self.prefix = f"shmbroker-{xxh3_64_hexdigest(data.encode())}-"
        """How the names of all doorbells of this broker begin."""
        self._locks = [lock]

    @classmethod
    def take(cls, data: str, runtime: str | None) -> Places:
        """Makes what is missing, takes the lock, waits for workers of an earlier run, and sweeps.

        Raises Unavailable naming the holder where another broker has the directory, InvalidConfiguration where a
        directory cannot be used.
        """
        data = os.path.realpath(data)
        _make_data_directory(data)
        lock = _lock_broker(f"{data}/{BROKER_LOCK}", "data")
        try:
            _wait_for_workers(data)
            runtime = os.path.realpath(runtime) if runtime is not None else default_runtime(data)
            places = cls(data, runtime, lock, made_runtime=not os.path.lexists(runtime))
        except BaseException:
            lock.release()
            raise
        try:
            places._check_socket_path()
            _make_runtime_directory(runtime)
            # Two data directories may not share one: each would sweep what the other uses.
            places._locks.append(_lock_broker(f"{runtime}/{BROKER_LOCK}", "runtime"))
            places._write_runtime_name()
            places._sweep()
        except BaseException:
            places.discard_new_runtime()
            places.release()
            raise
        return places

    def journal_used(self) -> int:
        """Bytes of rings and control blocks that are there: taken over, or given back soon."""
        return sum(entry.stat().st_size for entry in os.scandir(f"{self.runtime}/{LOGS_DIRECTORY}"))

    def runtime_free(self) -> int:
        status = os.statvfs(self.runtime)
        return status.f_bavail * status.f_frsize

    def sweep_logs(self, known: Iterable[int]) -> int:
        """Removes the shared memory of logs that the catalog does not know. Returns how many files went."""
        keep = frozenset(known)
        directory = f"{self.runtime}/{LOGS_DIRECTORY}"
        count = 0
        for name in os.listdir(directory):
            parsed = parse_name(name)
            if parsed is None or parsed[0] not in keep:
                os.unlink(f"{directory}/{name}")
                count += 1
        return count

    def remove_runtime(self) -> None:
        """After a stop in which everything committed was written: nothing in it is of use to anybody.

        What is not ours in a directory that somebody named stays there, and the directory with it.
        """
        sweep_names(self.prefix)
        for name in (DOORBELLS_DIRECTORY, LOGS_DIRECTORY):
            shutil.rmtree(f"{self.runtime}/{name}")
        for name in (SOCKET_NAME, BROKER_LOCK):
            Path(self.runtime, name).unlink(missing_ok=True)
        if not os.listdir(self.runtime):
            os.rmdir(self.runtime)

    def discard_new_runtime(self) -> None:
        """After a start that failed: what it made in shared memory. No client was ever let in, so it holds nothing; one
        of an earlier run stays."""
        if self._made_runtime:
            shutil.rmtree(self.runtime, ignore_errors=True)

    def release(self) -> None:
        """Gives the directories to the next broker."""
        for lock in self._locks:
            lock.release()

    def _check_socket_path(self) -> None:
        size = len(os.fsencode(self.socket_path))
        if size > SOCKET_PATH_SIZE_MAX:
            raise InvalidConfiguration(
                f"{self.socket_path} has {size} bytes, a socket's path at most {SOCKET_PATH_SIZE_MAX}: name a shorter"
                " runtime directory"
            )

    def _write_runtime_name(self) -> None:
        path = f"{self.data}/{RUNTIME_NAME_FILE}"
        temporary = f"{path}.new"
        try:
            Path(temporary).unlink(missing_ok=True)  # it may be no file
            Path(temporary).write_text(self.runtime + "\n", encoding="utf-8")
            os.rename(temporary, path)
        except OSError as error:
            raise InvalidConfiguration(f"{path}: cannot be written: {error.strerror}") from error

    def _sweep(self) -> None:
        """What an earlier run left and nobody uses: this broker holds all locks."""
        sweep_names(self.prefix)
        doorbells = f"{self.runtime}/{DOORBELLS_DIRECTORY}"
        for name in os.listdir(doorbells):
            os.unlink(f"{doorbells}/{name}")
        Path(self.socket_path).unlink(missing_ok=True)


def _make_data_directory(data: str) -> None:
    try:
        os.makedirs(data, PRIVATE_MODE, exist_ok=True)
        partitions = f"{data}/{PARTITIONS_DIRECTORY}"
        if not os.path.isdir(partitions):
            os.mkdir(partitions, PRIVATE_MODE)
            _sync_directory(data)
            _sync_directory(os.path.dirname(data))
    except OSError as error:
        raise InvalidConfiguration(f"data directory {data}: {error.strerror}: {error.filename}") from error
    if not os.access(data, os.R_OK | os.W_OK | os.X_OK):
        is_sealed = os.statvfs(data).f_flag & os.ST_RDONLY
        reason = os.strerror(errno.EROFS) if is_sealed else f"not writable for user {os.getuid()}"
        raise InvalidConfiguration(f"data directory {data}: {reason}")


def _sync_directory(directory: str) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _lock_broker(path: str, kind: str) -> FileLock:
    try:
        return FileLock.acquire(path)
    except Unavailable as error:
        raise Unavailable(f"another broker has this {kind} directory: {error}") from error


def _wait_for_workers(data: str) -> None:
    """Rule 1: nothing is read while a worker of an earlier run may still write."""
    for name in sorted(os.listdir(data)):
        if name.startswith("worker-") and name.endswith(".lock"):
            path = f"{data}/{name}"
            if not FileLock.wait_free(path, WORKER_LOCK_WAIT_S):
                holder = Path(path).read_text(encoding="ascii", errors="replace").strip()
                raise Unavailable(
                    f"{path}: held by {holder}, a worker of an earlier run, after {WORKER_LOCK_WAIT_S:.0f} s: nothing"
                    " is read while it may still write; end it and start again"
                )


def _make_runtime_directory(runtime: str) -> None:
    try:
        os.makedirs(runtime, PRIVATE_MODE, exist_ok=True)
        status = os.lstat(runtime)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise InvalidConfiguration(
                f"runtime directory {runtime}: must be a directory of user {os.getuid()} with mode 0700: it holds what"
                " clients trust"
            )
        if status.st_dev != os.stat(NAMES_DIRECTORY).st_dev:
            raise InvalidConfiguration(
                f"runtime directory {runtime}: is on another file system than {NAMES_DIRECTORY}: doorbells could"
                f" not be shared; name a directory under {NAMES_DIRECTORY}"
            )
        for name in (DOORBELLS_DIRECTORY, LOGS_DIRECTORY):
            os.makedirs(f"{runtime}/{name}", PRIVATE_MODE, exist_ok=True)
    except OSError as error:
        raise InvalidConfiguration(f"runtime directory {runtime}: {error.strerror}: {error.filename}") from error
