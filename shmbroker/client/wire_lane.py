"""A lane over TCP: what a port offers to, where no memory is shared. It does what ``shm.lane.LaneClient`` does.

Owns a session of its own and a queue of batches. The protocol takes one request at a time, so the next batch leaves
when the answer to the one before has come; whoever offers or reaps moves this on, and nobody waits inside. Batches
leave in the order of their offers. What the broker answers becomes a completion; when the session ends, the lane is
closed, and what was under way gets OutcomeUnknown from its port, as with a lane in shared memory.

A batch travels under its producer id and sequence number, as the header's client and request number: the broker knows
by these what it has appended already, so that sending one again, in whichever session, appends nothing twice.

Written by whoever holds the lane's lock, which is the innermost one.
"""

from __future__ import annotations

import select
import ssl
import threading
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from shmbroker.client.tcp import TcpConnection
from shmbroker.client.wire_batch import wire_batch_of
from shmbroker.errors import ErrorCode
from shmbroker.formats.batch import unpack_header
from shmbroker.formats.lane import REQUEST_APPEND
from shmbroker.limits import BATCH_SIZE_MAX, LANE_IN_FLIGHT_MAX, MIB
from shmbroker.shm.doorbell import EventDoorbell
from shmbroker.wire.codes import BY_CODE
from shmbroker.wire.connection import Answer, ConnectionFault
from shmbroker.wire.frame import Eviction
from shmbroker.wire.messages import Partitioning, SendMessages, SendReply
from shmbroker.wire.primitives import Identifier

QUEUE_SIZE_MAX: Final = 16 * MIB
"""Bytes that wait to be sent; one batch may always wait."""
Completion = tuple[int, int, int, int, int]
Buffer = bytes | bytearray | memoryview


class Target(NamedTuple):
    """Where batches go: what a log id of this client stands for."""

    stream: Identifier
    topic: Identifier
    partition: int


class Outgoing(NamedTuple):
    """A batch that waits. ``head`` is the body up to the frames."""

    number: int
    producer_id: int
    sequence: int
    message_count: int
    head: bytes
    frames: Buffer

    @property
    def size(self) -> int:
        return len(self.head) + len(self.frames)


class WireLane:
    """A session that takes batches. Thread-safe. ``targets``: by log id; shared with whoever grants them."""

    request_size = 4 * BATCH_SIZE_MAX
    """As large as it must be for a port never to want a larger one."""

    def __init__(self, connection: TcpConnection, lane_id: int, targets: Sequence[Target]) -> None:
        self.lane_id = lane_id
        self.bell = EventDoorbell.create()
        self.bell.close_descriptor()  # nobody else rings it
        self._connection = connection
        self._targets = targets
        self._lock = threading.Lock()
        self._queue: deque[Outgoing] = deque()
        self._queued_size = 0
        self._in_flight: Outgoing | None = None
        self._unsent: list[memoryview] = []
        self._socket, self._codec = connection.taken_over()
        self._socket.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._poll.register(self.bell.fileno(), select.POLLIN)
        self._closed = 0

    # --- what a port asks of a lane ----------------------------------------------------------------------------------
    def offer(
        self,
        kind: int,
        flags: int,
        request_number: int,
        log_id: int,
        argument: int,
        buffers: Sequence[Buffer],
        body_length: int,
    ) -> bool:
        """Takes one batch, given as a record's header and content. False where too many wait, or the lane is closed."""
        del flags, argument
        assert kind == REQUEST_APPEND
        target = self._targets[log_id]
        with self._lock:
            is_full = self._queue and self._queued_size + body_length > QUEUE_SIZE_MAX
            if self._closed or is_full or len(self._queue) >= LANE_IN_FLIGHT_MAX:
                return False
        record = unpack_header(buffers[0])
        header, frames = wire_batch_of([bytes(buffers[0]), memoryview(buffers[1])])
        count = record.message_count
        request = SendMessages(target.stream, target.topic, Partitioning.partition(target.partition), count, b"")
        outgoing = Outgoing(
            request_number, record.producer_id, record.producer_sequence, count, request.encode_head() + header, frames
        )
        with self._lock:
            self._queue.append(outgoing)
            self._queued_size += outgoing.size
            self._push()
            must_wake = bool(self._unsent)
        if must_wake:
            self.bell.ring()  # whoever waits for answers has to wait for room as well
        return True

    def completions(self) -> list[Completion]:
        """What was answered since the last call; moves on what waits. Never waits."""
        found: list[Completion] = []
        with self._lock:
            while not self._closed:
                answer = self._codec.next_answer()
                if answer is None:
                    self._push()
                    if self._closed or not self._receive():
                        break
                elif isinstance(answer, ConnectionFault) or self._in_flight is None:
                    self._end()
                else:
                    found.append(_completion_of(self._in_flight, answer))
                    self._in_flight = None
                    if isinstance(answer.header, Eviction):
                        self._end()
        return found

    @property
    def closed(self) -> int:
        """0, or the error number for which the session has ended."""
        return self._closed

    def close(self) -> None:
        """Ends the session."""
        with self._lock:
            self._end()
            self._queue.clear()
            self._connection.close()

    # --- waiting -----------------------------------------------------------------------------------------------------
    def wait(self, timeout_s: float) -> bool:
        """Until there is something to receive, or room for what is being sent. By whoever leads the reaping."""
        try:
            self._poll.modify(self._socket, select.POLLIN | (select.POLLOUT if self._unsent else 0))
            return bool(self._poll.poll(timeout_s * 1000))
        except (OSError, ValueError):
            return True  # closed meanwhile: look again

    # --- the socket --------------------------------------------------------------------------------------------------
    def _push(self) -> None:
        """Holding the lock: sends what can be sent now."""
        if self._in_flight is None and self._queue:
            outgoing = self._in_flight = self._queue.popleft()
            self._queued_size -= outgoing.size
            self._codec.client, self._codec.request_number = outgoing.producer_id, outgoing.sequence
            head = self._codec.request_head(BY_CODE[SendMessages.CODE], outgoing.size)
            self._unsent = [memoryview(head + outgoing.head), memoryview(outgoing.frames)]
        while self._unsent and not self._closed:
            try:
                sent = self._send()
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                return
            except OSError:
                self._end()
                return
            while self._unsent and sent >= len(self._unsent[0]):
                sent -= len(self._unsent.pop(0))
            if sent:
                self._unsent[0] = self._unsent[0][sent:]

    def _send(self) -> int:
        if isinstance(self._socket, ssl.SSLSocket):
            return self._socket.send(self._unsent[0])
        return self._socket.sendmsg(self._unsent)

    def _receive(self) -> bool:
        """Holding the lock: takes what is there. False where there is nothing now."""
        try:
            size = self._socket.recv_into(self._codec.get_buffer())
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        except OSError:
            size = 0
        if not size:
            self._end()
            return False
        self._codec.buffer_updated(size)
        return True

    def _end(self) -> None:
        if not self._closed:
            self._closed = ErrorCode.LANE_CLOSED
            self._unsent = []
            self.bell.ring()


class LaneBell:
    """The completion bell of a wire lane: its socket."""

    def __init__(self, lane: WireLane) -> None:
        self._lane = lane

    def ring(self) -> None:
        """Wakes whoever waits."""
        self._lane.bell.ring()

    def wait(self, timeout_s: float) -> bool:
        """Until there is something to do for the lane, at most ``timeout_s``."""
        is_rung = self._lane.wait(timeout_s)
        self._lane.bell.drain()
        return is_rung

    def drain(self) -> None:
        """Forgets the rings so far."""
        self._lane.bell.drain()

    def close(self) -> None:
        """Closes what rings it."""
        self._lane.bell.close()


class Silence:
    """The doorbell of the other end, which needs none."""

    def ring(self) -> None:
        """Nothing."""

    def wait(self, timeout_s: float) -> bool:
        """Nobody waits here."""
        raise AssertionError(f"nobody waits for {timeout_s} s at the other end")

    def drain(self) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


def _completion_of(outgoing: Outgoing, answer: Answer) -> Completion:
    """request_number, status, detail, value, argument."""
    if answer.status:
        return outgoing.number, answer.status, 0, 0, 0
    reply = answer.value
    if not isinstance(reply, SendReply) or len(reply.confirmations) != 1:
        return outgoing.number, ErrorCode.TRANSIENT_NOT_COMMITTED, 0, 0, 0  # it was taken, nobody knows where
    return outgoing.number, ErrorCode.OK, 0, reply.confirmations[0].base_offset, outgoing.message_count
