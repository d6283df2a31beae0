"""What a decision of the catalog does: records of changes, the same for memory and for the database.

They are applied in order. A ``Put`` is an insert or, for the same id, a replacement.
"""

from __future__ import annotations

from typing import NamedTuple

from shmbroker.core.options import TopicOptions
from shmbroker.core.permissions import Permissions


class StreamPut(NamedTuple):
    """A stream is new or renamed."""

    stream_id: int
    name: str
    created_at_us: int


class StreamRemoved(NamedTuple):
    """A stream is gone; all below it went before, by changes of their own."""

    stream_id: int


class TopicPut(NamedTuple):
    """A topic is new, renamed, has other options, or has issued a group id."""

    stream_id: int
    topic_id: int
    name: str
    created_at_us: int
    options: TopicOptions
    next_group_id: int


class TopicRemoved(NamedTuple):
    """A topic is gone; all below it went before."""

    stream_id: int
    topic_id: int


class PartitionPut(NamedTuple):
    """A partition is new."""

    stream_id: int
    topic_id: int
    partition_id: int
    log_id: int
    created_at_us: int


class PartitionRemoved(NamedTuple):
    """A partition is gone: its log is buried until LogGone."""

    stream_id: int
    topic_id: int
    partition_id: int
    log_id: int


class GroupPut(NamedTuple):
    """A consumer group is new."""

    stream_id: int
    topic_id: int
    group_id: int
    name: str


class GroupRemoved(NamedTuple):
    """A consumer group is gone."""

    stream_id: int
    topic_id: int
    group_id: int


class LogGone(NamedTuple):
    """The files of a buried log are gone."""

    log_id: int


class UserPut(NamedTuple):
    """A user is new, or anything about it but its tokens is."""

    user_id: int
    name: str
    password_hash: str
    is_active: bool
    permissions: Permissions | None
    created_at_us: int

    def __repr__(self) -> str:
        """Without the hash."""
        return f"UserPut({self.user_id}, {self.name!r}, {self.is_active}, {self.permissions}, {self.created_at_us})"


class UserRemoved(NamedTuple):
    """A user is gone; the tokens went before."""

    user_id: int


class TokenPut(NamedTuple):
    """A personal access token is new. ``expires_at_us`` 0: never."""

    user_id: int
    name: str
    digest: bytes
    expires_at_us: int

    def __repr__(self) -> str:
        """Without the hash."""
        return f"TokenPut({self.user_id}, {self.name!r}, {self.expires_at_us})"


class TokenRemoved(NamedTuple):
    """A personal access token is gone."""

    user_id: int
    name: str


UserChange = UserPut | UserRemoved | TokenPut | TokenRemoved
Change = (
    StreamPut
    | StreamRemoved
    | TopicPut
    | TopicRemoved
    | PartitionPut
    | PartitionRemoved
    | GroupPut
    | GroupRemoved
    | LogGone
    | UserPut
    | UserRemoved
    | TokenPut
    | TokenRemoved
)
