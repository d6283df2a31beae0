"""Retention: which of the oldest segments may go. Pure; the log deletes what this says.

Only sealed segments, oldest first, never the newest; how many of them in one pass is for the log to say. One goes if
everything in it has expired, or if the sealed segments together are more than the partition's share of the topic's
largest size (which is never less than one segment: a full topic keeps its last). Neither happens to messages that a
stored offset says somebody has still to read. A full topic refuses nothing: it deletes old data.
"""

from __future__ import annotations

from collections.abc import Sequence

from shmbroker.storage.segment import SegmentInfo


def deletable_count(
    sealed: Sequence[SegmentInfo], *, now_us: int, expiry_us: int, size_max: int, segment_size: int,
    lowest_stored_offset: int | None,
) -> int:  # fmt: skip
    """How many of ``sealed`` (oldest first, without the newest segment) have to go. ``expiry_us`` and ``size_max`` are
    0 where there is no such limit."""
    size = sum(info.size for info in sealed)
    budget = max(size_max, segment_size)
    for count, info in enumerate(sealed):
        # One without messages (the machine died right after a roll) has no time, and must not keep what is behind it.
        expired = expiry_us > 0 and (info.message_count == 0 or info.last_timestamp + expiry_us <= now_us)
        over = size_max > 0 and size > budget
        if not (expired or over):
            return count
        if lowest_stored_offset is not None and info.end_offset - 1 > lowest_stored_offset:
            return count
        size -= info.size
    return len(sealed)
