"""Producers under load, and the one oracle for what a log may hold after anything has died.

Every payload says who sent it and as which one of his; the rest of it is random, and remembered. So whatever is found
in a log can be held against what was sent and what was acknowledged:

- acknowledged is a subset of found, each at its confirmed offset, every byte of it;
- found is in the order in which each producer sent, nothing twice, and nothing that nobody sent. Only what was under
  way together when a worker died, and was sent again because nobody knew what had become of it, may have changed places
  among itself: a later batch may have found the next worker before the earlier one was repeated;
- an offset is issued once, over all lives of the log.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

from shmbroker.client.client import Client
from shmbroker.client.producer import Producer
from shmbroker.client.ticket import Ticket
from shmbroker.errors import OutcomeUnknown, ShmbrokerError
from tests.processes.conftest import WAIT_S

Found = list[tuple[int, bytes]]
"""Offset and payload of every message of a log, as a consumer gets them."""
IN_FLIGHT = 8


class Load:
    """One producer on a thread of its own, until it is told to stop, or its first error that it may not repeat.

    ``gate``: after its first window it goes on only when this is set.

    ``resends``: what has no known outcome is sent again under the same number, in the old order, as long as it takes.
    """

    def __init__(
        self, connect: Callable[[], Client], topic: str, rng: random.Random, *,
        name: int = 0, partition: int = 0, resends: bool = False, size_max: int = 300, in_flight: int = IN_FLIGHT,
        gate: threading.Event | None = None,
    ) -> None:  # fmt: skip
        self.sent: list[bytes] = []
        self.acknowledged: dict[int, bytes] = {}
        self.error: ShmbrokerError | None = None
        """What ended it, if it was not told to stop."""
        self.name = name
        self.windows: dict[int, int] = {}
        """For each message of a window of which something was repeated: the first message of the window."""
        self._connect = connect
        self._topic = topic
        self._partition = partition
        self._rng = random.Random(rng.getrandbits(64))
        self._resends = resends
        self._size_max = size_max
        self._in_flight = in_flight
        self._gate = gate
        self._stopping = threading.Event()
        self._progress = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"load {name} of {topic}", daemon=True)

    def start(self) -> Load:
        self._thread.start()
        return self

    def await_started(self) -> Load:
        """Until anything at all is acknowledged."""
        return self._await(1)

    def await_acknowledged(self, count: int) -> Load:
        """Until ``count`` messages more than now are acknowledged. Fails the test where the producer ends first."""
        return self._await(len(self.acknowledged) + count)

    def _await(self, target: int) -> Load:
        with self._progress:
            done = self._progress.wait_for(lambda: len(self.acknowledged) >= target or not self.is_alive, WAIT_S)
        assert done, f"{target} acknowledged messages, there are {len(self.acknowledged)}"
        assert len(self.acknowledged) >= target, f"the producer ended: {self.error!r}"
        return self

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive() and self.error is None

    def stop(self) -> Load:
        """Has it end after what is under way, and waits for that."""
        self._stopping.set()
        return self.join()

    def join(self) -> Load:
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), "the producer hangs"
        return self

    def _run(self) -> None:
        try:
            with self._connect() as client, client.producer("s", self._topic) as producer:
                while not self._stopping.is_set():
                    self._send_some(producer)
                    if self._gate is not None:
                        self._gate.wait(WAIT_S)
        except ShmbrokerError as error:
            self.error = error
        with self._progress:
            self._progress.notify_all()

    def _send_some(self, producer: Producer) -> None:
        """A window of batches; its acknowledgements are noted even where a later one has none."""
        first = len(self.sent)
        batches = [self._batch() for _ in range(self._in_flight)]
        tickets: list[Ticket] = []
        failure: ShmbrokerError | None = None
        for batch in batches:
            try:
                tickets.append(producer.submit(batch, partition=self._partition))
            except ShmbrokerError as error:
                failure = error
                break
        if self._resends:
            assert failure is None, failure
            if settle(producer, tickets):
                self.windows.update(dict.fromkeys(range(first, len(self.sent)), first))
        for ticket, batch in zip(tickets, batches, strict=False):
            try:
                confirmation = ticket.result(WAIT_S)
            except ShmbrokerError as error:
                failure = failure or error
                continue
            assert confirmation.count == len(batch)
            self._note(confirmation.base_offset, batch)
        if failure is not None:
            raise failure

    def _note(self, base_offset: int, batch: list[bytes]) -> None:
        with self._progress:
            for index, payload in enumerate(batch):
                assert base_offset + index not in self.acknowledged, f"offset {base_offset + index} issued twice"
                self.acknowledged[base_offset + index] = payload
            self._progress.notify_all()

    def _batch(self) -> list[bytes]:
        first = len(self.sent)
        batch = [
            b"%d.%d." % (self.name, first + index) + self._rng.randbytes(self._rng.randrange(self._size_max))
            for index in range(self._rng.randrange(1, 5))
        ]
        self.sent += batch
        return batch


def settle(producer: Producer, tickets: list[Ticket]) -> bool:
    """Repeats, in place and in the old order, what has no known outcome, until everything has one (rule 7). Whether
    anything had to be."""
    repeated = False
    while True:
        unknown = []
        for index, ticket in enumerate(tickets):
            try:
                ticket.result(WAIT_S)
            except OutcomeUnknown:
                unknown.append(index)
        if not unknown:
            return repeated
        repeated = True
        for index in unknown:
            tickets[index] = producer.resend(tickets[index])


def read_log(client: Client, topic: str, partition: int = 0, *, start: int | None = None) -> Found:
    """Everything that is visible, from ``start`` on."""
    found: Found = []
    where: dict[str, int | bool] = {"first": True} if start is None else {"offset": start}
    with client.consumer("s", topic, partition=partition, **where) as consumer:  # type: ignore[arg-type]
        while batches := consumer.poll(max_messages=10_000, timeout=0.0):
            for batch in batches:
                found += [(batch.base_offset + index, payload) for index, payload in enumerate(batch.payloads())]
    return found


def check(found: Found, loads: list[Load], *, everything: bool = False, prefix_only: bool = False) -> None:
    """Holds a log against the producers that wrote it.

    ``everything``: all that was sent is there too (it was repeated until it was known to be). ``prefix_only``: what was
    acknowledged may be missing from some message on (a ``replicated`` topic after the power failed), nothing before it.
    """
    by_offset = dict(found)
    assert len(by_offset) == len(found), "an offset was handed out twice"
    assert [offset for offset, _ in found] == sorted(by_offset), "offsets run forwards"
    senders = {load.name: load for load in loads}
    numbers: dict[int, list[int]] = {name: [] for name in senders}
    for offset, payload in found:
        name, number, _ = payload.split(b".", 2)
        assert int(name) in senders, f"offset {offset}: nobody sent {payload[:40]!r}"
        assert payload == senders[int(name)].sent[int(number)], f"offset {offset}: damaged, or invented"
        numbers[int(name)].append(int(number))
    for name, order in numbers.items():
        assert len(set(order)) == len(order), f"producer {name}: twice"
        places = [senders[name].windows.get(number, number) for number in order]
        assert places == sorted(places), f"producer {name}: out of order"
        if everything:
            assert sorted(order) == list(range(len(senders[name].sent))), f"producer {name}: lost"
    acknowledged = {offset: payload for load in loads for offset, payload in load.acknowledged.items()}
    assert len(acknowledged) == sum(len(load.acknowledged) for load in loads), "an offset was confirmed twice"
    end = found[-1][0] + 1 if found else 0
    wanted = {offset: payload for offset, payload in acknowledged.items() if offset < end or not prefix_only}
    lost = {offset: payload for offset, payload in wanted.items() if by_offset.get(offset) != payload}
    assert not lost, f"{len(lost)} of {len(acknowledged)} acknowledged messages are lost, from {min(lost)} on"
    if prefix_only:
        assert [offset for offset, _ in found] == list(range(len(found))), "a prefix has no gap"
