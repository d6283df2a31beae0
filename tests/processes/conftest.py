"""A broker as a real process of which nothing is left after the test, however it died."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shmbroker.client.client import Client, connect
from shmbroker.client.embedded import _children_of
from shmbroker.crash_points import VARIABLE
from shmbroker.front.places import default_runtime

WAIT_S = 60.0


class BrokerProcess:
    """A front that nobody starts again. ``said`` is its standard error."""

    def __init__(
        self, data: Path, *arguments: str, crash_at: str = "", environment: dict[str, str] | None = None
    ) -> None:
        self.data = data
        ready_read, ready_write = os.pipe()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        added = {**(environment or {}), **({VARIABLE: crash_at} if crash_at else {})}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "shmbroker.front", f"--data={data}", f"--ready-fd={ready_write}", *arguments],
            pass_fds=(ready_write,),
            stdin=subprocess.DEVNULL,
            stderr=self._log,
            start_new_session=True,
            env={**os.environ, **added},
        )
        os.close(ready_write)
        self._ready = ready_read
        self.children: set[int] = set()

    @property
    def pid(self) -> int:
        return self.process.pid

    def said(self) -> str:
        return os.pread(self._log.fileno(), 1 << 20, 0).decode(errors="replace")

    def is_ready(self, timeout_s: float = 0.0) -> bool:
        """Whether clients can connect. False also where the process ended instead."""
        waiter = select.poll()
        waiter.register(self._ready, select.POLLIN)
        if not waiter.poll(timeout_s * 1000):
            return False
        line = os.read(self._ready, 65536)
        return bool(line) and json.loads(line)["pid"] == self.pid

    def ready(self) -> BrokerProcess:
        assert self.is_ready(WAIT_S), self.said()
        return self

    def workers(self) -> list[int]:
        found = _children_of(self.pid)
        self.children.update(found)
        return found

    def connect(self) -> Client:
        return connect(f"shm://{self.data}", timeout=WAIT_S)

    def kill_worker(self) -> int:
        pid = self.workers()[0]
        os.kill(pid, signal.SIGKILL)
        return pid

    def kill_everything(self) -> None:
        """SIGKILL for the front and all its workers."""
        workers = self.workers()
        os.kill(self.pid, signal.SIGKILL)
        for pid in workers:
            kill(pid, signal.SIGKILL)
        self.process.wait(WAIT_S)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        return self.process.wait(WAIT_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.workers()
            kill(self.pid, signal.SIGKILL)
            self.process.wait(WAIT_S)
        for pid in self.children:
            kill(pid, signal.SIGCONT)  # Its front is dead, so it ends by itself, and a pid may be somebody else's now.
        os.close(self._ready)
        self._log.close()


def kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


Start = Callable[..., BrokerProcess]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def start(data: Path) -> Iterator[Start]:
    """``start(*arguments, crash_at=, environment=)``: a broker on ``data``; not waited for."""
    started: list[BrokerProcess] = []

    def begin(*arguments: str, crash_at: str = "", environment: dict[str, str] | None = None) -> BrokerProcess:
        started.append(BrokerProcess(data, *arguments, crash_at=crash_at, environment=environment))
        return started[-1]

    yield begin
    for broker in started:
        broker.close()
    deadline = time.monotonic() + WAIT_S
    orphans = {pid for broker in started for pid in broker.children}
    while any(is_alive(pid) for pid in orphans) and time.monotonic() < deadline:
        time.sleep(0.01)
    shutil.rmtree(default_runtime(str(data)), ignore_errors=True)
