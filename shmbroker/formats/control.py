"""The control block of a partition: what its worker publishes to everybody, a page in the runtime directory.

Written by the worker that owns the partition, word by word (shm.words); mapped read-only by everybody else. Its inode
lives as long as the partition's incarnation and is used again by a respawned worker (rule 14)::

    word  0    magic                CONTROL_MAGIC, stored last
          1    state                one of STATE_*
          2    log_id
          3,4  incarnation          16 bytes, low word first
          5    broker_instance      random number of the broker run that opened it
          6    error                error number while REFUSED or POISONED, else 0
    word 16    committed_position   end of what is appended                    } a position is a byte of the log,
         17    committed_offset     the offset that the next message gets      } an offset a message
         18    durable_position     end of what is on stable storage
         19    durable_offset       the offset after the last durable message
         20    visible_position     readers follow this: durable where the topic is persisted, else committed
         21    visible_offset
         22    file_position        end of what was written to the segment files
         23    stable_position      below it no file page is written again: readers take files below, the ring above
         24    closed               1 while the log ends in a filler at a page boundary and has no ring
    word 32    ring_generation      names the ring file; 0 where there is none
         33    ring_size            bytes of its data
         34    ring_base            log position at which this ring began
         35    overwrite_end        stored before the ring is written up to it, zero-fill included (rule 6)
         36    ring_generation_last the highest generation that was ever used: none is used twice
    word 48    segments_generation  changes whenever a segment is added or removed
         49    segment_count
         50    first_offset         the earliest offset that is kept
         51    first_position
         52    active_base_offset   of the active segment
         53    active_base_position
         54    active_allocated     bytes of the active segment's file that may be mapped
    word 64..  counters, see COUNTERS: they only grow, and cost the worker one store a pass

After a segment roll, ``visible`` words are stored before ``segments_generation`` is read by anyone who needs it: a
reader that finds a position beyond the segments it knows looks the directory up again.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

CONTROL_SIZE: Final = 4096
CONTROL_MAGIC: Final = int.from_bytes(b"SHMCTRL1", "little")

WORD_MAGIC: Final = 0
WORD_STATE: Final = 1
WORD_LOG_ID: Final = 2
WORD_INCARNATION_LOW: Final = 3
WORD_INCARNATION_HIGH: Final = 4
WORD_BROKER_INSTANCE: Final = 5
WORD_ERROR: Final = 6

WORD_COMMITTED_POSITION: Final = 16
WORD_COMMITTED_OFFSET: Final = 17
WORD_DURABLE_POSITION: Final = 18
WORD_DURABLE_OFFSET: Final = 19
WORD_VISIBLE_POSITION: Final = 20
WORD_VISIBLE_OFFSET: Final = 21
WORD_FILE_POSITION: Final = 22
WORD_STABLE_POSITION: Final = 23
WORD_CLOSED: Final = 24

WORD_RING_GENERATION: Final = 32
WORD_RING_SIZE: Final = 33
WORD_RING_BASE: Final = 34
WORD_OVERWRITE_END: Final = 35
WORD_RING_GENERATION_LAST: Final = 36

WORD_SEGMENTS_GENERATION: Final = 48
WORD_SEGMENT_COUNT: Final = 49
WORD_FIRST_OFFSET: Final = 50
WORD_FIRST_POSITION: Final = 51
WORD_ACTIVE_BASE_OFFSET: Final = 52
WORD_ACTIVE_BASE_POSITION: Final = 53
WORD_ACTIVE_ALLOCATED: Final = 54

COUNTER_FIRST: Final = 64
COUNTERS: Final = (
    "messages", "bytes", "batches", "duplicates",
    "groups", "writes", "written_bytes", "syncs",
    "flushes_by_count", "flushes_by_size", "flushes_by_roll", "flushes_by_pressure", "flushes_by_request",
    "offsets_stored", "segments_deleted", "messages_retained", "bytes_retained", "direct_io",
)  # fmt: skip
"""messages_retained and bytes_retained count what the log holds now; direct_io is 1 where writes are O_DIRECT."""
COUNTER: Final = {name: COUNTER_FIRST + number for number, name in enumerate(COUNTERS)}


class State(IntEnum):
    """What a partition can do."""

    OPENING = 1
    OPEN = 2
    REPLACED = 3
    """Purged: a new incarnation has a control block of its own."""
    REFUSED = 4
    """Recovery found loss: nothing is served until somebody repairs it."""
    POISONED = 5
    """A write or a sync failed: reads go on, nothing is accepted until the broker is started again."""
    DELETED = 6
    CLOSED = 7
    """After a clean stop."""


assert (COUNTER_FIRST + len(COUNTERS)) * 8 <= CONTROL_SIZE
