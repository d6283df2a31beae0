"""Workers that die under TCP clients, TLS, and the numbers of refusals, through the published client."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from apache_iggy import Consumer, IggyClient, Partitioning, PollingStrategy, SendMessage

import shmbroker
from shmbroker.client.embedded import Embedded
from shmbroker.errors import ErrorCode
from shmbroker.wire import messages
from tests.iggy.batches import wire_batch
from tests.iggy.conftest import ROOT, Program, RawClient, run_program

Run = Callable[[Program], Any]
MakeRaw = Callable[..., RawClient]


async def everything(client: IggyClient) -> list[Any]:
    found: list[Any] = []
    while True:
        part = await client.poll_messages(
            "s",
            "t",
            consumer=Consumer.Single("c"),
            polling_strategy=PollingStrategy.Offset(len(found)),
            count=1000,
            auto_commit=False,
            partition_id=0,
        )
        if not part:
            return found
        found += part


@pytest.mark.parametrize("durability", ["replicated", "persisted"])
def test_rule_07_sends_go_on_over_the_death_of_a_worker_without_loss_or_duplicate(
    run: Run, broker: Embedded, durability: str
) -> None:
    sent = 400

    async def produce(client: IggyClient) -> None:
        for number in range(sent):
            batch = [SendMessage(f"{number} {part}") for part in range(3)]
            answer = await client.send_messages("s", "t", Partitioning.partition_id(0), batch)
            assert answer.confirmations[0].base_offset == 3 * number
            await asyncio.sleep(0)

    async def kill() -> None:
        for _ in range(3):
            await asyncio.sleep(0.3)
            workers = await asyncio.to_thread(lambda: broker.process_ids()[1:])
            for pid in workers:
                os.kill(pid, signal.SIGKILL)

    async def program(client: IggyClient) -> None:
        await client.create_stream("s")
        await client.create_topic("s", "t", 1, options={"durability": durability})
        await asyncio.gather(produce(client), kill())
        found = await everything(client)
        assert [message.payload().decode() for message in found] == [
            f"{number} {part}" for number in range(sent) for part in range(3)
        ]

    run(program)


def test_the_same_request_again_gets_its_first_confirmation(raw: MakeRaw, local: Any) -> None:
    local.create_stream("s")
    local.create_topic("s", "t", partitions=1)
    client = raw()
    request = messages.SendMessages("s", "t", messages.Partitioning.partition(0), 2, wire_batch([b"a", b"b"]))
    first = client.ask(request).value.confirmations[0]
    client.connection.request_number -= 1
    assert client.ask(request).value.confirmations[0] == first
    assert client.ask(request).value.confirmations[0].base_offset == first.base_offset + 2


def test_a_request_again_goes_to_the_partition_that_was_chosen_for_it(raw: MakeRaw, local: Any) -> None:
    local.create_stream("s")
    local.create_topic("s", "t", partitions=3)
    client = raw()
    request = messages.SendMessages(
        "s", "t", messages.Partitioning(messages.PARTITIONING_BALANCED, b""), 1, wire_batch([b"a"])
    )
    first = client.ask(request).value.confirmations[0]
    for _ in range(3):
        client.connection.request_number -= 1
        assert client.ask(request).value.confirmations[0] == first
    assert client.ask(request).value.confirmations[0].partition_id == (first.partition_id + 1) % 3


@pytest.mark.parametrize(
    ("target", "number"),
    [(("s", "t", 1), 20), (("s", "x", 0), 20), (("x", "t", 0), 20)],
)
def test_a_send_to_what_is_not_there(raw: MakeRaw, local: Any, target: tuple[str, str, int], number: int) -> None:
    local.create_stream("s")
    local.create_topic("s", "t", partitions=1)
    stream, topic, partition = target
    client = raw()
    partitioning = messages.Partitioning.partition(partition)
    assert client.ask(messages.SendMessages(stream, topic, partitioning, 1, wire_batch([b"a"]))).status == number


def test_damaged_batches_are_refused_by_number(raw: MakeRaw, local: Any) -> None:
    local.create_stream("s")
    local.create_topic("s", "t", partitions=1)
    client = raw()
    good = wire_batch([b"aaaa", b"bbbb"])
    for position, number in (
        (40, ErrorCode.INVALID_BATCH_CHECKSUM),
        (len(good) - 1, ErrorCode.INVALID_MESSAGE_CHECKSUM),
        (100, ErrorCode.INVALID_COMMAND),
    ):
        damaged = bytearray(good)
        damaged[position] ^= 1
        request = messages.SendMessages("s", "t", messages.Partitioning.partition(0), 2, bytes(damaged))
        assert client.ask(request).status == number
    request = messages.SendMessages("s", "t", messages.Partitioning.partition(0), 2, good)
    assert client.ask(request).value.confirmations[0].base_offset == 0


def test_a_poll_of_what_is_not_there_raises_its_text(run: Run) -> None:
    async def program(client: IggyClient) -> None:
        await client.create_stream("s")
        await client.create_topic("s", "t", 1)
        for stream, topic, partition, text in (
            ("x", "t", 0, "Stream with ID"),
            ("s", "x", 0, "Topic with ID"),
            ("s", "t", 7, "Partition with ID"),
        ):
            with pytest.raises(RuntimeError, match=text):
                await client.poll_messages(
                    stream,
                    topic,
                    consumer=Consumer.Single(1),
                    polling_strategy=PollingStrategy.First(),
                    count=1,
                    auto_commit=False,
                    partition_id=partition,
                )

    run(program)


def test_tls(tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    made = f"req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -addext {names} -keyout {key} -out {certificate}"
    subprocess.run(["openssl", *made.split()], check=True, capture_output=True)
    config = tmp_path / "config.toml"
    config.write_text(f'[tcp]\ncertificate = "{certificate}"\nprivate_key = "{key}"\n')
    with (
        shmbroker.embedded(tmp_path / "data", tcp="127.0.0.1:0", workers=1, config=config, environment=ROOT) as broker,
        broker.connect() as local,
    ):
        local.create_stream("s")
        local.create_topic("s", "t", partitions=1)
        client = RawClient(broker.tcp_address)
        plain = client.socket
        context = ssl.create_default_context(cafile=str(certificate))
        with context.wrap_socket(plain, server_hostname="localhost") as client.socket:
            assert client.login().status == 0
            for payloads in ([b"a"], [b"x" * 1000] * 1000):
                batch = wire_batch(payloads)
                partitioning = messages.Partitioning.partition(0)
                request = messages.SendMessages("s", "t", partitioning, len(payloads), batch)
                assert client.ask(request).status == 0
            poll = messages.PollMessages(messages.Consumer(1, 1), "s", "t", 0, messages.POLL_FIRST, 0, 2000, False)
            assert client.ask(poll).value.count == 1001


def test_a_clean_stop_leaves_nothing_unanswered(broker: Embedded) -> None:
    async def program(client: IggyClient) -> int:
        await client.create_stream("s")
        await client.create_topic("s", "t", 1)
        for number in range(50):
            await client.send_messages("s", "t", 0, [SendMessage(str(number))])
        return 50

    assert run_program(broker, program) == 50
    broker.close()
