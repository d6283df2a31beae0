"""The lane: one client's requests to one worker, and the worker's completions, in one region of shared memory.

The region is a sealed memory file (it can neither shrink nor grow), made by the front, mapped by the two ends::

    0        8    magic              LANE_MAGIC, stored last by the front
    8        8    request_size       bytes of the request ring: a multiple of 4,096
    16       8    completion_count   slots of the completion ring: a power of two
    24       8    lane_id
    32       8    closed             0, or the error number for which the worker closed this lane
    128      8    request_head       written by the client: bytes published since the lane began
    256      8    request_tail       written by the worker: bytes consumed
    384      8    completion_head    written by the worker: slots published
    512      8    completion_tail    written by the client: slots consumed
    4096          completion ring    completion_count slots of 32 bytes
    ...           request ring       starts at the next multiple of 4,096

Heads and tails only grow. Each stands on a pair of cache lines of its own, since its writer is another process.

A request starts at a multiple of 8 and never wraps: what does not fit before the end of the ring is preceded by a SKIP
that fills it. The smallest gap at the end is 8 bytes, so a SKIP is its first 8 bytes alone::

    0    4    length           of the whole request, header included: a multiple of 8
    4    2    kind             one of the REQUEST_* numbers below; zero is not a kind
    6    2    flags            of the kind
    8    8    request_number   of the client; comes back in the completion. Zero is not used
    16   8    log_id           the partition's log
    24   8    argument         of the kind
    32        body             APPEND: a batch record. Others: see the kind

A completion::

    0    8    request_number
    8    4    status           0, or an error number (shmbroker.errors)
    12   4    detail           of the kind: an errno where the status is a failure of the disk
    16   8    value            APPEND: base offset. GET_OFFSET: the stored offset
    24   8    argument         APPEND: message count, FLAG_DUPLICATE in bit 63 where an earlier append was found
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from shmbroker.limits import LANE_COMPLETION_COUNT, PAGE_SIZE

LANE_MAGIC: Final = int.from_bytes(b"SHMLANE1", "little")

# Indices of 8-byte words, for shm.words.
WORD_MAGIC: Final = 0
WORD_REQUEST_SIZE: Final = 1
WORD_COMPLETION_COUNT: Final = 2
WORD_LANE_ID: Final = 3
WORD_CLOSED: Final = 4
WORD_REQUEST_HEAD: Final = 128 // 8
WORD_REQUEST_TAIL: Final = 256 // 8
WORD_COMPLETION_HEAD: Final = 384 // 8
WORD_COMPLETION_TAIL: Final = 512 // 8

COMPLETIONS_POSITION: Final = PAGE_SIZE
COMPLETION: Final = Struct("<QIIQQ")
COMPLETION_SIZE: Final = 32
REQUESTS_POSITION: Final = COMPLETIONS_POSITION + LANE_COMPLETION_COUNT * COMPLETION_SIZE

REQUEST: Final = Struct("<IHHQQQ")
REQUEST_SIZE: Final = 32
REQUEST_WORD: Final = Struct("<IHH")
REQUEST_ALIGNMENT: Final = 8

REQUEST_SKIP: Final = 1
REQUEST_APPEND: Final = 2
"""Body: a batch record. Argument: unused."""
REQUEST_STORE_OFFSET: Final = 3
"""Argument: the offset. Body: pack_key of a consumer key (formats.offsets). Flags: FLAG_AUTOMATIC."""
REQUEST_DELETE_OFFSET: Final = 4
"""Body: pack_key of a consumer key."""
REQUEST_GET_OFFSET: Final = 5
"""Body: pack_key of a consumer key. Status CONSUMER_OFFSET_NOT_FOUND where none is stored."""
REQUEST_FLUSH: Final = 6
"""Writes what is committed. Flags: FLAG_SYNC also synchronises it."""
REQUEST_CONTROL: Final = 7
"""From the front only. Argument: length of the body, a JSON object (formats.link lists them). The answer comes by the
link; the completion that comes too only makes room in the lane."""

FLAG_AUTOMATIC: Final = 1
"""Of STORE_OFFSET: by auto-commit. Never lowers an offset, and completes without waiting for its policy."""
FLAG_SYNC: Final = 1
FLAG_DUPLICATE: Final = 1 << 63

KEY_LENGTH: Final = Struct("<H")
"""A consumer key in a body: its length, then its bytes. The padding of the request would else belong to the key."""

assert COMPLETION.size == COMPLETION_SIZE
assert REQUEST.size == REQUEST_SIZE
assert REQUESTS_POSITION % PAGE_SIZE == 0
assert LANE_COMPLETION_COUNT & (LANE_COMPLETION_COUNT - 1) == 0


def region_size_of(request_size: int) -> int:
    """Bytes of the region of a lane whose request ring has ``request_size`` bytes."""
    assert request_size % PAGE_SIZE == 0
    return REQUESTS_POSITION + request_size


def pack_key(key: bytes) -> bytes:
    """The body of a request about a stored offset."""
    return KEY_LENGTH.pack(len(key)) + key


def unpack_key(body: bytes) -> bytes | None:
    """The consumer key in such a body, or None where its length lies."""
    if len(body) < KEY_LENGTH.size:
        return None
    length: int = KEY_LENGTH.unpack_from(body)[0]
    key = body[KEY_LENGTH.size : KEY_LENGTH.size + length]
    return key if len(key) == length else None
