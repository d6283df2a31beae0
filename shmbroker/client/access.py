"""Who may do what, as a client administers it: users, their permissions and passwords, and their tokens. Keeps nothing.

A user is named by number or name; one that is not there raises NotFound. Secrets pass through, and are kept nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self

from shmbroker.core.permissions import Permissions
from shmbroker.errors import ErrorCode, error_from
from shmbroker.limits import U64_MAX
from shmbroker.wire import users
from shmbroker.wire.bodies import Request
from shmbroker.wire.primitives import Identifier

TIMEOUT_S = 30.0
Seconds = float | None


@dataclass(frozen=True, slots=True)
class UserDescription:
    id: int
    name: str
    is_active: bool
    created_at_us: int
    permissions: Permissions | None
    """None in a list of users: get one user to see them. None there: nothing but its own affairs."""

    @classmethod
    def of(cls, entry: users.UserEntry, permissions: Permissions | None = None) -> Self:
        is_active = entry.status == users.STATUS_ACTIVE
        return cls(entry.user_id, entry.username, is_active, entry.created_at_us, permissions)


@dataclass(frozen=True, slots=True)
class TokenDescription:
    name: str
    expires_at_us: int | None
    """Microseconds since 1970; None: never."""


class AccessAdministration:
    """The part of a client about users and tokens."""

    def _request(self, request: Request, timeout: Seconds) -> Any:
        raise NotImplementedError

    # --- users -------------------------------------------------------------------------------------------------------
    def create_user(
        self,
        username: str,
        password: str,
        *,
        active: bool = True,
        permissions: Permissions | None = None,
        timeout: Seconds = TIMEOUT_S,
    ) -> UserDescription:
        """A new user; without permissions it may log in, and see to its own password and tokens. AlreadyExists."""
        status = users.STATUS_ACTIVE if active else users.STATUS_INACTIVE
        created = self._request(users.CreateUser(username, password, status, permissions), timeout)
        return UserDescription.of(created.user, created.permissions)

    def get_user(self, user: Identifier, *, timeout: Seconds = TIMEOUT_S) -> UserDescription:
        """One user with its permissions."""
        found = self._request(users.GetUser(user), timeout)
        if found is None:
            raise error_from(ErrorCode.RESOURCE_NOT_FOUND, f"there is no user {user}")
        return UserDescription.of(found.user, found.permissions)

    def list_users(self, *, timeout: Seconds = TIMEOUT_S) -> list[UserDescription]:
        """All users, without their permissions."""
        return [UserDescription.of(entry) for entry in self._request(users.GetUsers(), timeout) or ()]

    def update_user(
        self, user: Identifier, *, name: str | None = None, active: bool | None = None, timeout: Seconds = TIMEOUT_S
    ) -> None:
        """Another name, or another status: who is not active cannot log in. What is not given stays."""
        status = None if active is None else users.STATUS_ACTIVE if active else users.STATUS_INACTIVE
        self._request(users.UpdateUser(user, name, status), timeout)

    def delete_user(self, user: Identifier, *, timeout: Seconds = TIMEOUT_S) -> None:
        """Removes it with its tokens. Its sessions are refused from then on."""
        self._request(users.DeleteUser(user), timeout)

    def update_permissions(
        self, user: Identifier, permissions: Permissions | None, *, timeout: Seconds = TIMEOUT_S
    ) -> None:
        """Gives it these instead of those that it has; live sessions follow."""
        self._request(users.UpdatePermissions(user, permissions), timeout)

    def change_password(self, user: Identifier, current: str, new: str, *, timeout: Seconds = TIMEOUT_S) -> None:
        """Raises Unauthorized (number 42) where ``current`` is not its password."""
        self._request(users.ChangePassword(user, current, new), timeout)

    # --- tokens ------------------------------------------------------------------------------------------------------
    def create_token(self, name: str, *, expiry: timedelta | None = None, timeout: Seconds = TIMEOUT_S) -> str:
        """A new token of the user who is logged in; ``expiry`` None: it lasts until it is deleted. Said only now."""
        expiry_us = U64_MAX if expiry is None else expiry // timedelta(microseconds=1)
        reply = self._request(users.CreateToken(name, expiry_us), timeout)
        token: str = reply.token
        return token

    def list_tokens(self, *, timeout: Seconds = TIMEOUT_S) -> list[TokenDescription]:
        """The tokens of the user who is logged in."""
        entries = self._request(users.GetTokens(), timeout) or ()
        return [TokenDescription(entry.name, entry.expires_at_us or None) for entry in entries]

    def delete_token(self, name: str, *, timeout: Seconds = TIMEOUT_S) -> None:
        """Nobody can log in with it any more."""
        self._request(users.DeleteToken(name), timeout)
