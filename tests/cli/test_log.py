"""``shmbroker log``: real files that a real broker left, whole and damaged, and what the broker says of them after."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import shmbroker
from shmbroker.cli.main import app

MESSAGES = [b"message %d" % number for number in range(1_000)]


def run(*words: str | Path, status: int = 0, text: str | None = None) -> Any:
    result = CliRunner().invoke(app, [str(word) for word in words], input=text)
    assert result.exit_code == status, f"{words}: {result.output} {result.exception!r}"
    return result


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """What a broker left that stopped in order: a persisted topic of two partitions, twenty batches in each."""
    directory = tmp_path / "data"
    with shmbroker.embedded(directory) as broker, broker.connect() as client:
        client.create_stream("market")
        client.create_topic("market", "trades", partitions=2, durability="persisted")
        with client.producer("market", "trades") as producer:
            for start in range(0, 1_000, 50):
                for partition in (0, 1):
                    producer.send(MESSAGES[start : start + 50], partition=partition)
        client.set_consumer_offset("market", "trades", 0, 7, name="audit")
    return directory


def segment_of(data: Path, partition: int) -> Path:
    reports = json.loads(run("log", "verify", data, "--json").stdout)
    (report,) = (each for each in reports if each["partition"] == f"market/trades/{partition}")
    (path,) = Path(report["directory"]).glob("*/*.log")
    return path


def damage(path: Path) -> int:
    """Turns one bit of a payload in the tenth batch over: below the mark, with whole records behind it."""
    contents = bytearray(path.read_bytes())
    position = contents.index(b"message 475")
    contents[position] ^= 1
    path.write_bytes(contents)
    return position


def test_what_is_whole_is_called_whole(data: Path) -> None:
    reports = json.loads(run("log", "verify", data, "--json").stdout)
    assert [report["partition"] for report in reports] == ["market/trades/0", "market/trades/1"]
    assert {(report["state"], report["messages"], report["end_offset"]) for report in reports} == {
        ("whole", 1_000, 1_000)
    }
    assert [report["stored_offsets"] for report in reports] == [1, 0]
    assert "market/trades/1" in run("log", "verify", data).stdout
    assert "nothing to repair" in run("log", "repair", data).stdout


def test_a_partition_can_be_looked_at_alone(data: Path) -> None:
    directory = segment_of(data, 1).parent.parent
    (report,) = json.loads(run("log", "verify", directory, "--json").stdout)
    assert report["partition"] == "market/trades/1"


def test_a_running_broker_is_left_alone(data: Path) -> None:
    with shmbroker.embedded(data):
        for words in (["verify", data], ["repair", data, "--yes"]):
            refused = run("log", *words, status=1)
            assert "stop it first" in refused.stderr


def test_dump_shows_every_record_and_says_which_are_bad(data: Path) -> None:
    path = segment_of(data, 0)
    whole = run("log", "dump", path).stdout
    assert "offsets=0..49" in whole
    assert "BAD" not in whole
    damage(path)
    assert "offsets=450..499" in next(line for line in run("log", "dump", path).stdout.splitlines() if "BAD" in line)
    assert len(run("log", "dump", path, "--lines", "3").stdout.splitlines()) == 4
    assert "consumer 'audit': store 7" in run("log", "dump", data).stdout


def test_damage_is_named_refused_alone_and_repaired_when_told(data: Path) -> None:
    path = segment_of(data, 0)
    damage(path)
    bad = run("log", "verify", data, status=1)
    assert "LOSS" in bad.stdout
    assert str(path) in bad.stderr
    assert "at byte" in bad.stderr

    with shmbroker.embedded(data) as broker, broker.connect() as client:
        states = {entry["partition"]: entry["state"] for entry in client.stats()["partitions"]}
        assert states == {0: "refused", 1: "open"}
        shown = CliRunner().invoke(app, ["stats", "--data", str(data)])
        assert "log repair" in shown.stderr, "no remedy for the refused partition"

    before = path.read_bytes()
    run("log", "repair", data, status=1, text="n\n")
    assert path.read_bytes() == before
    repaired = run("log", "repair", data, text="y\n")
    assert "Given up" in repaired.stdout
    run("log", "verify", data)

    with shmbroker.embedded(data) as broker, broker.connect() as client:
        with client.producer("market", "trades") as producer:
            again = producer.send([b"after the repair"], partition=0)
        assert again.base_offset >= 1_000, "an offset was issued twice"
        with client.consumer("market", "trades", partition=0, first=True) as consumer:
            payloads = []
            while batches := consumer.poll(max_messages=10_000, timeout=0):
                payloads += [payload for batch in batches for payload in batch.payloads()]
        assert payloads == [*MESSAGES[:450], b"after the repair"]


@pytest.mark.parametrize("content", [b"", b"something else" * 1000])
def test_partitions_are_verified_beside_a_damaged_catalog(data: Path, content: bytes) -> None:
    for path in data.glob("catalog.sqlite3*"):
        path.unlink()
    (data / "catalog.sqlite3").write_bytes(content)
    verified = run("log", "verify", data)
    assert "whole" in verified.stdout
    assert "catalog.sqlite3" in verified.stderr
    assert (data / "catalog.sqlite3").read_bytes() == content, "verify changes nothing"


@pytest.mark.parametrize("name", [b"\xff\xfe", b"", b"a\0b"])
def test_a_damaged_name_of_the_runtime_directory_is_no_obstacle(data: Path, name: bytes) -> None:
    (data / "runtime").write_bytes(name)
    run("log", "verify", data)
    refused = run("stats", "--data", data, status=1)
    assert "runtime is damaged" in refused.stderr
    with shmbroker.embedded(data) as broker, broker.connect() as client:
        assert client.ping() > 0


@pytest.mark.parametrize("command", ["verify", "repair", "dump"])
def test_what_is_not_ours_is_one_line(tmp_path: Path, command: str) -> None:
    (tmp_path / "file").write_bytes(b"something else")
    target = tmp_path / "file" if command == "dump" else tmp_path
    refused = run("log", command, target, status=1)
    assert refused.stderr.startswith("error: ")
    assert refused.stderr.count("\n") == 1


@pytest.mark.parametrize("what", ["runtime", "worker-0.lock", "log", "index", "superblock"])
def test_a_fifo_in_place_of_a_file_holds_nobody_up(data: Path, what: str) -> None:
    path = data / what
    if "." not in what and what != "runtime":
        segment = segment_of(data, 0)
        path = {"log": segment, "index": segment.with_suffix(".index")}.get(what, segment.parent.parent / what)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    for verb in ("verify", "repair"):
        result = run("log", verb, data, status=1)
        assert f"{path}: is a FIFO, not a file" in " ".join(result.output.split()), result.output
    if what != "runtime":
        return
    result = run("stream", "list", "--data", data, status=1)
    assert "is a FIFO" in " ".join(result.output.split())


def test_dump_says_what_is_no_file(data: Path) -> None:
    path = segment_of(data, 0)
    path.unlink()
    os.mkfifo(path)
    assert f"{path}: is not a file" in run("log", "dump", data).output
    assert "is a FIFO" in run("log", "dump", path, status=1).output
