"""The front's process: settings, start, signals, stop, exit status.

::

    python -m shmbroker.front [--data DIR] [--runtime DIR] [--workers N] [--config FILE]
        [--ready-fd FD] [--parent-fd FD]

``--ready-fd`` gets one line of JSON, {"pid", "socket", "data", "runtime"}, when clients can connect, and is closed.
``--parent-fd`` is a process descriptor of the parent, or the reading end of a pipe whose writing end is the parent's:
when that ends, even by SIGKILL, the front stops as for SIGTERM.

Exit status: 0 after a stop in which everything committed was written, 1 otherwise, and where the broker does not start;
the reason is one line on standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import json
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any, Final

import uvloop

from shmbroker.config import Config, load
from shmbroker.errors import InvalidConfiguration, ShmbrokerError
from shmbroker.front.broker import Broker
from shmbroker.front.places import Places

EXIT_CLEAN: Final = 0
EXIT_FAILED: Final = 1
LOG: Final = logging.getLogger("shmbroker.front")


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="shmbroker.front", description="the broker; `shmbroker serve` is for people")
    for name in ("data", "runtime", "config"):
        parser.add_argument(f"--{name}")
    for name in ("workers", "ready-fd", "parent-fd"):
        parser.add_argument(f"--{name}", type=int)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Runs a broker until it is told to stop. The exit status."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    flags = {"broker.data": options.data, "broker.runtime": options.runtime, "broker.workers": options.workers}
    logging.basicConfig(level=logging.INFO, format="shmbroker %(levelname)s: %(message)s", stream=sys.stderr)
    try:
        return serve(load(options.config, flags=flags), options.ready_fd, options.parent_fd)
    except ShmbrokerError as error:
        print(f"shmbroker: {error}", file=sys.stderr)
        return EXIT_FAILED


def serve(
    config: Config,
    ready_fd: int | None = None,
    parent_fd: int | None = None,
    on_ready: Callable[[], None] | None = None,
) -> int:
    """Runs a broker with these settings in this process until SIGTERM or SIGINT. The exit status.

    Raises what keeps it from starting: Unavailable, InvalidConfiguration, Corrupt, DiskFailed, NoSpace.
    """
    _refuse_listeners(config)
    _raise_descriptor_limit()
    places = Places.take(config.broker.data, config.broker.runtime)
    try:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                failures = runner.run(_serve(config, places, ready_fd, parent_fd, on_ready))
        except ShmbrokerError:  # It did not start.
            places.discard_new_runtime()
            raise
        if not failures:
            places.remove_runtime()
        for failure in failures:
            LOG.error("not written in order: %s", failure)
        return EXIT_FAILED if failures else EXIT_CLEAN
    finally:
        places.release()


async def _serve(
    config: Config, places: Places, ready_fd: int | None, parent_fd: int | None, on_ready: Callable[[], None] | None
) -> list[str]:
    """Start to stop; what of the final flush failed."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if parent_fd is not None:
        loop.add_reader(parent_fd, _parent_ended, loop, parent_fd, stop)
    broker = Broker(places, config)
    starting = asyncio.ensure_future(broker.start())
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
        try:
            await starting
        except BaseException as error:
            await broker.abandon()
            if isinstance(error, asyncio.CancelledError):
                return ["stopped before it had started"]
            raise
        _tell_ready(broker, ready_fd)
        if on_ready is not None:
            on_ready()
        await stopping
        LOG.info("stopping: writing what is committed")
        return await broker.stop()
    finally:
        stopping.cancel()


def _tell_ready(broker: Broker, ready_fd: int | None) -> None:
    places = broker.places
    LOG.info("serving %s on %s", places.data, places.socket_path)
    if ready_fd is None:
        return
    line: dict[str, Any] = {
        "pid": os.getpid(),
        "socket": places.socket_path,
        "data": places.data,
        "runtime": places.runtime,
    }
    try:
        os.write(ready_fd, json.dumps(line).encode() + b"\n")
    except BrokenPipeError:
        LOG.warning("whoever started this broker does not listen any more")
    os.close(ready_fd)


def _parent_ended(loop: asyncio.AbstractEventLoop, parent_fd: int, stop: asyncio.Event) -> None:
    """It is readable: a process descriptor at the end of the process, a pipe at its end, as nobody writes to it."""
    try:
        ended = not os.read(parent_fd, 1)
    except OSError as error:
        ended = error.errno == errno.EINVAL  # A process descriptor cannot be read.
    if ended:
        loop.remove_reader(parent_fd)
        stop.set()


def _refuse_listeners(config: Config) -> None:
    """Whoever asks for a listener would wait for clients that cannot come."""
    for name, listener in (("tcp", config.tcp), ("http", config.http)):
        if listener.enabled:
            raise InvalidConfiguration(
                f"{name}.enabled is true: {name.upper()} is not in this release, set it to false"
            )


def _raise_descriptor_limit() -> None:
    """Lanes, connections and partitions need descriptors: as many as the system allows, workers inherit it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
