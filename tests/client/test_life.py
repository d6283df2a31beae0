"""Connections: addresses, closing, forking, deadlines; and the same client for asyncio."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

import shmbroker
from shmbroker import Client, StillInFlight
from shmbroker.client.connection import runtime_directory_of
from shmbroker.client.embedded import Embedded
from shmbroker.errors import AlreadyExists, ClientMistake, Closed, NotFound, OutcomeUnknown, Unavailable, WaitTimeout

LONG_S = 30.0


def test_every_public_name_is_there() -> None:
    for name in shmbroker.__all__:
        assert getattr(shmbroker, name) is not None
    assert set(shmbroker.__all__) <= set(dir(shmbroker))
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = shmbroker.no_such_name


def test_addresses(tmp_path: Path) -> None:
    for wrong in ("http://host", "shm://relative", "shm:", "/path", ""):
        with pytest.raises(ClientMistake, match="shm://"):
            shmbroker.connect(wrong)
    with pytest.raises(Unavailable, match=r"no broker has been started here.*shmbroker serve --data"):
        shmbroker.connect(f"shm://{tmp_path}")


def test_an_address_with_blanks_and_the_default_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with shmbroker.embedded("shmbroker-data") as broker, shmbroker.connect() as client:
        assert client.data == broker.data == str(tmp_path / "shmbroker-data")
        assert client.is_alive
    with shmbroker.embedded(tmp_path / "a b%"), shmbroker.connect(f"shm://{tmp_path}/a%20b%25") as client:
        assert client.ping() > 0


def test_closing_closes_what_it_made(client: Client, shared_broker: Embedded) -> None:
    client.create_stream("stream")
    client.create_topic("stream", "topic")
    other = shared_broker.connect()
    producer = other.producer("stream", "topic", linger=3600)
    consumer = other.consumer("stream", "topic", name="c", auto_commit=True)
    ticket = producer.submit([b"m"])
    other.close()
    assert ticket.result(0).count == 1
    for call in (lambda: producer.send([b"m"]), consumer.poll, other.list_streams, lambda: other.producer("s", "t")):
        with pytest.raises(Closed):
            call()
    assert not other.is_alive
    other.close()
    producer.close()
    consumer.close()


def test_threads_of_a_closed_client_end(client: Client, shared_broker: Embedded) -> None:
    client.create_stream("stream")
    client.create_topic("stream", "topic")
    before = set(threading.enumerate())
    with shared_broker.connect() as other, other.producer("stream", "topic", linger=0.001) as producer:
        assert producer.submit([b"m"]).result(LONG_S).count == 1
        assert set(threading.enumerate()) - before
    for thread in set(threading.enumerate()) - before:
        thread.join(LONG_S)
    assert not set(threading.enumerate()) - before


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Holds a process up."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_reply_that_comes_too_late_is_dropped_and_the_next_request_gets_its_own(
    client: Client, shared_broker: Embedded
) -> None:
    client.create_stream("stream")
    with stopped(shared_broker.pid):
        with pytest.raises(OutcomeUnknown, match="no reply"):
            client.create_stream("late", timeout=0.05)
        with pytest.raises(WaitTimeout, match="nothing was sent"):
            client.create_stream("later", timeout=0.05)
        with pytest.raises(WaitTimeout, match="no time left"):
            client.create_stream("latest", timeout=0)
    assert client.get_stream("stream").name == "stream"
    assert [stream.name for stream in client.list_streams()] == ["stream", "late"]
    with pytest.raises(AlreadyExists):
        client.create_stream("late")


def test_a_crowd_that_connects_at_once_is_let_in(shared_broker: Embedded) -> None:
    """The kernel queues some and tells the others to come again, which is not that there is no broker."""
    path = f"{runtime_directory_of(shared_broker.data)}/broker.sock"
    clients: list[Client] = []
    with ExitStack() as crowd:
        with stopped(shared_broker.pid):
            refused = False
            while not refused:
                other = crowd.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                other.setblocking(False)
                refused = other.connect_ex(path) == errno.EAGAIN
            with pytest.raises(Unavailable, match="too many others connect"):
                shmbroker.connect(f"shm://{shared_broker.data}", timeout=0.05)
            late = threading.Thread(target=lambda: clients.append(shared_broker.connect(timeout=LONG_S)))
            late.start()
            late.join(0.05)
            assert late.is_alive(), "it waits"
        late.join(LONG_S)
    assert clients[0].ping() > 0
    clients[0].close()


@pytest.mark.parametrize("timeout", [1e10, float("inf")])
def test_a_timeout_beyond_what_the_kernel_counts_is_for_ever(client: Client, timeout: float) -> None:
    client.create_stream("stream", timeout=timeout)
    client.create_topic("stream", "topic", partitions=1, timeout=timeout)
    with client.producer("stream", "topic", timeout=timeout) as producer:
        assert producer.send([b"m"], timeout=timeout).base_offset == 0
        assert producer.send([b"m"]).base_offset == 1
        assert producer.submit([b"m"], timeout=timeout).result(timeout).base_offset == 2
        producer.flush(timeout)
    with client.consumer("stream", "topic", name="c", timeout=timeout) as consumer:
        assert sum(batch.count for batch in consumer.poll(timeout=timeout)) == 3
        consumer.commit(timeout=timeout)


def test_what_cannot_be_opened_in_time_was_not_sent(client: Client, shared_broker: Embedded) -> None:
    client.create_stream("stream")
    client.create_topic("stream", "topic", partitions=2)
    with client.producer("stream", "topic") as producer:
        with stopped(shared_broker.pid), pytest.raises(WaitTimeout):
            producer.send([b"m"], partition=0, timeout=0.05)
        assert producer.send([b"m"], partition=0).base_offset == 0
        with stopped(shared_broker.pid), pytest.raises(WaitTimeout):
            producer.send([b"m"], partition=1, timeout=0)
        assert producer.send([b"m"], partition=1).base_offset == 0


FORKING = """
import multiprocessing, sys
import shmbroker
from shmbroker.errors import ClientMistake

def child(client, producer, consumer, ticket, broken):
    calls = [lambda: producer.send([b"m"]), lambda: producer.submit([b"m"]), producer.flush, client.list_streams,
             consumer.poll, ticket.result, lambda: client.producer("s", "t"), lambda: producer.resend(ticket)]
    for call in calls:
        try:
            call()
        except ClientMistake as error:
            if "fork" in str(error):
                continue
        broken.put("did not refuse")
    producer.close(); consumer.close(); client.close()
    with shmbroker.connect(sys.argv[1]) as own, own.producer("s", "t") as mine:
        broken.put(mine.send([b"child"]).count)

context = multiprocessing.get_context("fork")
with shmbroker.connect(sys.argv[1]) as client:
    client.create_stream("s"); client.create_topic("s", "t")
    with client.producer("s", "t") as producer, client.consumer("s", "t") as consumer:
        producer.send([b"m"])
        ticket = producer.submit([b"m"])
        ticket.add_done_callback(lambda _: None)
        # As if the answer were still to come, so that the child has something to wait for.
        import shmbroker.client.ticket as tickets
        waiting = tickets.Ticket(ticket._reaper, ticket._origin, (b"", b""), 0)
        broken = context.Queue()
        process = context.Process(target=child, args=(client, producer, consumer, waiting, broken))
        process.start()
        said = broken.get(timeout=60)
        process.join(60)
        assert (said, process.exitcode) == (1, 0), (said, process.exitcode)
        assert producer.send([b"parent"]).base_offset == 3
        assert sum(batch.count for batch in consumer.poll(timeout=10)) == 4
        assert client.ping() > 0
print("fine")
"""


def test_a_child_of_fork_is_refused_and_its_parent_is_not_harmed(client: Client, shared_broker: Embedded) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FORKING, f"shm://{shared_broker.data}"],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.stdout == "fine\n", ran.stderr
    assert ran.returncode == 0


def test_asyncio_has_the_same_methods(client: Client, shared_broker: Embedded) -> None:
    async def work() -> None:
        async with await shmbroker.connect_async(f"shm://{shared_broker.data}") as other:
            await other.create_stream("stream")
            described = await other.create_topic("stream", "topic", partitions=2)
            assert described.partition_count == 2
            with pytest.raises(NotFound):
                await other.get_topic("stream", "other")
            async with await other.producer("stream", "topic") as producer:
                sends = [producer.send([b"%d" % number], partition=number % 2) for number in range(500)]
                confirmations = await asyncio.gather(*sends)
                assert sorted(each.base_offset for each in confirmations) == sorted([*range(250)] * 2)
                assert (await producer.send_array(np.arange(10), partition=0)).count == 10
                await producer.flush()
            async with await other.consumer("stream", "topic", name="a") as consumer:
                found = 0
                async for batch in consumer:
                    found += batch.count
                    if found == 510:
                        break
                assert await consumer.poll(timeout=0.01) == []
                await consumer.commit()
                assert consumer.positions() == {0: 260, 1: 250}
            assert await other.get_consumer_offset("stream", "topic", 0, name="a") == 259
            assert await other.ping() > 0

    asyncio.run(work())


def test_an_async_send_that_runs_out_of_time_tells_of_its_ticket(client: Client, shared_broker: Embedded) -> None:
    async def work() -> None:
        async with await shmbroker.connect_async(f"shm://{shared_broker.data}") as other:
            await other.create_stream("stream")
            await other.create_topic("stream", "topic", durability="persisted")
            async with await other.producer("stream", "topic") as producer:
                await producer.send([b"m"])
                with stopped((await other.stats())["workers"][0]["pid"]):
                    with pytest.raises(StillInFlight, match="under way") as raised:
                        await producer.send([b"n"], timeout=0.05)
                    assert raised.value.ticket is not None
                    assert not raised.value.ticket.done()
                assert (await asyncio.wrap_future(raised.value.ticket)).base_offset == 1

    asyncio.run(work())


def test_the_loop_goes_on_while_a_poll_waits(client: Client, shared_broker: Embedded) -> None:
    async def work() -> None:
        async with await shmbroker.connect_async(f"shm://{shared_broker.data}") as other:
            await other.create_stream("stream")
            await other.create_topic("stream", "topic")
            producer = await other.producer("stream", "topic")
            consumer = await other.consumer("stream", "topic")
            waiting = asyncio.create_task(consumer.poll(timeout=LONG_S))
            await asyncio.sleep(0)
            await producer.send([b"m"])
            assert [batch.payloads() for batch in await waiting] == [[b"m"]]
            await consumer.close()

    asyncio.run(work())
