"""What the front knows of stored offsets, so that a poll of what is next need not ask the worker (one a worker).

The worker owns the offsets. The front knows one as long as every change of it goes through the front: whatever is about
to change one is seen here first, in the order in which the worker will see it. A log whose offsets a local client may
store through a lane of its own is shared: of it nothing is known, for the rest of this run.

An automatic commit never lowers an offset and counts as soon as it is on its way, as it does to a request that goes
after it on the same lane. Any other change makes the offset unknown, until it has ended and somebody asks again.
"""

from __future__ import annotations

from typing import Final

OFFSETS_MAX: Final = 65_536
"""Beyond this everything is forgotten, which costs one question each."""
NONE_STORED: Final = -1


class StoredOffsets:
    """By log and consumer key (as in a request's body)."""

    def __init__(self) -> None:
        self._offsets: dict[tuple[int, bytes], int] = {}
        self._shared: set[int] = set()
        self._changes = 0

    def find(self, log_id: int, key: bytes) -> int | None:
        """The stored offset, NONE_STORED, or None where it is not known."""
        return self._offsets.get((log_id, key))

    def ask(self) -> int:
        """Before the worker is asked: what :meth:`learn` wants back."""
        return self._changes

    def learn(self, asked: int, log_id: int, key: bytes, offset: int) -> None:
        """The worker's answer, which is not believed where anything has been changed since."""
        if asked == self._changes and log_id not in self._shared:
            if len(self._offsets) >= OFFSETS_MAX:
                self._offsets.clear()
            self._offsets[log_id, key] = offset

    def raise_to(self, log_id: int, key: bytes, offset: int) -> None:
        """An automatic commit is on its way."""
        self._changes += 1
        known = self._offsets.get((log_id, key))
        if known is not None and offset > known:
            self._offsets[log_id, key] = offset

    def forget(self, log_id: int, key: bytes) -> None:
        """Another change is on its way, or has ended, or an automatic commit has failed."""
        self._changes += 1
        self._offsets.pop((log_id, key), None)

    def forget_log(self, log_id: int) -> None:
        """It was purged."""
        self._changes += 1
        for place in [place for place in self._offsets if place[0] == log_id]:
            del self._offsets[place]

    def share(self, log_id: int) -> None:
        """A local client may change its offsets by itself from now on."""
        self._shared.add(log_id)
        self.forget_log(log_id)

    def clear(self) -> None:
        """The worker has died: what it had not written is lost."""
        self._changes += 1
        self._offsets.clear()
