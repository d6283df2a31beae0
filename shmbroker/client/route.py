"""A route: one producer's way to one partition.

Owns the producer id under which that partition knows it, the running sequence and message numbers, and the count of
requests in flight. Sequence numbers leave in the order in which they were given out: the route's lock is held from
taking one until the record is in the lane. Each route has a producer id of its own (63 random bits, never 0), so that
message ids, ``producer_id << 64`` plus a running number, are unique without a lock over all partitions.

Written by: the counts ``sent_count`` (holding the lock) and ``settled_count`` (by whoever reaps, holding the condition)
only grow; their difference is what is in flight, and stays within the window in which the worker finds repetitions.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from shmbroker.client.encoding import encode_array, encode_batch, encode_one
from shmbroker.client.lanes import Port
from shmbroker.client.ticket import Answer, Gathering, Share, StillInFlight, Ticket
from shmbroker.errors import BufferFull, ShmbrokerError
from shmbroker.formats.batch import HEADER_SIZE
from shmbroker.formats.lane import REQUEST_APPEND
from shmbroker.limits import DEDUPLICATION_WINDOW

IN_FLIGHT_MAX = DEDUPLICATION_WINDOW - 1


class Route:
    """Where batches for ``log_id`` go. Thread-safe."""

    def __init__(self, port: Port, log_id: int, partition_id: int, topic_name: str, max_in_flight: int) -> None:
        assert 1 <= max_in_flight <= IN_FLIGHT_MAX
        self.port = port
        self.log_id = log_id
        self.partition_id = partition_id
        self.producer_id = secrets.randbits(63) or 1
        self.lock = threading.Lock()
        self.sent_count = 0
        self.settled_count = 0
        self.failure: Answer[Any] | None = None
        self._topic_name = topic_name
        self._max_in_flight = max_in_flight
        self._sequence = 0
        self._id_base = self.producer_id << 64

    @property
    def name(self) -> str:
        return f"{self._topic_name}, partition {self.partition_id}"

    def put_now(self, messages: Sequence[bytes], awaited: bool) -> Ticket | None:
        """A list of one message, where nothing has to be waited for; else None, and nothing happened.

        The same as :meth:`put`, on the shortest way there is: of one message at a time each step is felt.
        """
        port = self.port
        if type(messages) is not list or len(messages) != 1 or port.refusal is not None or not self.lock.acquire(False):
            return None
        try:
            sent_count = self.sent_count
            if sent_count - self.settled_count >= self._max_in_flight:
                return None
            sequence = self._sequence + 1
            record = encode_one(messages[0], self._id_base, time.time_ns() // 1000, self.producer_id, sequence)
            size = 256 + len(record[1])  # HEADER_SIZE
            ticket = Ticket(port.reaper, self, record, size)
            self.sent_count = sent_count + 1
            try:
                is_sent = port.offer_now(ticket, REQUEST_APPEND, self.log_id, record, size, awaited)
            except BaseException:
                self.sent_count = sent_count
                raise
            if not is_sent:
                self.sent_count = sent_count
                return None
            self._sequence = sequence
            self._id_base += 1
        finally:
            self.lock.release()
        return ticket

    def put(self, messages: Sequence[bytes], headers: Any, ids: Any, deadline: float, awaited: bool) -> Ticket:
        """Encodes one batch and puts it into the lane. Waits for room until ``deadline``, then raises BufferFull."""
        self.acquire(deadline)
        try:
            record = encode_batch(
                messages,
                id_base=self._id_base,
                origin_timestamp_us=time.time_ns() // 1000,
                producer_id=self.producer_id,
                sequence=self._sequence + 1,
                headers=headers,
                ids=ids,
            )
            size = HEADER_SIZE + len(record[1])
            ticket = Ticket(self.port.reaper, self, record, size)
            self._send(ticket, record, size, len(messages), deadline, awaited)
        finally:
            self.lock.release()
        return ticket

    def put_array(self, array: npt.NDArray[Any], deadline: float, awaited: bool) -> Ticket:
        """As :meth:`put`, one message for each item of ``array``."""
        self.acquire(deadline)
        try:
            record = encode_array(
                array,
                id_base=self._id_base,
                origin_timestamp_us=time.time_ns() // 1000,
                producer_id=self.producer_id,
                sequence=self._sequence + 1,
            )
            size = HEADER_SIZE + len(record[1])
            ticket = Ticket(self.port.reaper, self, record, size)
            self._send(ticket, record, size, len(array), deadline, awaited)
        finally:
            self.lock.release()
        return ticket

    def put_shares(
        self, messages: Sequence[bytes], headers: Any, ids: Any, shares: list[Share], deadline: float
    ) -> None:
        """One batch for several tickets; the caller holds the lock. An error settles them all, and is not raised."""
        try:
            record = encode_batch(
                messages,
                id_base=self._id_base,
                origin_timestamp_us=time.time_ns() // 1000,
                producer_id=self.producer_id,
                sequence=self._sequence + 1,
                headers=headers,
                ids=ids,
            )
            size = HEADER_SIZE + len(record[1])
            gathering = Gathering(self.port.reaper, self, record, size, shares)
            self._send(gathering, record, size, len(messages), deadline, False)
        except ShmbrokerError as error:
            self._fail(shares, error)
            return
        gathering.announce()

    def put_again(self, ticket: Ticket, deadline: float) -> Ticket:
        """Sends the record of an earlier ticket once more, under the producer id and sequence that it has."""
        record = ticket.record
        assert record is not None
        offered, asked = ticket.again(self.port.reaper, self)
        self.acquire(deadline)
        try:
            self._send(offered, record, ticket.size, 0, deadline, False)
        finally:
            self.lock.release()
        if isinstance(offered, Gathering):
            offered.announce()
        ticket.forget()
        return asked

    def acquire(self, deadline: float) -> None:
        """Takes the lock. Raises BufferFull where another thread waits for room for longer than we may."""
        if self.port.refusal is not None:
            raise self.port.refusal  # before any lock: in a child of fork() it might be held for ever
        if not self.lock.acquire(False) and not self.lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise BufferFull(f"{self.name}: another thread is still waiting for room")

    def wait_settled(self, target_count: int, deadline: float) -> None:
        """Waits until that many requests have been answered. Raises StillInFlight."""
        reaper = self.port.reaper
        while self.settled_count < target_count:
            if not reaper.wait_for_progress(deadline):
                raise StillInFlight(f"{self.name}: {target_count - self.settled_count} requests are still under way")

    def _send(
        self, ticket: Ticket, record: Sequence[Any], size: int, count: int, deadline: float, awaited: bool
    ) -> None:
        """Puts a record of ``count`` new messages (0: sent before) into the lane. The lock is held."""
        if self.sent_count - self.settled_count >= self._max_in_flight:
            self._wait_turn(deadline)
        self.sent_count += 1
        try:
            self.port.offer(ticket, REQUEST_APPEND, 0, self.log_id, 0, record, size, deadline, awaited)
        except BaseException:
            self.sent_count -= 1
            raise
        if count:
            self._sequence += 1
            self._id_base += count

    def _wait_turn(self, deadline: float) -> None:
        while self.sent_count - self.settled_count >= self._max_in_flight:
            if not self.port.reaper.wait_for_progress(deadline):
                raise BufferFull(
                    f"{self.name}: {self._max_in_flight} batches in flight (max_in_flight), none confirmed in time"
                )

    def _fail(self, shares: list[Share], error: ShmbrokerError) -> None:
        with self.port.reaper.condition:
            called = [share for share in shares if share.fail(error)]
        for share in called:
            share.run_callbacks()
