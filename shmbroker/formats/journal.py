"""The file of a ring journal, in the runtime directory: one page of header, then the ring.

::

    0     8    magic          JOURNAL_MAGIC
    8     8    log_id
    16    16   incarnation    of the partition
    32    8    generation     of the ring, counted from 1 within the incarnation
    40    8    ring_size      bytes of data: a power of two, at least 1 MiB
    48    8    ring_base      log position at which this ring began: a multiple of 4,096
    56    16   boot_id        of the kernel: a ring of another boot is never adopted
    72    4    checksum       crc32c over bytes 0 to 72
    4096       data           byte of log position p is at (p mod ring_size)
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from shmbroker.limits import PAGE_SIZE

JOURNAL_MAGIC: Final = int.from_bytes(b"SHMRING1", "little")
JOURNAL_HEADER: Final = Struct("<QQ16sQQQ16s")
CHECKSUM: Final = Struct("<I")
DATA_POSITION: Final = PAGE_SIZE

assert JOURNAL_HEADER.size == 72


class JournalHeader(NamedTuple):
    magic: int
    log_id: int
    incarnation: bytes
    generation: int
    ring_size: int
    ring_base: int
    boot_id: bytes


def pack_header(header: JournalHeader) -> bytes:
    body = JOURNAL_HEADER.pack(*header)
    return body + CHECKSUM.pack(crc32c(body))


def unpack_header(page: bytes | bytearray | memoryview) -> JournalHeader | None:
    """The header, or None where magic or checksum are wrong."""
    if len(page) < JOURNAL_HEADER.size + CHECKSUM.size:
        return None
    body = bytes(page[: JOURNAL_HEADER.size])
    header = JournalHeader._make(JOURNAL_HEADER.unpack(body))
    if header.magic != JOURNAL_MAGIC or CHECKSUM.unpack_from(page, JOURNAL_HEADER.size)[0] != crc32c(body):
        return None
    return header
