"""Parts of the worker and of the link, each alone: the group flush, watches, long answers, rights."""

from __future__ import annotations

import json
import os
import random
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from shmbroker.errors import DiskFailed, ErrorCode, LaneBroken
from shmbroker.formats.link import (
    PACKET,
    PACKET_SIZE,
    PACKET_TEXT_SIZE_MAX,
    RIGHT_APPEND,
    RIGHT_READ,
    RIGHTS,
    RIGHTS_ALL,
    packets_of,
)
from shmbroker.limits import MIB
from shmbroker.shm.doorbell import EventDoorbell
from shmbroker.storage.disk import FileDisk
from shmbroker.storage.partition_log import JournalBudget, LogOptions
from shmbroker.workers.flush import flush_together
from shmbroker.workers.lanes import grant_of
from shmbroker.workers.link import Link
from shmbroker.workers.partitions import Partitions
from shmbroker.workers.watches import Watches
from tests.storage.memory_runtime import MemoryRuntime


class Target:
    """Something to flush whose calls say that they ran; ``fails`` of them fail."""

    def __init__(self, count: int, *, fails: frozenset[int] = frozenset()) -> None:
        self.count = count
        self.fails = fails
        self.ran: set[int] = set()
        self.finished: list[BaseException | None] = []
        self.threads: set[int] = set()

    def prepare_flush(self, *, sync: bool) -> list[Callable[[], None]]:
        assert sync
        return [self._call(number) for number in range(self.count)]

    def _call(self, number: int) -> Callable[[], None]:
        def call() -> None:
            self.ran.add(number)
            self.threads.add(threading.get_ident())
            if number in self.fails:
                raise DiskFailed(f"call {number}")

        return call

    def finish_flush(self, error: BaseException | None) -> None:
        assert self.ran == set(range(self.count)), "no call is under way any more"
        self.finished.append(error)


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(3) as pool:
        yield pool


def test_group_flush_runs_every_call_and_blames_only_the_target_that_failed(
    executor: ThreadPoolExecutor, rng: random.Random
) -> None:
    for _ in range(50):
        targets = [Target(rng.randrange(4)) for _ in range(rng.randrange(1, 6))]
        for target in targets:
            if target.count and rng.random() < 0.4:
                target.fails = frozenset(rng.sample(range(target.count), rng.randint(1, target.count)))
        failed = flush_together(targets, executor, sync=True)
        assert set(failed) == {target for target in targets if target.fails}
        for target in targets:
            assert len(target.finished) == (1 if target.count else 0), "nothing to write: nothing to finish"
            assert [error is not None for error in target.finished] == ([bool(target.fails)] if target.count else [])


def test_group_flush_of_one_file_stays_on_the_thread_of_the_loop(executor: ThreadPoolExecutor) -> None:
    target = Target(1)
    assert flush_together([target], executor, sync=True) == {}
    assert target.threads == {threading.get_ident()}


def test_rule_15_each_bell_rings_once_a_pass_and_a_dead_one_is_dropped() -> None:
    watches = Watches()
    both, other = EventDoorbell.create(), EventDoorbell.create()
    watches.add(1, 10, both, [1, 2])
    watches.add(2, 11, other, [3])
    assert both.wait(1.0), "a new watch looks once"
    assert other.wait(1.0)
    watches.ring([1, 2])
    assert os.read(both.fileno(), 10) == b"!", "once, for two logs"
    assert not other.wait(0.0)
    watches.ring([9])
    assert not both.wait(0.0)
    other.close()
    watches.ring([3])
    assert len(watches) == 1, "a bell that cannot be rung is dropped"
    watches.end_session(10)
    assert len(watches) == 0
    watches.ring([1, 2, 3])
    watches.close()


def test_answers_of_any_length_arrive_whole(rng: random.Random) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link = Link(theirs.detach())
    ours.settimeout(20)
    text = "".join(rng.choices("abc\u00e9\u2603", k=5 * PACKET_TEXT_SIZE_MAX))
    link.answer(7, {"text": text}, ErrorCode.DISK_FULL)
    link.notice({"notice": "lane-closed"})
    pieces: dict[int, bytes] = {}
    ended: list[tuple[int, int]] = []
    while len(ended) < 2:
        packet = ours.recv(PACKET_SIZE + PACKET_TEXT_SIZE_MAX)
        number, status, more = PACKET.unpack_from(packet)
        pieces[number] = pieces.get(number, b"") + packet[PACKET_SIZE:]
        if not more:
            ended.append((number, status))
    assert ended == [(7, ErrorCode.DISK_FULL), (0, 0)]
    assert json.loads(pieces[0]) == {"notice": "lane-closed"}
    assert json.loads(pieces[7]) == {"text": text}
    link.close()
    ours.close()


def test_descriptors_are_matched_by_their_number() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link = Link(theirs.detach())
    with pytest.raises(LaneBroken):
        link.descriptors(1)
    first, second = os.memfd_create("first"), os.memfd_create("second")
    socket.send_fds(ours, [PACKET.pack(1, 0, 0)], [first])
    socket.send_fds(ours, [PACKET.pack(2, 0, 0)], [second, first])
    late, early = link.descriptors(2), link.descriptors(1)
    assert [os.readlink(f"/proc/self/fd/{fd}").split(":")[1].split()[0] for fd in (*late, *early)] == [
        "second",
        "first",
        "first",
    ]
    for fd in (*late, *early, first, second):
        os.close(fd)
    link.close()
    ours.close()


def test_packets_are_one_even_for_no_text() -> None:
    assert packets_of(3, 4, b"") == [PACKET.pack(3, 4, 0)]
    whole = packets_of(3, 0, bytes(PACKET_TEXT_SIZE_MAX + 1))
    assert [PACKET.unpack_from(packet)[2] for packet in whole] == [1, 0]
    assert sum(RIGHTS.values()) == RIGHTS_ALL


class Maintained:
    """A log as the upkeep sees it: says when it was looked at."""

    def __init__(self, *, message_expiry_us: int = 0) -> None:
        self.options = LogOptions(message_expiry_us=message_expiry_us)
        self.looks: list[int] = []

    def maintain(self, now_us: int) -> None:
        self.looks.append(now_us)


def test_upkeep_goes_on_when_the_clock_is_set_back(executor: ThreadPoolExecutor) -> None:
    partitions = Partitions(FileDisk(), MemoryRuntime(), JournalBudget(MIB), executor, "/data", 1, 1_000_000)
    busy: Any = Maintained()
    limited: Any = Maintained(message_expiry_us=1)
    partitions.logs[1] = limited
    partitions.active[busy] = 50_000_000
    times = [50_000_000, 50_900_000, 10_000_000, 10_900_000, 11_000_000]
    for now_us in times:
        partitions.maintain(now_us)
    assert limited.looks == [50_000_000, 10_000_000, 11_000_000], "a second apart, whatever the clock says"
    assert busy.looks == [50_000_000, 10_000_000]
    assert not partitions.active, "what was busy at a time to come is not active until then"


def test_what_is_not_granted_or_not_open_refuses_without_asking() -> None:
    append, waits, log, _ = grant_of(None, RIGHT_APPEND)
    assert (append(memoryview(b""), 0)[0], waits, log) == (ErrorCode.PARTITION_REFUSED, False, None)
    append, waits, log, _ = grant_of(None, RIGHT_READ)
    assert append(memoryview(b""), 0)[0] == ErrorCode.PARTITION_NOT_GRANTED
