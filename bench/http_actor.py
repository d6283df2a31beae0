"""One connection that produces over HTTP, a process of its own: 10 messages a request, each awaited.

Speaks as ``shmbroker.bench.actor`` does. ``interval_s``: from the start of one request to that of the next, 0: at once.
"""

from __future__ import annotations

import base64
import http.client
import json
import sys
import time
from typing import Any

import numpy as np

from .actor import STREAM, WAIT_S, Parameters, payloads_of

PARTITION_0 = base64.b64encode(bytes(4)).decode()


def request(connection: http.client.HTTPConnection, path: str, body: str, headers: dict[str, str]) -> bytes:
    """One POST; its answer's body. Fails where it is no success."""
    connection.request("POST", path, body, headers)
    answer = connection.getresponse()
    text = answer.read()
    assert answer.status in (200, 201), text
    return text


def produce(parameters: Parameters) -> dict[str, Any]:
    host, _, port = parameters["address"].rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=WAIT_S)
    headers = {"Content-Type": "application/json"}
    login = json.dumps({"username": parameters["user"], "password": parameters["password"]})
    token = json.loads(request(connection, "/users/login", login, headers))["access_token"]["token"]
    headers["Authorization"] = f"Bearer {token}"
    payloads = payloads_of(parameters["message_size"], parameters["batch_count"])
    messages = [{"payload": base64.b64encode(payload).decode()} for payload in payloads]
    body = json.dumps({"partitioning": {"kind": "partition_id", "value": PARTITION_0}, "messages": messages})
    path = f"/streams/{STREAM}/topics/{parameters['topic']}/messages"
    request(connection, path, body, headers)
    print("ready", flush=True)
    sys.stdin.readline()
    latencies: list[int] = []
    now = time.perf_counter_ns
    began = now()
    end = began + int(parameters["seconds"] * 1e9)
    while (before := now()) < end:
        request(connection, path, body, headers)
        latencies.append(now() - before)
        if (rest_s := parameters["interval_s"] - (now() - before) / 1e9) > 0:
            time.sleep(rest_s)
    np.save(parameters["latencies"], np.array(latencies, dtype=np.int64))
    seconds = (now() - began) / 1e9
    return {"messages": len(latencies) * len(messages), "seconds": seconds, "batches": len(latencies)}


if __name__ == "__main__":
    print(json.dumps(produce(json.loads(sys.stdin.readline()))), flush=True)
