"""Every command of the protocol: its code, the operation that carries it, and how its frames behave.

- operation 2 carries the code in the header; every other operation stands for its command alone.
- framed: the reply's body starts with a result section.
- checksummed: the request's header carries xxh3_64 of its body.
- numbered: the request uses up a request number.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from shmbroker.wire.frame import OPERATION_LOGIN, OPERATION_LOGOUT, OPERATION_PLAIN
from shmbroker.wire.local import LocalCode


class Code(IntEnum):
    """Command codes of Iggy."""

    PING = 1
    GET_STATS = 10
    GET_SNAPSHOT = 11
    GET_CLUSTER_METADATA = 12
    DESCRIBE_OPTIONS = 13
    GET_ME = 20
    GET_CLIENT = 21
    GET_CLIENTS = 22
    GET_USER = 31
    GET_USERS = 32
    CREATE_USER = 33
    DELETE_USER = 34
    UPDATE_USER = 35
    UPDATE_PERMISSIONS = 36
    CHANGE_PASSWORD = 37
    LOGOUT = 39
    LOGIN = 40
    GET_TOKENS = 41
    CREATE_TOKEN = 42
    DELETE_TOKEN = 43
    LOGIN_WITH_TOKEN = 45
    POLL_MESSAGES = 100
    SEND_MESSAGES = 101
    FLUSH_UNSAVED_BUFFER = 102
    GET_CONSUMER_OFFSET = 120
    STORE_CONSUMER_OFFSET = 121
    DELETE_CONSUMER_OFFSET = 122
    GET_STREAM = 200
    GET_STREAMS = 201
    CREATE_STREAM = 202
    DELETE_STREAM = 203
    UPDATE_STREAM = 204
    PURGE_STREAM = 205
    GET_TOPIC = 300
    GET_TOPICS = 301
    CREATE_TOPIC = 302
    DELETE_TOPIC = 303
    UPDATE_TOPIC = 304
    PURGE_TOPIC = 305
    CREATE_PARTITIONS = 402
    DELETE_PARTITIONS = 403
    DELETE_SEGMENTS = 503
    GET_GROUP = 600
    GET_GROUPS = 601
    CREATE_GROUP = 602
    DELETE_GROUP = 603
    JOIN_GROUP = 604
    LEAVE_GROUP = 605
    SYNC_GROUP = 606


class CommandSpec(NamedTuple):
    """How one command travels."""

    code: int
    operation: int
    framed: bool
    checksummed: bool
    numbered: bool


def _metadata(code: Code, operation: int) -> CommandSpec:
    return CommandSpec(code, operation, framed=True, checksummed=True, numbered=True)


_SPECIAL: Final = (
    CommandSpec(Code.LOGIN, OPERATION_LOGIN, framed=True, checksummed=True, numbered=False),
    CommandSpec(Code.LOGOUT, OPERATION_LOGOUT, framed=False, checksummed=True, numbered=True),
    _metadata(Code.CREATE_STREAM, 128),
    _metadata(Code.UPDATE_STREAM, 129),
    _metadata(Code.DELETE_STREAM, 130),
    _metadata(Code.PURGE_STREAM, 131),
    _metadata(Code.CREATE_TOPIC, 132),
    _metadata(Code.UPDATE_TOPIC, 133),
    _metadata(Code.DELETE_TOPIC, 134),
    _metadata(Code.PURGE_TOPIC, 135),
    _metadata(Code.CREATE_PARTITIONS, 136),
    _metadata(Code.DELETE_PARTITIONS, 137),
    CommandSpec(Code.DELETE_SEGMENTS, 138, framed=False, checksummed=True, numbered=True),
    _metadata(Code.CREATE_GROUP, 139),
    _metadata(Code.DELETE_GROUP, 140),
    _metadata(Code.CREATE_USER, 141),
    _metadata(Code.UPDATE_USER, 142),
    _metadata(Code.DELETE_USER, 143),
    _metadata(Code.CHANGE_PASSWORD, 144),
    _metadata(Code.UPDATE_PERMISSIONS, 145),
    _metadata(Code.CREATE_TOKEN, 146),
    _metadata(Code.DELETE_TOKEN, 147),
    _metadata(Code.JOIN_GROUP, 148),
    _metadata(Code.LEAVE_GROUP, 149),
    CommandSpec(Code.SEND_MESSAGES, 160, framed=False, checksummed=False, numbered=True),
    CommandSpec(Code.STORE_CONSUMER_OFFSET, 161, framed=True, checksummed=False, numbered=True),
    CommandSpec(Code.DELETE_CONSUMER_OFFSET, 162, framed=True, checksummed=False, numbered=True),
)
_LOGIN_WITH_TOKEN: Final = _SPECIAL[0]._replace(code=Code.LOGIN_WITH_TOKEN)

BY_OPERATION: Final[dict[int, CommandSpec]] = {spec.operation: spec for spec in _SPECIAL}
"""Commands that an operation stands for. Both logins are operation 1: the body tells them apart."""
_WITH_OPERATION: Final[dict[int, CommandSpec]] = {spec.code: spec for spec in (*_SPECIAL, _LOGIN_WITH_TOKEN)}
PLAIN: Final[dict[int, CommandSpec]] = {
    int(code): CommandSpec(code, OPERATION_PLAIN, framed=False, checksummed=False, numbered=False)
    for code in (*Code, *LocalCode)
    if code not in _WITH_OPERATION
}
"""Commands that operation 2 carries."""
BY_CODE: Final[dict[int, CommandSpec]] = {**PLAIN, **_WITH_OPERATION}

assert len(BY_CODE) == len(Code) + len(LocalCode)
assert len(BY_OPERATION) == len(_SPECIAL)
