"""The survival table (tests/survival/test_table.py) through the published client: what it was told is kept, is kept.

For each failure one run on two topics whose policies of messages and of stored offsets are crossed, each with one
client that sends batch after batch and stores the offset of each batch's last message; then each cell is looked at with
a client of the next broker. The oracle for a log is that of the table itself.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import threading
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from apache_iggy import (
    AutoLogin,
    Consumer,
    Durability,
    IggyClient,
    PollingStrategy,
    SendMessage,
    TcpConfig,
    TcpReconnectionConfig,
)

from shmbroker.front.places import default_runtime
from shmbroker.wire.offsets import ConsumerOffset, GetConsumerOffset, StoreConsumerOffset
from shmbroker.wire.primitives import Consumer as Who
from shmbroker.wire.primitives import Reader
from tests.conftest import RUN_SEED
from tests.iggy.conftest import ROOT
from tests.iggy.test_everything import free_port, within
from tests.processes.conftest import WAIT_S, BrokerProcess
from tests.survival.load import Found, Load, check
from tests.survival.test_table import CROSSED, FAILURES, POLICIES, THRESHOLD

USER, PASSWORD = ROOT.values()
READER = Who(1, "reader")
BATCH_COUNT = 60
"""Batches that are confirmed on each topic, at the least, when the failure comes."""


def serve(data: Path, port: int) -> BrokerProcess:
    return BrokerProcess(data, f"--tcp=127.0.0.1:{port}", environment=ROOT).ready()


async def connected(port: int) -> IggyClient:
    """A client that gives up with its connection."""
    client = IggyClient(
        TcpConfig(
            server_address=f"127.0.0.1:{port}",
            auto_login=AutoLogin.username_password(USER, PASSWORD),
            reconnection=TcpReconnectionConfig(enabled=False),
        )
    )
    await client.connect()
    return client


class IggyLoad(Load):
    """A producer like the table's, with the published client; it stores offsets too. ``stored`` is the last confirmed
    offset, ``storing`` the last one tried."""

    def __init__(self, port: int, topic: str, rng: random.Random) -> None:
        super().__init__(lambda: pytest.fail("connects otherwise"), topic, rng)
        self.failure: RuntimeError | None = None
        self.stored = self.storing = -1
        self._port = port
        self._enough = threading.Event()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def await_enough(self) -> None:
        self._enough.clear()
        assert self._enough.wait(WAIT_S), f"the client ended: {self.failure!r}"

    def _run(self) -> None:
        try:
            asyncio.run(self._work())
        except RuntimeError as error:
            self.failure = error

    async def _work(self) -> None:
        client = await connected(self._port)
        count = 0
        while not self._stopping.is_set():
            batch = self._batch()
            sending = client.send_messages("s", self._topic, 0, [SendMessage(payload) for payload in batch])
            (confirmation,) = (await asyncio.wait_for(sending, WAIT_S)).confirmations
            self._note(confirmation.base_offset, batch)
            self.storing = confirmation.base_offset + len(batch) - 1
            request = StoreConsumerOffset(READER, "s", self._topic, 0, self.storing)
            await asyncio.wait_for(client.send_binary_request(int(request.CODE), request.encode()), WAIT_S)
            self.stored = self.storing
            count += 1
            if count % BATCH_COUNT == 0:
                self._enough.set()


async def read_log(client: IggyClient, topic: str) -> Found:
    found: Found = []
    offset = 0
    while True:
        polled = await client.poll_messages(
            "s", topic, consumer=Consumer.Single("another"), polling_strategy=PollingStrategy.Offset(offset),
            count=1000, auto_commit=False, partition_id=0,
        )  # fmt: skip
        if not polled:
            return found
        found += [(message.offset(), message.payload()) for message in polled]
        offset = found[-1][0] + 1


class Survived(NamedTuple):
    """By the policy of the topic's messages; the offsets stored on it have the other."""

    load: IggyLoad
    found: Found
    next_offset: int
    stored: int | None


async def prepare(port: int) -> None:
    client = await connected(port)
    await client.create_stream("s")
    for policy in POLICIES:
        await client.create_topic(
            "s", policy, 1, durability=Durability(policy), consumer_offset_durability=Durability(CROSSED[policy]),
            messages_required_to_save=THRESHOLD, size_of_messages_required_to_save=64 << 20,
        )  # fmt: skip


async def look(port: int, load: IggyLoad, policy: str) -> Survived:
    client = await connected(port)
    found = await read_log(client, policy)
    request = GetConsumerOffset(READER, "s", policy, 0)
    body: Any = await client.send_binary_request(int(request.CODE), request.encode())
    stored = ConsumerOffset.decode(Reader(body)).stored_offset if body else None
    answer = await client.send_messages("s", policy, 0, [SendMessage("after")])
    next_offset = answer.confirmations[0].base_offset
    assert (await read_log(client, policy))[-1] == (next_offset, b"after")
    return Survived(load, found, next_offset, stored)


def run(data: Path, failure: str, rng: random.Random) -> dict[str, Survived]:
    port = free_port()
    broker = again = serve(data, port)
    try:
        within(prepare(port))
        loads = {policy: IggyLoad(port, policy, rng) for policy in POLICIES}
        for load in loads.values():
            load.start()
        for load in loads.values():
            load.await_enough()
        FAILURES[failure](broker)
        if failure == "sigkill-of-one-worker":  # the front and its connections are alive, and the clients go on
            for load in loads.values():
                load.await_enough()
                load.stop()
        for load in loads.values():
            load.join()
            assert (load.failure is None) == (failure == "sigkill-of-one-worker")
        again = broker if broker.process.poll() is None else serve(data, port)
        survived = {policy: within(look(port, load, policy)) for policy, load in loads.items()}
        assert again.stop() == 0, again.said()
        return survived
    finally:
        for each in {broker, again}:
            each.close()
        shutil.rmtree(default_runtime(str(data)), ignore_errors=True)


@pytest.mark.parametrize("failure", FAILURES)
def test_what_the_client_was_told_is_kept_survives(failure: str, tmp_path: Path) -> None:
    survived = run(tmp_path / "data", failure, random.Random(f"{RUN_SEED} {failure}"))
    is_power_loss = failure == "power-loss"
    for policy, (load, found, next_offset, stored) in survived.items():
        may_lose = is_power_loss and policy == "replicated"
        check(found, [load], prefix_only=may_lose)
        assert next_offset > max(load.acknowledged), "an offset was issued twice"
        if not is_power_loss:
            assert next_offset == len(found), "no gap where nothing was lost"
        assert load.stored > 0
        if is_power_loss and CROSSED[policy] == "replicated":
            assert stored is None or 0 <= stored <= load.storing
        else:
            assert stored in (load.stored, load.storing)
