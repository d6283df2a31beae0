"""What a port and a reaper ask of a lane: the one in shared memory, and the one over TCP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

Buffers = Sequence[bytes | bytearray | memoryview]
Completion = tuple[int, int, int, int, int]
"""request_number, status, detail, value, argument."""


class Lane(Protocol):
    """Requests out, completions in; see :class:`shmbroker.shm.lane.LaneClient`."""

    request_size: int
    lane_id: int

    @property
    def closed(self) -> int:
        """0, or the error number for which the other side closed it."""

    def offer(
        self, kind: int, flags: int, request_number: int, log_id: int, argument: int, buffers: Buffers, body_length: int
    ) -> bool:
        """Publishes one request. False where there is no room now, or the lane is closed."""

    def completions(self) -> list[Completion]:
        """What was completed since the last call. Never waits."""

    def close(self) -> None:
        """Gives it up."""
