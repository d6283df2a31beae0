"""Starts the actors of a workload as processes, lets them go together, and collects what they measured."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shmbroker.errors import Unavailable


@dataclass(frozen=True)
class Outcome:
    """What all actors of one kind measured together. ``seconds`` is the longest of them."""

    messages: int
    batches: int
    seconds: float
    latencies_ns: NDArray[np.int64]
    results: list[dict[str, Any]]


class Actors:
    """Processes that are ready and wait to be let go."""

    def __init__(self, specifications: list[dict[str, Any]]) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="shmbroker-bench-")
        self._paths: list[Path] = []
        self._processes: list[subprocess.Popen[str]] = []
        for number, specification in enumerate(specifications):
            path = Path(self._directory.name) / f"{number}.npy"
            self._paths.append(path)
            process = subprocess.Popen(
                [sys.executable, "-m", specification.get("module", "shmbroker.bench.actor")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            self._processes.append(process)
            self._say(process, json.dumps({**specification, "latencies": str(path)}))
        for process in self._processes:
            self._hear(process)

    @staticmethod
    def _say(process: subprocess.Popen[str], line: str) -> None:
        assert process.stdin is not None
        process.stdin.write(line + "\n")
        process.stdin.flush()

    @staticmethod
    def _hear(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise Unavailable(f"an actor of the benchmark ended with status {process.wait()}: see its text above")
        return line

    def run(self) -> list[Outcome]:
        """Lets all go and waits for each; one outcome an actor, in their order."""
        for process in self._processes:
            self._say(process, "go")
        outcomes = []
        for process, path in zip(self._processes, self._paths, strict=True):
            result = json.loads(self._hear(process))
            latencies = np.load(path)
            outcomes.append(Outcome(result["messages"], result["batches"], result["seconds"], latencies, [result]))
        self.close()
        return outcomes

    def close(self) -> None:
        for process in self._processes:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
            process.wait()
        self._directory.cleanup()


def run_actors(specifications: list[dict[str, Any]]) -> Outcome:
    """Runs actors of one kind together; their sum."""
    return together(Actors(specifications).run())


def together(outcomes: list[Outcome]) -> Outcome:
    """The sum of the outcomes of actors of one kind."""
    return Outcome(
        sum(outcome.messages for outcome in outcomes),
        sum(outcome.batches for outcome in outcomes),
        max(outcome.seconds for outcome in outcomes),
        np.concatenate([outcome.latencies_ns for outcome in outcomes]),
        [outcome.results[0] for outcome in outcomes],
    )
