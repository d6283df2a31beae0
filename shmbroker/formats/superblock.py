"""The superblock of a partition, ``superblock``: two slots of one page each, written in turn.

::

    0      4096   slot 0        each slot:
    4096   4096   slot 1          0     8    magic              SUPERBLOCK_MAGIC
                                  8     8    sequence           1, 2, 3, ...: the highest valid one wins
                                  16    8    log_id
                                  24    8    partition_id
                                  32    16   incarnation        names the directory that holds the data
                                  48    8    reserved_offset    no offset at or above it was ever issued
                                  56    8    durable_position   a mark: damage below it is loss
                                  64    8    durable_offset     the offset after the last durable message
                                  72    8    clean              1 after a clean stop, until the first append
                                  80    8    end_position       of the log, where clean
                                  88    8    end_offset         of the log, where clean
                                  96    8    poison             error number of a failed write or sync, or 0
                                  104   8    broker_instance    the run of the broker that was poisoned
                                  112   8    repair_epoch       counts `log repair` runs that gave something up
                                  120   4    checksum           crc32c over bytes 0 to 120

A slot is one synchronous page write. With both slots invalid the partition refuses: the reservation is what keeps
offsets from being issued twice, so it is never guessed.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from shmbroker.limits import PAGE_SIZE

SUPERBLOCK_MAGIC: Final = int.from_bytes(b"SHMSUPR1", "little")
SLOT: Final = Struct("<QQQQ16sQQQQQQQQQ")
CHECKSUM: Final = Struct("<I")
SLOT_COUNT: Final = 2
SUPERBLOCK_SIZE: Final = SLOT_COUNT * PAGE_SIZE
FILE_NAME: Final = "superblock"

assert SLOT.size == 120


class Superblock(NamedTuple):
    magic: int
    sequence: int
    log_id: int
    partition_id: int
    incarnation: bytes
    reserved_offset: int
    durable_position: int
    durable_offset: int
    clean: int
    end_position: int
    end_offset: int
    poison: int
    broker_instance: int
    repair_epoch: int


def pack_slot(superblock: Superblock) -> bytes:
    """One page."""
    body = SLOT.pack(*superblock)
    return (body + CHECKSUM.pack(crc32c(body))).ljust(PAGE_SIZE, b"\0")


def unpack_slot(page: bytes | bytearray | memoryview) -> Superblock | None:
    if len(page) < SLOT.size + CHECKSUM.size:
        return None
    body = bytes(page[: SLOT.size])
    superblock = Superblock._make(SLOT.unpack(body))
    if superblock.magic != SUPERBLOCK_MAGIC or CHECKSUM.unpack_from(page, SLOT.size)[0] != crc32c(body):
        return None
    return superblock


def slot_position(sequence: int) -> int:
    """Where the superblock with this sequence number is written."""
    return (sequence % SLOT_COUNT) * PAGE_SIZE


def newest(contents: bytes | bytearray | memoryview) -> Superblock | None:
    """The valid slot with the highest sequence number, or None where both are bad."""
    slots = [unpack_slot(contents[n * PAGE_SIZE : (n + 1) * PAGE_SIZE]) for n in range(SLOT_COUNT)]
    valid = [slot for slot in slots if slot is not None]
    return max(valid, key=lambda slot: slot.sequence) if valid else None
