"""A connection that says nothing, or only half of a head, does not stay: uvicorn bounds what comes after a request
alone."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class TimelyProtocol(HttpToolsProtocol):
    """uvicorn's, with a time for each head to arrive: from the start of the connection, or of a later head."""

    head_s: ClassVar[float]
    _head_timer: asyncio.TimerHandle | None = None

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
        super().connection_lost(exc)

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


def timely(head_s: float) -> type[TimelyProtocol]:
    """The protocol with this time, in seconds."""
    return type("Timely", (TimelyProtocol,), {"head_s": head_s})
