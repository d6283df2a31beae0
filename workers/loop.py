"""The loop of a partition worker. Group commit is its shape, not a mechanism.

A pass drains every lane, appends everything, answers what needs no disk, writes and synchronises what does, answers
that, wakes the readers, and starts again. What arrives while the disk writes waits in the lanes and is the next group:
no timer, no hand-over, no thread for committing (measured against one: never slower).

The order within a pass is the promise:

1. append: the batch is in the ring, so SIGKILL cannot take it any more;
2. publish: the committed words move, and the visible ones where the topic is ``replicated``;
3. answer what is not waiting for the disk;
4. one synchronous write for every log and offset store that somebody waits for; their words move;
5. answer those, or say that the disk failed;
6. wake readers; have a helper write what a trigger made due; do what the front asked; look after the quiet ones.

Nothing here is done for each message, and no object is made for each request but the tuple that waits for the disk.
"""

from __future__ import annotations

import time
from concurrent.futures import Executor
from typing import Final, Protocol

from shmbroker import crash_points
from shmbroker.errors import LaneBroken
from shmbroker.formats.lane import REQUEST_APPEND
from shmbroker.limits import DOORBELL_WAIT_MS_MAX
from shmbroker.shm.doorbell import Doorbell
from shmbroker.shm.lane import LaneServer, Request
from shmbroker.storage.partition_log import PartitionLog

from .flush import FlushTarget, flush_together, poison_with
from .lanes import Lane, Lanes, refuse_ungranted
from .partitions import Partitions
from .pending import Pending
from .requests import serve_other
from .watches import Watches

WAIT_S: Final = DOORBELL_WAIT_MS_MAX / 1000
_UNGRANTED: Final = (refuse_ungranted, False, None, 0)


class ControlRequests(Protocol):
    """What does the front's requests (control.py)."""

    def serve(self, number: int, body: bytes) -> None: ...
    def lane_broken(self, lane: Lane, error: LaneBroken) -> None: ...


class Loop:
    """One for each worker, on its main thread."""

    def __init__(
        self, bell: Doorbell, lanes: Lanes, partitions: Partitions, watches: Watches, executor: Executor
    ) -> None:
        self.bell = bell
        self.lanes = lanes
        self.partitions = partitions
        self.watches = watches
        self.executor = executor
        self.stopping = False
        """Set by control (a stop) or by the watch on the front's pipe: the pass under way is the last."""
        self.pass_count = 0
        self._unwritten: dict[PartitionLog, None] = {}
        """Offsets stored by auto-commit since the last tick."""
        self._writing: dict[PartitionLog, None] = {}
        """Replicated logs that a helper writes out; it rings our own bell at the end."""

    def run(self, control: ControlRequests) -> None:
        """Until ``stopping``. Every wait is bounded, and every wake-up scans: the doorbell's count means nothing."""
        bell = self.bell
        while not self.stopping:
            bell.wait(WAIT_S)
            bell.drain()
            now_us = time.time_ns() // 1000
            self.one_pass(now_us, control)
            self.tick(now_us)

    def one_pass(self, now_us: int, control: ControlRequests) -> None:
        """Serves what the lanes hold now."""
        if self._writing:
            self._writing = {log: None for log in self._writing if not log.settle_written()}
        pending: Pending | None = None
        answered: dict[LaneServer, None] = {}
        broken: list[tuple[Lane, LaneBroken]] = []
        for lane in self.lanes.served:
            try:
                requests = lane.server.drain()
            except LaneBroken as error:
                broken.append((lane, error))
                continue
            if requests:
                if pending is None:
                    pending = Pending()
                try:
                    serve_lane(lane, requests, pending, now_us)
                except LaneBroken as error:
                    broken.append((lane, error))
                lane.server.release()
                answered[lane.server] = None
        if pending is not None:
            self.pass_count += 1
            self._commit(pending, answered, now_us)
        for lane, reason in broken:
            control.lane_broken(lane, reason)
        if pending is not None:
            for server, number, body in pending.control:
                control.serve(number, body)
                server.complete(number, 0, 0, 0, 0)
                server.publish()

    def _commit(self, pending: Pending, answered: dict[LaneServer, None], now_us: int) -> None:
        """Steps 2 to 6, but what the front asked."""
        touched = pending.touched
        if crash_points.ARMED and touched:
            crash_points.reach(crash_points.AFTER_APPEND)
        active = self.partitions.active
        for log in touched:
            log.publish()
            active[log] = now_us
        for server in answered:
            server.publish()
        if pending.appends or pending.offset_stores:
            self._commit_waiting(pending)
        if self.watches:
            self._wake_readers(touched)
        for log in touched:
            if not log.options.persisted and (reason := log.flush_due()) is not None:
                log.write_behind(reason, self.bell.ring)
                self._writing[log] = None
        if pending.automatic:
            self._unwritten.update(pending.automatic)
            for log in pending.automatic:
                active[log] = now_us

    def _commit_waiting(self, pending: Pending) -> None:
        """Steps 4 and 5: the group. Every file that somebody waits for is written once, all at the same time."""
        logs = {log: None for _, _, _, _, log in pending.appends}
        stores = {log.offsets: log for _, _, log in pending.offset_stores}
        synchronous: list[FlushTarget] = [
            *logs,
            *(store for store, log in stores.items() if log.options.offsets_persisted),
        ]
        plain = [store for store, log in stores.items() if not log.options.offsets_persisted]
        failed = flush_together(synchronous, self.executor, sync=True) if synchronous else {}
        if plain:
            failed |= flush_together(plain, self.executor, sync=False)
        for store, log in stores.items():
            poison_with(log, failed.get(store))
        if crash_points.ARMED:
            crash_points.reach(crash_points.BEFORE_COMPLETIONS)
        answered: dict[LaneServer, None] = {}
        pending.answer_appends(answered)
        pending.answer_offset_stores({log for store, log in stores.items() if store in failed}, answered)
        for server in answered:
            server.publish()
        if crash_points.ARMED:
            crash_points.reach(crash_points.AFTER_COMPLETIONS)

    def _wake_readers(self, touched: dict[PartitionLog, None]) -> None:
        """At most one ring for each waiting reader and pass (rule 15)."""
        moved = [log for log in touched if log.visible_moved]
        for log in moved:
            log.visible_moved = False
        self.watches.ring(log.log_id for log in moved)

    def tick(self, now_us: int) -> None:
        """What time makes due; does nothing for partitions that are quiet."""
        if self._unwritten:
            logs, self._unwritten = self._unwritten, {}
            stores = {log.offsets: log for log in logs if log.log_id in self.partitions.logs}
            for store, error in flush_together(stores, self.executor, sync=False).items():
                poison_with(stores[store], error)
        self.partitions.maintain(now_us)


def serve_lane(lane: Lane, requests: list[Request], pending: Pending, now_us: int) -> None:
    """Step 1 for one lane. Answers are written into the lane and published by the caller."""
    complete = lane.server.complete
    grants = lane.grants
    touched = pending.touched
    for kind, flags, number, log_id, argument, body in requests:
        if kind != REQUEST_APPEND:
            serve_other(lane, kind, flags, number, log_id, argument, body, pending, now_us)
            continue
        append, waits, log, _ = grants.get(log_id, _UNGRANTED)
        status, value, result = append(body, now_us)
        if log is not None:
            touched[log] = None
            if waits and not status:
                pending.appends.append((lane.server, number, value, result, log))
                continue
        complete(number, status, 0, value, result)
