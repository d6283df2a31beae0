"""The look at what a test left behind: it sees processes, however deep, and names in shared memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from xxhash import xxh3_64_hexdigest

from tests.conftest import SHARED_MEMORY, shared_memory_names, started_processes, wait_until

CHILD_OF_A_CHILD = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=sys.stdin, start_new_session=True)
print(child.pid, flush=True)
child.wait()
"""


def test_a_process_is_seen_while_it_lives_and_so_is_its_child() -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", CHILD_OF_A_CHILD], text=True, **pipes) as process:  # type: ignore[call-overload]
        child = int(process.stdout.readline())
        assert {process.pid, child} <= started_processes().keys()
        assert os.getpid() not in started_processes()
        process.stdin.write("\n")
        process.stdin.close()
        process.wait(60)
    assert not {process.pid, child} & started_processes().keys()


def test_names_that_belong_to_a_data_directory_are_seen(tmp_path: Path) -> None:
    lock = tmp_path / "deep" / "data" / "broker.lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    name = SHARED_MEMORY / f"sem.shmbroker-{xxh3_64_hexdigest(str(lock.parent).encode())}-1"
    assert shared_memory_names(tmp_path) == []
    name.touch()
    try:
        assert shared_memory_names(tmp_path) == [name]
    finally:
        name.unlink()


def test_a_wait_has_an_end() -> None:
    assert wait_until(lambda: "came") == "came"
    with pytest.raises(pytest.fail.Exception, match="the moon"):
        wait_until(lambda: False, "the moon", timeout_s=0.02)
