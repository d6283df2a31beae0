"""Locks and pipes: what the living learn of the dead, with real processes and SIGKILL."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from shmbroker.errors import Unavailable
from shmbroker.shm.liveness import FileLock, PipeWatch

from .conftest import Peer

StartPeer = Callable[..., Peer]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "broker.lock")


def test_rule_01_a_held_lock_names_its_holder_and_falls_free_with_it(peer: StartPeer, path: str) -> None:
    assert FileLock.is_free(path)
    holder = peer("hold_lock", path)
    assert holder.line() == "held"
    assert not FileLock.is_free(path)
    with pytest.raises(Unavailable, match=f"held by process {holder.process.pid}"):
        FileLock.acquire(path, timeout_s=0)
    assert not FileLock.wait_free(path, 0.05)
    holder.kill()
    assert FileLock.wait_free(path, 10)
    assert FileLock.is_free(path)
    lock = FileLock.acquire(path)
    assert not FileLock.is_free(path)
    lock.release()
    lock.release()
    assert FileLock.is_free(path)


def test_rule_01_a_lock_given_up_by_a_process_that_lives_on_is_free(peer: StartPeer, path: str) -> None:
    holder = peer("hold_lock", path)
    holder.line()
    holder.tell()
    assert holder.line() == "released"
    FileLock.acquire(path).release()


def test_rule_01_acquiring_waits_for_the_holder_to_end(peer: StartPeer, path: str) -> None:
    holder = peer("hold_lock", path)
    holder.line()
    killer = threading.Timer(0.05, holder.kill)
    killer.start()
    FileLock.acquire(path, timeout_s=30).release()
    killer.join()


def test_rule_01_looking_at_a_lock_is_no_obstacle_to_who_takes_it(path: str) -> None:
    FileLock.acquire(path).release()
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            FileLock.is_free(path)

    looker = threading.Thread(target=look)
    looker.start()
    for _ in range(300):
        FileLock.acquire(path, timeout_s=30).release()
    stop.set()
    looker.join()


def test_rule_01_a_program_started_meanwhile_does_not_inherit_the_lock(peer: StartPeer, path: str) -> None:
    lock = FileLock.acquire(path)
    peer("hold_descriptor").line()
    lock.release()
    assert FileLock.is_free(path)


@pytest.mark.parametrize("text", [b"", b"\xff\xfe", b"process 0", b"process 99999999999999999999", b"process 1"])
def test_whatever_the_file_says_the_lock_decides(text: bytes, path: str) -> None:
    Path(path).write_bytes(text)
    lock = FileLock.acquire(path)
    other = FileLock(path, os.open(path, os.O_RDWR))
    Path(path).write_bytes(text)
    with pytest.raises(Unavailable, match="held by"):
        FileLock.acquire(path, timeout_s=0.03)
    other.release()
    lock.release()


def test_a_lock_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="nowhere/lock: cannot open the lock file: No such file"):
        FileLock.acquire(str(tmp_path / "nowhere/lock"))
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(Unavailable, match="cannot open"):
        FileLock.acquire(str(tmp_path / "link"))


def test_a_pipe_watch_calls_when_the_last_holder_is_killed(peer: StartPeer) -> None:
    reading, writing = os.pipe()
    first, second = (peer("hold_descriptor", fds=(writing,)) for _ in range(2))
    first.line()
    second.line()
    os.write(writing, b"unread")
    os.close(writing)
    ended = threading.Event()
    watch = PipeWatch(reading, ended.set)
    first.kill()
    assert not ended.wait(0.05)
    second.kill()
    assert ended.wait(20)
    assert os.read(reading, 100) == b"unread"
    watch.close()
    os.close(reading)


def test_a_pipe_watch_sees_a_socket_end(peer: StartPeer) -> None:
    mine, theirs = socket.socketpair()
    other = peer("hold_descriptor", fds=(theirs.fileno(),))
    other.line()
    theirs.close()
    ended = threading.Event()
    watch = PipeWatch(mine.fileno(), ended.set)
    assert not ended.wait(0.02)
    other.kill()
    assert ended.wait(20)
    watch.close()
    mine.close()


def test_a_closed_pipe_watch_calls_nobody() -> None:
    reading, writing = os.pipe()
    calls: list[int] = []
    watch = PipeWatch(reading, lambda: calls.append(1))
    watch.close()
    watch.close()
    os.close(writing)
    assert calls == []
    os.close(reading)
    assert not [thread for thread in threading.enumerate() if thread.name == "pipe-watch"]
