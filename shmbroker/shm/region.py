"""A region: anonymous shared memory that two processes map, and that neither can pull from under the other.

Owns the memory file and its mapping. A region is a memfd: it has no name, travels as a descriptor (SCM_RIGHTS), and is
gone with its last holder, SIGKILL included. Before anybody else sees it, it is

- allocated: a store into a page that the kernel cannot find memory for kills with SIGBUS, so the pages are asked for
  here, where the answer is an error;
- sealed against shrinking and growing, and against further seals: a peer that could cut the file would kill whoever
  maps it (SIGBUS). Punching a hole stays possible and is harmless: the page reads as zeros, which no format accepts.

The mapping lives as long as the last view of it: closing never pulls memory from under a view that somebody still
holds (``mmap.close`` would raise BufferError, and there is nothing to do about it then). ``multiprocessing``'s shared
memory was rejected: its resource tracker removed segments of living programs.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os

from shmbroker.errors import LaneBroken, NoSpace
from shmbroker.limits import PAGE_SIZE
from shmbroker.shm.words import words_of

_SEALS_WANTED = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Region:
    """Shared memory of ``size`` bytes. ``view`` is it as bytes, ``words`` as 8-byte words, ``mapping`` the mmap."""

    def __init__(self, fd: int, size: int) -> None:
        """Maps ``fd``. Use :meth:`create` or :meth:`attach`."""
        self.fd = fd
        self.size = size
        self.mapping = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self.view = memoryview(self.mapping)
        self.words = words_of(self.mapping)

    @classmethod
    def create(cls, size: int, name: str = "shmbroker") -> Region:
        """New memory of ``size`` bytes (a multiple of a page): zeros, allocated, sealed. ``name`` shows only in /proc.

        ``fd`` stays open, to be sent; raises NoSpace where the kernel has no memory for it.
        """
        assert size > 0
        assert size % PAGE_SIZE == 0
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, size)
            os.posix_fallocate(fd, 0, size)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS_WANTED)
            return cls(fd, size)
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT):
                raise NoSpace(f"no memory for a region of {size} bytes: {error.strerror}") from error
            raise

    @classmethod
    def attach(cls, fd: int) -> Region:
        """Maps a region that another process created. Takes ``fd`` over: it is closed when this returns or raises.

        Raises LaneBroken where it is not a memory file, is not sealed, or has no whole number of pages.
        """
        try:
            try:
                seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
            except OSError as error:
                raise LaneBroken(f"descriptor {fd} is not a memory file: {error.strerror}") from error
            if seals & _SEALS_WANTED != _SEALS_WANTED:
                raise LaneBroken(f"the memory file has seals {seals:#x}, wanted {_SEALS_WANTED:#x}: it could be cut")
            size = os.fstat(fd).st_size
            if size == 0 or size % PAGE_SIZE:
                raise LaneBroken(f"the memory file has {size} bytes: not a whole number of pages")
            region = cls(fd, size)
        finally:
            os.close(fd)
        region.fd = -1
        return region

    def close_descriptor(self) -> None:
        """Closes ``fd`` once it has been sent to everybody. The mapping stays."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def close(self) -> None:
        """Gives up the descriptor and this object's views. The memory is unmapped when the last view of it is gone."""
        self.close_descriptor()
        for name in ("view", "words", "mapping"):
            self.__dict__.pop(name, None)
