"""What is wrong with a request before the broker is asked: a 400 that names the field."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from shmbroker.gateway.faults import Refused, by_status


def invalid(errors: Sequence[Any]) -> Refused:
    """The answer for what pydantic found; the first of it."""
    first = errors[0]
    places = [str(part) for part in first["loc"] if part not in ("body", "query", "path", "header")]
    field = ".".join(places) or None
    reason = first["msg"] if field is None else f"{field}: {first['msg']}"
    return by_status(HTTPStatus.BAD_REQUEST, reason, field=field)
