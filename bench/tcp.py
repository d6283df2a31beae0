"""Workloads over TCP, with Iggy's own Python client: one process a connection, over the loopback.

What a produce request is held against is a sink in the same run (bench.sink), which reads the same frames from the same
clients and only answers: where the client itself is what binds, the sink shows it. Beside the rate stands the processor
time of the front for each request, which no other process disturbs.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import shmbroker

from .actor import STREAM
from .actors import Actors, Outcome, run_actors, together
from .result import Result, Yardstick, percentiles_of
from .workloads import BOTH, Setting, Workload, _topic

FRONT_US_MAX = 60.0
"""Processor time of the front for a produce request, or a poll of batches that came over TCP: to reach."""
CONNECTIONS = 8
RATIOS = {"replicated": 0.8, "persisted": 0.6}
"""Of the sink, in batches."""


def processor_us_of(pid: int) -> float:
    """Processor time that all threads of a process have had, in microseconds."""
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e3


@contextmanager
def sink() -> Iterator[tuple[str, int]]:
    """A sink's HOST:PORT and process id."""
    process = subprocess.Popen(
        [sys.executable, "-m", "shmbroker.bench.sink"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), process.pid


def _measured(pid: int, address: str, password: str, connections: int, **what: Any) -> tuple[Outcome, float]:
    """Runs so many clients; their outcome, and microseconds of ``pid`` for each request of theirs."""
    specification = {
        "module": "shmbroker.bench.iggy_actor", "address": address, "user": "iggy", "password": password, **what,
    }  # fmt: skip
    actors = Actors([specification] * connections)
    before = processor_us_of(pid)  # not sooner: they have logged in, which costs more than a thousand requests
    outcome = together(actors.run())
    return outcome, (processor_us_of(pid) - before) / max(1, outcome.batches)


def _produce(
    setting: Setting, durability: str, name: str, target: str, ratio_min: float | None, *, connections: int,
    message_size: int, batch_count: int,
) -> Result:  # fmt: skip
    assert setting.front is not None
    topic = _topic(setting, name, durability)
    what = {
        "kind": "produce", "topic": topic, "seconds": setting.seconds, "message_size": message_size,
        "batch_count": batch_count,
    }  # fmt: skip
    with sink() as (address, pid):
        limit, limit_us = _measured(pid, address, "none", connections, **what)
    outcome, front_us = _measured(setting.front.pid, *setting.front.login, connections, **what)
    limit_rate = limit.messages / limit.seconds
    ratio = outcome.messages / outcome.seconds / limit_rate
    yardsticks = (
        Yardstick("the sink, msg/s", limit_rate, ratio),
        Yardstick("60 us of the front a request", FRONT_US_MAX, front_us / FRONT_US_MAX),
    )
    reached = None if ratio_min is None else ratio >= ratio_min and front_us <= FRONT_US_MAX
    figures = {"front_us_per_request": front_us, "sink_us_per_request": limit_us}
    figures["front_seconds_per_million_messages"] = front_us / batch_count
    return Result(
        name, durability, outcome.messages, outcome.messages * message_size, outcome.seconds,
        percentiles_of(outcome.latencies_ns), None, yardsticks, target, reached, figures,
    )  # fmt: skip


def _batches(setting: Setting, durability: str, name: str, message_size: int, connections: int) -> Result:
    least = RATIOS[durability]
    return _produce(
        setting, durability, name, f"{least} of the sink, 60 us", least, connections=connections,
        message_size=message_size, batch_count=1000,
    )  # fmt: skip


def tcp_batches_100(setting: Setting, durability: str) -> Result:
    """100 B messages, 1,000 a batch, one connection of Iggy's client."""
    return _batches(setting, durability, "tcp-batches-100", 100, 1)


def tcp_batches_100_8(setting: Setting, durability: str) -> Result:
    """100 B messages, 1,000 a batch, 8 connections."""
    return _batches(setting, durability, "tcp-batches-100-8", 100, CONNECTIONS)


def tcp_batches_1000(setting: Setting, durability: str) -> Result:
    """1,000 B messages, 1,000 a batch, one connection of Iggy's client."""
    return _batches(setting, durability, "tcp-batches-1000", 1000, 1)


def tcp_batches_1000_8(setting: Setting, durability: str) -> Result:
    """1,000 B messages, 1,000 a batch, 8 connections."""
    return _batches(setting, durability, "tcp-batches-1000-8", 1000, CONNECTIONS)


def tcp_single(setting: Setting, durability: str) -> Result:
    """One 100 B message at a time, one connection of Iggy's client."""
    return _produce(
        setting, durability, "tcp-single", "", None, connections=1, message_size=100, batch_count=1
    )  # fmt: skip


def tcp_single_8(setting: Setting, durability: str) -> Result:
    """One 100 B message at a time on each of 8 connections."""
    least = RATIOS["replicated"] if durability == "replicated" else None
    target = "" if least is None else f"{least} of the sink, 60 us"
    return _produce(
        setting, durability, "tcp-single-8", target, least, connections=CONNECTIONS, message_size=100, batch_count=1
    )  # fmt: skip


def _poll(setting: Setting, durability: str, name: str, fill: dict[str, Any], has_target: bool) -> Result:
    assert setting.front is not None
    topic = _topic(setting, name, durability)
    sizes = {"topic": topic, "message_size": 100, "batch_count": 1000, "seconds": setting.seconds / 2}
    run_actors([{**sizes, **fill}])
    messages = setting.client.get_topic(STREAM, topic).message_count
    outcome, front_us = _measured(
        setting.front.pid, *setting.front.login, 1, **{**sizes, "kind": "poll", "messages": messages}
    )
    yardstick = Yardstick("60 us of the front a poll", FRONT_US_MAX, front_us / FRONT_US_MAX)
    result = Result(
        name, durability, outcome.messages, outcome.messages * 100, outcome.seconds,
        percentiles_of(outcome.latencies_ns), None, (yardstick,), extra={"front_us_per_poll": front_us},
    )  # fmt: skip
    return replace(result, target="60 us a poll", reached=front_us <= FRONT_US_MAX) if has_target else result


def tcp_poll(setting: Setting, durability: str) -> Result:
    """Polls of 1,000 messages of 100 B that came over TCP, one connection of Iggy's client."""
    assert setting.front is not None
    address, password = setting.front.login
    fill = {"module": "shmbroker.bench.iggy_actor", "kind": "produce", "address": address, "user": "iggy"}
    return _poll(setting, durability, "tcp-poll", {**fill, "password": password}, True)


def tcp_poll_local(setting: Setting, durability: str) -> Result:
    """The same, of messages of a local producer, whose wire checksums the front fills in."""
    fill = {"kind": "produce", "url": setting.url, "in_flight": 8}
    return _poll(setting, durability, "tcp-poll-local", fill, False)


def _beside_http(setting: Setting, durability: str, name: str, interval_s: float, target: str) -> Result:
    """A broker of its own, since no other workload should run beside a gateway."""
    data = Path(tempfile.mkdtemp(prefix="shmbroker-http-", dir=setting.directory))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        http_address = "{}:{}".format(*listener.getsockname())
    password = "only for the bench"
    environment = {
        "IGGY_ROOT_USERNAME": "iggy", "IGGY_ROOT_PASSWORD": password, "SHMBROKER_HTTP_ENABLED": "true",
        "SHMBROKER_HTTP_ADDRESS": http_address,
    }  # fmt: skip
    try:
        with (
            shmbroker.embedded(str(data), tcp="127.0.0.1:0", environment=environment) as broker,
            broker.connect() as client,
        ):
            client.create_stream(STREAM)
            for topic in ("binary", "http"):
                client.create_topic(STREAM, topic, partitions=1, durability=durability)
            common = {"user": "iggy", "password": password, "seconds": setting.seconds, "message_size": 100}
            binary = {
                **common, "module": "shmbroker.bench.iggy_actor", "kind": "produce", "topic": "binary",
                "address": broker.tcp_address, "batch_count": 1000,
            }  # fmt: skip
            http = {
                **common, "module": "shmbroker.bench.http_actor", "topic": "http", "address": http_address,
                "batch_count": 10, "interval_s": interval_s,
            }  # fmt: skip
            alone = run_actors([binary])
            outcome, beside = Actors([binary, http]).run()
    finally:
        shutil.rmtree(data)
    alone_rate = alone.messages / alone.seconds
    ratio = outcome.messages / outcome.seconds / alone_rate
    yardstick = Yardstick("without HTTP beside it, msg/s", alone_rate, ratio)
    return Result(
        name, durability, outcome.messages, outcome.messages * 100, outcome.seconds,
        percentiles_of(outcome.latencies_ns), None, (yardstick,), target, ratio >= 0.9 if target else None,
        {"http_requests_per_second": beside.batches / beside.seconds},
    )  # fmt: skip


def http_beside(setting: Setting, durability: str) -> Result:
    """tcp-batches-100 while one connection produces over HTTP, 100 requests of 10 messages a second at the most."""
    return _beside_http(setting, durability, "http-beside", 0.01, "0.9 of it alone")


def http_beside_all(setting: Setting, durability: str) -> Result:
    """The same with as many requests as the connection can make: three processes more on the same processors."""
    return _beside_http(setting, durability, "http-beside-all", 0.0, "")


TCP_WORKLOADS = (
    Workload("tcp-batches-100", tcp_batches_100.__doc__ or "", BOTH, tcp_batches_100),
    Workload("tcp-batches-100-8", tcp_batches_100_8.__doc__ or "", BOTH, tcp_batches_100_8),
    Workload("tcp-batches-1000", tcp_batches_1000.__doc__ or "", BOTH, tcp_batches_1000),
    Workload("tcp-batches-1000-8", tcp_batches_1000_8.__doc__ or "", BOTH, tcp_batches_1000_8),
    Workload("tcp-single", tcp_single.__doc__ or "", BOTH, tcp_single),
    Workload("tcp-single-8", tcp_single_8.__doc__ or "", BOTH, tcp_single_8),
    Workload("tcp-poll", tcp_poll.__doc__ or "", ("replicated",), tcp_poll),
    Workload("tcp-poll-local", tcp_poll_local.__doc__ or "", ("replicated",), tcp_poll_local),
    Workload("http-beside", http_beside.__doc__ or "", ("replicated",), http_beside),
    Workload("http-beside-all", http_beside_all.__doc__ or "", ("replicated",), http_beside_all),
)
