"""Our own commands: what a local client needs to use shared memory, and the figures of everything.

Names of doorbells live from the reply that says them to the client's CONFIRM; what a client does not confirm is swept
when it goes. A worker that died is waited for, for a bounded time.
"""

from __future__ import annotations

import asyncio
import os
import resource
import time
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from shmbroker.errors import ClientMistake, ErrorCode, ShmbrokerError, error_from
from shmbroker.formats.control import State
from shmbroker.formats.link import RIGHT_READ, RIGHTS
from shmbroker.front.handlers_catalog import Handler
from shmbroker.front.logs import Log
from shmbroker.front.reply import WithDescriptors
from shmbroker.front.supervisor import Worker
from shmbroker.front.worker_link import WorkerLink
from shmbroker.shm.doorbell import unlink_name
from shmbroker.wire import local
from shmbroker.wire.local import LocalCode

if TYPE_CHECKING:
    from shmbroker.front.broker import Broker
    from shmbroker.front.local_session import LocalSession

STATS_WAIT_S = 2.0
"""A worker that hangs must not keep the figures of the others, which tell which one it is."""
POISONED_REASON = "a write or a sync of this partition failed: it accepts nothing until the broker is started again"


async def hello(session: LocalSession, request: local.Hello) -> local.HelloReply:
    broker = session.broker
    if request.version != version("shmbroker"):
        raise ClientMistake(f"the broker is version {version('shmbroker')}, the client {request.version}: use the same")
    session.greeted = True
    places = broker.places
    return local.HelloReply(
        version("shmbroker"), places.data, places.runtime, broker.instance, session.prefix, broker.tcp_address
    )


async def open_lane(session: LocalSession, request: local.OpenLane) -> WithDescriptors:
    broker = session.broker
    if request.worker >= len(broker.workers):
        raise ClientMistake(f"there are {len(broker.workers)} workers, not {request.worker + 1}")
    worker = broker.workers[request.worker]
    link = await worker.running()
    await _introduce(session, worker, link)
    lane = broker.lanes.create(session.number, worker.number, request.size, session.prefix, event=request.event)
    try:
        await link.control(
            "attach",
            lane.descriptors(),
            session=session.number,
            lane_id=lane.lane_id,
            bell=lane.bell_name,
        )
    except BaseException:
        broker.lanes.drop(lane)
        raise
    reply = local.OpenLaneReply(lane.lane_id, request.size, worker.doorbell_path, lane.bell_name)
    return WithDescriptors(reply, lane.descriptors(), lane.close_descriptors)


async def close_lane(session: LocalSession, request: local.CloseLane) -> local.Done:
    lane = session.broker.lanes.find(request.lane_id, session.number)
    link = await session.broker.workers[lane.worker].running()
    await link.control("detach", session=session.number, lane_id=lane.lane_id)
    session.broker.lanes.drop(lane)
    return local.Done()


async def confirm(session: LocalSession, request: local.Confirm) -> local.Done:
    for name in request.names:
        if not name.startswith(session.prefix) or "/" in name:
            raise ClientMistake(f"{name!r} is no name of this connection")
    for name in request.names:
        unlink_name(name)
    return local.Done()


async def open_partition(session: LocalSession, request: local.OpenPartition) -> local.OpenPartitionReply:
    broker = session.broker
    catalog = broker.keeper.catalog
    topic = catalog.topic(request.stream, request.topic)
    partition = catalog.partition(request.stream, request.topic, request.partition)
    log = broker.logs.get(partition.log_id)
    worker = broker.worker_of(log)
    link = await worker.running()
    if "offsets" in request.rights:
        broker.senders[worker.number].offsets.share(log.log_id)
    before = session.rights.get(log.log_id, 0)
    rights = before | sum(RIGHTS[right] for right in request.rights)
    if rights != before and session.introduced.get(worker.number) == worker.generation:
        await link.control("grant", session=session.number, grants=[[log.log_id, rights]])
    if log.log_id in catalog.logs:  # else it was deleted meanwhile
        session.rights[log.log_id] = rights
    state, reason = _state_of(broker, log)
    return local.OpenPartitionReply(
        log_id=log.log_id,
        worker=worker.number,
        stream_id=topic.stream_id,
        topic_id=topic.topic_id,
        partition_id=partition.partition_id,
        durability=topic.options.durability.value,
        consumer_offset_durability=topic.options.consumer_offset_durability.value,
        directory=f"{broker.places.data}/partitions/{log.log_id:020}",
        control=broker.logs.control_path(log),
        state=state.name.lower(),
        reason=reason,
    )


async def watch(session: LocalSession, request: local.Watch) -> WithDescriptors:
    broker = session.broker
    for log_id in request.log_ids:
        if not session.rights.get(log_id, 0) & RIGHT_READ:
            raise error_from(ErrorCode.PARTITION_NOT_GRANTED, f"this connection may not read log {log_id}")
    watch = broker.watches.create(session.number, tuple(request.log_ids), session.prefix, event=request.event)
    try:
        for number, log_ids in broker.logs.by_worker(request.log_ids).items():
            worker = broker.workers[number]
            await _introduce(session, worker, await worker.running())
            await broker.register_watch(watch, number, log_ids)
    except BaseException:
        broker.watches.remove(watch.watch_id, session.number)
        raise
    return WithDescriptors(local.WatchReply(watch.watch_id, watch.bell_name), watch.descriptors(), lambda: None)


async def unwatch(session: LocalSession, request: local.Unwatch) -> local.Done:
    broker = session.broker
    watch = broker.watches.remove(request.watch_id, session.number)
    if watch is None:
        raise ClientMistake(f"this connection has no watch {request.watch_id}")
    for number in broker.logs.by_worker(watch.log_ids):
        link = await broker.workers[number].running()
        await link.control("unwatch", session=session.number, watch_id=watch.watch_id)
    return local.Done()


async def stats(session: LocalSession, request: local.Stats) -> local.StatsReply:
    broker = session.broker
    answers = await asyncio.gather(*(_worker_stats(worker) for worker in broker.workers))
    places = broker.keeper.catalog.logs
    partitions: list[dict[str, Any]] = []
    for answer in answers:
        for entry in answer.pop("partitions"):
            place = places.get(entry["log_id"])
            if place is not None:
                named = {
                    "stream": place.stream.name,
                    "topic": place.topic.name,
                    "partition": place.partition.partition_id,
                    "worker": answer["worker"],
                }
                partitions.append({**named, **entry})
    partitions.sort(key=lambda entry: (entry["stream"], entry["topic"], entry["partition"]))
    return local.StatsReply(_broker_figures(broker), list(answers), partitions)


async def logs(session: LocalSession, request: local.Logs) -> local.LogsReply:
    broker = session.broker
    catalog = broker.keeper.catalog
    entries: list[dict[str, Any]] = []
    for log_id, place in catalog.logs.items():
        log = broker.logs.get(log_id)
        state, reason = _state_of(broker, log)
        entries.append(
            {
                "log_id": log_id,
                "stream": place.stream.name,
                "topic": place.topic.name,
                "partition": place.partition.partition_id,
                "worker": log.worker,
                "state": state.name.lower(),
                "reason": reason,
                "control": broker.logs.control_path(log),
            }
        )
    figures = {
        "streams": len(catalog.streams),
        "topics": sum(len(stream.topics) for stream in catalog.streams.values()),
        "partitions": len(catalog.logs),
        "users": len(list(catalog.users)),
        "clients": len(broker.sessions),
        "workers": sum(worker.is_ready for worker in broker.workers),
    }
    return local.LogsReply(figures, entries)


async def _worker_stats(worker: Worker) -> dict[str, Any]:
    figures: dict[str, Any] = {"worker": worker.number, "generation": worker.generation, "restarts": worker.restarts}
    try:
        answer = await asyncio.wait_for((await worker.running(0.0)).control("stats"), STATS_WAIT_S)
    except TimeoutError:
        reason = f"it has not answered for {STATS_WAIT_S:g} s: its disk may hold it up, or it was stopped"
        return {**figures, "state": "silent", "reason": reason, "partitions": []}
    except ShmbrokerError as error:
        return {**figures, "state": "down", "reason": str(error), "partitions": []}
    return {**figures, "state": "running", **answer["worker"], "partitions": answer["partitions"]}


def _broker_figures(broker: Broker) -> dict[str, Any]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    catalog = broker.keeper.catalog
    return {
        "version": version("shmbroker"),
        "pid": os.getpid(),
        "instance": broker.instance,
        "uptime_s": round(time.monotonic() - broker.started_s, 3),
        "data": broker.places.data,
        "runtime": broker.places.runtime,
        "processor_s": round(usage.ru_utime + usage.ru_stime, 3),
        "memory_max": usage.ru_maxrss * 1024,
        "streams": len(catalog.streams),
        "topics": sum(len(stream.topics) for stream in catalog.streams.values()),
        "partitions": len(catalog.logs),
        "tcp": broker.tcp_address,
        "http": broker.http_address,
        "connections": len(broker.sessions),
        "lanes": len(broker.lanes),
        "watches": len(broker.watches),
    }


def _state_of(broker: Broker, log: Log) -> tuple[State, str | None]:
    """As in the control block, where there is one."""
    state = broker.logs.figures(log.log_id).state
    if state == State.POISONED:
        return state, log.reason or POISONED_REASON
    return state, log.reason if state == State.REFUSED else None


async def _introduce(session: LocalSession, worker: Worker, link: WorkerLink) -> None:
    """Tells this run of a worker what the session may do, if it does not know the session."""
    if session.introduced.get(worker.number) == worker.generation:
        return
    logs = session.broker.logs
    known = [log_id for log_id in session.rights if log_id in logs and logs.get(log_id).worker == worker.number]
    generation = worker.generation
    await link.control("grant", session=session.number, grants=[[log_id, session.rights[log_id]] for log_id in known])
    session.introduced[worker.number] = generation


HANDLERS: dict[int, Handler] = {
    LocalCode.HELLO: hello,
    LocalCode.OPEN_LANE: open_lane,
    LocalCode.CONFIRM: confirm,
    LocalCode.OPEN_PARTITION: open_partition,
    LocalCode.CLOSE_LANE: close_lane,
    LocalCode.WATCH: watch,
    LocalCode.UNWATCH: unwatch,
    LocalCode.STATS: stats,
    LocalCode.LOGS: logs,
}
