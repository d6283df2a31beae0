"""A member of a group as a process: says each batch that it was handed and each commit, one line of JSON each.

::

    python -m tests.processes.group_member DATA MAX_MESSAGES

Ends when its standard input ends: it has committed what it said then, and leaves the group.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from typing import Any

import shmbroker


def say(**what: Any) -> None:
    os.write(1, json.dumps({"pid": os.getpid(), "at": time.monotonic_ns(), **what}).encode() + b"\n")


def main(data: str, max_messages: int) -> None:
    with shmbroker.connect(f"shm://{data}") as client, client.consumer("s", "t", group="g") as consumer:
        say(what="joined")
        while not select.select([0], [], [], 0)[0]:
            before = time.monotonic_ns()
            batches = consumer.poll(max_messages, timeout=0.05)
            if not batches:
                continue
            for batch in batches:
                first, last = batch.base_offset, batch.base_offset + batch.count - 1
                say(what="got", asked=before, partition=batch.header.partition_id, first=first, last=last)
            consumer.commit()
            say(what="committed")
    say(what="left")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
