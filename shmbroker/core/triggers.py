"""When the committed messages of a partition's journal are written to its segment. There is no timer.

The thresholds decide how often there is I/O, not what an acknowledgement means: that is the topic's ``durability``.
"""

from __future__ import annotations

from enum import StrEnum


class Trigger(StrEnum):
    """Why a journal is written out. The first that applies, in this order, is the one reported."""

    PERSISTENCE = "persistence"
    """Somebody waits for it: the topic is ``persisted``."""
    SEGMENT = "segment"
    """The active segment is full with what the journal holds."""
    COUNT = "count"
    SIZE = "size"
    PRESSURE = "pressure"
    """The memory for journals runs short."""


def flush_trigger(
    *,
    messages_count: int,
    size: int,
    segment_used: int,
    segment_size: int,
    messages_required_to_save: int,
    size_required_to_save: int,
    persisted: bool = False,
    pressure: bool = False,
) -> Trigger | None:
    """Which trigger has fired for a journal that holds ``messages_count`` unwritten messages of ``size`` bytes.

    ``segment_used``: bytes of the active segment, those of the journal included. A journal with nothing unwritten is
    never due.
    """
    assert messages_count >= 0
    assert size >= 0
    if messages_count == 0:
        return None
    if persisted:
        return Trigger.PERSISTENCE
    if segment_used >= segment_size:
        return Trigger.SEGMENT
    if messages_count >= messages_required_to_save:
        return Trigger.COUNT
    if size >= size_required_to_save:
        return Trigger.SIZE
    return Trigger.PRESSURE if pressure else None
