"""A client below the client: speaks the protocol so far as it wants to, and then does what no client of ours would.

Also a program, for clients that die: ``python -m tests.survival.raw WHAT DATA`` does one thing, says so with one line,
and waits for its end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

import shmbroker
from shmbroker.client.connection import Connection, deadline_of
from shmbroker.client.encoding import encode_batch
from shmbroker.errors import ShmbrokerError
from shmbroker.formats.lane import (
    REQUEST,
    REQUEST_APPEND,
    REQUEST_SIZE,
    REQUESTS_POSITION,
    WORD_CLOSED,
    WORD_REQUEST_HEAD,
)
from shmbroker.limits import LANE_SIZE_MIN
from shmbroker.wire import local
from tests.processes.conftest import WAIT_S

ROOT = Path(__file__).resolve().parent.parent.parent
LANE_SIZE = 4 * LANE_SIZE_MIN


class RawClient:
    """A connection with one lane to worker 0, whose memory is at hand as ``lane.region``-less bytes and words."""

    def __init__(self, data: str | Path, *, rights: Sequence[str] = ("append",), partition: int = 0) -> None:
        self.connection = Connection(str(data), version=version("shmbroker"), timeout=WAIT_S)
        self.grant = self.connection.request(local.OpenPartition("s", "t", partition, list(rights)), self.deadline())
        self.lane, self.bell, self.doorbell = self.connection.open_lane(0, LANE_SIZE, self.deadline())
        self.region = self.lane._region
        self.number = 0

    @staticmethod
    def deadline() -> float:
        return deadline_of(WAIT_S)

    def write_request(
        self, body: bytes, *, index: int = 0, kind: int = REQUEST_APPEND, flags: int = 0, log_id: int | None = None,
        length: int | None = None, argument: int = 0,
    ) -> int:  # fmt: skip
        """Puts a request into the ring at ``index`` without publishing it. Returns its length in the ring."""
        size = (REQUEST_SIZE + len(body) + 7) & -8 if length is None else length
        self.number += 1
        where = REQUESTS_POSITION + index
        identity = self.grant.log_id if log_id is None else log_id
        header = REQUEST.pack(size, kind, flags, self.number, identity, argument)
        self.region.view[where : where + len(header) + len(body)] = header + body
        return size

    def publish(self, head: int) -> None:
        self.region.words[WORD_REQUEST_HEAD] = head
        self.doorbell.ring()

    def offer(self, body: bytes, *, kind: int = REQUEST_APPEND, flags: int = 0, log_id: int | None = None) -> None:
        """As a client does it."""
        self.number += 1
        identity = self.grant.log_id if log_id is None else log_id
        assert self.lane.offer(kind, flags, self.number, identity, 0, [body], len(body))
        self.lane.ring()

    def answer(self) -> int:
        """The status of the next completion; fails the test where none comes."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            if found := self.lane.completions():
                assert len(found) == 1
                return found[0][1]
            if self.closed:
                raise AssertionError(f"the lane was closed: {self.closed}")
            self.bell.wait(0.1)
        raise AssertionError("no answer")

    @property
    def closed(self) -> int:
        return int(self.region.words[WORD_CLOSED])

    def close(self) -> None:
        self.connection.close()
        self.lane.close()
        self.bell.close()
        self.doorbell.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def record_of(payloads: list[bytes], *, producer_id: int = 7, sequence: int = 1) -> bytes:
    """A sound batch record, as a client offers it."""
    buffers = encode_batch(
        payloads, producer_id=producer_id, sequence=sequence, id_base=1, origin_timestamp_us=time.time_ns() // 1000
    )
    record = b"".join(buffers)
    return record + bytes(-len(record) % 8)


# --- programs that die ------------------------------------------------------------------------------------------------


def tear(data: str) -> None:
    """A request is in the lane, up to its last byte but one; nothing of it is published."""
    client = RawClient(data)
    record = record_of([b"never sent " * 50])
    client.write_request(record[: len(record) // 2], length=(REQUEST_SIZE + len(record) + 7) & -8)
    say("torn")
    pause()


def publish_and_die(data: str) -> None:
    """The head is stored, the bell is not rung: published is published."""
    client = RawClient(data)
    size = client.write_request(record_of([b"0.0.published"]))
    client.region.words[WORD_REQUEST_HEAD] = size
    say("published")
    os.kill(os.getpid(), signal.SIGKILL)


def produce(data: str) -> None:
    """A producer that says each offset that it was told, for ever."""
    with shmbroker.connect(f"shm://{data}") as client, client.producer("s", "t") as producer:
        number = 0
        while True:
            tickets = [producer.submit([b"9.%d." % (number + step)], partition=0) for step in range(16)]
            for step, ticket in enumerate(tickets):
                say(f"{ticket.result(WAIT_S).base_offset} {number + step}")
            number += len(tickets)


def consume(data: str) -> None:
    """A consumer with an automatic commit that has read something and waits for more."""
    with (
        shmbroker.connect(f"shm://{data}") as client,
        client.consumer("s", "t", partition=0, name="victim", first=True, auto_commit=True) as consumer,
    ):
        say("consuming")
        while True:
            consumer.poll(timeout=1.0)


def hoard(data: str) -> None:
    """Holds everything that can be held: connections, lanes, watches, mapped batches, requests without an answer."""
    kept: list[Any] = []
    for _ in range(3):
        raw = RawClient(data, rights=["append", "read", "offsets"])
        kept += [raw, raw.connection.open_lane(0, LANE_SIZE, raw.deadline())]
        kept.append(raw.connection.watch([raw.grant.log_id], raw.deadline()))
        raw.write_request(bytes(100))
    client = shmbroker.connect(f"shm://{data}")
    consumer = client.consumer("s", "t", partition=0, first=True)
    kept += [client, consumer, consumer.poll(timeout=WAIT_S)]
    say("holding")
    pause()


def linger_unconfirmed(data: str) -> None:
    """Was granted a lane whose bell it never opened: a name is left in /dev/shm."""
    connection = Connection(data, version=version("shmbroker"), timeout=WAIT_S)
    reply, _ = connection.call(local.OpenLane(0, LANE_SIZE, False), deadline_of(WAIT_S))
    say(reply.completion)
    pause()


def say(line: str) -> None:
    print(line, flush=True)


def pause() -> None:
    while True:
        signal.pause()


PROGRAMS = {each.__name__: each for each in (tear, publish_and_die, produce, consume, hoard, linger_unconfirmed)}


@contextmanager
def program(what: str, data: Path) -> Iterator[subprocess.Popen[str]]:
    """Runs one of PROGRAMS; kills it at the end of the block, if it still lives."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.survival.raw", what, str(data)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()
            process.wait(WAIT_S)


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line, "the program ended before it had said anything"
    return line


if __name__ == "__main__":
    try:
        PROGRAMS[sys.argv[1]](sys.argv[2])
    except ShmbrokerError as error:
        sys.exit(f"{sys.argv[1]}: {error}")
