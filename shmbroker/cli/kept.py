"""What the command line keeps between its runs: contexts, sessions, stored tokens. One JSON file of its own user.

``$SHMBROKER_HOME/command-line.json``, in ``~/.shmbroker`` by default, readable by nobody else, since tokens are in it.
Read whole and replaced whole, by rename: a run that is killed leaves the old one.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any, Final

from shmbroker.errors import InvalidConfiguration

HOME_VARIABLE: Final = "SHMBROKER_HOME"
FILE_NAME: Final = "command-line.json"
DEFAULT_CONTEXT: Final = "default"
"""The context that is always there and says nothing: the broker of --data."""
CONTEXT_KEYS: Final = (
    "data", "tcp_server_address", "tcp_tls_enabled", "tcp_tls_ca_file", "tcp_tls_domain", "username", "password",
    "token", "token_name",
)  # fmt: skip


class Kept:
    """The file as it is; :meth:`save` makes changes last."""

    def __init__(self) -> None:
        """Raises InvalidConfiguration for a file that is not ours."""
        self.path = Path(os.environ.get(HOME_VARIABLE) or Path.home() / ".shmbroker") / FILE_NAME
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            found = {}
        except ValueError as fault:
            raise InvalidConfiguration(f"{self.path}: {fault}; move it away to start anew") from fault
        if not isinstance(found, dict):
            raise InvalidConfiguration(f"{self.path} does not hold an object; move it away to start anew")
        self.active: str = found.get("active", DEFAULT_CONTEXT)
        self.contexts: dict[str, dict[str, Any]] = found.get("contexts", {})
        self.sessions: dict[str, dict[str, Any]] = found.get("sessions", {})
        """By server: user, name and text of the token, when it expires (us since 1970, None: never)."""
        self.tokens: dict[str, dict[str, str]] = found.get("tokens", {})
        """By server, then by name."""

    def context(self) -> dict[str, Any]:
        """The settings of the active context."""
        return self.contexts.get(self.active, {})

    def save(self) -> None:
        """Replaces the file."""
        content = {
            "active": self.active, "contexts": self.contexts, "sessions": self.sessions, "tokens": self.tokens,
        }  # fmt: skip
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=self.path.parent, prefix=f".{FILE_NAME}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(content, file, indent=2)
                file.write("\n")
            os.replace(name, self.path)
        except BaseException:
            os.unlink(name)
            raise
