"""The reading side of a topic: batches from mapped files, and offsets stored in the worker.

Owns a cursor for each of its partitions and, once it had to wait, a watch: a bell that the workers ring when something
becomes visible (rule 15). Waiting is draining the bell, looking, and only then sleeping on it, at most a slice at a
time (rule 12): a bell that is lost costs latency, not messages. A consumer that nothing comes for takes no processor
time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from shmbroker.client.batch import Batch
from shmbroker.client.cursor import Cursor
from shmbroker.client.exchange import Exchange, deadline_of
from shmbroker.errors import BrokerGone, ClientMistake, Closed, ShmbrokerError
from shmbroker.limits import DOORBELL_WAIT_MS_MAX, MIB, U64_MAX
from shmbroker.shm.doorbell import Doorbell

SLICE_S = DOORBELL_WAIT_MS_MAX / 1000
TIMEOUT_S = 30.0
COMMIT_S = 5.0
"""How long a poll may wait for room in a lane for an automatic commit, at the first one of all."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where to start reading: exactly one of these."""

    offset: int | None = None
    timestamp: int | None = None
    first: bool = False
    last: int | None = None
    next: bool = False

    @classmethod
    def of(
        cls, *, offset: int | None, timestamp: int | None, first: bool, last: int | None, next: bool, is_named: bool
    ) -> Self:
        """Checked; without any: ``next`` for a consumer with a name, else ``first``. Raises ClientMistake."""
        given = [offset is not None, timestamp is not None, first, last is not None, next]
        if sum(given) > 1:
            raise ClientMistake("start at one of offset=, timestamp=, first=, last= and next=, not at several")
        for name, number in (("offset", offset), ("timestamp", timestamp), ("last", last)):
            if number is not None and not _is_u64(number):
                raise ClientMistake(f"{name} is 0 to 2^64 - 1, not {number}")
        if next and not is_named:
            raise ClientMistake("next= goes by a stored offset: say whose with name=, id= or group=")
        if not any(given):
            first, next = not is_named, is_named
        return cls(offset, timestamp, first, last, next)

    def apply(self, cursor: Cursor, deadline: float) -> None:
        """Puts the cursor there."""
        reader = cursor.reader
        if self.offset is not None:
            reader.seek_offset(self.offset)
        elif self.timestamp is not None:
            reader.seek_timestamp(self.timestamp)
        elif self.last is not None:
            reader.seek_last(self.last)
        else:
            stored = cursor.stored(deadline) if self.next else None
            if stored is None:
                reader.seek_first()
            else:
                reader.seek_offset(stored + 1)


def _is_u64(number: object) -> bool:
    return isinstance(number, int) and 0 <= number <= U64_MAX


class Consumer:
    """Reads a topic. Made by ``Client.consumer``. For one thread at a time."""

    def __init__(
        self,
        connection: Exchange,
        forget: Callable[[Any], None],
        cursors: Sequence[Cursor],
        *,
        is_named: bool,
        auto_commit: bool,
    ) -> None:
        if auto_commit and not is_named:
            raise ClientMistake("auto_commit stores offsets: say whose with name=, id= or group=")
        self._connection = connection
        self._forget = forget
        self._cursors = list(cursors)
        self._by_partition = {cursor.partition_id: cursor for cursor in cursors}
        self._is_named = is_named
        self._auto_commit = auto_commit
        self._turn = 0
        self._bell: Doorbell | None = None
        self._watch_id = 0
        self._is_closed = False

    @property
    def partitions(self) -> tuple[int, ...]:
        """The partitions it reads."""
        return tuple(sorted(self._by_partition))

    # --- reading -----------------------------------------------------------------------------------------------------
    def poll(self, max_messages: int = 1000, timeout: float | None = 0.0, *, max_bytes: int = 16 * MIB) -> list[Batch]:
        """The next messages, at most ``max_messages`` in all, as batches (the last one cut to fit); [] where none came.

        Waits up to ``timeout`` seconds (None: for ever) for the first. ``max_bytes`` bounds the records, not below one
        message. A ``persisted`` batch comes once it is durable. Partitions take turns.

        Raises PartitionReplaced once after a purge (the next poll starts at the new beginning), Corrupt,
        PartitionRefused, NotFound where the topic was deleted, BrokerGone.
        """
        self._check_open()
        if max_messages < 1 or max_bytes < 1:
            raise ClientMistake(f"a poll asks for at least one message and one byte: {max_messages}, {max_bytes}")
        batches = self._read(max_messages, max_bytes)
        if not batches:
            batches = self._wait(max_messages, max_bytes, deadline_of(timeout))
        if self._auto_commit:
            self._commit_behind()
        return batches

    def _read(self, max_messages: int, max_bytes: int) -> list[Batch]:
        cursors = self._cursors
        count = len(cursors)
        if count == 1:
            return cursors[0].read(max_messages, max_bytes)
        turn = self._turn
        self._turn = (turn + 1) % count
        found: list[Batch] = []
        for step in range(count):
            batches = cursors[(turn + step) % count].read(max_messages, max_bytes)
            if batches:
                found += batches
                max_messages -= sum(batch.count for batch in batches)
                max_bytes -= sum(len(batch.record) for batch in batches)
                if max_messages <= 0 or max_bytes <= 0:
                    break
        return found

    def _wait(self, max_messages: int, max_bytes: int, deadline: float) -> list[Batch]:
        """Reads as soon as something is there, until ``deadline``."""
        while True:
            remaining = deadline - time.monotonic()
            self._check_alive()
            if remaining <= 0:
                return []
            bell = self._bell
            if bell is None:
                log_ids = [cursor.log_id for cursor in self._cursors]
                # Asking takes what it takes: it is done once.
                self._watch_id, bell = self._connection.watch(log_ids, time.monotonic() + max(remaining, TIMEOUT_S))
                self._bell = bell
            while True:
                bell.drain()
                batches = self._read(max_messages, max_bytes)
                if batches:
                    return batches
                wait_s = min(SLICE_S, deadline - time.monotonic())
                if wait_s <= 0 or not bell.wait(wait_s):
                    break

    def _give_bell_up(self) -> None:
        """The partitions have changed: the next wait asks for a bell of its own."""
        if self._bell is not None:
            bell, self._bell = self._bell, None
            try:
                with suppress(BrokerGone):  # the watch went with it
                    self._connection.unwatch(self._watch_id, time.monotonic() + TIMEOUT_S)
            finally:
                bell.close()

    def __iter__(self) -> Iterator[Batch]:
        """Batches for ever, waiting for each."""
        while True:
            yield from self.poll(timeout=None)

    # --- position ----------------------------------------------------------------------------------------------------
    def positions(self) -> dict[int, int]:
        """The offset of the next message of each partition, or a lower bound of it."""
        return {cursor.partition_id: cursor.reader.next_offset for cursor in self._cursors}

    def end_offsets(self) -> dict[int, int]:
        """The offset after the last visible message of each partition: what is left is the difference."""
        return {cursor.partition_id: cursor.reader.visible_offset for cursor in self._cursors}

    def seek(
        self,
        partition: int | None = None,
        *,
        offset: int | None = None,
        timestamp: int | None = None,
        first: bool = False,
        last: int | None = None,
        next: bool = False,
        timeout: float | None = TIMEOUT_S,
    ) -> None:
        """Goes elsewhere in ``partition`` (None: in all), as the arguments of ``Client.consumer`` say."""
        self._check_open()
        deadline = deadline_of(timeout)
        chosen = self._chosen(partition)
        start = Start.of(
            offset=offset, timestamp=timestamp, first=first, last=last, next=next,
            is_named=self._is_named,
        )  # fmt: skip
        for cursor in chosen:
            start.apply(cursor, deadline)

    # --- committing --------------------------------------------------------------------------------------------------
    def commit(
        self, *, partition: int | None = None, offset: int | None = None, timeout: float | None = TIMEOUT_S
    ) -> None:
        """Stores the offset of the last message handed out, and returns when ``consumer_offset_durability`` is met.

        Of ``partition``, or of all that were read. ``offset`` stores that one instead (in one partition), and may go
        back. Raises ClientMistake for a consumer without a name, InvalidOffset beyond the end.
        """
        self._check_open()
        if not self._is_named:
            raise ClientMistake("whose offset? This consumer has no name=, id= or group=")
        chosen = self._chosen(partition)
        if offset is not None and len(chosen) != 1:
            raise ClientMistake("an offset belongs to one partition: say which")
        if offset is not None and not _is_u64(offset):
            raise ClientMistake(f"offset is 0 to 2^64 - 1, not {offset}")
        deadline = deadline_of(timeout)
        targets = [(cursor, cursor.handed_out if offset is None else offset) for cursor in chosen]
        replies = [cursor.store(target, deadline) for cursor, target in targets if target >= 0]
        for reply in replies:
            reply.result(max(0.0, deadline - time.monotonic()))

    def _commit_behind(self) -> None:
        deadline = time.monotonic() + COMMIT_S
        for cursor in self._cursors:
            cursor.commit_behind(deadline)

    def _chosen(self, partition: int | None) -> list[Cursor]:
        if partition is None:
            return self._cursors
        cursor = self._by_partition.get(partition)
        if cursor is None:
            raise ClientMistake(f"this consumer does not read partition {partition}")
        return [cursor]

    # --- ending ------------------------------------------------------------------------------------------------------
    def close(self, timeout: float | None = TIMEOUT_S) -> None:
        """Finishes automatic commits and closes. Batches handed out stay readable. Closing twice is fine."""
        if self._is_closed:
            return
        self._is_closed = True
        deadline = deadline_of(timeout)
        try:
            if self._connection.refusal is None:
                self._finish(deadline)
                if self._bell is not None:
                    with suppress(BrokerGone):  # the watch went with it
                        self._connection.unwatch(self._watch_id, deadline)
        finally:
            if self._bell is not None:
                self._bell.close()
            for cursor in self._cursors:
                cursor.close()
            self._forget(self)

    def _finish(self, deadline: float) -> None:
        """What the broker has to hear before this consumer goes."""
        if self._auto_commit:
            for cursor in self._cursors:
                cursor.finish_commits(deadline)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        try:
            self.close()
        except ShmbrokerError:
            if error is None:
                raise  # else the caller's own error says more

    def _check_alive(self) -> None:
        if not self._connection.alive:
            raise self._connection.refusal or BrokerGone(f"the broker at {self._connection.name} has ended")

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed("this consumer is closed")
        if self._connection.refusal is not None:
            raise self._connection.refusal
