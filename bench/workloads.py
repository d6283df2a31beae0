"""The workloads of ``shmbroker bench``: what each does, what it is held against, and the figure to reach.

Each runs against one embedded broker, on a topic of its own, under the policies that it names. The limit it is held
against is measured in the same run (bench.machine), just before it, since machines change their speed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shmbroker.client.client import Client
from shmbroker.limits import PAGE_SIZE

from . import machine
from .actor import STREAM
from .actors import Actors, Outcome, run_actors
from .result import Result, Yardstick, percentiles_of

BOTH = ("replicated", "persisted")
SINGLE_PRODUCERS = 32


@dataclass(frozen=True)
class Front:
    """The broker's front: its process, and HOST:PORT and the root user's password to log in with."""

    pid: int
    login: tuple[str, str]


@dataclass(frozen=True)
class Setting:
    """Where and how long the workloads run."""

    client: Client
    url: str
    directory: Path
    """On the file system of the broker's data: raw writes are measured here."""
    seconds: float
    front: Front | None = None
    """Where the broker serves TCP; None where it does not."""


@dataclass(frozen=True)
class Workload:
    """One named workload. ``run`` gives one result for a durability."""

    name: str
    title: str
    durabilities: tuple[str, ...]
    run: Callable[[Setting, str], Result]


def _topic(setting: Setting, name: str, durability: str) -> str:
    topic = f"{name}-{durability}"
    existing = {description.name for description in setting.client.list_topics(STREAM)}
    if topic in existing:
        setting.client.delete_topic(STREAM, topic)
    setting.client.create_topic(STREAM, topic, partitions=1, durability=durability)
    return topic


def _counters(setting: Setting, topic: str) -> dict[str, int]:
    """The counters of the topic's only partition."""
    for partition in setting.client.stats()["partitions"]:
        if partition["topic"] == topic:
            counters: dict[str, int] = partition["counters"]
            return counters
    raise AssertionError(f"stats know no partition of {topic}")


def _ping_pong() -> float:
    """Microseconds there and back between two processes on two processors, which is how broker and client run; on a
    machine with one, as it comes."""
    measured = machine.measure_ping_pong()
    return measured.p50_us if measured.apart is None else measured.apart.p50_us


def _pages(size: float) -> int:
    return max(PAGE_SIZE, int(size) // PAGE_SIZE * PAGE_SIZE)


def _produce(setting: Setting, topic: str, kind: str, **parameters: Any) -> tuple[Outcome, float, float]:
    """Runs producers; their outcome, batches to each group write, and bytes to each group write."""
    actors = parameters.pop("actors", 1)
    before = _counters(setting, topic)
    specification = {"kind": kind, "url": setting.url, "topic": topic, "seconds": setting.seconds, **parameters}
    outcome = run_actors([specification] * actors)
    after = _counters(setting, topic)
    groups = max(1, after["groups"] - before["groups"])
    batches = (after["batches"] - before["batches"]) / groups
    return outcome, batches, (after["written_bytes"] - before["written_bytes"]) / groups


def _result(
    name: str, durability: str, outcome: Outcome, message_size: int, batches: float | None, yardsticks: list[Yardstick],
    target: str, reached: bool | None, extra: dict[str, float] | None = None,
) -> Result:  # fmt: skip
    return Result(
        name, durability, outcome.messages, outcome.messages * message_size, outcome.seconds,
        percentiles_of(outcome.latencies_ns), batches, tuple(yardsticks), target, reached, extra or {},
    )  # fmt: skip


def batches_100(setting: Setting, durability: str) -> Result:
    """100 B messages, 1,000 a batch, 8 in flight, one producer."""
    topic = _topic(setting, "batches-100", durability)
    encode = machine.measure_encode(message_size=100, batch_count=1000)
    outcome, batches, _ = _produce(setting, topic, "produce", message_size=100, batch_count=1000, in_flight=8)
    rate = outcome.messages / outcome.seconds
    yardstick = Yardstick("encoding alone, msg/s", encode, rate / encode)
    wanted = 4e6 if durability == "replicated" else 3e6
    reached = rate >= wanted and (durability == "persisted" or yardstick.ratio >= 0.5)
    target = f"{wanted / 1e6:.0f} M msg/s" + (", 0.5 of encoding" if durability == "replicated" else "")
    return _result("batches-100", durability, outcome, 100, batches, [yardstick], target, reached)


def batches_1000(setting: Setting, durability: str) -> Result:
    """1,000 B messages, 1,000 a batch, 8 in flight, one producer."""
    topic = _topic(setting, "batches-1000", durability)
    outcome, batches, group_size = _produce(setting, topic, "produce", message_size=1000, batch_count=1000, in_flight=8)
    rate = outcome.messages * 1000 / outcome.seconds
    copy = machine.measure_copy()
    yardsticks = [Yardstick("copy, B/s", copy, rate / copy)]
    if durability == "replicated":
        return _result(
            "batches-1000", durability, outcome, 1000, batches, yardsticks, "1.2 GB/s", rate >= 1.2e9
        )  # fmt: skip
    raw = machine.measure_direct_write(str(setting.directory), _pages(group_size)).size_rate
    yardsticks.append(Yardstick(f"raw synchronous writes of {group_size / 1024:,.0f} KiB, B/s", raw, rate / raw))
    reached = rate >= 0.8e9 and rate >= 0.6 * raw
    return _result("batches-1000", durability, outcome, 1000, batches, yardsticks, "0.8 GB/s, 0.6 of raw", reached)


def single(setting: Setting, durability: str) -> Result:
    """One 100 B message at a time, one producer."""
    topic = _topic(setting, "single", durability)
    ping_pong = _ping_pong()
    outcome, batches, _ = _produce(setting, topic, "send", message_size=100, batch_count=1)
    p50 = percentiles_of(outcome.latencies_ns)[0]
    if durability == "replicated":
        limit, factor, name = ping_pong, 2.0, "semaphore ping-pong, us"
    else:
        raw = machine.measure_direct_write(str(setting.directory), PAGE_SIZE).p50_us
        limit, factor, name = raw + ping_pong, 1.5, "4 KiB synchronous write + ping-pong, us"
    yardstick = Yardstick(name, limit, p50 / limit)
    return _result(
        "single", durability, outcome, 100, batches, [yardstick], f"p50 within {factor} of it", p50 <= factor * limit
    )


def single_32(setting: Setting, durability: str) -> Result:
    """One 100 B message at a time from each of 32 producers, processes of their own."""
    topic = _topic(setting, "single-32", durability)
    alone, _, _ = _produce(setting, topic, "send", message_size=100, batch_count=1)
    outcome, batches, _ = _produce(setting, topic, "send", message_size=100, batch_count=1, actors=SINGLE_PRODUCERS)
    alone_rate = alone.messages / alone.seconds
    rate = outcome.messages / outcome.seconds
    yardstick = Yardstick("one producer, msg/s", alone_rate, rate / alone_rate)
    reached = batches >= 10 and rate >= 5 * alone_rate
    return _result(
        "single-32", durability, outcome, 100, batches, [yardstick], "10 batches/sync, 5 x one producer", reached
    )


def pipelined_64(setting: Setting, durability: str) -> Result:
    """One-message batches of 100 B, 64 in flight, one producer."""
    topic = _topic(setting, "pipelined-64", durability)
    outcome, batches, _ = _produce(setting, topic, "produce", message_size=100, batch_count=1, in_flight=64)
    rate = outcome.messages / outcome.seconds
    encode = machine.measure_encode(message_size=100, batch_count=1)
    yardstick = Yardstick("encoding alone, msg/s", encode, rate / encode)
    target, reached = ("200,000 batches/s", rate >= 200_000) if durability == "replicated" else ("", None)
    return _result("pipelined-64", durability, outcome, 100, batches, [yardstick], target, reached)


def _consume(
    setting: Setting, durability: str, name: str, as_lists: bool, **sizes: int
) -> tuple[Outcome, float, dict[str, float]]:
    """Fills a topic, then reads it: the outcome, payload bytes a second, and what the first reading reached, which came
    from the disk."""
    topic = _topic(setting, name, durability)
    specification = {"url": setting.url, "topic": topic, "seconds": setting.seconds / 2}
    run_actors([{**specification, "kind": "produce", **sizes, "in_flight": 8}])
    messages = setting.client.get_topic(STREAM, topic).message_count
    read = {**specification, "kind": "consume", "as_lists": as_lists, "messages": messages, "max_messages": 8000}
    outcome = run_actors([read])
    cold = {"cold_messages_per_second": messages / outcome.results[0]["cold_s"]}
    return outcome, outcome.messages * sizes["message_size"] / outcome.seconds, cold


def consume_lists(setting: Setting, durability: str) -> Result:
    """A local consumer that takes 100 B messages as list[bytes]."""
    outcome, size_rate, cold = _consume(setting, durability, "consume-lists", True, message_size=100, batch_count=1000)
    copy = machine.measure_copy()
    rate = outcome.messages / outcome.seconds
    yardstick = Yardstick("copy, B/s", copy, size_rate / copy)
    return _result("consume-lists", durability, outcome, 100, None, [yardstick], "5 M msg/s", rate >= 5e6, cold)


def consume_batches(setting: Setting, durability: str) -> Result:
    """A local consumer that takes whole batches of 1,000 messages of 1,000 B, checked."""
    outcome, size_rate, cold = _consume(
        setting, durability, "consume-batches", False, message_size=1000, batch_count=1000
    )
    copy = machine.measure_copy()
    yardstick = Yardstick("copy, B/s", copy, size_rate / copy)
    return _result(
        "consume-batches", durability, outcome, 1000, None, [yardstick], "0.5 of copy", yardstick.ratio >= 0.5, cold
    )


def send_to_poll(setting: Setting, durability: str) -> Result:
    """From the start of send to the return of a waiting poll, in two processes."""
    topic = _topic(setting, "send-to-poll", durability)
    ping_pong = _ping_pong()
    count = max(200, int(setting.seconds * 300))
    common = {"url": setting.url, "topic": topic, "messages": count, "message_size": 100, "interval_s": 0.002}
    follow, _ = Actors([{**common, "kind": "follow"}, {**common, "kind": "pace"}]).run()
    p50 = percentiles_of(follow.latencies_ns)[0]
    yardstick = Yardstick("semaphore ping-pong, us", ping_pong, p50 / ping_pong)
    target, reached = ("p50 within 3 of it", p50 <= 3 * ping_pong) if durability == "replicated" else ("", None)
    return _result("send-to-poll", durability, follow, 100, None, [yardstick], target, reached)


WORKLOADS = (
    Workload("batches-100", batches_100.__doc__ or "", BOTH, batches_100),
    Workload("batches-1000", batches_1000.__doc__ or "", BOTH, batches_1000),
    Workload("single", single.__doc__ or "", BOTH, single),
    Workload("single-32", single_32.__doc__ or "", ("persisted",), single_32),
    Workload("pipelined-64", pipelined_64.__doc__ or "", BOTH, pipelined_64),
    Workload("consume-lists", consume_lists.__doc__ or "", ("replicated",), consume_lists),
    Workload("consume-batches", consume_batches.__doc__ or "", ("replicated",), consume_batches),
    Workload("send-to-poll", send_to_poll.__doc__ or "", BOTH, send_to_poll),
)
