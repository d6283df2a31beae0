"""What a handler may return beside a plain reply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shmbroker.wire.bodies import Reply

Answer = "Reply | Sequence[Reply] | WithDescriptors | None"


@dataclass(frozen=True, slots=True)
class WithDescriptors:
    """A reply with descriptors beside it; ``sent`` is called when they are the client's, or cannot become so."""

    reply: Reply
    fds: Sequence[int]
    sent: Callable[[], None]
