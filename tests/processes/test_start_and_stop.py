"""A broker starts, refuses what it must with one line that says why, and ends in order."""

from __future__ import annotations

import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from shmbroker.errors import ShmbrokerError
from shmbroker.front.places import default_runtime
from shmbroker.shm.liveness import FileLock
from shmbroker.storage.disk import FileDisk
from shmbroker.storage.inspect import verify

from .conftest import WAIT_S, Start


def refusal_of(broker: object) -> str:
    """What a broker said that did not start: one line, no traceback, exit status 1."""
    assert broker.wait() == 1  # type: ignore[attr-defined]
    said: str = broker.said()  # type: ignore[attr-defined]
    assert "Traceback" not in said
    assert len(said.strip().splitlines()) == 1, said
    return said


def test_clean_stop_writes_what_no_threshold_has_flushed(start: Start, data: Path) -> None:
    broker = start().ready()
    with broker.connect() as client:
        client.create_stream("s")
        client.create_topic("s", "t")
        with client.producer("s", "t") as producer:
            for number in range(5):
                producer.send([b"message %d" % number])
    assert broker.stop() == 0, broker.said()
    assert not os.path.exists(default_runtime(str(data))), "nothing in shared memory is of use after a clean stop"
    logs = [path for path in data.rglob("*.log") if path.parent.parent.parent.name == "partitions"]
    assert sum(path.read_bytes().count(b"message ") for path in logs) == 5
    broker = start().ready()
    with broker.connect() as client:
        with client.producer("s", "t") as producer:
            assert producer.send([b"after"]).base_offset == 5, "a clean stop leaves no gap"
        with client.consumer("s", "t", partition=0, first=True) as consumer:
            got = [payload for batch in consumer.poll(max_messages=10, timeout=20) for payload in batch.payloads()]
    assert got[:5] == [b"message %d" % number for number in range(5)]
    assert broker.stop() == 0


def test_second_broker_is_refused_and_names_the_first(start: Start) -> None:
    first = start().ready()
    second = start()
    said = refusal_of(second)
    assert str(first.pid) in said
    assert "another broker" in said
    assert first.stop() == 0


def test_interrupt_stops_in_order_too(start: Start) -> None:
    broker = start().ready()
    broker.process.send_signal(signal.SIGINT)
    assert broker.wait() == 0


def test_data_directory_that_cannot_be_made(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    said = refusal_of(start(f"--data={tmp_path / 'file' / 'data'}"))
    assert "data directory" in said
    assert "Not a directory" in said


def test_read_only_data_directory(start: Start) -> None:
    said = refusal_of(start("--data=/proc/sys/shmbroker"))
    assert "data directory" in said


def test_runtime_directory_on_another_file_system(start: Start, tmp_path: Path) -> None:
    said = refusal_of(start(f"--runtime={tmp_path / 'runtime'}"))
    assert "another file system" in said


def test_runtime_directory_that_others_can_write(start: Start) -> None:
    said = refusal_of(start("--runtime=/dev/shm"))
    assert "0700" in said


def test_rule_10_runtime_file_system_too_small(start: Start) -> None:
    said = refusal_of(start(environment={"SHMBROKER_PARTITION_JOURNAL_MEMORY_LIMIT": "1 PiB"}))
    assert "too small" in said
    assert "journal_memory_limit" in said


def test_runtime_directory_of_another_broker(start: Start, data: Path, tmp_path: Path) -> None:
    """It would sweep the first one's socket and doorbells; and what is not a broker's is never removed."""
    runtime = Path(default_runtime(str(data)))
    first = start(f"--runtime={runtime}").ready()
    said = refusal_of(start(f"--data={tmp_path / 'other'}", f"--runtime={runtime}"))
    assert str(first.pid) in said
    with first.connect() as client:
        client.create_stream("still there")
    (runtime / "mine").write_text("keep")
    assert first.stop() == 0
    assert [path.name for path in runtime.iterdir()] == ["mine"]


def test_a_start_that_fails_leaves_nothing_in_shared_memory(start: Start, data: Path, tmp_path: Path) -> None:
    for number, settings in enumerate(
        (
            {"SHMBROKER_PARTITION_JOURNAL_MEMORY_LIMIT": "1 PiB"},
            {"SHMBROKER_BROKER_RUNTIME": f"/dev/shm/{'x' * 100}"},
            {"SHMBROKER_BROKER_RUNTIME": str(tmp_path / "elsewhere")},
        )
    ):
        other = tmp_path / f"data{number}"
        refusal_of(start(f"--data={other}", environment=settings))
        runtime = Path(settings.get("SHMBROKER_BROKER_RUNTIME", default_runtime(str(other))))
        assert not runtime.exists(), f"{settings} left it"
    broker = start().ready()
    broker.kill_everything()
    refusal_of(start(environment={"SHMBROKER_PARTITION_JOURNAL_MEMORY_LIMIT": "1 PiB"}))
    assert Path(default_runtime(str(data))).exists(), "that of an earlier run holds its journals"
    assert start().ready().stop() == 0


def test_unknown_setting_refuses(start: Start) -> None:
    said = refusal_of(start(environment={"SHMBROKER_BROKER_WROKERS": "2"}))
    assert "WROKERS" in said


def test_lost_catalog_refuses_instead_of_sweeping_data(start: Start, data: Path) -> None:
    broker = start().ready()
    with broker.connect() as client:
        client.create_stream("s")
        client.create_topic("s", "t")
    assert broker.stop() == 0
    for path in data.glob("catalog.sqlite3*"):
        path.unlink()
    said = refusal_of(start())
    assert "catalog.sqlite3 is missing" in said
    with closing(sqlite3.connect(data / "catalog.sqlite3")) as database:
        database.execute("PRAGMA journal_mode = WAL")  # what a copy without the file beside it looks like
    for content in ((data / "catalog.sqlite3").read_bytes(), b""):
        (data / "catalog.sqlite3").write_bytes(content)
        said = refusal_of(start())
        assert "catalog.sqlite3 is empty" in said
        assert (data / "catalog.sqlite3").read_bytes() == content
    assert len(list((data / "partitions").iterdir())) == 1


def test_an_older_catalog_neither_takes_nor_removes_data_that_it_does_not_know(start: Start, data: Path) -> None:
    """Restoring one from a backup is what a refusal advises."""
    broker = start().ready()
    with broker.connect() as client:
        client.create_stream("s")
    assert broker.stop() == 0
    backup = (data / "catalog.sqlite3").read_bytes()
    broker = start().ready()
    with broker.connect() as client:
        client.create_topic("s", "t", partitions=3, durability="persisted")
        with client.producer("s", "t") as producer:
            producer.send([b"acknowledged"], partition=1)
    assert broker.stop() == 0
    (data / "catalog.sqlite3").write_bytes(backup)
    broker = start().ready()
    with broker.connect() as client:
        assert client.create_topic("s", "t", partitions=3).partition_count == 3
    assert "holds data: it is left alone" in broker.said()
    assert broker.stop() == 0
    kept = [path for path in (data / "partitions").rglob("*.log") if b"acknowledged" in path.read_bytes()]
    assert [path.parent.parent.name for path in kept] == [f"{2:020}"]


def test_a_creation_that_fails_removes_only_what_it_made(start: Start, data: Path) -> None:
    broker = start().ready()
    with broker.connect() as client:
        client.create_stream("s")
        ours = data / "partitions" / f"{2:020}" / ("ab" * 16)
        ours.mkdir(parents=True)
        (ours / f"{0:020}.log").write_bytes(b"acknowledged")
        with pytest.raises(ShmbrokerError, match="there is a log already"):
            client.create_topic("s", "t", partitions=3)
        assert (ours / f"{0:020}.log").read_bytes() == b"acknowledged"
        assert [path.name for path in (data / "partitions").iterdir()] == [f"{2:020}"]
        client.create_topic("s", "t", partitions=3)
    assert broker.stop() == 0


def test_a_replicated_log_is_verified_with_its_ring_though_nothing_names_it(start: Start, data: Path) -> None:
    """After SIGKILL what was acknowledged is in the runtime directory alone."""
    broker = start().ready()
    with broker.connect() as client:
        client.create_stream("s")
        client.create_topic("s", "t")
        with client.producer("s", "t") as producer:
            producer.send([b"only in the ring"])
        broker.kill_everything()
    for lock in data.glob("worker-*.lock"):
        assert FileLock.wait_free(str(lock), WAIT_S)
    disk = FileDisk(read_only=True)
    named = list(verify(disk, str(data)))
    (data / "runtime").unlink()
    assert list(verify(disk, str(data))) == named
    (data / "runtime").write_bytes(b"\xff\0")
    assert list(verify(disk, str(data))) == named
    runtime = Path(default_runtime(str(data)))
    aside = runtime.rename(f"{runtime}-aside")
    without = list(verify(disk, str(data)))
    aside.rename(runtime)
    assert without != named, "the ring tells what the files do not"
