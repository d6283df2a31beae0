"""The broker as its front holds it: directories, catalog, workers, sessions, and the order in which they come and go.

Start: locks (rule 1), catalog, what an earlier run left half done, workers (each opens its partitions), socket. Only
then does anybody get in. Stop: nobody new gets in, every worker drains its lanes and writes all that is committed,
whatever the thresholds say; the stop is clean only if all of that succeeded.

What an earlier run left: files of deleted partitions whose removal did not finish, and directories that were made for
partitions which the catalog never got to know. The first are removed; the second too, since nobody was ever granted
access to them; should one hold a segment all the same, it is kept and named.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from shmbroker.config import Config
from shmbroker.core.changes import LogGone
from shmbroker.core.model import Topic
from shmbroker.core.options import TopicDefaults
from shmbroker.errors import OutcomeUnknown, ShmbrokerError, Unavailable
from shmbroker.formats.segment import LOG_SUFFIX
from shmbroker.front.catalog_keeper import CatalogKeeper
from shmbroker.front.catalog_store import CatalogStore
from shmbroker.front.gateway import GatewayProcess
from shmbroker.front.groups import GroupMembers
from shmbroker.front.lanes import LaneTable
from shmbroker.front.local_session import LocalSession
from shmbroker.front.log_memory import LogMemory
from shmbroker.front.login import Logins, RootCredentials, make_root
from shmbroker.front.logs import Log, Logs
from shmbroker.front.places import DOORBELLS_DIRECTORY, PARTITIONS_DIRECTORY, Places
from shmbroker.front.polling import Readers
from shmbroker.front.process_figures import ProcessorUse
from shmbroker.front.sending import Sender
from shmbroker.front.session import Session
from shmbroker.front.supervisor import Worker, WorkerSettings
from shmbroker.front.tcp import TcpListener
from shmbroker.front.watches import Watch, WatchTable
from shmbroker.limits import MIB, RING_SIZE_MIN, SESSION_COUNT_MAX
from shmbroker.shm.doorbell import unlink_name
from shmbroker.storage.disk import FileDisk

JOURNAL_SHARE: Final = 4
"""A quarter of what the runtime file system has free, unless ``journal_memory_limit`` says otherwise."""
JOURNAL_PER_WORKER_MIN: Final = 4 * RING_SIZE_MIN
CHUNK: Final = 16
"""Partitions that a worker creates or removes at a time: each costs it some synchronisations, and its other clients
wait meanwhile."""
DISCARD_WAIT_S: Final = 2.0
"""For a worker that may be hanging, since a creation on it failed: it finds the request in its lane."""
BACKLOG: Final = 128
LOG: Final = logging.getLogger("shmbroker.front")


class Broker:
    """Owned by the front's loop."""

    def __init__(self, places: Places, config: Config, root: RootCredentials | None = None) -> None:
        self._config = config
        self._root = root
        self._worker_count = worker_count = config.broker.workers or max(1, (os.cpu_count() or 2) - 1)
        self.places = places
        self.instance = secrets.randbits(63) | 1
        """Of this run: what was poisoned in another run may be tried again."""
        self.started_us = time.time_ns() // 1000
        self.started_s = time.monotonic()
        self.logs = Logs(places.runtime, worker_count, retention=config.retention.enabled)
        self.lanes = LaneTable()
        self.watches = WatchTable(f"{places.runtime}/{DOORBELLS_DIRECTORY}")
        self.groups = GroupMembers(self, config.heartbeat.interval_us)
        self.readers = Readers(places.data, self.logs)
        self.senders: list[Sender] = []
        self.tcp: TcpListener | None = None
        self.gateway: GatewayProcess | None = None
        self.turns: dict[tuple[int, int], int] = {}
        """Of each topic (stream id, topic id): how many sends left the choice of the partition to us."""
        self.sessions: dict[int, Session] = {}
        self.stopping = False
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="catalog")
        self._listener: socket.socket | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._session_number = 0
        self.workers: list[Worker] = []
        self.keeper: CatalogKeeper
        self.logins: Logins
        self.made_up_password: str | None = None
        """Of the root user, where this start made one: to be said once."""
        self.log_memory = LogMemory()
        self.processor_use = ProcessorUse()

    @property
    def config(self) -> Config:
        """The settings of this run."""
        return self._config

    def process_ids(self) -> list[int]:
        """The front's, then those of the workers that run."""
        return [os.getpid(), *(worker.run.process.pid for worker in self.workers if worker.run is not None)]

    @property
    def tcp_address(self) -> str:
        """HOST:PORT as bound; empty where there is no TCP."""
        return "" if self.tcp is None else self.tcp.address

    @property
    def http_address(self) -> str:
        """HOST:PORT as bound; empty where there is no HTTP."""
        return "" if self.gateway is None else self.gateway.address

    # --- start --------------------------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Until clients can connect. Raises what keeps the broker from serving."""
        logging.getLogger("shmbroker").addHandler(self.log_memory)
        loop = asyncio.get_running_loop()
        # A new catalog would give log ids anew, and take the data that is there for left-overs.
        may_make = not os.listdir(f"{self.places.data}/{PARTITIONS_DIRECTORY}")
        store = await loop.run_in_executor(
            self._executor, lambda: CatalogStore.open(self.places.data, may_make=may_make)
        )
        defaults = TopicDefaults(self._config.topic.message_expiry_us, self._config.topic.max_topic_size)
        catalog = await loop.run_in_executor(self._executor, store.load, defaults)
        self.keeper = CatalogKeeper(store, catalog, self._executor)
        self.keeper.on_commit.append(self.groups.catalog_changed)
        self.logins = Logins(catalog.users)
        needs_password = self._config.tcp.enabled or self._config.http.enabled
        self.made_up_password = await make_root(self.keeper, self.logins, self._root, needs_password=needs_password)
        self._root = None
        await self._finish_earlier_run()
        interval_us = self._config.retention.interval_us
        settings = WorkerSettings(self.places, self.instance, self._journal_memory(), interval_us)
        self.workers = [Worker(number, settings, self) for number in range(self._worker_count)]
        self.logs.start(
            (
                log_id,
                place.partition.partition_id,
                self.logs.options_of(place.topic.options, len(place.topic.partitions)),
            )
            for log_id, place in catalog.logs.items()
        )
        self.senders = [Sender(self, number) for number in range(self._worker_count)]
        for worker in self.workers:
            worker.start()
        for worker in self.workers:
            await worker.first_ready()
        self._listen()
        if self._config.tcp.enabled:
            self.tcp = TcpListener(self, self._config.tcp)
            await self.tcp.start()
        if self._config.http.enabled:
            self.gateway = GatewayProcess(self.places.data, self._config.http)
            await self.gateway.start()

    async def _finish_earlier_run(self) -> None:
        """No worker lives yet: the files are ours."""
        catalog = self.keeper.catalog
        disk = FileDisk()
        partitions = f"{self.places.data}/{PARTITIONS_DIRECTORY}"
        highest = 0
        for name in os.listdir(partitions):
            log_id = int(name) if name.isascii() and name.isdigit() else -1
            path = f"{partitions}/{name}"
            if log_id in catalog.logs:
                continue
            if log_id in catalog.buried or (log_id > 0 and not _holds_segment(path)):
                disk.remove_tree(path)
            else:
                LOG.warning("%s belongs to no partition and holds data: it is left alone", path)
                highest = max(highest, log_id)
        disk.sync_directory(partitions)
        async with self.keeper.lock:
            await self.keeper.pass_log_id(highest)  # A catalog that is older than the data would give it out again.
            await self.keeper.commit([LogGone(log_id) for log_id in sorted(catalog.buried)])
        self.places.sweep_logs(catalog.logs)

    def _journal_memory(self) -> int:
        """Bytes of rings for each worker. Raises where the runtime file system is too small (rule 10)."""
        free = self.places.runtime_free()
        used = self.places.journal_used()
        least = self._worker_count * JOURNAL_PER_WORKER_MIN
        limit = self._config.partition.journal_memory_limit or (free + used) // JOURNAL_SHARE
        if limit < least or limit > free + used:
            who = "1 worker needs" if self._worker_count == 1 else f"{self._worker_count} workers need"
            raise Unavailable(
                f"runtime directory {self.places.runtime}: too small: its file system has {(free + used) // MIB} MiB"
                f" for ring journals; {who} a journal_memory_limit from {least // MIB} MiB"
                f" to what is free, and it is {limit // MIB} MiB: make the file system larger, or set another limit"
            )
        return limit // self._worker_count

    def _listen(self) -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        listener.bind(self.places.socket_path)
        os.chmod(self.places.socket_path, 0o600)
        listener.listen(BACKLOG)
        asyncio.get_running_loop().add_reader(listener.fileno(), self._accept)
        self._listener = listener

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            LOG.error("a client could not be let in: %s", error)  # Out of descriptors: those who are in go on.
            return
        if len(self.sessions) >= SESSION_COUNT_MAX:
            LOG.error("a client was turned away: there are %d connections", SESSION_COUNT_MAX)
            connection.close()
            return
        session = LocalSession(self, self.next_session_number(), connection)
        self.sessions[session.number] = session
        self.spawn(session.run())

    def next_session_number(self) -> int:
        """Of a new connection."""
        self._session_number += 1
        return self._session_number

    def spawn(self, work: Any) -> None:
        """A task that nobody waits for; it ends with the broker."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- stop ---------------------------------------------------------------------------------------------------------
    async def stop(self) -> list[str]:
        """Drains and ends everything: what of the final flush failed."""
        if self.gateway is not None:
            await self.gateway.stop()  # first: what is under way there needs the rest of us
        self.stopping = True
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener.fileno())
            self._listener.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.places.socket_path)
        if self.tcp is not None:
            self.tcp.stop_listening()
        failures: list[str] = []
        for part in await asyncio.gather(*(worker.stop() for worker in self.workers)):
            failures += part
        await self._end_sending()
        await self._end_tasks()
        if hasattr(self, "keeper"):
            try:
                await self.keeper.close()
            except ShmbrokerError as error:
                failures.append(str(error))
        self.watches.close()
        self._executor.shutdown()
        if hasattr(self, "logins"):
            self.logins.close()
        logging.getLogger("shmbroker").removeHandler(self.log_memory)
        return failures

    def waited_for(self) -> list[str]:
        """Who is not done with stopping, for people."""
        parts = [worker.waited_for for worker in self.workers]
        if self.gateway is not None:
            parts.append(self.gateway.waited_for)
        return [part for part in parts if part] or ["the catalog"]

    def hurry(self) -> None:
        """Kills what a stop still waits for."""
        for worker in self.workers:
            worker.hurry()
        if self.gateway is not None:
            self.gateway.hurry()

    async def abandon(self) -> None:
        """After a start that failed."""
        self.stopping = True
        if self.gateway is not None:
            await self.gateway.stop()
        for worker in self.workers:
            await worker.kill()
        await self._end_sending()
        await self._end_tasks()
        if hasattr(self, "keeper"):
            await self.keeper.close()
        self._executor.shutdown()
        if hasattr(self, "logins"):
            self.logins.close()
        logging.getLogger("shmbroker").removeHandler(self.log_memory)

    async def _end_sending(self) -> None:
        """The workers have stopped: whoever still waits is answered, and TCP ends."""
        for sender in self.senders:
            sender.close()
        if self.tcp is not None:
            await self.tcp.close()
        self.readers.close()

    async def _end_tasks(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- logs and workers ---------------------------------------------------------------------------------------------
    def worker_of(self, log: Log) -> Worker:
        return self.workers[log.worker]

    def partitions_of(self, worker: int) -> list[dict[str, Any]]:
        """What a run of this worker opens: what is in the catalog, and what is being created right now."""
        return [_entry(log, create=False) for log in self.logs.of_worker(worker)]

    def opened(self, worker: int, states: list[dict[str, Any]]) -> None:
        self.logs.opened(states)
        for entry in states:
            if entry["reason"]:
                LOG.error("partition log %d: %s", entry["log_id"], entry["reason"])

    def worker_ready(self, worker: int) -> None:
        """Readers that wait get their bells registered again; removals that a death interrupted are finished."""
        for watch in self.watches.all():
            log_ids = self.logs.by_worker(watch.log_ids).get(worker)
            if log_ids:
                self.spawn(self._register_again(watch, worker, log_ids))
        if self.keeper.catalog.buried and self._listener is not None:
            self.spawn(self.bury(sorted(self.keeper.catalog.buried)))

    async def _register_again(self, watch: Watch, worker: int, log_ids: list[int]) -> None:
        with contextlib.suppress(ShmbrokerError):  # that run has ended too: its successor is told
            await self.register_watch(watch, worker, log_ids)

    async def register_watch(self, watch: Watch, worker: int, log_ids: list[int]) -> None:
        """Gives one worker the bell of a watch."""
        link = await self.workers[worker].running()
        name = watch.lend_name(f"{self.places.prefix}w{worker}-")
        try:
            await link.control(
                "watch",
                watch.descriptors(),
                session=watch.session,
                watch_id=watch.watch_id,
                log_ids=log_ids,
                bell=name,
            )
        finally:
            if name is not None:
                unlink_name(name)

    def worker_died(self, worker: int) -> None:
        self.senders[worker].died()
        count = self.lanes.worker_died(worker)
        if count:
            LOG.warning("%d lanes ended with worker %d", count, worker)

    def lane_closed(self, lane_id: int, text: str) -> None:
        lane = self.lanes.drop_id(lane_id)
        LOG.error("lane %d of connection %s was closed: %s", lane_id, lane.session if lane else "?", text)

    async def create_logs(self, logs: list[Log]) -> None:
        """Makes and opens new partitions, durable before this returns; none of them is left where one fails."""
        try:
            on_workers = (self._create_on(worker, logs) for worker in {log.worker for log in logs})
            # All of them to their end: what one still creates would come after its removal.
            for outcome in await asyncio.gather(*on_workers, return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome
        except BaseException:
            await self.discard_logs(logs)
            raise

    async def _create_on(self, worker: int, logs: list[Log]) -> None:
        mine = [log for log in logs if log.worker == worker]
        for start in range(0, len(mine), CHUNK):
            link = await self.workers[worker].running()
            entries = [_entry(log, create=True) for log in mine[start : start + CHUNK]]
            answer = await link.control("open", partitions=entries)
            self.opened(worker, answer["partitions"])

    async def discard_logs(self, logs: list[Log]) -> None:
        """Undoes a creation that the catalog will not know. What cannot be reached now is swept at the next start. One
        that holds a segment is not of this creation, since nobody was let in: it stays."""
        partitions = f"{self.places.data}/{PARTITIONS_DIRECTORY}"
        log_ids = [log.log_id for log in logs]
        mine = [log_id for log_id in log_ids if not _holds_segment(f"{partitions}/{log_id:020}")]
        await self._remove_on_workers(mine, DISCARD_WAIT_S)
        self.logs.forget(log_ids)

    async def _remove_on_workers(self, log_ids: list[int], timeout_s: float | None = None) -> list[int]:
        """Has the files removed; those that are gone. A worker that hangs does it when it goes on."""
        gone: list[int] = []
        for worker, mine in self.logs.by_worker(log_ids).items():
            for start in range(0, len(mine), CHUNK):
                part = mine[start : start + CHUNK]
                try:
                    link = await self.workers[worker].running()
                    await link.control("remove", timeout_s=timeout_s, on_late=self._gone_late(part), log_ids=part)
                except ShmbrokerError as error:
                    LOG.warning("logs %s are not removed yet: %s", part, error)
                else:
                    gone += part
        return gone

    async def bury(self, log_ids: list[int]) -> None:
        """Removes the files of deleted partitions, and then tells the catalog that they are gone."""
        for session in self.sessions.values():
            if isinstance(session, LocalSession):
                session.lose(log_ids)
        await self._forget_gone(await self._remove_on_workers(log_ids))

    def _gone_late(self, log_ids: list[int]) -> Callable[[Any], None]:
        return lambda _: None if self.stopping else self.spawn(self._forget_gone(log_ids))

    async def _forget_gone(self, gone: list[int]) -> None:
        self.logs.forget(gone)
        for log_id in gone:
            self.readers.forget(log_id)
        async with self.keeper.lock:
            still = [LogGone(log_id) for log_id in gone if log_id in self.keeper.catalog.buried]
            await self.keeper.commit(still)

    async def update_logs(self, topic: Topic) -> None:
        """Tells the workers the options of a topic that has changed."""
        options = self.logs.options_of(topic.options, len(topic.partitions))
        log_ids = [partition.log_id for partition in topic.partitions]
        for log_id in log_ids:
            self.logs.get(log_id).options = options
        for worker, mine in self.logs.by_worker(log_ids).items():
            try:
                link = await self.workers[worker].running()
                await link.control("update", log_ids=mine, options=options)
            except Unavailable:
                pass  # One that is started again opens them with the new options.
            except OutcomeUnknown as error:  # It is in the worker's lane, and the catalog has it.
                LOG.warning("the new options are for later: %s", error)

    async def purge_logs(self, log_ids: list[int]) -> None:
        """Empties them, each in a new incarnation (rule 14). Raises the first failure."""
        for worker, mine in self.logs.by_worker(log_ids).items():
            for start in range(0, len(mine), CHUNK):
                link = await self.workers[worker].running()
                part = mine[start : start + CHUNK]
                self._purged(await link.control("purge", on_late=self._purged, log_ids=part))

    def _purged(self, answer: dict[str, Any]) -> None:
        for text, incarnation in answer["incarnations"].items():
            log_id = int(text)
            if log_id in self.logs:
                log = self.logs.get(log_id)
                log.incarnation = incarnation
                self.readers.forget(log_id)
                self.senders[log.worker].offsets.forget_log(log_id)

    # --- sessions -----------------------------------------------------------------------------------------------------
    def session_ended(self, session: Session) -> None:
        """Its lanes and watches end; what it had published is served."""
        del self.sessions[session.number]
        self.lanes.end_session(session.number)
        self.watches.end_session(session.number)
        if not self.stopping and isinstance(session, LocalSession):
            for worker, generation in session.introduced.items():
                self.spawn(self._end_on_worker(session.number, worker, generation))

    async def _end_on_worker(self, session: int, worker: int, generation: int) -> None:
        if self.workers[worker].generation == generation:
            with contextlib.suppress(ShmbrokerError):  # a run that has ended knows of no session
                link = await self.workers[worker].running()
                await link.control("end", session=session)


def _entry(log: Log, *, create: bool) -> dict[str, Any]:
    return {"log_id": log.log_id, "partition_id": log.partition_id, "create": create, "options": log.options}


def _holds_segment(directory: str) -> bool:
    return any(name.endswith(LOG_SUFFIX) for _, _, names in os.walk(directory) for name in names)
