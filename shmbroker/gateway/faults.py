"""What goes wrong, as an answer: ``{"id", "code", "reason", "field"}`` and a status.

``id`` and ``code`` are the broker's error number and its name as Iggy spells it; where HTTP itself is at fault, the
status and its name. Three things decide the status, in this order: whether the outcome is unknown (504: it may have
been done), whether nothing was accepted (503 with Retry-After: try again), and else who must act.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Final

from pydantic import BaseModel
from starlette.exceptions import HTTPException

from shmbroker.errors import ErrorCode, NotAccepted, OutcomeUnknown, ShmbrokerError, Unavailable, WaitTimeout
from shmbroker.errors import ErrorCode as Code

RETRY_AFTER: Final = {"Retry-After": "1"}
ACCESS_TOKEN_MISSING: Final = 77
INVALID_ACCESS_TOKEN: Final = 78

_UNAUTHENTICATED: Final = frozenset(
    {Code.UNAUTHENTICATED, Code.INVALID_TOKEN, Code.TOKEN_EXPIRED, ACCESS_TOKEN_MISSING, INVALID_ACCESS_TOKEN}
)
_MISSING: Final = frozenset(
    {
        Code.RESOURCE_NOT_FOUND,
        Code.CLIENT_NOT_FOUND,
        Code.STREAM_NOT_FOUND,
        Code.STREAM_NAME_NOT_FOUND,
        Code.TOPIC_NOT_FOUND,
        Code.TOPIC_NAME_NOT_FOUND,
        Code.PARTITION_NOT_FOUND,
        Code.SEGMENT_NOT_FOUND,
        Code.CONSUMER_OFFSET_NOT_FOUND,
        Code.GROUP_NOT_FOUND,
        Code.GROUP_NAME_NOT_FOUND,
        Code.GROUP_MEMBER_NOT_FOUND,
    }
)
_FAILED_AFTER_ACCEPTING: Final = frozenset({Code.CANNOT_WRITE_TO_FILE, Code.CANNOT_SYNC_FILE})
"""The write or the sync of this very batch failed: it is in the log or not."""
_NAMES: Final[dict[int, str]] = {
    Code.INVALID_TOKEN_NAME: "invalid_personal_access_token_name",
    Code.TOKEN_ALREADY_EXISTS: "personal_access_token_already_exists",
    Code.TOKENS_LIMIT_REACHED: "personal_access_tokens_limit_reached",
    Code.INVALID_TOKEN: "invalid_personal_access_token",
    Code.TOKEN_EXPIRED: "personal_access_token_expired",
    Code.INVALID_TOKEN_EXPIRY: "invalid_personal_access_token_expiry",
    ACCESS_TOKEN_MISSING: "access_token_missing",
    INVALID_ACCESS_TOKEN: "invalid_access_token",
    Code.STREAM_NOT_FOUND: "stream_id_not_found",
    Code.TOPIC_NOT_FOUND: "topic_id_not_found",
    Code.INVALID_TIMESTAMP_DELTA: "invalid_message_timestamp_delta",
    Code.GROUP_NOT_FOUND: "consumer_group_id_not_found",
    Code.GROUP_NAME_NOT_FOUND: "consumer_group_name_not_found",
    Code.GROUP_NAME_ALREADY_EXISTS: "consumer_group_name_already_exists",
    Code.INVALID_GROUP_NAME: "invalid_consumer_group_name",
    Code.GROUP_MEMBER_NOT_FOUND: "consumer_group_member_not_found",
    Code.GROUP_PARTITION_NOT_OWNED: "consumer_group_partition_not_owned",
}
"""Where Iggy's name of an error is not ours in lower case."""
_WORD: Final = re.compile(r"[^a-z]+")


class ErrorBody(BaseModel):
    """The body of every answer from 400 on."""

    id: int
    code: str
    reason: str
    field: str | None


class Refused(HTTPException):
    """Ends a request with this answer. An HTTPException, since FastAPI wraps others that come up while it reads."""

    def __init__(self, status: int, body: ErrorBody, headers: dict[str, str] | None = None) -> None:
        self.extra = {**(headers or {})}
        super().__init__(status, body.reason, self.extra)
        self.status = status
        self.body = body


def refused(number: int, reason: str, *, status: int | None = None, field: str | None = None) -> Refused:
    """The answer for an error number of the broker."""
    chosen = _status_of(number) if status is None else status
    headers = {"WWW-Authenticate": "Bearer"} if chosen == HTTPStatus.UNAUTHORIZED else {}
    return Refused(chosen, ErrorBody(id=number, code=name_of(number), reason=reason, field=field), headers)


def by_status(status: int, reason: str, *, code: str | None = None, field: str | None = None) -> Refused:
    """The answer for a fault of HTTP itself; with Retry-After where nothing was accepted."""
    name = code or _WORD.sub("_", HTTPStatus(status).phrase.lower())
    headers = {**RETRY_AFTER} if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE) else {}
    return Refused(status, ErrorBody(id=status, code=name, reason=reason, field=field), headers)


def unknown_outcome(what: str, reason: str) -> Refused:
    """504: it may have been done. ``what`` says what was waited for: ``produce``, ``offset_write``."""
    return by_status(HTTPStatus.GATEWAY_TIMEOUT, reason, code=f"{what}_timeout")


def of_error(error: ShmbrokerError, what: str) -> Refused:
    """The answer for what the broker, or the way to it, raised. ``what`` was asked for."""
    number, reason = error.number, str(error)
    if isinstance(error, OutcomeUnknown) or number in _FAILED_AFTER_ACCEPTING:
        return unknown_outcome(what, reason)
    if isinstance(error, NotAccepted | Unavailable | WaitTimeout):
        body = ErrorBody(id=number, code=name_of(number), reason=reason, field=None)
        return Refused(HTTPStatus.SERVICE_UNAVAILABLE, body, RETRY_AFTER)
    return refused(number, reason)


def name_of(number: int) -> str:
    """As Iggy spells it."""
    if number in _NAMES:
        return _NAMES[number]
    try:
        return ErrorCode(number).name.lower()
    except ValueError:
        return f"error_{number}"


def _status_of(number: int) -> int:
    if number in _UNAUTHENTICATED:
        return HTTPStatus.UNAUTHORIZED
    if number == Code.UNAUTHORIZED:
        return HTTPStatus.FORBIDDEN
    if number in _MISSING:
        return HTTPStatus.NOT_FOUND
    return HTTPStatus.BAD_REQUEST
