"""Gathering small submissions into batches, for up to ``linger`` seconds.

Owns, for each route, at most one open accumulation; it is sent by whoever fills it, by the thread that watches the
clock, or by a flush. What one producer may hold here is bounded by one batch a partition. The thread starts at the
first submission and sleeps for good while nothing is open.

An accumulation is written by whoever holds the lock of its route, so that batches leave in the order of submission.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from shmbroker.client.encoding import check_lists
from shmbroker.client.route import Route
from shmbroker.client.ticket import Share
from shmbroker.errors import BufferFull, InvalidMessage
from shmbroker.formats.headers import encode_headers
from shmbroker.limits import MESSAGE_PAYLOAD_SIZE_MAX


class Accumulation:
    """The messages of one batch to be. ``due`` is when it has lingered enough (time.monotonic)."""

    def __init__(self, due: float) -> None:
        self.due = due
        self.messages: list[bytes] = []
        self.shares: list[Share] = []
        self.size = 0
        self.headers: list[Any] = []
        self.ids: list[int] = []
        self.has_headers = False
        self.has_ids = False

    def add(self, messages: Sequence[bytes], size: int, headers: Any, ids: Any, share: Share) -> None:
        count = len(messages)
        self.messages += messages
        self.size += size
        self.has_headers |= headers is not None
        self.has_ids |= ids is not None
        self.headers += [headers] * count if headers is None or isinstance(headers, Mapping) else headers
        self.ids += ids if ids is not None else [0] * count
        self.shares.append(share)


class Linger:
    """The accumulations of one producer."""

    def __init__(self, linger_s: float, batch_count: int, batch_size: int, timeout_s: float) -> None:
        self._linger_s = linger_s
        self._batch_count = batch_count
        self._batch_size = batch_size
        self._timeout_s = timeout_s
        self._open: dict[Route, Accumulation] = {}
        self._changed = threading.Condition(threading.Lock())
        self._thread: threading.Thread | None = None
        self._stopped = False

    def submit(self, route: Route, messages: Sequence[bytes], headers: Any, ids: Any, deadline: float) -> Share:
        """Adds the messages of one ticket to the open batch of ``route``; sends it if that fills it."""
        size = checked_size(messages, headers, ids)
        count = len(messages)
        route.acquire(deadline)
        try:
            open_batch = self._open.get(route)
            if open_batch is not None and (
                len(open_batch.messages) + count > self._batch_count or open_batch.size + size > self._batch_size
            ):
                self._send(route, deadline)
                open_batch = None
            is_new = open_batch is None
            if open_batch is None:
                open_batch = Accumulation(time.monotonic() + self._linger_s)
            share = Share(route.port.reaper, route, len(open_batch.messages), count)
            open_batch.add(messages, size, headers, ids, share)
            if is_new:
                self._admit(route, open_batch)
            if len(open_batch.messages) >= self._batch_count or open_batch.size >= self._batch_size:
                self._send(route, deadline)
        finally:
            route.lock.release()
        return share

    def flush(self, deadline: float) -> None:
        """Sends everything that is open."""
        for route in list(self._open):
            self._send_locked(route, deadline)

    def stop(self) -> None:
        """Ends the thread; nothing may be submitted after it."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout=self._timeout_s)

    def _admit(self, route: Route, open_batch: Accumulation) -> None:
        with self._changed:
            self._open[route] = open_batch
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch_clock, name="shmbroker linger", daemon=True)
                self._thread.start()
            elif len(self._open) == 1:
                self._changed.notify()  # others are due earlier than this one

    def _send_locked(self, route: Route, deadline: float) -> None:
        if not route.lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise BufferFull(f"{route.name}: another thread is still waiting for room")
        try:
            self._send(route, deadline)
        finally:
            route.lock.release()

    def _send(self, route: Route, deadline: float) -> None:
        """Sends the open batch of a route whose lock is held. What goes wrong is said to its tickets."""
        batch = self._open.pop(route, None)
        if batch is None:
            return
        headers = batch.headers if batch.has_headers else None
        ids = batch.ids if batch.has_ids else None
        route.put_shares(batch.messages, headers, ids, batch.shares, deadline)

    def _watch_clock(self) -> None:
        while True:
            with self._changed:
                while not self._open and not self._stopped:
                    self._changed.wait()
                if self._stopped:
                    return
                now = time.monotonic()
                due = [route for route, batch in self._open.items() if batch.due <= now]
                if not due:
                    self._changed.wait(min(batch.due for batch in self._open.values()) - now)
                    continue
            for route in due:
                self._send_due(route)

    def _send_due(self, route: Route) -> None:
        """Sends a batch that has lingered enough, unless somebody is just doing it."""
        with route.lock:
            batch = self._open.get(route)
            if batch is not None and batch.due <= time.monotonic():
                self._send(route, time.monotonic() + self._timeout_s)


def checked_size(messages: Sequence[bytes], headers: Any, ids: Any) -> int:
    """The bytes of these payloads. Raises InvalidMessage: what is wrong with one ticket must not harm the others."""
    check_lists(messages, headers, ids)
    if isinstance(messages, str | bytes | bytearray | memoryview) or not messages:
        raise InvalidMessage("a batch is a list of payloads, at least one")
    size = 0
    for message in messages:
        if not isinstance(message, bytes | bytearray | memoryview):
            raise InvalidMessage(f"a payload is bytes (or a view of single bytes), not {type(message).__name__}")
        if not 1 <= len(message) <= MESSAGE_PAYLOAD_SIZE_MAX:
            raise InvalidMessage(f"a payload of {len(message)} bytes; 1 to {MESSAGE_PAYLOAD_SIZE_MAX} are allowed")
        size += len(message)
    if headers is not None:
        each = [headers] if isinstance(headers, Mapping) else headers
        if not isinstance(headers, Mapping) and len(each) != len(messages):
            raise InvalidMessage(f"headers for {len(each)} messages, but there are {len(messages)}")
        size += sum(len(encode_headers(one)) for one in each if one)
    if ids is not None:
        if len(ids) != len(messages):
            raise InvalidMessage(f"{len(ids)} ids for {len(messages)} messages")
        if any(not isinstance(one, int) or not 0 <= one < 1 << 128 for one in ids):
            raise InvalidMessage("message ids are numbers from 0 to 2^128 - 1")
    return size
