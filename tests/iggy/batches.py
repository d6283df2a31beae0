"""Batches of the wire as any client would make them, by the plainest code; and what is wrong with one, if anything."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from xxhash import xxh3_64_intdigest

HEADER = struct.Struct("<QQQQQQI204x")
FRAME = struct.Struct("<16sIIIIQ")


def wire_frame(payload: bytes, delta: int, headers: bytes = b"", message_id: int = 1) -> bytes:
    rest = FRAME.pack(message_id.to_bytes(16, "little"), delta, 0, len(headers), len(payload), 0) + payload + headers
    return xxh3_64_intdigest(rest).to_bytes(8, "little") + rest


def wire_batch(payloads: Sequence[bytes], origin_us: int = 1_000_000) -> bytes:
    return join_frames([wire_frame(payload, delta) for delta, payload in enumerate(payloads)], origin_us)


def join_frames(frames: Sequence[bytes], origin_us: int = 1_000_000, count: int | None = None) -> bytes:
    count = len(frames) if count is None else count
    length = 256 + sum(map(len, frames))
    checksum = checksum_of(0, 0, 0, origin_us, length, count, frames)
    return HEADER.pack(0, 0, 0, origin_us, length, checksum, count) + b"".join(frames)


def checksum_of(
    partition: int, base: int, base_us: int, origin_us: int, length: int, count: int, frames: Sequence[bytes]
) -> int:
    head = struct.pack("<QQQQQI", partition, base, base_us, origin_us, length, count)
    return xxh3_64_intdigest(head + b"".join(frame[:8] for frame in frames))


def split_batches(records: bytes) -> list[tuple[int, int, list[bytes]]]:
    """(partition, base offset, frames) of each batch in a poll's reply. Fails where anything is not as it must be."""
    found = []
    while records:
        partition, base, base_us, origin_us, length, checksum, count = HEADER.unpack_from(records)
        assert records[52:256] == bytes(204)
        frames, at = [], 256
        while at < length:
            headers_length, payload_length = struct.unpack_from("<II", records, at + 32)
            end = at + 48 + headers_length + payload_length
            frame = records[at:end]
            assert int.from_bytes(frame[:8], "little") == xxh3_64_intdigest(frame[8:])
            frames.append(frame)
            at = end
        assert at == length
        assert len(frames) == count
        assert checksum == checksum_of(partition, base, base_us, origin_us, length, count, frames)
        found.append((partition, base, frames))
        records = records[length:]
    return found


def messages_of(records: bytes) -> list[tuple[int, bytes]]:
    """(offset, payload) of each message in a poll's reply."""
    found = []
    for _, base, frames in split_batches(records):
        for frame in frames:
            delta = int.from_bytes(frame[24:28], "little")
            payload_length = int.from_bytes(frame[36:40], "little")
            found.append((base + delta, frame[48 : 48 + payload_length]))
    return found
