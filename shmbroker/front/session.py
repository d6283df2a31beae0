"""A session: who a peer is, and the answering of its requests, one after the other, whatever carries them.

The transports (local_session: a Unix socket with descriptors; tcp: a TCP or TLS connection) move frames; a session
turns one request into one answer and never waits for the peer. It owns nothing that outlives its connection: what
others keep for it they give up in ``on_end``.

Who may do what is decided here, before any handler: a peer that has not said who it is gets no further than its login
(or HELLO), then ``authorise`` knows the permission that each command needs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from shmbroker.errors import ErrorCode, ShmbrokerError, Unavailable, text_of
from shmbroker.front.authorise import authorise
from shmbroker.front.handlers import HANDLERS
from shmbroker.front.handlers_messages import QUICK
from shmbroker.front.login import LoginRefused, malformed
from shmbroker.front.reply import Answer, Gathered, WithDescriptors
from shmbroker.wire.codes import Code
from shmbroker.wire.commands import encode_reply
from shmbroker.wire.connection import Incoming, ServerConnection
from shmbroker.wire.local import LocalCode

if TYPE_CHECKING:
    from shmbroker.core.users import User
    from shmbroker.front.broker import Broker
    from shmbroker.wire.frame import EvictionReason

TRANSPORT_TCP: Final = 1
"""As get_me and get_clients say it; a local session counts as TCP."""
TRANSPORT_HTTP: Final = 3
BEFORE_LOGIN: Final = frozenset({Code.PING, Code.LOGIN, Code.LOGIN_WITH_TOKEN})
LOCAL_CODES: Final = frozenset(int(code) for code in LocalCode)
NO_BODY: Final = memoryview(b"")
LOG: Final = logging.getLogger("shmbroker.front")


class Session:
    """One peer. Owned by the front's loop."""

    is_local = False
    """Whether the peer is a process of this machine on the Unix socket."""
    is_owner = False
    """Whether the peer is a local process of the broker's own user."""

    def __init__(self, broker: Broker, number: int, *, transport: int, address: str) -> None:
        self.broker = broker
        self.number = number
        """Unique in this run of the broker; the wire's client id of this connection (u32)."""
        self.transport = transport
        self.address = address
        self.wire = ServerConnection()
        self.user: User | None = None
        """None until it has logged in."""
        self.session_id = 0
        """Given at login; 0 before."""
        self.client_id = 0
        """The peer's random u128, as its last header had it."""
        self.request_number = 0
        """Of the request under way."""
        self.producer = (0, 0)
        """The client id, and the producer id that its batches carry."""
        self.balanced = ((0, 0, 0, 0), 0)
        """The last send that left the choice of the partition to us (client id, request number, stream, topic), and
        what was chosen."""
        self.last_seen_s = time.monotonic()
        self.on_end: list[Callable[[Session], None]] = []
        """Called once each when the connection has ended."""

    def start(self, incoming: Incoming, reply: Callable[[Answer], None]) -> bool:
        """Answers one request by calling ``reply`` exactly once, maybe before this returns.

        Returns whether the bytes of the request are needed no longer. Does not raise.
        """
        quick = QUICK.get(incoming.code)
        if quick is None:
            # What is decoded keeps no view of the bytes but that of a batch; only a login is looked at twice.
            body = memoryview(bytes(incoming.body)) if incoming.code == Code.LOGIN else NO_BODY
            self.broker.spawn(self._answer_later(incoming._replace(body=body), reply))
            return True
        self._note(incoming)

        def done(value: Any) -> None:
            if isinstance(value, ShmbrokerError):
                reply(self.refused(incoming, value))
            else:
                reply(self.accepted(incoming, value))

        try:
            self.admit(incoming)
            return quick(self, incoming.request, done)
        except ShmbrokerError as error:
            done(error)
        except Exception as error:
            done(self._failure(incoming, error))
        return True

    async def _answer_later(self, incoming: Incoming, reply: Callable[[Answer], None]) -> None:
        reply(await self.answer(incoming))

    async def answer(self, incoming: Incoming) -> Answer:
        """One request, answered exactly once. Does not raise but for being cancelled."""
        self._note(incoming)
        try:
            handler = HANDLERS.get(self.admit(incoming))
            if handler is None:
                raise refusal(ErrorCode.FEATURE_UNAVAILABLE)
            return self.accepted(incoming, await handler(self, incoming.request))
        except ShmbrokerError as error:
            return self.refused(incoming, error)
        except Exception as error:
            return self.refused(incoming, self._failure(incoming, error))

    def _note(self, incoming: Incoming) -> None:
        self.client_id = incoming.header.client
        self.request_number = incoming.header.request_number
        self.last_seen_s = time.monotonic()

    def _failure(self, incoming: Incoming, error: Exception) -> ShmbrokerError:
        """For a fault of ours: the log has it, the peer learns that there was one."""
        LOG.error("connection %d: request %d failed", self.number, incoming.code, exc_info=error)
        return refusal(ErrorCode.ERROR, "the broker failed to answer: see its log")

    def admit(self, incoming: Incoming) -> int:
        """The code of a request that may be handled. Raises what it is refused with."""
        if incoming.spec is None or (incoming.code in LOCAL_CODES and not self.is_local):
            raise refusal(ErrorCode.INVALID_COMMAND, "there is no such command")
        self.check_peer(incoming.code)
        if isinstance(incoming.request, ErrorCode):
            if incoming.code == Code.LOGIN:
                raise malformed(self, incoming.body)
            raise refusal(incoming.request)
        if self.broker.stopping:
            raise Unavailable("the broker is stopping", number=ErrorCode.BROKER_STOPPING)
        code = incoming.request.CODE
        authorise(self, code, incoming.request)
        return code

    def check_peer(self, code: int) -> None:
        """Raises unless the peer has said who it is, or ``code`` is how it says so."""
        if self.user is None and code not in BEFORE_LOGIN:
            raise refusal(ErrorCode.UNAUTHENTICATED)

    def acting_for(self, user: User) -> Session:
        """A session for one request that this one brings in the name of ``user``. Nobody keeps anything for it.

        Its address is the user's own, so that one user's wrong passwords do not count for the others of a gateway.
        """
        address = f"{self.address} for user {user.user_id}"
        acting = Session(self.broker, self.number, transport=TRANSPORT_HTTP, address=address)
        acting.user = user
        return acting

    def accepted(self, incoming: Incoming, value: Any) -> Answer:
        """The frame of what a handler returned."""
        wire = self.wire
        if isinstance(value, Gathered):
            return Answer((wire.reply_head(incoming, value.size), *value.pieces))
        if isinstance(value, WithDescriptors):
            return Answer((wire.reply(incoming, encode_reply(value.reply)),), value.fds, value.sent)
        return Answer((wire.reply(incoming, encode_reply(value)),))

    def refused(self, incoming: Incoming, error: ShmbrokerError) -> Answer:
        """The frame of an error."""
        if isinstance(error, LoginRefused) and error.eviction is not None:
            return Answer((error.eviction.encode(),))
        return Answer((self.wire.refusal(incoming, error.number, str(error)),))

    def evict(self, reason: EvictionReason) -> None:
        """Tells an idle peer that its session has ended, and closes the connection. Of a local process: nothing."""

    def ended(self) -> None:
        """The connection is closed: everybody who keeps something for this session gives it up."""
        callbacks: Sequence[Callable[[Session], None]] = tuple(self.on_end)
        self.on_end.clear()
        for callback in callbacks:
            callback(self)
        self.broker.session_ended(self)


def refusal(code: int, text: str = "") -> ShmbrokerError:
    """The error of a request that is refused with this number."""
    return ShmbrokerError(text or text_of(code), number=code)
