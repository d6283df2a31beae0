"""Recovery as a table: what was found of a partition (facts), and what follows from it (a decision), row by row.

Two tables, because two questions are asked one after the other. FILE_ROWS: what do the files hold, and is anything lost
that was promised? NUMBER_ROWS: at which offset and position does the log go on? :func:`decide_files` and
:func:`decide_number` are pure: exactly one row fits any facts that can occur, and facts that fit no row are a bug
(assert). :mod:`shmbroker.storage.examination` finds the facts without changing anything,
:mod:`shmbroker.storage.opening` applies the decision. Every letter has a test of its name.

The mark (rule 8) is the largest durable position that anything intact speaks of: the superblock, a seal, any intact
record, those behind damage included. What ends below it lost something that was acknowledged.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final


class Chain(Enum):
    """What the segments are, seen from their first pages."""

    NONE = auto()
    """There is no segment."""
    WHOLE = auto()
    """Each but the newest is sealed, and each begins where the one before it ends, or says why not."""
    NEWEST_HEADER_BAD = auto()
    """The first page of the newest segment cannot be read; the others are whole, or there are none."""
    INNER_BAD = auto()
    """An older segment has no readable header, no valid seal, or is shorter than its seal says."""
    FOREIGN = auto()
    """A segment belongs to another log, partition or incarnation."""
    GAP = auto()
    """A segment does not begin where the one before it ends, and does not say why."""


class Tail(Enum):
    """What stands where the newest segment stops being whole."""

    NONE = auto()
    """There is no newest segment to scan: none at all, or its header is bad."""
    SEALED = auto()
    """The newest segment has a valid seal: it ends where that says."""
    ZEROS = auto()
    """Whole records, then zeros up to the end of the file."""
    RESIDUE = auto()
    """Whole records, then something that is neither the next record nor zeros."""
    FOREIGN = auto()
    """An intact record of another partition or incarnation."""
    GAP = auto()
    """An intact record of ours whose offset is not the next one."""


class Mark(Enum):
    REACHED = auto()
    """The whole part ends at or above the mark."""
    MISSED = auto()
    """It ends below the mark: something acknowledged is lost."""


class Clean(Enum):
    """What the superblock says about a clean stop."""

    NO = auto()
    EXACT = auto()
    """It names an end, and that is where the files end."""
    OTHER = auto()
    """It names an end, and the files end elsewhere."""


class Ring(Enum):
    """What the runtime directory holds."""

    NONE = auto()
    """No ring of this log and incarnation; or there is no control block that names one."""
    OTHER = auto()
    """One that does not match or does not join the end of the files: another boot, a torn header, a later beginning."""
    SHORT = auto()
    """It matches, but its records end below what was committed."""
    REACHES = auto()
    """It matches, joins, and its records reach everything that was committed."""


class FileDecision(Enum):
    ACCEPT = auto()
    CUT = auto()
    """Zeros over everything behind the whole part."""
    DROP_NEWEST = auto()
    """Unlink the newest segment: it never held a record that anybody was promised."""
    REFUSE = auto()


class NumberDecision(Enum):
    AT_CLEAN_END = auto()
    """Go on at the offset that the clean-stop record names."""
    ADOPT_RING = auto()
    """Write the ring's records to the segment and go on after them."""
    AT_RESERVATION = auto()
    """Go on at the reservation, in a new segment that records the gap."""
    REFUSE = auto()


@dataclass(frozen=True)
class FileRow:
    letter: str
    chain: frozenset[Chain]
    tail: frozenset[Tail]
    mark: frozenset[Mark]
    decision: FileDecision
    text: str
    remedy: str = ""


@dataclass(frozen=True)
class NumberRow:
    letter: str
    clean: frozenset[Clean]
    ring: frozenset[Ring]
    within_reservation: frozenset[bool]
    decision: NumberDecision
    text: str
    remedy: str = ""


REPAIR: Final = "Stop the broker and run `shmbroker log verify`, then `shmbroker log repair` on this directory"
RESTORE: Final = "Bring back the missing or exchanged file, or run `shmbroker log repair` on this directory"

_ANY_MARK: Final = frozenset(Mark)
_ANY_TAIL: Final = frozenset(Tail)
_REACHED: Final = frozenset({Mark.REACHED})
_MISSED: Final = frozenset({Mark.MISSED})
_WHOLE: Final = frozenset({Chain.WHOLE})
_UNREAD: Final = frozenset({Tail.NONE})

FILE_ROWS: Final = (
    FileRow("A", frozenset({Chain.NONE}), _UNREAD, _REACHED, FileDecision.ACCEPT, "an empty partition"),
    FileRow("B", frozenset({Chain.NONE}), _UNREAD, _MISSED, FileDecision.REFUSE,
            "no segment is there, but messages are known to have been on stable storage", RESTORE),
    FileRow("C", frozenset({Chain.FOREIGN}), _ANY_TAIL, _ANY_MARK, FileDecision.REFUSE,
            "a segment of another partition", RESTORE),
    FileRow("D", frozenset({Chain.GAP}), _ANY_TAIL, _ANY_MARK, FileDecision.REFUSE,
            "a segment between two others is missing", RESTORE),
    FileRow("E", frozenset({Chain.INNER_BAD}), _ANY_TAIL, _ANY_MARK, FileDecision.REFUSE,
            "a segment that was sealed is damaged", REPAIR),
    FileRow("F", frozenset({Chain.NEWEST_HEADER_BAD}), _UNREAD, _REACHED, FileDecision.DROP_NEWEST,
            "the newest segment was being created"),
    FileRow("G", frozenset({Chain.NEWEST_HEADER_BAD}), _UNREAD, _MISSED, FileDecision.REFUSE,
            "the first page of the newest segment is damaged", REPAIR),
    FileRow("H", _WHOLE, frozenset({Tail.SEALED, Tail.ZEROS}), _REACHED, FileDecision.ACCEPT, "whole"),
    FileRow("I", _WHOLE, frozenset({Tail.SEALED, Tail.ZEROS}), _MISSED, FileDecision.REFUSE,
            "the log ends below what was on stable storage", REPAIR),
    FileRow("J", _WHOLE, frozenset({Tail.RESIDUE}), _REACHED, FileDecision.CUT,
            "a group that was in flight landed in part"),
    FileRow("K", _WHOLE, frozenset({Tail.RESIDUE}), _MISSED, FileDecision.REFUSE,
            "damage below what was on stable storage", REPAIR),
    FileRow("L", _WHOLE, frozenset({Tail.FOREIGN}), _ANY_MARK, FileDecision.REFUSE,
            "a record of another partition stands in the log", REPAIR),
    FileRow("M", _WHOLE, frozenset({Tail.GAP}), _ANY_MARK, FileDecision.REFUSE,
            "offsets are missing within a segment", REPAIR),
)  # fmt: skip

_ANY_RING: Final = frozenset(Ring)
_ANY_RESERVATION: Final = frozenset({True, False})
_WITHIN: Final = frozenset({True})

NUMBER_ROWS: Final = (
    NumberRow("N", frozenset({Clean.EXACT}), _ANY_RING, _WITHIN, NumberDecision.AT_CLEAN_END, "after a clean stop"),
    NumberRow("O", frozenset({Clean.OTHER}), _ANY_RING, _ANY_RESERVATION, NumberDecision.REFUSE,
              "the log does not end where the clean stop left it", RESTORE),
    NumberRow("P", frozenset({Clean.NO}), frozenset({Ring.REACHES}), _WITHIN, NumberDecision.ADOPT_RING,
              "the processes died, the machine did not"),
    NumberRow("Q", frozenset({Clean.NO}), frozenset({Ring.SHORT}), _WITHIN, NumberDecision.AT_RESERVATION,
              "the ring lost records that were committed"),
    NumberRow("R", frozenset({Clean.NO}), frozenset({Ring.NONE, Ring.OTHER}), _WITHIN, NumberDecision.AT_RESERVATION,
              "the machine died, or the runtime directory was removed"),
    NumberRow("S", frozenset({Clean.NO, Clean.EXACT}), _ANY_RING, frozenset({False}), NumberDecision.REFUSE,
              "the log holds offsets above the reservation: the superblock is older than the log", REPAIR),
)  # fmt: skip


def decide_files(chain: Chain, tail: Tail, mark: Mark) -> FileRow:
    """The one row that fits. Facts that fit none cannot occur."""
    rows = [row for row in FILE_ROWS if chain in row.chain and tail in row.tail and mark in row.mark]
    assert len(rows) == 1, f"no single row for {chain}, {tail}, {mark}"
    return rows[0]


def decide_number(clean: Clean, ring: Ring, within_reservation: bool) -> NumberRow:
    """The one row that fits; asked only where the files were accepted."""
    rows = [
        row
        for row in NUMBER_ROWS
        if clean in row.clean and ring in row.ring and within_reservation in row.within_reservation
    ]
    assert len(rows) == 1, f"no single row for {clean}, {ring}, {within_reservation}"
    return rows[0]
