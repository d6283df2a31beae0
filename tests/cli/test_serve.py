"""``shmbroker serve`` as a real process: ready, refused, told to stop, killed; and settings that refuse by name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import shmbroker

COMMAND = Path(sys.executable).parent / "shmbroker"
TIMEOUT_S = 60


@contextmanager
def serving(data: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A broker that says it is ready; killed at the end if it still runs."""
    process = subprocess.Popen([COMMAND, "serve", "--data", data, *words], stdout=subprocess.PIPE, text=True)
    with process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert "ready" in line
            assert str(data) in line
            yield process
        finally:
            process.kill()


def refused(*words: str | Path, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [COMMAND, "serve", *words], capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        env={**os.environ, **(environment or {})},
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_in_order_writes_everything_and_ends_with_0(tmp_path: Path, number: signal.Signals) -> None:
    data = tmp_path / "data"
    with serving(data) as process, shmbroker.connect(f"shm://{data}") as client:
        client.create_stream("s")
        client.create_topic("s", "t")
        with client.producer("s", "t") as producer:
            producer.send([b"below every threshold"], partition=0)
        process.send_signal(number)
        assert process.wait(TIMEOUT_S) == 0
    with serving(data) as process, shmbroker.connect(f"shm://{data}") as client:
        with client.consumer("s", "t", partition=0, first=True) as consumer:
            (batch,) = consumer.poll(timeout=0)
        assert batch.payloads() == [b"below every threshold"]
        process.terminate()
        assert process.wait(TIMEOUT_S) == 0


def test_a_second_broker_on_the_same_data_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(data, "--workers", "1") as process:
        line = refused("--data", data)
        assert str(process.pid) in line, "it does not name who holds it"
        process.terminate()
        assert process.wait(TIMEOUT_S) == 0


@pytest.mark.parametrize("key", ["enforce_fsync", "consumer_offset_enforce_fsync", "durability"])
def test_durability_is_refused_by_name_in_every_place(tmp_path: Path, key: str) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text(f"[partition]\n{key} = true\n")
    places: list[Callable[[], str]] = [
        lambda: refused("--data", tmp_path / "data", "--config", settings),
        lambda: refused("--data", tmp_path / "data", environment={f"SHMBROKER_PARTITION_{key.upper()}": "true"}),
        lambda: refused("--data", tmp_path / "data", environment={f"IGGY_SYSTEM_PARTITION_{key.upper()}": "true"}),
    ]
    for refuse in places:
        line = refuse()
        assert key in line.lower()
        assert "topic" in line


@pytest.mark.parametrize(
    ("content", "named"),
    [("[broker]\nworker = 2\n", "broker.workers"), ("[brokers]\n", "broker"), ("[broker]\nworkers = -1\n", "workers")],
)
def test_a_setting_that_is_wrong_refuses_and_names_itself(tmp_path: Path, content: str, named: str) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text(content)
    assert named in refused("--data", tmp_path / "data", "--config", settings)


def test_flags_win_over_variables_and_those_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text(f'[broker]\nworkers = 3\ndata = "{tmp_path / "file"}"\n')
    monkeypatch.setenv("SHMBROKER_BROKER_WORKERS", "2")
    data = tmp_path / "flag"
    with serving(data, "--config", str(settings)) as process, shmbroker.connect(f"shm://{data}") as client:
        assert len(client.stats()["workers"]) == 2
        process.terminate()
        assert process.wait(TIMEOUT_S) == 0
    assert not (tmp_path / "file").exists()


def test_a_directory_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    line = refused("--data", tmp_path / "file" / "data")
    assert line.count("\n") == 1
    assert "Not a directory" in line
