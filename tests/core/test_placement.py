"""Partitions on workers: the policies apart, the load even, and the same answer every time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shmbroker.core.placement import Placed, Placement

POLICIES = st.lists(st.booleans(), max_size=40)


def policies_of(placement: Placement, logs: list[Placed]) -> dict[int, set[bool]]:
    found: dict[int, set[bool]] = {}
    for log in logs:
        found.setdefault(placement.workers[log.log_id], set()).add(log.persisted)
    return found


@given(worker_count=st.integers(1, 9), started=POLICIES, later=POLICIES, removed=st.data())
def test_the_policies_are_apart_whatever_comes(
    worker_count: int, started: list[bool], later: list[bool], removed: st.DataObject
) -> None:
    logs = [Placed(log_id, persisted) for log_id, persisted in enumerate(started + later, 1)]
    placement = Placement(worker_count)
    placement.start(logs[: len(started)])
    for log in logs[len(started) :]:
        assert placement.place(log) == placement.workers[log.log_id]
    assert placement.workers.keys() == {log.log_id for log in logs}
    assert set(placement.workers.values()) <= set(range(worker_count))
    gone = removed.draw(st.sets(st.sampled_from(logs))) if logs else set()
    for log in gone:
        placement.remove(log.log_id)
    kept = [log for log in logs if log not in gone]
    more = [Placed(1000 + number, number % 2 == 0) for number in range(4)]
    for log in more:
        placement.place(log)
    for policies in policies_of(placement, kept + more).values():
        assert worker_count == 1 or len(policies) == 1


@given(worker_count=st.integers(1, 9), started=POLICIES)
def test_a_start_is_even_and_repeatable(worker_count: int, started: list[bool]) -> None:
    logs = [Placed(log_id, persisted) for log_id, persisted in enumerate(started, 1)]
    first, second = Placement(worker_count), Placement(worker_count)
    first.start(logs)
    second.start(reversed(logs))
    assert first.workers == second.workers
    for persisted in (False, True):
        workers = [first.workers[log.log_id] for log in logs if log.persisted == persisted]
        counts = [workers.count(worker) for worker in set(workers)]
        assert not counts or max(counts) - min(counts) <= 1


def test_workers_are_shared_out_by_the_number_of_partitions() -> None:
    placement = Placement(4)
    placement.start([Placed(number, number % 4 != 0) for number in range(40)])
    assert {placement.workers[number] for number in range(0, 40, 4)} == {0}
    assert {placement.workers[number] for number in range(40) if number % 4} == {1, 2, 3}


def test_each_policy_keeps_its_own_end() -> None:
    placement = Placement(3)
    assert [placement.place(Placed(number, persisted=False)) for number in range(4)] == [0, 1, 0, 1]
    assert [placement.place(Placed(10 + number, persisted=True)) for number in range(2)] == [2, 2]
    for number in (1, 3):
        placement.remove(number)
    assert placement.place(Placed(20, persisted=True)) == 1, "a worker that has become free"


def test_one_worker_has_everything() -> None:
    placement = Placement(1)
    placement.start([Placed(1, persisted=False), Placed(2, persisted=True)])
    assert placement.place(Placed(3, persisted=True)) == 0
