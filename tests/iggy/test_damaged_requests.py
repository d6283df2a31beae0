"""Recorded requests with bytes changed, to a broker that knows the sender: each is answered, and never with a fault of
ours; the broker goes on as if nothing had been."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from typing import Any

from shmbroker.errors import ErrorCode
from shmbroker.wire import groups, messages, topics
from shmbroker.wire.codes import BY_CODE, Code
from shmbroker.wire.commands import decode_request
from shmbroker.wire.frame import HEADER_SIZE, Eviction
from tests.iggy.batches import wire_batch
from tests.iggy.conftest import RawClient
from tests.wire.fuzzing import HERE

DAMAGED_EACH = 4
PARTITIONS_MAX = 16
"""More would only take time."""
LEFT_OUT = {Code.LOGIN, Code.LOGIN_WITH_TOKEN, Code.LOGOUT, Code.GET_SNAPSHOT, Code.CHANGE_PASSWORD, Code.UPDATE_USER}
"""What changes who we are, or takes long."""


class Body:
    """A command with any body."""

    def __init__(self, code: int, body: bytes) -> None:
        self.CODE, self.body = code, body

    def encode(self) -> bytes:
        return self.body


def recorded() -> list[Body]:
    vectors = json.loads(gzip.decompress((HERE / "vectors.json.gz").read_bytes()))
    requests = [vector for vector in vectors if vector["direction"] == "request" and vector["code"] in BY_CODE]
    bodies = [Body(vector["code"], bytes.fromhex(vector["hex"])[HEADER_SIZE:]) for vector in requests]
    return [body for body in bodies if body.CODE not in LEFT_OUT]


def damaged(body: bytes, rng: random.Random) -> bytes:
    changed = bytearray(body)
    for _ in range(rng.randrange(1, 4)):
        if changed:
            changed[rng.randrange(len(changed))] = rng.choice((0, 1, 2, 0x7F, 0xFF, rng.randrange(256)))
    if rng.random() < 0.2:
        del changed[rng.randrange(len(changed) + 1) :]
    return bytes(changed)


def is_large(body: Body) -> bool:
    request = decode_request(body.CODE, body.encode())
    if isinstance(request, topics.CreateTopic):
        return request.partitions_count > PARTITIONS_MAX
    return isinstance(request, topics.CreatePartitions) and request.count > PARTITIONS_MAX


def test_damaged_requests_are_answered_and_none_with_a_fault_of_ours(
    raw: Callable[..., RawClient], local: Any, rng: random.Random
) -> None:
    local.create_stream("s")
    local.create_topic("s", "t", partitions=2)
    client, good = raw(), raw()
    assert good.ask(groups.CreateGroup("s", "t", "g")).status == 0
    statuses: set[int] = set()
    for body in recorded():
        for number in range(DAMAGED_EACH + 1):
            request = Body(body.CODE, damaged(body.body, rng) if number else body.body)
            if is_large(request):
                continue
            answer = client.ask(request)
            assert not isinstance(answer.header, Eviction), (body.CODE, request.body.hex())
            assert answer.status != ErrorCode.ERROR, (body.CODE, request.body.hex(), answer.text)
            statuses.add(answer.status)
    assert {0, ErrorCode.INVALID_COMMAND} < statuses
    local.create_stream("after")
    local.create_topic("after", "t", partitions=1)
    send = messages.SendMessages("after", "t", messages.Partitioning.partition(0), 1, wire_batch([b"m"]))
    assert good.ask(send).value.confirmations[0].base_offset == 0
