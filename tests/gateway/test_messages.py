"""Stored messages as JSON."""

from __future__ import annotations

import pytest

from shmbroker.formats.batch import HEADER_SIZE, unpack_header
from shmbroker.front.records import record_of
from shmbroker.gateway.messages import entries_of
from shmbroker.storage.reader import RecordSlice
from tests.iggy.batches import join_frames, wire_frame


@pytest.mark.parametrize("garbage", [b"\0\1\2garbage", b"\2\0\0\0\0", b"\2\1\0\0\0k", b"\2"])
def test_user_headers_that_are_none_keep_nobody_from_the_messages(garbage: bytes) -> None:
    frames = [wire_frame(b"good", 0), wire_frame(b"bad", 1, headers=garbage), wire_frame(b"good", 2)]
    made = record_of(memoryview(join_frames(frames)), 1, 1)
    assert isinstance(made, tuple)
    record = memoryview(b"".join(bytes(part) for part in made[0]))
    entries, _ = entries_of(RecordSlice(unpack_header(record[:HEADER_SIZE]), record, 0, 3), 1 << 20, is_first=True)
    assert [entry["header"]["user_headers_length"] for entry in entries] == [0, len(garbage), 0]
    assert [entry["user_headers"] for entry in entries] == [[], [], []]
