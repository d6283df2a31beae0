"""Stored offsets of consumers and groups, asked for through a worker's lane. Keys are those of formats.offsets.

An offset request is safe to repeat, but nothing is repeated here: what may have happened raises OutcomeUnknown.
"""

from __future__ import annotations

import time
from typing import Any

from shmbroker.client.lanes import Port
from shmbroker.client.ticket import Answer, Reply
from shmbroker.errors import ClientMistake, ErrorCode, InvalidOffset, NotFound, OutcomeUnknown, WaitTimeout
from shmbroker.formats.lane import (
    FLAG_AUTOMATIC,
    REQUEST_DELETE_OFFSET,
    REQUEST_GET_OFFSET,
    REQUEST_STORE_OFFSET,
    pack_key,
)
from shmbroker.formats.offsets import KEY_CONSUMER, KEY_GROUP, name_key, number_key
from shmbroker.limits import NAME_SIZE_MAX, U32_MAX, U64_MAX


class OffsetOrigin:
    """Where an offset request went. Nobody counts these."""

    def __init__(self, partition_id: int, name: str) -> None:
        self.partition_id = partition_id
        self.name = name
        self.settled_count = 0
        self.failure: Answer[Any] | None = None


def consumer_key(name: str | None, number: int | None, group: str | None) -> bytes:
    """The key of one of: a consumer by name or by number, or a group by name. Raises ClientMistake."""
    given = [each for each in (name, number, group) if each is not None]
    if len(given) != 1:
        raise ClientMistake("whose offset? Give exactly one of name=, id= and group=")
    kind = KEY_GROUP if group is not None else KEY_CONSUMER
    who = given[0]
    if isinstance(who, int):
        if not 0 <= who <= U32_MAX:
            raise ClientMistake(f"a number of a consumer is 0 to {U32_MAX}, not {who}")
        return number_key(kind, who)
    if not isinstance(who, str) or not 1 <= len(who.encode()) <= NAME_SIZE_MAX:
        raise ClientMistake(f"a name has 1 to {NAME_SIZE_MAX} bytes: {who!r}")
    return name_key(kind, who)


def check_offset(offset: int) -> None:
    """Raises InvalidOffset for what is none."""
    if not isinstance(offset, int) or not 0 <= offset <= U64_MAX:
        raise InvalidOffset(f"offset: a number from 0 to 2^64 - 1, not {offset!r}")


def ask(
    port: Port, origin: OffsetOrigin, log_id: int, kind: int, flags: int, argument: int, key: bytes, deadline: float
) -> Reply:
    """Puts an offset request into the lane; the caller waits for the reply, now or at its next visit."""
    reply = Reply(port.reaper, origin)
    body = pack_key(key)
    port.offer(reply, kind, flags, log_id, argument, (body,), len(body), deadline, True)
    return reply


def ask_to_store(
    port: Port, origin: OffsetOrigin, log_id: int, key: bytes, offset: int, *, automatic: bool, deadline: float
) -> Reply:
    """As :func:`ask`. ``automatic``: never lowers what is stored, and is answered without waiting for its policy."""
    check_offset(offset)
    flags = FLAG_AUTOMATIC if automatic else 0
    return ask(port, origin, log_id, REQUEST_STORE_OFFSET, flags, offset, key, deadline)


def get_stored(port: Port, log_id: int, where: str, key: bytes, deadline: float) -> int | None:
    """The stored offset, or None."""
    reply = ask(port, OffsetOrigin(0, where), log_id, REQUEST_GET_OFFSET, 0, 0, key, deadline)
    try:
        return reply.result(deadline - time.monotonic())
    except OutcomeUnknown as error:  # it was to change nothing, so nothing is unknown
        raise WaitTimeout(f"{where}: the stored offset was not told in time") from error
    except NotFound as error:
        if error.number != ErrorCode.CONSUMER_OFFSET_NOT_FOUND:
            raise
        return None


def store(port: Port, log_id: int, where: str, key: bytes, offset: int, deadline: float) -> None:
    """Stores the offset and waits until its policy is met."""
    reply = ask_to_store(port, OffsetOrigin(0, where), log_id, key, offset, automatic=False, deadline=deadline)
    reply.result(deadline - time.monotonic())


def delete_stored(port: Port, log_id: int, where: str, key: bytes, deadline: float) -> None:
    """Forgets the offset and waits until its policy is met. Raises NotFound where there is none."""
    reply = ask(port, OffsetOrigin(0, where), log_id, REQUEST_DELETE_OFFSET, 0, 0, key, deadline)
    reply.result(deadline - time.monotonic())
