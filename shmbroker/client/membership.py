"""One membership of a consumer group: joined by its owner, kept alive and up to date by a thread of its own.

Owned by a GroupConsumer. The thread asks each second which partitions are this member's; that is its sign of life too.
The consumer's thread compares ``assignment`` with what it reads, whenever it is about to read.

An assignment is a lease. The broker gives a partition to somebody else no sooner than 30 s after it has begun to say
that it is not this member's any more, or after 36 s of silence; so whoever reads only within LEASE_S of the last answer
never reads beside the next owner, even if his process was stopped for an hour in between.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from shmbroker.errors import ErrorCode, NotFound, OutcomeUnknown, ShmbrokerError, WaitTimeout, error_from
from shmbroker.wire import groups
from shmbroker.wire.bodies import Request
from shmbroker.wire.primitives import Identifier

SYNC_INTERVAL_S: Final = 1.0
LEASE_S: Final = 10.0
NOBODY: Final = groups.Assignment(0, ())


class Membership:
    """Of one group, on one connection. ``request`` sends a request by a deadline and returns its reply."""

    def __init__(
        self, request: Callable[[Request, float], Any], stream: Identifier, topic: Identifier, group: Identifier
    ) -> None:
        self.stream = stream
        self.topic = topic
        self.group = group
        self.assignment: groups.Assignment | None = NOBODY
        """The last answer, replaced as a whole; None where the broker does not know this member any more."""
        self._request = request
        self._asked_at = -LEASE_S
        self._lock = threading.Lock()
        """Held while asking: answers come in the order in which they replace each other."""
        self._stopped = threading.Event()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._keep, name=f"shmbroker member of {group}", daemon=True)

    def start(self, deadline: float) -> None:
        """Joins. Raises NotFound where there is no such group."""
        self.join(deadline)
        self._thread.start()

    def join(self, deadline: float) -> None:
        """Makes this connection a member, again where it was one, and asks for its partitions."""
        self._request(groups.JoinGroup(self.stream, self.topic, self.group), deadline)
        self.sync(deadline)

    def sync(self, deadline: float) -> None:
        """Asks for this member's partitions now."""
        with self._lock:
            asked_at = time.monotonic()
            found = self._request(groups.SyncGroup(self.stream, self.topic, self.group), deadline)
            assert found is None or isinstance(found, groups.Assignment)
            with self._changed:
                self.assignment = found
                self._asked_at = asked_at
                self._changed.notify_all()

    def renew(self, deadline: float) -> None:
        """Asks again where the last answer is too old to read by."""
        if time.monotonic() - self._asked_at > LEASE_S:
            self.sync(deadline)

    def wait_for_change(self, known: groups.Assignment | None, timeout_s: float) -> None:
        """Until the assignment is another than ``known``, at most ``timeout_s``."""
        with self._changed:
            self._changed.wait_for(lambda: self.assignment != known, timeout_s)

    def _keep(self) -> None:
        while not self._stopped.wait(SYNC_INTERVAL_S):
            try:
                self.sync(time.monotonic() + LEASE_S)
            except (WaitTimeout, OutcomeUnknown):
                continue  # the connection is busy: the lease says how long that is fine
            except NotFound:
                with self._changed:  # stream or topic are gone
                    self.assignment = None
                    self._changed.notify_all()
            except ShmbrokerError:
                return  # the connection has ended; whoever polls finds out

    def stop(self) -> None:
        """Ends the thread, without waiting for it. Any number of times."""
        self._stopped.set()

    def leave(self, deadline: float) -> None:
        """Ends the membership; the partitions go to the others at once."""
        self.stop()
        if self._thread.is_alive():
            self._thread.join(max(0.0, deadline - time.monotonic()))
        with suppress(NotFound):  # the group went first, or the broker took this member for dead
            self._request(groups.LeaveGroup(self.stream, self.topic, self.group), deadline)


def no_member(group: Identifier) -> ShmbrokerError:
    """The error of a group that is gone under its member."""
    return error_from(ErrorCode.GROUP_MEMBER_NOT_FOUND, f"this consumer is no member of group {group!r}")
