"""What the system says about the broker's processes, the front and its workers, and about the machine.

A process that ends between two looks counts as nothing. Shares of a processor are those since the look before.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Final

PAGE_SIZE_OF_MACHINE: Final = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
PERCENT: Final = 100.0
_IDLE: Final = (3, 4)
"""Where /proc/stat counts idle time and time that waits for disks."""


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    """One process. Sizes in bytes."""

    pid: int
    command: str
    state: str
    processor_s: float
    resident_size: int
    threads_count: int
    read_size: int
    written_size: int


def figures_of(pid: int) -> ProcessFigures | None:
    """None where the process is gone."""
    try:
        stat = _read(f"/proc/{pid}/stat")
        input_output = dict(line.split(": ") for line in _read(f"/proc/{pid}/io").splitlines())
        command = _read(f"/proc/{pid}/cmdline").replace("\0", " ").strip()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # The name in parentheses may hold anything; what follows it is numbers.
    fields = stat[stat.rindex(")") + 2 :].split()
    return ProcessFigures(
        pid,
        command,
        state=fields[0],
        processor_s=(int(fields[11]) + int(fields[12])) / TICKS_PER_S,
        resident_size=int(fields[21]) * PAGE_SIZE_OF_MACHINE,
        threads_count=int(fields[17]),
        read_size=int(input_output["read_bytes"]),
        written_size=int(input_output["write_bytes"]),
    )


class ProcessorUse:
    """Shares of processors, in percent of one: the broker's, and the whole machine's."""

    def __init__(self) -> None:
        self._looked_s = time.monotonic()
        self._used_s = 0.0
        self._busy_s = _machine_busy_s()

    def since_last(self, used_s: float) -> tuple[float, float]:
        """``used_s``: what the broker's processes have used so far."""
        now_s, busy_s = time.monotonic(), _machine_busy_s()
        elapsed_s = max(now_s - self._looked_s, 1 / TICKS_PER_S)
        shares = tuple(max(0.0, PERCENT * more / elapsed_s) for more in (used_s - self._used_s, busy_s - self._busy_s))
        self._looked_s, self._used_s, self._busy_s = now_s, used_s, busy_s
        return shares[0], shares[1]


def _machine_busy_s() -> float:
    fields = [int(text) for text in _read("/proc/stat").splitlines()[0].split()[1:9]]
    return sum(ticks for index, ticks in enumerate(fields) if index not in _IDLE) / TICKS_PER_S


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
