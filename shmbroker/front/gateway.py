"""The HTTP gateway: one process, started with exec once the broker serves, and again should it die.

Owns the listening socket, which every run of the gateway inherits: its address is bound once, and a client that comes
while there is no gateway waits in the backlog. The gateway is a client like any other: when it dies the broker goes on
without it, says so, and starts it again after a pause that doubles from RESTART_DELAY_S_MIN to RESTART_DELAY_S_MAX.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import os
import socket
import subprocess
import sys
import time
from dataclasses import asdict
from typing import Final

from shmbroker.config import HttpConfig
from shmbroker.errors import InvalidConfiguration, Unavailable

NEEDED_MODULES: Final = ("fastapi", "uvicorn", "httptools", "jwt")
INSTALL: Final = "pip install 'shmbroker[http]'"
BACKLOG: Final = 2_048
READY_WAIT_S: Final = 60.0
STOP_WAIT_S: Final = 15.0
RESTART_DELAY_S_MIN: Final = 0.1
RESTART_DELAY_S_MAX: Final = 5.0
STABLE_S: Final = 10.0
LOG: Final = logging.getLogger("shmbroker.front")


def check_installed() -> None:
    """Raises InvalidConfiguration, with the command that helps, where the packages for HTTP are not there."""
    missing = [name for name in NEEDED_MODULES if importlib.util.find_spec(name) is None]
    if missing:
        raise InvalidConfiguration(f"HTTP needs packages that are not installed ({', '.join(missing)}): {INSTALL}")


class GatewayProcess:
    """The gateway and the socket on which it listens. Owned by the front's loop."""

    def __init__(self, data: str, config: HttpConfig) -> None:
        """Binds the address. Raises InvalidConfiguration where it cannot be."""
        self._data = data
        self._config = config
        self._listener = _listen(config)
        host, port = self._listener.getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        """HOST:PORT as bound."""
        self.restarts = 0
        self.process: subprocess.Popen[bytes] | None = None
        self._ended = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Until it serves. Raises Unavailable where it does not."""
        if not await self._begin():
            await self.stop()
            raise Unavailable(f"the HTTP gateway on {self.address} does not get ready: see what it said")
        self._task = asyncio.create_task(self._keep(), name="gateway")

    async def stop(self) -> None:
        """Lets it finish what is under way, for a bounded time, and ends it."""
        self._stopping = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self.process is not None and not self._ended.is_set():
            self.process.terminate()
            try:
                await asyncio.wait_for(self._ended.wait(), STOP_WAIT_S)
            except TimeoutError:
                LOG.error("the HTTP gateway does not stop: it is killed")
                self.process.kill()
                await self._ended.wait()
        self._listener.close()

    @property
    def waited_for(self) -> str:
        """What is still to end of it, for people; empty where nothing is."""
        if self.process is None or self._ended.is_set():
            return ""
        return f"the HTTP gateway (process {self.process.pid})"

    def hurry(self) -> None:
        """Ends it without waiting; it is not started again."""
        if self.waited_for:
            assert self.process is not None
            self.process.kill()

    async def _keep(self) -> None:
        delay_s = RESTART_DELAY_S_MIN
        while True:
            started_s = time.monotonic()
            await self._ended.wait()
            assert self.process is not None
            LOG.error("the HTTP gateway has died (status %s): starting it again", self.process.returncode)
            if time.monotonic() - started_s > STABLE_S:
                delay_s = RESTART_DELAY_S_MIN
            while True:
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, RESTART_DELAY_S_MAX)
                try:
                    if await self._begin():
                        break
                except OSError as error:
                    LOG.error("the HTTP gateway cannot be started: %s", error)
            self.restarts += 1

    async def _begin(self) -> bool:
        """One run, from exec to the moment when it serves. False where it ends instead, or takes too long."""
        ready_read, ready_write = os.pipe2(os.O_CLOEXEC)
        pipe_read, pipe_write = os.pipe2(os.O_CLOEXEC)
        numbers = {"--listen": self._listener.fileno(), "--pipe": pipe_read, "--ready": ready_write}
        texts = {"--data": self._data, "--settings": json.dumps(asdict(self._config))}
        arguments = [f"{name}={value}" for name, value in {**numbers, **texts}.items()]
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "shmbroker.workers.http", *arguments],
                pass_fds=list(numbers.values()),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            )
        except OSError:
            os.close(pipe_write)
            os.close(ready_read)
            raise
        finally:
            os.close(ready_write)
            os.close(pipe_read)
        self._watch(self.process, pipe_write)
        is_ready = await _readable(ready_read, READY_WAIT_S) and bool(os.read(ready_read, 1))
        os.close(ready_read)
        if not is_ready:
            self.process.kill()
            await self._ended.wait()
        return is_ready

    def _watch(self, process: subprocess.Popen[bytes], pipe: int) -> None:
        """Sets ``_ended`` when the process has ended; then nobody needs the pipe that told it of us."""
        self._ended = ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        pidfd = os.pidfd_open(process.pid)

        def end() -> None:
            loop.remove_reader(pidfd)
            os.close(pidfd)
            process.wait()
            os.close(pipe)
            ended.set()

        loop.add_reader(pidfd, end)


def _listen(config: HttpConfig) -> socket.socket:
    listener: socket.socket | None = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        if listener is not None:
            listener.close()
        raise InvalidConfiguration(
            f"http.address {config.host}:{config.port}: cannot listen there: {error.strerror or error}"
        ) from error
    for path in (config.certificate, config.private_key):
        if path is not None and not os.access(path, os.R_OK):
            listener.close()
            raise InvalidConfiguration(f"{path}: cannot be read: TLS for HTTP needs it")
    return listener


async def _readable(fd: int, timeout_s: float) -> bool:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(fd, ready.set)
    try:
        await asyncio.wait_for(ready.wait(), timeout_s)
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(fd)
    return True
