"""The survival table: for each failure, and each of the two policies of messages and of stored offsets, what is there.

One run for each failure: two producers and two programs that store offsets, on two topics whose policies are crossed
(so that neither can hide behind the other's disk writes), all under load when it strikes. One test for each cell.

Power that fails cannot be had from a real kernel: here every process is killed and the shared memory is gone, which is
what a broker finds at the next boot if the disk had written everything. What the disk may have lost besides is shown on
a simulated one: ``test_rule_19_every_crash_of_a_workload_is_recovered`` in ``tests/storage/test_crash.py``.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from shmbroker.client.client import Client
from shmbroker.errors import ShmbrokerError
from shmbroker.front.places import default_runtime
from tests.conftest import RUN_SEED, wait_until
from tests.processes.conftest import WAIT_S, BrokerProcess, is_alive, kill

from .load import Found, Load, check, read_log

THRESHOLD = 1_000_000
"""Messages that a topic keeps before it writes: never reached here, so that nothing is on the disk by accident."""
MESSAGE_COUNT = 300
POLICIES = ("replicated", "persisted")
CROSSED = {"replicated": "persisted", "persisted": "replicated"}
"""The topic with messages of one policy has stored offsets of the other."""


class Storing:
    """Stores the offsets 0, 1, 2, ... of a consumer, each when the one before is confirmed, until an error."""

    def __init__(self, connect: Callable[[], Client], topic: str, load: Load) -> None:
        self.confirmed = -1
        self.tried = -1
        self._connect, self._topic, self._load = connect, topic, load
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._enough = threading.Event()

    def start(self) -> Storing:
        self._thread.start()
        return self

    def await_some(self) -> None:
        assert self._enough.wait(WAIT_S)

    def join(self) -> None:
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        try:
            with self._connect() as client:
                while self._load.is_alive:
                    offset = self.tried + 1
                    if offset >= len(self._load.acknowledged):
                        self._load.await_acknowledged(1)
                    self.tried = offset
                    client.set_consumer_offset("s", self._topic, 0, offset, name="reader", timeout=WAIT_S)
                    self.confirmed = offset
                    if offset >= 20:
                        self._enough.set()
        except (ShmbrokerError, AssertionError):
            return  # The broker has gone; the test looks at what was confirmed.


class Survived(NamedTuple):
    """What was acknowledged before a failure, and what was there after it, by the policy of the column."""

    loads: dict[str, Load]
    found: dict[str, Found]
    next_offsets: dict[str, int]
    """Where the first message after the failure went."""
    stores: dict[str, Storing]
    offsets: dict[str, int | None]


Failure = Callable[[BrokerProcess], None]


def finish_in_order(broker: BrokerProcess) -> None:
    assert broker.stop() == 0, broker.said()
    assert not os.path.exists(default_runtime(str(broker.data))), "nothing of it is in memory any more"


def expire_the_grace(broker: BrokerProcess) -> None:
    """The worker is stopped, so that the shutdown cannot have finished when SIGKILL comes."""
    for pid in broker.workers():
        os.kill(pid, signal.SIGSTOP)
    broker.process.send_signal(signal.SIGTERM)
    wait_until(lambda: not (Path(default_runtime(str(broker.data))) / "broker.sock").exists(), "the shutdown to begin")
    broker.kill_everything()


def kill_worker(broker: BrokerProcess) -> None:
    before = broker.kill_worker()
    wait_until(lambda: broker.workers() not in ([], [before]), "another worker", WAIT_S)


def kill_front(broker: BrokerProcess) -> None:
    workers = broker.workers()
    os.kill(broker.pid, signal.SIGKILL)
    broker.process.wait(WAIT_S)
    wait_until(lambda: not any(is_alive(pid) for pid in workers), "the workers to end", WAIT_S)


def kill_everything(broker: BrokerProcess) -> None:
    broker.kill_everything()


def fail_the_power(broker: BrokerProcess) -> None:
    broker.kill_everything()
    shutil.rmtree(default_runtime(str(broker.data)))


FAILURES: dict[str, Failure] = {
    "graceful-shutdown-that-finishes": finish_in_order,
    "graceful-shutdown-killed-in-its-grace": expire_the_grace,
    "sigkill-of-one-worker": kill_worker,
    "sigkill-of-the-front": kill_front,
    "sigkill-of-every-process": kill_everything,
    "power-loss": fail_the_power,
}


@pytest.fixture(scope="module")
def survived(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Survived]:
    """The whole run for one failure; no process of it is alive when the first cell is looked at."""
    failure: str = request.param
    rng = random.Random(f"{RUN_SEED} {failure}")
    data = tmp_path_factory.mktemp("table") / "data"
    broker = BrokerProcess(data)
    try:
        yield run(broker, FAILURES[failure], rng)
    finally:
        broker.close()
        shutil.rmtree(default_runtime(str(data)), ignore_errors=True)


def run(broker: BrokerProcess, strike: Failure, rng: random.Random) -> Survived:
    with broker.ready().connect() as client:
        client.create_stream("s")
        for policy in POLICIES:
            client.create_topic(
                "s", policy, durability=policy, consumer_offset_durability=CROSSED[policy],
                messages_required_to_save=THRESHOLD, size_of_messages_required_to_save="64 MiB",
            )  # fmt: skip
    loads = {policy: Load(broker.connect, policy, rng).start() for policy in POLICIES}
    stores = {CROSSED[policy]: Storing(broker.connect, policy, loads[policy]).start() for policy in POLICIES}
    for load, store in zip(loads.values(), stores.values(), strict=True):
        load.await_acknowledged(MESSAGE_COUNT + rng.randrange(MESSAGE_COUNT))
        store.await_some()
    strike(broker)
    for load, store in zip(loads.values(), stores.values(), strict=True):
        assert load.join().error is not None, "the failure struck it"
        store.join()
    if broker.process.poll() is None:
        return look(broker, loads, stores)
    again = BrokerProcess(broker.data)
    try:
        return look(again.ready(), loads, stores)
    finally:
        again.close()


def look(broker: BrokerProcess, loads: dict[str, Load], stores: dict[str, Storing]) -> Survived:
    with broker.connect() as client:
        found = {policy: read_log(client, policy) for policy in POLICIES}
        offsets = {CROSSED[policy]: client.get_consumer_offset("s", policy, 0, name="reader") for policy in POLICIES}
        next_offsets = {}
        for policy in POLICIES:
            with client.producer("s", policy) as producer:
                next_offsets[policy] = producer.send([b"after"], partition=0).base_offset
                assert read_log(client, policy, start=next_offsets[policy]) == [(next_offsets[policy], b"after")]
    assert broker.stop() == 0, broker.said()
    for pid in broker.children:
        kill(pid, signal.SIGCONT)
    return Survived(loads, found, next_offsets, stores, offsets)


def cells(*columns: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("survived", "policy"),
        [pytest.param(failure, policy, id=f"{failure}-{policy}") for failure in FAILURES for policy in columns],
        indirect=["survived"],
        scope="module",  # One run for all cells of a row.
    )


@cells("persisted")
def test_persisted_messages(survived: Survived, policy: str) -> None:
    """All acknowledged ones are there, whatever the failure."""
    check(survived.found[policy], [survived.loads[policy]])
    assert survived.next_offsets[policy] > max(offset for offset, _ in survived.found[policy])


@cells("replicated")
def test_replicated_messages(survived: Survived, policy: str, request: pytest.FixtureRequest) -> None:
    """All acknowledged ones are there unless the power failed; then a prefix of them, and no offset is issued again."""
    is_power_loss = "power-loss" in request.node.callspec.id
    check(survived.found[policy], [survived.loads[policy]], prefix_only=is_power_loss)
    assert survived.next_offsets[policy] > max(survived.loads[policy].acknowledged), "an offset was issued twice"
    if not is_power_loss:
        assert survived.next_offsets[policy] == len(survived.found[policy]), "no gap where nothing was lost"


@cells("persisted")
def test_persisted_offsets(survived: Survived, policy: str) -> None:
    """The last confirmed one is there, or the one that was under way after it. It may lie beyond lost messages."""
    store = survived.stores[policy]
    assert store.confirmed > 0
    assert survived.offsets[policy] in (store.confirmed, store.tried)


@cells("replicated")
def test_replicated_offsets(survived: Survived, policy: str, request: pytest.FixtureRequest) -> None:
    """As persisted ones unless the power failed; then any of those stored before, or none."""
    store = survived.stores[policy]
    assert store.confirmed > 0
    if "power-loss" in request.node.callspec.id:
        assert survived.offsets[policy] is None or 0 <= survived.offsets[policy] <= store.tried
    else:
        assert survived.offsets[policy] in (store.confirmed, store.tried)


def test_our_own_row_replicated_messages_survive_sigkill_of_every_process(start, rng: random.Random) -> None:
    """With nothing of them on the disk: the ring in shared memory is all there is, and it is enough."""
    broker = start("--workers=2").ready()
    with broker.connect() as client:
        client.create_stream("s")
        client.create_topic("s", "t", partitions=2, messages_required_to_save=THRESHOLD)
        loads = [Load(broker.connect, "t", rng, name=number, partition=number % 2).start() for number in range(4)]
        for load in loads:
            load.await_acknowledged(MESSAGE_COUNT)
        for partition in client.stats()["partitions"]:
            assert partition["committed_position"] > 0
            assert partition["file_position"] == 0, "nothing was written"
        broker.kill_everything()
    for load in loads:
        load.join()
    broker = start("--workers=2").ready()
    with broker.connect() as client:
        for partition in range(2):
            check(read_log(client, "t", partition), [load for load in loads if load.name % 2 == partition])
    assert broker.stop() == 0


def test_a_stored_offset_beyond_lost_messages_is_valid_and_reading_goes_on_behind_it(start, data: Path) -> None:
    """Offsets persisted, messages replicated, the power fails: the consumer finds what comes next, once."""
    broker = start().ready()
    with broker.connect() as client:
        client.create_stream("s")
        client.create_topic("s", "t", consumer_offset_durability="persisted")
        with client.producer("s", "t") as producer:
            assert producer.send([b"lost"] * 100, partition=0).base_offset == 0
        client.set_consumer_offset("s", "t", 0, 99, name="reader")
    broker.kill_everything()
    shutil.rmtree(default_runtime(str(data)))
    broker = start().ready()
    with broker.connect() as client:
        assert client.get_consumer_offset("s", "t", 0, name="reader") == 99
        assert read_log(client, "t") == []
        with client.producer("s", "t") as producer:
            offset = producer.send([b"next"], partition=0).base_offset
        assert offset >= 100, "an offset was issued twice"
        with client.consumer("s", "t", partition=0, name="reader") as consumer:
            (batch,) = consumer.poll(timeout=WAIT_S)
            assert (batch.base_offset, batch.payloads()) == (offset, [b"next"])
    assert broker.stop() == 0
