"""Any file of ours as text: ``log dump``. Reads only; says of each checksum whether it holds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Final

from shmbroker.errors import ClientMistake
from shmbroker.formats import batch, control, index, journal, offsets, segment, superblock
from shmbroker.limits import PAGE_SIZE
from shmbroker.storage.segment_view import map_file

LINES_MAX_DEFAULT: Final = 1_000
US_PER_S: Final = 1_000_000
GIVEN_UP_SUFFIX: Final = ".given-up"
"""Of the files in which a repair keeps what it gave up."""
Dumper = Callable[[memoryview], Iterator[str]]
GAP_TEXTS: Final = {
    segment.GAP_NONE: "none", segment.GAP_UNCLEAN_END: "the ring was lost", segment.GAP_REPAIR: "repaired",
}  # fmt: skip


def dump(path: str, *, lines_max: int = LINES_MAX_DEFAULT) -> Iterator[str]:
    """Lines of text for a file, or for every file below a directory. A file gives at most ``lines_max`` lines.

    Raises ClientMistake where there is nothing, or the file is none of ours.
    """
    if os.path.isdir(path):
        for directory, names, files in os.walk(path):
            names.sort()
            for name in sorted(files):
                whole = os.path.join(directory, name)
                if not os.path.isfile(whole):
                    yield f"{whole}: is not a file: it is passed over"
                    continue
                if _dumper_of(whole, map_file(whole)) is not None:
                    yield f"{whole}:"
                    yield from ("  " + line for line in _dump_file(whole, lines_max))
        return
    if not os.path.exists(path):
        raise ClientMistake(f"{path} is not there")
    yield from _dump_file(path, lines_max)


def _dump_file(path: str, lines_max: int) -> Iterator[str]:
    contents = map_file(path)
    dumper = _dumper_of(path, contents)
    if dumper is None:
        raise ClientMistake(f"{path} is not a file of shmbroker, or its first bytes are lost")
    lines = dumper(contents)
    for number, line in enumerate(lines):
        if number == lines_max:
            yield f"... and more: {len(contents)} bytes in all"
            return
        yield line


def _dumper_of(path: str, contents: memoryview) -> Dumper | None:
    """By the magic of the file. A superblock may have lost its first slot."""
    for at in (0, PAGE_SIZE):
        magic = int.from_bytes(contents[at : at + 8], "little")
        if magic in DUMPERS and (at == 0 or magic == superblock.SUPERBLOCK_MAGIC):
            return DUMPERS[magic]
    return _given_up if path.endswith(GIVEN_UP_SUFFIX) else None


def _time(timestamp_us: int) -> str:
    try:
        return datetime.fromtimestamp(timestamp_us / US_PER_S, UTC).isoformat(timespec="microseconds")
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_us} us"


def _fields(value: object) -> str:
    names: tuple[str, ...] = value._fields  # type: ignore[attr-defined]
    parts = []
    for name in names:
        item = getattr(value, name)
        if name == "magic":
            continue
        text = item.hex() if isinstance(item, bytes) else str(item)
        parts.append(f"{name}={text}")
    return " ".join(parts)


def _superblock(contents: memoryview) -> Iterator[str]:
    newest = superblock.newest(contents)
    for slot in range(superblock.SLOT_COUNT):
        found = superblock.unpack_slot(contents[slot * PAGE_SIZE : (slot + 1) * PAGE_SIZE])
        current = " (current)" if found is not None and found == newest else ""
        yield f"slot {slot}{current}: " + (_fields(found) if found else "damaged or never written")


def _segment(contents: memoryview) -> Iterator[str]:
    header, seal = segment.unpack_header(contents), segment.unpack_seal(contents)
    if header is None:
        yield "header: damaged"
        shift = 0
    else:
        yield f"header: {_fields(header)} gap={GAP_TEXTS.get(header.gap_reason, 'unknown')}"
        shift = segment.DATA_POSITION - header.base_position
    yield "seal: " + (_fields(seal) if seal else "none")
    yield from _records(contents, segment.DATA_POSITION, shift)


def _records(contents: memoryview, at: int, shift: int) -> Iterator[str]:
    while at + batch.HEADER_SIZE <= len(contents):
        header = batch.unpack_header(contents, at)
        if header.magic != batch.BATCH_MAGIC:
            rest = bytes(contents[at:]).rstrip(b"\0")
            yield f"byte {at}: " + (f"{len(rest)} bytes that are no record" if rest else "zeros to the end")
            return
        fault = _record_fault(contents, at, header, shift)
        yield f"byte {at}: {_record_text(header)} {fault}"
        if not batch.HEADER_SIZE <= header.record_length <= len(contents) - at or header.record_length % 8:
            return
        at += header.record_length


def _record_text(header: batch.BatchHeader) -> str:
    if header.kind == batch.KIND_FILLER:
        return (
            f"position={header.log_position} filler of {header.record_length} bytes, next offset {header.base_offset}"
        )
    producer = f" producer={header.producer_id:x}/{header.producer_sequence}" if header.producer_id else ""
    last = header.base_offset + header.message_count - 1
    return (
        f"position={header.log_position} offsets={header.base_offset}..{last} time={_time(header.base_timestamp)}"
        f" length={header.record_length} durable={header.durable_position}{producer}"
    )


def _record_fault(contents: memoryview, at: int, header: batch.BatchHeader, shift: int) -> str:
    if not batch.header_checksum_holds(contents, at):
        return "BAD header checksum"
    fault = batch.shape_fault(header, len(contents) - at)
    if fault:
        return f"BAD {fault}"
    if shift and header.log_position + shift != at:
        return "BAD position"
    if header.kind == batch.KIND_BATCH:
        start = at + batch.HEADER_SIZE
        content = contents[start : start + batch.content_length_of(header)]
        if batch.content_checksum_of(content) != header.content_checksum:
            return "BAD content checksum"
    return "ok"


def _index(contents: memoryview) -> Iterator[str]:
    _, incarnation, base_offset = index.INDEX_HEADER.unpack_from(contents)
    yield f"header: incarnation={incarnation.hex()} base_offset={base_offset}"
    for entry in index.unpack_entries(contents, incarnation):
        yield f"offset={entry.offset} time={_time(entry.timestamp)} position={entry.position}"


def _offsets(contents: memoryview) -> Iterator[str]:
    header = offsets.unpack_header(contents)
    if header is None:
        yield "header: damaged"
        return
    yield f"header: {_fields(header)}"
    at = offsets.DATA_POSITION
    while (record := offsets.unpack_record(contents, at, header.incarnation)) is not None:
        what = f"store {record.offset}" if record.kind == offsets.KIND_STORE else "delete"
        yield (
            f"byte {at}: {_key_text(record.key)}: {what} sequence={record.sequence} time={_time(record.timestamp)}"
            f" durable={record.durable_length}"
        )
        at += record.length
    rest = bytes(contents[at:]).rstrip(b"\0")
    yield f"byte {at}: " + (f"{len(rest)} bytes that are no record" if rest else "zeros to the end")


def _key_text(key: bytes) -> str:
    if offsets.key_fault(key):
        return f"key {key.hex()}"
    kind = "consumer" if key[0] == offsets.KEY_CONSUMER else "group"
    if key[1] == offsets.FORM_NUMBER:
        return f"{kind} {int.from_bytes(key[2:], 'little')}"
    return f"{kind} {key[2:].decode(errors='replace')!r}"


def _ring(contents: memoryview) -> Iterator[str]:
    header = journal.unpack_header(contents)
    yield f"ring: {_fields(header)}" if header else "ring header: damaged"


def _control(contents: memoryview) -> Iterator[str]:
    words = contents[: control.CONTROL_SIZE].cast("Q")
    named = {name: word for name, word in vars(control).items() if name.startswith("WORD_") and name != "WORD_MAGIC"}
    for name, word in sorted(named.items(), key=lambda item: item[1]):
        text = f"{words[word]:#x}" if "INCARNATION" in name else str(words[word])
        yield f"{name.removeprefix('WORD_').lower()} = {text}"
    for name, word in control.COUNTER.items():
        yield f"{name} = {words[word]}"


def _given_up(contents: memoryview) -> Iterator[str]:
    """What a repair put aside, damage first as a rule: every record that is found in it."""
    words = contents[: len(contents) & ~7].cast("Q")
    at = 0
    for word, value in enumerate(words):
        start = 8 * word - batch.MAGIC_POSITION
        if value == batch.BATCH_MAGIC and start >= at and start + batch.HEADER_SIZE <= len(contents):
            if start > at:
                yield f"byte {at}: {start - at} bytes that are no record"
            header = batch.unpack_header(contents, start)
            yield f"byte {start}: {_record_text(header)} {_record_fault(contents, start, header, 0)}"
            at = start + (header.record_length if batch.header_checksum_holds(contents, start) else batch.HEADER_SIZE)
    if at < len(contents):
        yield f"byte {at}: {len(contents) - at} bytes that are no record"


DUMPERS: Final[dict[int, Dumper]] = {
    superblock.SUPERBLOCK_MAGIC: _superblock,
    segment.SEGMENT_MAGIC: _segment,
    index.INDEX_MAGIC: _index,
    offsets.OFFSETS_MAGIC: _offsets,
    journal.JOURNAL_MAGIC: _ring,
    control.CONTROL_MAGIC: _control,
}
