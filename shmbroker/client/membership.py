"""One membership of a consumer group: joined by its owner, kept alive and up to date by a thread of its own.

Owned by a GroupConsumer. The thread asks each second which partitions are this member's; that is its sign of life too.
The consumer's thread compares ``assignment`` with what it reads, whenever it is about to read.

An assignment is a lease. The broker gives a partition to somebody else no sooner than 30 s after it has begun to say
that it is not this member's any more, or after 36 s of silence (never less than 12); so whoever reads only within
GROUP_LEASE_S of the last answer never reads beside the next owner, even if his process was stopped in between.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Final

from shmbroker.client.exchange import Exchange
from shmbroker.errors import NotFound, OutcomeUnknown, ShmbrokerError, WaitTimeout
from shmbroker.limits import GROUP_LEASE_S
from shmbroker.wire import groups
from shmbroker.wire.primitives import Identifier

SYNC_INTERVAL_S: Final = 1.0
NOBODY: Final = groups.Assignment(0, ())


class Membership:
    """Of one group, on a session of its own: who is a member is a session, so no two members share one."""

    def __init__(self, session: Exchange, stream: Identifier, topic: Identifier, group: Identifier) -> None:
        self.session = session
        self.stream = stream
        self.topic = topic
        self.group = group
        self.assignment: groups.Assignment | None = NOBODY
        """The last answer, replaced as a whole; None where the broker does not know this member any more."""
        self._request = session.request
        self._asked_at = -GROUP_LEASE_S
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
        if time.monotonic() >= self.lease_end:
            self.sync(deadline)

    @property
    def lease_end(self) -> float:
        """Until when ``assignment`` may be read by. Look at this first, and then at the assignment."""
        return self._asked_at + GROUP_LEASE_S

    def wait_for_change(self, known: groups.Assignment | None, timeout_s: float) -> None:
        """Until the assignment is another than ``known``, at most ``timeout_s``."""
        with self._changed:
            self._changed.wait_for(lambda: self.assignment != known, timeout_s)

    def _keep(self) -> None:
        while not self._stopped.wait(SYNC_INTERVAL_S):
            try:
                self.sync(time.monotonic() + GROUP_LEASE_S)
            except (WaitTimeout, OutcomeUnknown):
                continue  # the connection is busy: the lease says how long that is fine
            except NotFound:
                with self._changed:  # stream or topic are gone
                    self.assignment = None
                    self._changed.notify_all()
            except ShmbrokerError:
                return  # the connection has ended; whoever polls finds out

    def leave(self, deadline: float) -> None:
        """Ends the membership; the partitions go to the others at once."""
        self._stopped.set()
        with suppress(NotFound):  # the group went first, or the broker took this member for dead
            self._request(groups.LeaveGroup(self.stream, self.topic, self.group), deadline)

    def close(self) -> None:
        """Ends thread and session, and with the session the membership. Any number of times."""
        if self.session.is_foreign:
            return  # in a child of fork(): all of it is the parent's, and its locks may be held for ever here
        self._stopped.set()
        self.session.close()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()
