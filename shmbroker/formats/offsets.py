"""The offsets file of a partition: an append-only list of what its consumers stored.

One page of header, then records; the highest sequence number of a consumer key wins::

    0     8    magic              OFFSETS_MAGIC
    8     8    log_id
    16    16   incarnation        of the partition
    32    8    generation         of the file: one more at each compaction
    40    8    durable_length     bytes known to be on stable storage when this file was made
    48    4    checksum           crc32c over bytes 0 to 48
    4096       records

A record starts at a multiple of 8::

    0     4    length             of the whole record: a multiple of 8, at least 48
    4     2    kind               STORE or DELETE; zero is not a kind
    6     2    key_length
    8     8    sequence           1, 2, 3, ... within the incarnation
    16    8    offset             last message processed; 0 in a DELETE
    24    8    timestamp (us)
    32    8    durable_length     of the file, when this record was written: damage below it is loss
    40         key                a consumer key
               zeros
    -8    8    checksum           xxh3_64 over everything before it, seeded with the low word of the incarnation

A consumer key says who stores: one byte of kind (1 a consumer, 2 a group), one byte of form (1 a number, 2 a name),
then 4 bytes of number or 1 to 255 bytes of name. Names are compared exactly; they are not hashed into the numbers.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c
from xxhash import xxh3_64_intdigest

from shmbroker.limits import NAME_SIZE_MAX

OFFSETS_MAGIC: Final = int.from_bytes(b"SHMOFFS1", "little")
OFFSETS_HEADER: Final = Struct("<QQ16sQQ")
CHECKSUM: Final = Struct("<I")
DATA_POSITION: Final = 4096
RECORD: Final = Struct("<IHHQQQQ")
RECORD_CHECKSUM: Final = Struct("<Q")
RECORD_SIZE_MIN: Final = 48
RECORD_SIZE_MAX: Final = 40 + 264 + 8
FILE_NAME: Final = "consumers.offsets"

KIND_STORE: Final = 1
KIND_DELETE: Final = 2
KEY_CONSUMER: Final = 1
KEY_GROUP: Final = 2
FORM_NUMBER: Final = 1
FORM_NAME: Final = 2

assert OFFSETS_HEADER.size == 48
assert RECORD.size == 40


class OffsetsHeader(NamedTuple):
    magic: int
    log_id: int
    incarnation: bytes
    generation: int
    durable_length: int


class OffsetRecord(NamedTuple):
    length: int
    kind: int
    sequence: int
    offset: int
    timestamp: int
    durable_length: int
    key: bytes


def pack_header(header: OffsetsHeader) -> bytes:
    body = OFFSETS_HEADER.pack(*header)
    return body + CHECKSUM.pack(crc32c(body))


def unpack_header(page: bytes | bytearray | memoryview) -> OffsetsHeader | None:
    if len(page) < OFFSETS_HEADER.size + CHECKSUM.size:
        return None
    body = bytes(page[: OFFSETS_HEADER.size])
    header = OffsetsHeader._make(OFFSETS_HEADER.unpack(body))
    if header.magic != OFFSETS_MAGIC or CHECKSUM.unpack_from(page, OFFSETS_HEADER.size)[0] != crc32c(body):
        return None
    return header


def _seed(incarnation: bytes) -> int:
    return int.from_bytes(incarnation[:8], "little")


def pack_record(
    kind: int, sequence: int, offset: int, timestamp: int, durable_length: int, key: bytes, incarnation: bytes
) -> bytes:
    length = (RECORD.size + len(key) + 7 & ~7) + RECORD_CHECKSUM.size
    body = RECORD.pack(length, kind, len(key), sequence, offset, timestamp, durable_length) + key
    body = body.ljust(length - RECORD_CHECKSUM.size, b"\0")
    return body + RECORD_CHECKSUM.pack(xxh3_64_intdigest(body, _seed(incarnation)))


def unpack_record(buffer: bytes | bytearray | memoryview, position: int, incarnation: bytes) -> OffsetRecord | None:
    """The record at ``position``, or None where no intact one stands."""
    if position + RECORD_SIZE_MIN > len(buffer):
        return None
    length, kind, key_length, sequence, offset, timestamp, durable_length = RECORD.unpack_from(buffer, position)
    if length % 8 or not RECORD_SIZE_MIN <= length <= RECORD_SIZE_MAX or position + length > len(buffer):
        return None
    if kind not in (KIND_STORE, KIND_DELETE) or RECORD.size + key_length + RECORD_CHECKSUM.size > length:
        return None
    end = position + length - RECORD_CHECKSUM.size
    if RECORD_CHECKSUM.unpack_from(buffer, end)[0] != xxh3_64_intdigest(
        bytes(buffer[position:end]), _seed(incarnation)
    ):
        return None
    key = bytes(buffer[position + RECORD.size : position + RECORD.size + key_length])
    return OffsetRecord(length, kind, sequence, offset, timestamp, durable_length, key)


def number_key(kind: int, number: int) -> bytes:
    return bytes((kind, FORM_NUMBER)) + number.to_bytes(4, "little")


def name_key(kind: int, name: str) -> bytes:
    return bytes((kind, FORM_NAME)) + name.encode()


def key_fault(key: bytes) -> str | None:
    """What is wrong with a consumer key, or None."""
    if len(key) < 3 or key[0] not in (KEY_CONSUMER, KEY_GROUP):
        return "kind of consumer"
    if key[1] == FORM_NUMBER:
        return None if len(key) == 6 else "number of consumer"
    if key[1] != FORM_NAME or len(key) - 2 > NAME_SIZE_MAX:
        return "name of consumer"
    return None
