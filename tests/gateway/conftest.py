"""A broker with its HTTP gateway, as real processes; one for a module, since starting it takes seconds."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from shmbroker.client.embedded import _children_of
from shmbroker.front.places import default_runtime
from tests.processes.conftest import is_alive, kill

WAIT_S = 60.0
USER = "iggy"
PASSWORD = "root-secret"
_numbers = itertools.count()


class Served:
    """A front, its worker and its gateway. ``settings`` are environment variables without their prefix."""

    def __init__(self, data: Path, **settings: str) -> None:
        self.data = data
        ready_read, ready_write = os.pipe()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        secret = {"IGGY_ROOT_USERNAME": USER, "IGGY_ROOT_PASSWORD": PASSWORD}
        environment = {**os.environ, **secret, **{f"SHMBROKER_{name}": value for name, value in settings.items()}}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "shmbroker.front", f"--data={data}", f"--ready-fd={ready_write}", "--workers=1",
             "--http=127.0.0.1:0"],
            pass_fds=(ready_write,), stdin=subprocess.DEVNULL, stderr=self._log, start_new_session=True,
            env=environment,
        )  # fmt: skip
        os.close(ready_write)
        waiter = select.poll()
        waiter.register(ready_read, select.POLLIN)
        line = os.read(ready_read, 65_536) if waiter.poll(WAIT_S * 1000) else b""
        os.close(ready_read)
        assert line, self.said()
        self.address: str = json.loads(line)["http"]
        scheme = "https" if "HTTP_CERTIFICATE" in settings else "http"
        self.url = f"{scheme}://{self.address}"
        self._children = set(_children_of(self.process.pid))

    def said(self) -> str:
        return os.pread(self._log.fileno(), 1 << 20, 0).decode(errors="replace")

    def child(self, module: str) -> int:
        """The process id of the worker (``partition``) or the gateway (``http``)."""
        for pid in _children_of(self.process.pid):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if f"shmbroker.workers.{module}".encode() in words:
                self._children.add(pid)
                return pid
        return 0

    @contextmanager
    def stopped_worker(self) -> Iterator[int]:
        """The worker stands still within the block; it may be killed there."""
        pid = self.child("partition")
        os.kill(pid, signal.SIGSTOP)
        try:
            yield pid
        finally:
            kill(pid, signal.SIGCONT)

    @contextmanager
    def client(self, username: str = USER, password: str = PASSWORD, **options: Any) -> Iterator[httpx.Client]:
        """Logged in."""
        with httpx.Client(base_url=self.url, timeout=WAIT_S, **options) as client:
            answer = client.post("/users/login", json={"username": username, "password": password})
            assert answer.status_code == 200, answer.text
            client.headers["Authorization"] = f"Bearer {answer.json()['access_token']['token']}"
            yield client

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self._children.update(_children_of(self.process.pid))
            self.stop()
        for pid in self._children:
            if is_alive(pid):
                kill(pid, signal.SIGCONT)
        self._log.close()
        shutil.rmtree(default_runtime(str(self.data)), ignore_errors=True)  # kept where the stop was not clean


Serve = Callable[..., Served]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One that the tests of a module share. A request may take two seconds."""
    served = Served(tmp_path_factory.mktemp("http") / "data", HTTP_TIME_LIMIT="2s")
    yield served
    served.close()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """``serve(**settings)``: one of the test's own."""
    started: list[Served] = []

    def begin(**settings: str) -> Served:
        started.append(Served(tmp_path / "data", **settings))
        return started[-1]

    yield begin
    for each in started:
        each.close()


@pytest.fixture
def api(served: Served) -> Iterator[httpx.Client]:
    """The root user's client."""
    with served.client() as client:
        yield client


@pytest.fixture
def topic(api: httpx.Client) -> str:
    """The path of a new topic of one partition, ``replicated``."""
    return make_topic(api)


def make_topic(api: httpx.Client, partitions: int = 1, **options: str) -> str:
    """The path of a new topic in a new stream."""
    stream = f"stream-{next(_numbers)}"
    assert api.post("/streams", json={"name": stream}).status_code == 200
    body = {"name": "t", "partitions_count": partitions, "options": options}
    answer = api.post(f"/streams/{stream}/topics", json=body)
    assert answer.status_code == 200, answer.text
    return f"/streams/{stream}/topics/t"


def batch(*payloads: bytes, partition: int | None = 0) -> dict[str, Any]:
    """The body of a production."""
    body: dict[str, Any] = {"messages": [{"payload": base64.b64encode(payload).decode()} for payload in payloads]}
    if partition is not None:
        value = base64.b64encode(partition.to_bytes(4, "little")).decode()
        body["partitioning"] = {"kind": "partition_id", "value": value}
    return body


def payloads(api: httpx.Client, topic: str, **query: str | int) -> list[bytes]:
    """What a poll from the first message hands out."""
    answer = api.get(f"{topic}/messages", params={"kind": "first", "count": 1000, **query})
    assert answer.status_code == 200, answer.text
    return [base64.b64decode(message["payload"]) for message in answer.json()["messages"]]
