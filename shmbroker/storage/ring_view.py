"""The ring of a partition as a reader sees it: mapped read-only, copied from, never trusted to stand still.

The worker writes it. Whether a copy is good is for the reader to judge by ``overwrite_end`` (rule 6). A ring that was
given back is unlinked and stays readable here; what it held is in the segment files by then.
"""

from __future__ import annotations

from shmbroker.errors import Corrupt
from shmbroker.formats import journal as journal_format
from shmbroker.storage.segment_view import REMEDY, map_file


class RingView:
    """A ring, mapped read-only. What is copied out of it is judged by the caller (rule 6)."""

    def __init__(self, path: str, log_id: int, incarnation: bytes, generation: int) -> None:
        """Raises FileNotFoundError where it was given back, Corrupt where it is not this log's."""
        self.path = path
        self.generation = generation
        self.view = map_file(path)
        header = journal_format.unpack_header(self.view)
        if header is None or (header.log_id, header.incarnation, header.generation) != (
            log_id, incarnation, generation,
        ):  # fmt: skip
            raise Corrupt(path, 0, "ring header", REMEDY)
        self.base = header.ring_base
        self.size = header.ring_size
        if len(self.view) < journal_format.DATA_POSITION + self.size:
            raise Corrupt(path, len(self.view), "the ring is cut short", REMEDY)

    def copy(self, position: int, length: int) -> bytes:
        """The bytes of log positions [position, position + length); at most the size of the ring."""
        start = position % self.size
        first = min(length, self.size - start)
        start += journal_format.DATA_POSITION
        if first == length:
            return bytes(self.view[start : start + length])
        rest = journal_format.DATA_POSITION + length - first
        return b"".join((self.view[start : start + first], self.view[journal_format.DATA_POSITION : rest]))

    def file_shift(self, position: int) -> int:
        """What is added to ``position`` to get its byte of the file."""
        return journal_format.DATA_POSITION + position % self.size - position
