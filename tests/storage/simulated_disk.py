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

Images share pages and page tables with the disk they come from until one of them writes: thousands cost little.
"""

from __future__ import annotations

import errno
import os
import posixpath
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from shmbroker.errors import DiskFailed, NoSpace
from shmbroker.limits import PAGE_SIZE, SECTOR_SIZE

SECTORS_PER_PAGE = PAGE_SIZE // SECTOR_SIZE
ALL_SECTORS = (1 << SECTORS_PER_PAGE) - 1
ZERO_PAGE = bytes(PAGE_SIZE)
FREE_SPACE_DEFAULT = 1 << 40
TORN_CUTS_MAX = 24
"""Sector boundaries at which the last writes are torn, for each of them; all of them where they are no more."""
TORN_WRITES = 2

NO_SPACE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Crashed(BaseException):
    """The power is gone. Not an Exception: no handler of the code under test may take it for an error."""


class Point(NamedTuple):
    kind: str
    """write, sync_write, sync, allocate, create, make_directory, rename, unlink or sync_directory."""
    path: str


@dataclass(slots=True, eq=False)
class _Image:
    """Contents of a file: pages that are not there are zeros. ``shared``: the page table belongs to others too."""

    length: int = 0
    pages: dict[int, bytes] = field(default_factory=dict)
    shared: bool = False

    def fork(self) -> _Image:
        self.shared = True
        return _Image(self.length, self.pages, True)

    def put(self, pages: dict[int, bytes]) -> None:
        if self.shared:
            self.pages, self.shared = dict(self.pages), False
        self.pages.update(pages)

    def forget_beyond_length(self) -> None:
        end = -(-self.length // PAGE_SIZE)
        if any(number >= end for number in self.pages):
            self.pages = {number: page for number, page in self.pages.items() if number < end}
            self.shared = False

    def read(self, position: int, size: int) -> bytes:
        end = min(position + size, self.length)
        if position >= end:
            return b""
        first, last = position // PAGE_SIZE, (end - 1) // PAGE_SIZE
        if last - first > 64 and len(self.pages) < (last - first) // 2:  # mostly zeros
            whole = self.whole()
            return bytes(whole[position:end])
        joined = b"".join([self.pages.get(number, ZERO_PAGE) for number in range(first, last + 1)])
        start = first * PAGE_SIZE
        return joined[position - start : end - start]

    def whole(self) -> memoryview:
        buffer = bytearray(-(-self.length // PAGE_SIZE) * PAGE_SIZE)
        for number, page in self.pages.items():
            buffer[number * PAGE_SIZE : (number + 1) * PAGE_SIZE] = page
        return memoryview(buffer)[: self.length].toreadonly()


@dataclass(slots=True, eq=False)
class _Write:
    """Pages that may land, each with a mask of its sectors that this write really changed. ``length`` is that of the
    file if this write made it longer, else 0. Of a ``partial`` one (it failed) no other sectors can land."""

    sequence: int
    pages: dict[int, bytes]
    masks: dict[int, int]
    length: int
    partial: bool = False

    def sectors(self) -> list[tuple[int, int]]:
        return [
            (number, sector)
            for number in sorted(self.pages)
            for sector in range(SECTORS_PER_PAGE)
            if self.masks[number] >> sector & 1
        ]

    def drop(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self.pages.pop(number, None)
            self.masks.pop(number, None)

    def apply(self, image: _Image, masks: dict[int, int] | None = None) -> None:
        """The whole write, or of each page the sectors in ``masks``."""
        if masks is None and self.partial:
            masks = self.masks
        if masks is None:
            image.put(self.pages)
        else:
            image.put({n: _torn(image.pages.get(n, ZERO_PAGE), self.pages[n], mask) for n, mask in masks.items()})
        image.length = max(image.length, self.length)


@dataclass(slots=True, eq=False)
class _Length:
    """The file is at least so long."""

    sequence: int
    length: int

    def apply(self, image: _Image) -> None:
        image.length = max(image.length, self.length)


@dataclass(slots=True, eq=False)
class _Entries:
    """Names set or removed in one directory, in one step."""

    sequence: int
    changes: tuple[tuple[str, _Node | None], ...]

    def apply(self, entries: dict[str, _Node]) -> None:
        for name, node in self.changes:
            if node is None:
                entries.pop(name, None)
            else:
                entries[name] = node


@dataclass(slots=True, eq=False)
class _File:
    live: _Image = field(default_factory=_Image)
    durable: _Image = field(default_factory=_Image)
    pending: list[_Write | _Length] = field(default_factory=list)
    diverged: bool = False
    """Live shows what a failed write or sync never brought to the disk."""


@dataclass(slots=True, eq=False)
class _Directory:
    live: dict[str, _Node] = field(default_factory=dict)
    durable: dict[str, _Node] = field(default_factory=dict)
    pending: list[_Entries] = field(default_factory=list)


_Node = _File | _Directory
_Operation = _Write | _Length | _Entries
_Choice = dict[int, dict[int, int] | None]
"""Which operations land, by sequence number: None for all of it, else the sector masks of its pages."""


def _torn(old: bytes, new: bytes, mask: int) -> bytes:
    if mask == ALL_SECTORS:
        return new
    parts = [
        (new if mask >> sector & 1 else old)[sector * SECTOR_SIZE : (sector + 1) * SECTOR_SIZE]
        for sector in range(SECTORS_PER_PAGE)
    ]
    return b"".join(parts)


def _changed_sectors(old: bytes, new: bytes) -> int:
    if old == new:
        return 0
    mask = 0
    for sector in range(SECTORS_PER_PAGE):
        start = sector * SECTOR_SIZE
        if old[start : start + SECTOR_SIZE] != new[start : start + SECTOR_SIZE]:
            mask |= 1 << sector
    return mask


class SimulatedFile:
    """An open file of a SimulatedDisk."""

    def __init__(self, disk: SimulatedDisk, path: str, node: _File) -> None:
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
                self._node.pending.append(_Length(self._disk.next_sequence(), position + length))
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
                operation.masks, operation.partial = _random_masks(operation, self._disk.rng), True
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
                self._node.live = _with_pending(self._node)
                self._node.diverged = False
            return self._node.live.read(position, size)

    def view(self) -> memoryview:
        self._alive()
        return self._node.live.whole()

    def close(self) -> None:
        self._closed = True

    def _add_write(self, position: int, contents: bytes) -> _Write:
        live = self._node.live
        first = position // PAGE_SIZE
        pages = {
            first + number: contents[number * PAGE_SIZE : (number + 1) * PAGE_SIZE]
            for number in range(len(contents) // PAGE_SIZE)
        }
        masks = {number: _changed_sectors(live.pages.get(number, ZERO_PAGE), page) for number, page in pages.items()}
        end = position + len(contents)
        length = end if end > live.length else 0
        operation = _Write(self._disk.next_sequence(), pages, masks, length)
        self._node.pending.append(operation)
        operation.apply(live)
        return operation

    def _settle_range(self, first: int, count: int) -> None:
        """Durable: those pages as they are live, and the length. Older writes of them are superseded for ever."""
        node = self._node
        numbers = range(first, first + count)
        node.durable.put({number: node.live.pages[number] for number in numbers})
        node.durable.length = max(node.durable.length, node.live.length)
        kept: list[_Write | _Length] = []
        for operation in node.pending:
            if isinstance(operation, _Write):
                operation.drop(numbers)
                if operation.pages:
                    kept.append(operation)
        node.pending = kept

    def _settle_all(self) -> None:
        node = self._node
        for operation in node.pending:
            operation.apply(node.durable)
        node.pending.clear()

    def _lose(self, operation: _Write | _Length) -> None:
        """After a failed sync: a seeded choice of its sectors is on the disk, the rest will never be tried again."""
        node = self._node
        node.pending.remove(operation)
        node.diverged = True
        if isinstance(operation, _Write):
            operation.apply(node.durable, _random_masks(operation, self._disk.rng))
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


def _with_pending(node: _File) -> _Image:
    image = node.durable.fork()
    for operation in node.pending:
        operation.apply(image)
    return image


def _random_masks(operation: _Write, rng: random.Random) -> dict[int, int]:
    """A choice of sectors: of each page all, none or some, the way one page after the other lands."""
    return {
        number: rng.choice((0, ALL_SECTORS, rng.getrandbits(SECTORS_PER_PAGE))) & mask
        for number, mask in operation.masks.items()
    }


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
        self._root = _Directory()
        self._sequence = 0
        self._failures: dict[int, int] = {}
        self.in_flight: tuple[_File, _Write, _Image] | None = None
        """The write during which the crash came: its file, itself, and what the file showed before."""

    # --- the protocol ---------------------------------------------------------------------------------------------

    def direct(self, directory: str) -> bool:
        self._directory(directory)
        return self._direct

    def create(self, path: str, *, direct: bool = True) -> SimulatedFile:
        node = _File()
        self._change("create", path, lambda parent, name: ((name, node),), new=True)
        return SimulatedFile(self, path, node)

    def open(self, path: str, *, direct: bool = True) -> SimulatedFile:
        node = self._find(path)
        if not isinstance(node, _File):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return SimulatedFile(self, path, node)

    def exists(self, path: str) -> bool:
        return self._find(path) is not None

    def list(self, directory: str) -> list[str]:
        return sorted(self._directory(directory).live)

    def make_directory(self, path: str) -> None:
        node = _Directory()
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
        if isinstance(node, _Directory):
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
        done: dict[int, _Node] = {}
        disk._root = _copied(self._root, done)
        disk._sequence = self._sequence
        if self.in_flight is not None and in_flight_pages is not None:
            original, write, before = self.in_flight
            node = done.get(id(original))
            if isinstance(node, _File):
                _cut_short(node, write, before, in_flight_pages)
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
        operations = _pending_of(self._root)
        seen: set[int] = set()
        for label, choice in _choices(operations, random.Random(seed), subsets):
            image = SimulatedDisk(seed=seed, direct=self._direct, label=label)
            image._root = _settled(self._root, choice, {})
            image._sequence = self._sequence
            mark = image.fingerprint()
            if mark not in seen:
                seen.add(mark)
                yield image

    def fingerprint(self) -> int:
        """Equal for disks with the same names and contents, as far as they can be read."""
        return hash(tuple(_facts_of(self._root, "")))

    # --- names ------------------------------------------------------------------------------------------------------

    def _change(
        self,
        kind: str,
        path: str,
        changes_of: Callable[[_Directory, str], tuple[tuple[str, _Node | None], ...]],
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
            entries = _Entries(self.next_sequence(), changes_of(parent, name))
            entries.apply(parent.live)
            parent.pending.append(entries)
            self.crash_if(number)

    def _find(self, path: str) -> _Node | None:
        self.alive()
        assert path.startswith("/"), path
        node: _Node = self._root
        for name in path.split("/"):
            if not name:
                continue
            if not isinstance(node, _Directory) or name not in node.live:
                return None
            node = node.live[name]
        return node

    def _directory(self, path: str) -> _Directory:
        node = self._find(path)
        if not isinstance(node, _Directory):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return node


def _reachable(directory: _Directory, found: dict[int, _Node]) -> dict[int, _Node]:
    """Every node that any choice of the pending entries may leave reachable."""
    children = [*directory.durable.values(), *directory.live.values()]
    children += [node for entries in directory.pending for _, node in entries.changes if node is not None]
    for node in children:
        if id(node) not in found:
            found[id(node)] = node
            if isinstance(node, _Directory):
                _reachable(node, found)
    return found


def _pending_of(root: _Directory) -> list[_Operation]:
    nodes = [root, *_reachable(root, {}).values()]
    return sorted((operation for node in nodes for operation in node.pending), key=lambda found: found.sequence)


def _choices(operations: list[_Operation], rng: random.Random, subsets: int) -> Iterator[tuple[str, _Choice]]:
    whole: _Choice = {operation.sequence: None for operation in operations}
    sequences = list(whole)
    yield "nothing pending landed", {}
    yield "everything pending landed", whole
    for count in range(1, len(sequences)):
        yield f"the first {count} of {len(sequences)} pending landed", dict.fromkeys(sequences[:count])
    for sequence in sequences:
        yield f"pending number {sequence} alone did not land", {n: None for n in sequences if n != sequence}
    writes = [operation for operation in operations if isinstance(operation, _Write)]
    for write in writes[-TORN_WRITES:]:
        for label, masks in _tears(write):
            yield f"pending write {write.sequence} torn: {label}", {**whole, write.sequence: masks}
            yield f"pending write {write.sequence} alone, torn: {label}", {write.sequence: masks}
    for number in range(subsets):
        chosen = {operation.sequence: None for operation in operations if rng.random() < 0.6}
        torn = {write.sequence: _random_masks(write, rng) for write in writes if rng.random() < 0.6}
        yield f"seeded subset {number}", {**chosen, **torn}


def _tears(write: _Write) -> Iterator[tuple[str, dict[int, int]]]:
    """The sectors of one write: prefixes, suffixes, single omissions; evenly chosen where they are many."""
    sectors = write.sectors()
    step = max(1, len(sectors) // TORN_CUTS_MAX)
    for cut in range(step if step > 1 else 1, len(sectors), step):
        yield f"sectors up to {cut}", _masks_of(sectors[:cut])
        yield f"sectors from {cut}", _masks_of(sectors[cut:])
    for missing in range(0, len(sectors), step):
        yield f"all but sector {missing}", _masks_of(sectors[:missing] + sectors[missing + 1 :])


def _masks_of(sectors: list[tuple[int, int]]) -> dict[int, int]:
    masks: dict[int, int] = {}
    for number, sector in sectors:
        masks[number] = masks.get(number, 0) | 1 << sector
    return masks


def _settled(directory: _Directory, choice: _Choice, done: dict[int, _Node]) -> _Directory:
    """A copy in which the chosen operations are durable and nothing is pending. Each node is copied once."""
    entries = dict(directory.durable)
    for operation in directory.pending:
        if operation.sequence in choice:
            operation.apply(entries)
    copy = _Directory()
    for name, node in entries.items():
        if id(node) not in done:
            done[id(node)] = (
                _settled(node, choice, done) if isinstance(node, _Directory) else _settled_file(node, choice)
            )
        copy.live[name] = copy.durable[name] = done[id(node)]
    return copy


def _settled_file(node: _File, choice: _Choice) -> _File:
    image = node.durable.fork()
    if not node.pending:
        return _File(image, image.fork())
    for operation in node.pending:
        if operation.sequence in choice:
            masks = choice[operation.sequence]
            if isinstance(operation, _Write):
                operation.apply(image, masks)
            else:
                operation.apply(image)
    image.forget_beyond_length()
    return _File(image, image.fork())


def _cut_short(node: _File, write: _Write, before: _Image, count: int) -> None:
    """Makes the last pending write of a copied file as if it had stopped after ``count`` pages."""
    kept = sorted(write.pages)[:count]
    node.pending = [found for found in node.pending if found.sequence != write.sequence]
    node.live = before.fork()
    if kept:
        length = min(write.length, (kept[-1] + 1) * PAGE_SIZE)
        short = _Write(
            write.sequence, {n: write.pages[n] for n in kept}, {n: write.masks[n] for n in kept}, length, write.partial
        )
        node.pending.append(short)
        short.apply(node.live)


def _copied(directory: _Directory, done: dict[int, _Node]) -> _Directory:
    """A copy with everything that is pending still pending."""

    def copy_of(node: _Node) -> _Node:
        if id(node) not in done:
            if isinstance(node, _Directory):
                done[id(node)] = _copied(node, done)
            else:
                pending = [
                    _Write(found.sequence, dict(found.pages), dict(found.masks), found.length, found.partial)
                    if isinstance(found, _Write)
                    else found
                    for found in node.pending
                ]
                done[id(node)] = _File(node.live.fork(), node.durable.fork(), pending, node.diverged)
        return done[id(node)]

    copy = _Directory()
    copy.live = {name: copy_of(node) for name, node in directory.live.items()}
    copy.durable = {name: copy_of(node) for name, node in directory.durable.items()}
    copy.pending = [
        _Entries(found.sequence, tuple((name, node and copy_of(node)) for name, node in found.changes))
        for found in directory.pending
    ]
    return copy


def _facts_of(directory: _Directory, path: str) -> Iterator[tuple[str, int, int]]:
    for name in sorted(directory.live):
        node = directory.live[name]
        if isinstance(node, _Directory):
            yield f"{path}/{name}", -1, 0
            yield from _facts_of(node, f"{path}/{name}")
        else:
            pages = frozenset(item for item in node.live.pages.items() if item[1] != ZERO_PAGE)
            yield f"{path}/{name}", node.live.length, hash(pages)
