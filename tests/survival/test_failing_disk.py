"""EIO from a write and from a sync of a real worker: the partition it struck is poisoned, and nothing else is.

The device fails from the moment on at which a file exists (``SHMBROKER_FAIL_AT``), in the middle of the load.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from shmbroker.crash_points import FAULT_VARIABLE, parse_faults
from shmbroker.errors import InvalidConfiguration, PartitionPoisoned, ShmbrokerError
from shmbroker.front.places import default_runtime
from tests.conftest import Eventually
from tests.processes.conftest import BrokerProcess, Start

from .load import Load, check, read_log

STRUCK = f"{1:020}"
"""The directory of the first log: partition 0."""


@pytest.fixture
def switch(tmp_path: Path) -> Path:
    """The device is worn out while this exists."""
    return tmp_path / "worn-out"


def begin(start: Start, fault: str, switch: Path, durability: str, **options: int) -> BrokerProcess:
    """A broker with two partitions of one worker whose disk may fail."""
    broker = start("--workers=1", environment={FAULT_VARIABLE: f"{fault}:{switch}:EIO"}).ready()
    with broker.connect() as client:
        client.create_stream("s")
        client.create_topic("s", "t", partitions=2, durability=durability, **options)  # type: ignore[arg-type]
    return broker


@pytest.mark.parametrize("where", ["*.log", "*.index", ""], ids=["log", "index", "every-file"])
@pytest.mark.parametrize("operation", ["write", "sync"])
def test_rule_11_a_persisted_partition_whose_disk_fails_is_poisoned_alone(
    start: Start, switch: Path, rng: random.Random, eventually: Eventually, operation: str, where: str
) -> None:
    """With every file failing, the superblock cannot keep the poison: the control block has to."""
    broker = begin(start, f"{operation}:{STRUCK}{where}", switch, "persisted")
    struck = [Load(broker.connect, "t", rng, name=name).start() for name in range(2)]
    spared = Load(broker.connect, "t", rng, name=9, partition=1, resends=True).start()
    for load in (*struck, spared):
        load.await_acknowledged(100)
    switch.touch()
    for load in struck:
        assert isinstance(load.join().error, PartitionPoisoned), load.error
    switch.unlink()
    confirmed = [dict(load.acknowledged) for load in struck]
    spared.await_acknowledged(100)
    with broker.connect() as client, client.producer("s", "t") as producer:
        visible = read_log(client, "t", 0)
        check(visible, struck)
        assert len(visible) == sum(map(len, confirmed)), "nothing is visible that nobody was told of"
        with pytest.raises(PartitionPoisoned):
            producer.send([b"while poisoned"], partition=0)
        reason = next(each["reason"] for each in client.stats()["partitions"] if each["partition"] == 0)
        assert f"{STRUCK}/" in reason
        assert "Input/output error" in reason
        before = broker.kill_worker()
        eventually(lambda: broker.workers() not in ([], [before]), "another worker")
        with pytest.raises(PartitionPoisoned):
            producer.send([b"after the respawn"], partition=0)
        assert dict(read_log(client, "t", 0)) == dict(visible), "reads go on"
        spared.await_acknowledged(50)
    assert spared.stop().error is None
    assert broker.stop() == 1, "not everything was written"
    assert "poisoned" in broker.said()
    broker = start("--workers=1").ready()
    with broker.connect() as client, client.producer("s", "t") as producer:
        check(read_log(client, "t", 0), struck)
        check(read_log(client, "t", 1), [spared], everything=True)
        assert [load.acknowledged for load in struck] == confirmed
        offset = producer.send([b"again"], partition=0).base_offset
        assert offset > max(offset for each in confirmed for offset in each), "no offset is issued twice"
    assert broker.stop() == 0


@pytest.mark.parametrize("fault", ["write:{}*.log", "sync:{}*.log", "sync-directory:{}"])
@pytest.mark.parametrize("durability", ["replicated", "persisted"])
def test_rule_11_a_disk_that_fails_while_segments_come_and_go_loses_nothing(
    start: Start, switch: Path, rng: random.Random, durability: str, fault: str
) -> None:
    """A roll synchronises files and names. The ring has what the disk did not take; the next run takes it over."""
    broker = begin(start, fault.format(STRUCK), switch, durability, messages_required_to_save=100, segment_size=1 << 20)
    struck = Load(broker.connect, "t", rng, size_max=20_000).start().await_acknowledged(50)
    spared = Load(broker.connect, "t", rng, name=9, partition=1).start().await_acknowledged(50)
    switch.touch()
    assert isinstance(struck.join().error, PartitionPoisoned), struck.error
    switch.unlink()
    spared.await_acknowledged(100)
    assert spared.stop().error is None
    assert broker.stop() == 1
    broker = start("--workers=1").ready()
    with broker.connect() as client:
        check(read_log(client, "t", 0), [struck])
        check(read_log(client, "t", 1), [spared], everything=True)
        with client.producer("s", "t") as producer:
            assert producer.send([b"again"], partition=0).base_offset > max(struck.acknowledged)
    assert broker.stop() == 0


def test_rule_11_poison_ends_with_sigkill_of_everything_and_a_new_run_too(
    start: Start, switch: Path, rng: random.Random
) -> None:
    broker = begin(start, f"sync:{STRUCK}*.log", switch, "persisted")
    load = Load(broker.connect, "t", rng).start().await_acknowledged(100)
    switch.touch()
    assert isinstance(load.join().error, PartitionPoisoned), load.error
    broker.kill_everything()
    broker = start("--workers=1").ready()
    with broker.connect() as client:
        check(read_log(client, "t"), [load])
        with client.producer("s", "t") as producer:
            producer.send([b"again"], partition=0)
    assert broker.stop() == 0


@pytest.mark.parametrize("durability", ["replicated", "persisted"])
def test_rule_11_an_offset_whose_write_fails_is_not_confirmed_and_poisons_the_partition(
    start: Start, switch: Path, eventually: Eventually, durability: str
) -> None:
    broker = start(environment={FAULT_VARIABLE: f"write:{STRUCK}*consumers:{switch}:EIO"}).ready()
    with broker.connect() as client:
        client.create_stream("s")
        client.create_topic("s", "t", consumer_offset_durability=durability, durability="persisted")
        with client.producer("s", "t") as producer:
            producer.send([b"%d" % number for number in range(10)], partition=0)
            client.set_consumer_offset("s", "t", 0, 3, name="reader")
            switch.touch()
            for _ in range(2):
                with pytest.raises(PartitionPoisoned):
                    client.set_consumer_offset("s", "t", 0, 5, name="reader")
            with pytest.raises(PartitionPoisoned):
                producer.send([b"10"], partition=0)
        switch.unlink()
        before = broker.kill_worker()
        eventually(lambda: broker.workers() not in ([], [before]), "another worker")
        with pytest.raises(PartitionPoisoned):
            client.set_consumer_offset("s", "t", 0, 5, name="reader")
        assert len(read_log(client, "t", 0)) == 10, "reads go on"
    broker.kill_everything()
    broker = start().ready()
    with broker.connect() as client:
        assert client.get_consumer_offset("s", "t", 0, name="reader") == 3
        client.set_consumer_offset("s", "t", 0, 5, name="reader")
    assert broker.stop() == 0


@pytest.mark.parametrize("number", ["ENOSPC", "EDQUOT"])
def test_rule_11_no_space_for_a_segment_refuses_the_request_and_poisons_nothing(
    start: Start, switch: Path, number: str
) -> None:
    broker = start(environment={FAULT_VARIABLE: f"allocate::{switch}:{number}"}).ready()
    with broker.connect() as client:
        client.create_stream("s")
        client.create_topic("s", "t", durability="persisted")
        switch.touch()
        with client.producer("s", "t") as producer:
            with pytest.raises(ShmbrokerError) as raised:
                producer.send([b"refused"], partition=0)
            assert type(raised.value).__name__ == "DiskFull"
            switch.unlink()
            assert producer.send([b"accepted"], partition=0).base_offset == 0
        assert read_log(client, "t") == [(0, b"accepted")]
    assert broker.stop() == 0


def test_sigterm_under_load_writes_everything_that_was_acknowledged(
    start: Start, data: Path, rng: random.Random
) -> None:
    """Of both policies, below every threshold; the shared memory is gone afterwards."""
    broker = start("--workers=2").ready()
    with broker.connect() as client:
        client.create_stream("s")
        for topic in ("replicated", "persisted"):
            client.create_topic("s", topic, durability=topic, messages_required_to_save=1_000_000)
    loads = {
        topic: [Load(broker.connect, topic, rng, name=name).start() for name in range(2)]
        for topic in ("replicated", "persisted")
    }
    for each in loads.values():
        for load in each:
            load.await_acknowledged(200)
    assert broker.stop() == 0, broker.said()
    assert not Path(default_runtime(str(data))).exists()
    for each in loads.values():
        for load in each:
            assert load.join().error is not None
    broker = start("--workers=2").ready()
    with broker.connect() as client:
        for topic, each in loads.items():
            check(read_log(client, topic), each)
    assert broker.stop() == 0


@pytest.mark.parametrize("fault", ["sync:{}*.log", "write:{}*.log", "sync:{}*superblock", "sync:{}*.index"])
def test_sigterm_whose_final_flush_fails_says_so(start: Start, switch: Path, fault: str) -> None:
    """Exit status 1, naming the file; and what the memory still has is not thrown away with it."""
    broker = begin(start, fault.format(STRUCK), switch, "replicated")
    with broker.connect() as client, client.producer("s", "t") as producer:
        for partition in range(2):
            producer.send([b"acknowledged"], partition=partition)
    switch.touch()
    assert broker.stop() == 1
    assert STRUCK in broker.said()
    assert "Traceback" not in broker.said()
    switch.unlink()
    broker = start("--workers=1").ready()
    with broker.connect() as client:
        for partition in range(2):
            assert read_log(client, "t", partition) == [(0, b"acknowledged")]
    assert broker.stop() == 0


def test_faults_that_nobody_knows_are_refused() -> None:
    (fault,) = parse_faults("sync:.log:3:EIO")
    assert fault.concerns("sync", "/data/0.log")
    assert not fault.concerns("write", "/data/0.log")
    for wrong in ("sync", "sync:.log:0:EIO", "sink:.log:1:EIO", "sync:.log:1:EWHAT", "sync:.log:relative:EIO"):
        with pytest.raises(InvalidConfiguration, match="operation:part:when:errno"):
            parse_faults(wrong)
