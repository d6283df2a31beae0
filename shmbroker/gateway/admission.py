"""What every request meets first: bounds on its body, its time, and on how many are under way. An ASGI layer.

A body that is larger than allowed, said or sent, is answered 413 and the connection closed. A request that takes
longer than the time limit is answered 408 while its body was still coming, else 504, which for a write means that its
outcome is unknown; routes give themselves a little less and say it better. Writes under way are bounded for each user
(429) and over all (503): nothing of a refused one was accepted.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Final

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shmbroker.gateway.access import Identity
from shmbroker.gateway.faults import Refused, by_status
from shmbroker.limits import HTTP_WRITES_MAX, HTTP_WRITES_PER_USER_MAX

BACKSTOP_S: Final = 1.0
"""The routes' deadline is the time limit; this layer waits so much longer."""
READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class Figures:
    """What the gateway counts of itself. Owned by the loop."""

    def __init__(self) -> None:
        self.requests = 0
        self.answers: Counter[int] = Counter()
        """By status."""
        self.writes = 0
        self.writes_by_user: Counter[Identity] = Counter()

    @contextmanager
    def writing(self, user: Identity) -> Iterator[None]:
        """Counts a write of ``user`` while it is under way. Refused where there are too many."""
        if self.writes >= HTTP_WRITES_MAX:
            raise by_status(HTTPStatus.SERVICE_UNAVAILABLE, f"{HTTP_WRITES_MAX} writes are under way: try again")
        if self.writes_by_user[user] >= HTTP_WRITES_PER_USER_MAX:
            text = f"{HTTP_WRITES_PER_USER_MAX} writes of this user are under way: try again"
            raise by_status(HTTPStatus.TOO_MANY_REQUESTS, text)
        self.writes += 1
        self.writes_by_user[user] += 1
        try:
            yield
        finally:
            self.writes -= 1
            self.writes_by_user[user] -= 1
            if not self.writes_by_user[user]:
                del self.writes_by_user[user]


class Admission:
    """Around the application."""

    def __init__(self, app: ASGIApp, figures: Figures, body_size_max: int, time_limit_s: float) -> None:
        self._app = app
        self._figures = figures
        self._body_size_max = body_size_max
        self._time_limit_s = time_limit_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        self._figures.requests += 1
        scope.setdefault("state", {})["deadline"] = time.monotonic() + self._time_limit_s
        exchange = _Exchange(receive, send, self._figures, self._body_size_max)
        try:
            exchange.check_length(scope)
            async with asyncio.timeout(self._time_limit_s + BACKSTOP_S):
                await self._app(scope, exchange.receive, exchange.send)
        except Refused as refusal:
            await exchange.refuse(scope, refusal)
        except TimeoutError:
            await exchange.refuse(scope, _late(scope, exchange.has_body))


class _Exchange:
    """One request: counts its body, and knows whether its answer has begun."""

    def __init__(self, receive: Receive, send: Send, figures: Figures, body_size_max: int) -> None:
        self._receive = receive
        self._send = send
        self._figures = figures
        self._body_size_max = body_size_max
        self._body_size = 0
        self._has_begun = False
        self.has_body = False
        """Whether all of the body is here."""

    def check_length(self, scope: Scope) -> None:
        for name, value in scope["headers"]:
            if name == b"content-length" and value.isdigit() and int(value) > self._body_size_max:
                raise self._too_large()

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._body_size += len(message.get("body", b""))
            if self._body_size > self._body_size_max:
                raise self._too_large()
            self.has_body = not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._has_begun = True
            self._figures.answers[message["status"]] += 1
        await self._send(message)

    async def refuse(self, scope: Scope, refusal: Refused) -> None:
        if self._has_begun:
            raise refusal  # half an answer cannot be taken back: the server closes the connection
        await answer_of(refusal)(scope, self.receive, self.send)

    def _too_large(self) -> Refused:
        refusal = by_status(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"the body is larger than {self._body_size_max} bytes (http.body_size_max)",
            code="payload_too_large",
        )
        refusal.extra["Connection"] = "close"
        return refusal


def answer_of(refusal: Refused) -> JSONResponse:
    """The refusal as a response."""
    content: dict[str, Any] = refusal.body.model_dump()
    return JSONResponse(content, refusal.status, {**refusal.extra})


def _late(scope: Scope, has_body: bool) -> Refused:
    if not has_body and scope["method"] not in READING:
        refusal = by_status(HTTPStatus.REQUEST_TIMEOUT, "the body did not come in time")
        refusal.extra["Connection"] = "close"
        return refusal
    text = "no answer from the broker in time"
    if scope["method"] not in READING:
        text += ": whether it was done is unknown"
    return by_status(HTTPStatus.GATEWAY_TIMEOUT, text)
