"""SIGKILL of clients, wherever they are: the others go on, and nothing of the dead is left."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmbroker.client.client import Client
from shmbroker.front.places import default_runtime
from tests.conftest import Eventually, shared_memory_names
from tests.processes.conftest import WAIT_S, BrokerProcess, Start

from .load import Load, check, read_log
from .raw import first_line, program


@pytest.fixture(params=["replicated", "persisted"])
def served(request: pytest.FixtureRequest, start: Start) -> Iterator[tuple[BrokerProcess, Client]]:
    """A broker with a topic of each policy in turn, and a client that looks on."""
    broker = start().ready()
    with broker.connect() as client:
        client.create_stream("s")
        client.create_topic("s", "t", durability=request.param, messages_required_to_save=100)
        yield broker, client
    assert broker.stop() == 0, broker.said()


def holdings(broker: BrokerProcess, client: Client) -> dict[str, object]:
    """Everything that a client could leave behind, counted."""
    (worker,) = client.stats()["workers"]
    (pid,) = broker.workers()
    return {
        "lanes": worker["lanes"],
        "watches": worker["watches"],
        "names": sorted(str(name) for name in shared_memory_names(broker.data.parent)),
        "descriptors of the worker": descriptor_count(pid, broker.data),
        "descriptors of the front": descriptor_count(broker.pid, broker.data),
        "mappings of the worker": Path(f"/proc/{pid}/maps").read_text().count("shmbroker-lane"),
        "mappings of the front": Path(f"/proc/{broker.pid}/maps").read_text().count("shmbroker-lane"),
    }


def descriptor_count(pid: int, data: Path) -> int:
    """Open descriptors but those of the log's own files and rings, which come and go with what is written."""
    own = (str(data), default_runtime(str(data)))
    count = 0
    for entry in os.scandir(f"/proc/{pid}/fd"):
        try:
            count += not os.readlink(entry.path).startswith(own)
        except FileNotFoundError:
            continue
    return count


def idle_holdings(broker: BrokerProcess, client: Client, eventually: Eventually) -> dict[str, object]:
    """As it is when clients that ended in order are gone."""
    eventually(lambda: client.stats()["workers"][0]["lanes"] == 0, "earlier lanes to go")
    return holdings(broker, client)


def await_reclaimed(broker: BrokerProcess, client: Client, before: dict[str, object], eventually: Eventually) -> None:
    try:
        eventually(lambda: holdings(broker, client) == before, "everything to be reclaimed")
    finally:
        print("before:", before, "after:", holdings(broker, client))


def test_a_producer_killed_between_the_lane_and_the_publish_leaves_nothing(
    served: tuple[BrokerProcess, Client], eventually: Eventually, rng: random.Random
) -> None:
    """Stopped first, with half of a request in its lane: the others do not wait for it. Then it dies."""
    broker, client = served
    neighbour = Load(broker.connect, "t", rng, name=1).start().await_acknowledged(50)
    neighbour.stop()
    before = idle_holdings(broker, client, eventually)
    with program("tear", broker.data) as process:
        assert first_line(process) == "torn"
        process.send_signal(signal.SIGSTOP)
        assert holdings(broker, client)["lanes"] == int(str(before["lanes"])) + 1
        meanwhile = Load(broker.connect, "t", rng, name=2).start().await_acknowledged(200)
        meanwhile.stop()
        process.kill()
    await_reclaimed(broker, client, before, eventually)
    check(read_log(client, "t"), [neighbour, meanwhile], everything=True)


def test_what_a_producer_published_before_it_died_is_served(
    served: tuple[BrokerProcess, Client], eventually: Eventually
) -> None:
    """It did not even ring."""
    broker, client = served
    before = idle_holdings(broker, client, eventually)
    with program("publish_and_die", broker.data) as process:
        first_line(process)
        assert process.wait(WAIT_S) == -signal.SIGKILL
    eventually(lambda: read_log(client, "t") == [(0, b"0.0.published")], "the message")
    await_reclaimed(broker, client, before, eventually)


def test_a_producer_killed_under_load_loses_nothing_that_it_was_told(
    served: tuple[BrokerProcess, Client], eventually: Eventually, rng: random.Random
) -> None:
    broker, client = served
    neighbour = Load(broker.connect, "t", rng, name=1).start().await_acknowledged(50)
    told = {}
    with program("produce", broker.data) as process:
        assert process.stdout is not None
        for _ in range(rng.randrange(50, 300)):
            offset, number = first_line(process).split()
            told[int(offset)] = b"9.%s." % number.encode()
        process.kill()
        for line in process.stdout:
            if line.endswith("\n"):
                told[int(line.split()[0])] = b"9.%s." % line.split()[1].encode()
    neighbour.await_acknowledged(100)
    assert neighbour.stop().error is None
    found = read_log(client, "t")
    assert told.items() <= dict(found).items(), "what it was told is there"
    numbers = [int(payload[2:-1]) for _, payload in found if payload.startswith(b"9.")]
    assert numbers == list(range(len(numbers))), "in order, once, without a gap"
    check([each for each in found if not each[1].startswith(b"9.")], [neighbour], everything=True)
    eventually(lambda: client.stats()["workers"][0]["lanes"] <= 1, "its lane to be reclaimed")


def test_a_consumer_killed_while_it_waits_holds_up_nobody(
    served: tuple[BrokerProcess, Client], eventually: Eventually, rng: random.Random
) -> None:
    broker, client = served
    load = Load(broker.connect, "t", rng, name=1).start().await_acknowledged(50)
    load.stop()
    before = idle_holdings(broker, client, eventually)
    with program("consume", broker.data) as process:
        first_line(process)
        eventually(lambda: client.stats()["workers"][0]["watches"] == 1, "it to wait")
        process.send_signal(signal.SIGSTOP)
        meanwhile = Load(broker.connect, "t", rng, name=2).start().await_acknowledged(200)
        meanwhile.stop()
        process.kill()
    await_reclaimed(broker, client, before, eventually)
    check(read_log(client, "t"), [load, meanwhile], everything=True)


def test_a_client_that_dies_holding_everything_gives_it_all_back(
    served: tuple[BrokerProcess, Client], eventually: Eventually, rng: random.Random
) -> None:
    broker, client = served
    load = Load(broker.connect, "t", rng, name=1).start().await_acknowledged(50)
    load.stop()
    before = idle_holdings(broker, client, eventually)
    with program("hoard", broker.data) as process:
        assert first_line(process) == "holding"
        assert holdings(broker, client)["lanes"] == int(str(before["lanes"])) + 6
        process.kill()
    await_reclaimed(broker, client, before, eventually)


def test_a_name_that_was_never_confirmed_goes_with_its_client(
    served: tuple[BrokerProcess, Client], eventually: Eventually
) -> None:
    broker, client = served
    before = idle_holdings(broker, client, eventually)
    with program("linger_unconfirmed", broker.data) as process:
        name = first_line(process)
        assert any(str(each).endswith(name.lstrip("/")) for each in shared_memory_names(broker.data.parent))
        process.kill()
    await_reclaimed(broker, client, before, eventually)
