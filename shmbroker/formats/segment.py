"""A segment file ``{base_offset:020}.log``: one page of header and seal, then batch records.

::

    0      8    magic                 SEGMENT_MAGIC                    } sector 0: the header, written once
    8      8    log_id                                                 }
    16     16   incarnation           of the partition                 }
    32     8    partition_id                                           }
    40     8    base_offset           of the first message             }
    48     8    base_position         log position of byte 4,096       }
    56     8    previous_end_offset   where the log ended before       }
    64     4    gap_reason            GAP_*: why base_offset is beyond }
    68     8    created_us                                             }
    76     4    checksum              crc32c over bytes 0 to 76        }
    512    8    magic                 SEAL_MAGIC                       } sector 1: the seal, written when the
    520    16   incarnation                                            } segment is closed for ever
    536    8    end_offset            after the last message           }
    544    8    end_position          after the last record: a page    }
    552    8    message_count                                          }
    560    8    first_timestamp (us)  of the first batch, 0 if none    }
    568    8    last_timestamp (us)   of the last batch                }
    576    8    index_entry_count                                      }
    584    4    checksum              crc32c over bytes 512 to 584     }
    4096        records               byte of log position p is at 4096 + p - base_position

Header and seal stand in sectors of their own, so that a torn write of the seal cannot harm the header: the page is
written again with the same first sector. The allocated file is longer than its records; what follows them is zeros.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from shmbroker.limits import PAGE_SIZE, SECTOR_SIZE

SEGMENT_MAGIC: Final = int.from_bytes(b"SHMSEGM1", "little")
SEAL_MAGIC: Final = int.from_bytes(b"SHMSEAL1", "little")
SEGMENT_HEADER: Final = Struct("<QQ16sQQQQIQ")
SEAL: Final = Struct("<Q16sQQQQQQ")
CHECKSUM: Final = Struct("<I")
SEAL_POSITION: Final = SECTOR_SIZE
DATA_POSITION: Final = PAGE_SIZE
LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"

GAP_NONE: Final = 0
GAP_UNCLEAN_END: Final = 1
"""The ring was lost: numbering went on at the reservation, so that no offset is issued twice."""
GAP_REPAIR: Final = 2
"""``log repair`` gave something up."""

assert SEGMENT_HEADER.size == 76
assert SEAL.size == 72


class SegmentHeader(NamedTuple):
    magic: int
    log_id: int
    incarnation: bytes
    partition_id: int
    base_offset: int
    base_position: int
    previous_end_offset: int
    gap_reason: int
    created_us: int


class Seal(NamedTuple):
    magic: int
    incarnation: bytes
    end_offset: int
    end_position: int
    message_count: int
    first_timestamp: int
    last_timestamp: int
    index_entry_count: int


def pack_page(header: SegmentHeader, seal: Seal | None) -> bytes:
    """The whole first page: the header, and the seal where there is one."""
    page = bytearray(PAGE_SIZE)
    _put(page, 0, SEGMENT_HEADER.pack(*header))
    if seal is not None:
        _put(page, SEAL_POSITION, SEAL.pack(*seal))
    return bytes(page)


def _put(page: bytearray, position: int, body: bytes) -> None:
    page[position : position + len(body)] = body
    CHECKSUM.pack_into(page, position + len(body), crc32c(body))


def unpack_header(page: bytes | bytearray | memoryview) -> SegmentHeader | None:
    """The header, or None where magic or checksum are wrong."""
    body = _take(page, 0, SEGMENT_HEADER.size)
    if body is None:
        return None
    header = SegmentHeader._make(SEGMENT_HEADER.unpack(body))
    return header if header.magic == SEGMENT_MAGIC else None


def unpack_seal(page: bytes | bytearray | memoryview) -> Seal | None:
    """The seal, or None where there is none or it is torn."""
    body = _take(page, SEAL_POSITION, SEAL.size)
    if body is None:
        return None
    seal = Seal._make(SEAL.unpack(body))
    return seal if seal.magic == SEAL_MAGIC else None


def _take(page: bytes | bytearray | memoryview, position: int, size: int) -> bytes | None:
    if len(page) < position + size + CHECKSUM.size:
        return None
    body = bytes(page[position : position + size])
    if CHECKSUM.unpack_from(page, position + size)[0] != crc32c(body):
        return None
    return body


def log_name(base_offset: int) -> str:
    return f"{base_offset:020}{LOG_SUFFIX}"


def index_name(base_offset: int) -> str:
    return f"{base_offset:020}{INDEX_SUFFIX}"


def base_offset_of(name: str) -> int | None:
    """The base offset that a ``.log`` or ``.index`` file name says, or None for any other name."""
    stem, dot, suffix = name.rpartition(".")
    if dot + suffix not in (LOG_SUFFIX, INDEX_SUFFIX) or len(stem) != 20 or not (stem.isascii() and stem.isdigit()):
        return None
    return int(stem)
