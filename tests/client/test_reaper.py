"""What a client does with answers that are slow, missing or wrong: real lanes, a process that answers as told."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, ThreadPoolExecutor, as_completed, wait
from typing import Any

import pytest

from shmbroker.client.lanes import Port
from shmbroker.client.linger import Linger
from shmbroker.client.route import Route
from shmbroker.client.ticket import StillInFlight, Ticket
from shmbroker.errors import BatchTooLarge, BufferFull, Closed, ErrorCode, JournalFull, OutcomeUnknown, ShmbrokerError
from shmbroker.limits import LANE_IN_FLIGHT_MAX, LANE_SIZE_DEFAULT, MIB
from tests.client.scripted import ScriptedBroker, route_of, scripted_port

LONG_S = 30.0


@pytest.fixture
def scripted() -> Iterator[tuple[ScriptedBroker, Port]]:
    with scripted_port() as pair:
        yield pair


def put(route: Route, count: int = 1, *, size: int = 100, timeout: float = LONG_S, awaited: bool = False) -> Ticket:
    return route.put([b"m" * size] * count, None, None, time.monotonic() + timeout, awaited)


def test_a_sender_reaps_its_own_answer(scripted: tuple[ScriptedBroker, Port]) -> None:
    route = route_of(scripted[1])
    confirmations = [put(route, count, awaited=True).result(LONG_S) for count in (1, 3, 1000, 1)]
    assert [(each.base_offset, each.count) for each in confirmations] == [(0, 1), (1, 3), (4, 1000), (1004, 1)]
    assert scripted[1].reaper._rescue is None, "a sender that waits needs no rescue thread"


def test_threads_that_wait_for_different_answers_all_get_theirs(scripted: tuple[ScriptedBroker, Port]) -> None:
    routes = [route_of(scripted[1]) for _ in range(8)]

    def send_many(route: Route) -> list[int]:
        return [put(route, awaited=True).result(LONG_S).base_offset for _ in range(200)]

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(send_many, routes))
    assert sorted(offset for offsets in found for offset in offsets) == list(range(1600))
    assert all(offsets == sorted(offsets) for offsets in found)
    assert not scripted[1].reaper.pending


def test_impatient_threads_lose_no_answer(scripted: tuple[ScriptedBroker, Port], seed: int) -> None:
    """Threads that wait, give up, look again, fill the route and flush, all at once."""
    routes = [route_of(scripted[1], max_in_flight=5) for _ in range(2)]

    def work(number: int) -> int:
        chance = random.Random(seed + number)
        confirmed = 0
        for _ in range(150):
            ticket = put(routes[number % 2], awaited=chance.random() < 0.5)
            while not ticket.done():
                try:
                    confirmed += ticket.result(chance.choice([0.0, 0.0001, 0.002, LONG_S])).count
                    break
                except StillInFlight:
                    if chance.random() < 0.2:
                        routes[0].wait_settled(routes[0].sent_count, time.monotonic() + LONG_S)
            else:
                confirmed += ticket.result(0).count
        return confirmed

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(work, range(8))) == [150] * 8
    assert [route.sent_count - route.settled_count for route in routes] == [0, 0]


def test_followers_are_woken_when_the_leader_leaves(scripted: tuple[ScriptedBroker, Port]) -> None:
    broker, port = scripted
    route = route_of(port)
    put(route, awaited=True).result(LONG_S)
    broker.say("hold")
    tickets = [put(route, awaited=True) for _ in range(6)]
    started = threading.Barrier(7)

    def wait_for(ticket: Ticket) -> int:
        started.wait(LONG_S)
        return ticket.result(LONG_S).base_offset

    with ThreadPoolExecutor(6) as threads:
        waiting = [threads.submit(wait_for, ticket) for ticket in tickets]
        started.wait(LONG_S)
        broker.say("release")
        assert [each.result(LONG_S) for each in waiting] == [1, 2, 3, 4, 5, 6]


def test_a_wait_that_runs_out_says_that_the_request_is_under_way(scripted: tuple[ScriptedBroker, Port]) -> None:
    broker, port = scripted
    route = route_of(port)
    put(route, awaited=True).result(LONG_S)
    broker.say("hold")
    ticket = put(route, awaited=True)
    with pytest.raises(StillInFlight) as raised:
        ticket.result(0.05)
    assert isinstance(raised.value, TimeoutError)
    assert isinstance(raised.value, OutcomeUnknown)
    assert raised.value.ticket is ticket
    assert ticket.running()
    assert not ticket.done()
    assert not ticket.cancel()
    broker.say("release")
    assert ticket.result(LONG_S).base_offset == 1
    assert ticket.exception() is None


def test_tickets_are_futures_for_the_standard_library(scripted: tuple[ScriptedBroker, Port]) -> None:
    broker, port = scripted
    route = route_of(port)
    tickets = [put(route) for _ in range(50)]
    done, not_done = wait(tickets, LONG_S)
    assert done == set(tickets)
    assert not not_done
    broker.say("hold")
    tickets = [put(route) for _ in range(5)]
    done, not_done = wait(tickets, 0.05, FIRST_COMPLETED)
    assert not done
    broker.say("release")
    assert {each.result(LONG_S).base_offset for each in as_completed(tickets, LONG_S)} == set(range(50, 55))
    broker.say(f"fail {ErrorCode.JOURNAL_FULL.value}")
    refused = [put(route) for _ in range(2)]
    done, _ = wait(refused, LONG_S, FIRST_EXCEPTION)
    assert any(isinstance(each.exception(LONG_S), JournalFull) for each in done)


def test_tickets_are_awaited_by_asyncio(scripted: tuple[ScriptedBroker, Port]) -> None:
    route = route_of(scripted[1])

    async def send() -> list[int]:
        futures = [asyncio.wrap_future(put(route)) for _ in range(20)]
        return [(await future).base_offset for future in futures]

    assert asyncio.run(send()) == list(range(20))


def test_callbacks_run_though_nobody_waits_and_the_rescue_sleeps_after(
    scripted: tuple[ScriptedBroker, Port], eventually: Any
) -> None:
    port = scripted[1]
    route = route_of(port)
    seen: list[int] = []
    tickets = [put(route) for _ in range(10)]
    for ticket in tickets:
        ticket.add_done_callback(lambda done: seen.append(done.result().base_offset))
    eventually(lambda: len(seen) == 10, "ten callbacks")
    assert sorted(seen) == list(range(10))
    eventually(lambda: port.reaper.rescue_asleep, "the rescue thread to sleep")


def test_a_callback_may_send_and_wait(scripted: tuple[ScriptedBroker, Port], eventually: Any) -> None:
    route = route_of(scripted[1])
    offsets: list[int] = []

    def go_on(done: Any) -> None:
        offsets.append(done.result().base_offset)
        if len(offsets) < 5:
            offsets.append(put(route, awaited=True).result(LONG_S).base_offset)
            put(route).add_done_callback(go_on)

    put(route).add_done_callback(go_on)
    eventually(lambda: len(offsets) == 5, "five answers")
    assert offsets == [0, 1, 2, 3, 4]


def test_a_callback_that_fails_harms_nobody(
    scripted: tuple[ScriptedBroker, Port], caplog: pytest.LogCaptureFixture
) -> None:
    route = route_of(scripted[1])
    first, second = put(route), put(route)
    first.add_done_callback(lambda _: 1 // 0)
    assert second.result(LONG_S).base_offset == 1
    assert first.result(LONG_S).base_offset == 0


def test_an_answer_of_the_broker_becomes_its_error(scripted: tuple[ScriptedBroker, Port]) -> None:
    broker, port = scripted
    route = route_of(port)
    put(route, awaited=True).result(LONG_S)
    broker.say(f"fail {ErrorCode.JOURNAL_FULL.value}")
    ticket = put(route)
    with pytest.raises(JournalFull, match="stream/topic, partition 0: journal full") as raised:
        ticket.result(LONG_S)
    assert raised.value.number == ErrorCode.JOURNAL_FULL
    assert ticket.exception() is raised.value
    assert ticket.record is not None, "what was not accepted can be sent again"


def test_a_failed_ticket_is_freed_with_its_batch_at_once(scripted: tuple[ScriptedBroker, Port]) -> None:
    broker, port = scripted
    route = route_of(port)
    put(route, awaited=True).result(LONG_S)
    broker.say(f"fail {ErrorCode.JOURNAL_FULL.value}")
    ticket = put(route)
    watched = weakref.ref(ticket)
    with pytest.raises(JournalFull):
        ticket.result(LONG_S)
    route.failure = None  # as a flush does
    gc.disable()
    try:
        del ticket
        assert watched() is None
    finally:
        gc.enable()


def test_a_route_keeps_fewer_in_flight_than_the_worker_remembers(scripted: tuple[ScriptedBroker, Port]) -> None:
    broker, port = scripted
    route = route_of(port, max_in_flight=4)
    put(route, awaited=True).result(LONG_S)
    broker.say("hold")
    tickets = [put(route) for _ in range(4)]
    with pytest.raises(BufferFull, match="max_in_flight"):
        put(route, timeout=0.05)
    broker.say("release")
    tickets.append(put(route))
    assert [ticket.result(LONG_S).base_offset for ticket in tickets] == [1, 2, 3, 4, 5]


def test_a_full_lane_waits_and_then_refuses_with_nothing_sent(scripted: tuple[ScriptedBroker, Port]) -> None:
    broker, port = scripted
    routes = [route_of(port, 255) for _ in range(5)]
    put(routes[0], awaited=True).result(LONG_S)
    broker.say("hold")
    tickets = [put(routes[number % 5]) for number in range(LANE_IN_FLIGHT_MAX)]
    assert len(port.reaper.pending) == LANE_IN_FLIGHT_MAX
    with pytest.raises(BufferFull, match="in flight"):
        put(routes[0], timeout=0.05)
    broker.say("deaf")
    broker.say("release")
    assert sorted(ticket.result(LONG_S).base_offset for ticket in tickets) == list(range(1, LANE_IN_FLIGHT_MAX + 1))
    assert put(routes[0]).result(LONG_S).base_offset == LANE_IN_FLIGHT_MAX + 1, "what was refused took no offset"


def test_a_lane_full_of_bytes_goes_on_when_the_worker_does(scripted: tuple[ScriptedBroker, Port]) -> None:
    broker, port = scripted
    route = route_of(port, 255)
    put(route, awaited=True).result(LONG_S)
    broker.say("deaf")
    size = LANE_SIZE_DEFAULT // 5
    tickets = [put(route, size=size) for _ in range(4)]
    with pytest.raises(BufferFull, match="is full"):
        put(route, size=size, timeout=0.05)
    with ThreadPoolExecutor(1) as thread:
        late = thread.submit(put, route, size=size)
        broker.say("release")
        tickets.append(late.result(LONG_S))
    assert [ticket.result(LONG_S).base_offset for ticket in tickets] == [1, 2, 3, 4, 5]


def test_rule_07_a_dead_worker_leaves_the_outcome_unknown_and_a_new_lane_is_taken(
    scripted: tuple[ScriptedBroker, Port],
) -> None:
    broker, port = scripted
    route = route_of(port)
    put(route, awaited=True).result(LONG_S)
    broker.say("hold")
    tickets = [put(route) for _ in range(5)]
    with ThreadPoolExecutor(5) as threads:
        waiting = [threads.submit(ticket.exception, LONG_S) for ticket in tickets]
        broker.bury(ErrorCode.LANE_CLOSED)
        errors = [each.result(LONG_S) for each in waiting]
    assert all(isinstance(error, OutcomeUnknown) and not isinstance(error, StillInFlight) for error in errors)
    assert all(ticket.record is not None for ticket in tickets)
    again = route.put_again(tickets[0], time.monotonic() + LONG_S)
    assert again.result(LONG_S).count == 1
    assert tickets[0].record is None
    assert len(broker.opened) == 2


def test_rule_07_nothing_is_offered_to_a_lane_that_is_known_to_be_dead(scripted: tuple[ScriptedBroker, Port]) -> None:
    broker, port = scripted
    route = route_of(port)
    put(route, awaited=True).result(LONG_S)
    broker.bury(ErrorCode.LANE_CLOSED)
    assert put(route).result(LONG_S).base_offset == 0, "a new worker, that begins with 0"
    assert len(broker.opened) == 2


def test_a_broker_that_has_gone_ends_every_wait(scripted: tuple[ScriptedBroker, Port]) -> None:
    broker, port = scripted
    route = route_of(port)
    put(route, awaited=True).result(LONG_S)
    broker.say("hold")
    ticket, other = put(route), put(route, awaited=True)
    broker.alive = False
    with pytest.raises(OutcomeUnknown, match="may have been carried out"):
        ticket.result(LONG_S)
    assert isinstance(other.exception(LONG_S), OutcomeUnknown)


def test_a_closed_port_refuses_and_settles_what_is_left(scripted: tuple[ScriptedBroker, Port]) -> None:
    broker, port = scripted
    route = route_of(port)
    put(route, awaited=True).result(LONG_S)
    broker.say("hold")
    ticket = put(route)
    port.close(Closed("closed by the test"))
    assert isinstance(ticket.exception(LONG_S), OutcomeUnknown)
    with pytest.raises(Closed, match="closed by the test"):
        put(route)
    assert route.sent_count - route.settled_count == 0


def test_closing_ends_the_wait_of_another_thread(scripted: tuple[ScriptedBroker, Port]) -> None:
    broker, port = scripted
    route = route_of(port)
    put(route, awaited=True).result(LONG_S)
    broker.say("hold")
    ticket = put(route, awaited=True)
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(ticket.exception)
        port.close(Closed("closed by the test"))
        assert isinstance(waiting.result(LONG_S), OutcomeUnknown)


def test_rule_18_a_large_record_gets_a_larger_lane_after_all_before_it(scripted: tuple[ScriptedBroker, Port]) -> None:
    broker, port = scripted
    route = route_of(port)
    small = [put(route) for _ in range(20)]
    large = put(route, size=3 * MIB)
    after = put(route)
    offsets = [ticket.result(LONG_S).base_offset for ticket in (*small, large, after)]
    assert [size for size, _ in broker.opened] == [LANE_SIZE_DEFAULT, 64 * MIB]
    assert offsets == [*range(20), 0, 1], "the second worker begins with 0: what came before it was answered"


def test_rule_18_a_record_above_every_lane_is_refused(scripted: tuple[ScriptedBroker, Port]) -> None:
    route = route_of(scripted[1])
    with pytest.raises(BatchTooLarge):
        put(route, 40, size=2 * MIB)
    assert not scripted[0].opened


def test_a_larger_lane_waits_for_what_is_under_way_only_so_long(scripted: tuple[ScriptedBroker, Port]) -> None:
    broker, port = scripted
    route = route_of(port)
    put(route, awaited=True).result(LONG_S)
    broker.say("hold")
    before = put(route)
    with pytest.raises(BufferFull, match="still under way"):
        put(route, size=2 * MIB, timeout=0.05)
    broker.say("release")
    assert before.result(LONG_S).base_offset == 1
    assert put(route).result(LONG_S).base_offset == 2, "the small lane goes on"


# --- linger ---------------------------------------------------------------------------------------------------------
def lingering(linger_s: float, count: int = 1000, size: int = MIB) -> Linger:
    return Linger(linger_s, count, size, LONG_S)


def submit(linger: Linger, route: Route, *messages: bytes, **options: Any) -> Ticket:
    return linger.submit(route, messages, options.get("headers"), options.get("ids"), time.monotonic() + LONG_S)


def test_submissions_that_linger_share_a_batch_and_each_gets_its_own_offsets(
    scripted: tuple[ScriptedBroker, Port],
) -> None:
    route = route_of(scripted[1])
    linger = lingering(3600)
    tickets = [submit(linger, route, *[b"x"] * count) for count in (1, 2, 3)]
    assert not any(ticket.done() for ticket in tickets)
    with pytest.raises(StillInFlight, match="linger"):
        tickets[0].result(0.01)
    linger.flush(time.monotonic() + LONG_S)
    found = [(each.base_offset, each.count) for each in (ticket.result(LONG_S) for ticket in tickets)]
    assert found == [(0, 1), (1, 2), (3, 3)]
    assert route.sent_count == route.settled_count == 1
    linger.stop()


@pytest.mark.parametrize(("count", "size"), [(6, MIB), (1000, 600)])
def test_a_full_batch_does_not_linger(scripted: tuple[ScriptedBroker, Port], count: int, size: int) -> None:
    route = route_of(scripted[1])
    linger = lingering(3600, count, size)
    tickets = [submit(linger, route, b"x" * 100, b"y" * 100) for _ in range(6)]
    assert [ticket.result(LONG_S).base_offset for ticket in tickets] == [0, 2, 4, 6, 8, 10]
    assert route.sent_count == 2
    linger.stop()


def test_what_lingered_long_enough_is_sent_by_the_clock(scripted: tuple[ScriptedBroker, Port]) -> None:
    routes = [route_of(scripted[1]), route_of(scripted[1])]
    linger = lingering(0.02)
    tickets = [submit(linger, route, b"x") for route in routes for _ in range(2)]
    seen = threading.Event()
    tickets[-1].add_done_callback(lambda _: seen.set())
    assert {ticket.result(LONG_S).count for ticket in tickets} == {1}
    assert seen.wait(LONG_S)
    assert [route.sent_count for route in routes] == [1, 1]
    linger.stop()


def test_a_bad_submission_does_not_harm_those_it_would_have_joined(scripted: tuple[ScriptedBroker, Port]) -> None:
    route = route_of(scripted[1])
    linger = lingering(3600)
    good = submit(linger, route, b"x", headers={"k": "v"}, ids=[7])
    for messages, options in [
        ((), {}), ((b"",), {}), (("text",), {}), ((b"x",), {"ids": [1, 2]}), ((b"x",), {"ids": [-1]}),
        ((b"x",), {"headers": [None, None]}), ((b"x",), {"headers": {"": 1}}),
    ]:  # fmt: skip
        with pytest.raises(ShmbrokerError):
            submit(linger, route, *messages, **options)
    linger.flush(time.monotonic() + LONG_S)
    assert good.result(LONG_S).count == 1
    linger.stop()


def test_what_cannot_be_sent_settles_its_tickets(scripted: tuple[ScriptedBroker, Port]) -> None:
    route = route_of(scripted[1])
    linger = lingering(3600)
    tickets = [submit(linger, route, b"x"), submit(linger, route, b"y")]
    called = threading.Event()
    tickets[1].add_done_callback(lambda _: called.set())
    scripted[1].refusal = Closed("gone")
    linger.flush(time.monotonic() + LONG_S)
    assert called.is_set()
    assert all(isinstance(ticket.exception(0), Closed) for ticket in tickets)
    linger.stop()
