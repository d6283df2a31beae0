"""One producer or consumer of a workload, a process of its own, so that the measured and the measuring share no GIL.

``python -m shmbroker.bench.actor`` reads one JSON line of parameters, prints ``ready``, waits for a line, works, and
prints one JSON line of results. Latencies go to the .npy file that the parameters name, in nanoseconds.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

import shmbroker
from shmbroker.client.client import Client

STREAM = "bench"
WAIT_S = 60.0
Parameters = dict[str, Any]


def payloads_of(size: int, count: int) -> list[bytes]:
    """``count`` payloads of ``size`` bytes, different from each other."""
    rest = b"abcdefghij" * (size // 10 + 1)
    return [(b"%d " % number + rest)[:size] for number in range(count)]


def produce(client: Client, parameters: Parameters, start: Callable[[], None]) -> dict[str, Any]:
    """Batches with a fixed number in flight; the latency is from submit to the confirmation being seen."""
    messages = payloads_of(parameters["message_size"], parameters["batch_count"])
    in_flight_max = parameters["in_flight"]
    latencies: list[int] = []
    now = time.perf_counter_ns
    with client.producer(STREAM, parameters["topic"], max_in_flight=in_flight_max) as producer:
        producer.send(messages, partition=0)
        start()
        began = now()
        end = began + int(parameters["seconds"] * 1e9)
        in_flight: deque[tuple[int, Any]] = deque()
        while now() < end:
            if len(in_flight) >= in_flight_max:
                submitted, ticket = in_flight.popleft()
                ticket.result(WAIT_S)
                latencies.append(now() - submitted)
            in_flight.append((now(), producer.submit(messages, partition=0)))
        for submitted, ticket in in_flight:
            ticket.result(WAIT_S)
            latencies.append(now() - submitted)
        seconds = (now() - began) / 1e9
    return _finish(parameters, latencies, len(latencies) * len(messages), seconds)


def send(client: Client, parameters: Parameters, start: Callable[[], None]) -> dict[str, Any]:
    """One batch at a time, each awaited."""
    messages = payloads_of(parameters["message_size"], parameters["batch_count"])
    latencies: list[int] = []
    now = time.perf_counter_ns
    with client.producer(STREAM, parameters["topic"]) as producer:
        producer.send(messages, partition=0)
        start()
        began = now()
        end = began + int(parameters["seconds"] * 1e9)
        before = began
        while before < end:
            producer.send(messages, partition=0, timeout=WAIT_S)
            after = now()
            latencies.append(after - before)
            before = after
        seconds = (now() - began) / 1e9
    return _finish(parameters, latencies, len(latencies) * len(messages), seconds)


def consume(client: Client, parameters: Parameters, start: Callable[[], None]) -> dict[str, Any]:
    """Everything that is there, from the first message on, as lists of payloads or as whole batches; again and again.

    The first time it comes from the disk, since the worker writes past the page cache: it is a figure of its own, and
    the disk's. The latency is that of a poll."""
    wanted, as_lists = parameters["messages"], parameters["as_lists"]
    now = time.perf_counter_ns
    latencies: list[int] = []
    with client.consumer(STREAM, parameters["topic"], partition=0, name="bench", first=True) as consumer:

        def read_all() -> None:
            count = 0
            before = now()
            while count < wanted:
                for batch in consumer.poll(max_messages=parameters["max_messages"], timeout=WAIT_S):
                    count += len(batch.payloads()) if as_lists else batch.count
                after = now()
                latencies.append(after - before)
                before = after

        start()
        began = now()
        read_all()
        cold_s = (now() - began) / 1e9
        latencies.clear()
        rounds = 0
        began = now()
        while rounds == 0 or now() - began < parameters["seconds"] * 1e9:
            consumer.seek(first=True)
            read_all()
            rounds += 1
        seconds = (now() - began) / 1e9
    result = _finish(parameters, latencies, wanted * rounds, seconds)
    result["cold_s"] = cold_s
    return result


def follow(client: Client, parameters: Parameters, start: Callable[[], None]) -> dict[str, Any]:
    """A waiting consumer: the latency is from the clock value in the payload to the return of poll."""
    latencies: list[int] = []
    now = time.monotonic_ns
    with client.consumer(STREAM, parameters["topic"], partition=0, name="follow", next=True) as consumer:
        start()
        began = now()
        while len(latencies) < parameters["messages"]:
            batches = consumer.poll(max_messages=1, timeout=WAIT_S)
            returned = now()
            latencies += [returned - int.from_bytes(batch.payloads()[0][:8], "little") for batch in batches]
        seconds = (now() - began) / 1e9
    return _finish(parameters, latencies, len(latencies), seconds)


def pace(client: Client, parameters: Parameters, start: Callable[[], None]) -> dict[str, Any]:
    """Sends one message with the clock in it every ``interval_s``, so that the follower is waiting when it comes."""
    filler = bytes(parameters["message_size"] - 8)
    latencies: list[int] = []
    now = time.monotonic_ns
    with client.producer(STREAM, parameters["topic"]) as producer:
        start()
        began = now()
        for _ in range(parameters["messages"]):
            time.sleep(parameters["interval_s"])
            before = now()
            producer.send([before.to_bytes(8, "little") + filler], partition=0, timeout=WAIT_S)
            latencies.append(now() - before)
        seconds = (now() - began) / 1e9
    return _finish(parameters, latencies, len(latencies), seconds)


def _finish(parameters: Parameters, latencies: list[int], messages: int, seconds: float) -> dict[str, Any]:
    np.save(parameters["latencies"], np.array(latencies, dtype=np.int64))
    return {"messages": messages, "seconds": seconds, "batches": len(latencies)}


KINDS = {"produce": produce, "send": send, "consume": consume, "follow": follow, "pace": pace}


def main() -> int:
    parameters: Parameters = json.loads(sys.stdin.readline())

    def start() -> None:
        print("ready", flush=True)
        sys.stdin.readline()

    with shmbroker.connect(parameters["url"]) as client:
        result = KINDS[parameters["kind"]](client, parameters, start)
    print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
