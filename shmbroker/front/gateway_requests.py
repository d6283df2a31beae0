"""What the HTTP gateway asks of the front: whose credentials these are, and commands in the name of a user.

Only a local client of the broker's own user gets an answer: it could be root anyway. A user is named by id and time of
creation, since ids are used again. What needs a connection of the user's own is not for AS_USER: logins, memberships,
lanes.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from shmbroker.core.users import User
from shmbroker.errors import ClientMistake, ErrorCode, Unauthenticated, Unauthorized, error_from
from shmbroker.front.authorise import NEEDED, WITH_STREAM, authorise_user
from shmbroker.front.handlers_catalog import Handler
from shmbroker.front.handlers_local import open_partition
from shmbroker.front.reply import Gathered, WithDescriptors
from shmbroker.wire import local
from shmbroker.wire.codes import Code
from shmbroker.wire.commands import decode_request, encode_reply
from shmbroker.wire.local import LocalCode

if TYPE_CHECKING:
    from shmbroker.front.broker import Broker
    from shmbroker.front.local_session import LocalSession
    from shmbroker.front.session import Session

NOT_AS_USER: Final = frozenset(
    {
        Code.LOGIN,
        Code.LOGIN_WITH_TOKEN,
        Code.LOGOUT,
        Code.JOIN_GROUP,
        Code.LEAVE_GROUP,
        Code.SYNC_GROUP,
        *(set(LocalCode) - {LocalCode.LOGS}),
    }
)

CODE_OF_RIGHT: Final = {
    "append": Code.SEND_MESSAGES,
    "read": Code.POLL_MESSAGES,
    "offsets": Code.STORE_CONSUMER_OFFSET,
}
"""The command whose permission a right asks for."""


async def authenticate(session: Session, request: local.Authenticate) -> local.AuthenticateReply:
    _check_owner(session)
    logins = session.broker.logins
    if request.token is not None and request.username is None and request.password is None:
        user, token = await logins.by_token(request.token, request.address)
        return _reply(user, token.expires_at_us or None)
    if request.token is None and request.username is not None and request.password is not None:
        return _reply(await logins.by_password(request.username, request.password, request.address), None)
    raise ClientMistake("username and password, or token")


async def check_user(session: Session, request: local.CheckUser) -> local.Done:
    _check_owner(session)
    user = _user_of(session.broker, request.user_id, request.created_at_us)
    if NEEDED.get(request.code) not in WITH_STREAM:
        raise ClientMistake(f"command {request.code} is not about a stream or topic")
    authorise_user(session.broker.keeper.catalog, user, request.code, request)
    return local.Done()


async def open_partition_as(session: LocalSession, request: local.OpenPartitionAs) -> local.OpenPartitionReply:
    """First whether the user may: who may not learns nothing about what there is."""
    _check_owner(session)
    user = _user_of(session.broker, request.user_id, request.created_at_us)
    for right in request.rights:
        authorise_user(session.broker.keeper.catalog, user, CODE_OF_RIGHT[right], request)
    asked = local.OpenPartition(request.stream, request.topic, request.partition, request.rights)
    return await open_partition(session, asked)


def as_user(handlers: Mapping[int, Handler]) -> Handler:
    """The handler of AS_USER, which calls one of these."""

    async def handle(session: Session, request: local.AsUser) -> local.AsUserReply:
        _check_owner(session)
        user = _user_of(session.broker, request.user_id, request.created_at_us)
        handler = handlers.get(request.code)
        if handler is None or request.code in NOT_AS_USER:
            raise ClientMistake(f"command {request.code} is not one that a user's name can be lent to")
        try:
            inner = decode_request(request.code, base64.b64decode(request.body, validate=True))
        except binascii.Error as error:
            raise ClientMistake(f"the body is not base64: {error}") from None
        if isinstance(inner, ErrorCode):
            raise error_from(inner)
        authorise_user(session.broker.keeper.catalog, user, request.code, inner)
        body = _body_of(await handler(session.acting_for(user), inner))
        return local.AsUserReply(base64.b64encode(body).decode())

    return handle


def _body_of(value: Any) -> bytes:
    assert not isinstance(value, WithDescriptors)
    return b"".join(value.pieces) if isinstance(value, Gathered) else encode_reply(value)


def _reply(user: User, expires_at_us: int | None) -> local.AuthenticateReply:
    return local.AuthenticateReply(user.user_id, user.created_at_us, user.name, expires_at_us)


def _check_owner(session: Session) -> None:
    if not session.is_owner:
        raise Unauthorized("only the broker's own user may speak for others")


def _user_of(broker: Broker, user_id: int, created_at_us: int) -> User:
    found = broker.keeper.catalog.users.find(user_id)
    if found is None or found.created_at_us != created_at_us or not found.is_active:
        raise Unauthenticated("the user is gone, or inactive")
    return found


HANDLERS: dict[int, Handler] = {
    LocalCode.AUTHENTICATE: authenticate,
    LocalCode.CHECK_USER: check_user,
    LocalCode.OPEN_PARTITION_AS: open_partition_as,
}
