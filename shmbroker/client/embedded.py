"""A broker of one's own: its front runs as a child of this program, and stops with it.

``with shmbroker.embedded(path) as broker:`` starts the front with exec, waits until clients can connect, starts it
again should it die, and at the end of the block has it write everything and end. The front watches this process
(through a process descriptor, which tells of any death, SIGKILL included, and which no child of this process can keep
alive): when the program ends, however it ends, the broker drains and exits by itself.

Owned by the thread that entered it; one thread of its own waits for the front to die, another reads what it says.
"""

from __future__ import annotations

import json
import logging
import os
import select
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from shmbroker.client.client import Client, connect
from shmbroker.errors import BrokerGone, Closed, Unavailable

START_WAIT_S: Final = 60.0
STOP_WAIT_S: Final = 120.0
RESTART_DELAY_S_MIN: Final = 0.05
RESTART_DELAY_S_MAX: Final = 5.0
START_TRIES: Final = 5
LINES_KEPT: Final = 20
LOG: Final = logging.getLogger("shmbroker.embedded")


class Embedded:
    """A broker under this program. ``data`` is its data directory, an absolute path."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        workers: int | None = None,
        config: str | os.PathLike[str] | None = None,
        runtime: str | os.PathLike[str] | None = None,
        tcp: str | None = None,
        environment: dict[str, str] | None = None,
        timeout: float = START_WAIT_S,
    ) -> None:
        """``workers``, ``config`` (a TOML file) and ``runtime`` as for ``shmbroker serve``; ``tcp`` is HOST:PORT to
        serve the binary protocol on (port 0: any), None: not at all. ``environment`` is added to this process's for
        the first start. ``timeout`` in seconds, for each start."""
        self.data = os.path.abspath(path)
        self._timeout = timeout
        self._environment: dict[str, str] = environment or {}
        self._arguments = [f"--data={self.data}"]
        for name, value in (("workers", workers), ("config", config), ("runtime", runtime)):
            if value is not None:
                self._arguments.append(f"--{name}={os.fspath(value) if not isinstance(value, int) else value}")
        self._tcp = tcp
        self._root_password: str | None = None
        self._lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._keeper: threading.Thread | None = None
        self._closing = threading.Event()
        self._ready = threading.Event()
        self._failure: Unavailable | None = None
        self._generation = 0

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except Unavailable:
            if error is None:
                raise
            LOG.exception("the embedded broker did not stop in order")

    @property
    def pid(self) -> int:
        """The front's process id; another one after it was started again."""
        if self._process is None:
            raise Closed("the embedded broker does not run")
        return self._process.pid

    @property
    def root_password(self) -> str | None:
        """The password of the root user, ``iggy``, where this broker made one up: its first start with ``tcp`` and
        without IGGY_ROOT_PASSWORD. Else None; it is told once and kept nowhere."""
        return self._root_password

    @property
    def tcp_address(self) -> str:
        """HOST:PORT where the binary protocol is served, the same after a restart; empty where it is not."""
        return self._tcp or ""

    def process_ids(self) -> list[int]:
        """The front and its workers, as they are now."""
        front = self.pid
        return [front, *_children_of(front)]

    def start(self) -> Self:
        """Until clients can connect. Raises Unavailable with what the broker said where it does not start."""
        if self._process is not None:
            raise Closed("an embedded broker is started once")
        self._start_process()
        self._keeper = threading.Thread(target=self._keep, name="embedded broker", daemon=True)
        self._keeper.start()
        return self

    def connect(self, *, timeout: float = START_WAIT_S) -> Client:
        """A client of this broker; waits for one that is being started again."""
        if not self._ready.wait(timeout) or self._closing.is_set():
            raise BrokerGone(f"the embedded broker of {self.data} does not run")
        if self._failure is not None:
            raise self._failure
        return connect(f"shm://{self.data}", timeout=timeout)

    def close(self, timeout: float = STOP_WAIT_S) -> None:
        """Drains and ends it. Raises Unavailable where not everything was written. Twice is fine."""
        process = self._process
        if process is None or self._closing.is_set():
            return
        self._closing.set()
        self._ready.set()
        if self._keeper is not None:
            self._keeper.join(timeout)
        process = self._process
        assert process is not None
        if process.poll() is None:
            process.terminate()
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise Unavailable(f"the embedded broker of {self.data} did not stop within {timeout:g} s") from None
        finally:
            if self._reader is not None:
                self._reader.join(timeout)
        if status:
            raise Unavailable(
                f"the embedded broker of {self.data} ended with status {status}: {self._said()}"
            ) from self._failure

    def _start_process(self) -> None:
        """One start, until it is ready."""
        self._generation += 1
        ready_read, ready_write = os.pipe2(os.O_CLOEXEC)
        parent = os.pidfd_open(os.getpid())
        arguments = [*self._arguments, f"--ready-fd={ready_write}", f"--parent-fd={parent}"]
        if self._tcp is not None:
            arguments.append(f"--tcp={self._tcp}")
        environment = {**os.environ, **(self._environment if self._generation == 1 else {})}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "shmbroker.front", *arguments],
                pass_fds=(ready_write, parent),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env=environment,
            )
        finally:
            os.close(ready_write)
            os.close(parent)
        self._reader = threading.Thread(target=self._read_lines, args=(self._process,), daemon=True)
        self._reader.start()
        try:
            self._await_ready(ready_read)
        finally:
            os.close(ready_read)
        self._ready.set()

    def _await_ready(self, ready_fd: int) -> None:
        assert self._process is not None
        waiter = select.poll()
        waiter.register(ready_fd, select.POLLIN)
        line = b""
        deadline_s = time.monotonic() + self._timeout
        while not line.endswith(b"\n"):
            left_s = deadline_s - time.monotonic()
            chunk = os.read(ready_fd, 4096) if left_s > 0 and waiter.poll(left_s * 1000) else b""
            if not chunk:
                self._process.kill()
                self._process.wait()
                assert self._reader is not None
                self._reader.join(self._timeout)
                raise Unavailable(f"no broker could be started on {self.data}: {self._said()}")
            line += chunk
        told = json.loads(line)
        assert told["pid"] == self._process.pid
        if self._tcp is not None:
            self._tcp = told["tcp"]
        self._root_password = told["root_password"] or self._root_password

    def _keep(self) -> None:
        """Starts the front again when it dies."""
        delay_s = RESTART_DELAY_S_MIN
        tries = 0
        while not self._closing.is_set():
            process = self._process
            assert process is not None
            if not _wait_for_end(process, self._closing):
                return
            self._ready.clear()
            LOG.warning("the embedded broker of %s died (status %s): starting it again", self.data, process.returncode)
            while not self._closing.wait(delay_s):
                try:
                    self._start_process()
                except Unavailable as error:
                    tries += 1
                    if tries >= START_TRIES:
                        self._failure = error
                        self._ready.set()
                        return
                    delay_s = min(2 * delay_s, RESTART_DELAY_S_MAX)
                else:
                    tries, delay_s = 0, RESTART_DELAY_S_MIN
                    break

    def _read_lines(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        with process.stderr as stream:
            for line in stream:
                text = line.decode(errors="replace").rstrip()
                self._lines.append(text)
                LOG.info("%s", text)

    def _said(self) -> str:
        return "; ".join(list(self._lines)[-3:]) or "it said nothing"


def embedded(
    path: str | os.PathLike[str],
    *,
    workers: int | None = None,
    config: str | os.PathLike[str] | None = None,
    runtime: str | os.PathLike[str] | None = None,
    tcp: str | None = None,
    environment: dict[str, str] | None = None,
    timeout: float = START_WAIT_S,
) -> Embedded:
    """A broker of one's own on the data directory ``path``, for a ``with`` block: see :class:`Embedded`."""
    return Embedded(
        path, workers=workers, config=config, runtime=runtime, tcp=tcp, environment=environment, timeout=timeout
    )


def _wait_for_end(process: subprocess.Popen[bytes], closing: threading.Event) -> bool:
    """Whether the process ended before ``closing`` was set."""
    while not closing.is_set():
        try:
            process.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
        return not closing.is_set()
    return False


def _children_of(pid: int) -> list[int]:
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            try:
                status = Path(entry.path, "stat").read_text(encoding="ascii", errors="replace")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(status.rpartition(")")[2].split()[1]) == pid:
                found.append(int(entry.name))
    return sorted(found)
