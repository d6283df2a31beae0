"""Named points at which a process of the broker can be made to die, and calls of the disk that can be made to fail, for
tests that enumerate them.

``SHMBROKER_CRASH_AT="name:count"`` in the environment makes whichever process passes the point ``name`` for the
``count``-th time send itself SIGKILL there: no destructor, no exit handler, no flush of anything. Several are joined
with commas; ``name`` alone means the first time. Only real processes use this; it costs one comparison where unset::

    if crash_points.ARMED:
        crash_points.reach(crash_points.AFTER_APPEND)

A respawned worker inherits the environment of its front and would die at the same point for ever, so the front hands
the variable to the first generation of each worker only.

``SHMBROKER_FAIL_AT="operation:part:when:errno"`` makes a worker's calls of the disk fail as a worn-out or full device
would: ``operation`` is write, sync, allocate or sync-directory, on paths that contain ``part`` (empty: all; ``*`` in it
stands for anything). ``when`` is the number of the first such call that fails, or the absolute path of a file: while it
exists, they all fail. ``sync:.log:3:EIO``, ``write:/0001/:/tmp/worn-out:EIO``. Only the disk of
:mod:`shmbroker.workers.crash_disk` looks at it, and a worker has that disk only where something is armed; it is handed
to the first generation alone, too.
"""

from __future__ import annotations

import errno
import os
import signal
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from shmbroker.errors import InvalidConfiguration

VARIABLE: Final = "SHMBROKER_CRASH_AT"
FAULT_VARIABLE: Final = "SHMBROKER_FAIL_AT"
OPERATIONS: Final = ("write", "sync", "allocate", "sync-directory")

AFTER_APPEND: Final = "after-append"
"""Worker: a batch is in the ring; nothing is published or answered."""
BEFORE_GROUP_WRITE: Final = "before-group-write"
"""Worker: the replicated requests of the pass are answered; the persisted ones are not on the disk."""
AFTER_GROUP_WRITE: Final = "after-group-write"
"""Worker: written and synchronised; no position has moved."""
BEFORE_COMPLETIONS: Final = "before-completions"
"""Worker: durable and visible positions have moved; the persisted requests are not answered."""
AFTER_COMPLETIONS: Final = "after-completions"
"""Worker: everything of the pass is answered."""
DURING_ROLL: Final = "during-roll"
"""Worker: a new segment file has been created, and nothing of it synchronised."""
DURING_PURGE: Final = "during-purge"
"""Worker: the new incarnation is durable; the old files are still there."""
AFTER_OPEN: Final = "after-open"
"""Worker: the partitions are open; the front has not been told."""
BEFORE_CATALOG_COMMIT: Final = "before-catalog-commit"
"""Front: directories of new partitions are durable; the catalog does not know them."""
AFTER_CATALOG_COMMIT: Final = "after-catalog-commit"
"""Front: the catalog is committed; nobody has been answered, and what was deleted is still on the disk."""

NAMES: Final = (
    AFTER_APPEND, BEFORE_GROUP_WRITE, AFTER_GROUP_WRITE, BEFORE_COMPLETIONS, AFTER_COMPLETIONS, DURING_ROLL,
    DURING_PURGE, AFTER_OPEN, BEFORE_CATALOG_COMMIT, AFTER_CATALOG_COMMIT,
)  # fmt: skip


def parse(text: str) -> dict[str, int]:
    """The points of the variable's value, each with the count at which it strikes. InvalidConfiguration otherwise."""
    points: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, count = part.partition(":")
        if name not in NAMES or not (count or "1").isdigit() or int(count or "1") < 1:
            raise InvalidConfiguration(f"{VARIABLE}: {part!r} is not one of {', '.join(NAMES)}, with :count")
        points[name] = int(count or "1")
    return points


class Fault(NamedTuple):
    """Calls of one kind that fail with ``number`` (an errno): from call ``first`` on, or while ``switch`` exists."""

    operation: str
    part: str
    first: int
    switch: str
    number: int

    def concerns(self, operation: str, path: str) -> bool:
        return operation == self.operation and fnmatchcase(path, f"*{self.part}*")


def parse_faults(text: str) -> list[Fault]:
    """The faults of the variable's value, joined with commas. InvalidConfiguration otherwise."""
    faults = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        operation, path_part, when, name = (*part.split(":"), "", "", "", "")[:4]
        number = getattr(errno, name, None)
        is_count = when.isdigit() and int(when) > 0
        if operation not in OPERATIONS or not isinstance(number, int) or not (is_count or when.startswith("/")):
            raise InvalidConfiguration(
                f"{FAULT_VARIABLE}: {part!r} is not operation:part:when:errno with one of {', '.join(OPERATIONS)}"
            )
        faults.append(Fault(operation, path_part, int(when) if is_count else 0, "" if is_count else when, number))
    return faults


def check() -> None:
    """Raises InvalidConfiguration where a variable of this process says what nobody understands: for the start."""
    parse(os.environ.get(VARIABLE, ""))
    parse_faults(os.environ.get(FAULT_VARIABLE, ""))


def _armed() -> dict[str, int]:
    try:
        return parse(os.environ.get(VARIABLE, ""))
    except InvalidConfiguration:
        return {}  # not a fault of whoever imports this: check() says it


_remaining = _armed()
ARMED: Final = bool(_remaining)


def reach(name: str) -> None:
    """This process is at point ``name``; it may not return."""
    count = _remaining.get(name)
    if count is None:
        return
    _remaining[name] = count - 1
    if count == 1:
        os.kill(os.getpid(), signal.SIGKILL)
