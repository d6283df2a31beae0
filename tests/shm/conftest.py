"""Peers (real processes), doorbells and lanes for the tests of shared memory."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shmbroker.shm.doorbell import NamedDoorbell, sweep_names

PEER = Path(__file__).with_name("peer.py")


class Peer:
    """A running ``peer.py``."""

    def __init__(self, role: str, *arguments: object, fds: tuple[int, ...] = ()) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(PEER), role, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=fds,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if not line:
            self.process.kill()
            pytest.fail(f"the peer ended: {self.process.communicate()[1]}")
        return line

    def tell(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def wait(self) -> int:
        """Waits for its end; its exit status."""
        return self.process.wait(timeout=60)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=60)

    def error(self) -> str:
        return self.process.communicate(timeout=60)[1]


@pytest.fixture
def peer() -> Iterator[Callable[..., Peer]]:
    """``peer(role, *arguments, fds=())`` starts a process; all of them are dead afterwards."""
    started: list[Peer] = []

    def start(role: str, *arguments: object, fds: tuple[int, ...] = ()) -> Peer:
        started.append(Peer(role, *arguments, fds=fds))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.communicate(timeout=60)


@pytest.fixture
def prefix() -> Iterator[str]:
    """A prefix for the names of doorbells. No name of it may be left."""
    value = f"shmbroker-test-{secrets.token_hex(6)}."
    yield value
    assert sweep_names(value) == 0, "names left in /dev/shm"


@pytest.fixture
def shared_path() -> Iterator[Path]:
    """A directory on the file system of /dev/shm."""
    path = Path(f"/dev/shm/shmbroker-test-{secrets.token_hex(6)}")
    path.mkdir(mode=0o700)
    yield path
    for entry in path.iterdir():
        entry.unlink()
    path.rmdir()


@pytest.fixture
def bell(shared_path: Path) -> Iterator[NamedDoorbell]:
    """A doorbell at ``shared_path / "bell"``."""
    doorbell = NamedDoorbell.create(str(shared_path / "bell"))
    yield doorbell
    doorbell.close()
