"""Logins, users, personal access tokens."""

from __future__ import annotations

from fastapi import APIRouter, Request

from shmbroker.errors import ErrorCode
from shmbroker.gateway import shapes
from shmbroker.gateway.access import Identity
from shmbroker.gateway.bodies import (
    STATUSES,
    ChangePasswordBody,
    CreateTokenBody,
    CreateUserBody,
    LoginBody,
    TokenBody,
    UpdatePermissionsBody,
    UpdateUserBody,
)
from shmbroker.gateway.caller import (
    Deadline,
    Gateway,
    Reader,
    Shared,
    UserId,
    Writer,
    authenticate,
    identifier,
    peer_of,
)
from shmbroker.gateway.faults import refused
from shmbroker.wire import local, users

router = APIRouter(tags=["users"])


# --- logins -----------------------------------------------------------------------------------------------------------
@router.post("/users/login")
async def login(body: LoginBody, request: Request, gateway: Shared, deadline: Deadline) -> shapes.LoginInfo:
    """By name and password. Attempts are limited for each address."""
    return await _log_in(gateway, local.Authenticate(body.username, body.password, None, peer_of(request)), deadline)


@router.post("/personal-access-tokens/login")
async def login_with_token(body: TokenBody, request: Request, gateway: Shared, deadline: Deadline) -> shapes.LoginInfo:
    """By a personal access token."""
    return await _log_in(gateway, local.Authenticate(None, None, body.token, peer_of(request)), deadline)


@router.post("/users/refresh-token")
async def refresh_token(body: TokenBody, gateway: Shared) -> shapes.LoginInfo:
    """A new access token for one that is still valid, which is revoked."""
    user = gateway.access.read(body.token)
    gateway.access.revoke(body.token)
    return shapes.LoginInfo.of(user.user_id, gateway.access.issue(user))


@router.delete("/users/logout", status_code=204)
async def logout(caller: Reader) -> None:
    """Revokes the access token. A personal one stays: delete it instead."""
    if caller.token.count(".") == 2:
        caller.gateway.access.revoke(caller.token)


async def _log_in(gateway: Gateway, request: local.Authenticate, deadline: float) -> shapes.LoginInfo:
    who = await authenticate(gateway, request, deadline)
    return shapes.LoginInfo.of(who.user_id, gateway.access.issue(Identity(who.user_id, who.created_at_us)))


# --- users ------------------------------------------------------------------------------------------------------------
@router.get("/users")
async def get_users(caller: Reader) -> list[shapes.UserInfo]:
    """All users."""
    return [shapes.UserInfo.of(entry) for entry in await caller.command(users.GetUsers())]


@router.post("/users")
async def create_user(body: CreateUserBody, caller: Writer) -> shapes.UserInfoDetails:
    """A new user."""
    permissions = None if body.permissions is None else body.permissions.to_wire()
    request = users.CreateUser(body.username, body.password, STATUSES[body.status], permissions)
    return shapes.UserInfoDetails.of_details(await caller.command(request))


@router.get("/users/{user_id}")
async def get_user(user_id: UserId, caller: Reader) -> shapes.UserInfoDetails:
    """One user with its permissions."""
    found = await caller.command(users.GetUser(identifier(user_id)))
    if found is None:
        raise refused(ErrorCode.RESOURCE_NOT_FOUND, f"there is no user {user_id}")
    return shapes.UserInfoDetails.of_details(found)


@router.put("/users/{user_id}", status_code=204)
async def update_user(user_id: UserId, body: UpdateUserBody, caller: Writer) -> None:
    """Another name or status."""
    status = None if body.status is None else STATUSES[body.status]
    await caller.command(users.UpdateUser(identifier(user_id), body.username, status))


@router.delete("/users/{user_id}", status_code=204)
async def delete_user(user_id: UserId, caller: Writer) -> None:
    """Removes a user with its tokens. The root user stays."""
    await caller.command(users.DeleteUser(identifier(user_id)))


@router.put("/users/{user_id}/password", status_code=204)
async def change_password(user_id: UserId, body: ChangePasswordBody, caller: Writer) -> None:
    """Access tokens that were given out stay valid."""
    request = users.ChangePassword(identifier(user_id), body.current_password, body.new_password)
    await caller.command(request)


@router.put("/users/{user_id}/permissions", status_code=204)
async def update_permissions(user_id: UserId, body: UpdatePermissionsBody, caller: Writer) -> None:
    """Replaces all permissions."""
    permissions = None if body.permissions is None else body.permissions.to_wire()
    await caller.command(users.UpdatePermissions(identifier(user_id), permissions))


# --- personal access tokens -------------------------------------------------------------------------------------------
@router.get("/personal-access-tokens")
async def get_tokens(caller: Reader) -> list[shapes.PersonalToken]:
    """The caller's own."""
    return [shapes.PersonalToken.of(entry) for entry in await caller.command(users.GetTokens())]


@router.post("/personal-access-tokens")
async def create_token(body: CreateTokenBody, caller: Writer) -> shapes.RawToken:
    """A new token of the caller, shown this once."""
    reply = await caller.command(users.CreateToken(body.name, body.expiry or 0))
    return shapes.RawToken(token=reply.token)


@router.delete("/personal-access-tokens/{name}", status_code=204)
async def delete_token(name: str, caller: Writer) -> None:
    """Removes one of the caller's own."""
    await caller.command(users.DeleteToken(name))
