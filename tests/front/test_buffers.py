"""Pooled receiving: frames come out whole however the bytes arrive, and nothing is held while nothing is pending."""

from __future__ import annotations

import random

import pytest

from shmbroker.front.tcp import BUFFER_SIZE_MIN, SCRATCH_SIZE, BufferPool, PooledConnection
from shmbroker.limits import FRAME_SIZE_MAX
from shmbroker.wire.connection import ConnectionFault, Incoming
from shmbroker.wire.frame import OPERATION_PLAIN, RequestHeader


def frame(number: int, body: bytes) -> bytes:
    size = 256 + len(body)
    return RequestHeader(size, 1, 0, number, OPERATION_PLAIN, 0, 5000).encode() + body


def put(connection: PooledConnection, data: bytes) -> None:
    """As a transport does: into the buffer that it is given, as much as fits."""
    view = memoryview(data)
    while view:
        room = connection.get_buffer()
        assert len(room) > 0
        size = min(len(room), len(view))
        room[:size] = view[:size]
        connection.buffer_updated(size)
        view = view[size:]


@pytest.mark.parametrize("detaching", [False, True])
def test_frames_come_out_as_they_went_in(rng: random.Random, detaching: bool) -> None:
    pool = BufferPool()
    connections = [PooledConnection(pool) for _ in range(4)]
    sent: list[list[bytes]] = [[] for _ in connections]
    taken: list[list[bytes]] = [[] for _ in connections]
    kept: list[tuple[memoryview, bytes]] = []
    streams = []
    for number, connection in enumerate(connections):
        connection.frame_size_max = FRAME_SIZE_MAX
        for _ in range(60):
            size = rng.choice((0, 10, 3_000, 70_000, 200_000, 900_000))
            sent[number].append(rng.randbytes(rng.randint(0, size)))
        streams.append(b"".join(frame(index, body) for index, body in enumerate(sent[number])))
    while any(streams):
        number = rng.randrange(len(connections))
        connection = connections[number]
        size = rng.choice((1, 40, 300, 5_000, 100_000, 400_000))
        data, streams[number] = streams[number][:size], streams[number][size:]
        while data:
            room = connection.get_buffer()
            part, data = data[: len(room)], data[len(room) :]
            room[: len(part)] = part
            connection.buffer_updated(len(part))
            while (incoming := connection.next_request()) is not None:
                assert isinstance(incoming, Incoming)
                taken[number].append(bytes(incoming.body))
                if detaching and rng.random() < 0.3:
                    kept.append((incoming.body, taken[number][-1]))
                    connection.detach()
            del incoming
            connection.settle()
            if not connection.pending_size:
                assert connection._buffer is pool.scratch
    assert taken == sent
    assert all(view == copy for view, copy in kept)


def test_a_frame_that_is_too_large_or_too_small_is_a_fault() -> None:
    for size in (0, 1, 255, BUFFER_SIZE_MIN + 1, FRAME_SIZE_MAX, 2**32 - 1):
        connection = PooledConnection(BufferPool())
        header = bytearray(frame(1, b""))
        header[48:52] = size.to_bytes(4, "little")
        put(connection, bytes(header))
        assert isinstance(connection.next_request(), ConnectionFault), size


def test_buffers_are_used_again_and_their_number_is_bounded() -> None:
    pool = BufferPool()
    buffers = [pool.take(1 << 22) for _ in range(64)]
    for buffer in buffers:
        pool.give(buffer)
    assert pool.take(1 << 22) is buffers[15]
    assert len(pool.take(100)) == BUFFER_SIZE_MIN
    assert len(pool.scratch) == SCRATCH_SIZE
