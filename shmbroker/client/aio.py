"""The client for asyncio: the same methods as coroutines.

Nothing here touches shared memory by itself: a send is a submission whose future the loop awaits; administration and
polls run on threads of their own, so that the loop is never held up. An :class:`AsyncClient` owns its client, a small
executor for control, and one thread for each of its consumers; all of them end with close(). Cancelling a coroutine
does not take back what it asked for.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import numpy.typing as npt

from shmbroker.client.address import address_of
from shmbroker.client.administration import TIMEOUT_S, Seconds
from shmbroker.client.batch import Batch
from shmbroker.client.client import Client
from shmbroker.client.consumer import Consumer
from shmbroker.client.producer import Producer
from shmbroker.client.ticket import Confirmation, Ticket
from shmbroker.errors import BufferFull, ShmbrokerError, WaitTimeout
from shmbroker.formats.headers import Headers
from shmbroker.limits import MIB
from shmbroker.wire.primitives import Identifier

P = ParamSpec("P")
R = TypeVar("R")
CONTROL_THREADS = 4


async def _on(executor: ThreadPoolExecutor, call: Callable[[], R]) -> R:
    context = contextvars.copy_context()
    return await asyncio.get_running_loop().run_in_executor(executor, lambda: context.run(call))


def _coroutine(
    method: Callable[Concatenate[Client, P], R],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, R]]:
    """The method of Client as a coroutine of AsyncClient."""

    async def call(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await _on(self._control, lambda: method(self.client, *args, **kwargs))

    functools.update_wrapper(call, method)
    return call


class AsyncClient:
    """A connection to a broker, for one event loop. ``client`` is the ordinary client underneath."""

    def __init__(self, client: Client, control: ThreadPoolExecutor) -> None:
        """Use :func:`connect_async`."""
        self.client = client
        self._control = control

    create_stream = _coroutine(Client.create_stream)
    get_stream = _coroutine(Client.get_stream)
    list_streams = _coroutine(Client.list_streams)
    update_stream = _coroutine(Client.update_stream)
    delete_stream = _coroutine(Client.delete_stream)
    purge_stream = _coroutine(Client.purge_stream)
    create_topic = _coroutine(Client.create_topic)
    get_topic = _coroutine(Client.get_topic)
    list_topics = _coroutine(Client.list_topics)
    update_topic = _coroutine(Client.update_topic)
    delete_topic = _coroutine(Client.delete_topic)
    purge_topic = _coroutine(Client.purge_topic)
    create_partitions = _coroutine(Client.create_partitions)
    delete_partitions = _coroutine(Client.delete_partitions)
    delete_segments = _coroutine(Client.delete_segments)
    flush = _coroutine(Client.flush)
    get_consumer_offset = _coroutine(Client.get_consumer_offset)
    set_consumer_offset = _coroutine(Client.set_consumer_offset)
    delete_consumer_offset = _coroutine(Client.delete_consumer_offset)
    create_group = _coroutine(Client.create_group)
    get_group = _coroutine(Client.get_group)
    list_groups = _coroutine(Client.list_groups)
    delete_group = _coroutine(Client.delete_group)
    create_user = _coroutine(Client.create_user)
    get_user = _coroutine(Client.get_user)
    list_users = _coroutine(Client.list_users)
    update_user = _coroutine(Client.update_user)
    delete_user = _coroutine(Client.delete_user)
    update_permissions = _coroutine(Client.update_permissions)
    change_password = _coroutine(Client.change_password)
    create_token = _coroutine(Client.create_token)
    list_tokens = _coroutine(Client.list_tokens)
    delete_token = _coroutine(Client.delete_token)
    me = _coroutine(Client.me)
    get_client = _coroutine(Client.get_client)
    list_clients = _coroutine(Client.list_clients)
    describe_options = _coroutine(Client.describe_options)
    cluster = _coroutine(Client.cluster)
    snapshot = _coroutine(Client.snapshot)
    stats = _coroutine(Client.stats)
    ping = _coroutine(Client.ping)

    async def producer(
        self,
        stream: Identifier,
        topic: Identifier,
        *,
        linger: float = 0.0,
        batch_count: int = 1000,
        batch_size: int = MIB,
        max_in_flight: int = 128,
        timeout: Seconds = TIMEOUT_S,
    ) -> AsyncProducer:
        """As Client.producer."""
        producer = await _on(
            self._control,
            lambda: self.client.producer(
                stream, topic, linger=linger, batch_count=batch_count, batch_size=batch_size,
                max_in_flight=max_in_flight, timeout=timeout,
            ),
        )  # fmt: skip
        return AsyncProducer(producer, self._control, timeout)

    async def consumer(
        self,
        stream: Identifier,
        topic: Identifier,
        *,
        partition: int | Iterable[int] | None = None,
        name: str | None = None,
        id: int | None = None,
        group: Identifier | None = None,
        offset: int | None = None,
        timestamp: int | None = None,
        first: bool = False,
        last: int | None = None,
        next: bool = False,
        auto_commit: bool = False,
        timeout: Seconds = TIMEOUT_S,
    ) -> AsyncConsumer:
        """As Client.consumer."""
        consumer = await _on(
            self._control,
            lambda: self.client.consumer(
                stream, topic, partition=partition, name=name, id=id, group=group, offset=offset, timestamp=timestamp,
                first=first, last=last, next=next, auto_commit=auto_commit, timeout=timeout,
            ),
        )  # fmt: skip
        return AsyncConsumer(consumer)

    async def close(self, timeout: Seconds = TIMEOUT_S) -> None:
        """As Client.close."""
        try:
            await _on(self._control, lambda: self.client.close(timeout))
        finally:
            self._control.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        try:
            await self.close()
        except ShmbrokerError:
            if error is None:
                raise


class AsyncProducer:
    """The sending side of a topic, for asyncio. Arguments and errors are those of :class:`Producer`."""

    def __init__(self, producer: Producer, control: ThreadPoolExecutor, timeout: Seconds) -> None:
        self.producer = producer
        self._control = control
        self._timeout = timeout

    async def send(
        self,
        messages: Sequence[bytes],
        *,
        partition: int | None = None,
        key: bytes | str | None = None,
        headers: Sequence[Headers | None] | Headers | None = None,
        ids: Sequence[int] | None = None,
        timeout: float | None = None,
    ) -> Confirmation:
        """Sends one batch and returns when the topic's policy is met for it."""

        def submit(timeout: float | None) -> Ticket:
            return self.producer.submit(
                messages, partition=partition, key=key, headers=headers, ids=ids, timeout=timeout
            )

        return await self._confirmed(submit, timeout)

    async def send_array(
        self,
        array: npt.NDArray[Any],
        *,
        partition: int | None = None,
        key: bytes | str | None = None,
        timeout: float | None = None,
    ) -> Confirmation:
        """As :meth:`send`, one message for each item of the array."""

        def submit(timeout: float | None) -> Ticket:
            return self.producer.submit_array(array, partition=partition, key=key, timeout=timeout)

        return await self._confirmed(submit, timeout)

    async def resend(self, ticket: Ticket, *, timeout: float | None = None) -> Confirmation:
        """Sends the batch of a ticket again."""
        return await self._confirmed(lambda seconds: self.producer.resend(ticket, timeout=seconds), timeout)

    async def _confirmed(self, submit: Callable[[float | None], Ticket], timeout: float | None) -> Confirmation:
        seconds = self._timeout if timeout is None else timeout
        deadline = None if seconds is None else time.monotonic() + seconds
        try:
            ticket = submit(0.0)  # never waits: the loop goes on
        except (BufferFull, WaitTimeout):
            ticket = await _on(self._control, lambda: submit(seconds))
        if ticket.done():
            return ticket.result(0.0)
        confirmed = asyncio.wrap_future(ticket)
        if deadline is None:
            return await confirmed
        # Not asyncio.wait_for: its machinery costs more than the send.
        timer = asyncio.get_running_loop().call_later(max(0.0, deadline - time.monotonic()), confirmed.cancel)
        try:
            return await confirmed
        except asyncio.CancelledError:
            if time.monotonic() < deadline or _is_being_cancelled():
                raise
            return ticket.result(0.0)  # raises StillInFlight with the ticket, unless it has just settled
        finally:
            timer.cancel()

    async def flush(self, timeout: float | None = None) -> None:
        """Returns when everything sent so far has met the topic's policy."""
        await _on(self._control, lambda: self.producer.flush(timeout))

    async def close(self, timeout: float | None = None) -> None:
        """Flushes and closes."""
        await _on(self._control, lambda: self.producer.close(timeout))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        try:
            await self.close()
        except ShmbrokerError:
            if error is None:
                raise


class AsyncConsumer:
    """The reading side of a topic, for asyncio. Its polls run on a thread of its own, one at a time."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self._thread = ThreadPoolExecutor(1, "shmbroker consumer")

    async def poll(
        self, max_messages: int = 1000, timeout: float | None = 0.0, *, max_bytes: int = 16 * MIB
    ) -> list[Batch]:
        """As Consumer.poll."""
        return await _on(self._thread, lambda: self.consumer.poll(max_messages, timeout, max_bytes=max_bytes))

    async def commit(
        self, *, partition: int | None = None, offset: int | None = None, timeout: float | None = TIMEOUT_S
    ) -> None:
        """As Consumer.commit."""
        await _on(self._thread, lambda: self.consumer.commit(partition=partition, offset=offset, timeout=timeout))

    async def seek(
        self,
        partition: int | None = None,
        *,
        offset: int | None = None,
        timestamp: int | None = None,
        first: bool = False,
        last: int | None = None,
        next: bool = False,
    ) -> None:
        """As Consumer.seek."""
        await _on(
            self._thread,
            lambda: self.consumer.seek(
                partition, offset=offset, timestamp=timestamp, first=first, last=last, next=next
            ),
        )  # fmt: skip

    def positions(self) -> dict[int, int]:
        """As Consumer.positions."""
        return self.consumer.positions()

    async def __aiter__(self) -> AsyncIterator[Batch]:
        """Batches for ever."""
        while True:
            for batch in await self.poll(timeout=1.0):
                yield batch

    async def close(self, timeout: float | None = TIMEOUT_S) -> None:
        """As Consumer.close; a poll that is under way ends first."""
        try:
            await _on(self._thread, lambda: self.consumer.close(timeout))
        finally:
            self._thread.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        try:
            await self.close()
        except ShmbrokerError:
            if error is None:
                raise


def _is_being_cancelled() -> bool:
    """Whether somebody has asked the current task to end, so that it was not our timer."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def connect_async(url: str | os.PathLike[str] | None = None, *, timeout: Seconds = TIMEOUT_S) -> AsyncClient:
    """As :func:`shmbroker.connect`, for the running event loop."""
    control = ThreadPoolExecutor(CONTROL_THREADS, "shmbroker control")

    def connect_attentive() -> Client:
        return Client(address_of(url), timeout=timeout, is_attentive=True)

    try:
        return AsyncClient(await _on(control, connect_attentive), control)
    except BaseException:
        control.shutdown(wait=False)
        raise
