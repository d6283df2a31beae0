"""The front's process: settings, start, signals, stop, exit status.

::

    python -m shmbroker.front [--data DIR] [--runtime DIR] [--workers N] [--config FILE] [--tcp HOST:PORT]
        [--ready-fd FD] [--parent-fd FD]

``--ready-fd`` gets one line of JSON, {"pid", "socket", "data", "runtime", "tcp", "root_password"}, once clients can
connect; the password is that of a root user who was made now, or null. Then it is closed.
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
from shmbroker.core.users import ROOT_ID
from shmbroker.errors import ShmbrokerError
from shmbroker.front.broker import Broker
from shmbroker.front.gateway import check_installed
from shmbroker.front.login import RootCredentials, take_root_credentials
from shmbroker.front.places import Places

EXIT_CLEAN: Final = 0
EXIT_FAILED: Final = 1
LOG: Final = logging.getLogger("shmbroker.front")


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="shmbroker.front", description="the broker; `shmbroker serve` is for people")
    for name in ("data", "runtime", "config", "tcp", "http"):
        parser.add_argument(f"--{name}")
    for name in ("workers", "ready-fd", "parent-fd"):
        parser.add_argument(f"--{name}", type=int)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Runs a broker until it is told to stop. The exit status."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    flags = {"broker.data": options.data, "broker.runtime": options.runtime, "broker.workers": options.workers}
    if options.tcp is not None:
        flags |= {"tcp.enabled": True, "tcp.address": options.tcp}
    if options.http is not None:
        flags |= {"http.enabled": True, "http.address": options.http}
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
    _raise_descriptor_limit()
    if config.http.enabled:
        check_installed()
    root = take_root_credentials(os.environ)
    places = Places.take(config.broker.data, config.broker.runtime)
    try:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                failures = runner.run(_serve(config, places, root, ready_fd, parent_fd, on_ready))
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
    config: Config,
    places: Places,
    root: RootCredentials | None,
    ready_fd: int | None,
    parent_fd: int | None,
    on_ready: Callable[[], None] | None,
) -> list[str]:
    """Start to stop; what of the final flush failed."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if parent_fd is not None:
        loop.add_reader(parent_fd, _parent_ended, loop, parent_fd, stop)
    broker = Broker(places, config, root)
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


def _tell_password(broker: Broker) -> None:
    """Once, to the person who started the broker, and to no log: only its hash is kept."""
    name = broker.keeper.catalog.users.get(ROOT_ID).name
    print(f"shmbroker: the root user is {name}, with password {broker.made_up_password}", file=sys.stderr)
    print("shmbroker: this is said once; change it with `shmbroker user password`", file=sys.stderr, flush=True)


def _tell_ready(broker: Broker, ready_fd: int | None) -> None:
    places = broker.places
    addresses = {"tcp": broker.tcp_address, "http": broker.http_address}
    said = "".join(f", {name} {address}" for name, address in addresses.items() if address)
    LOG.info("serving %s on %s%s", places.data, places.socket_path, said)
    if ready_fd is None:
        if broker.made_up_password is not None:
            _tell_password(broker)
        return
    line: dict[str, Any] = {
        "pid": os.getpid(),
        "socket": places.socket_path,
        "data": places.data,
        "runtime": places.runtime,
        **addresses,
        "root_password": broker.made_up_password,
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


def _raise_descriptor_limit() -> None:
    """Lanes, connections and partitions need descriptors: as many as the system allows, workers inherit it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
