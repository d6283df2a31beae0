"""Requests of a lane that are not appends: stored offsets, flushes, and what only the front may ask."""

from __future__ import annotations

from collections.abc import Callable

from shmbroker.errors import DiskFailed, ErrorCode, LaneBroken, NoSpace
from shmbroker.formats.control import State
from shmbroker.formats.lane import (
    FLAG_AUTOMATIC,
    FLAG_SYNC,
    REQUEST_CONTROL,
    REQUEST_DELETE_OFFSET,
    REQUEST_FLUSH,
    REQUEST_GET_OFFSET,
    REQUEST_STORE_OFFSET,
    unpack_key,
)
from shmbroker.formats.link import RIGHT_APPEND, RIGHT_OFFSETS
from shmbroker.formats.offsets import key_fault
from shmbroker.storage.partition_log import PartitionLog

from .lanes import CONTROL_SESSION, Lane
from .pending import Pending


def serve_other(
    lane: Lane,
    kind: int,
    flags: int,
    number: int,
    log_id: int,
    argument: int,
    body: memoryview,
    pending: Pending,
    now_us: int,
) -> None:
    """Answers, or leaves it waiting in ``pending``. Raises LaneBroken where the lane may not ask this."""
    if kind == REQUEST_CONTROL:
        if lane.session != CONTROL_SESSION:
            raise LaneBroken(f"lane {lane.lane_id} of a client carries a control request")
        pending.control.append((lane.server, number, bytes(body[:argument])))
        return
    _, _, log, rights = lane.grants.get(log_id, (None, False, None, 0))
    wanted = RIGHT_APPEND if kind == REQUEST_FLUSH else RIGHT_OFFSETS
    if not rights & wanted:
        lane.server.complete(number, ErrorCode.PARTITION_NOT_GRANTED, 0, 0, 0)
    elif log is None:
        lane.server.complete(number, ErrorCode.PARTITION_REFUSED, 0, 0, 0)
    elif kind == REQUEST_FLUSH:
        pending.touched[log] = None
        lane.server.complete(number, _flush(log, bool(flags & FLAG_SYNC)), 0, 0, 0)
    else:
        _serve_offset(lane, kind, flags, number, argument, bytes(body), log, pending, now_us)


def _flush(log: PartitionLog, sync: bool) -> int:
    """Everything committed, this pass's appends included."""
    log.publish()
    return log.flush(sync=sync, reason="request")


def _serve_offset(
    lane: Lane,
    kind: int,
    flags: int,
    number: int,
    offset: int,
    body: bytes,
    log: PartitionLog,
    pending: Pending,
    now_us: int,
) -> None:
    complete = lane.server.complete
    key = unpack_key(body)
    if key is None or key_fault(key) is not None:
        complete(number, ErrorCode.INVALID_IDENTIFIER, 0, 0, 0)
    elif kind == REQUEST_GET_OFFSET and log.offsets.fault is not None:
        complete(number, ErrorCode.OFFSETS_REFUSED, 0, 0, 0)
    elif kind == REQUEST_GET_OFFSET:
        stored = log.offsets.get(key)
        if stored is None:
            complete(number, ErrorCode.CONSUMER_OFFSET_NOT_FOUND, 0, 0, 0)
        else:
            complete(number, 0, 0, stored, log.committed_offset)
    elif kind == REQUEST_STORE_OFFSET:
        automatic = bool(flags & FLAG_AUTOMATIC)
        status = _change(
            log, lambda: log.offsets.store(key, offset, now_us, automatic=automatic, end_offset=log.committed_offset)
        )
        if automatic and not status:
            pending.automatic[log] = None
        if status or automatic:
            complete(number, status, 0, 0, 0)
        else:
            pending.offset_stores.append((lane.server, number, log))
    else:
        assert kind == REQUEST_DELETE_OFFSET
        status = _change(log, lambda: log.offsets.delete(key, now_us))
        if status:
            complete(number, status, 0, 0, 0)
        else:
            pending.offset_stores.append((lane.server, number, log))


def _change(log: PartitionLog, change: Callable[[], int]) -> int:
    """The status of a change of a stored offset. One that needs a new file may meet the disk: that poisons the
    partition (rule 11)."""
    if log.state is State.POISONED:
        return ErrorCode.PARTITION_POISONED
    try:
        return change()
    except DiskFailed as error:
        log.poison(error)
        return ErrorCode.PARTITION_POISONED
    except NoSpace:
        return ErrorCode.DISK_FULL
