"""Who asks: access tokens that a login gives out, and the personal ones that the broker keeps.

An access token (JWT, HS256) says who logged in and until when; the key is made when the gateway starts and never leaves
it, so a token ends with the gateway, and what a logout revoked need not be remembered longer. A token only says who it
is: whether that user still exists, is active and may do it, the broker decides at every request. Anything that is no
JWT is a personal access token, which the broker is asked about each time.

Owned by the gateway's loop. Revoked tokens are kept until they would have expired, at most REVOKED_MAX.
"""

from __future__ import annotations

import secrets
import time
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import jwt

from shmbroker.gateway.faults import INVALID_ACCESS_TOKEN, by_status, refused

ALGORITHM: Final = "HS256"
ISSUER: Final = "shmbroker"
KEY_SIZE: Final = 32
REVOKED_MAX: Final = 100_000
CLAIMS: Final = ["exp", "iat", "jti", "sub", "born", "iss"]


class Identity(NamedTuple):
    """A user: ids are used again, an id with its time of creation is not."""

    user_id: int
    created_at_us: int


class AccessToken(NamedTuple):
    """What a login gives out. ``expires_at_s``: seconds since 1970."""

    token: str
    expires_at_s: int


class Access:
    """Gives out, reads and revokes access tokens."""

    def __init__(self, expiry_s: int) -> None:
        self._expiry_s = expiry_s
        self._key = secrets.token_bytes(KEY_SIZE)
        self._revoked: dict[str, int] = {}
        """The number of a token, and when it expires."""

    def issue(self, user: Identity) -> AccessToken:
        now_s = int(time.time())
        claims = {
            "iss": ISSUER,
            "sub": str(user.user_id),
            "born": user.created_at_us,
            "jti": secrets.token_hex(16),
            "iat": now_s,
            "exp": now_s + self._expiry_s,
        }
        return AccessToken(jwt.encode(claims, self._key, ALGORITHM), now_s + self._expiry_s)

    def read(self, token: str) -> Identity:
        """Whose it is. Refused (401) where it is not one of ours, expired or revoked."""
        claims = self._claims(token)
        return Identity(int(claims["sub"]), int(claims["born"]))

    def revoke(self, token: str) -> None:
        """From now on it is invalid. Refused as :meth:`read`, and 503 where too many are revoked already."""
        claims = self._claims(token)
        if len(self._revoked) >= REVOKED_MAX:
            now_s = time.time()
            self._revoked = {number: end_s for number, end_s in self._revoked.items() if end_s > now_s}
        if len(self._revoked) >= REVOKED_MAX:
            raise by_status(HTTPStatus.SERVICE_UNAVAILABLE, "too many tokens are revoked: log out later")
        self._revoked[claims["jti"]] = claims["exp"]

    def _claims(self, token: str) -> dict[str, Any]:
        try:
            claims: dict[str, Any] = jwt.decode(
                token, self._key, [ALGORITHM], issuer=ISSUER, options={"require": CLAIMS}
            )
        except jwt.InvalidTokenError as error:
            raise refused(
                INVALID_ACCESS_TOKEN, f"the access token is not valid: {error}", status=HTTPStatus.UNAUTHORIZED
            ) from None
        if claims["jti"] in self._revoked:
            raise refused(INVALID_ACCESS_TOKEN, "the access token was revoked", status=HTTPStatus.UNAUTHORIZED)
        return claims


def is_access_token(token: str) -> bool:
    """Whether it has the form of a JWT: three parts. A personal access token is base64 and has no dots."""
    return token.count(".") == 2
