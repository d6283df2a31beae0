"""Messages and stored offsets: what proves completion, and what does not.

A production that waits (the default) is answered 201 once the topic's own policy is met, which ``Iggy-Durability``
names: ``ack`` cannot weaken it, nor strengthen it. ``ack=none`` is answered 202 as soon as the batch is in the lane,
and says nothing. 504: it may have been done; 503 and 429: nothing was accepted. Polls that commit by themselves prove
delivery alone; storing an offset is answered when the topic's offset policy is met.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import ValidationError

from shmbroker.client.offsets import consumer_key
from shmbroker.client.ticket import Confirmation, Ticket
from shmbroker.errors import ErrorCode, ShmbrokerError, error_from
from shmbroker.gateway import shapes
from shmbroker.gateway.backend import remaining_s
from shmbroker.gateway.bodies import U32, U64, StoreOffsetBody
from shmbroker.gateway.caller import Caller, Reader, StreamId, TopicId, Writer, identifier
from shmbroker.gateway.exchange import Poll, Sent, Target, key_of
from shmbroker.gateway.faults import of_error, unknown_outcome
from shmbroker.gateway.messages import PolledMessages, ProduceBody, batching_of, encode
from shmbroker.gateway.validation import invalid
from shmbroker.limits import HTTP_POLL_COUNT_MAX
from shmbroker.wire import groups

router = APIRouter(tags=["messages"])
TOPIC = "/streams/{stream_id}/topics/{topic_id}"
DURABILITY = "Iggy-Durability"
JSON = "application/json"
ConsumerId = Annotated[str, Query(min_length=1, max_length=255, description="Number or name.")]
PartitionId = Annotated[U32, Query()]

_PRODUCED: dict[int | str, dict[str, Any]] = {
    201: {
        "model": shapes.Confirmations,
        "description": "The topic's policy is met.",
        "headers": {DURABILITY: {"schema": {"enum": ["replicated", "persisted"]}, "description": "That policy."}},
    },
    202: {
        "description": "With ack=none: it was dispatched.",
        "headers": {DURABILITY: {"schema": {"enum": ["none"]}}},
    },
}
_PRODUCE_BODY = {
    "requestBody": {"required": True, "content": {JSON: {"schema": {"$ref": "#/components/schemas/ProduceBody"}}}}
}


@router.post(
    f"{TOPIC}/messages", status_code=201, response_class=Response, responses=_PRODUCED, openapi_extra=_PRODUCE_BODY
)
async def produce(
    stream_id: StreamId,
    topic_id: TopicId,
    request: Request,
    caller: Writer,
    ack: Annotated[Literal["replicated", "none"], Query(description="What the answer waits for.")] = "replicated",
) -> Response:
    """Sends a batch to one partition."""
    body = await request.body()
    target = caller.target(stream_id, topic_id)
    try:
        sent = await caller.gateway.backend.carry(lambda: _send(caller, target, body))
        if ack == "none":
            return Response(None, HTTPStatus.ACCEPTED, {DURABILITY: "none"})
        confirmed = await _confirmed(sent.ticket, caller)
    except ShmbrokerError as error:
        raise of_error(error, "produce") from error
    answer = encode({"confirmations": [sent.confirmation(confirmed)]})
    return Response(answer, HTTPStatus.CREATED, {DURABILITY: sent.partition.durability}, JSON)


def _send(caller: Caller, target: Target, body: bytes) -> Sent:
    """On a carrier: from the body to the lane."""
    try:
        batching = batching_of(ProduceBody.model_validate_json(body))
    except ValidationError as error:
        raise invalid(error.errors(include_url=False, include_input=False)) from None
    return caller.gateway.exchange.send(target, batching)


async def _confirmed(ticket: Ticket, caller: Caller) -> Confirmation:
    """What the broker confirms. 504 where it does not in time: the request goes on."""
    try:
        return await asyncio.wait_for(asyncio.wrap_future(ticket), remaining_s(caller.deadline))
    except TimeoutError:
        raise unknown_outcome("produce", "not confirmed in time: it may still be carried out") from None


@router.get(f"{TOPIC}/messages", response_class=Response, responses={200: {"model": PolledMessages}})
async def poll(
    stream_id: StreamId,
    topic_id: TopicId,
    caller: Reader,
    consumer_id: ConsumerId = "0",
    partition_id: PartitionId = 0,
    kind: Annotated[Literal["offset", "timestamp", "first", "last", "next"], Query()] = "offset",
    value: Annotated[U64, Query(description="The offset, or the time in microseconds.")] = 0,
    count: Annotated[int, Query(ge=0, le=HTTP_POLL_COUNT_MAX)] = 10,
    auto_commit: Annotated[bool, Query(description="Store the offset behind what is handed out.")] = False,
) -> Response:
    """The next messages of a partition; at most 16 MiB of them. Never waits."""
    wanted = Poll(identifier(consumer_id), partition_id, kind, value, count, auto_commit)
    target = caller.target(stream_id, topic_id)
    backend = caller.gateway.backend
    run = backend.wait_for if kind == "next" else backend.carry  # the stored offset is the worker's to say
    answer = await run(lambda: caller.gateway.exchange.poll(target, wanted))
    return Response(answer, HTTPStatus.OK, media_type=JSON)


# --- stored offsets ---------------------------------------------------------------------------------------------------
@router.get(f"{TOPIC}/consumer-offsets", tags=["consumers"])
async def get_offset(
    stream_id: StreamId,
    topic_id: TopicId,
    caller: Reader,
    consumer_id: ConsumerId = "0",
    consumer_kind: Annotated[Literal["consumer", "consumer_group"], Query()] = "consumer",
    partition_id: PartitionId = 0,
) -> shapes.OffsetInfo:
    """What a consumer, or a group, stored in a partition."""
    target = caller.target(stream_id, topic_id)
    key = key_of(identifier(consumer_id))
    if consumer_kind == "consumer_group":
        found = await caller.command(groups.GetGroup(target.stream, target.topic, identifier(consumer_id)))
        if found is None:
            raise error_from(ErrorCode.GROUP_NOT_FOUND, f"{target.name} has no consumer group {consumer_id}")
        key = consumer_key(None, None, found.group.name)
    exchange = caller.gateway.exchange
    return shapes.OffsetInfo(
        **await caller.gateway.backend.wait_for(lambda: exchange.get_offset(target, partition_id, key))
    )


@router.put(f"{TOPIC}/consumer-offsets", status_code=204, tags=["consumers"])
async def store_offset(stream_id: StreamId, topic_id: TopicId, body: StoreOffsetBody, caller: Writer) -> None:
    """Stores the offset of the last message processed; it may go back. Answered when the offset policy is met."""
    target = caller.target(stream_id, topic_id)
    consumer = body.consumer_id if isinstance(body.consumer_id, int) else identifier(body.consumer_id)
    key, partition = key_of(consumer), body.partition_id or 0
    exchange = caller.gateway.exchange
    await _change_offset(caller, lambda: exchange.store_offset(target, partition, key, body.offset))


@router.delete(f"{TOPIC}/consumer-offsets/{{consumer_id}}", status_code=204, tags=["consumers"])
async def delete_offset(
    stream_id: StreamId, topic_id: TopicId, consumer_id: str, caller: Writer, partition_id: PartitionId = 0
) -> None:
    """Forgets it. Answered when the offset policy is met."""
    target = caller.target(stream_id, topic_id)
    key = key_of(identifier(consumer_id))
    exchange = caller.gateway.exchange
    await _change_offset(caller, lambda: exchange.delete_offset(target, partition_id, key))


async def _change_offset(caller: Caller, work: Callable[[], None]) -> None:
    try:
        await caller.gateway.backend.wait_for(work)
    except ShmbrokerError as error:
        raise of_error(error, "offset_write") from error
