"""Who a peer is: passwords and tokens, the gate for versions, and how often one may try.

- A password is held as an argon2id hash and looked at in threads of its own, so that nobody's login holds up anybody's
  messages. An unknown user, and one without a password, costs the same time as a wrong password. One that has been
  right is recognised by a keyed digest that this process alone can compute, so that the clients of a broker which was
  started again do not queue up for seconds.
- A token is 50 random bytes; what is held is their SHA-256, by which it is found, and which says nothing about it.
- Failed attempts are counted for each address (``core.attempts``). Beyond the bound an attempt is not looked at but
  refused with 58, "not accepted, safe to try again", which Iggy's clients do by themselves.
- Passwords and tokens are in no ``repr``, no text of an error and no log.

The root user is made at the first start, of IGGY_ROOT_USERNAME and IGGY_ROOT_PASSWORD (both or neither). Without them
it is ``iggy``, and has no password while the broker is reached over its Unix socket only; the first start with a
listener gives it a random one, which is said once. Once there is a password the variables have no effect.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import itertools
import secrets
import time
from collections.abc import AsyncIterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from shmbroker.core.attempts import Attempts, host_of
from shmbroker.core.users import NO_PASSWORD, ROOT_ID, Token, User, Users, check_password, check_username
from shmbroker.errors import ClientMistake, ErrorCode, InvalidConfiguration, ShmbrokerError
from shmbroker.front.handlers_catalog import Handler
from shmbroker.limits import LOGINS_AT_ONCE_PER_ADDRESS
from shmbroker.wire.codes import Code
from shmbroker.wire.frame import PROTOCOL_VERSION, Eviction, EvictionReason
from shmbroker.wire.primitives import U32
from shmbroker.wire.users import Login, LoginReply, LoginWithToken

if TYPE_CHECKING:
    from shmbroker.front.catalog_keeper import CatalogKeeper
    from shmbroker.front.session import Session


ROOT_USERNAME_VARIABLE: Final = "IGGY_ROOT_USERNAME"
ROOT_PASSWORD_VARIABLE: Final = "IGGY_ROOT_PASSWORD"
TOKEN_RANDOM_SIZE: Final = 50
PROOF_SIZE: Final = 32
MADE_UP_SIZE: Final = 18
"""Random bytes of a password that is made up."""
THREADS: Final = 2
ARGON2_PASSES: Final = 2
ARGON2_MEMORY_KIB: Final = 19 * 1024
ARGON2_LANES: Final = 1
"""What OWASP names as the least for argon2id: 20 ms of a processor for each attempt."""
VERSION_OLDEST: Final = PROTOCOL_VERSION
VERSION_NEWEST: Final = PROTOCOL_VERSION | 0x3FF
"""Of the same minor version every patch; packed as in a login."""


class LoginRefused(ShmbrokerError):
    """No login. ``eviction``: the frame to answer with instead of a reply; None: a refusal with ``number``."""

    code = ErrorCode.INVALID_CREDENTIALS

    def __init__(self, message: str, *, number: int | None = None, reason: EvictionReason | None = None) -> None:
        super().__init__(message, number=number)
        self.reason = reason
        self.eviction: Eviction | None = None

    def to(self, session: Session) -> Self:
        """With the eviction of this peer, where there is one."""
        if self.reason == EvictionReason.INCOMPATIBLE_PROTOCOL:
            self.eviction = Eviction(session.client_id, self.reason, VERSION_NEWEST, VERSION_OLDEST)
        elif self.reason is not None:
            self.eviction = Eviction(session.client_id, self.reason)
        return self


class Logins:
    """Looks at credentials. Owned by the front's loop; the hashing is done by its threads."""

    def __init__(self, users: Users) -> None:
        self._users = users
        self._hasher = PasswordHasher(ARGON2_PASSES, ARGON2_MEMORY_KIB, ARGON2_LANES)
        self._nobody = _hash_of_nothing()
        """Takes as long to look at as a real one."""
        self._proof_key = secrets.token_bytes(PROOF_SIZE)
        self._proved: dict[int, tuple[str, bytes]] = {}
        """By user: the hash that a password has fitted, and the proof of that password."""
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="passwords")
        self._attempts = Attempts()
        self._turns: dict[str, tuple[asyncio.Semaphore, list[None]]] = {}
        """Of each host with attempts under way: whose turn it is, and one entry for each who has or awaits one."""
        self._sessions = itertools.count(time.time_ns() // 1000)

    def next_session_id(self) -> int:
        """Above 0, and above every earlier one."""
        return next(self._sessions)

    async def hash(self, password: str) -> str:
        """Raises 44."""
        check_password(password)
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._hasher.hash, password)

    async def by_password(self, username: str, password: str, address: str) -> User:
        """Whose they are. Raises LoginRefused: 42, 47, 58."""
        async with self._turn(address) as host:
            user = self._users.find(username)
            if not await self._fits(user, password):
                self._attempts.failed(host, time.monotonic())
                raise LoginRefused("wrong user name or password", reason=EvictionReason.INVALID_CREDENTIALS)
        assert user is not None
        return _active(user)

    async def by_token(self, token: str, address: str) -> tuple[User, Token]:
        """Whose it is. Raises LoginRefused: 47, 53, 54, 58.

        Nothing is counted for an empty address: a gateway shows the token that came with a request, and a token is not
        guessed, while one client's wrong tokens must not lock out the others of its host.
        """
        async with self._turn(address) as host:
            digest = token_digest(token)
            found = self._users.find_token(digest)
            if found is None or not hmac.compare_digest(found[1].digest, digest):
                if host:
                    self._attempts.failed(host, time.monotonic())
                number, reason = ErrorCode.INVALID_TOKEN, EvictionReason.INVALID_TOKEN
                raise LoginRefused("there is no such personal access token", number=number, reason=reason)
        user, entry = found
        if 0 < entry.expires_at_us <= time.time_ns() // 1000:
            raise LoginRefused(f"the personal access token {entry.name!r} has expired", number=ErrorCode.TOKEN_EXPIRED)
        return _active(user), entry

    async def check_current(self, user: User, password: str, address: str) -> str:
        """The hash that the user's current password fits, which must still be the user's. Raises LoginRefused."""
        async with self._turn(address) as host:
            held = user.password_hash
            if not await self._fits(user, password):
                self._attempts.failed(host, time.monotonic())
                raise LoginRefused("the current password is another")
        return held

    async def _fits(self, user: User | None, password: str) -> bool:
        held = NO_PASSWORD if user is None else user.password_hash
        proof = hashlib.blake2b(password.encode(errors="replace"), key=self._proof_key, digest_size=PROOF_SIZE).digest()
        if user is not None:
            proved_hash, proved = self._proved.get(user.user_id, (NO_PASSWORD, b""))
            if held and proved_hash == held and hmac.compare_digest(proved, proof):
                return True
        fits = await asyncio.get_running_loop().run_in_executor(
            self._executor, self._verify, held or self._nobody, password
        )
        # It was awaited: the user may have gone, or have another password.
        if not fits or user is None or not self._users.holds(user) or user.password_hash != held:
            return False
        self._proved[user.user_id] = held, proof
        return True

    def _verify(self, held: str, password: str) -> bool:
        try:
            return self._hasher.verify(held, password)
        except (VerificationError, InvalidHashError, UnicodeEncodeError):
            return False

    @asynccontextmanager
    async def _turn(self, address: str) -> AsyncIterator[str]:
        """When it is this attempt's turn among those of its host, which is returned. Raises LoginRefused, 58."""
        host = host_of(address)
        turns, waiting = self._turns.setdefault(host, (asyncio.Semaphore(LOGINS_AT_ONCE_PER_ADDRESS), []))
        waiting.append(None)
        try:
            async with turns:
                if wait_s := self._attempts.wait_s(host, time.monotonic()):
                    text = f"too many failed logins from {host}: try again in {wait_s:.0f} s"
                    raise LoginRefused(text, number=ErrorCode.TRANSIENT_NOT_ACCEPTED)
                yield host
        finally:
            waiting.pop()
            if not waiting:
                del self._turns[host]

    def close(self) -> None:
        """Ends the threads."""
        self._executor.shutdown(cancel_futures=True)


# --- sessions ---------------------------------------------------------------------------------------------------------
async def login(session: Session, request: Login | LoginWithToken) -> LoginReply:
    """Makes the session that of the user whom the credentials name: ``user`` and ``session_id`` are set.

    Raises LoginRefused.
    """
    logins = session.broker.logins
    try:
        if not _version_is_accepted(request.protocol_version):
            raise _incompatible()
        if isinstance(request, Login):
            user = await logins.by_password(request.username, request.password, session.address)
        else:
            user, _ = await logins.by_token(request.token, session.address)
    except LoginRefused as refused:
        raise refused.to(session) from None
    if session.user is not None:
        await logout(session, None)
    session.user = user
    session.session_id = logins.next_session_id()
    return LoginReply(user.user_id, session.session_id, PROTOCOL_VERSION, version("shmbroker"))


def malformed(session: Session, body: bytes | memoryview) -> LoginRefused:
    """How a login is refused whose body cannot be understood: eviction 14 where its version says why, else 15."""
    if len(body) >= U32.size and not _version_is_accepted(U32.unpack_from(body)[0]):
        return _incompatible().to(session)
    text, number = "a login of neither shape", ErrorCode.INVALID_FORMAT
    return LoginRefused(text, number=number, reason=EvictionReason.MALFORMED_LOGIN).to(session)


async def logout(session: Session, request: object) -> None:
    """Ends the login, not the connection. A local session is the owner's again."""
    session.broker.groups.end(session)
    session.user = session.broker.keeper.catalog.users.find(ROOT_ID) if session.is_local else None
    session.session_id = 0


HANDLERS: Final[dict[int, Handler]] = {Code.LOGIN: login, Code.LOGIN_WITH_TOKEN: login, Code.LOGOUT: logout}


# --- the root user ----------------------------------------------------------------------------------------------------
class RootCredentials(NamedTuple):
    """Of the root user, as the environment gave them."""

    name: str
    password: str

    def __repr__(self) -> str:
        """Without the password."""
        return f"RootCredentials({self.name!r})"


def take_root_credentials(environment: MutableMapping[str, str]) -> RootCredentials | None:
    """What the variables say, None where they are not there. They are taken out, so that no worker inherits them.

    Raises InvalidConfiguration.
    """
    name = environment.pop(ROOT_USERNAME_VARIABLE, None)
    password = environment.pop(ROOT_PASSWORD_VARIABLE, None)
    if name is None and password is None:
        return None
    where = f"{ROOT_USERNAME_VARIABLE}, {ROOT_PASSWORD_VARIABLE}"
    if name is None or password is None:
        raise InvalidConfiguration(f"{where}: give both, or neither for a password that is made up")
    try:
        check_username(name)
        check_password(password)
    except ClientMistake as error:
        raise InvalidConfiguration(f"{where}: {error}") from None
    return RootCredentials(name, password)


async def make_root(
    keeper: CatalogKeeper, logins: Logins, given: RootCredentials | None, *, needs_password: bool
) -> str | None:
    """Sees to it that there is a root user, and that it has a password if somebody may have to log in.

    The password that was made up, to be said once, or None. Raises InvalidConfiguration where the name is taken.
    """
    async with keeper.lock:
        users = keeper.catalog.users
        root = users.find(ROOT_ID)
        if root is not None and (root.password_hash or not (given or needs_password)):
            return None
        made_up = secrets.token_urlsafe(MADE_UP_SIZE) if needs_password and given is None else None
        chosen = made_up if given is None else given.password
        held = NO_PASSWORD if chosen is None else await logins.hash(chosen)
        try:
            changes = users.put_root(None if given is None else given.name, held, time.time_ns() // 1000)
        except ClientMistake as error:
            raise InvalidConfiguration(f"{ROOT_USERNAME_VARIABLE}: {error}") from None
        await keeper.commit(changes)
    return made_up


# --- pieces -----------------------------------------------------------------------------------------------------------
def new_token() -> str:
    """What is said to the user, once."""
    return base64.urlsafe_b64encode(secrets.token_bytes(TOKEN_RANDOM_SIZE)).decode()


def token_digest(token: str) -> bytes:
    """What is held of a token."""
    return hashlib.sha256(token.encode(errors="replace")).digest()


def _hash_of_nothing() -> str:
    salt, rest = (base64.b64encode(secrets.token_bytes(size)).decode().rstrip("=") for size in (16, 32))
    return f"$argon2id$v=19$m={ARGON2_MEMORY_KIB},t={ARGON2_PASSES},p={ARGON2_LANES}${salt}${rest}"


def _active(user: User) -> User:
    if not user.is_active:
        text = f"user {user.name!r} is inactive"
        raise LoginRefused(text, number=ErrorCode.USER_INACTIVE, reason=EvictionReason.USER_INACTIVE)
    return user


def _version_is_accepted(packed: int) -> bool:
    return VERSION_OLDEST <= packed <= VERSION_NEWEST


def _incompatible() -> LoginRefused:
    text = "the client speaks another version of the protocol"
    return LoginRefused(text, number=ErrorCode.INVALID_COMMAND, reason=EvictionReason.INCOMPATIBLE_PROTOCOL)
