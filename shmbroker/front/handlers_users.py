"""Users, their permissions and their tokens. Who may ask for it has been decided before (``front.authorise``).

Passwords are hashed before the catalog is locked, since that takes time, and the decision is taken after. Neither a
password nor a token is kept, nor said again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from shmbroker.core.options import OptionValue
from shmbroker.core.users import User
from shmbroker.errors import Unauthenticated, UnsupportedOption
from shmbroker.front.handlers_catalog import Handler, now_us
from shmbroker.front.login import LoginRefused, new_token, token_digest
from shmbroker.wire import users
from shmbroker.wire.codes import Code

if TYPE_CHECKING:
    from shmbroker.front.session import Session


def user_entry(user: User) -> users.UserEntry:
    status = users.STATUS_ACTIVE if user.is_active else users.STATUS_INACTIVE
    return users.UserEntry(user.user_id, user.created_at_us, status, user.name)


def user_details(user: User) -> users.UserDetails:
    return users.UserDetails(user_entry(user), user.permissions)


# --- users ------------------------------------------------------------------------------------------------------------
async def get_user(session: Session, request: users.GetUser) -> users.UserDetails | None:
    found = session.broker.keeper.catalog.users.find(request.user)
    return None if found is None else user_details(found)


async def get_users(session: Session, request: users.GetUsers) -> list[users.UserEntry]:
    return [user_entry(user) for user in session.broker.keeper.catalog.users]


async def create_user(session: Session, request: users.CreateUser) -> users.UserDetails:
    _refuse_options(request.options)
    keeper = session.broker.keeper
    known = keeper.catalog.users
    known.check_name(request.username)
    password_hash = await session.broker.logins.hash(request.password)
    async with keeper.lock:
        is_active = request.status == users.STATUS_ACTIVE
        await keeper.commit(known.create(request.username, password_hash, is_active, request.permissions, now_us()))
        return user_details(known.get(request.username))


async def delete_user(session: Session, request: users.DeleteUser) -> None:
    keeper = session.broker.keeper
    async with keeper.lock:
        await keeper.commit(keeper.catalog.users.delete(request.user))


async def update_user(session: Session, request: users.UpdateUser) -> None:
    _refuse_options(request.options)
    keeper = session.broker.keeper
    is_active = None if request.status is None else request.status == users.STATUS_ACTIVE
    async with keeper.lock:
        await keeper.commit(keeper.catalog.users.update(request.user, request.username, is_active))


async def update_permissions(session: Session, request: users.UpdatePermissions) -> None:
    keeper = session.broker.keeper
    async with keeper.lock:
        await keeper.commit(keeper.catalog.users.update_permissions(request.user, request.permissions))


async def change_password(session: Session, request: users.ChangePassword) -> None:
    """The current password is asked of everybody but the owner of the broker's files, who may have lost it."""
    broker = session.broker
    known = broker.keeper.catalog.users
    user = known.get(request.user)
    held = user.password_hash
    if not (session.is_owner and session.user is not None and session.user.is_root):
        held = await broker.logins.check_current(user, request.current, session.address)
    password_hash = await broker.logins.hash(request.new)
    async with broker.keeper.lock:
        if not known.holds(user) or user.password_hash != held:
            raise LoginRefused("the current password is another")
        await broker.keeper.commit(known.change_password(user.user_id, password_hash))


# --- tokens -----------------------------------------------------------------------------------------------------------
async def get_tokens(session: Session, request: users.GetTokens) -> Sequence[users.TokenEntry]:
    return [users.TokenEntry(token.name, token.expires_at_us) for token in _user_of(session).tokens.values()]


async def create_token(session: Session, request: users.CreateToken) -> users.TokenReply:
    keeper = session.broker.keeper
    token = new_token()
    async with keeper.lock:
        user, digest = _user_of(session), token_digest(token)
        changes = keeper.catalog.users.create_token(user, request.name, digest, request.expiry_us, now_us())
        await keeper.commit(changes)
    return users.TokenReply(token)


async def delete_token(session: Session, request: users.DeleteToken) -> None:
    keeper = session.broker.keeper
    async with keeper.lock:
        await keeper.commit(keeper.catalog.users.delete_token(_user_of(session), request.name))


def _user_of(session: Session) -> User:
    """Whose session it is, still."""
    user = session.user
    if user is None or not session.broker.keeper.catalog.users.holds(user):
        raise Unauthenticated("log in first")
    return user


def _refuse_options(options: Sequence[OptionValue]) -> None:
    if options:
        raise UnsupportedOption(f"users have no options; {options[0].key!r} is not known")


HANDLERS: dict[int, Handler] = {
    Code.GET_USER: get_user,
    Code.GET_USERS: get_users,
    Code.CREATE_USER: create_user,
    Code.DELETE_USER: delete_user,
    Code.UPDATE_USER: update_user,
    Code.UPDATE_PERMISSIONS: update_permissions,
    Code.CHANGE_PASSWORD: change_password,
    Code.GET_TOKENS: get_tokens,
    Code.CREATE_TOKEN: create_token,
    Code.DELETE_TOKEN: delete_token,
}
