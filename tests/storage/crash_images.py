"""What is on a simulated disk, live and durable, what is pending between the two, and what a crash may leave of it.

Nodes (files, directories) hold two states and the operations that lead from the durable one to the live one, each with
a sequence number of the whole disk. A *choice* says which operations land, and of a write which sectors; ``settled``
applies one to a copy of the tree. ``choices_of`` enumerates: nothing, everything, every prefix, every single omission,
the last writes torn at their sectors, and seeded subsets of all sectors.

Copies share pages and page tables with what they come from until one of them writes: thousands cost little.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from shmbroker.limits import PAGE_SIZE, SECTOR_SIZE

SECTORS_PER_PAGE = PAGE_SIZE // SECTOR_SIZE
ALL_SECTORS = (1 << SECTORS_PER_PAGE) - 1
ZERO_PAGE = bytes(PAGE_SIZE)
TORN_CUTS_MAX = 24
"""Sector boundaries at which the last writes are torn, for each of them; all of them where they are no more."""
TORN_WRITES = 2


@dataclass(slots=True, eq=False)
class Image:
    """Contents of a file: pages that are not there are zeros. ``shared``: the page table belongs to others too."""

    length: int = 0
    pages: dict[int, bytes] = field(default_factory=dict)
    shared: bool = False

    def fork(self) -> Image:
        self.shared = True
        return Image(self.length, self.pages, True)

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
class PendingWrite:
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

    def apply(self, image: Image, masks: dict[int, int] | None = None) -> None:
        """The whole write, or of each page the sectors in ``masks``."""
        if masks is None and self.partial:
            masks = self.masks
        if masks is None:
            image.put(self.pages)
        else:
            image.put({n: torn_page(image.pages.get(n, ZERO_PAGE), self.pages[n], mask) for n, mask in masks.items()})
        image.length = max(image.length, self.length)


@dataclass(slots=True, eq=False)
class PendingLength:
    """The file is at least so long."""

    sequence: int
    length: int

    def apply(self, image: Image) -> None:
        image.length = max(image.length, self.length)


@dataclass(slots=True, eq=False)
class PendingEntries:
    """Names set or removed in one directory, in one step."""

    sequence: int
    changes: tuple[tuple[str, Node | None], ...]

    def apply(self, entries: dict[str, Node]) -> None:
        for name, node in self.changes:
            if node is None:
                entries.pop(name, None)
            else:
                entries[name] = node


@dataclass(slots=True, eq=False)
class FileNode:
    live: Image = field(default_factory=Image)
    durable: Image = field(default_factory=Image)
    pending: list[PendingWrite | PendingLength] = field(default_factory=list)
    diverged: bool = False
    """Live shows what a failed write or sync never brought to the disk."""


@dataclass(slots=True, eq=False)
class DirectoryNode:
    live: dict[str, Node] = field(default_factory=dict)
    durable: dict[str, Node] = field(default_factory=dict)
    pending: list[PendingEntries] = field(default_factory=list)


Node = FileNode | DirectoryNode
Operation = PendingWrite | PendingLength | PendingEntries
Choice = dict[int, dict[int, int] | None]
"""Which operations land, by sequence number: None for all of it, else the sector masks of its pages."""


def torn_page(old: bytes, new: bytes, mask: int) -> bytes:
    if mask == ALL_SECTORS:
        return new
    parts = [
        (new if mask >> sector & 1 else old)[sector * SECTOR_SIZE : (sector + 1) * SECTOR_SIZE]
        for sector in range(SECTORS_PER_PAGE)
    ]
    return b"".join(parts)


def changed_sectors(old: bytes, new: bytes) -> int:
    if old == new:
        return 0
    mask = 0
    for sector in range(SECTORS_PER_PAGE):
        start = sector * SECTOR_SIZE
        if old[start : start + SECTOR_SIZE] != new[start : start + SECTOR_SIZE]:
            mask |= 1 << sector
    return mask


def with_pending(node: FileNode) -> Image:
    image = node.durable.fork()
    for operation in node.pending:
        operation.apply(image)
    return image


def random_masks(operation: PendingWrite, rng: random.Random) -> dict[int, int]:
    """A choice of sectors: of each page all, none or some, the way one page after the other lands."""
    return {
        number: rng.choice((0, ALL_SECTORS, rng.getrandbits(SECTORS_PER_PAGE))) & mask
        for number, mask in operation.masks.items()
    }


def _reachable(directory: DirectoryNode, found: dict[int, Node]) -> dict[int, Node]:
    """Every node that any choice of the pending entries may leave reachable."""
    children = [*directory.durable.values(), *directory.live.values()]
    children += [node for entries in directory.pending for _, node in entries.changes if node is not None]
    for node in children:
        if id(node) not in found:
            found[id(node)] = node
            if isinstance(node, DirectoryNode):
                _reachable(node, found)
    return found


def pending_of(root: DirectoryNode) -> list[Operation]:
    nodes = [root, *_reachable(root, {}).values()]
    return sorted((operation for node in nodes for operation in node.pending), key=lambda found: found.sequence)


def choices_of(operations: list[Operation], rng: random.Random, subsets: int) -> Iterator[tuple[str, Choice]]:
    whole: Choice = {operation.sequence: None for operation in operations}
    sequences = list(whole)
    yield "nothing pending landed", {}
    yield "everything pending landed", whole
    for count in range(1, len(sequences)):
        yield f"the first {count} of {len(sequences)} pending landed", dict.fromkeys(sequences[:count])
    for sequence in sequences:
        yield f"pending number {sequence} alone did not land", {n: None for n in sequences if n != sequence}
    writes = [operation for operation in operations if isinstance(operation, PendingWrite)]
    for write in writes[-TORN_WRITES:]:
        for label, masks in _tears(write):
            yield f"pending write {write.sequence} torn: {label}", {**whole, write.sequence: masks}
            yield f"pending write {write.sequence} alone, torn: {label}", {write.sequence: masks}
    for number in range(subsets):
        chosen = {operation.sequence: None for operation in operations if rng.random() < 0.6}
        torn = {write.sequence: random_masks(write, rng) for write in writes if rng.random() < 0.6}
        yield f"seeded subset {number}", {**chosen, **torn}


def _tears(write: PendingWrite) -> Iterator[tuple[str, dict[int, int]]]:
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


def settled(directory: DirectoryNode, choice: Choice, done: dict[int, Node]) -> DirectoryNode:
    """A copy in which the chosen operations are durable and nothing is pending. Each node is copied once."""
    entries = dict(directory.durable)
    for operation in directory.pending:
        if operation.sequence in choice:
            operation.apply(entries)
    copy = DirectoryNode()
    for name, node in entries.items():
        if id(node) not in done:
            done[id(node)] = (
                settled(node, choice, done) if isinstance(node, DirectoryNode) else _settled_file(node, choice)
            )
        copy.live[name] = copy.durable[name] = done[id(node)]
    return copy


def _settled_file(node: FileNode, choice: Choice) -> FileNode:
    image = node.durable.fork()
    if not node.pending:
        return FileNode(image, image.fork())
    for operation in node.pending:
        if operation.sequence in choice:
            masks = choice[operation.sequence]
            if isinstance(operation, PendingWrite):
                operation.apply(image, masks)
            else:
                operation.apply(image)
    image.forget_beyond_length()
    return FileNode(image, image.fork())


def cut_short(node: FileNode, write: PendingWrite, before: Image, count: int) -> None:
    """Makes the last pending write of a copied file as if it had stopped after ``count`` pages."""
    kept = sorted(write.pages)[:count]
    node.pending = [found for found in node.pending if found.sequence != write.sequence]
    node.live = before.fork()
    if kept:
        length = min(write.length, (kept[-1] + 1) * PAGE_SIZE)
        short = PendingWrite(
            write.sequence, {n: write.pages[n] for n in kept}, {n: write.masks[n] for n in kept}, length, write.partial
        )
        node.pending.append(short)
        short.apply(node.live)


def copied(directory: DirectoryNode, done: dict[int, Node]) -> DirectoryNode:
    """A copy with everything that is pending still pending."""

    def copy_of(node: Node) -> Node:
        if id(node) not in done:
            if isinstance(node, DirectoryNode):
                done[id(node)] = copied(node, done)
            else:
                pending = [
                    PendingWrite(found.sequence, dict(found.pages), dict(found.masks), found.length, found.partial)
                    if isinstance(found, PendingWrite)
                    else found
                    for found in node.pending
                ]
                done[id(node)] = FileNode(node.live.fork(), node.durable.fork(), pending, node.diverged)
        return done[id(node)]

    copy = DirectoryNode()
    copy.live = {name: copy_of(node) for name, node in directory.live.items()}
    copy.durable = {name: copy_of(node) for name, node in directory.durable.items()}
    copy.pending = [
        PendingEntries(found.sequence, tuple((name, node and copy_of(node)) for name, node in found.changes))
        for found in directory.pending
    ]
    return copy


def facts_of(directory: DirectoryNode, path: str) -> Iterator[tuple[str, int, int]]:
    for name in sorted(directory.live):
        node = directory.live[name]
        if isinstance(node, DirectoryNode):
            yield f"{path}/{name}", -1, 0
            yield from facts_of(node, f"{path}/{name}")
        else:
            pages = frozenset(item for item in node.live.pages.items() if item[1] != ZERO_PAGE)
            yield f"{path}/{name}", node.live.length, hash(pages)
