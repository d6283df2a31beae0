"""Every workload of ``shmbroker bench`` runs and reports figures that make sense. Nothing is said of their height."""

from __future__ import annotations

import io
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import shmbroker
from shmbroker.bench import main, standing
from shmbroker.bench.actor import STREAM
from shmbroker.bench.workloads import WORKLOADS, Setting, Workload
from shmbroker.errors import InvalidConfiguration
from shmbroker.limits import MIB

SECONDS = 0.1
FEWER_PRODUCERS = 3


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory = tmp_path_factory.mktemp("bench")
    with shmbroker.embedded(str(directory / "data")) as broker, broker.connect() as client:
        client.create_stream(STREAM)
        yield Setting(client, f"shm://{directory / 'data'}", directory, SECONDS)


@pytest.mark.parametrize(
    ("workload", "durability"),
    [pytest.param(each, policy, id=f"{each.name}-{policy}") for each in WORKLOADS for policy in each.durabilities],
)
def test_a_workload_reports_rates_latencies_and_its_limit(
    workload: Workload, durability: str, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shmbroker.bench.workloads.SINGLE_PRODUCERS", FEWER_PRODUCERS)
    result = workload.run(setting, durability)
    assert (result.workload, result.durability) == (workload.name, durability)
    assert result.messages > 0
    assert result.size % result.messages == 0
    assert result.size // result.messages in (100, 1000)
    assert result.message_rate == pytest.approx(result.messages / result.seconds)
    p50, p99, p999 = result.latency_us
    assert 0 < p50 <= p99 <= p999
    assert p50 < result.seconds * 1e6 * 10
    assert result.yardsticks
    for yardstick in result.yardsticks:
        assert yardstick.value > 0
        assert math.isfinite(yardstick.ratio)
        assert yardstick.ratio > 0
    assert (result.reached is None) == (result.target == "")
    if result.batches_per_sync is not None:
        assert result.batches_per_sync > 0


def test_recovery_and_sealed_segments_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing, "RECOVERY_SIZE", 8 * MIB)
    monkeypatch.setattr(standing, "RECOVERY_SIZE_SINGLE", 2 * MIB)
    large, small = standing.recovery(tmp_path)
    assert large.size >= 8 * MIB
    assert large.messages % 1000 == 0
    assert small.messages >= 2 * MIB // 1000
    for result in (large, small):
        assert result.seconds > 0
        assert result.reached is not None
    assert standing.sealed(tmp_path).yardsticks[0].ratio > 0
    assert os.listdir(tmp_path) == []


def test_idle_partitions_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing, "IDLE_PARTITIONS", 20)
    monkeypatch.setattr(standing, "IDLE_OBSERVED_S", 0.2)
    start, memory, processor = standing.idle(tmp_path)
    assert start.seconds > 0
    assert memory.extra["memory_bytes"] > MIB
    assert processor.yardsticks[0].ratio >= 0
    assert os.listdir(tmp_path) == []


def test_the_report_of_a_run_holds_machine_and_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = tmp_path / "report.json"
    data = tmp_path / "data"
    data.mkdir()
    text = io.StringIO()
    options = main.Options(["single"], ["replicated"], SECONDS, data, report)
    results = main.measure(options, Console(file=text, width=160))
    assert [result.workload for result in results] == ["single"]
    written = json.loads(report.read_text())
    assert written["machine"]["copy_rate"] > 0
    assert written["results"][0]["messages"] == results[0].messages
    assert "single" in text.getvalue()
    assert os.listdir(data) == []


def test_a_name_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match="no workload 'fastest'"):
        main.measure(main.Options(["fastest"], directory=tmp_path), Console(file=io.StringIO()))
