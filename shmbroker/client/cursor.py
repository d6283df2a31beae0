"""A cursor: where one consumer stands in one partition, and what it stores about that.

Owns the partition's reader (mapped files, no request to the worker) and the offset requests of this consumer. One
thread. ``handed_out`` is the offset of the last message that a poll returned, -1 before the first; commit stores it,
and auto-commit follows it, one request at a time and never backwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

from shmbroker.client.batch import Batch
from shmbroker.client.lanes import Port
from shmbroker.client.offsets import OffsetOrigin, ask_to_store, get_stored
from shmbroker.client.ticket import Reply
from shmbroker.errors import BufferFull, OutcomeUnknown, PartitionRefused, PartitionReplaced, Unavailable
from shmbroker.formats.control import State
from shmbroker.storage.reader import LogReader, RecordSlice

REOPEN_S = 0.01
"""Between two looks at a control block that its worker is still making."""


class PartitionReader(Protocol):
    """Reads one partition: from mapped files (:class:`~shmbroker.storage.reader.LogReader`), or over TCP."""

    next_offset: int

    @property
    def visible_offset(self) -> int:
        """The offset after the last visible message."""

    def seek_first(self) -> None:
        """To the earliest message that is kept."""

    def seek_offset(self, offset: int) -> None:
        """To this offset, or the earliest kept one after it."""

    def seek_timestamp(self, timestamp_us: int) -> None:
        """To the first batch that the broker took at or after it."""

    def seek_last(self, count: int) -> None:
        """To the last ``count`` messages."""

    def read(self, max_messages: int, max_bytes: int) -> list[RecordSlice]:
        """What is visible from here; never waits for more."""

    def close(self) -> None:
        """Gives up what it holds; what was handed out stays readable."""


Grant = Callable[[float], tuple[Any, Port]]
"""Asks the broker to open the partition, by a deadline: its reply, and the port of its worker."""


class Cursor:
    """One partition under one consumer. ``key`` is its consumer key, or None."""

    reader: PartitionReader

    def __init__(self, grant: Grant, partition_id: int, topic_name: str, key: bytes | None, deadline: float) -> None:
        """Opens the partition, at its first kept message. Raises NotFound, PartitionRefused, Unavailable."""
        self.partition_id = partition_id
        self.name = f"{topic_name}, partition {partition_id}"
        self.key = key
        self.handed_out = -1
        self._grant = grant
        self._origin = OffsetOrigin(partition_id, self.name)
        self._requested = -1
        self._automatic: Reply | None = None
        self._open(deadline)

    def _open(self, deadline: float) -> None:
        while True:
            reply, self.port = self._grant(deadline)
            self.log_id: int = reply.log_id
            if reply.state == State.REFUSED.name.lower():
                raise PartitionRefused(f"{self.name}: {reply.reason}")
            try:
                self.reader = LogReader(reply.control, reply.directory)
                return
            except (PartitionReplaced, Unavailable):
                if time.monotonic() + REOPEN_S >= deadline:
                    raise
                self.port.closing.wait(REOPEN_S)

    def read(self, max_messages: int, max_bytes: int) -> list[Batch]:
        """What is visible from here. Raises PartitionReplaced once after a purge; stands at the new beginning then."""
        try:
            pieces = self.reader.read(max_messages, max_bytes)
        except PartitionReplaced as error:
            self.reopen(time.monotonic() + 10.0)
            raise PartitionReplaced(f"{self.name} was purged: the next poll starts at its new beginning") from error
        if not pieces:
            return []
        batches = [Batch(piece) for piece in pieces]
        self.handed_out = self.reader.next_offset - 1
        return batches

    def reopen(self, deadline: float) -> None:
        """Takes the new incarnation of a purged partition, at its beginning."""
        self.reader.close()
        self.handed_out = self._requested = -1
        self._open(deadline)

    def stored(self, deadline: float) -> int | None:
        """The offset that this consumer stored last, or None."""
        assert self.key is not None
        return get_stored(self.port, self.log_id, self.name, self.key, deadline)

    def store(self, offset: int, deadline: float) -> Future[int]:
        """Asks to store ``offset``; the reply comes when the topic's policy is met."""
        assert self.key is not None
        reply = ask_to_store(self.port, self._origin, self.log_id, self.key, offset, automatic=False, deadline=deadline)
        self._requested = max(self._requested, offset)
        return reply

    def commit_behind(self, deadline: float) -> None:
        """Asks to store what was handed out, if it was not yet, without waiting for the answer.

        Raises what the broker answered to an earlier one, but for a worker that died: then it is asked again.
        """
        assert self.key is not None
        if self._automatic is not None:
            if not self._automatic.done():
                self.port.reaper.glance()
            if not self._automatic.done():
                return
            reply, self._automatic = self._automatic, None
            error = reply.exception()
            if isinstance(error, OutcomeUnknown):
                self._requested = -1
            elif error is not None:
                raise error
        if self.handed_out > self._requested:
            try:
                self._automatic = ask_to_store(
                    self.port, self._origin, self.log_id, self.key, self.handed_out, automatic=True, deadline=deadline
                )
            except BufferFull:
                return  # at the next poll
            self._requested = self.handed_out

    def finish_commits(self, deadline: float) -> None:
        """Stores what auto-commit still has to, and waits for it."""
        while True:
            if self._automatic is not None:
                self._automatic.exception(max(0.0, deadline - time.monotonic()))
            self.commit_behind(deadline)
            if self._automatic is None:
                if self.handed_out > self._requested:
                    raise BufferFull(f"{self.name}: no room to store offset {self.handed_out} in time")
                return

    def close(self) -> None:
        """Drops the mappings; batches that were handed out stay readable."""
        self.reader.close()
