"""Reading one partition over TCP: what ``storage.reader.LogReader`` is to a local consumer, made of polls.

Owns the position and what a reply brought beyond what was asked for. Every batch is checked before it is handed out
(``wire_batch``). Never waits for new messages: a poll that finds nothing is answered at once.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Final

from shmbroker.client.tcp import TcpConnection
from shmbroker.client.wire_batch import slices_of
from shmbroker.errors import ErrorCode, OutcomeUnknown, PartitionReplaced, WaitTimeout, error_from
from shmbroker.limits import MIB, U32_MAX, U64_MAX
from shmbroker.storage.reader import RecordSlice
from shmbroker.wire.messages import (
    PARTITION_RESYNC,
    POLL_FIRST,
    POLL_LAST,
    POLL_OFFSET,
    POLL_TIMESTAMP,
    PollMessages,
    PollReply,
)
from shmbroker.wire.primitives import Consumer, Identifier

REPLY_S: Final = 30.0
"""How long a poll may take to be answered."""


class WireReader:
    """Follows one partition; for one thread. ``next_offset`` is what read() hands out next, or a lower bound of it."""

    def __init__(
        self,
        connection: TcpConnection,
        consumer: Consumer,
        stream: Identifier,
        topic: Identifier,
        partition: int,
        *,
        auto_commit: bool,
    ) -> None:
        """``auto_commit``: each poll has the broker store what it sends, as ``consumer``."""
        self.next_offset = 0
        self._connection = connection
        self._consumer = consumer
        self._stream = stream
        self._topic = topic
        self._partition = partition
        self._auto_commit = auto_commit
        self._name = f"{stream}/{topic}, partition {partition}, from {connection.name}"
        self._held: deque[RecordSlice] = deque()
        self._received_end = 0
        self.seek_first()

    # --- position ----------------------------------------------------------------------------------------------------
    def seek_first(self) -> None:
        """To the earliest message that is kept."""
        self._seek(POLL_FIRST, 0)

    def seek_offset(self, offset: int) -> None:
        """To this offset, or the earliest kept one after it."""
        self._seek(POLL_OFFSET, offset)
        self.next_offset = offset

    def seek_timestamp(self, timestamp_us: int) -> None:
        """To the first batch that the broker took at or after it."""
        self._seek(POLL_TIMESTAMP, timestamp_us)

    def seek_last(self, count: int) -> None:
        """To the last ``count`` messages; 0 is the end."""
        if count:
            self._seek(POLL_LAST, 0)
            self._count_min = min(count, U32_MAX)
        else:
            self.seek_offset(self.visible_offset)

    def _seek(self, strategy: int, value: int) -> None:
        self._strategy, self._value = strategy, value
        self._count_min = 1
        self._held.clear()
        self._received_end = 0
        self.next_offset = 0

    @property
    def visible_offset(self) -> int:
        """The offset after the last visible message. Asks the broker."""
        reply = self._poll(POLL_LAST, 0, 1, time.monotonic() + REPLY_S, auto_commit=False)
        slices = slices_of(memoryview(reply.records), self._name)
        return slices[-1].header.next_offset if slices else self.next_offset

    # --- reading -----------------------------------------------------------------------------------------------------
    def read(self, max_messages: int, max_bytes: int = MIB) -> list[RecordSlice]:
        """What is visible from here, at most so much (one message at least); [] where nothing is.

        Raises Corrupt, PartitionReplaced after a purge, WaitTimeout, BrokerGone, and what the broker answers.
        """
        if not self._held:
            self._fetch(max_messages)
        found: list[RecordSlice] = []
        while self._held and max_messages > 0 and (max_bytes > 0 or not found):
            piece = self._held.popleft()
            count = min(piece.count, max_messages)
            if len(piece.record) > max_bytes:
                count = min(count, max(0 if found else 1, piece.count * max(max_bytes, 0) // len(piece.record)))
            if count < piece.count:
                self._held.appendleft(piece._replace(first=piece.first + count, count=piece.count - count))
            if not count:
                break
            found.append(piece._replace(count=count))
            max_messages -= count
            max_bytes -= len(piece.record)
        if found:
            last = found[-1]
            self.next_offset = last.header.base_offset + last.first + last.count
        return found

    def _fetch(self, max_messages: int) -> None:
        # Of the last ones the count says where to start; what is too many for this read is kept for the next.
        count = self._count_min if self._strategy == POLL_LAST else max(min(max_messages, U32_MAX), self._count_min)
        reply = self._poll(
            self._strategy, self._value, count, time.monotonic() + REPLY_S, auto_commit=self._auto_commit
        )
        slices = slices_of(memoryview(reply.records), self._name)
        if slices:
            self._held.extend(slices)
            self._strategy, self._value, self._count_min = POLL_OFFSET, slices[-1].header.next_offset, 1
            self._received_end = self._value
        elif reply.current_offset + 1 < self._received_end:
            # Offsets that this very connection brought are gone, and the broker never takes one back.
            raise PartitionReplaced(f"{self._name}: its messages are gone; it was purged")

    def check(self, deadline: float) -> None:
        """Asks for nothing that anybody would use: raises what a poll of this partition raises."""
        self._poll(POLL_OFFSET, U64_MAX, 1, deadline, auto_commit=False)

    def _poll(self, strategy: int, value: int, count: int, deadline: float, *, auto_commit: bool) -> PollReply:
        request = PollMessages(
            self._consumer, self._stream, self._topic, self._partition, strategy, value, count, auto_commit
        )
        try:
            reply = self._connection.request(request, deadline)
        except OutcomeUnknown as error:
            if self._connection.refusal is not None:
                raise self._connection.refusal from error
            raise WaitTimeout(f"{self._name}: no reply to a poll in time") from error
        if not isinstance(reply, PollReply):
            raise error_from(ErrorCode.INVALID_FORMAT, f"{self._name}: a reply that is none to a poll")
        if reply.partition_id == PARTITION_RESYNC:
            raise error_from(ErrorCode.GROUP_PARTITION_NOT_OWNED, f"{self._name}: now another member's of the group")
        return reply

    def close(self) -> None:
        """Drops what was not handed out."""
        self._held.clear()
