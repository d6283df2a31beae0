"""A consumer group: one owner each, fair shares, and rebalancing that takes nothing from who is in the middle of it."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from shmbroker.core.groups import HELD, REVOCATION_LIMIT_US, Membership

SECOND = 1_000_000


def assignments(group: Membership) -> dict[int, tuple[int, ...]]:
    return {member: group.assignment(member) for member in group.members}


def test_the_first_member_gets_everything_and_joining_twice_changes_nothing() -> None:
    group = Membership(3)
    assert group.join(7, 0)
    assert group.assignment(7) == (0, 1, 2)
    generation = group.generation
    assert not group.join(7, 0)
    assert (group.assignment(7), group.generation) == ((0, 1, 2), generation)


def test_a_second_member_gets_the_surplus_at_once_where_nothing_is_in_flight() -> None:
    group = Membership(5)
    group.join(1, 0)
    generation = group.generation
    group.join(2, 0)
    assert sorted(map(len, assignments(group).values())) == [2, 3]
    assert len(group.assignment(1)) == 3  # who was there first keeps the larger share
    assert group.generation > generation


def test_more_members_than_partitions_leaves_some_idle_until_there_is_something() -> None:
    group = Membership(2)
    for member in (1, 2, 3):
        group.join(member, 0)
    assert group.assignment(3) == ()
    group.leave(1, 0)
    assert assignments(group) == {2: (0,), 3: (1,)}


def test_what_is_in_flight_is_kept_until_it_is_committed() -> None:
    group = Membership(2)
    group.join(1, 0)
    group.polled(1, 0, 9)
    group.polled(1, 1, 9)
    group.join(2, SECOND)
    (kept,) = group.assignment(1)
    revoked = 1 - kept
    assert group.assignment(2) == ()
    assert group.poller(revoked) is None
    assert group.owner(revoked) == 1  # it may still commit
    group.committed(1, revoked, 8)
    assert group.assignment(2) == ()
    generation = group.generation
    group.committed(1, revoked, 9)
    assert group.assignment(2) == (revoked,)
    assert group.owner(revoked) == 2
    assert group.generation > generation


def test_what_is_in_flight_moves_after_the_time_limit() -> None:
    group = Membership(1)
    group.join(1, 0)
    group.polled(1, 0, 0)
    group.join(2, SECOND)
    assert group.assignment(1) == (0,)  # the share of one partition is the first member's
    assert group.next_deadline_us() is None
    group.resize(2, SECOND)
    group.leave(2, SECOND)
    group.polled(1, 1, 4)
    group.join(3, 2 * SECOND)
    assert group.next_deadline_us() == 2 * SECOND + REVOCATION_LIMIT_US
    group.expire(2 * SECOND + REVOCATION_LIMIT_US - 1)
    pending = [number for number in range(2) if group.poller(number) is None]
    assert len(pending) == 1
    assert group.assignment(3) == ()
    group.expire(2 * SECOND + REVOCATION_LIMIT_US)
    assert group.assignment(3) == tuple(pending)
    assert group.next_deadline_us() is None


def test_the_time_limit_starts_once_and_commits_count_from_the_furthest_poll() -> None:
    group = Membership(3)
    group.join(1, 0)
    for partition in range(3):
        group.polled(1, partition, 9)
        group.polled(1, partition, 5)
    group.join(2, SECOND)
    (going,) = [number for number in range(3) if group.poller(number) is None]
    group.polled(1, going, 20)  # it may not, so it counts for nothing
    group.join(3, 5 * SECOND)
    assert group.next_deadline_us() == SECOND + REVOCATION_LIMIT_US
    group.committed(1, going, 5)
    assert group.owner(going) == 1
    group.committed(1, going, 9)
    assert group.owner(going) in (2, 3)


def test_what_moves_anyway_goes_first_then_what_nobody_is_in_the_middle_of() -> None:
    group = Membership(4)
    group.join(1, 0)
    for partition in (0, 1, 3):
        group.polled(1, partition, 9)
    group.join(2, 0)
    assert group.assignment(2) == (2,)
    (going,) = [number for number in range(4) if group.poller(number) is None]
    group.join(3, 5 * SECOND)
    assert group.next_deadline_us() == REVOCATION_LIMIT_US, "its owner has had its time since the first"
    assert group.assignment(2) == (2,), "the one that is only promised is promised to another"
    group.committed(1, going, 9)
    assert group.assignment(3) == (going,)


def test_a_holder_that_dies_holds_nothing() -> None:
    group = Membership(2)
    group.join(1, 0)
    group.held(1, (0, 1))
    group.committed(1, 0, HELD)
    group.join(2, 0)
    assert group.assignment(2) == ()
    group.leave(1, 0)
    assert group.assignment(2) == (0, 1)


def test_a_leave_is_a_round_robin_in_the_order_of_joining() -> None:
    group = Membership(5)
    for member in (30, 10, 20):
        group.join(member, 0)
    group.polled(30, group.assignment(30)[0], 5)
    group.leave(10, 0)
    assert assignments(group) == {30: (0, 2, 4), 20: (1, 3)}
    group.leave(30, 0)
    group.leave(20, 0)
    assert [group.owner(number) for number in range(5)] == [None] * 5


def test_a_change_of_partitions_is_a_round_robin() -> None:
    group = Membership(1)
    group.join(1, 0)
    group.join(2, 0)
    generation = group.generation
    group.resize(4, 0)
    assert assignments(group) == {1: (0, 2), 2: (1, 3)}
    group.resize(1, 0)
    assert assignments(group) == {1: (0,), 2: ()}
    assert group.owner(3) is None
    assert group.generation >= generation + 2


def test_a_holder_gives_nothing_up_before_it_says_so_even_when_somebody_leaves() -> None:
    pending = 0
    for gone in (1, 2, 3):
        group = Membership(5)
        for member in (1, 2, 3):
            group.join(member, 0)
        for member in (1, 2, 3):
            group.held(member, group.assignment(member))
        held = {member: group.owned(member) for member in (1, 2, 3)}
        group.leave(gone, 0)
        for member in group.members:
            assert set(held[member]) <= set(group.owned(member))
        pending += sum(group.poller(number) is None for number in range(5))
        for number in range(5):
            owner = group.owner(number)
            assert owner is not None
            group.committed(owner, number, HELD - 1)  # no offset of a message frees what is held
            assert group.owner(number) == owner
            group.released(owner, [number])
        assert [len(group.assignment(member)) for member in group.members] == [3, 2]
    assert pending, "something had to move"


class GroupMachine(RuleBasedStateMachine):
    """Anything may happen in any order; what must hold is looked at after each step."""

    @initialize(partition_count=st.integers(0, 7))
    def start(self, partition_count: int) -> None:
        self.group = Membership(partition_count)
        self.now_us = 0
        self.order: list[int] = []
        self.generation = 0
        self.seen: dict[int, tuple[int, ...]] = {}
        self.in_flight: dict[int, tuple[int, int]] = {}
        """Partition to (owner, offset), as far as it is the owner's still."""

    @rule(member=st.integers(0, 5))
    def join(self, member: int) -> None:
        before = {number: self.group.owner(number) for number in self.in_flight}
        assert self.group.join(member, self.now_us) == (member not in self.order)
        if member not in self.order:
            self.order.append(member)
        assert before == {number: self.group.owner(number) for number in self.in_flight}

    @rule(member=st.integers(0, 5))
    def leave(self, member: int) -> None:
        held = {
            number: owner for number, (owner, offset) in self.in_flight.items() if offset == HELD and owner != member
        }
        assert self.group.leave(member, self.now_us) == (member in self.order)
        if member in self.order:
            self.order.remove(member)
        assert held == {number: self.group.owner(number) for number in held}

    @rule(partition_count=st.integers(0, 7))
    def resize(self, partition_count: int) -> None:
        self.group.resize(partition_count, self.now_us)
        assert self.group.partition_count == partition_count

    @rule(partition=st.integers(0, 7), offset=st.sampled_from((0, 5, 9, HELD)))
    def poll_by_owner(self, partition: int, offset: int) -> None:
        owner = self.group.owner(partition)
        if owner is not None:
            self.poll(owner, partition, offset)

    @rule(partition=st.integers(0, 7), offset=st.sampled_from((0, 4, 5, 9)))
    def commit_by_owner(self, partition: int, offset: int) -> None:
        owner = self.group.owner(partition)
        if owner is not None:
            self.commit(owner, partition, offset)

    @rule(member=st.integers(0, 5), partition=st.integers(0, 7), offset=st.sampled_from((0, 5, 9, HELD)))
    def poll(self, member: int, partition: int, offset: int) -> None:
        self.group.polled(member, partition, offset)
        if self.group.poller(partition) == member:
            _, before = self.in_flight.get(partition, (member, -1))
            self.in_flight[partition] = member, max(offset, before)

    @rule(member=st.integers(0, 5), partition=st.integers(0, 7), offset=st.sampled_from((0, 4, 5, 9)))
    def commit(self, member: int, partition: int, offset: int) -> None:
        owner = self.group.owner(partition)
        self.group.committed(member, partition, offset)
        flying = self.in_flight.get(partition)
        if flying is None or flying[0] != member or flying[1] > offset:
            assert self.group.owner(partition) == owner
        else:
            del self.in_flight[partition]

    @rule(member=st.integers(0, 5), partition=st.integers(0, 7))
    def release(self, member: int, partition: int) -> None:
        self.group.released(member, [partition])
        if self.in_flight.get(partition, (None, 0))[0] == member:
            del self.in_flight[partition]

    @rule(seconds=st.sampled_from((1, 10, 40)))
    def wait(self, seconds: int) -> None:
        self.now_us += seconds * SECOND
        self.group.expire(self.now_us)
        deadline = self.group.next_deadline_us()
        assert deadline is None or self.now_us < deadline <= self.now_us + REVOCATION_LIMIT_US

    @rule()
    def finish(self) -> None:
        """Once all that is in flight is done the shares are those of a round robin."""
        for partition, (owner, _) in list(self.in_flight.items()):
            self.group.released(owner, [partition])
        self.in_flight.clear()
        sizes = [len(self.group.assignment(member)) for member in self.order]
        if sizes:
            least, more = divmod(self.group.partition_count, len(sizes))
            assert sizes == [least + (index < more) for index in range(len(sizes))]

    @invariant()
    def holds(self) -> None:
        group = self.group
        self.in_flight = {
            number: flying for number, flying in self.in_flight.items() if group.owner(number) == flying[0]
        }
        assert list(group.members) == self.order
        for number in range(group.partition_count):
            owner = group.owner(number)
            assert (owner is None) == (not self.order)
            assert owner is None or owner in self.order
            assert group.poller(number) in (None, owner)
            if owner is not None and group.poller(number) is None:
                assert number in self.in_flight  # nobody waits for what is free
        assert group.all_owned() == {member: list(group.owned(member)) for member in self.order}
        pollable = [number for member in self.order for number in group.assignment(member)]
        assert len(set(pollable)) == len(pollable)
        seen = assignments(group)
        assert group.generation > self.generation or seen == self.seen
        assert group.generation >= self.generation
        self.seen, self.generation = seen, group.generation


TestGroupMachine = GroupMachine.TestCase
TestGroupMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
