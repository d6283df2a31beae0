"""What the front asks of a worker: the requests that formats.link lists, one method for each.

They come by the control lane and are served at the end of a pass, so the logs are at rest. Each is answered by the
link. A request that cannot be done answers with an error number and says why; the worker goes on. The front is trusted:
it is our own process, so a request that makes no sense is a bug, and kills the worker by an assertion or a KeyError.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Callable
from typing import Any, Final

from shmbroker import crash_points
from shmbroker.errors import DiskFailed, ErrorCode, LaneBroken, NoSpace, ShmbrokerError
from shmbroker.shm.doorbell import Doorbell, EventDoorbell, NamedDoorbell
from shmbroker.shm.lane import LaneServer
from shmbroker.shm.region import Region

from .lanes import CONTROL_SESSION, Lane, grant_of
from .link import Link
from .loop import Loop

RIGHTS_OF_FRONT: Final = 7

Answer = dict[str, Any]


class Control:
    """Owned by the worker's loop."""

    def __init__(self, loop: Loop, link: Link, budget_limit: int) -> None:
        self.failures: list[str] | None = None
        """What of the clean stop failed; None until it was asked for."""
        self._loop = loop
        self._link = link
        self._budget_limit = budget_limit
        self._started_s = time.monotonic()
        self._verbs: dict[str, Callable[[dict[str, Any]], Answer]] = {
            "open": self._open,
            "update": self._update,
            "remove": self._remove,
            "purge": self._purge,
            "segments": self._segments,
            "attach": self._attach,
            "detach": self._detach,
            "grant": self._grant,
            "end": self._end,
            "watch": self._watch,
            "unwatch": self._unwatch,
            "stats": self._stats,
            "stop": self._stop,
        }

    def serve(self, number: int, body: bytes) -> None:
        """Does one request and answers it."""
        request: dict[str, Any] = json.loads(body)
        try:
            answer = self._verbs[request.pop("op")](request)
        except (ShmbrokerError, OSError) as error:
            status = error.number if isinstance(error, ShmbrokerError) else ErrorCode.ERROR
            self._link.answer(number, {"text": str(error)}, status)
        else:
            self._link.answer(number, answer)

    def lane_broken(self, lane: Lane, error: LaneBroken) -> None:
        """A client broke the protocol of its lane: it is closed, and the front is told. The others never notice."""
        if lane.session == CONTROL_SESSION:
            raise error
        self._loop.lanes.close(lane, ErrorCode.LANE_PROTOCOL)
        self._link.notice({"notice": "lane-closed", "lane_id": lane.lane_id, "text": str(error)})

    def _open(self, request: dict[str, Any]) -> Answer:
        partitions = self._loop.partitions
        grants = self._loop.lanes.grants_of(CONTROL_SESSION)
        states = []
        partitions.create_all(
            [(entry["log_id"], entry["partition_id"]) for entry in request["partitions"] if entry["create"]]
        )
        for entry in request["partitions"]:
            log_id, partition_id = entry["log_id"], entry["partition_id"]
            partitions.open(log_id, partition_id, entry["options"], _now_us())
            grants[log_id] = grant_of(partitions.logs.get(log_id), RIGHTS_OF_FRONT)
            states.append(partitions.state_of(log_id))
        if crash_points.ARMED:
            crash_points.reach(crash_points.AFTER_OPEN)
        return {"partitions": states}

    def _update(self, request: dict[str, Any]) -> Answer:
        self._loop.partitions.update(request["log_ids"], request["options"])
        return {}

    def _remove(self, request: dict[str, Any]) -> Answer:
        self._loop.lanes.revoke(request["log_ids"])
        self._loop.partitions.remove(request["log_ids"])
        return {}

    def _purge(self, request: dict[str, Any]) -> Answer:
        """One that fails does not hold up the others; the first failure is the answer."""
        partitions = self._loop.partitions
        outcome = partitions.purge(request["log_ids"], _now_us())
        failed = {log_id: status for log_id, status in outcome.items() if status}
        if failed:
            log_id, status = next(iter(failed.items()))
            raise ShmbrokerError(f"partition log {log_id} could not be purged", number=status)
        for log_id in outcome:
            log = partitions.logs[log_id]
            log.visible_moved = False
        self._loop.watches.ring(outcome)
        return {"incarnations": {str(log_id): partitions.logs[log_id].incarnation.hex() for log_id in outcome}}

    def _segments(self, request: dict[str, Any]) -> Answer:
        log = self._loop.partitions.logs.get(request["log_id"])
        if log is None:
            raise ShmbrokerError("the partition is refused", number=ErrorCode.PARTITION_REFUSED)
        return {"deleted": log.delete_segments(request["count"])}

    def _attach(self, request: dict[str, Any]) -> Answer:
        fds = self._link.descriptors(request["descriptors"])
        try:
            region = Region.attach(fds.pop(0))
            bell = _bell_of(request["bell"], fds)
        finally:
            for fd in fds:
                os.close(fd)
        self._loop.lanes.add(request["lane_id"], request["session"], LaneServer(region, bell), bell)
        return {}

    def _detach(self, request: dict[str, Any]) -> Answer:
        self._loop.lanes.close_id(request["lane_id"], ErrorCode.LANE_CLOSED)
        return {}

    def _grant(self, request: dict[str, Any]) -> Answer:
        grants = self._loop.lanes.grants_of(request["session"])
        partitions = self._loop.partitions
        for log_id, rights in request["grants"]:
            log = partitions.logs.get(log_id)
            if log is None and log_id not in partitions.refused:
                continue  # Removed meanwhile: the requests will be answered as not granted.
            grants[log_id] = grant_of(log, rights)
        return {}

    def _end(self, request: dict[str, Any]) -> Answer:
        self._loop.lanes.end_session(request["session"])
        self._loop.watches.end_session(request["session"])
        return {}

    def _watch(self, request: dict[str, Any]) -> Answer:
        fds = self._link.descriptors(request["descriptors"]) if request["bell"] is None else []
        bell = _bell_of(request["bell"], fds)
        self._loop.watches.add(request["watch_id"], request["session"], bell, request["log_ids"])
        return {}

    def _unwatch(self, request: dict[str, Any]) -> Answer:
        self._loop.watches.remove(request["watch_id"])
        return {}

    def _stats(self, request: dict[str, Any]) -> Answer:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        worker = {
            "pid": os.getpid(),
            "uptime_s": round(time.monotonic() - self._started_s, 3),
            "processor_s": round(usage.ru_utime + usage.ru_stime, 3),
            "memory_max": usage.ru_maxrss * 1024,
            "passes": self._loop.pass_count,
            "lanes": len(self._loop.lanes.served) - 1,
            "watches": len(self._loop.watches),
            "active": len(self._loop.partitions.active),
            "journal_memory_limit": self._budget_limit,
        }
        return {"worker": worker, "partitions": self._loop.partitions.describe()}

    def _stop(self, request: dict[str, Any]) -> Answer:
        """The drain: clients are told that this is the end, then everything committed is written and closed."""
        loop = self._loop
        loop.stopping = True
        control, *others = loop.lanes.served
        assert control.session == CONTROL_SESSION
        for lane in others:
            loop.lanes.close(lane, ErrorCode.BROKER_STOPPING)
        loop.watches.close()
        try:
            self.failures = loop.partitions.close(_now_us())
        except (DiskFailed, NoSpace) as error:
            self.failures = [str(error)]
        return {"failures": self.failures}


def _bell_of(name: str | None, fds: list[int]) -> Doorbell:
    """What wakes a client: a bell by its name, or the one that came along (taken over)."""
    if name is not None:
        return NamedDoorbell.open_named(name)
    return EventDoorbell(fds.pop(0))


def _now_us() -> int:
    return time.time_ns() // 1000
