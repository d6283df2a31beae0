"""Peers that do what no client does: the others notice nothing, and each costs a bounded amount of memory."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shmbroker.client.embedded import Embedded
from shmbroker.config import load
from shmbroker.errors import ErrorCode
from shmbroker.front.broker import Broker
from shmbroker.front.places import Places
from shmbroker.front.tcp import LOGIN_WAIT_S, PARTIAL_WAIT_S, UNSENT_WAIT_S
from shmbroker.limits import FRAME_SIZE_MAX, MIB
from shmbroker.wire import messages, streams, system
from shmbroker.wire.frame import Eviction, EvictionReason, RequestHeader
from shmbroker.wire.primitives import Consumer
from tests.iggy.batches import messages_of, wire_batch
from tests.iggy.conftest import ROOT, RawClient

MakeRaw = Callable[..., RawClient]
CONSUMER = Consumer(1, 1)


@pytest.fixture
def topic(local: Any) -> None:
    local.create_stream("s")
    local.create_topic("s", "t", partitions=1)


def send(client: RawClient, payloads: list[bytes]) -> Any:
    batch = wire_batch(payloads)
    return client.ask(messages.SendMessages("s", "t", messages.Partitioning.partition(0), len(payloads), batch))


def poll_request(offset: int, count: int) -> messages.PollMessages:
    return messages.PollMessages(CONSUMER, "s", "t", 0, messages.POLL_OFFSET, offset, count, False)


def poll(client: RawClient, offset: int, count: int) -> list[tuple[int, bytes]]:
    answer = client.ask(poll_request(offset, count))
    assert answer.status == 0
    return messages_of(bytes(answer.value.records))


def memory_of(pid: int) -> int:
    """Resident bytes that are its own, not those of files and shared memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def header(**fields: int) -> bytearray:
    known = {"size": 256, "client": 1, "checksum": 0, "request_number": 1, "operation": 2, "session": 0, "code": 1}
    return bytearray(RequestHeader(**{**known, **fields}).encode())


# --- frames -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("size", [0, 1, 255, FRAME_SIZE_MAX + 1, 2**31, 2**32 - 1])
def test_a_frame_of_an_impossible_size_ends_its_connection_and_no_other(raw: MakeRaw, topic: None, size: int) -> None:
    good, bad = raw(), raw()
    bad.socket.sendall(header(size=size))
    assert bad.is_closed()
    assert send(good, [b"m"]).status == 0


def test_a_stranger_may_send_small_frames_only(raw: MakeRaw, topic: None) -> None:
    stranger = raw(login=False)
    stranger.socket.sendall(header(size=1 * MIB))
    assert stranger.is_closed()
    assert send(raw(), [b"m"]).status == 0


def test_random_bytes_never_get_an_answer_and_never_hurt(raw: MakeRaw, topic: None, rng: random.Random) -> None:
    for _ in range(50):
        client = raw(login=False)
        client.socket.sendall(rng.randbytes(rng.randint(60, 5_000)))
        assert client.is_closed()
    for _ in range(100):
        client = raw(login=rng.random() < 0.5)
        body = rng.randbytes(rng.choice((0, 1, 7, 40)))
        numbers = {name: rng.choice((0, 1, rng.getrandbits(32))) for name in ("client", "request_number", "session")}
        operation = rng.choice((2, 2, rng.randrange(256)))
        frame = header(
            size=256 + len(body), operation=operation, code=rng.choice((*range(60), 100, 101, 202)), **numbers
        )
        client.socket.sendall(frame + body)
        client.connection._outstanding = None
        reply = client.socket.recv(1 << 16)
        assert len(reply) >= 256
        assert reply[60] in (8, 13)
    assert send(raw(), [b"m"]).status == 0


def test_requests_sent_ahead_are_answered_in_order(raw: MakeRaw, topic: None) -> None:
    client = raw()
    requests = []
    for number in range(200):
        batch = wire_batch([b"%d" % number])
        request = messages.SendMessages("s", "t", messages.Partitioning.partition(0), 1, batch)
        requests.append(client.connection.request(request))
        client.connection._outstanding = None
    client.socket.sendall(b"".join(requests))
    offsets = []
    for _ in requests:
        client.connection._outstanding = messages_spec()
        offsets.append(client.take().value.confirmations[0].base_offset)
    assert offsets == list(range(200))
    assert [payload for _, payload in poll(client, 0, 1000)] == [b"%d" % number for number in range(200)]


def messages_spec() -> Any:
    from shmbroker.wire.codes import BY_CODE, Code

    return BY_CODE[Code.SEND_MESSAGES]


# --- before the login -------------------------------------------------------------------------------------------------
def test_before_the_login_there_is_only_ping(raw: MakeRaw) -> None:
    client = raw(login=False)
    assert client.ask(system.Ping()).status == 0
    assert client.ask(system.GetStats()).status == ErrorCode.UNAUTHENTICATED
    client.connection.session = 5
    answer = client.ask(streams.CreateStream("s", ()))
    assert isinstance(answer.header, Eviction)
    assert answer.header.reason == EvictionReason.NO_SESSION
    assert client.login().status == 0
    assert client.ask(streams.CreateStream("s", ())).status == 0


def test_a_flood_of_strangers_leaves_the_others_alone(raw: MakeRaw, topic: None) -> None:
    good = raw()
    flood = b"".join(bytes(header()) for _ in range(200))
    strangers = [raw(login=False) for _ in range(50)]
    for stranger in strangers:
        stranger.socket.setblocking(False)
    for _ in range(20):
        for stranger in strangers:
            try:
                stranger.socket.send(flood)
            except (BlockingIOError, ConnectionError):
                continue
        assert send(good, [b"m"]).status == 0


# --- slow and dead ----------------------------------------------------------------------------------------------------
def test_rule_16_a_peer_that_stops_halfway_holds_up_nobody(raw: MakeRaw, topic: None, broker: Embedded) -> None:
    good = raw()
    halves = [raw() for _ in range(20)]
    for half in halves:
        batch = wire_batch([b"x" * 1000] * 1000)
        request = messages.SendMessages("s", "t", messages.Partitioning.partition(0), 1000, batch)
        frame = half.connection.request(request)
        half.socket.sendall(frame[: len(frame) // 2])
        half.rest = frame[len(frame) // 2 :]  # type: ignore[attr-defined]
    for number in range(20):
        assert send(good, [b"m"]).value.confirmations[0].base_offset == number
    for number, half in enumerate(halves):
        half.socket.sendall(half.rest)  # type: ignore[attr-defined]
        assert half.take().value.confirmations[0].base_offset == 20 + 1000 * number


def test_more_than_a_lane_holds_waits_and_is_appended_once(raw: MakeRaw, topic: None, broker: Embedded) -> None:
    worker = broker.process_ids()[1]
    clients = [raw() for _ in range(14)]
    assert send(clients[0], [b"first"]).status == 0
    os.kill(worker, signal.SIGSTOP)
    try:
        for number, client in enumerate(clients):
            batch = wire_batch([b"%d" % number * 500] * 1500)
            request = messages.SendMessages("s", "t", messages.Partitioning.partition(0), 1500, batch)
            client.socket.sendall(client.connection.request(request))
        assert raw(login=False).ask(system.Ping()).status == 0
    finally:
        os.kill(worker, signal.SIGCONT)
    offsets = sorted(client.take().value.confirmations[0].base_offset for client in clients)
    assert offsets == [1 + 1500 * number for number in range(14)]


def test_slow_readers_cost_bounded_memory_and_get_everything_in_the_end(
    raw: MakeRaw, topic: None, broker: Embedded, eventually: Callable[..., Any]
) -> None:
    good = raw()
    payload = b"x" * 100_000
    for _ in range(8):
        send(good, [payload] * 20)
    before = memory_of(broker.pid)
    slow = []
    for _ in range(20):
        client = raw()
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        frames = []
        for _ in range(10):
            frames.append(client.connection.request(poll_request(0, 160)))
            spec, client.connection._outstanding = client.connection._outstanding, None
        client.socket.sendall(b"".join(frames))
        client.spec = spec  # type: ignore[attr-defined]
        slow.append(client)
    for number in range(20):
        assert send(good, [b"m"]).value.confirmations[0].base_offset == 160 + number
    # 20 readers with 10 replies of 16 MB each would be 3.2 GB; one reply each, mostly mapped, is far less.
    assert memory_of(broker.pid) - before < 400 * MIB
    client = slow[0]
    for _ in range(10):
        client.connection._outstanding = client.spec  # type: ignore[attr-defined]
        answer = client.take()
        assert [offset for offset, _ in messages_of(bytes(answer.value.records))] == list(range(160))


def test_ten_thousand_idle_connections(raw: MakeRaw, topic: None, broker: Embedded) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 10_500
    if hard < wanted:
        pytest.skip(f"{hard} descriptors are allowed, {wanted} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    good = raw()
    before = memory_of(broker.pid)
    idle = [RawSocket(broker.tcp_address) for _ in range(10_000)]
    try:
        for client in idle[::100]:
            client.ping()
        assert send(good, [b"m"]).status == 0
        assert memory_of(broker.pid) - before < 10_000 * 24_000
    finally:
        for client in idle:
            client.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class RawSocket:
    """A connection that costs us little."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), 30.0)

    def ping(self) -> None:
        self.socket.sendall(header())
        assert len(self.socket.recv(1024)) == 256

    def close(self) -> None:
        self.socket.close()


# --- time limits, with a clock that is told ---------------------------------------------------------------------------
@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Places]:
    for name, value in ROOT.items():
        monkeypatch.setenv(name, value)
    taken = Places.take(str(tmp_path / "own"), None)
    yield taken
    taken.remove_runtime()
    taken.release()


def test_time_limits_end_half_frames_strangers_and_stuck_readers(places: Places) -> None:
    config = load(None, {}, {"tcp.enabled": True, "tcp.address": "127.0.0.1:0", "broker.workers": 1})

    async def whole() -> None:
        broker = Broker(places, config)
        await broker.start()
        assert broker.tcp is not None
        try:
            for sent, wait_s in ((b"", LOGIN_WAIT_S), (header()[:100], PARTIAL_WAIT_S)):
                reader, writer = await asyncio.open_connection(*broker.tcp.address.split(":"))
                writer.write(bytes(header()) + sent)
                await reader.readexactly(256)
                (connection,) = broker.tcp._connections
                for _ in range(500):
                    if connection._wire.pending_size == len(sent):
                        break
                    await asyncio.sleep(0.01)
                connection.look(time.monotonic() + wait_s - 5)
                assert not reader.at_eof()
                connection.look(time.monotonic() + wait_s + 1)
                assert await asyncio.wait_for(reader.read(), 10) == b""
                writer.close()
                while broker.tcp._connections:
                    await asyncio.sleep(0.01)
            assert UNSENT_WAIT_S > 0
        finally:
            assert await broker.stop() == []

    asyncio.run(asyncio.wait_for(whole(), 60))
