"""What a pass collects: the logs it touched, and the answers that wait for the disk.

Made anew for each pass that has requests, and gone at its end: nothing waits from one pass to the next.
"""

from __future__ import annotations

from shmbroker.errors import ErrorCode
from shmbroker.formats.control import State
from shmbroker.shm.lane import LaneServer
from shmbroker.storage.partition_log import PartitionLog

WaitingAppend = tuple[LaneServer, int, int, int, PartitionLog]
"""lane, request number, base offset, argument, log."""


class Pending:
    """One pass."""

    __slots__ = ("appends", "automatic", "control", "offset_stores", "touched")

    def __init__(self) -> None:
        self.touched: dict[PartitionLog, None] = {}
        self.appends: list[WaitingAppend] = []
        self.offset_stores: list[tuple[LaneServer, int, PartitionLog]] = []
        """Explicit stores and deletes: written before they are answered, and synchronised where the topic says so."""
        self.automatic: dict[PartitionLog, None] = {}
        """Stores that nobody waits for: written on the tick."""
        self.control: list[tuple[LaneServer, int, bytes]] = []

    def answer_appends(self, answered: dict[LaneServer, None]) -> None:
        """After the synchronous write. A log that is poisoned by now has lost its group, or may have."""
        for server, number, value, argument, log in self.appends:
            if log.state == State.POISONED:
                server.complete(number, ErrorCode.CANNOT_SYNC_FILE, 0, 0, 0)
            else:
                server.complete(number, 0, 0, value, argument)
            answered[server] = None

    def answer_offset_stores(self, failed: set[PartitionLog], answered: dict[LaneServer, None]) -> None:
        for server, number, log in self.offset_stores:
            server.complete(number, ErrorCode.CANNOT_WRITE_TO_FILE if log in failed else 0, 0, 0, 0)
            answered[server] = None
