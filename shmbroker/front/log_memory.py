"""The last lines that the broker logged, kept in memory for the archive of facts. Standard error has them all."""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

LINES_MAX: Final = 1_000
LINE_SIZE_MAX: Final = 4_096


class LogMemory(logging.Handler):
    """Attach it to a logger."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        self._lines: deque[str] = deque(maxlen=LINES_MAX)

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps the line."""
        self._lines.append(self.format(record)[:LINE_SIZE_MAX])

    def text(self) -> str:
        """All lines that are kept, the oldest first."""
        return "\n".join([*self._lines, ""])
