"""``shmbroker demo``: the main job on real input, on a broker of its own, with a crash in the middle.

Every line of this Python's own standard library is a message, keyed by its file. It goes into a ``replicated`` topic,
then into a ``persisted`` one, where every process of the broker is killed with SIGKILL half-way. What the broker had
acknowledged is then looked for, message by message; what was in doubt is sent again under its first numbers; and both
topics are read back and compared with the input by count and by the sum of all message hashes, which does not depend on
their order.
"""

from __future__ import annotations

import os
import signal
import sysconfig
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from rich.table import Table
from xxhash import xxh3_64_intdigest

import shmbroker
from shmbroker.cli import output
from shmbroker.cli.stats import batches_to_each_write
from shmbroker.errors import OutcomeUnknown, Unavailable

if TYPE_CHECKING:
    from shmbroker.client.client import Client
    from shmbroker.client.embedded import Embedded
    from shmbroker.client.producer import Producer
    from shmbroker.client.ticket import Confirmation, Ticket

STREAM = "demo"
PARTITION_COUNT = 4
BATCH_COUNT_MAX = 1_000
IN_FLIGHT_MAX = 64
POLL_COUNT = 50_000
HASH_MASK = 2**64 - 1
WAIT_S = 30.0
READ_NEXT = (
    "Read next: README.md for a broker of your own (`shmbroker serve`) and for what an acknowledgement means; tuning.md"
    " for what each knob trades; ARCHITECTURE.md for the way of a batch from send to disk and back. `shmbroker bench`"
    " measures this machine."
)
SKIPPED_DIRECTORIES = {"site-packages", "dist-packages", "__pycache__"}


class Piece(NamedTuple):
    """Lines of one file that go out as one batch."""

    key: str
    lines: list[bytes]
    hash: int
    """The sum of the hashes of the lines."""


Hashes = dict[int, dict[int, int]]
"""What was read back: partition, then offset, to the hash of the message."""


@dataclass
class Run:
    """What one topic was given and gave back."""

    durability: str
    produced_count: int = 0
    produced_size: int = 0
    produce_seconds: float = 0.0
    consumed_count: int = 0
    consumed_hash: int = 0
    consume_seconds: float = 0.0
    batches_to_each_sync: float | None = None


@dataclass
class Crash:
    """What the kill did: counts of messages; the processes killed; the time until clients could connect again."""

    acknowledged: int = 0
    recovered: int = 0
    in_doubt: int = 0
    in_doubt_recovered: int = 0
    recognised: int = 0
    invented: int = 0
    killed: list[int] = field(default_factory=list)
    restart_seconds: float = 0.0

    @property
    def lost(self) -> int:
        return self.acknowledged - self.recovered


class Sending:
    """Batches on their way into one topic: in flight, then acknowledged or in doubt."""

    def __init__(self, producer: Producer, advance: Callable[[int], None]) -> None:
        self.acknowledged: list[tuple[Piece, Confirmation]] = []
        self.in_doubt: list[tuple[Piece, Ticket]] = []
        self._producer = producer
        self._advance = advance
        self._in_flight: deque[tuple[Piece, Ticket]] = deque()

    def submit(self, piece: Piece) -> None:
        self._in_flight.append((piece, self._producer.submit(piece.lines, key=piece.key)))
        while self._in_flight and self._in_flight[0][1].done():
            self._settle()

    def finish(self) -> None:
        while self._in_flight:
            self._settle()

    def _settle(self) -> None:
        piece, ticket = self._in_flight.popleft()
        try:
            confirmation = ticket.result(WAIT_S)
        except OutcomeUnknown:
            self.in_doubt.append((piece, ticket))
        else:
            self.acknowledged.append((piece, confirmation))
            self._advance(len(piece.lines))


def demo(
    messages: Annotated[int, typer.Option("--messages", min=1_000, help="At most so many lines.")] = 10_000_000,
    data: Annotated[
        Path | None, typer.Option("--data", help="Keep the broker's data here instead of deleting it at the end.")
    ] = None,
) -> None:
    """Show the main job on real input: several hundred thousand messages, a SIGKILL of the broker, nothing lost.

    `shmbroker demo`
    """
    with tempfile.TemporaryDirectory(prefix="shmbroker-demo-") as scratch:
        directory = (data or Path(scratch) / "data").resolve()
        say("Reading the standard library of this Python: each line a message, keyed by its file.")
        pieces = list(read_pieces(Path(sysconfig.get_paths()["stdlib"]), messages))
        count, total_hash = counted(pieces), sum_of(piece.hash for piece in pieces)
        say(f"  {count:,} lines of {len({piece.key for piece in pieces}):,} files, in {len(pieces):,} batches.")
        with shmbroker.embedded(directory) as broker:
            replicated = run_replicated(broker, pieces)
            persisted, crash = run_persisted(broker, pieces)
    whole = all((run.consumed_count, run.consumed_hash) == (count, total_hash) for run in (replicated, persisted))
    report(count, (replicated, persisted), crash, whole)
    if crash.lost or crash.invented or not whole:
        raise typer.Exit(1)


def say(text: str) -> None:
    output.console().print(text)


def counted(pieces: Sequence[Piece]) -> int:
    return sum(len(piece.lines) for piece in pieces)


def sum_of(hashes: Iterable[int]) -> int:
    return sum(hashes) & HASH_MASK


def read_pieces(root: Path, count_max: int) -> Iterator[Piece]:
    """The lines under ``root``, file by file. A line keeps its end, so that none is empty."""
    left = count_max
    for directory, children, names in os.walk(root):
        children[:] = sorted(set(children) - SKIPPED_DIRECTORIES)
        for name in sorted(name for name in names if name.endswith(".py")):
            path = Path(directory, name)
            lines = path.read_bytes().splitlines(keepends=True)[:left]
            left -= len(lines)
            for start in range(0, len(lines), BATCH_COUNT_MAX):
                part = lines[start : start + BATCH_COUNT_MAX]
                yield Piece(str(path.relative_to(root)), part, sum_of(map(xxh3_64_intdigest, part)))


def run_replicated(broker: Embedded, pieces: Sequence[Piece]) -> Run:
    say("replicated: a batch is acknowledged when it is in the journal, in shared memory.")
    run = Run("replicated")
    with broker.connect() as client:
        client.create_stream(STREAM)
        create_topic(client, run)
        with client.producer(STREAM, run.durability, max_in_flight=IN_FLIGHT_MAX) as producer:
            produce(producer, run, pieces)
        note_syncs(client, run)
        read_back(client, run, counted(pieces))
    return run


def run_persisted(broker: Embedded, pieces: Sequence[Piece]) -> tuple[Run, Crash]:
    say("persisted: a batch is acknowledged when it is on stable storage.")
    run, crash = Run("persisted"), Crash()
    with broker.connect() as client:
        create_topic(client, run)
        producer = client.producer(STREAM, run.durability, max_in_flight=IN_FLIGHT_MAX)
        sending, sent = produce(producer, run, pieces, kill=lambda: kill(broker, crash))
    started = time.monotonic()
    with reconnected(broker, crash) as client:
        crash.restart_seconds = time.monotonic() - started
        say(f"  Started again after {crash.restart_seconds:.2f} s; looking for every acknowledged message.")
        found = read_back(client, Run(run.durability), counted(pieces[:sent]))
        judge(crash, sending.acknowledged, [(piece, ticket.partition) for piece, ticket in sending.in_doubt], found)
        with client.producer(STREAM, run.durability, max_in_flight=IN_FLIGHT_MAX) as producer:
            send_again(producer, run, crash, sending.in_doubt)
            produce(producer, run, pieces[sent:])
        note_syncs(client, run)
        read_back(client, run, counted(pieces))
    return run, crash


def reconnected(broker: Embedded, crash: Crash) -> Client:
    """A client of the broker that was started again: its front is another process than the one killed."""
    deadline = time.monotonic() + WAIT_S
    pause = Event()
    while broker.pid in crash.killed and time.monotonic() < deadline:
        pause.wait(0.01)
    return broker.connect(timeout=WAIT_S)


def create_topic(client: Client, run: Run) -> None:
    client.create_topic(STREAM, run.durability, partitions=PARTITION_COUNT, durability=run.durability)


def produce(
    producer: Producer, run: Run, pieces: Sequence[Piece], *, kill: Callable[[], None] | None = None
) -> tuple[Sending, int]:
    """Sends all pieces, with ``kill`` called in the middle; gives back how many were handed over before it was felt."""
    handed_over = 0
    started = time.monotonic()
    with bar(f"{run.durability}: sending", counted(pieces)) as advance:
        sending = Sending(producer, advance)
        for number, piece in enumerate(pieces):
            if kill is not None and number == len(pieces) // 2:
                kill()
            try:
                sending.submit(piece)
            except (Unavailable, OutcomeUnknown):
                if kill is None:
                    raise
                break
            handed_over += 1
        sending.finish()
    run.produce_seconds += time.monotonic() - started
    run.produced_count += sum(len(piece.lines) for piece, _ in sending.acknowledged)
    run.produced_size += sum(sum(map(len, piece.lines)) for piece, _ in sending.acknowledged)
    return sending, handed_over


def read_back(client: Client, run: Run, total: int) -> Hashes:
    """Every message of the topic from its beginning to its end."""
    found: Hashes = {partition: {} for partition in range(PARTITION_COUNT)}
    started = time.monotonic()
    with (
        bar(f"{run.durability}: reading back", total) as advance,
        client.consumer(STREAM, run.durability, first=True) as consumer,
    ):
        while batches := consumer.poll(max_messages=POLL_COUNT, timeout=0):
            for batch in batches:
                hashes = list(map(xxh3_64_intdigest, batch.payloads()))
                found[batch.header.partition_id].update(
                    zip(range(batch.base_offset, batch.next_offset), hashes, strict=True)
                )
                run.consumed_hash = (run.consumed_hash + sum(hashes)) & HASH_MASK
                run.consumed_count += batch.count
                advance(batch.count)
    run.consume_seconds += time.monotonic() - started
    return found


def kill(broker: Embedded, crash: Crash) -> None:
    """SIGKILL for every process of the broker, front and workers."""
    crash.killed = broker.process_ids()
    for process_id in crash.killed:
        os.kill(process_id, signal.SIGKILL)
    say(f"  SIGKILL to all {len(crash.killed)} processes of the broker, with batches in flight.")


def judge(
    crash: Crash,
    acknowledged: Iterable[tuple[Piece, Confirmation]],
    in_doubt: Iterable[tuple[Piece, int]],
    found: Hashes,
) -> None:
    """Looks for every batch, acknowledged or headed for a partition, among what was found, and counts."""
    for piece, confirmation in acknowledged:
        there = found[confirmation.partition]
        first = confirmation.base_offset
        hashes = [there.pop(offset, 0) for offset in range(first, first + confirmation.count)]
        crash.acknowledged += len(piece.lines)
        crash.recovered += len(piece.lines) if sum_of(hashes) == piece.hash else 0
    left = {partition: [hashes[offset] for offset in sorted(hashes)] for partition, hashes in found.items()}
    for piece, partition in in_doubt:
        count = len(piece.lines)
        crash.in_doubt += count
        if sum_of(left[partition][:count]) == piece.hash:
            crash.in_doubt_recovered += count
            del left[partition][:count]
    crash.invented = sum(map(len, left.values()))


def send_again(producer: Producer, run: Run, crash: Crash, in_doubt: Sequence[tuple[Piece, Ticket]]) -> None:
    """Sends what is in doubt under its first numbers: the broker recognises what it has, and nothing is doubled."""
    again = [(piece, producer.resend(ticket)) for piece, ticket in in_doubt]
    for piece, ticket in again:
        if ticket.result(WAIT_S).duplicate:
            crash.recognised += len(piece.lines)
        run.produced_count += len(piece.lines)
        run.produced_size += sum(map(len, piece.lines))


def note_syncs(client: Client, run: Run) -> None:
    """How many batches shared one synchronous write, over the partitions of the topic."""
    counters = [entry["counters"] for entry in client.stats()["partitions"] if entry["topic"] == run.durability]
    if any(each["syncs"] for each in counters):
        run.batches_to_each_sync = batches_to_each_write(*counters)


@contextmanager
def bar(text: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar where somebody is looking."""
    with output.progress() as progress:
        task = progress.add_task(f"  {text}", total=total, note="messages")

        def advance(count: int) -> None:
            progress.update(task, advance=count)

        yield advance


def report(total: int, runs: Sequence[Run], crash: Crash, whole: bool) -> None:
    rates = Table("", *(run.durability for run in runs), header_style="bold")
    for heading, value in (
        ("messages acknowledged", lambda run: f"{run.produced_count:,}"),
        ("messages a second, sent", lambda run: f"{run.produced_count / run.produce_seconds:,.0f}"),
        ("MB a second, sent", lambda run: f"{run.produced_size / run.produce_seconds / 1e6:,.0f}"),
        ("messages a second, read back and hashed", lambda run: f"{run.consumed_count / run.consume_seconds:,.0f}"),
        ("batches to each sync",
         lambda run: "none made" if run.batches_to_each_sync is None else f"{run.batches_to_each_sync:,.1f}"),
        ("read back", lambda run: f"{run.consumed_count:,}"),
    ):  # fmt: skip
        rates.add_row(heading, *map(value, runs))
    survived = Table("SIGKILL of the broker", "messages", header_style="bold")
    for heading, count in (
        ("acknowledged before it", crash.acknowledged),
        ("of these, recovered", crash.recovered),
        ("of these, lost", crash.lost),
        ("in flight, outcome unknown", crash.in_doubt),
        ("of these, there all the same", crash.in_doubt_recovered),
        ("recognised when sent again", crash.recognised),
        ("there, but sent by nobody", crash.invented),
    ):
        survived.add_row(heading, f"{count:,}")
    for table in (rates, survived):
        for column in table.columns[1:]:
            column.justify = "right"
        output.console().print(table)
    if whole:
        say(f"Both topics hold exactly the {total:,} messages of the input: same count, same hash.")
    else:
        say("[bold red]What was read back is not what was sent.[/]")
    say(READ_NEXT)
