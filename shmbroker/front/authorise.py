"""Which permission each command needs: one table, asked before every handler.

Anybody may ping and log in. The root user may do everything; local clients of the broker's own user are root. For all
others the flags decide (``core.permissions``); a stream or topic that does not exist is refused like one that is
forbidden, unless a flag for everything shows that nothing is given away. A session sees changes to its user at once:
one whose user is deleted may do nothing more. A command that is in no table here is for root alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from shmbroker.core.catalog import Catalog
from shmbroker.core.permissions import Action
from shmbroker.core.users import User
from shmbroker.errors import ErrorCode, Unauthenticated, Unauthorized
from shmbroker.wire.codes import Code
from shmbroker.wire.local import LocalCode

if TYPE_CHECKING:
    from shmbroker.front.session import Session

ANYBODY: Final = frozenset({Code.PING, Code.LOGIN, Code.LOGIN_WITH_TOKEN, LocalCode.HELLO})
"""Before a login, too."""
ANY_USER: Final = frozenset(
    {
        Code.LOGOUT,
        Code.GET_ME,
        Code.GET_TOKENS,
        Code.CREATE_TOKEN,
        Code.DELETE_TOKEN,
        Code.DESCRIBE_OPTIONS,
        Code.GET_CLUSTER_METADATA,
        Code.SYNC_GROUP,
        LocalCode.OPEN_LANE,
        LocalCode.CLOSE_LANE,
        LocalCode.CONFIRM,
        LocalCode.WATCH,
        LocalCode.UNWATCH,
    }
)
"""Lanes and watches are of use only for partitions that were opened, which is another command."""
NEEDED: Final[dict[int, Action]] = {
    Code.GET_STATS: Action.READ_SERVERS,
    Code.GET_SNAPSHOT: Action.READ_SERVERS,
    Code.GET_CLIENT: Action.READ_SERVERS,
    Code.GET_CLIENTS: Action.READ_SERVERS,
    LocalCode.STATS: Action.READ_SERVERS,
    LocalCode.LOGS: Action.READ_SERVERS,
    LocalCode.COMMIT_GROUP: Action.POLL,
    Code.GET_USER: Action.READ_USERS,
    Code.GET_USERS: Action.READ_USERS,
    Code.CREATE_USER: Action.MANAGE_USERS,
    Code.DELETE_USER: Action.MANAGE_USERS,
    Code.UPDATE_USER: Action.MANAGE_USERS,
    Code.UPDATE_PERMISSIONS: Action.MANAGE_USERS,
    Code.CHANGE_PASSWORD: Action.MANAGE_USERS,
    Code.GET_STREAMS: Action.READ_STREAMS,
    Code.GET_STREAM: Action.READ_STREAM,
    Code.CREATE_STREAM: Action.CREATE_STREAM,
    Code.UPDATE_STREAM: Action.MANAGE_STREAM,
    Code.DELETE_STREAM: Action.MANAGE_STREAM,
    Code.PURGE_STREAM: Action.MANAGE_STREAM,
    Code.GET_TOPICS: Action.READ_TOPICS,
    Code.GET_TOPIC: Action.READ_TOPIC,
    Code.CREATE_TOPIC: Action.CREATE_TOPIC,
    Code.UPDATE_TOPIC: Action.MANAGE_TOPIC,
    Code.DELETE_TOPIC: Action.MANAGE_TOPIC,
    Code.PURGE_TOPIC: Action.MANAGE_TOPIC,
    Code.CREATE_PARTITIONS: Action.MANAGE_TOPIC,
    Code.DELETE_PARTITIONS: Action.MANAGE_TOPIC,
    Code.DELETE_SEGMENTS: Action.MANAGE_TOPIC,
    Code.GET_GROUP: Action.READ_TOPIC,
    Code.GET_GROUPS: Action.READ_TOPIC,
    Code.CREATE_GROUP: Action.READ_TOPIC,
    Code.DELETE_GROUP: Action.READ_TOPIC,
    Code.JOIN_GROUP: Action.READ_TOPIC,
    Code.LEAVE_GROUP: Action.READ_TOPIC,
    Code.POLL_MESSAGES: Action.POLL,
    Code.GET_CONSUMER_OFFSET: Action.POLL,
    Code.STORE_CONSUMER_OFFSET: Action.POLL,
    Code.DELETE_CONSUMER_OFFSET: Action.POLL,
    Code.SEND_MESSAGES: Action.SEND,
    Code.FLUSH_UNSAVED_BUFFER: Action.SEND,
}
WITH_TOPIC: Final = frozenset({Action.READ_TOPIC, Action.MANAGE_TOPIC, Action.POLL, Action.SEND})
WITH_STREAM: Final = WITH_TOPIC | {
    Action.READ_STREAM,
    Action.MANAGE_STREAM,
    Action.READ_TOPICS,
    Action.CREATE_TOPIC,
}
"""Actions on a stream, and those of them on a topic."""
OWN: Final = frozenset({Code.GET_USER, Code.CHANGE_PASSWORD})
"""What a user may do about itself without any permission."""
RIGHT_ACTIONS: Final[dict[str, Action]] = {"append": Action.SEND, "read": Action.POLL, "offsets": Action.POLL}
"""What each right of OPEN_PARTITION needs."""


def authorise(session: Session, code: int, request: object) -> None:
    """Raises Unauthenticated (40), Unauthorized (41; 47 for an inactive user) unless the session may do that."""
    if code in ANYBODY:
        return
    user = session.user
    if user is None:
        raise Unauthenticated("log in first")
    authorise_user(session.broker.keeper.catalog, user, code, request)


def authorise_user(catalog: Catalog, user: User, code: int, request: Any) -> None:
    """As :func:`authorise`, for a user."""
    if user.is_root:
        return
    if not catalog.users.holds(user):
        raise Unauthorized(f"user {user.name!r} has been deleted")
    if not user.is_active:
        raise Unauthorized(f"user {user.name!r} is inactive", number=ErrorCode.USER_INACTIVE)
    if code in ANY_USER or (code in OWN and catalog.users.find(request.user) is user):
        return
    if code == LocalCode.OPEN_PARTITION:
        for right in request.rights:
            check(catalog, user, RIGHT_ACTIONS[right], request)
        return
    action = NEEDED.get(code)
    if action is None:
        raise Unauthorized(f"user {user.name!r} may not do that: it is for the root user")
    check(catalog, user, action, request)


def check(catalog: Catalog, user: User, action: Action, request: Any) -> None:
    """Raises 41 unless ``user`` may do ``action`` to the stream and topic that ``request`` names."""
    stream = catalog.find_stream(request.stream) if action in WITH_STREAM else None
    stream_id = None if stream is None else stream.stream_id
    topic_id = None
    if stream is not None and action in WITH_TOPIC:
        topic = catalog.find_topic(stream.stream_id, request.topic)
        topic_id = None if topic is None else topic.topic_id
    if not user.grants.allow(action, stream_id, topic_id):
        raise Unauthorized(f"user {user.name!r} has no permission to {action.value}")
