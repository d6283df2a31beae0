"""The code in README.md runs as it stands: the Python block in one program, the shell blocks against the broker that
the first of them starts. A reader copies these lines first, so they must never be wrong.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import shmbroker

README = Path(__file__).resolve().parent.parent / "README.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TIMEOUT_S = 60
SERVE = "shmbroker serve\n"
IGGY_ADDRESS = "127.0.0.1:8090"


def blocks(language: str) -> list[str]:
    return [code for name, code in BLOCK.findall(README.read_text()) if name == language]


def environment() -> dict[str, str]:
    """The command ``shmbroker`` first in PATH, from the environment that runs the tests."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def run(words: list[str], directory: Path) -> str:
    done = subprocess.run(
        words, cwd=directory, env=environment(), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_python_block_runs(tmp_path: Path) -> None:
    block, _ = blocks("python")
    printed = run([sys.executable, "-c", block], tmp_path)
    assert printed.splitlines() == ["0 0 2", "0 [b'one', b'two']"]


def test_the_program_written_for_iggy_runs_unchanged(tmp_path: Path) -> None:
    """All but the port, which is whichever is free here."""
    _, block = blocks("python")
    assert "shmbroker" not in block
    assert block.count(IGGY_ADDRESS) == 1
    root = {"IGGY_ROOT_USERNAME": "iggy", "IGGY_ROOT_PASSWORD": "iggy-password"}
    with shmbroker.embedded(tmp_path / "data", tcp="127.0.0.1:0", environment=root) as broker:
        printed = run([sys.executable, "-c", block.replace(IGGY_ADDRESS, broker.tcp_address)], tmp_path)
    assert printed.splitlines() == ["999 reading 999"]


def test_the_shell_blocks_run(tmp_path: Path) -> None:
    serve, *others = blocks("sh")
    assert serve == SERVE
    free_port = {**environment(), "SHMBROKER_TCP_ADDRESS": "127.0.0.1:0"}
    with subprocess.Popen(serve.split(), cwd=tmp_path, env=free_port, stdout=subprocess.PIPE, text=True) as broker:
        try:
            assert broker.stdout is not None
            ready = next(line for line in broker.stdout if "ready" in line)
            assert "shmbroker-data" in ready
            printed = run(["bash", "-euo", "pipefail", "-c", others[0]], tmp_path)
            assert "second" in printed
            assert "5,000 messages confirmed" in printed
            broker.send_signal(signal.SIGTERM)
            assert broker.wait(TIMEOUT_S) == 0
        finally:
            broker.kill()
    assert "market/trades/0" in run(["bash", "-euo", "pipefail", "-c", others[1]], tmp_path)


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)]+)\)", README.read_text()))
def test_links_lead_somewhere(link: str) -> None:
    assert (README.parent / link).exists()


def test_every_language_of_a_block_is_known() -> None:
    """A block in a language that nobody runs would rot: console blocks are for what installs things."""
    assert {name for name, _ in BLOCK.findall(README.read_text())} == {"console", "python", "sh"}
