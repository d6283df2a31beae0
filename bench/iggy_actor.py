"""One connection of Iggy's own Python client, unmodified, a process of its own: produces, or polls what is there.

``python -m shmbroker.bench.iggy_actor`` speaks as ``shmbroker.bench.actor`` does: a JSON line of parameters, ``ready``,
a line to go, a JSON line of results.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from apache_iggy import Consumer, IggyClient, PollingStrategy, SendMessage

from .actor import STREAM, Parameters, payloads_of

Start = Callable[[], None]


async def produce(client: IggyClient, parameters: Parameters, start: Start) -> tuple[list[int], int, float]:
    """One batch at a time, each awaited."""
    messages = [SendMessage(payload) for payload in payloads_of(parameters["message_size"], parameters["batch_count"])]
    topic = parameters["topic"]
    latencies: list[int] = []
    now = time.perf_counter_ns
    await client.send_messages(STREAM, topic, 0, messages)
    start()
    began = before = now()
    end = began + int(parameters["seconds"] * 1e9)
    while before < end:
        await client.send_messages(STREAM, topic, 0, messages)
        after = now()
        latencies.append(after - before)
        before = after
    return latencies, len(latencies) * len(messages), (before - began) / 1e9


async def poll(client: IggyClient, parameters: Parameters, start: Start) -> tuple[list[int], int, float]:
    """``batch_count`` messages a poll from the first on, and again from the first."""
    topic, count, messages = parameters["topic"], parameters["batch_count"], parameters["messages"]
    who = Consumer.Single(1)
    latencies: list[int] = []
    now = time.perf_counter_ns
    await client.poll_messages(
        STREAM, topic, consumer=who, polling_strategy=PollingStrategy.First(), count=1, auto_commit=False
    )
    start()
    began = before = now()
    end = began + int(parameters["seconds"] * 1e9)
    offset = taken = 0
    while before < end:
        strategy = PollingStrategy.Offset(offset)
        found = await client.poll_messages(
            STREAM, topic, consumer=who, polling_strategy=strategy, count=count, auto_commit=False, partition_id=0
        )
        after = now()
        latencies.append(after - before)
        before = after
        taken += len(found)
        offset = (offset + len(found)) % messages
    return latencies, taken, (before - began) / 1e9


KINDS = {"produce": produce, "poll": poll}


async def work(parameters: Parameters, start: Start) -> dict[str, Any]:
    client = IggyClient(parameters["address"])
    await client.connect()
    await client.login_user(parameters["user"], parameters["password"])
    latencies, messages, seconds = await KINDS[parameters["kind"]](client, parameters, start)
    np.save(parameters["latencies"], np.array(latencies, dtype=np.int64))
    return {"messages": messages, "seconds": seconds, "batches": len(latencies)}


def main() -> int:
    parameters: Parameters = json.loads(sys.stdin.readline())

    def start() -> None:
        print("ready", flush=True)
        sys.stdin.readline()

    print(json.dumps(asyncio.run(work(parameters, start))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
