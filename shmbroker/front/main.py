"""The front's process: settings, start, signals, stop, exit status.

::

    python -m shmbroker.front [--data DIR] [--runtime DIR] [--workers N] [--config FILE] [--tcp HOST:PORT]
        [--ready-fd FD] [--parent-fd FD]

``--ready-fd`` gets one line of JSON, {"pid", "socket", "data", "runtime", "tcp", "root_password"}, once clients can
connect; the password is that of a root user who was made now, or null. Then it is closed.
``--parent-fd`` is a process descriptor of the parent, or the reading end of a pipe whose writing end is the parent's:
when that ends, even by SIGKILL, the front stops as for SIGTERM.

SIGTERM or SIGINT stops in order, saying every WAITED_S who is waited for; a second one kills what is left.

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

from shmbroker import crash_points
from shmbroker.config import Config, load
from shmbroker.core.users import ROOT_ID
from shmbroker.errors import ShmbrokerError
from shmbroker.front.broker import Broker
from shmbroker.front.gateway import check_installed
from shmbroker.front.login import RootCredentials, take_root_credentials
from shmbroker.front.places import Places

EXIT_CLEAN: Final = 0
EXIT_FAILED: Final = 1
WAITED_S: Final = 5.0
"""Between two words about who holds up the stop; and what a killed process, or a disk, gets to end."""
LOG: Final = logging.getLogger("shmbroker.front")


class StopSignals:
    """What SIGTERM and SIGINT do: the first asks for a stop in order, the second ends it."""

    def __init__(self, stop: asyncio.Event) -> None:
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        self.broker: Broker | None = None
        self._is_second = False
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._signalled)

    def _signalled(self) -> None:
        if not self._stop.is_set():
            self._stop.set()
        elif not self._is_second and self.broker is not None:
            self._is_second = True
            LOG.error("told to stop twice: killing %s", ", ".join(self.broker.waited_for()))
            self.broker.hurry()
            self._loop.call_later(WAITED_S, _leave)

    @property
    def failures(self) -> list[str]:
        """Of a stop that was cut short."""
        return ["the stop was cut short by a second signal"] if self._is_second else []


def _leave() -> None:
    """What still holds us up cannot be killed: a disk that does not answer."""
    LOG.error("leaving with work under way, as after SIGKILL")
    os._exit(EXIT_FAILED)


async def _stop(broker: Broker) -> list[str]:
    """The stop in order, which says whom it waits for."""
    stopping = asyncio.ensure_future(broker.stop())
    while not (await asyncio.wait({stopping}, timeout=WAITED_S))[0]:
        LOG.warning("stopping: still waiting for %s; a second signal kills it", ", ".join(broker.waited_for()))
    return stopping.result()


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
    crash_points.check()
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
    signals = StopSignals(stop)
    if parent_fd is not None:
        loop.add_reader(parent_fd, _parent_ended, loop, parent_fd, stop)
    broker = signals.broker = Broker(places, config, root)
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
        return await _stop(broker) + signals.failures
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
