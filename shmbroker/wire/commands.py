"""All commands in one table: bodies to requests and replies, and back. A body that is not right is an error number.

What a reply is, as a value: ``None`` where its body is empty ("done", or "there is none"); a tuple of entries for the
lists that have no count (users, clients, tokens, streams, groups); else the dataclass named in REPLIES.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from shmbroker.errors import ErrorCode
from shmbroker.wire import groups, local, messages, offsets, streams, system, topics, users
from shmbroker.wire.bodies import Reply, Request
from shmbroker.wire.codes import Code
from shmbroker.wire.primitives import Malformed, Reader

__all__ = ["Reply", "Request", "decode_reply", "decode_request", "encode_reply"]

_MODULES: Final = (system, users, streams, topics, messages, offsets, groups, local)
_REQUESTS: Final[dict[int, Callable[[Reader], Request]]] = {
    request.CODE: request.decode for module in _MODULES for request in module.REQUESTS
}
REPLIES: Final[dict[int, Callable[[Reader], Reply]]] = {
    Code.GET_STATS: system.StatsBody.decode,
    Code.GET_SNAPSHOT: system.SnapshotReply.decode,
    Code.GET_CLUSTER_METADATA: system.ClusterMetadata.decode,
    Code.DESCRIBE_OPTIONS: system.OptionsCatalogue.decode,
    Code.GET_ME: system.ClientDetails.decode,
    Code.GET_CLIENT: system.ClientDetails.decode,
    Code.GET_USER: users.UserDetails.decode,
    Code.CREATE_USER: users.UserDetails.decode,
    Code.LOGIN: users.LoginReply.decode,
    Code.LOGIN_WITH_TOKEN: users.LoginReply.decode,
    Code.CREATE_TOKEN: users.TokenReply.decode,
    Code.POLL_MESSAGES: messages.PollReply.decode,
    Code.SEND_MESSAGES: messages.SendReply.decode,
    Code.GET_CONSUMER_OFFSET: offsets.ConsumerOffset.decode,
    Code.GET_STREAM: streams.StreamDetails.decode,
    Code.CREATE_STREAM: streams.StreamEntry.decode,
    Code.GET_TOPIC: topics.TopicDetails.decode,
    Code.GET_TOPICS: topics.TopicList.decode,
    Code.CREATE_TOPIC: topics.TopicDetails.decode,
    Code.GET_GROUP: groups.GroupDetails.decode,
    Code.CREATE_GROUP: groups.GroupDetails.decode,
    Code.SYNC_GROUP: groups.Assignment.decode,
    **{code: reply.decode for code, reply in local.REPLIES.items()},
}
LISTS: Final[dict[int, Callable[[Reader], Reply]]] = {
    Code.GET_CLIENTS: system.ClientEntry.decode,
    Code.GET_USERS: users.UserEntry.decode,
    Code.GET_TOKENS: users.TokenEntry.decode,
    Code.GET_STREAMS: streams.StreamEntry.decode,
    Code.GET_GROUPS: groups.GroupEntry.decode,
}
EMPTY_ALLOWED: Final = frozenset(
    {
        Code.GET_CLIENT,
        Code.GET_USER,
        Code.GET_CONSUMER_OFFSET,
        Code.GET_STREAM,
        Code.GET_TOPIC,
        Code.GET_TOPICS,
        Code.GET_GROUP,
        Code.SYNC_GROUP,
    }
)
"""Commands of REPLIES whose reply may be empty: there is no such thing."""


def decode_request(code: int, body: bytes | memoryview) -> Request | ErrorCode:
    """The request in a body, taken exactly; else the error to refuse it with. Holds on to ``body`` for batches only."""
    try:
        if code in (Code.LOGIN, Code.LOGIN_WITH_TOKEN):
            return users.decode_login(body)
        decode = _REQUESTS.get(code)
        if decode is None:
            return ErrorCode.INVALID_COMMAND
        reader = Reader(body)
        request = decode(reader)
        reader.finish()
    except Malformed as malformed:
        return malformed.code
    return request


def encode_reply(value: Reply | Sequence[Reply] | None) -> bytes:
    """The body of a reply, without the result section. None: empty."""
    if value is None:
        return b""
    if isinstance(value, Sequence):
        return b"".join(entry.encode() for entry in value)
    return value.encode()


def decode_reply(code: int, body: bytes | memoryview) -> Reply | tuple[Reply, ...] | ErrorCode | None:
    """The value in the body of a success, its result section taken off; INVALID_COMMAND where it is not one."""
    reader = Reader(body)
    try:
        if (decode_entry := LISTS.get(code)) is not None:
            entries: list[Reply] = []
            while reader.remaining:
                entries.append(decode_entry(reader))
            return tuple(entries)
        decode = REPLIES.get(code)
        if decode is None or (code in EMPTY_ALLOWED and not len(body)):
            reader.finish()
            return None
        value = decode(reader)
        reader.finish()
    except Malformed:
        return ErrorCode.INVALID_COMMAND
    return value
