"""What the front knows of each log: which worker has it, with what options, and where its control block is.

A log is assigned before its directory is made, so that a worker that is started again in the middle of a creation opens
it; and it is taken off when it is removed. Which worker gets which log is decided when a log is first seen in this run
of the broker (core.placement) and holds until the front ends.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from shmbroker.core.model import Topic
from shmbroker.core.options import NEVER, UNLIMITED, Durability, TopicOptions
from shmbroker.core.placement import Placed, Placement
from shmbroker.errors import ErrorCode, ShmbrokerError, error_from
from shmbroker.formats.control import (
    CONTROL_SIZE,
    COUNTER,
    WORD_COMMITTED_OFFSET,
    WORD_COMMITTED_POSITION,
    WORD_FIRST_POSITION,
    WORD_SEGMENT_COUNT,
    WORD_STATE,
    State,
)
from shmbroker.limits import FRAME_SIZE_MAX
from shmbroker.shm.words import words_of
from shmbroker.storage.runtime import LOGS_DIRECTORY, control_name


@dataclass(slots=True)
class Log:
    """One log. ``state`` and ``reason`` are those of the last opening; the control block knows better."""

    log_id: int
    partition_id: int
    worker: int
    options: dict[str, Any]
    incarnation: str | None = None
    """Hex digits; None until it is open, or where recovery refused it before it knew."""
    state: State = State.OPENING
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class LogFigures:
    """Of one partition, now."""

    state: State
    segment_count: int
    next_offset: int
    size: int
    message_count: int


NOTHING = LogFigures(State.OPENING, 0, 0, 0, 0)


class Logs:
    """All logs. Owned by the front's loop."""

    def __init__(self, runtime: str, worker_count: int, *, retention: bool) -> None:
        self._retention = retention
        self._logs_directory = f"{runtime}/{LOGS_DIRECTORY}"
        self._logs: dict[int, Log] = {}
        self._placement = Placement(worker_count)

    def __len__(self) -> int:
        return len(self._logs)

    def __contains__(self, log_id: int) -> bool:
        return log_id in self._logs

    def __iter__(self) -> Iterator[Log]:
        return iter(self._logs.values())

    def options_of(self, options: TopicOptions, partitions_count: int) -> dict[str, Any]:
        """The options of a topic as each of its logs has them (storage.partition_log.LogOptions).

        A topic's size is shared out evenly, but no share is below a segment and the largest batch: a full topic deletes
        old segments, and never the one that is being written.
        """
        share = expiry_us = 0
        if self._retention and options.max_topic_size != UNLIMITED:
            share = max(options.max_topic_size // max(1, partitions_count), options.segment_size + FRAME_SIZE_MAX)
        if self._retention and options.message_expiry_us != NEVER:
            expiry_us = options.message_expiry_us
        return {
            "persisted": options.durability == Durability.PERSISTED,
            "offsets_persisted": options.consumer_offset_durability == Durability.PERSISTED,
            "messages_required_to_save": options.messages_required_to_save,
            "size_required_to_save": options.size_of_messages_required_to_save,
            "segment_size": options.segment_size,
            "message_expiry_us": expiry_us,
            "size_max": share,
            "preallocate": options.preallocate_segments,
        }

    def start(self, logs: Iterable[tuple[int, int, dict[str, Any]]]) -> None:
        """Gives each (log id, partition id, options) there is a worker, at the start."""
        found = list(logs)
        self._placement.start(Placed(log_id, options["persisted"]) for log_id, _, options in found)
        for log_id, partition_id, options in found:
            self._logs[log_id] = Log(log_id, partition_id, self._placement.workers[log_id], options)

    def assign(self, partitions: Iterable[tuple[int, int]], options: dict[str, Any]) -> list[Log]:
        """Gives each new (partition id, log id) a worker for as long as this front lives."""
        assigned = []
        for partition_id, log_id in partitions:
            worker = self._placement.place(Placed(log_id, options["persisted"]))
            log = self._logs[log_id] = Log(log_id, partition_id, worker, options)
            assigned.append(log)
        return assigned

    def get(self, log_id: int) -> Log:
        """Raises 3007 where it is gone."""
        log = self._logs.get(log_id)
        if log is None:
            raise error_from(ErrorCode.PARTITION_NOT_FOUND, f"there is no log {log_id}")
        return log

    def forget(self, log_ids: Iterable[int]) -> None:
        for log_id in log_ids:
            if self._logs.pop(log_id, None) is not None:
                self._placement.remove(log_id)

    def of_worker(self, worker: int) -> list[Log]:
        return [log for log in self._logs.values() if log.worker == worker]

    def by_worker(self, log_ids: Iterable[int]) -> dict[int, list[int]]:
        """These logs, as far as they exist, in groups of one worker."""
        groups: dict[int, list[int]] = {}
        for log_id in log_ids:
            log = self._logs.get(log_id)
            if log is not None:
                groups.setdefault(log.worker, []).append(log_id)
        return groups

    def opened(self, states: Iterable[dict[str, Any]]) -> None:
        """What a worker says about the logs that it has opened."""
        for entry in states:
            log = self._logs.get(entry["log_id"])
            if log is not None:
                log.state = State(entry["state"])
                log.reason = entry["reason"]
                log.incarnation = entry["incarnation"]

    def control_path(self, log: Log) -> str:
        """Where readers find its control block; empty where there is none."""
        if log.incarnation is None:
            return ""
        return f"{self._logs_directory}/{control_name(log.log_id, bytes.fromhex(log.incarnation))}"

    def figures(self, log_id: int) -> LogFigures:
        """From its control block; of nothing where there is none."""
        log = self._logs.get(log_id)
        if log is None:
            return NOTHING
        with _control_words(self.control_path(log)) as words:
            if words is None:
                return LogFigures(log.state, 0, 0, 0, 0)
            return LogFigures(
                State(words[WORD_STATE]),
                words[WORD_SEGMENT_COUNT],
                words[WORD_COMMITTED_OFFSET],
                words[WORD_COMMITTED_POSITION] - words[WORD_FIRST_POSITION],
                words[COUNTER["messages_retained"]],
            )

    def topic_figures(self, topic: Topic) -> list[LogFigures]:
        return [self.figures(partition.log_id) for partition in topic.partitions]


def not_open(log: Log) -> ShmbrokerError:
    """The error of a request to a partition that recovery refused."""
    return error_from(ErrorCode.PARTITION_REFUSED, log.reason or "the partition is refused")


@contextmanager
def _control_words(path: str) -> Iterator[memoryview | None]:
    """A control block, mapped for a moment: a thousand partitions must not hold a thousand mappings here."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC) if path else -1
    except FileNotFoundError:
        fd = -1
    if fd < 0:
        yield None
        return
    try:
        mapping = mmap.mmap(fd, CONTROL_SIZE, mmap.MAP_SHARED, mmap.PROT_READ)
    finally:
        os.close(fd)
    words = words_of(mapping)
    try:
        yield words
    finally:
        words.release()
        mapping.close()
