"""The workloads over TCP run, beside their sink, and report figures that make sense, however high."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

import shmbroker
from shmbroker.bench import tcp
from shmbroker.bench.actor import STREAM
from shmbroker.bench.tcp import TCP_WORKLOADS, processor_us_of, sink
from shmbroker.bench.workloads import Front, Setting
from shmbroker.wire.frame import HEADER_SIZE
from shmbroker.wire.messages import Partitioning, SendMessages, SendReply
from tests.iggy.batches import wire_batch
from tests.iggy.conftest import ROOT, RawClient

SECONDS = 0.1
NAMES = ("tcp-batches-100", "tcp-single-8", "tcp-poll", "tcp-poll-local", "http-beside")
WORKLOADS = {workload.name: workload for workload in TCP_WORKLOADS}


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    directory = tmp_path_factory.mktemp("bench")
    data = directory / "data"
    with shmbroker.embedded(data, tcp="127.0.0.1:0", environment=ROOT) as broker, broker.connect() as client:
        client.create_stream(STREAM)
        front = Front(broker.pid, (broker.tcp_address, ROOT["IGGY_ROOT_PASSWORD"]))
        yield Setting(client, f"shm://{data}", directory, SECONDS, front)


@pytest.mark.parametrize("name", NAMES)
def test_a_workload_over_tcp_reports(name: str, setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "CONNECTIONS", 2)
    result = WORKLOADS[name].run(setting, "replicated")
    assert (result.workload, result.durability) == (name, "replicated")
    assert result.messages > 0
    assert result.size == 100 * result.messages
    p50, p99, p999 = result.latency_us
    assert 0 < p50 <= p99 <= p999
    assert all(yardstick.value > 0 and yardstick.ratio > 0 for yardstick in result.yardsticks)
    assert (result.reached is None) == (result.target == "")
    assert result.extra
    assert min(result.extra.values()) > 0
    json.dumps(result.as_dict())
    assert [path.name for path in setting.directory.iterdir()] == ["data"]


def test_processor_time_is_that_of_all_threads() -> None:
    work = (
        "import time; end = time.thread_time() + 0.05\nwhile time.thread_time() < end: pass\nprint(flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", work], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert processor_us_of(process.pid) >= 50_000
        process.communicate(b"\n")


def test_the_sink_answers_whole_frames_however_they_are_cut() -> None:
    with sink() as (address, _):
        client = RawClient(address)
        assert client.login().status == 0
        request = SendMessages("s", "t", Partitioning.partition(0), 3, wire_batch([b"x" * 1000] * 3))
        for cut in (1, HEADER_SIZE - 1, HEADER_SIZE, HEADER_SIZE + 1, 3000):
            frame = client.connection.request(request)
            client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.socket.sendall(frame[:cut])
            client.socket.sendall(frame[cut:])
            assert isinstance(client.take().value, SendReply)
        client.close()
