"""What a path may lead to: where a data directory's runtime directory is, and files that must be files.

Whoever may write into a directory may have put a FIFO or a device in the place of a file; opening one waits for its
other end for ever, or reads without end. So every file of ours that is looked for by its name is opened without
waiting, and refused by name where it is something else.
"""

from __future__ import annotations

import os
import stat
from typing import Final

from xxhash import xxh3_64_hexdigest

from shmbroker.errors import DiskFailed

SHARED_MEMORY: Final = "/dev/shm"
RUNTIME_NAME_FILE: Final = "runtime"
"""In a data directory: names its runtime directory."""
RUNTIME_NAME_SIZE_MAX: Final = 4096
_KINDS: Final = (
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def default_runtime(data: str) -> str:
    """The runtime directory of a data directory that was not given one. ``data`` may be relative."""
    return f"{SHARED_MEMORY}/shmbroker-{os.getuid()}-{xxh3_64_hexdigest(os.path.realpath(data).encode())}"


def open_file(path: str, flags: int) -> int:
    """A descriptor of the file at ``path``, closed on exec. Never waits. Raises OSError, and DiskFailed where it is no
    regular file."""
    # Looked at before it is opened too: opening a device may do something to it.
    _check(path, os.stat(path).st_mode)
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _check(path, os.fstat(fd).st_mode)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check(path: str, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = next((text for is_kind, text in _KINDS if is_kind(mode)), "something else")
        raise DiskFailed(f"{path}: is {kind}, not a file: move it away")


def read_runtime_name(data: str) -> str:
    """What ``DATA/runtime`` says. Raises OSError, DiskFailed where it is no file, ValueError where it is damaged."""
    fd = open_file(os.path.join(data, RUNTIME_NAME_FILE), os.O_RDONLY)
    try:
        name = os.read(fd, RUNTIME_NAME_SIZE_MAX).decode("utf-8").strip()
    finally:
        os.close(fd)
    if not os.path.isabs(name) or "\0" in name:
        raise ValueError("it names no directory")
    return name
