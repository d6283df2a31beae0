"""The partition worker: the process that owns a fixed set of partitions, their only writer.

Started by the front with exec::

    python -m shmbroker.workers.partition --worker N --data DIR --runtime DIR --instance NUMBER
        --doorbell PATH --pipe FD --link FD --control FD --control-bell FD --journal-memory BYTES
        --retention-interval MICROSECONDS

Owns, for its whole life, the exclusive lock on ``DATA/worker-N.lock``, taken before it reads anything (rule 1).
Signals that a terminal or a service manager sends to everybody are ignored: the front says when to stop, by the control
lane. The end of ``--pipe`` says that the front is dead: the group under way is answered, and the worker exits at once,
without closing its logs; the rings hold what is not on the disk, and the next worker takes them over.

Exit status: 0 after a stop in which all I/O succeeded, 1 after one in which some failed or where it cannot start, 2
after the front's death.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from shmbroker.errors import ShmbrokerError
from shmbroker.shm.doorbell import EventDoorbell, NamedDoorbell
from shmbroker.shm.lane import LaneServer
from shmbroker.shm.liveness import FileLock, PipeWatch
from shmbroker.shm.region import Region
from shmbroker.storage.disk import FileDisk
from shmbroker.storage.partition_log import JournalBudget
from shmbroker.storage.runtime import RuntimeDirectory

from .control import Control
from .crash_disk import disk_for
from .lanes import CONTROL_SESSION, Lanes
from .link import Link
from .loop import Loop
from .partitions import Partitions
from .watches import Watches

EXIT_CLEAN: Final = 0
EXIT_FAILED: Final = 1
EXIT_ORPHANED: Final = 2
THREAD_COUNT: Final = 4
"""For the second and later files of a group: more are rarely dirty, and the device does not go faster with more."""
GARBAGE_THRESHOLD: Final = 50_000
LOCK_WAIT_S: Final = 10.0
"""A predecessor that was killed gives its lock back when the kernel is done with it."""


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="shmbroker.workers.partition", description="started by the front")
    parser.add_argument("--data", required=True)
    parser.add_argument("--runtime", required=True)
    parser.add_argument("--doorbell", required=True)
    names = ("worker", "instance", "pipe", "link", "control", "control-bell", "journal-memory", "retention-interval")
    for name in names:
        parser.add_argument(f"--{name}", required=True, type=int)
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        lock = FileLock.acquire(f"{options.data}/worker-{options.worker}.lock", timeout_s=LOCK_WAIT_S)
    except ShmbrokerError as error:
        print(f"worker {options.worker}: {error}", file=sys.stderr)
        return EXIT_FAILED
    try:
        return serve(options)
    finally:
        lock.release()


def serve(options: argparse.Namespace) -> int:
    """From the lock to the end of the loop."""
    bell = NamedDoorbell.open(options.doorbell)
    link = Link(options.link)
    control_bell = EventDoorbell(options.control_bell)
    server = LaneServer(Region.attach(options.control), control_bell)
    lanes = Lanes()
    lanes.add(0, CONTROL_SESSION, server, control_bell)
    with ThreadPoolExecutor(THREAD_COUNT, thread_name_prefix="disk") as executor:
        partitions = Partitions(
            disk_for(FileDisk()),
            RuntimeDirectory(options.runtime),
            JournalBudget(options.journal_memory),
            executor,
            options.data,
            options.instance,
            options.retention_interval,
        )
        loop = Loop(bell, lanes, partitions, Watches(), executor)
        control = Control(loop, link, options.journal_memory)

        def orphaned() -> None:
            loop.stopping = True
            bell.ring()

        watch = PipeWatch(options.pipe, orphaned)
        # Requests make many short-lived tuples and no cycles: looking for cycles is a pause that producers would see.
        gc.collect()
        gc.freeze()
        gc.set_threshold(GARBAGE_THRESHOLD, 20, 100)
        loop.run(control)
    if control.failures is None:
        # The front is dead. Nothing is flushed: rings and marks are as after SIGKILL, which recovery expects, and a new
        # front is waiting for the lock. Threads and mappings go with the process.
        os._exit(EXIT_ORPHANED)
    watch.close()
    link.close()
    return EXIT_FAILED if control.failures else EXIT_CLEAN


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
