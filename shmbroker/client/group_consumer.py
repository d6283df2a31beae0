"""A consumer that shares its topic with the other members of a group: partitions come and go while it reads.

It follows its membership whenever it is about to read. A partition that is taken from it is *leaving*: not read any
more, but its offset may still be committed, and is committed by itself under auto_commit. It is let go of once nothing
that was handed out is uncommitted; the broker waits 30 s for that, and then gives it away, after which a commit raises
PartitionRevoked. A partition that comes starts after the group's stored offset, so whatever nobody committed is handed
out again and nothing is skipped.

Offsets of a member go through the broker's front, which knows whose the partition is, and not through a lane.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from shmbroker.client.batch import Batch
from shmbroker.client.consumer import TIMEOUT_S, Consumer, Start
from shmbroker.client.cursor import Cursor
from shmbroker.client.exchange import Exchange, deadline_of
from shmbroker.client.membership import Membership
from shmbroker.errors import ClientMistake, InvalidOffset, NotFound, PartitionReplaced, PartitionRevoked, ShmbrokerError
from shmbroker.limits import MIB
from shmbroker.wire import local, offsets
from shmbroker.wire.groups import Assignment
from shmbroker.wire.primitives import CONSUMER_GROUP
from shmbroker.wire.primitives import Consumer as Who

FOLLOW_S: Final = 0.25
"""How long a poll that waits reads on by what it knew when it last looked at its assignment."""
REJOIN_S: Final = 30.0
RETRY_S: Final = 2.0
"""After so long a partition that could not be opened is tried again; meanwhile polls serve the others."""


class Commit(Protocol):
    """Stores offsets of a member's partitions, then lets go of ``released``; the partitions that are not its."""

    def __call__(
        self, targets: Mapping[int, int], released: Sequence[int], automatic: bool, deadline: float
    ) -> Sequence[int]: ...


class GroupConsumer(Consumer):
    """Reads the partitions that its group assigns to it. Made by ``Client.consumer(group=)``. For one thread."""

    def __init__(
        self,
        connection: Exchange,
        forget: Callable[[Any], None],
        membership: Membership,
        open_cursor: Callable[[int, float], Cursor],
        commit: Commit,
        start: Start,
        *,
        auto_commit: bool,
    ) -> None:
        """Of a membership that has started. ``start`` is for partitions for which the group has stored nothing."""
        super().__init__(connection, forget, (), is_named=True, auto_commit=auto_commit)
        self._membership = membership
        self._open_cursor = open_cursor
        self._commit_now = commit
        self._start = start
        self._followed: Assignment | None = None
        self._lease_end = 0.0
        """Until when it may be read by."""
        self._retry_at = math.inf
        """When to try again what of it could not be opened."""
        self._failure: ShmbrokerError | None = None
        """Why that is, for the next poll to raise."""
        self._leaving: dict[int, Cursor] = {}
        self._committed: dict[int, int] = {}
        self._close_membership = weakref.finalize(self, membership.close)

    # --- reading ------------------------------------------------------------------------------------------------------
    def poll(self, max_messages: int = 1000, timeout: float | None = 0.0, *, max_bytes: int = 16 * MIB) -> list[Batch]:
        """As ``Consumer.poll``, of the partitions that are this member's now; it may have none for a while.

        Raises NotFound where the group was deleted, and now and then what keeps one of its partitions from being opened
        (PartitionRefused); the other polls serve the others.
        """
        self._check_open()
        if max_messages < 1 or max_bytes < 1:
            raise ClientMistake(f"a poll asks for at least one message and one byte: {max_messages}, {max_bytes}")
        deadline = deadline_of(timeout)
        while True:
            self.follow()
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            slice_end = min(deadline, time.monotonic() + FOLLOW_S)
            batches = self._poll_slice(max_messages, max_bytes, slice_end)
            if batches or time.monotonic() >= deadline:
                break
        if self._auto_commit:
            self._commit_behind()
        return batches

    def _poll_slice(self, max_messages: int, max_bytes: int, slice_end: float) -> list[Batch]:
        try:
            if self._cursors:
                batches = self._read(max_messages, max_bytes) or self._wait(max_messages, max_bytes, slice_end)
                if not batches or time.monotonic() < self._lease_end:
                    return batches
                self._start_over()
                return []
            self._check_alive()
            self._membership.wait_for_change(self._followed, max(0.0, slice_end - time.monotonic()))
        except PartitionReplaced:
            self._committed.clear()  # of the old incarnation
            raise
        except (PartitionRevoked, NotFound):  # taken from us, or deleted: then we have been told to go on without it
            self._membership.sync(time.monotonic() + TIMEOUT_S)
            if self._membership.assignment == self._followed:
                raise
        return []

    def _start_over(self) -> None:
        """This process stood still for longer than the lease, with a read under way: nothing of that was ours to read.
        All partitions are taken up anew, after what the group has stored."""
        for partition_id in (*self._by_partition, *self._leaving):
            self._drop(partition_id)
        self._followed = None

    # --- following the group ------------------------------------------------------------------------------------------
    def follow(self) -> None:
        """Takes up partitions that came, stops reading those that go. Every poll does so first."""
        deadline = time.monotonic() + REJOIN_S
        self._membership.renew(deadline)
        self._lease_end = self._membership.lease_end
        assignment = self._membership.assignment
        if assignment is None:
            self._start_over()
            self._membership.join(deadline)
            assignment = self._membership.assignment
        if assignment is None or (assignment == self._followed and time.monotonic() < self._retry_at):
            self._let_go(deadline)
            return
        mine = set(assignment.partition_ids)
        for partition_id in set(self._by_partition) - mine:
            self._leaving[partition_id] = self._by_partition[partition_id]
            self._read_no_more(partition_id)
        for partition_id in mine & set(self._leaving):
            self._drop(partition_id)  # it may have been somebody else's meanwhile: from the stored offset again
        self._let_go(deadline)
        self._followed = assignment
        self._retry_at = math.inf
        for partition_id in sorted(mine - set(self._by_partition)):
            try:
                self._take_up(partition_id, deadline)
            except ShmbrokerError as error:  # the others are read all the same
                self._failure = error
                self._retry_at = time.monotonic() + RETRY_S

    def _take_up(self, partition_id: int, deadline: float) -> None:
        cursor = self._open_cursor(partition_id, deadline)
        try:
            stored = cursor.stored(deadline)
            if stored is None:
                self._start.apply(cursor, deadline)
            else:
                cursor.reader.seek_offset(stored + 1)
        except BaseException:
            cursor.close()
            raise
        self._cursors.append(cursor)
        self._by_partition[partition_id] = cursor
        self._give_bell_up()

    def _read_no_more(self, partition_id: int) -> None:
        cursor = self._by_partition.pop(partition_id)
        self._cursors.remove(cursor)
        self._turn = 0
        self._give_bell_up()

    def _drop(self, partition_id: int) -> None:
        """Forgets a partition that is not this member's any more."""
        if partition_id in self._by_partition:
            self._leaving[partition_id] = self._by_partition[partition_id]
            self._read_no_more(partition_id)
        self._leaving.pop(partition_id).close()
        self._committed.pop(partition_id, None)

    def _let_go(self, deadline: float) -> None:
        """Of the leaving partitions of which nothing is uncommitted, or nothing any more under auto_commit."""
        if not self._leaving:
            return
        targets = self._uncommitted(self._leaving.values()) if self._auto_commit else {}
        try:
            self._store(targets, automatic=True, deadline=deadline)
        except InvalidOffset:  # they were purged: nothing of that is left to commit
            for cursor in self._leaving.values():
                cursor.handed_out = -1
            self._store({}, automatic=True, deadline=deadline)

    # --- committing ---------------------------------------------------------------------------------------------------
    def commit(
        self, *, partition: int | None = None, offset: int | None = None, timeout: float | None = TIMEOUT_S
    ) -> None:
        """As ``Consumer.commit``, of partitions that leave too. Raises PartitionRevoked, after the others are stored,
        where one was taken from this member before: what was not committed is handed out again to another."""
        self._check_open()
        deadline = deadline_of(timeout)
        held = {**self._by_partition, **self._leaving}
        if partition is not None and partition not in held:
            raise ClientMistake(f"this member does not read partition {partition}")
        if offset is not None and partition is None and len(held) != 1:
            raise ClientMistake("an offset belongs to one partition: say which")
        chosen = held.values() if partition is None else [held[partition]]
        if offset is None:
            targets = {cursor.partition_id: cursor.handed_out for cursor in chosen if cursor.handed_out >= 0}
        else:
            targets = {cursor.partition_id: offset for cursor in chosen}
        fenced = self._store(targets, automatic=False, deadline=deadline)
        if fenced:
            named = ", ".join(map(str, fenced))
            raise PartitionRevoked(f"partition {named} is this member's no longer in group {self._membership.group!r}")

    def _commit_behind(self) -> None:
        targets = self._uncommitted(self._cursors)
        if targets:
            self._store(targets, automatic=True, deadline=time.monotonic() + TIMEOUT_S)

    def _uncommitted(self, cursors: Any) -> dict[int, int]:
        return {
            cursor.partition_id: cursor.handed_out
            for cursor in cursors
            if cursor.handed_out >= 0 and cursor.handed_out != self._committed.get(cursor.partition_id)
        }

    def _store(self, targets: Mapping[int, int], *, automatic: bool, deadline: float) -> list[int]:
        """Stores, and lets go of what is leaving and finished by that. The partitions that were not ours any more."""
        released = [
            partition_id
            for partition_id, cursor in self._leaving.items()
            if cursor.handed_out < 0
            or targets.get(partition_id, self._committed.get(partition_id, -1)) == cursor.handed_out
        ]
        if not targets and not released:
            return []
        fenced = list(self._commit_now(targets, released, automatic, deadline))
        self._committed.update(targets)
        for partition_id in {*fenced, *released}:
            self._drop(partition_id)
        return sorted(fenced)

    # --- ending -------------------------------------------------------------------------------------------------------
    def close(self, timeout: float | None = TIMEOUT_S) -> None:
        """Finishes automatic commits, leaves the group and closes. Batches handed out stay readable."""
        try:
            super().close(timeout)
        finally:
            self._close_membership()
            for cursor in self._leaving.values():
                cursor.close()
            self._leaving.clear()

    def _finish(self, deadline: float) -> None:
        try:
            if self._auto_commit:
                held = [*self._cursors, *self._leaving.values()]
                self._store(self._uncommitted(held), automatic=False, deadline=deadline)
        finally:
            if self._membership.session.refusal is None:
                self._membership.leave(deadline)


def local_commit(membership: Membership) -> Commit:
    """Of a local member: all in one request, and the front is told what is let go of."""

    def commit(targets: Mapping[int, int], released: Sequence[int], automatic: bool, deadline: float) -> Sequence[int]:
        reply = membership.session.request(
            local.CommitGroup(
                membership.stream, membership.topic, membership.group,
                list(targets), list(targets.values()), automatic, list(released),
            ),
            deadline,
        )  # fmt: skip
        assert isinstance(reply, local.CommitGroupReply)
        return reply.fenced

    return commit


def wire_commit(membership: Membership) -> Commit:
    """Of a member on TCP: one request for each partition. The broker sees by itself what is finished."""
    who = Who(CONSUMER_GROUP, membership.group)

    def commit(targets: Mapping[int, int], released: Sequence[int], automatic: bool, deadline: float) -> Sequence[int]:
        del released, automatic
        fenced = []
        for partition_id, offset in targets.items():
            request = offsets.StoreConsumerOffset(who, membership.stream, membership.topic, partition_id, offset)
            try:
                membership.session.request(request, deadline)
            except (PartitionRevoked, NotFound):
                fenced.append(partition_id)
        return fenced

    return commit
