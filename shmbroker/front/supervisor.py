"""The workers: started with exec, watched by their process descriptors, started again when they die.

One Worker is one slot: a number, a set of partitions that is fixed while this front lives, and one run of the process
after the other. What belongs to a run (control lane, link, pipe, doorbell) dies with it. A run is ready when it has
opened all its partitions; only then is its link handed out.

A worker that dies is started again after a pause that doubles from RESTART_DELAY_S_MIN to RESTART_DELAY_S_MAX and
begins anew once a run has lasted STABLE_S. At the start of the broker, START_TRIES runs that do not get ready end it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

from shmbroker import crash_points
from shmbroker.errors import ErrorCode, NoSpace, ShmbrokerError, Unavailable
from shmbroker.front.places import DOORBELLS_DIRECTORY, Places
from shmbroker.front.worker_link import CONTROL_LANE_SIZE, WorkerLink
from shmbroker.shm.doorbell import EventDoorbell, NamedDoorbell
from shmbroker.shm.lane import create_lane

RESTART_DELAY_S_MIN: Final = 0.02
RESTART_DELAY_S_MAX: Final = 5.0
STABLE_S: Final = 10.0
START_TRIES: Final = 3
OPEN_CHUNK: Final = 50
"""Partitions that one request opens: the control lane holds the request, and the front shows progress."""
READY_WAIT_S: Final = 20.0
"""A client's request waits so long for a worker that is being started again."""
LOG: Final = logging.getLogger("shmbroker.front")


class WorkerOwner(Protocol):
    """What a worker needs of the broker."""

    def partitions_of(self, worker: int) -> Iterable[dict[str, Any]]:
        """What to open, as the ``open`` request has it."""

    def opened(self, worker: int, states: list[dict[str, Any]]) -> None: ...
    def worker_ready(self, worker: int) -> None: ...
    def worker_died(self, worker: int) -> None: ...
    def lane_closed(self, lane_id: int, text: str) -> None: ...


@dataclass(frozen=True)
class WorkerSettings:
    """What every run of every worker gets."""

    places: Places
    instance: int
    journal_memory: int
    """Bytes of rings for one worker."""
    retention_interval_us: int


class WorkerRun:
    """One process, from exec to its end."""

    def __init__(self, process: subprocess.Popen[bytes], link: WorkerLink, pipe: int) -> None:
        self.process = process
        self.link = link
        self.started_s = time.monotonic()
        self.ended = asyncio.Event()
        self._pipe = pipe
        self._pidfd = os.pidfd_open(process.pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._end)

    def _end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self.process.wait()
        os.close(self._pipe)
        self.link.died()
        self.ended.set()

    def outcome(self) -> str:
        code = self.process.returncode
        return f"signal {-code}" if code < 0 else f"exit status {code}"


class Worker:
    """One slot. Owned by the front's loop."""

    def __init__(self, number: int, settings: WorkerSettings, owner: WorkerOwner) -> None:
        self.number = number
        self.generation = 0
        self.restarts = 0
        self.doorbell_path = ""
        """Of the run that is ready."""
        self.run: WorkerRun | None = None
        self._settings = settings
        self._owner = owner
        self._ready = asyncio.Event()
        self._given_up: Unavailable | None = None
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep(), name=f"worker {self.number}")

    @property
    def is_ready(self) -> bool:
        """Whether a run serves now."""
        return self._ready.is_set() and self._given_up is None

    async def first_ready(self) -> None:
        """Until the first run is ready, however long its recovery takes. Unavailable where it does not start."""
        await self._ready.wait()
        if self._given_up is not None:
            raise self._given_up

    async def running(self, timeout_s: float = READY_WAIT_S) -> WorkerLink:
        """The link of a run that is ready. Unavailable where there is none in time."""
        if not self._ready.is_set():
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._ready.wait(), timeout_s)
        if not self._ready.is_set() or self.run is None or self._given_up is not None:
            raise Unavailable(f"worker {self.number} is being started again", number=ErrorCode.WORKER_UNAVAILABLE)
        return self.run.link

    async def stop(self) -> list[str]:
        """Drains and ends it: the final flush of everything. What of it failed."""
        try:
            link = await self.running()
            run = self.run
            self._stopping = True
            answer = await link.control("stop", timeout_s=math.inf)
            failures: list[str] = answer["failures"]
            assert run is not None
            await run.ended.wait()
            if run.process.returncode and not failures:
                failures = [f"worker {self.number} ended with {run.outcome()}"]
        except ShmbrokerError as error:
            failures = [f"worker {self.number} could not be stopped in order: {error}"]
        self._stopping = True
        await self.kill()
        return failures

    @property
    def waited_for(self) -> str:
        """What is still to end of it, for people; empty where nothing is."""
        if self.run is None or self.run.ended.is_set():
            return ""
        return f"worker {self.number} (process {self.run.process.pid})"

    def hurry(self) -> None:
        """Ends it without waiting, whatever it is doing; it is not started again."""
        self._stopping = True
        if self.waited_for:
            assert self.run is not None
            self.run.process.kill()

    async def kill(self) -> None:
        """Ends it now, if it lives. Its pipe ends with us in any case."""
        self._stopping = True
        if self.run is not None and not self.run.ended.is_set():
            self.run.process.kill()
            await self.run.ended.wait()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _keep(self) -> None:
        delay_s = RESTART_DELAY_S_MIN
        tries = 0
        while True:
            try:
                await self._run_once()
            except (OSError, NoSpace) as error:
                LOG.error("worker %d cannot be started: %s", self.number, error)
            if self._stopping:
                return
            if self.run is not None and time.monotonic() - self.run.started_s > STABLE_S:
                delay_s = RESTART_DELAY_S_MIN
            tries += 1
            if self.restarts == 0 and tries >= START_TRIES:
                why = self.run.outcome() if self.run is not None else "it could not be started"
                self._given_up = Unavailable(f"worker {self.number} does not get ready: {why}, {tries} times")
                self._ready.set()
                return
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, RESTART_DELAY_S_MAX)

    async def _run_once(self) -> None:
        """From exec to the end of the process."""
        run = self.run = self._spawn()
        try:
            await self._open_all(run.link)
        except ShmbrokerError as error:
            if not run.ended.is_set():
                LOG.error("worker %d cannot open its partitions: %s", self.number, error)
                run.process.kill()
        else:
            self._ready.set()
            self._owner.worker_ready(self.number)
        await run.ended.wait()
        was_ready = self._ready.is_set()
        self._ready.clear()
        self._owner.worker_died(self.number)
        if not self._stopping:
            LOG.error("worker %d (process %d) has died: %s", self.number, run.process.pid, run.outcome())
            self.restarts += was_ready

    async def _open_all(self, link: WorkerLink) -> None:
        """An empty request too: its answer says that the worker holds its lock and serves."""
        entries = list(self._owner.partitions_of(self.number))
        for start in range(0, max(1, len(entries)), OPEN_CHUNK):
            answer = await link.control("open", timeout_s=math.inf, partitions=entries[start : start + OPEN_CHUNK])
            self._owner.opened(self.number, answer["partitions"])

    def _spawn(self) -> WorkerRun:
        self.generation += 1
        settings = self._settings
        places = settings.places
        if self.doorbell_path:
            with suppress(FileNotFoundError):
                os.unlink(self.doorbell_path)
        self.doorbell_path = f"{places.runtime}/{DOORBELLS_DIRECTORY}/worker-{self.number}-{self.generation}"
        doorbell = NamedDoorbell.create(self.doorbell_path)
        region = create_lane(CONTROL_LANE_SIZE, 0)
        completion = EventDoorbell.create()
        front_end, worker_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pipe_read, pipe_write = os.pipe2(os.O_CLOEXEC)
        numbers = {
            "--worker": self.number,
            "--instance": settings.instance,
            "--journal-memory": settings.journal_memory,
            "--retention-interval": settings.retention_interval_us,
            "--pipe": pipe_read,
            "--link": worker_end.fileno(),
            "--control": region.fd,
            "--control-bell": completion.fd,
        }
        texts = {
            "--data": places.data,
            "--runtime": places.runtime,
            "--doorbell": self.doorbell_path,
        }
        arguments = [f"{name}={value}" for name, value in {**numbers, **texts}.items()]
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "shmbroker.workers.partition", *arguments],
                pass_fds=(pipe_read, worker_end.fileno(), region.fd, completion.fd),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env=self._environment(),
            )
        finally:
            worker_end.close()
            os.close(pipe_read)
            region.close_descriptor()
            completion.close_descriptor()
        link = WorkerLink(self.number, region, doorbell, completion, front_end, self._notice)
        return WorkerRun(process, link, pipe_write)

    def _environment(self) -> dict[str, str]:
        """Crash points and faults are for the first run only, or it would die for ever; numpy needs no threads here."""
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        if self.generation > 1:
            environment.pop(crash_points.VARIABLE, None)
            environment.pop(crash_points.FAULT_VARIABLE, None)
        return environment

    def _notice(self, body: dict[str, Any]) -> None:
        if body["notice"] == "lane-closed":
            self._owner.lane_closed(body["lane_id"], body["text"])
