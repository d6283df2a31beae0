"""``shmbroker demo`` on a part of its input: a real broker, a real SIGKILL, and the table that says what survived."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from shmbroker.cli.demo import Crash, Piece, judge, read_pieces, sum_of
from shmbroker.client.ticket import Confirmation

TIMEOUT_S = 120
MESSAGES = 40_000


def test_the_demo_loses_nothing(tmp_path: Path) -> None:
    command = Path(sys.executable).parent / "shmbroker"
    words = [command, "demo", "--messages", str(MESSAGES), "--data", tmp_path / "data"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = dict(re.findall(r"│ ([a-z ,]+?) +│ +([\d,]+) │", done.stdout))
    acknowledged = int(rows["acknowledged before it"].replace(",", ""))
    assert 0 < acknowledged < MESSAGES
    assert rows["of these, recovered"] == rows["acknowledged before it"]
    assert rows["of these, lost"] == "0"
    assert rows["there, but sent by nobody"] == "0"
    assert rows["recognised when sent again"] == rows["of these, there all the same"]
    assert f"exactly the {MESSAGES:,} messages" in done.stdout


def test_pieces_are_every_line_of_every_source(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "one.py").write_bytes(b"a\n\nb")
    (tmp_path / "package" / "two.py").write_bytes(b"line\n" * 2_500)
    (tmp_path / "package" / "notes.txt").write_bytes(b"no source\n")
    pieces = list(read_pieces(tmp_path, 10_000))
    assert [(piece.key, len(piece.lines)) for piece in pieces] == [
        ("one.py", 3), ("package/two.py", 1_000), ("package/two.py", 1_000), ("package/two.py", 500)
    ]  # fmt: skip
    assert all(line for piece in pieces for line in piece.lines)
    assert sum(len(piece.lines) for piece in read_pieces(tmp_path, 1_004)) == 1_004


def piece(key: str, *hashes: int) -> Piece:
    return Piece(key, [b"line"] * len(hashes), sum_of(hashes))


def test_the_judge_tells_lost_from_doubtful_from_invented() -> None:
    kept, lost, there, gone = piece("kept", 1, 2), piece("lost", 3), piece("there", 4, 5), piece("gone", 6)
    acknowledged = [(kept, Confirmation(0, 0, 2)), (lost, Confirmation(0, 2, 1))]
    crash = Crash()
    found = {0: {0: 1, 1: 2, 2: 99, 3: 4, 4: 5}, 1: {0: 7}}
    judge(crash, acknowledged, [(there, 0), (gone, 0)], found)
    assert (crash.acknowledged, crash.recovered, crash.lost) == (3, 2, 1)
    assert (crash.in_doubt, crash.in_doubt_recovered, crash.invented) == (3, 2, 1)
