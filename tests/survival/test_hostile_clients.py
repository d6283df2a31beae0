"""Clients that mean harm, through the real socket and in real lanes: they harm themselves.

Next to each stands a well-behaved producer of the same worker and the same partition, under load all the while: it
notices nothing, and its messages are there, whole and in order. What the lies wrote is not.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shmbroker.client.client import Client
from shmbroker.errors import ErrorCode, ShmbrokerError
from shmbroker.formats.batch import (
    FRAME_HEADER_SIZE,
    HEADER_SIZE,
    KIND_FILLER,
    content_checksum_of,
    content_length_of,
    pack_header,
    unpack_header,
)
from shmbroker.formats.lane import (
    COMPLETIONS_POSITION,
    REQUEST_APPEND,
    REQUEST_CONTROL,
    REQUEST_DELETE_OFFSET,
    REQUEST_FLUSH,
    REQUEST_GET_OFFSET,
    REQUEST_SIZE,
    REQUEST_STORE_OFFSET,
    REQUESTS_POSITION,
    WORD_COMPLETION_TAIL,
    WORD_REQUEST_HEAD,
)
from shmbroker.front.places import default_runtime
from shmbroker.wire import local
from shmbroker.wire.connection import ClientConnection
from tests.conftest import Eventually
from tests.processes.conftest import WAIT_S, BrokerProcess, Start

from .load import Load, check, read_log
from .raw import LANE_SIZE, ROOT, RawClient, first_line, program, record_of
from .scribbler import PAYLOADS

U64 = struct.Struct("<Q")
U32 = struct.Struct("<I")


class Scene:
    """The broker, somebody who looks on, and the neighbours: one in the attacked partition, one beside it."""

    def __init__(self, broker: BrokerProcess, client: Client, rng: random.Random) -> None:
        self.broker, self.client, self.data = broker, client, broker.data
        (self.worker,) = broker.workers()
        self.intruders: tuple[bytes, ...] = ()
        """How payloads begin that a test itself had taken in the attacked partition."""
        self.neighbours = [
            Load(broker.connect, "t", rng, name=partition + 1, partition=partition, in_flight=2).start()
            for partition in range(2)
        ]
        for load in self.neighbours:
            load.await_acknowledged(5)

    def end(self) -> None:
        """Everybody else was spared: the processes, the neighbours, their messages."""
        for load in self.neighbours:
            load.await_acknowledged(20)
            assert load.stop().error is None
        assert self.broker.workers() == [self.worker], "the same worker serves"
        for partition, load in enumerate(self.neighbours):
            found = read_log(self.client, "t", partition)
            assert [offset for offset, _ in found] == list(range(len(found)))
            mine = [each for each in found if partition or not each[1].startswith(self.intruders)]
            check(mine, [load], everything=True)
        self.client.close()
        assert self.broker.stop() == 0, self.broker.said()
        assert "Traceback" not in self.broker.said(), self.broker.said()
        verified = subprocess.run(
            [sys.executable, "-m", "shmbroker.cli.main", "log", "verify", str(self.data)],
            capture_output=True, text=True, timeout=WAIT_S, check=False,
        )  # fmt: skip
        assert verified.returncode == 0, verified.stdout


@pytest.fixture
def scene(start: Start, rng: random.Random) -> Iterator[Scene]:
    broker = start("--workers=1").ready()
    with broker.connect() as client:
        client.create_stream("s")
        client.create_topic("s", "t", partitions=2, durability="persisted")
        client.create_topic("s", "other")
        scene = Scene(broker, client, rng)
        yield scene
        scene.end()


# --- lanes ------------------------------------------------------------------------------------------------------------


def after_a_sound_request(raw: RawClient, then: Callable[[], None]) -> None:
    raw.offer(b"\0" * 64)  # No record: refused, so that it leaves nothing in the log.
    assert raw.answer() != 0
    then()


def request_and_head(raw: RawClient, **fields: Any) -> None:
    raw.write_request(bytes(32), **fields)
    raw.publish(64)


LANE_LIES: dict[str, Callable[[RawClient], None]] = {
    "head-backwards": lambda raw: after_a_sound_request(raw, lambda: raw.publish(8)),
    "head-to-zero": lambda raw: after_a_sound_request(raw, lambda: raw.publish(0)),
    "head-beyond-the-ring": lambda raw: raw.publish(LANE_SIZE + 8),
    "head-at-the-end-of-numbers": lambda raw: raw.publish(2**64 - 8),
    "head-unaligned": lambda raw: raw.publish(33),
    "length-beyond-the-head": lambda raw: request_and_head(raw, length=72),
    "length-of-4-gib": lambda raw: request_and_head(raw, length=2**32 - 8),
    "length-below-a-header": lambda raw: request_and_head(raw, length=8),
    "kind-nobody-knows": lambda raw: request_and_head(raw, kind=8),
    "kind-of-the-front-alone": lambda raw: request_and_head(raw, kind=REQUEST_CONTROL, argument=2),
    "nothing-where-a-request-should-be": lambda raw: raw.publish(LANE_SIZE),
}


@pytest.mark.parametrize("lie", LANE_LIES)
def test_a_lane_that_lies_is_closed_and_no_other(scene: Scene, eventually: Eventually, lie: str) -> None:
    with RawClient(scene.data) as raw, RawClient(scene.data) as innocent:
        LANE_LIES[lie](raw)
        assert eventually(lambda: raw.closed, "the lane to be closed") == ErrorCode.LANE_PROTOCOL
        eventually(lambda: "was closed: lane" in scene.broker.said(), "the log to say why")
        raw.connection.request(local.Stats(), raw.deadline())
        innocent.offer(bytes(64))
        assert innocent.answer() == ErrorCode.INVALID_FORMAT


def test_a_lane_filled_with_garbage_is_closed_or_refused(scene: Scene, rng: random.Random) -> None:
    """Seeded noise in the ring, in the words, in the completions; heads that run anywhere; many lanes one by one."""
    closed = 0
    for _ in range(40):
        with RawClient(scene.data, rights=["append", "offsets"]) as raw:
            size = len(raw.region.view)
            start = rng.choice([0, COMPLETIONS_POSITION, REQUESTS_POSITION])
            raw.region.view[start:size] = rng.randbytes(size - start)
            for _ in range(rng.randrange(1, 20)):
                head = rng.choice([rng.getrandbits(64), rng.randrange(0, LANE_SIZE, 8), rng.randrange(64)])
                raw.publish(head)
            if rng.random() < 0.5:
                raw.region.words[WORD_COMPLETION_TAIL] = rng.getrandbits(64)
                raw.publish(rng.randrange(0, LANE_SIZE, 8))
            raw.connection.request(local.Stats(), raw.deadline())  # At least one pass of the worker lies between.
            closed += raw.region.words[4] == ErrorCode.LANE_PROTOCOL
    assert closed > 10


def test_garbage_behind_plausible_headers_is_answered_each_by_each(scene: Scene, rng: random.Random) -> None:
    """The lane's protocol is kept; every kind of request, bodies of noise, any log: an error for each, no more."""
    kinds = [REQUEST_APPEND, REQUEST_STORE_OFFSET, REQUEST_DELETE_OFFSET, REQUEST_GET_OFFSET, REQUEST_FLUSH]
    with RawClient(scene.data, rights=["append", "read", "offsets"]) as raw:
        for _ in range(400):
            kind = rng.choice(kinds)
            body = rng.randbytes(rng.choice([0, 1, 7, 32, 256, 257, 300, 4096]))
            if kind == REQUEST_APPEND and rng.random() < 0.5:
                body = spoiled(record_of([b"spoiled"] * rng.randrange(1, 30)), rng)
            log_id = raw.grant.log_id if rng.random() < 0.7 else rng.choice([0, 1, 2, 3, 2**64 - 1])
            raw.offer(body, kind=kind, flags=rng.getrandbits(16), log_id=log_id)
            status = raw.answer()
            assert status or kind != REQUEST_APPEND


def spoiled(record: bytes, rng: random.Random) -> bytes:
    """One bit of it, not of the padding at the end."""
    header = unpack_header(record)
    meaning = HEADER_SIZE + content_length_of(header)
    bit = rng.randrange(8 * meaning)
    changed = bytearray(record)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


# --- a right checksum over a lie --------------------------------------------------------------------------------------


def resealed(record: bytes, content: bytes | None = None, **fields: int) -> bytes:
    """The record with other content and header fields, and with checksums that hold."""
    header = unpack_header(record)
    length = content_length_of(header)
    body = record[HEADER_SIZE : HEADER_SIZE + length] if content is None else content
    header = header._replace(**{"content_checksum": content_checksum_of(body), **fields})
    sealed = pack_header(header) + body
    return sealed + bytes(max(0, len(record) - len(sealed)))


def changed(record: bytes, position: int, value: bytes) -> bytes:
    """The content with ``value`` at ``position``; checksums hold."""
    header = unpack_header(record)
    content = bytearray(record[HEADER_SIZE : HEADER_SIZE + content_length_of(header)])
    content[position : position + len(value)] = value
    return resealed(record, bytes(content))


RECORD = record_of([b"first lie", b"second lie!"])
FRAMES = unpack_header(RECORD).frames_length
FIRST_FRAME = FRAME_HEADER_SIZE + len(b"first lie")
RECORD_LIES: dict[str, bytes] = {
    "frames-that-do-not-tile": changed(RECORD, FRAMES, U32.pack(FIRST_FRAME + 8)),
    "frame-index-that-moves-a-border": changed(
        RECORD, FRAMES, U32.pack(FIRST_FRAME + 1) + U32.pack(FRAMES - FIRST_FRAME - 1)
    ),
    "frame-of-no-length": changed(RECORD, FRAMES, U32.pack(0) + U32.pack(FRAMES)),
    "frame-longer-than-the-batch": changed(RECORD, FRAMES, U32.pack(2**32 - 1)),
    "payload-longer-than-its-frame": changed(RECORD, 36, U32.pack(2**32 - 1)),
    "headers-where-there-are-none": changed(RECORD, 32, U32.pack(9)),
    "delta-of-another-message": changed(RECORD, 24, U32.pack(1)),
    "reserved-word-in-use": changed(RECORD, 40, U64.pack(1)),
    "one-message-too-many": resealed(RECORD, message_count=3),
    "one-message-too-few": resealed(RECORD, message_count=1),
    "no-message": resealed(RECORD, message_count=0),
    "four-billion-messages": resealed(RECORD, message_count=2**32 - 1),
    "batch-longer-than-it-is": resealed(RECORD, batch_length=HEADER_SIZE + FRAMES + 8),
    "record-longer-than-it-is": resealed(RECORD, record_length=len(RECORD) + 8),
    "a-filler": resealed(RECORD, kind=KIND_FILLER),
    "flags-nobody-knows": resealed(RECORD, flags=0x8000),
    "wire-checksums-that-are-not-there": resealed(RECORD, flags=1),
    "another-magic": resealed(RECORD, magic=1),
    "content-checksum-of-other-content": resealed(RECORD, content_checksum=1),
    "cut-short": RECORD[: HEADER_SIZE + 64],
    "only-a-header": RECORD[:HEADER_SIZE],
}


def test_rule_18_a_right_checksum_over_a_lie_is_refused(scene: Scene) -> None:
    """Each lie gets an error; the lane stays, the next sound batch in it would be taken."""
    with RawClient(scene.data) as raw:
        for name, record in RECORD_LIES.items():
            raw.offer(record)
            status = raw.answer()
            assert status != 0, name
            assert status in set(ErrorCode), name


def test_what_the_worker_stamps_cannot_be_lied_about(scene: Scene, eventually: Eventually) -> None:
    """Another partition's number, an offset, a position, an incarnation: they are the worker's to say."""
    record = resealed(
        record_of([b"stamped"]), partition_id=1, base_offset=2**63, base_timestamp=1, log_position=8,
        durable_position=2**63,
    )  # fmt: skip
    scene.intruders = (b"stamped",)
    with RawClient(scene.data) as raw:
        raw.offer(record)
        assert raw.answer() == 0
    taken = eventually(
        lambda: [each for each in read_log(scene.client, "t", 0) if each[1] == b"stamped"], "the message"
    )
    assert len(taken) == 1
    assert taken[0][0] < 2**63
    assert b"stamped" not in dict(read_log(scene.client, "t", 1)).values()


def test_only_what_was_granted_is_reached(scene: Scene) -> None:
    """A log of another topic, of another partition, of nobody; a right that was not asked for."""
    with RawClient(scene.data, rights=["read"]) as reader, RawClient(scene.data, rights=["append"]) as writer:
        for log_id in (1, 2, 3, 4, 0, 2**64 - 1):
            reader.offer(RECORD, log_id=log_id)
            assert reader.answer() == ErrorCode.PARTITION_NOT_GRANTED
        for log_id in (2, 3, 4, 0, 2**64 - 1):
            writer.offer(RECORD, log_id=log_id)
            assert writer.answer() == ErrorCode.PARTITION_NOT_GRANTED
        for kind in (REQUEST_STORE_OFFSET, REQUEST_DELETE_OFFSET, REQUEST_GET_OFFSET):
            writer.offer(b"\2\0ab", kind=kind)
            assert writer.answer() == ErrorCode.PARTITION_NOT_GRANTED
        with pytest.raises(ShmbrokerError):
            writer.connection.request(local.Watch([writer.grant.log_id], False), writer.deadline())
    assert read_log(scene.client, "other") == []


def test_a_record_that_changes_while_it_is_read_never_gets_through_damaged(scene: Scene, rng: random.Random) -> None:
    """A thread flips bits of what is published: each batch is taken as it was checked, or refused."""
    scene.intruders = (b"changing ",)
    with subprocess.Popen(
        [sys.executable, "-m", "tests.survival.scribbler", str(scene.data), str(rng.getrandbits(32))],
        cwd=ROOT, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        accepted, refused = (int(word) for word in process.communicate(timeout=WAIT_S)[0].split())
    print(f"{accepted} accepted, {refused} refused")
    assert process.returncode == 0
    assert accepted, "nothing got through: the test showed nothing"
    assert refused, "no record was caught changing: the test showed nothing"
    found = [payload for _, payload in read_log(scene.client, "t", 0) if payload.startswith(b"changing ")]
    assert sorted(found) == sorted(PAYLOADS * accepted)


# --- the socket -------------------------------------------------------------------------------------------------------


def dial(data: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(WAIT_S)
    connection.connect(str(Path(default_runtime(str(data))) / "broker.sock"))
    return connection


def hello() -> bytes:
    return bytes(ClientConnection(7, 1).request(local.Hello("0", os.getpid())))


def is_ended(connection: socket.socket) -> bool:
    """Reads what comes until the broker closes; False where it waits for more instead."""
    connection.shutdown(socket.SHUT_WR)
    try:
        while connection.recv(65536):
            pass
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    return True


def test_frames_of_noise_end_their_own_connection(scene: Scene, rng: random.Random) -> None:
    for number in range(60):
        with dial(scene.data) as connection:
            frame = bytearray(hello())
            if number % 3 == 0:
                frame = bytearray(rng.randbytes(rng.randrange(1, 5000)))
            elif number % 3 == 1:
                for _ in range(rng.randrange(1, 6)):
                    frame[rng.randrange(len(frame))] = rng.randrange(256)
            else:
                frame[48:52] = U32.pack(rng.choice([0, 1, 255, 256, 257, len(frame) + 1, 2**31, 2**32 - 1]))
            try:
                connection.sendall(bytes(frame) * rng.randrange(1, 4))
                assert is_ended(connection)
            except (BrokenPipeError, ConnectionResetError):
                continue


def test_a_handshake_that_stops_anywhere_is_nobodys_burden(scene: Scene, rng: random.Random) -> None:
    """Every prefix class of it: some hang on for the rest of the test, some hang up."""
    frame = hello()
    held = []
    for size in [0, 1, 47, 48, 52, 60, 61, 255, 256, 257, len(frame) - 1, *(rng.randrange(len(frame)) for _ in "....")]:
        for hangs_on in (False, True):
            connection = dial(scene.data)
            connection.sendall(frame[:size])
            if hangs_on:
                held.append(connection)
            else:
                connection.close()
    for load in scene.neighbours:
        load.await_acknowledged(20)
    for connection in held:
        connection.close()


def test_a_client_that_asks_and_never_reads_is_alone_with_it(scene: Scene) -> None:
    frame = bytes(ClientConnection(8, 1).request(local.Stats()))
    with dial(scene.data) as connection:
        connection.sendall(hello())
        assert connection.recv(1)
        connection.settimeout(0.5)
        refused = False
        for _ in range(100_000):
            try:
                connection.sendall(frame)
            except (TimeoutError, ConnectionError):
                refused = True
                break
        assert refused, "its requests were taken without end"
        for load in scene.neighbours:
            load.await_acknowledged(20)
        with scene.broker.connect() as another:
            assert another.ping() >= 0


WRONG_REQUESTS: tuple[Any, ...] = (
    local.OpenLane(99, LANE_SIZE, False),
    local.OpenLane(0, 0, False),
    local.OpenLane(0, 4097, False),
    local.OpenLane(0, 2**63, False),
    local.OpenPartition("s", "t", 99, ["append"]),
    local.OpenPartition("s", "nothing", 0, ["append"]),
    local.OpenPartition("s", "t", 0, ["everything"]),
    local.CloseLane(10_000),
    local.CloseLane(1),
    local.Confirm(["../../etc/passwd"]),
    local.Confirm(["/shmbroker-somebody-else"]),
    local.Watch([1, 2, 3, 2**63], False),
    local.Unwatch(77),
)


def test_requests_for_what_is_not_ones_own_are_refused(scene: Scene) -> None:
    with RawClient(scene.data) as raw:
        for request in WRONG_REQUESTS:
            with pytest.raises(ShmbrokerError):
                raw.connection.request(request, raw.deadline())
        raw.offer(RECORD, log_id=99)
        assert raw.answer() == ErrorCode.PARTITION_NOT_GRANTED, "the lane is still there"


def test_clients_that_die_holding_everything_are_cleared_away(scene: Scene, eventually: Eventually) -> None:
    """Several at once, in the middle of all of it; one more only stopped, so that it neither lives nor dies."""
    baseline = scene.client.stats()["workers"][0]["lanes"]
    with program("hoard", scene.data) as first, program("hoard", scene.data) as second, program(
        "hoard", scene.data
    ) as stopped:  # fmt: skip
        for process in (first, second, stopped):
            assert first_line(process) == "holding"
        stopped.send_signal(signal.SIGSTOP)
        first.kill()
        second.kill()
        eventually(lambda: scene.client.stats()["workers"][0]["lanes"] == baseline + 6, "two of them to be gone")
        for load in scene.neighbours:
            load.await_acknowledged(20)
    eventually(lambda: scene.client.stats()["workers"][0]["lanes"] == baseline, "the last of them to be gone")


def test_a_lane_left_full_and_never_drained_holds_up_nobody(scene: Scene) -> None:
    """Requests without end, and completions that are never taken."""
    with RawClient(scene.data) as raw:
        size = (REQUEST_SIZE + 64 + 7) & -8
        count = LANE_SIZE // size
        for number in range(count):
            raw.write_request(bytes(64), index=number * size)
        raw.publish(count * size)
        for load in scene.neighbours:
            load.await_acknowledged(20)
        assert raw.region.words[WORD_REQUEST_HEAD] == count * size
