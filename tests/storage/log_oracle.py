"""The plain list that a log is compared with, through crashes: what was issued, seen, promised, and what may be gone.

An :class:`Oracle` is told of every step before it is taken (a crash may come in the middle) and of every answer after.
:meth:`Oracle.check` then says whether a recovered log is one that this history allows:

- nothing invented: every message stands at the offset it was issued at, with its bytes;
- in order and without holes: what is there is one run of what was issued;
- nothing lost: what was acknowledged under `persisted` (under either policy, if only the processes died) is there,
  unless its deletion was asked for;
- no offset twice: the next one is above all that was ever issued and could have been seen.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from shmbroker.errors import ErrorCode
from shmbroker.formats.offsets import KEY_CONSUMER, number_key
from shmbroker.storage.partition_log import PartitionLog
from tests.storage.log_world import finish_pass, open_log, read_files, record_of

KEY = number_key(KEY_CONSUMER, 9)


@dataclass
class Epoch:
    """The history of one incarnation."""

    issued: list[tuple[int, bytes]] = field(default_factory=list)
    persisted: int = 0
    """So many of ``issued`` were acknowledged with their bytes on stable storage."""
    replicated: int = 0
    """So many were acknowledged, or could be seen by a reader."""
    deletable_below: int = 0
    """Messages below this offset may have been deleted on request."""
    stored_offset: int | None = None
    stored_offset_asked: int | None = None
    deleted: bool = False


class Oracle:
    def __init__(self, log: PartitionLog) -> None:
        self.epochs: dict[bytes, Epoch] = {log.incarnation: Epoch()}
        self.current = self.epochs[log.incarnation]
        self.purging = False
        self.sequence = 0

    # --- steps ----------------------------------------------------------------------------------------------------

    def append(self, log: PartitionLog, payloads: list[bytes], now_us: int = 2_000_000) -> None:
        """One batch that the log has to take."""
        epoch, offset = self.current, log.committed_offset
        assert not epoch.issued or epoch.issued[-1][0] < offset
        epoch.issued += [(offset + number, payload) for number, payload in enumerate(payloads)]
        self.sequence += 1
        record = record_of(payloads, producer_id=77, sequence=self.sequence)
        answer = log.append(memoryview(record), now_us)
        assert answer == (ErrorCode.OK, offset, len(payloads)), answer

    def finish_pass(self, log: PartitionLog) -> None:
        epoch = self.current
        count = len(epoch.issued)
        log.publish()
        epoch.replicated = count
        finish_pass(log)
        if log.options.persisted:
            epoch.persisted = count

    def flush(self, log: PartitionLog, *, sync: bool) -> None:
        count = len(self.current.issued)
        assert log.flush(sync=sync) == 0
        if sync:
            self.current.persisted = self.current.replicated = count

    def store_offset(self, log: PartitionLog, offset: int) -> None:
        """Stores a consumer's offset under a persisted policy."""
        epoch = self.current
        epoch.stored_offset_asked = offset
        assert log.offsets.store(KEY, offset, 5, automatic=False, end_offset=log.committed_offset) == 0
        calls = log.offsets.prepare_flush(True)
        for call in calls:
            call()
        if calls:
            log.offsets.finish_flush(None)
        epoch.stored_offset = offset

    def maintain(self, log: PartitionLog, now_us: int) -> None:
        epoch, count = self.current, len(self.current.issued)
        if log.options.message_expiry_us:
            deletable = log.segments.deletable()
            epoch.deletable_below = max(epoch.deletable_below, deletable[-1].end_offset if deletable else 0)
        log.maintain(now_us)
        if log.describe()["ring_size"] == 0 and log.describe()["segment_count"]:
            epoch.persisted = epoch.replicated = count

    def delete(self, log: PartitionLog, count: int) -> None:
        gone = log.segments.deletable()[:count]
        if gone:
            self.current.deletable_below = max(self.current.deletable_below, gone[-1].end_offset)
        assert log.delete_segments(count) == len(gone)

    def purge(self, log: PartitionLog) -> None:
        self.purging = True
        assert log.purge(4_000_000) == 0
        self.purging = False
        self.current.deleted = True
        self.current = self.epochs[log.incarnation] = Epoch()

    def close(self, log: PartitionLog) -> None:
        count = len(self.current.issued)
        log.close(5_000_000)
        self.current.persisted = self.current.replicated = count

    # --- judgement ------------------------------------------------------------------------------------------------

    def check(self, log: PartitionLog, disk: Any, *, power: bool) -> None:
        """Whether ``log``, freshly opened on ``disk``, is one that this history allows. Raises AssertionError."""
        if log.incarnation not in self.epochs:
            assert self.purging, "an incarnation that nobody made"
            self.epochs[log.incarnation] = Epoch()
            self.current.deleted = True
            self.current = self.epochs[log.incarnation]
        epoch = self.epochs[log.incarnation]
        assert not epoch.deleted, "a purge that was confirmed came back"
        messages = read_files(disk)
        issued = epoch.issued
        places = {offset: number for number, (offset, _) in enumerate(issued)}
        for message in messages:
            assert message[0] in places, f"offset {message[0]} was never issued"
            assert issued[places[message[0]]] == message, f"other bytes at offset {message[0]}"
        numbers = [places[offset] for offset, _ in messages]
        if numbers:
            assert numbers == list(range(numbers[0], numbers[-1] + 1)), "a hole, or another order"
            before = numbers[0] - 1
            assert before < 0 or issued[before][0] < epoch.deletable_below, "the beginning is lost"
        promised = epoch.persisted if power else max(epoch.persisted, epoch.replicated)
        last = issued[promised - 1][0] if promised else -1
        if last >= epoch.deletable_below:
            assert numbers, f"lost: acknowledged up to {last}, there is nothing"
            assert numbers[-1] >= promised - 1, f"lost: acknowledged up to {last}, there is {messages[-1]}"
        seen = max([offset for offset, _ in messages] + [issued[epoch.replicated - 1][0] if epoch.replicated else -1])
        assert log.committed_offset > seen, f"offset {seen} would be issued twice"
        if epoch.stored_offset is not None or epoch.stored_offset_asked is not None:
            assert log.offsets.get(KEY) in (epoch.stored_offset, epoch.stored_offset_asked)
        # From here on the history is what is there.
        del issued[numbers[-1] + 1 if numbers else 0 :]
        epoch.persisted = epoch.replicated = len(issued)
        epoch.stored_offset = epoch.stored_offset_asked = log.offsets.get(KEY)
        self.purging = False

    def copy(self) -> Oracle:
        """Another history with the same past."""
        other = Oracle.__new__(Oracle)
        other.epochs = {
            incarnation: Epoch(**{**epoch.__dict__, "issued": list(epoch.issued)})
            for incarnation, epoch in self.epochs.items()
        }
        names = [incarnation for incarnation, epoch in self.epochs.items() if epoch is self.current]
        other.current = other.epochs[names[0]]
        other.purging = self.purging
        other.sequence = self.sequence
        return other


def recover_and_check(oracle: Oracle, disk: Any, runtime: Any, *, power: bool, **options: Any) -> PartitionLog:
    """Opens what a crash left, checks it, and appends to it. The log is left open."""
    log = open_log(disk, runtime, instance=2, **options)
    oracle.check(log, disk, power=power)
    oracle.append(log, [b"after the crash", b"and one more"])
    oracle.finish_pass(log)
    return log
