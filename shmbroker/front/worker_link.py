"""The front's end of everything that it shares with one run of one worker: control lane, completions, link.

A control request is answered by the link (formats.link); a request about a log, which is what any client could send,
by a completion. Both are matched by the request number, which the two kinds share. When the worker dies every request
under way gets Unavailable, and the object is never used again: the next run has another.

Nobody waits for a worker that hangs longer than CONTROL_WAIT_S. What was asked of it stays in its lane, so it may be
carried out yet: whoever keeps books about it is told by ``on_late``.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final

from shmbroker.errors import ErrorCode, NotAccepted, OutcomeUnknown, ShmbrokerError, Unavailable, error_from
from shmbroker.formats.lane import REQUEST_CONTROL
from shmbroker.formats.link import PACKET, PACKET_SIZE, PACKET_TEXT_SIZE_MAX
from shmbroker.shm.doorbell import Doorbell, EventDoorbell
from shmbroker.shm.lane import LaneClient
from shmbroker.shm.region import Region

CONTROL_LANE_SIZE: Final = 1 << 20
CONTROL_WAIT_S: Final = 20.0
CHANGES: Final = frozenset({"open", "update", "remove", "purge", "segments"})
"""Of these a caller that gives up has to know that they may be carried out yet."""
DESCRIPTOR_SENDS_MAX: Final = 16
"""Packets with descriptors that wait in the socket: it must never be full."""


class WorkerLink:
    """Owned by the front's loop."""

    def __init__(
        self,
        worker: int,
        region: Region,
        doorbell: Doorbell,
        completion: EventDoorbell,
        link: socket.socket,
        on_notice: Callable[[dict[str, Any]], None],
    ) -> None:
        self._worker = worker
        self._region = region
        self._lane = LaneClient(region, doorbell)
        self._doorbell = doorbell
        self._completion = completion
        self._link = link
        self._on_notice = on_notice
        self._loop = asyncio.get_running_loop()
        self._number = 0
        self._descriptors = 0
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._completions: dict[int, asyncio.Future[tuple[int, int, int]]] = {}
        self._text: dict[int, list[bytes]] = {}
        self._room = asyncio.Event()
        self._sends = asyncio.Semaphore(DESCRIPTOR_SENDS_MAX)
        self._under_way: set[asyncio.Task[dict[str, Any]]] = set()
        self._dead: Unavailable | None = None
        link.setblocking(False)
        self._loop.add_reader(link.fileno(), self._read_link)
        self._loop.add_reader(completion.fileno(), self._read_completions)

    async def control(
        self,
        op: str,
        fds: Sequence[int] = (),
        *,
        timeout_s: float | None = None,
        on_late: Callable[[dict[str, Any]], None] | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        """One control request; ``fds`` travel before it. Raises what the worker says, Unavailable when it dies.

        ``timeout_s``: None is CONTROL_WAIT_S. After it, OutcomeUnknown for what changes something, else Unavailable;
        ``on_late`` is called with an answer that comes afterwards.
        """
        wait_s = CONTROL_WAIT_S if timeout_s is None else timeout_s
        if fds:
            try:
                await asyncio.wait_for(self._sends.acquire(), wait_s)
            except TimeoutError:
                raise self._silent(op, wait_s) from None
            try:
                # Now, and not when there is room for the request: the caller may close them once we gave up.
                fields["descriptors"] = self._send_descriptors(fds)
            except BaseException:
                self._sends.release()
                raise
        task = self._loop.create_task(self._control({"op": op, **fields}))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        if fds:
            task.add_done_callback(lambda _: self._sends.release())
        is_done: set[asyncio.Task[dict[str, Any]]] = set()
        try:
            is_done, _ = await asyncio.wait({task}, timeout=wait_s)
        finally:
            if not is_done:
                task.add_done_callback(lambda task: _take_late(task, on_late))
        if not is_done:
            raise self._silent(op, wait_s)
        return task.result()

    def _send_descriptors(self, fds: Sequence[int]) -> int:
        """The number by which a request names them."""
        self._check_alive()
        self._descriptors += 1
        try:
            socket.send_fds(self._link, [PACKET.pack(self._descriptors, 0, 0)], list(fds))
        except OSError as error:
            raise self._gone(str(error)) from error
        return self._descriptors

    def _silent(self, op: str, wait_s: float) -> ShmbrokerError:
        text = f"worker {self._worker} has not answered {op!r} for {wait_s:g} s: it hangs, or its disk does"
        if op in CHANGES:
            return OutcomeUnknown(f"{text}. Whether it is carried out is unknown: look before you repeat it")
        return Unavailable(text, number=ErrorCode.WORKER_UNAVAILABLE)

    async def _control(self, request: dict[str, Any]) -> dict[str, Any]:
        body = json.dumps(request, separators=(",", ":")).encode()
        future: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        number = await self._offer(REQUEST_CONTROL, 0, 0, len(body), body)
        self._answers[number] = future
        try:
            return await future
        finally:
            self._answers.pop(number, None)

    async def request(self, kind: int, flags: int, log_id: int, argument: int, body: bytes) -> tuple[int, int]:
        """A request about one log, as a client could send it: value and argument. Raises its error."""
        future: asyncio.Future[tuple[int, int, int]] = self._loop.create_future()
        number = await self._offer(kind, flags, log_id, argument, body)
        self._completions[number] = future
        try:
            status, value, result = await future
        finally:
            self._completions.pop(number, None)
        if status:
            raise error_from(status)
        return value, result

    async def _offer(self, kind: int, flags: int, log_id: int, argument: int, body: bytes) -> int:
        """Publishes a request, waiting for room where there is none."""
        while True:
            self._check_alive()
            self._room.clear()
            if self._lane.offer(kind, flags, self._number + 1, log_id, argument, (body,), len(body)):
                self._number += 1
                self._lane.ring()
                return self._number
            await self._room.wait()

    def _check_alive(self) -> None:
        if self._dead is not None:
            raise self._gone("")

    def _gone(self, text: str) -> Unavailable:
        return Unavailable(f"the partition's worker has died {text}".strip(), number=ErrorCode.WORKER_UNAVAILABLE)

    def _read_completions(self) -> None:
        self._completion.drain()
        for number, status, _, value, argument in self._lane.completions():
            future = self._completions.get(number)
            if future is not None and not future.done():
                future.set_result((status, value, argument))
        self._room.set()

    def _read_link(self) -> None:
        while True:
            try:
                packet = self._link.recv(PACKET_SIZE + PACKET_TEXT_SIZE_MAX)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                packet = b""
            if not packet:
                self._loop.remove_reader(self._link.fileno())  # The process is ending; its pidfd says when.
                return
            number, status, more = PACKET.unpack_from(packet)
            pieces = self._text.setdefault(number, [])
            pieces.append(packet[PACKET_SIZE:])
            if not more:
                del self._text[number]
                self._answer(number, status, json.loads(b"".join(pieces)))

    def _answer(self, number: int, status: int, body: dict[str, Any]) -> None:
        if number == 0:
            self._on_notice(body)
            return
        future = self._answers.get(number)
        if future is None or future.done():
            return
        if status:
            future.set_exception(_error_of(status, body["text"]))
        else:
            future.set_result(body)

    def died(self) -> None:
        """The process has ended. What it said last is taken, everything else fails; all is given back."""
        if self._dead is not None:
            return
        self._read_link()
        self._read_completions()
        self._dead = self._gone("")
        waiting: list[asyncio.Future[Any]] = [*self._answers.values(), *self._completions.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(self._gone(""))
        self._room.set()
        self._loop.remove_reader(self._completion.fileno())
        if self._link.fileno() >= 0:
            self._loop.remove_reader(self._link.fileno())
        self._link.close()
        self._completion.close()
        self._lane.close()
        self._doorbell.close()


def _take_late(task: asyncio.Task[dict[str, Any]], on_late: Callable[[dict[str, Any]], None] | None) -> None:
    """Nobody waits any more: an error is for nobody, an answer for whoever keeps books."""
    if not task.cancelled() and task.exception() is None and on_late is not None:
        on_late(task.result())


def _error_of(status: int, text: str) -> ShmbrokerError:
    if status == ErrorCode.ERROR:
        return NotAccepted(text, number=status)
    return error_from(status, text)
