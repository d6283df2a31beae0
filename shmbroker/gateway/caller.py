"""Who makes a request, until when, and with what: the dependencies of the routes.

A route takes a Reader or a Writer; both are a Caller, a Writer is counted while it is under way.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import Depends, Path, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from shmbroker.errors import NotAccepted
from shmbroker.gateway.access import Access, Identity, is_access_token
from shmbroker.gateway.admission import Figures
from shmbroker.gateway.backend import Backend
from shmbroker.gateway.exchange import Exchange, Target
from shmbroker.gateway.faults import ACCESS_TOKEN_MISSING, by_status, refused
from shmbroker.limits import U32_MAX
from shmbroker.wire import local
from shmbroker.wire.bodies import Request as Command
from shmbroker.wire.primitives import Identifier

BEARER = HTTPBearer(auto_error=False, description="An access token of a login, or a personal access token.")


@dataclass(frozen=True, slots=True)
class Gateway:
    """What all requests share."""

    backend: Backend
    exchange: Exchange
    access: Access
    figures: Figures


@dataclass(frozen=True, slots=True)
class Caller:
    """One request of a user. ``deadline``: of time.monotonic."""

    gateway: Gateway
    user: Identity
    token: str
    deadline: float

    async def command(self, request: Command) -> Any:
        """The decoded reply to a command carried out as this user."""
        return await self.gateway.backend.command(self.user, request, self.deadline)

    def target(self, stream: str, topic: str) -> Target:
        """A topic for the exchange."""
        return Target(self.user, identifier(stream), identifier(topic), self.deadline)


def gateway_of(request: Request) -> Gateway:
    gateway: Gateway = request.app.state.gateway
    return gateway


def deadline_of(request: Request) -> float:
    deadline: float = request.state.deadline
    return deadline


async def reader(request: Request, found: Annotated[HTTPAuthorizationCredentials | None, Depends(BEARER)]) -> Caller:
    """Refused with 401 where the token is missing or not valid."""
    gateway, deadline = gateway_of(request), deadline_of(request)
    if found is None:
        raise refused(
            ACCESS_TOKEN_MISSING,
            "an Authorization header with a Bearer token is wanted",
            status=HTTPStatus.UNAUTHORIZED,
        )
    token = found.credentials
    if is_access_token(token):
        return Caller(gateway, gateway.access.read(token), token, deadline)
    who = await authenticate(gateway, local.Authenticate(None, None, token, ""), deadline)
    return Caller(gateway, Identity(who.user_id, who.created_at_us), token, deadline)


async def writer(caller: Annotated[Caller, Depends(reader)]) -> AsyncIterator[Caller]:
    """A reader that is counted; refused with 429 or 503 where there are too many."""
    with caller.gateway.figures.writing(caller.user):
        yield caller


async def authenticate(gateway: Gateway, request: local.Authenticate, deadline: float) -> local.AuthenticateReply:
    """Who it is, says the broker. Raises what it refuses with."""
    try:
        reply: local.AuthenticateReply = await gateway.backend.ask(request, deadline)
    except NotAccepted as error:
        raise by_status(HTTPStatus.TOO_MANY_REQUESTS, str(error)) from None
    return reply


def peer_of(request: Request) -> str:
    """The address whose attempts are counted."""
    return request.client.host if request.client is not None else ""


def identifier(text: str) -> Identifier:
    """A number where the text is one of 32 bits, else a name."""
    if text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= U32_MAX:
        return int(text)
    return text


Reader = Annotated[Caller, Depends(reader)]
Writer = Annotated[Caller, Depends(writer)]
Shared = Annotated[Gateway, Depends(gateway_of)]
Deadline = Annotated[float, Depends(deadline_of)]
StreamId = Annotated[str, Path(description="Number or name.")]
TopicId = Annotated[str, Path(description="Number or name.")]
UserId = Annotated[str, Path(description="Number or name.")]
GroupId = Annotated[str, Path(description="Number or name.")]
