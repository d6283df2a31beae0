"""A connection over TCP: an exchange that has logged in.

Owns its socket, with TLS where the address says so. It does not come back by itself: like a local one it ends with the
broker, and whoever made it makes another.
"""

from __future__ import annotations

import secrets
import socket
import ssl
import time
from typing import Final

from shmbroker.client.address import TcpAddress
from shmbroker.client.exchange import Exchange, deadline_of
from shmbroker.errors import ClientMistake, ErrorCode, NotAccepted, Unavailable
from shmbroker.shm.doorbell import Doorbell
from shmbroker.wire.connection import ClientConnection
from shmbroker.wire.frame import PROTOCOL_VERSION
from shmbroker.wire.users import Login, LoginReply, LoginWithToken

SDK_NAME: Final = "shmbroker"
LOGIN_RETRY_S: Final = 0.05
POLL_INTERVAL_S_MIN: Final = 0.001
POLL_INTERVAL_S_MAX: Final = 0.05


class TcpConnection(Exchange):
    """A session with a broker. Thread-safe; one request at a time."""

    def __init__(self, address: TcpAddress, *, version: str, timeout: float | None) -> None:
        """Connects and logs in. Raises Unavailable where nobody answers, Unauthorized for wrong credentials."""
        if address.token is None and address.username is None:
            raise ClientMistake(
                f"who logs in at {address.name}? iggy://user:password@{address.name}, or a token in the user's place",
                number=ErrorCode.INVALID_CREDENTIALS,
            )
        deadline = deadline_of(timeout)
        codec = ClientConnection(secrets.randbits(127) + 1)
        super().__init__(_connect(address, deadline), codec, address.name)
        self.address = address
        try:
            self._log_in(version, deadline)
        except BaseException:
            self.close()
            raise

    def _log_in(self, version: str, deadline: float) -> None:
        address = self.address
        request: Login | LoginWithToken
        if address.token is not None:
            request = LoginWithToken(PROTOCOL_VERSION, SDK_NAME, version, address.token)
        else:
            request = Login(PROTOCOL_VERSION, SDK_NAME, version, address.username or "", address.password or "")
        while True:
            try:
                reply = self.request(request, deadline)
                break
            except NotAccepted:  # too many attempts at once: safe to repeat
                if time.monotonic() + LOGIN_RETRY_S >= deadline:
                    raise
                time.sleep(LOGIN_RETRY_S)
        if not isinstance(reply, LoginReply) or not reply.session:
            raise Unavailable(f"{self.name}: the broker's answer to the login makes no sense")
        self._codec.session = reply.session
        self.user_id = reply.user_id
        self.server_version = reply.server_version

    def watch(self, log_ids: list[int], deadline: float) -> tuple[int, Doorbell]:
        """A bell that lets its owner look again and again: the protocol has nothing that would ring one."""
        del log_ids, deadline
        return 0, PollingBell()

    def unwatch(self, watch_id: int, deadline: float) -> None:
        """Nothing: the broker knows of no watch."""

    def taken_over(self) -> tuple[socket.socket, ClientConnection]:
        """Socket and codec, for a lane that goes on with them: nothing may be requested here from now on."""
        return self._socket, self._codec


class PollingBell:
    """A doorbell that nobody rings: each wait is a pause, short after something came and longer while nothing does."""

    def __init__(self) -> None:
        self._interval_s = POLL_INTERVAL_S_MIN
        self._is_waited_for = False

    def ring(self) -> None:
        """The next pauses are short again."""
        self._interval_s = POLL_INTERVAL_S_MIN

    def wait(self, timeout_s: float) -> bool:
        """Pauses, at most ``timeout_s``; then it is time to look again."""
        self._is_waited_for = True
        time.sleep(min(timeout_s, self._interval_s))  # bounded: POLL_INTERVAL_S_MAX; the protocol wakes nobody
        self._interval_s = min(2 * self._interval_s, POLL_INTERVAL_S_MAX)
        return True

    def drain(self) -> None:
        """Comes before a look. Two without a wait between them: the first look found something."""
        if not self._is_waited_for:
            self.ring()
        self._is_waited_for = False

    def close(self) -> None:
        """There is nothing to give up."""


def _connect(address: TcpAddress, deadline: float) -> socket.socket:
    plain: socket.socket | None = None
    try:
        plain = socket.create_connection((address.host, address.port), max(0.001, deadline - time.monotonic()))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not address.tls:
            return plain
        context = ssl.create_default_context(cafile=address.tls_ca_file)
        return context.wrap_socket(plain, server_hostname=address.tls_domain or address.host)
    except OSError as error:  # ssl.SSLError is one
        if plain is not None:
            plain.close()
        raise Unavailable(f"{address.name}: no broker answers there ({error.strerror or error})") from error
