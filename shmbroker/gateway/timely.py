"""A connection that says nothing, or only half of a head, or takes nothing of its answer, does not stay: uvicorn bounds
what comes after a request alone."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

TAKE_S: Final = 60.0
"""An answer may stand still so long; a large one holds megabytes."""


class TimelyProtocol(HttpToolsProtocol):
    """uvicorn's, with a time for each head to arrive: from the start of the connection, or of a later head."""

    head_s: ClassVar[float]
    take_s: ClassVar[float]
    _head_timer: asyncio.TimerHandle | None = None
    _take_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._await_head()

    def on_headers_complete(self) -> None:
        self._cancel_head_timer()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_head_timer()
        self._cancel_take_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_taking()

    def resume_writing(self) -> None:
        self._cancel_take_timer()
        super().resume_writing()

    def _await_taking(self) -> None:
        size = self.transport.get_write_buffer_size()
        self._take_timer = self.loop.call_later(self.take_s, self._look_at_taking, size)

    def _look_at_taking(self, size_before: int) -> None:
        if self.transport.get_write_buffer_size() < size_before:
            self._await_taking()
        else:
            self.transport.abort()  # close() would wait for the peer

    def _cancel_take_timer(self) -> None:
        if self._take_timer is not None:
            self._take_timer.cancel()
            self._take_timer = None

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_s, self._end)

    def _cancel_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _end(self) -> None:
        transport: Any = self.transport
        if not transport.is_closing():
            transport.close()


def timely(head_s: float, take_s: float = TAKE_S) -> type[TimelyProtocol]:
    """The protocol with these times, in seconds."""
    return type("Timely", (TimelyProtocol,), {"head_s": head_s, "take_s": take_s})
