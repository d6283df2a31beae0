"""The disk: the one seam through which storage reads and writes files, and the real one behind it.

Owns every system call on files of the data directory. What the callers may believe:

- ``write(sync=True)`` returns when exactly that range and the file's length are on stable storage. It says nothing
  about other ranges written earlier, nor about the file's name.
- ``write(sync=False)`` and ``allocate`` promise nothing before ``sync`` returns; any sectors of them may land.
- A name (create, rename, unlink, make_directory) is durable when ``sync_directory`` of its parent has returned.
- A write or a sync that failed is final for that open file: every later write, allocate and sync of it raises
  :class:`DiskFailed`, because the kernel reports a lost page once and then forgets it. Reading goes on.
- ``allocate`` that finds no space raises :class:`NoSpace` and has changed nothing.

Writes are whole pages at page-aligned positions. Where the file system has ``O_DIRECT`` (found by trying, once for each
file system) they go straight from the caller's memory, which must be page-aligned (:func:`aligned_buffer`, a ring), and
a synchronous write is one ``pwritev`` with ``RWF_DSYNC``: the same as a descriptor opened with ``O_DSYNC``, and a file
needs one descriptor less. Elsewhere (tmpfs, overlay) they are buffered and followed by ``fdatasync`` on the same
descriptor, which is the one that gets told of an error.

FileNotFoundError and FileExistsError pass through as they are; every other OSError becomes NoSpace or DiskFailed with
the OSError as its cause (:func:`errno_of`).
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

from shmbroker.errors import DiskFailed, NoSpace
from shmbroker.limits import PAGE_SIZE
from shmbroker.paths import open_file

NO_SPACE_ERRORS: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
"""EFBIG is a quota too: RLIMIT_FSIZE, or the largest file of the file system."""
BUFFERS_PER_WRITE_MAX: Final = 1024
"""IOV_MAX of Linux: more buffers take more than one call."""
FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700
_OPENING: Final = threading.Lock()
"""Two threads may make the first write of one file."""


class DiskFile(Protocol):
    """One open file. Threads may write ranges apart at the same time; all else is for one thread at a time."""

    @property
    def path(self) -> str: ...

    @property
    def failed(self) -> bool:
        """Whether a write or a sync of this open file has failed: it takes no more."""

    def size(self) -> int:
        """Bytes of the file now, allocated ones included."""

    def allocate(self, position: int, length: int) -> None:
        """Reserves the range, which reads as zeros where it was not written, and lengthens the file to hold it.
        Raises NoSpace (nothing changed) or DiskFailed."""

    def write(self, position: int, buffers: Sequence[memoryview], *, sync: bool) -> None:
        """Writes the buffers one after the other. Position and every length are multiples of PAGE_SIZE, addresses
        page-aligned. With ``sync``, range and file length are durable on return. Raises DiskFailed for any error."""

    def sync(self) -> None:
        """Everything written and allocated so far is durable on return (not the name). Raises DiskFailed."""

    def read(self, position: int, size: int) -> bytes:
        """Up to ``size`` bytes; fewer only at the end of the file. Raises DiskFailed."""

    def read_uncached(self, position: int, size: int) -> bytes:
        """As read, but what the disk holds: after a failed sync the cache may show what never got there (rule 2)."""

    def view(self) -> memoryview:
        """A read-only view of the whole file as long as it is now. Mapped: it may follow later writes."""

    def close(self) -> None:
        """Never synchronises. Twice is fine."""


class Disk(Protocol):
    """A tree of directories and files. All paths are absolute."""

    def direct(self, directory: str) -> bool:
        """Whether writes to files in that directory bypass the page cache."""

    def create(self, path: str, *, direct: bool = True) -> DiskFile:
        """A new empty file. Without ``direct`` its writes go through the page cache even where they need not: cheaper
        for small ones that nobody waits for. Raises FileExistsError, NoSpace, DiskFailed."""

    def open(self, path: str, *, direct: bool = True) -> DiskFile:
        """An existing file, for reading and writing. Raises FileNotFoundError, DiskFailed."""

    def exists(self, path: str) -> bool: ...

    def list(self, directory: str) -> list[str]:
        """The names in the directory, sorted. Raises FileNotFoundError."""

    def make_directory(self, path: str) -> None:
        """One directory whose parent exists. Raises FileExistsError, FileNotFoundError, NoSpace."""

    def rename(self, old: str, new: str) -> None:
        """Within one directory; replaces ``new`` in one step."""

    def unlink(self, path: str) -> None: ...

    def remove_tree(self, path: str) -> None:
        """Removes a directory with everything in it; one that is not there is fine."""

    def sync_directory(self, directory: str) -> None:
        """The names in that directory are durable on return. Raises DiskFailed."""

    def free_space(self, directory: str) -> int:
        """Bytes that may still be allocated there, roughly."""


def aligned_buffer(size: int) -> memoryview:
    """A writable page-aligned buffer of zeros; ``size`` is a multiple of PAGE_SIZE. Freed with its last view."""
    assert size > 0
    assert size % PAGE_SIZE == 0
    return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def errno_of(error: BaseException) -> int:
    """The errno that a NoSpace or DiskFailed stands for, EIO where it has none."""
    cause = error.__cause__
    return cause.errno if isinstance(cause, OSError) and cause.errno is not None else errno.EIO


@contextmanager
def _named(action: str, path: str) -> Iterator[None]:
    """Turns an OSError into ours, saying what was tried."""
    try:
        yield
    except (FileNotFoundError, FileExistsError):
        raise
    except OSError as error:
        raise _translated(action, path, error) from error


def _translated(action: str, path: str, error: OSError) -> NoSpace | DiskFailed:
    kind = NoSpace if error.errno in NO_SPACE_ERRORS else DiskFailed
    return kind(f"{path}: cannot {action}: {error.strerror}")


class RealFile:
    """A file of a real file system."""

    def __init__(self, path: str, fd: int, direct: bool) -> None:
        self.path = path
        self.failed = False
        self._fd = fd
        self._direct = direct
        self._direct_fd = -1

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def allocate(self, position: int, length: int) -> None:
        self._refuse_if_failed()
        size = os.fstat(self._fd).st_size
        try:
            os.posix_fallocate(self._fd, position, length)
        except OSError as error:
            if error.errno not in NO_SPACE_ERRORS:
                raise self._failure("allocate", error) from error
            # ext4 keeps what it got before it ran out, length included. Nobody maps beyond the old length yet.
            if os.fstat(self._fd).st_size > size:
                os.ftruncate(self._fd, size)
            raise NoSpace(f"{self.path}: cannot allocate {length} bytes: {error.strerror}") from error

    def write(self, position: int, buffers: Sequence[memoryview], *, sync: bool) -> None:
        self._refuse_if_failed()
        assert position % PAGE_SIZE == 0
        size = sum(map(len, buffers))
        assert all(len(buffer) % PAGE_SIZE == 0 for buffer in buffers)
        try:
            fd = self._writing_fd()
            flags = os.RWF_DSYNC if sync and self._direct else 0
            if len(buffers) <= BUFFERS_PER_WRITE_MAX and os.pwritev(fd, buffers, position, flags) == size:
                pass
            else:
                # The call is repeated from the start: the same bytes at the same place do no harm.
                _write_rest(fd, position, buffers, flags)
            if sync and not self._direct:
                os.fdatasync(fd)
        except OSError as error:
            raise self._failure("write", error) from error

    def sync(self) -> None:
        self._refuse_if_failed()
        try:
            os.fdatasync(self._direct_fd if self._direct_fd >= 0 else self._fd)
        except OSError as error:
            raise self._failure("synchronise", error) from error

    def read(self, position: int, size: int) -> bytes:
        try:
            return _read_all(self._fd, position, size)
        except OSError as error:
            raise DiskFailed(f"{self.path}: cannot read at byte {position}: {error.strerror}") from error

    def read_uncached(self, position: int, size: int) -> bytes:
        try:
            if self._direct:
                return self._read_direct(position, size)
            os.posix_fadvise(self._fd, position, size, os.POSIX_FADV_DONTNEED)
            return _read_all(self._fd, position, size)
        except OSError as error:
            raise DiskFailed(f"{self.path}: cannot read at byte {position}: {error.strerror}") from error

    def view(self) -> memoryview:
        size = self.size()
        if size == 0:
            return memoryview(b"")
        with _named("map", self.path):
            return memoryview(mmap.mmap(self._fd, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ))

    def close(self) -> None:
        for fd in (self._direct_fd, self._fd):
            if fd >= 0:
                os.close(fd)
        self._direct_fd = self._fd = -1

    def _writing_fd(self) -> int:
        """Direct descriptors are opened at the first write: a thousand idle partitions need none."""
        if not self._direct:
            return self._fd
        if self._direct_fd < 0:
            with _OPENING:
                if self._direct_fd < 0:
                    # Through /proc: the same file, whatever has become of its name.
                    self._direct_fd = os.open(f"/proc/self/fd/{self._fd}", os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC)
        return self._direct_fd

    def _read_direct(self, position: int, size: int) -> bytes:
        start = position - position % PAGE_SIZE
        buffer = aligned_buffer(max(PAGE_SIZE, -(-(position + size) // PAGE_SIZE) * PAGE_SIZE - start))
        fd = self._writing_fd()
        filled = 0
        while filled < len(buffer):
            count = os.preadv(fd, [buffer[filled:]], start + filled)
            filled += count
            if count == 0 or filled % PAGE_SIZE:  # the end of the file
                break
        return bytes(buffer[position - start : min(filled, position - start + size)])

    def _refuse_if_failed(self) -> None:
        if self.failed:
            raise DiskFailed(f"{self.path}: an earlier write or sync failed: nothing more is written to it")

    def _failure(self, action: str, error: OSError) -> DiskFailed:
        self.failed = True
        return DiskFailed(f"{self.path}: cannot {action}: {error.strerror}")


def _write_rest(fd: int, position: int, buffers: Sequence[memoryview], flags: int) -> None:
    """Writes all buffers in as many calls as it takes; a short write goes on at the page it reached."""
    rest = [buffer for buffer in buffers if len(buffer)]
    while rest:
        written = os.pwritev(fd, rest[:BUFFERS_PER_WRITE_MAX], position, flags)
        # A direct write may stop within a page only at an error that the next call reports.
        written -= written % PAGE_SIZE
        if written == 0:
            raise OSError(errno.EIO, "the disk takes no more bytes and gives no reason")
        position += written
        while rest and written >= len(rest[0]):
            written -= len(rest.pop(0))
        if written:
            rest[0] = rest[0][written:]


def _read_all(fd: int, position: int, size: int) -> bytes:
    chunk = os.pread(fd, size, position)
    if len(chunk) == size or not chunk:
        return chunk
    chunks = [chunk]
    filled = len(chunk)
    while filled < size:  # one call reads less than 2 GiB
        chunk = os.pread(fd, size - filled, position + filled)
        if not chunk:
            break
        chunks.append(chunk)
        filled += len(chunk)
    return b"".join(chunks)


class FileDisk:
    """The real file system. Thread-safe. Without ``allow_direct`` every write goes through the page cache. With
    ``read_only`` files are opened for reading alone, which a file system allows that takes no writes any more."""

    FILE_KIND: type[RealFile] = RealFile
    """What create and open make."""

    def __init__(self, *, allow_direct: bool = True, read_only: bool = False) -> None:
        self._allow_direct = allow_direct and not read_only
        self._access = os.O_RDONLY if read_only else os.O_RDWR
        self._direct_by_device: dict[int, bool] = {}
        self._lock = threading.Lock()

    def direct(self, directory: str) -> bool:
        if not self._allow_direct:
            return False
        device = os.stat(directory).st_dev
        with self._lock:
            known = self._direct_by_device.get(device)
            if known is None:
                known = _direct_works(directory)
                if known is not None:
                    self._direct_by_device[device] = known
        return bool(known)

    def create(self, path: str, *, direct: bool = True) -> RealFile:
        direct = direct and self.direct(os.path.dirname(path))
        with _named("create", path):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        return self.FILE_KIND(path, fd, direct)

    def open(self, path: str, *, direct: bool = True) -> RealFile:
        direct = direct and self.direct(os.path.dirname(path))
        with _named("open", path):
            fd = open_file(path, self._access)
        return self.FILE_KIND(path, fd, direct)

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def list(self, directory: str) -> list[str]:
        with _named("list", directory):
            return sorted(os.listdir(directory))

    def make_directory(self, path: str) -> None:
        with _named("make the directory", path):
            os.mkdir(path, DIRECTORY_MODE)

    def rename(self, old: str, new: str) -> None:
        assert os.path.dirname(old) == os.path.dirname(new)
        with _named("rename", old):
            os.rename(old, new)

    def unlink(self, path: str) -> None:
        with _named("remove", path):
            os.unlink(path)

    def remove_tree(self, path: str) -> None:
        try:
            names = self.list(path)
        except FileNotFoundError:
            return
        for name in names:
            entry = f"{path}/{name}"
            if os.path.isdir(entry) and not os.path.islink(entry):
                self.remove_tree(entry)
            else:
                self.unlink(entry)
        with _named("remove", path):
            os.rmdir(path)

    def sync_directory(self, directory: str) -> None:
        with _named("synchronise the directory", directory):
            fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            except OSError as error:
                # Not NoSpace even where the reason is ENOSPC: a sync that failed is never just refused.
                raise DiskFailed(f"{directory}: cannot synchronise the directory: {error.strerror}") from error
            finally:
                os.close(fd)

    def free_space(self, directory: str) -> int:
        with _named("ask for the free space", directory):
            status = os.statvfs(directory)
        return status.f_bavail * status.f_frsize


def _direct_works(directory: str) -> bool | None:
    """Tries one direct synchronous page write in a file without a name. None: no space to find out."""
    flags = os.O_RDWR | os.O_TMPFILE | os.O_DIRECT | os.O_CLOEXEC
    try:
        fd = os.open(directory, flags, FILE_MODE)
    except OSError:
        return False
    try:
        return os.pwritev(fd, [aligned_buffer(PAGE_SIZE)], 0, os.RWF_DSYNC) == PAGE_SIZE
    except OSError as error:
        return None if error.errno in NO_SPACE_ERRORS else False
    finally:
        os.close(fd)
