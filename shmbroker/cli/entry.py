"""Where the command ``shmbroker`` begins: nothing is imported before an interrupt can be answered.

What the command line imports takes a third of a second, and somebody may press Ctrl-C in it.
"""

from __future__ import annotations

import sys

INTERRUPTED = 130


def main() -> None:
    try:
        from shmbroker.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
