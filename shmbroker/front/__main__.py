"""``python -m shmbroker.front``: see main."""

from __future__ import annotations

import sys

from shmbroker.front.main import main

if __name__ == "__main__":
    sys.exit(main())
