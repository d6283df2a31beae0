"""(Interface first; the body follows.) Reading a partition's log from its mapped files, without asking its worker."""

from __future__ import annotations

from typing import NamedTuple

from shmbroker.formats.batch import BatchHeader
from shmbroker.formats.control import State
from shmbroker.limits import MIB


class RecordSlice(NamedTuple):
    """Messages ``first`` to ``first + count - 1`` of one batch."""

    header: BatchHeader
    record: memoryview
    """The whole record, read-only: a mapped segment file, or a private copy of what was in the ring."""
    first: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody misses here


class LogReader:
    """Follows one partition. ``control_path`` is its control block, ``directory`` the partition's directory."""

    next_offset: int
    """The offset of the next message that read() will hand out, or a lower bound of it where there is a gap."""

    def __init__(self, control_path: str, directory: str) -> None:
        """Maps the control block and stands at the first kept offset. Raises PartitionReplaced where it is gone."""

    @property
    def state(self) -> State: ...
    @property
    def reason(self) -> str:
        """Why the partition is refused, poisoned or gone, else ""."""

    @property
    def visible_offset(self) -> int:
        """The offset after the last message that may be read."""

    @property
    def first_offset(self) -> int:
        """The earliest offset that is kept."""

    def seek_offset(self, offset: int) -> None:
        """To this offset; to the earliest kept where it is below, waiting for it where it is beyond the end."""

    def seek_timestamp(self, timestamp_us: int) -> None:
        """To the first message that the broker took at or after this time; to the end where there is none."""

    def seek_first(self) -> None: ...
    def seek_last(self, count: int) -> None:
        """To the last ``count`` visible messages."""

    def read(self, max_messages: int, max_bytes: int = MIB) -> list[RecordSlice]:
        """What is visible from here, in order; [] where nothing is. Never waits. At least one message whatever its
        size, else at most ``max_bytes`` of whole records. Raises Corrupt (checksum), PartitionReplaced (purged, once
        the mapped batch is finished), PartitionRefused."""

    def close(self) -> None: ...
