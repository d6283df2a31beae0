"""The bytes of every format, frozen: what was written once is still read, and is still what gets written.

``frozen/NAME.hex`` is one value of one format in hexadecimal, zeros at the end left out. A file here is never changed:
other bytes are another format, with another magic and another file. ``python -m tests.formats.test_frozen`` writes the
files that are missing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from shmbroker.client.encoding import encode_batch
from shmbroker.errors import ErrorCode
from shmbroker.formats import batch, control, headers, index, journal, lane, link, offsets, segment, superblock
from shmbroker.formats.headers import HeaderField, HeaderKind, typed

FROZEN = Path(__file__).parent / "frozen"
INCARNATION = bytes(range(0xA0, 0xB0))

BATCH_HEADER = batch.BatchHeader(
    partition_id=3, base_offset=1_000_000_007, base_timestamp=1_767_225_600_000_001,
    origin_timestamp=1_767_225_599_999_000,
    batch_length=256 + 48 * 2 + 11, batch_checksum=0, message_count=2, kind=batch.KIND_BATCH, flags=0,
    magic=batch.BATCH_MAGIC, record_length=376, log_position=4096, durable_position=2048, incarnation=INCARNATION,
    producer_id=0x1122334455667788, producer_sequence=9, content_checksum=0x8877665544332211,
)  # fmt: skip
INDEX_ENTRY = index.IndexEntry(1_000_000_007, 1_767_225_600_000_001, 4096)
JOURNAL_HEADER = journal.JournalHeader(journal.JOURNAL_MAGIC, 7, INCARNATION, 2, 1 << 20, 8192, bytes(range(16)))
OFFSETS_HEADER = offsets.OffsetsHeader(offsets.OFFSETS_MAGIC, 7, INCARNATION, 4, 4096 + 48)
SEGMENT_HEADER = segment.SegmentHeader(
    segment.SEGMENT_MAGIC,
    7,
    INCARNATION,
    3,
    1_000_000_007,
    8192,
    1_000_000_000,
    segment.GAP_REPAIR,
    1_767_225_600_000_000,
)
SEAL = segment.Seal(segment.SEAL_MAGIC, INCARNATION, 1_000_000_107, 12_288, 100, 1_767_225_600_000_001,
                    1_767_225_600_000_009, 1)  # fmt: skip
SUPERBLOCK = superblock.Superblock(
    magic=superblock.SUPERBLOCK_MAGIC, sequence=12, log_id=7, partition_id=3, incarnation=INCARNATION,
    reserved_offset=1 << 27, durable_position=12_288, durable_offset=1_000_000_107, clean=1, end_position=16_384,
    end_offset=1_000_000_110, poison=10009, broker_instance=0xFEDCBA9876543210, repair_epoch=2,
)  # fmt: skip
PAIRS = sorted([
    (HeaderField(HeaderKind.RAW, b"\x00\xff"), HeaderField(HeaderKind.RAW, b"\x01")),
    (HeaderField(HeaderKind.STRING, b"bool"), typed(HeaderKind.BOOL, True)),
    (HeaderField(HeaderKind.STRING, b"i8"), typed(HeaderKind.INT8, -1)),
    (HeaderField(HeaderKind.STRING, b"i16"), typed(HeaderKind.INT16, -2)),
    (HeaderField(HeaderKind.STRING, b"i32"), typed(HeaderKind.INT32, -3)),
    (HeaderField(HeaderKind.STRING, b"i64"), typed(HeaderKind.INT64, -4)),
    (HeaderField(HeaderKind.STRING, b"i128"), typed(HeaderKind.INT128, -5)),
    (HeaderField(HeaderKind.STRING, b"u8"), typed(HeaderKind.UINT8, 1)),
    (HeaderField(HeaderKind.STRING, b"u16"), typed(HeaderKind.UINT16, 2)),
    (HeaderField(HeaderKind.STRING, b"u32"), typed(HeaderKind.UINT32, 3)),
    (HeaderField(HeaderKind.STRING, b"u64"), typed(HeaderKind.UINT64, 4)),
    (HeaderField(HeaderKind.STRING, b"u128"), typed(HeaderKind.UINT128, 5)),
    (HeaderField(HeaderKind.STRING, b"f32"), typed(HeaderKind.FLOAT32, 1.5)),
    (HeaderField(HeaderKind.STRING, b"f64"), typed(HeaderKind.FLOAT64, -2.5)),
    (HeaderField(HeaderKind.STRING, b"text"), typed(HeaderKind.STRING, "\u00e9")),
    (HeaderField(200, b"later"), HeaderField(201, b"kinds")),
])  # fmt: skip
GROUP_KEY = offsets.name_key(offsets.KEY_GROUP, "billing")
CONSUMER_KEY = offsets.number_key(offsets.KEY_CONSUMER, 70_000)
FILLER = (3, 1_000_000_009, 1_767_225_600_000_002, 4472, 4096, INCARNATION)
LANE_WORDS = (
    lane.WORD_MAGIC, lane.WORD_REQUEST_SIZE, lane.WORD_COMPLETION_COUNT, lane.WORD_LANE_ID, lane.WORD_CLOSED,
    lane.WORD_REQUEST_HEAD, lane.WORD_REQUEST_TAIL, lane.WORD_COMPLETION_HEAD, lane.WORD_COMPLETION_TAIL,
)  # fmt: skip


def words_page(magic: int, words: dict[int, int], size: int) -> bytes:
    view = memoryview(bytearray(size)).cast("Q")
    view[0] = magic
    for word, value in words.items():
        view[word] = value
    return view.tobytes()


def control_words() -> dict[str, int]:
    names = [name for name in vars(control) if name.startswith("WORD_") and name != "WORD_MAGIC"]
    return {name: getattr(control, name) for name in sorted(names)}


def whole_batch() -> bytes:
    header, content = encode_batch(
        [b"first", b"second message"], id_base=5 << 64 | 1, origin_timestamp_us=1_767_225_599_999_000, producer_id=5,
        sequence=77, headers=[None, {"key": "value", "n": 300}], ids=[0, (1 << 128) - 1],
    )  # fmt: skip
    return header + content


class Case(NamedTuple):
    pack: Callable[[], bytes]
    """The bytes as they are made now."""
    read: Callable[[bytes], Any]
    """What the bytes say, and must say for ever."""
    means: Any


def read_lane(data: bytes) -> Any:
    return lane.REQUEST.unpack_from(data), lane.COMPLETION.unpack_from(data, lane.REQUEST_SIZE)


CASES = {
    "batch-header": Case(
        lambda: batch.pack_header(BATCH_HEADER),
        lambda data: (batch.unpack_header(data), batch.header_checksum_holds(data)), (BATCH_HEADER, True),
    ),
    "batch-record": Case(
        whole_batch,
        lambda data: (batch.unpack_header(data).message_count, batch.shape_fault(batch.unpack_header(data), len(data)),
                      batch.content_checksum_of(data[256 : 256 + batch.content_length_of(batch.unpack_header(data))])
                      == batch.unpack_header(data).content_checksum, batch.FRAME_HEADER.unpack_from(data, 256 + 53)),
        (2, None, True, (0, b"\xff" * 16, 1, 0, 31, 14, 0)),
    ),
    "batch-filler": Case(
        lambda: batch.pack_filler(*FILLER),
        lambda data: (batch.shape_fault(batch.unpack_header(data), len(data)), batch.unpack_header(data).kind,
                      batch.unpack_header(data).base_offset, batch.unpack_header(data).log_position, len(data)),
        (None, batch.KIND_FILLER, 1_000_000_009, 4472, 8192 - 4472),
    ),
    "control": Case(
        lambda: words_page(control.CONTROL_MAGIC, {word: word * 1_000_003 for word in control_words().values()}, 4096),
        lambda data: {name: memoryview(data).cast("Q")[word] for name, word in control_words().items()},
        {name: word * 1_000_003 for name, word in control_words().items()},
    ),
    "headers": Case(lambda: headers.pack_pairs(PAIRS), headers.unpack_pairs, PAIRS),
    "index": Case(
        lambda: index.pack_header(INCARNATION, 1_000_000_007) + index.pack_entry(INDEX_ENTRY, INCARNATION),
        lambda data: (
            index.header_matches(data, INCARNATION, 1_000_000_007), list(index.unpack_entries(data, INCARNATION)),
        ),
        (True, [INDEX_ENTRY]),
    ),
    "journal": Case(lambda: journal.pack_header(JOURNAL_HEADER), journal.unpack_header, JOURNAL_HEADER),
    "lane-words": Case(
        lambda: words_page(lane.LANE_MAGIC, {word: word * 1_000_003 for word in LANE_WORDS[1:]}, 1024),
        lambda data: [memoryview(data).cast("Q")[word] for word in LANE_WORDS],
        [lane.LANE_MAGIC, *(word * 1_000_003 for word in LANE_WORDS[1:])],
    ),
    "lane-records": Case(
        lambda: lane.REQUEST.pack(400, lane.REQUEST_APPEND, 1, 12, 7, 5)
        + lane.COMPLETION.pack(12, ErrorCode.DISK_FULL, 28, 1_000_000_007, 2 | lane.FLAG_DUPLICATE),
        read_lane,
        ((400, 2, 1, 12, 7, 5), (12, 20002, 28, 1_000_000_007, 2 | 1 << 63)),
    ),
    "link": Case(
        lambda: b"".join(link.packets_of(9, ErrorCode.DISK_FULL, b"{}") + link.packets_of(10, 0, b"")),
        lambda data: (link.PACKET.unpack_from(data), data[16:18], link.PACKET.unpack_from(data, 18)),
        ((9, 20002, 0), b"{}", (10, 0, 0)),
    ),
    "offsets-header": Case(lambda: offsets.pack_header(OFFSETS_HEADER), offsets.unpack_header, OFFSETS_HEADER),
    "offsets-store": Case(
        lambda: offsets.pack_record(offsets.KIND_STORE, 5, 41, 1_767_225_600_000_003, 4096, GROUP_KEY, INCARNATION),
        lambda data: offsets.unpack_record(data, 0, INCARNATION),
        offsets.OffsetRecord(64, offsets.KIND_STORE, 5, 41, 1_767_225_600_000_003, 4096, b"\x02\x02billing"),
    ),
    "offsets-delete": Case(
        lambda: offsets.pack_record(offsets.KIND_DELETE, 6, 0, 1_767_225_600_000_004, 4160, CONSUMER_KEY, INCARNATION),
        lambda data: offsets.unpack_record(data, 0, INCARNATION),
        offsets.OffsetRecord(56, offsets.KIND_DELETE, 6, 0, 1_767_225_600_000_004, 4160, b"\x01\x01\x70\x11\x01\x00"),
    ),
    "segment": Case(
        lambda: segment.pack_page(SEGMENT_HEADER, SEAL),
        lambda data: (segment.unpack_header(data), segment.unpack_seal(data)), (SEGMENT_HEADER, SEAL),
    ),
    "segment-open": Case(
        lambda: segment.pack_page(SEGMENT_HEADER, None),
        lambda data: (segment.unpack_header(data), segment.unpack_seal(data)), (SEGMENT_HEADER, None),
    ),
    "superblock": Case(lambda: superblock.pack_slot(SUPERBLOCK), superblock.unpack_slot, SUPERBLOCK),
}  # fmt: skip

FORMATS = {name.partition("-")[0] for name in CASES}


def frozen(name: str) -> bytes:
    """The whole size first, then the bytes without the zeros at their end."""
    size, _, text = (FROZEN / f"{name}.hex").read_text().partition("\n")
    return bytes.fromhex(text).ljust(int(size), b"\0")


def text_of(data: bytes) -> str:
    text = data.rstrip(b"\0").hex()
    return f"{len(data)}\n" + "".join(text[at : at + 64] + "\n" for at in range(0, len(text), 64))


@pytest.mark.parametrize("name", CASES)
def test_frozen_bytes_are_still_read(name: str) -> None:
    assert CASES[name].read(frozen(name)) == CASES[name].means


@pytest.mark.parametrize("name", CASES)
def test_what_is_written_now_equals_the_frozen_bytes(name: str) -> None:
    assert CASES[name].pack().hex() == frozen(name).hex()


def test_every_format_is_frozen() -> None:
    modules = {path.stem for path in Path(batch.__file__).parent.glob("*.py")} - {"__init__"}
    assert modules - {"quantities"} == FORMATS, "quantities has text and no bytes; all others are frozen"
    assert {path.stem for path in FROZEN.glob("*.hex")} == set(CASES)


class Checked(NamedTuple):
    holds: Callable[[bytes], bool]
    covered: list[range]
    """The bytes that a checksum vouches for, with the checksum itself."""


CHECKED = {
    "batch-header": Checked(batch.header_checksum_holds, [range(256)]),
    "index": Checked(
        lambda data: (
            index.header_matches(data, INCARNATION, 1_000_000_007)
            and bool(list(index.unpack_entries(data, INCARNATION)))
        ),
        [range(64)],
    ),
    "journal": Checked(lambda data: journal.unpack_header(data) is not None, [range(76)]),
    "offsets-header": Checked(lambda data: offsets.unpack_header(data) is not None, [range(52)]),
    "offsets-store": Checked(lambda data: offsets.unpack_record(data, 0, INCARNATION) is not None, [range(64)]),
    "segment": Checked(
        lambda data: segment.unpack_header(data) is not None and segment.unpack_seal(data) is not None,
        [range(80), range(512, 588)],
    ),
    "superblock": Checked(lambda data: superblock.unpack_slot(data) is not None, [range(124)]),
}


@pytest.mark.parametrize("name", CHECKED)
def test_no_flipped_bit_is_believed(name: str) -> None:
    data, (holds, covered) = frozen(name), CHECKED[name]
    assert holds(data)
    for at in (at for span in covered for at in span):
        for bit in range(8):
            harmed = bytearray(data)
            harmed[at] ^= 1 << bit
            assert not holds(bytes(harmed)), f"byte {at}, bit {bit}"


if __name__ == "__main__":
    FROZEN.mkdir(exist_ok=True)
    for case_name, case in CASES.items():
        path = FROZEN / f"{case_name}.hex"
        if not path.exists():
            path.write_text(text_of(case.pack()))
