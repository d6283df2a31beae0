"""What every test gets: a printed seed, bounded waits, an embedded broker, and a look at what it left behind.

- ``seed``, ``rng``: randomness that a failure lets you repeat. The run's seed is in the report's header; set
  ``SHMBROKER_TEST_SEED`` to it. A test's own seed is derived from it and from the test's name.
- ``eventually(predicate, what)``: the one way to wait for another process; it has an end, and says what did not come.
- ``broker``: a broker of the test's own, with its data under ``tmp_path``; ``client`` is connected to it.
- After each test, nothing may be left: no process that this run started, no name in ``/dev/shm`` that belongs to a data
  directory of the test.
"""

from __future__ import annotations

import os
import random
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from xxhash import xxh3_64_hexdigest, xxh3_64_intdigest

RUN_SEED = int(os.environ.get("SHMBROKER_TEST_SEED") or random.SystemRandom().getrandbits(32))
RUN_MARK = f"SHMBROKER_TEST_RUN={uuid.uuid4().hex}"
"""In the environment of every process that the tests start, however deep: how leftovers are recognised."""
os.environ.update([RUN_MARK.split("=")])
SHARED_MEMORY = Path("/dev/shm")
LEFTOVER_PATIENCE_S = 10.0
POLL_INTERVAL_S = 0.01

Eventually = Callable[..., Any]


def pytest_report_header() -> str:
    return f"seed: SHMBROKER_TEST_SEED={RUN_SEED}"


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    value = xxh3_64_intdigest(request.node.nodeid.encode(), seed=RUN_SEED)
    print(f"seed of this test: {value} (SHMBROKER_TEST_SEED={RUN_SEED})")
    return value


@pytest.fixture
def rng(seed: int) -> random.Random:
    return random.Random(seed)


def wait_until(predicate: Callable[[], Any], what: str = "the condition", timeout_s: float = 20.0) -> Any:
    """The first true value of ``predicate()``; fails the test with ``what`` if none comes in time."""
    deadline = time.monotonic() + timeout_s
    while not (value := predicate()):
        if time.monotonic() > deadline:
            pytest.fail(f"waited {timeout_s:g} s for {what}")
        time.sleep(POLL_INTERVAL_S)
    return value


@pytest.fixture
def eventually() -> Eventually:
    return wait_until


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Any]:
    import shmbroker

    with shmbroker.embedded(tmp_path / "data") as embedded:
        yield embedded


@pytest.fixture
def client(broker: Any, tmp_path: Path) -> Iterator[Any]:
    import shmbroker

    with shmbroker.connect(f"shm://{tmp_path / 'data'}") as connected:
        yield connected


def started_processes() -> dict[int, str]:
    """The live processes that carry this run's mark, without the run itself: process id to command line."""
    found = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            environment = Path(entry.path, "environ").read_bytes()
            if RUN_MARK.encode() not in environment.split(b"\0"):
                continue
            command = Path(entry.path, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            continue
        if "multiprocessing.resource_tracker" not in command and "multiprocessing.forkserver" not in command:
            found[int(entry.name)] = command
    return found


def shared_memory_names(directory: Path) -> list[Path]:
    """The names in /dev/shm that belong to a data directory anywhere under ``directory``."""
    found = []
    for lock in directory.rglob("broker.lock"):
        digest = xxh3_64_hexdigest(os.path.realpath(lock.parent).encode())
        found += SHARED_MEMORY.glob(f"*{digest}*")
    return found


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    directory = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    before = started_processes()
    yield
    deadline = time.monotonic() + LEFTOVER_PATIENCE_S

    def leftovers() -> list[str]:
        processes = [f"process {pid}: {line}" for pid, line in started_processes().items() if pid not in before]
        names = [f"name {name}" for name in shared_memory_names(directory)] if directory else []
        return processes + names

    while left := leftovers():
        if time.monotonic() > deadline:
            for pid in started_processes().keys() - before.keys():
                os.kill(pid, signal.SIGKILL)
            pytest.fail("the test left behind:\n" + "\n".join(left))
        time.sleep(POLL_INTERVAL_S)
