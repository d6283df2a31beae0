"""The members of one consumer group and whose each partition is: a value that is told what happens, and decides.

A partition has one owner, or none where the group has no members; never two. Who owns it may poll it and store its
offsets. ``generation`` grows with every change of members, of owners or of what a member may poll.

- A member that leaves, and partitions that come or go: round robin anew. Partition i goes to member i mod n, in the
  order of joining, at once.
- A member that joins gets what the others have above their share, and nothing else moves. Shares differ by one at most;
  who joined earlier has the larger one. A partition of which messages were handed out and not committed stays its
  owner's until they are committed, or until the time limit: meanwhile it has an heir, and its owner may still store
  offsets but polls no more of it.
- A holder reads files by itself and asks nobody for each message, so no fence reaches it. What it holds (``held``)
  counts as handed out until it says that it has let go (``released``), and it moves in this careful way always; the
  time limit is for the holder that does not answer.

Time is an argument, in microseconds of any clock that does not go back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from shmbroker.limits import GROUP_REVOCATION_S_MAX, U64_MAX

REVOCATION_LIMIT_US: Final = GROUP_REVOCATION_S_MAX * 1_000_000
HELD: Final = U64_MAX
"""In place of an offset: no commit reaches it."""
NOTHING: Final = -1


@dataclass(slots=True)
class Share:
    """One partition. ``in_flight``: the last offset handed out and not committed, HELD, or NOTHING."""

    owner: int | None = None
    heir: int | None = None
    """Who owns it once its owner has finished."""
    deadline_us: int = 0
    in_flight: int = NOTHING

    @property
    def next_owner(self) -> int | None:
        """Whose it will be when all that is under way is done."""
        return self.owner if self.heir is None else self.heir

    def give(self, member: int | None) -> None:
        """A new owner, with nothing in flight."""
        self.owner, self.heir, self.in_flight = member, None, NOTHING


class Membership:
    """One group. Members are numbers that their owner chooses."""

    def __init__(self, partition_count: int) -> None:
        self.generation = 0
        self.members: dict[int, None] = {}
        """In the order of joining."""
        self._shares = [Share() for _ in range(partition_count)]

    # --- what holds ---------------------------------------------------------------------------------------------------
    @property
    def partition_count(self) -> int:
        return len(self._shares)

    def owner(self, partition_id: int) -> int | None:
        """The one member that may store offsets of the partition."""
        return self._shares[partition_id].owner if 0 <= partition_id < len(self._shares) else None

    def poller(self, partition_id: int) -> int | None:
        """The one member that may poll the partition: its owner, until somebody waits for it."""
        if not 0 <= partition_id < len(self._shares):
            return None
        share = self._shares[partition_id]
        return share.owner if share.heir is None else None

    def assignment(self, member: int) -> tuple[int, ...]:
        """The partitions that the member may poll."""
        return tuple(
            number for number, share in enumerate(self._shares) if share.owner == member and share.heir is None
        )

    def owned(self, member: int) -> tuple[int, ...]:
        """The partitions whose offsets the member may store."""
        return tuple(number for number, share in enumerate(self._shares) if share.owner == member)

    def all_owned(self) -> dict[int, list[int]]:
        """:meth:`owned` of every member, in the order of joining."""
        found: dict[int, list[int]] = {member: [] for member in self.members}
        for number, share in enumerate(self._shares):
            if share.owner is not None:
                found[share.owner].append(number)
        return found

    def next_deadline_us(self) -> int | None:
        """When :meth:`expire` has something to do."""
        return min((share.deadline_us for share in self._shares if share.heir is not None), default=None)

    # --- what happens -------------------------------------------------------------------------------------------------
    def join(self, member: int, now_us: int) -> bool:
        """Whether it is new. What is nobody's goes to it, then what others have above their share."""
        if member in self.members:
            return False
        self.members[member] = None
        self.generation += 1
        quotas = self._quotas()
        if len(self.members) == 1:
            for share in self._shares:
                share.give(member)
            return True
        missing = quotas[member]
        surplus = self._counts()
        for share in sorted(self._shares, key=_cost_of_moving):
            if missing == 0:
                break
            giver = share.next_owner
            if giver is not None and surplus[giver] > quotas[giver]:
                surplus[giver] -= 1
                missing -= 1
                self._hand(share, member, now_us, at_once=False)
        return True

    def leave(self, member: int, now_us: int) -> bool:
        """Whether it was one."""
        if member not in self.members:
            return False
        del self.members[member]
        self._round_robin(now_us)
        return True

    def resize(self, partition_count: int, now_us: int) -> None:
        """The topic has so many partitions now."""
        if partition_count == len(self._shares):
            return
        del self._shares[partition_count:]
        self._shares += (Share() for _ in range(partition_count - len(self._shares)))
        self._round_robin(now_us)

    def polled(self, member: int, partition_id: int, last_offset: int) -> None:
        """Messages up to ``last_offset`` went to the member."""
        if self.poller(partition_id) == member:
            share = self._shares[partition_id]
            share.in_flight = max(share.in_flight, last_offset)

    def committed(self, member: int, partition_id: int, offset: int) -> None:
        """The member has stored an offset: what goes no further is not in flight any more."""
        if self.owner(partition_id) == member and self._shares[partition_id].in_flight <= offset < HELD:
            self._settle(self._shares[partition_id])

    def held(self, member: int, partition_ids: Iterable[int]) -> None:
        """The member has been told that it may read these by itself."""
        for partition_id in partition_ids:
            self.polled(member, partition_id, HELD)

    def released(self, member: int, partition_ids: Iterable[int]) -> None:
        """The member reads these no more, and has stored what it had to."""
        for partition_id in partition_ids:
            if self.owner(partition_id) == member:
                self._settle(self._shares[partition_id])

    def expire(self, now_us: int) -> None:
        """Partitions whose owner has had its time go to whoever waits for them."""
        for share in self._shares:
            if share.heir is not None and share.deadline_us <= now_us:
                self._settle(share)

    # --- how ----------------------------------------------------------------------------------------------------------
    def _quotas(self) -> dict[int, int]:
        """How many partitions each member should have: those of a round robin."""
        least, more = divmod(len(self._shares), len(self.members))
        return {member: least + (index < more) for index, member in enumerate(self.members)}

    def _counts(self) -> dict[int, int]:
        counts = dict.fromkeys(self.members, 0)
        for share in self._shares:
            if share.next_owner is not None:
                counts[share.next_owner] += 1
        return counts

    def _round_robin(self, now_us: int) -> None:
        self.generation += 1
        members = list(self.members)
        for index, share in enumerate(self._shares):
            if members:
                self._hand(share, members[index % len(members)], now_us, at_once=share.in_flight != HELD)
            else:
                share.give(None)

    def _hand(self, share: Share, heir: int, now_us: int, *, at_once: bool) -> None:
        if share.owner == heir:
            share.heir = None
        elif at_once or share.in_flight == NOTHING or share.owner not in self.members:
            share.give(heir)
        else:
            if share.heir is None:
                share.deadline_us = now_us + REVOCATION_LIMIT_US
            share.heir = heir

    def _settle(self, share: Share) -> None:
        """Nothing of it is in flight any more."""
        share.in_flight = NOTHING
        if share.heir is not None:
            share.give(share.heir)
            self.generation += 1


def _cost_of_moving(share: Share) -> int:
    """First what moves anyway, then what nobody is in the middle of."""
    if share.heir is not None:
        return 0
    return 1 if share.in_flight == NOTHING else 2
