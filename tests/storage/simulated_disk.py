"""A disk in memory that loses what was not synchronised: the Disk protocol, counted crashes, and what they leave.

Every file keeps two images: *live*, what a read shows (the page cache), and *durable*, what is on stable storage; and
the operations between the two, in order. What a power failure leaves is the durable images plus any choice of those
operations, with sectors torn. Directories keep their entries the same way.

- ``write(sync=False)``: any choice of its 512-byte sectors may land. Sectors that it does not change are not counted.
- ``write(sync=True)``: on return that range and the file's length are durable; other pending writes of the file, and
  its name, are not.
- ``sync``: all pending writes and lengths of that file are durable; its name is not.
- ``allocate``: lengthens the file (zeros); the length is an operation like a write. What landed beyond a length that
  did not land is gone.
- create, make_directory, rename, unlink: one operation on the parent's entries, atomic (a rename is never half done),
  durable with ``sync_directory`` of the parent.
- A failed sync or write: a seeded choice of the sectors lands, the rest is never tried again, and the live image goes
  on showing it (as the page cache does); ``read_uncached`` shows the truth.

Each such call is a *point*. At the point ``crash_at`` the operation becomes pending, in flight, and Crashed is raised,
there and from every later call: so the images of that crash include it not begun, torn, and done. ``fail`` injects an
errno at a point. ``points`` lists them all, so that a dry run tells which point is what.

What a crash may leave is enumerated in tests.storage.crash_images.
"""

from __future__ import annotations

import errno
import os
import posixpath
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from shmbroker.errors import DiskFailed, NoSpace
from shmbroker.limits import PAGE_SIZE
from tests.storage.crash_images import (
    ZERO_PAGE,
    DirectoryNode,
    FileNode,
    Image,
    Node,
    PendingEntries,
    PendingLength,
    PendingWrite,
    changed_sectors,
    choices_of,
    copied,
    cut_short,
    facts_of,
    pending_of,
    random_masks,
    settled,
    with_pending,
)

FREE_SPACE_DEFAULT = 1 << 40
NO_SPACE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Crashed(BaseException):
    """The power is gone. Not an Exception: no handler of the code under test may take it for an error."""


class Point(NamedTuple):
    kind: str
    """write, sync_write, sync, allocate, create, make_directory, rename, unlink or sync_directory."""
    path: str


class SimulatedFile:
    """An open file of a SimulatedDisk."""

    def __init__(self, disk: SimulatedDisk, path: str, node: FileNode) -> None:
        self.path = path
        self.failed = False
        self._disk = disk
        self._node = node
        self._closed = False

    def size(self) -> int:
        self._alive()
        return self._node.live.length

    def allocate(self, position: int, length: int) -> None:
        self._refuse_if_failed()
        with self._disk.lock:
            number = self._disk.point("allocate", self.path)
            error = self._disk.failure_at(number)
            if error is not None:
                if error in NO_SPACE_ERRORS:
                    raise NoSpace(f"{self.path}: cannot allocate") from OSError(error, os.strerror(error))
                raise self._failure("allocate", error)
            if position + length > self._node.live.length:
                self._node.live.length = position + length
                self._node.pending.append(PendingLength(self._disk.next_sequence(), position + length))
            self._disk.crash_if(number)

    def write(self, position: int, buffers: Sequence[memoryview], *, sync: bool) -> None:
        self._refuse_if_failed()
        assert position % PAGE_SIZE == 0
        assert all(len(buffer) % PAGE_SIZE == 0 for buffer in buffers)
        contents = b"".join(buffers)
        with self._disk.lock:
            number = self._disk.point("sync_write" if sync else "write", self.path)
            error = self._disk.failure_at(number)
            before = self._node.live.fork()
            operation = self._add_write(position, contents)
            if number == self._disk.crash_at:
                self._disk.in_flight = (self._node, operation, before)
            self._disk.crash_if(number)
            if error is not None:
                operation.masks, operation.partial = random_masks(operation, self._disk.rng), True
                self._node.diverged = True
                raise self._failure("write", error)
            if sync:
                self._settle_range(position // PAGE_SIZE, len(contents) // PAGE_SIZE)

    def sync(self) -> None:
        self._refuse_if_failed()
        with self._disk.lock:
            number = self._disk.point("sync", self.path)
            self._disk.crash_if(number)
            error = self._disk.failure_at(number)
            if error is not None:
                for operation in list(self._node.pending):
                    self._lose(operation)
                raise self._failure("synchronise", error)
            self._settle_all()

    def read(self, position: int, size: int) -> bytes:
        self._alive()
        return self._node.live.read(position, size)

    def read_uncached(self, position: int, size: int) -> bytes:
        self._alive()
        with self._disk.lock:
            if self._node.diverged:
                self._node.live = with_pending(self._node)
                self._node.diverged = False
            return self._node.live.read(position, size)

    def view(self) -> memoryview:
        self._alive()
        return self._node.live.whole()

    def close(self) -> None:
        self._closed = True

    def _add_write(self, position: int, contents: bytes) -> PendingWrite:
        live = self._node.live
        first = position // PAGE_SIZE
        pages = {
            first + number: contents[number * PAGE_SIZE : (number + 1) * PAGE_SIZE]
            for number in range(len(contents) // PAGE_SIZE)
        }
        base = with_pending(self._node).pages if self._node.diverged else live.pages
        masks = {number: changed_sectors(base.get(number, ZERO_PAGE), page) for number, page in pages.items()}
        end = position + len(contents)
        length = end if end > live.length else 0
        operation = PendingWrite(self._disk.next_sequence(), pages, masks, length)
        self._node.pending.append(operation)
        operation.apply(live)
        return operation

    def _settle_range(self, first: int, count: int) -> None:
        """Durable: those pages as they are live, and the length. Older writes of them are superseded for ever."""
        node = self._node
        numbers = range(first, first + count)
        node.durable.put({number: node.live.pages[number] for number in numbers})
        node.durable.length = max(node.durable.length, node.live.length)
        kept: list[PendingWrite | PendingLength] = []
        for operation in node.pending:
            if isinstance(operation, PendingWrite):
                operation.drop(numbers)
                if operation.pages:
                    kept.append(operation)
        node.pending = kept

    def _settle_all(self) -> None:
        node = self._node
        for operation in node.pending:
            operation.apply(node.durable)
        node.pending.clear()

    def _lose(self, operation: PendingWrite | PendingLength) -> None:
        """After a failed sync: a seeded choice of its sectors is on the disk, the rest will never be tried again."""
        node = self._node
        node.pending.remove(operation)
        node.diverged = True
        if isinstance(operation, PendingWrite):
            operation.apply(node.durable, random_masks(operation, self._disk.rng))
        elif self._disk.rng.random() < 0.5:
            operation.apply(node.durable)

    def _alive(self) -> None:
        assert not self._closed, f"{self.path} is used after close"
        self._disk.alive()

    def _refuse_if_failed(self) -> None:
        self._alive()
        if self.failed:
            raise DiskFailed(f"{self.path}: an earlier write or sync failed: nothing more is written to it")

    def _failure(self, action: str, error: int) -> DiskFailed:
        self.failed = True
        failure = DiskFailed(f"{self.path}: cannot {action}: {os.strerror(error)}")
        failure.__cause__ = OSError(error, os.strerror(error))
        return failure


class SimulatedDisk:
    """The Disk protocol. ``label`` says which image this is; ``points`` what was asked of it so far."""

    def __init__(self, *, seed: int = 0, crash_at: int | None = None, direct: bool = True, label: str = "") -> None:
        self.label = label
        self.crash_at = crash_at
        self.crashed = False
        self.points: list[Point] = []
        self.rng = random.Random(seed)
        self.lock = threading.RLock()
        self.free_bytes = FREE_SPACE_DEFAULT
        self._seed = seed
        self._direct = direct
        self._root = DirectoryNode()
        self._sequence = 0
        self._failures: dict[int, int] = {}
        self.in_flight: tuple[FileNode, PendingWrite, Image] | None = None
        """The write during which the crash came: its file, itself, and what the file showed before."""

    # --- the protocol ---------------------------------------------------------------------------------------------

    def direct(self, directory: str) -> bool:
        self._directory(directory)
        return self._direct

    def create(self, path: str, *, direct: bool = True) -> SimulatedFile:
        node = FileNode()
        self._change("create", path, lambda parent, name: ((name, node),), new=True)
        return SimulatedFile(self, path, node)

    def open(self, path: str, *, direct: bool = True) -> SimulatedFile:
        node = self._find(path)
        if not isinstance(node, FileNode):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return SimulatedFile(self, path, node)

    def exists(self, path: str) -> bool:
        return self._find(path) is not None

    def list(self, directory: str) -> list[str]:
        return sorted(self._directory(directory).live)

    def make_directory(self, path: str) -> None:
        node = DirectoryNode()
        self._change("make_directory", path, lambda parent, name: ((name, node),), new=True)

    def rename(self, old: str, new: str) -> None:
        assert posixpath.dirname(old) == posixpath.dirname(new)
        new_name = posixpath.basename(new)
        self._change("rename", old, lambda parent, name: ((name, None), (new_name, parent.live[name])))

    def unlink(self, path: str) -> None:
        self._change("unlink", path, lambda parent, name: ((name, None),))

    def remove_tree(self, path: str) -> None:
        node = self._find(path)
        if node is None:
            return
        if isinstance(node, DirectoryNode):
            for name in sorted(node.live):
                self.remove_tree(f"{path}/{name}")
        self.unlink(path)

    def sync_directory(self, directory: str) -> None:
        with self.lock:
            node = self._directory(directory)
            number = self.point("sync_directory", directory)
            self.crash_if(number)
            error = self.failure_at(number)
            for entries in node.pending:
                if error is None or self.rng.random() < 0.5:
                    entries.apply(node.durable)
            node.pending.clear()
            if error is not None:
                raise DiskFailed(f"{directory}: cannot synchronise the directory") from OSError(error, "injected")

    def free_space(self, directory: str) -> int:
        self._directory(directory)
        return self.free_bytes

    # --- crashes and failures ---------------------------------------------------------------------------------------

    def fail(self, point: int, error: int) -> None:
        """The operation that is counted as ``point`` (from 1) fails with that errno."""
        self._failures[point] = error

    def point(self, kind: str, path: str) -> int:
        self.alive()
        self.points.append(Point(kind, path))
        return len(self.points)

    def failure_at(self, number: int) -> int | None:
        return self._failures.get(number)

    def crash_if(self, number: int) -> None:
        if number == self.crash_at:
            self.crashed = True
            raise Crashed(f"at point {number}: {self.points[-1]}")

    def alive(self) -> None:
        if self.crashed:
            raise Crashed("the disk is without power")

    def next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence

    # --- what is left -----------------------------------------------------------------------------------------------

    def process_image(self, in_flight_pages: int | None = None) -> SimulatedDisk:
        """The disk after SIGKILL: everything written is there to read, and no more durable than it was. Of the write
        during which the crash came, only the first ``in_flight_pages`` pages, if that is given."""
        disk = SimulatedDisk(seed=self._seed, direct=self._direct, label=f"process crash {in_flight_pages}")
        done: dict[int, Node] = {}
        disk._root = copied(self._root, done)
        disk._sequence = self._sequence
        if self.in_flight is not None and in_flight_pages is not None:
            original, write, before = self.in_flight
            node = done.get(id(original))
            if isinstance(node, FileNode):
                cut_short(node, write, before, in_flight_pages)
        return disk

    def process_images(self) -> Iterator[SimulatedDisk]:
        """``process_image`` for every page at which the write in flight may have stopped; one if there was none."""
        yield self.process_image()
        if self.in_flight is not None:
            for count in range(len(self.in_flight[1].pages)):
                yield self.process_image(count)

    def images(self, seed: int, *, subsets: int = 8) -> Iterator[SimulatedDisk]:
        """The disks that a power failure now may leave, no two alike: nothing of what is pending, everything, every
        prefix, every single omission, the last writes torn at their sectors, and seeded subsets of all sectors."""
        operations = pending_of(self._root)
        seen: set[int] = set()
        for label, choice in choices_of(operations, random.Random(seed), subsets):
            image = SimulatedDisk(seed=seed, direct=self._direct, label=label)
            image._root = settled(self._root, choice, {})
            image._sequence = self._sequence
            mark = image.fingerprint()
            if mark not in seen:
                seen.add(mark)
                yield image

    def fingerprint(self) -> int:
        """Equal for disks with the same names and contents, as far as they can be read."""
        return hash(tuple(facts_of(self._root, "")))

    # --- names ------------------------------------------------------------------------------------------------------

    def _change(
        self,
        kind: str,
        path: str,
        changes_of: Callable[[DirectoryNode, str], tuple[tuple[str, Node | None], ...]],
        *,
        new: bool = False,
    ) -> None:
        with self.lock:
            self.alive()
            parent = self._directory(posixpath.dirname(path))
            name = posixpath.basename(path)
            if new and name in parent.live:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            if not new and name not in parent.live:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            number = self.point(kind, path)
            error = self.failure_at(number)
            if error is not None:
                failure = NoSpace if error in NO_SPACE_ERRORS else DiskFailed
                raise failure(f"{path}: cannot {kind}") from OSError(error, os.strerror(error))
            entries = PendingEntries(self.next_sequence(), changes_of(parent, name))
            entries.apply(parent.live)
            parent.pending.append(entries)
            self.crash_if(number)

    def _find(self, path: str) -> Node | None:
        self.alive()
        assert path.startswith("/"), path
        node: Node = self._root
        for name in path.split("/"):
            if not name:
                continue
            if not isinstance(node, DirectoryNode) or name not in node.live:
                return None
            node = node.live[name]
        return node

    def _directory(self, path: str) -> DirectoryNode:
        node = self._find(path)
        if not isinstance(node, DirectoryNode):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return node
