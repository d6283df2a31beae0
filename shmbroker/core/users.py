"""The users' rules: names, passwords, permissions and tokens, in memory, with their limits and errors.

As in ``core.catalog``: a decision checks and returns changes, and :meth:`Users.apply` carries them out once they are
durable. No secret is ever here: of a password and of a token there is only a hash, made by the caller, and neither
shows in a ``repr``. A user object lives as long as its user: a session that holds one sees every change to it, and
:meth:`Users.holds` says whether it is still there, since the id may by then be another's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from shmbroker.core.changes import TokenPut, TokenRemoved, UserChange, UserPut, UserRemoved
from shmbroker.core.model import Slots
from shmbroker.core.names import Identifier
from shmbroker.core.permissions import EVERYTHING, Grants, Permissions
from shmbroker.errors import ErrorCode, ShmbrokerError, error_from
from shmbroker.limits import (
    PASSWORD_SIZE_MAX,
    PASSWORD_SIZE_MIN,
    TOKEN_COUNT_PER_USER_MAX,
    TOKEN_NAME_SIZE_MAX,
    TOKEN_NAME_SIZE_MIN,
    U64_MAX,
    USER_COUNT_MAX,
    USERNAME_SIZE_MAX,
    USERNAME_SIZE_MIN,
)

ROOT_ID: Final = 0
ROOT_NAME: Final = "iggy"
NO_PASSWORD: Final = ""
"""In place of a hash: no password fits. The root user of a broker that nobody logs in to starts so."""
_TIME_LIMIT_US: Final = 2**63
"""The database's numbers are signed."""


@dataclass(slots=True)
class Token:
    """A personal access token. ``expires_at_us`` 0: never."""

    name: str
    digest: bytes = field(repr=False)
    expires_at_us: int


@dataclass(slots=True, eq=False)
class User:
    """A user. Changed by ``Users.apply`` only; whoever is handed one reads it."""

    user_id: int
    name: str
    password_hash: str = field(repr=False)
    is_active: bool
    permissions: Permissions | None
    created_at_us: int
    tokens: dict[str, Token] = field(default_factory=dict, repr=False)
    grants: Grants = field(default_factory=lambda: Grants(None), repr=False)

    @property
    def is_root(self) -> bool:
        """Above all permissions."""
        return self.user_id == ROOT_ID


def check_username(name: str) -> None:
    """Raises 43 unless it may be the name of a user."""
    if not USERNAME_SIZE_MIN <= _size(name) <= USERNAME_SIZE_MAX:
        text = f"the name of a user has {USERNAME_SIZE_MIN} to {USERNAME_SIZE_MAX} bytes of UTF-8"
        raise error_from(ErrorCode.INVALID_USERNAME, text)


def check_password(password: str) -> None:
    """Raises 44 unless it may be one."""
    if not PASSWORD_SIZE_MIN <= _size(password) <= PASSWORD_SIZE_MAX:
        text = f"a password has {PASSWORD_SIZE_MIN} to {PASSWORD_SIZE_MAX} bytes of UTF-8"
        raise error_from(ErrorCode.INVALID_PASSWORD, text)


class Users:
    """All users and their tokens. Part of the catalog."""

    def __init__(self) -> None:
        self._users: dict[int, User] = {}
        self._ids: dict[str, int] = {}
        self._tokens: dict[bytes, tuple[User, Token]] = {}
        self._slots = Slots()

    # --- looking ------------------------------------------------------------------------------------------------------
    def __iter__(self) -> Iterator[User]:
        """By id."""
        return iter(sorted(self._users.values(), key=lambda user: user.user_id))

    def __len__(self) -> int:
        return len(self._users)

    def find(self, user: Identifier) -> User | None:
        """By number or name."""
        found = self._ids.get(user) if isinstance(user, str) else user
        return None if found is None else self._users.get(found)

    def get(self, user: Identifier) -> User:
        """Raises 20."""
        found = self.find(user)
        if found is None:
            raise error_from(ErrorCode.RESOURCE_NOT_FOUND, f"there is no user {user!r}")
        return found

    def holds(self, user: User) -> bool:
        """Whether this very user is still there."""
        return self._users.get(user.user_id) is user

    def find_token(self, digest: bytes) -> tuple[User, Token] | None:
        """Whose token has this hash."""
        return self._tokens.get(digest)

    # --- users --------------------------------------------------------------------------------------------------------
    def check_name(self, name: str) -> None:
        """Everything that :meth:`create` would refuse, before a hash is spent on it. Raises 43, 46, 55."""
        check_username(name)
        if name in self._ids:
            raise _taken(name)
        if len(self._users) >= USER_COUNT_MAX:
            raise error_from(ErrorCode.USERS_LIMIT_REACHED, f"there are {USER_COUNT_MAX} users already")

    def put_root(self, name: str | None, password_hash: str, now_us: int) -> list[UserChange]:
        """The root user, new or with another password; ``name`` None: as it is, or ROOT_NAME. Raises 43, 46."""
        root = self._users.get(ROOT_ID)
        if root is None:
            wanted = name or ROOT_NAME
            check_username(wanted)
            return [UserPut(ROOT_ID, wanted, password_hash, True, EVERYTHING, now_us)]
        self._check_rename(root, name)
        return [_put(root)._replace(name=name or root.name, password_hash=password_hash)]

    def create(
        self, name: str, password_hash: str, is_active: bool, permissions: Permissions | None, now_us: int
    ) -> list[UserChange]:
        """One UserPut, with the new id. Raises as :meth:`check_name`."""
        self.check_name(name)
        wanted = None if permissions is None else permissions.normalised()
        return [UserPut(self._slots.lowest(), name, password_hash, is_active, wanted, now_us)]

    def update(self, user: Identifier, name: str | None, is_active: bool | None) -> list[UserChange]:
        """Another name, another status; None stays. Raises 20, 43, 46, and 49 for an inactive root."""
        found = self.get(user)
        wanted = self._check_rename(found, name)
        if found.is_root and is_active is False:
            raise error_from(ErrorCode.CANNOT_CHANGE_PERMISSIONS, "the root user is always active")
        active = found.is_active if is_active is None else is_active
        if (wanted, active) == (found.name, found.is_active):
            return []
        return [_put(found)._replace(name=wanted, is_active=active)]

    def _check_rename(self, user: User, name: str | None) -> str:
        if name is None or name == user.name:
            return user.name
        check_username(name)
        if name in self._ids:
            raise _taken(name)
        return name

    def update_permissions(self, user: Identifier, permissions: Permissions | None) -> list[UserChange]:
        """Raises 20, and 49 for root."""
        found = self.get(user)
        if found.is_root:
            raise error_from(ErrorCode.CANNOT_CHANGE_PERMISSIONS, "the root user has every permission")
        wanted = None if permissions is None else permissions.normalised()
        return [] if wanted == found.permissions else [_put(found)._replace(permissions=wanted)]

    def change_password(self, user: Identifier, password_hash: str) -> list[UserChange]:
        """Raises 20."""
        return [_put(self.get(user))._replace(password_hash=password_hash)]

    def delete(self, user: Identifier) -> list[UserChange]:
        """With the tokens. Raises 20, and 48 for root."""
        found = self.get(user)
        if found.is_root:
            raise error_from(ErrorCode.CANNOT_DELETE_USER, "the root user stays")
        return [*(TokenRemoved(found.user_id, name) for name in found.tokens), UserRemoved(found.user_id)]

    def forget(self, stream_id: int, topic_id: int | None = None) -> list[UserChange]:
        """What every user may do with a stream or topic that is deleted: the next one of its id is another."""
        changes: list[UserChange] = []
        for user in self._users.values():
            if user.permissions is not None:
                rest = user.permissions.without(stream_id, topic_id)
                if rest != user.permissions:
                    changes.append(_put(user)._replace(permissions=rest))
        return changes

    # --- tokens -------------------------------------------------------------------------------------------------------
    def create_token(self, user: User, name: str, digest: bytes, expiry_us: int, now_us: int) -> list[UserChange]:
        """A TokenPut, and the end of the user's tokens that have expired. Raises 50, 51, 52, 56.

        ``expiry_us``: from now; 0 and 2^64 - 1: never.
        """
        if not TOKEN_NAME_SIZE_MIN <= _size(name) <= TOKEN_NAME_SIZE_MAX:
            text = f"the name of a token has {TOKEN_NAME_SIZE_MIN} to {TOKEN_NAME_SIZE_MAX} bytes of UTF-8"
            raise error_from(ErrorCode.INVALID_TOKEN_NAME, text)
        expires_at_us = 0 if expiry_us in (0, U64_MAX) else now_us + expiry_us
        if expires_at_us >= _TIME_LIMIT_US:
            raise error_from(ErrorCode.INVALID_TOKEN_EXPIRY, "that is too long for a token: let it never expire")
        expired = [each.name for each in user.tokens.values() if 0 < each.expires_at_us <= now_us]
        if name in user.tokens and name not in expired:
            raise error_from(ErrorCode.TOKEN_ALREADY_EXISTS, f"user {user.name!r} has a token {name!r} already")
        if len(user.tokens) - len(expired) >= TOKEN_COUNT_PER_USER_MAX:
            text = f"user {user.name!r} has {TOKEN_COUNT_PER_USER_MAX} tokens already"
            raise error_from(ErrorCode.TOKENS_LIMIT_REACHED, text)
        put = TokenPut(user.user_id, name, digest, expires_at_us)
        return [*(TokenRemoved(user.user_id, each) for each in expired), put]

    def delete_token(self, user: User, name: str) -> list[UserChange]:
        """Raises 20."""
        if name not in user.tokens:
            raise error_from(ErrorCode.RESOURCE_NOT_FOUND, f"user {user.name!r} has no token {name!r}")
        return [TokenRemoved(user.user_id, name)]

    # --- applying -----------------------------------------------------------------------------------------------------
    def apply(self, change: UserChange) -> None:
        """Carries out what was decided here, or loaded. A change that does not fit is our own fault."""
        match change:
            case UserPut():
                self._put(change)
            case UserRemoved():
                gone = self._users.pop(change.user_id)
                assert not gone.tokens
                del self._ids[gone.name]
                self._slots.release(change.user_id)
            case TokenPut():
                user = self._users[change.user_id]
                assert change.name not in user.tokens
                assert change.digest not in self._tokens
                token = user.tokens[change.name] = Token(change.name, change.digest, change.expires_at_us)
                self._tokens[change.digest] = user, token
            case TokenRemoved():
                del self._tokens[self._users[change.user_id].tokens.pop(change.name).digest]

    def _put(self, change: UserPut) -> None:
        found = self._users.get(change.user_id)
        if found is None:
            self._slots.take(change.user_id)
            found = self._users[change.user_id] = User(*change)
        else:
            del self._ids[found.name]
            found.name = change.name
            found.password_hash = change.password_hash
            found.is_active = change.is_active
            found.permissions = change.permissions
        found.grants = Grants(change.permissions)
        assert change.name not in self._ids
        self._ids[change.name] = change.user_id

    def snapshot(self) -> Iterator[UserChange]:
        """The changes that build these users from none."""
        for user in self:
            yield _put(user)
            for token in user.tokens.values():
                yield TokenPut(user.user_id, token.name, token.digest, token.expires_at_us)


def _put(user: User) -> UserPut:
    return UserPut(user.user_id, user.name, user.password_hash, user.is_active, user.permissions, user.created_at_us)


def _size(text: str) -> int:
    """Bytes of UTF-8; -1 where it has none."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return -1


def _taken(name: str) -> ShmbrokerError:
    return error_from(ErrorCode.USER_ALREADY_EXISTS, f"there is a user {name!r} already")
