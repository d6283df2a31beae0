"""A member of a group written for the published client: prints each payload, and commits after each poll's messages.

::

    python -m tests.iggy.group_member ADDRESS

Runs until it is killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from datetime import timedelta

from apache_iggy import AutoCommit, AutoCommitAfter, IggyClient, PollingStrategy, ReceiveMessage

from tests.iggy.conftest import ROOT


async def main(address: str) -> None:
    client = IggyClient(address)
    await client.connect()
    await client.login_user(ROOT["IGGY_ROOT_USERNAME"], ROOT["IGGY_ROOT_PASSWORD"])
    consumer = await client.consumer_group(
        "g",
        "s",
        "t",
        polling_strategy=PollingStrategy.Next(),
        batch_length=10,
        auto_commit=AutoCommit.After(AutoCommitAfter.ConsumingEachMessage()),
        poll_interval=timedelta(milliseconds=5),
    )

    async def take(message: ReceiveMessage) -> None:
        os.write(1, json.dumps(message.payload().decode()).encode() + b"\n")

    while True:
        try:
            await consumer.consume_messages(take, asyncio.Event())
        except RuntimeError as error:  # while the broker is away the client may also say so instead of waiting
            print(f"again after: {error}", file=sys.stderr)
            await asyncio.sleep(0.1)


asyncio.run(main(sys.argv[1]))
