"""What a handler may return beside a plain reply, and what a transport gets to send."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shmbroker.wire.bodies import Reply

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class WithDescriptors:
    """A reply with descriptors beside it; ``sent`` is called when they are the client's, or cannot become so."""

    reply: Reply
    fds: Sequence[int]
    sent: Callable[[], None]


class Gathered(NamedTuple):
    """The body of a reply in pieces, sent one after the other without being copied together."""

    pieces: Sequence[Buffer]
    size: int
    """Bytes of all pieces."""


class Answer(NamedTuple):
    """One whole frame: its buffers in order, what travels beside the first byte, and whether the connection ends."""

    buffers: Sequence[Buffer]
    fds: Sequence[int] = ()
    sent: Callable[[], None] | None = None
    """Called once the descriptors are the client's, or cannot become so."""
    ends: bool = False
    """The connection is closed once this is sent."""
