"""Who a peer is: passwords and tokens, the gate for versions, and how often one may try.

- A password is held as an argon2id hash and looked at in threads of its own, so that nobody's login holds up anybody's
  messages. An unknown user, and one without a password, costs the same time as a wrong password.
- A token is 50 random bytes; what is held is their SHA-256, by which it is found, and which says nothing about it.
- Failed attempts are counted for each address (``core.attempts``). Beyond the bound an attempt is not looked at but
  refused with 58, "not accepted, safe to try again", which Iggy's clients do by themselves.
- Passwords and tokens are in no ``repr``, no text of an error and no log.

The root user is made at the first start, of IGGY_ROOT_USERNAME and IGGY_ROOT_PASSWORD (both or neither). Without them it
is ``iggy`` and has no password while the broker is reached over its Unix socket only; the first start with a listener
gives it a random one, which is said once. Afterwards the variables have no effect.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import itertools
import os
import secrets
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, AsyncIterator, Final

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from shmbroker.core.attempts import Attempts, host_of
from shmbroker.core.users import NO_PASSWORD, ROOT_ID, ROOT_NAME, Token, User, check_password
from shmbroker.errors import ErrorCode, InvalidConfiguration, ShmbrokerError, error_from
from shmbroker.limits import LOGINS_AT_ONCE_PER_ADDRESS
from shmbroker.wire.frame import PROTOCOL_VERSION, Eviction, EvictionReason
from shmbroker.wire.users import Login, LoginReply, LoginWithToken

if TYPE_CHECKING:
    from shmbroker.front.catalog_keeper import CatalogKeeper
    from shmbroker.front.session import Session


class LoginRefused(ShmbrokerError):
    """No login. ``eviction``: the frame to answer with instead of a reply; None: a refusal with ``number``."""

    code = ErrorCode.INVALID_CREDENTIALS

    def __init__(self, message: str, *, number: int | None = None, eviction: Eviction | None = None) -> None:
        super().__init__(message, number=number)
        self.eviction = eviction


async def login(session: Session, request: Login | LoginWithToken) -> LoginReply:
    """Makes the session that of the user whom the credentials name: ``user`` and ``session_id`` are set.

    Raises LoginRefused.
    """
    raise NotImplementedError


def malformed(session: Session, body: bytes | memoryview) -> LoginRefused:
    """How a login is refused whose body cannot be understood: eviction 14 where its version says why, else 15."""
    raise NotImplementedError


async def logout(session: Session, request: object) -> None:
    """Ends the login, not the connection. A local session is the owner's again."""
    raise NotImplementedError
