"""The client over TCP against a real broker: the same calls as over shared memory, and the same answers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

import shmbroker
from shmbroker import Client, Permissions
from shmbroker.client.embedded import Embedded
from shmbroker.core.permissions import GLOBAL_FLAGS
from shmbroker.errors import (
    AlreadyExists,
    BrokerGone,
    ClientMistake,
    Closed,
    InvalidMessage,
    InvalidOffset,
    NotFound,
    OutcomeUnknown,
    PartitionReplaced,
    ShmbrokerError,
    Unauthorized,
    Unavailable,
)
from shmbroker.formats.headers import HeaderKind, typed

ROOT = {"IGGY_ROOT_USERNAME": "iggy", "IGGY_ROOT_PASSWORD": "se:cr/t@"}
USER = "iggy:se%3Acr%2Ft%40"
WAIT_S = 30.0


@pytest.fixture(scope="module")
def tcp_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    directory = tmp_path_factory.mktemp("tcp") / "data"
    with shmbroker.embedded(directory, tcp="127.0.0.1:0", environment=ROOT) as broker:
        yield broker


@pytest.fixture
def local(tcp_broker: Embedded) -> Iterator[Client]:
    with tcp_broker.connect() as client:
        yield client


@pytest.fixture
def remote(tcp_broker: Embedded) -> Iterator[Client]:
    with shmbroker.connect(f"iggy://{USER}@{tcp_broker.tcp_address}") as client:
        yield client


_numbers = itertools.count()


@pytest.fixture
def topic(local: Client) -> tuple[str, str]:
    stream = f"stream {next(_numbers)}"
    local.create_stream(stream)
    local.create_topic(stream, "topic", partitions=2)
    return stream, "topic"


def all_of(consumer: shmbroker.Consumer, count: int) -> list[shmbroker.Message]:
    found: list[shmbroker.Message] = []
    deadline = time.monotonic() + WAIT_S
    while len(found) < count and time.monotonic() < deadline:
        found += [message for batch in consumer.poll(timeout=1.0) for message in batch.messages()]
    return found


# --- who connects ----------------------------------------------------------------------------------------------------


def test_addresses_that_are_none() -> None:
    for wrong in (
        "iggy://",
        "iggy://host:port",
        "iggy://u:p@host/path",
        "iggy://u:p@host?tls=maybe",
        "iggy://u:p@h?x=1",
    ):
        with pytest.raises(ClientMistake) as caught:
            shmbroker.connect(wrong)
        assert "u:p" not in str(caught.value)
    with pytest.raises(ClientMistake, match="who logs in"):
        shmbroker.connect("iggy://127.0.0.1:1")
    with pytest.raises(Unavailable, match="no broker answers"):
        shmbroker.connect("iggy://a:secret@127.0.0.1:1")


def test_wrong_credentials_are_refused_and_not_repeated_to_anybody(tcp_broker: Embedded) -> None:
    for who in ("iggy:wrong", "nobody:wrong", "no-such-token"):
        with pytest.raises(Unauthorized) as caught:
            shmbroker.connect(f"iggy://{who}@{tcp_broker.tcp_address}")
        assert "wrong" not in str(caught.value)


def test_a_token_logs_in_until_it_is_deleted(tcp_broker: Embedded, remote: Client) -> None:
    token = remote.create_token("by token", expiry=timedelta(hours=1))
    (entry,) = [each for each in remote.list_tokens() if each.name == "by token"]
    assert entry.expires_at_us is not None
    with shmbroker.connect(f"iggy://{token}@{tcp_broker.tcp_address}") as client:
        assert client.me().user_id == 0
    remote.delete_token("by token")
    with pytest.raises(Unauthorized):
        shmbroker.connect(f"iggy://{token}@{tcp_broker.tcp_address}")


def test_a_user_may_do_what_its_permissions_say(tcp_broker: Embedded, remote: Client, topic: tuple[str, str]) -> None:
    flags = tuple(flag in ("read_streams", "poll_messages") for flag in GLOBAL_FLAGS)
    created = remote.create_user("reader", "password", permissions=Permissions(flags))
    assert remote.get_user("reader").permissions == Permissions(flags)
    with pytest.raises(AlreadyExists):
        remote.create_user("reader", "password")
    with shmbroker.connect(f"iggy://reader:password@{tcp_broker.tcp_address}") as reader:
        assert reader.get_stream(topic[0]).name == topic[0]
        with pytest.raises(Unauthorized):
            reader.create_stream("not for readers")
        with reader.producer(*topic) as producer, pytest.raises(Unauthorized):
            producer.send([b"no"], partition=0)
    remote.change_password(created.id, "password", "another")
    remote.update_user("reader", name="renamed", active=False)
    with pytest.raises(ShmbrokerError):
        shmbroker.connect(f"iggy://renamed:another@{tcp_broker.tcp_address}")
    remote.delete_user("renamed")
    with pytest.raises(NotFound):
        remote.get_user("renamed")
    assert [user.name for user in remote.list_users()] == ["iggy"]


def test_who_may_only_send_says_where_to(tcp_broker: Embedded, remote: Client, topic: tuple[str, str]) -> None:
    flags = tuple(flag == "send_messages" for flag in GLOBAL_FLAGS)
    remote.create_user("sender", "password", permissions=Permissions(flags))
    with shmbroker.connect(f"iggy://sender:password@{tcp_broker.tcp_address}") as sender:
        with sender.producer(*topic) as producer:
            assert producer.send([b"x"], partition=1).base_offset == 0
            with pytest.raises(Unauthorized, match="partition="):
                producer.send([b"x"])
        with pytest.raises(Unauthorized):
            sender.consumer(*topic, partition=1)
    remote.delete_user("sender")


# --- administration --------------------------------------------------------------------------------------------------


def test_both_ways_show_the_same_catalog(local: Client, remote: Client, topic: tuple[str, str]) -> None:
    assert remote.get_topic(*topic) == local.get_topic(*topic)
    assert remote.list_streams() == local.list_streams()
    assert remote.describe_options() == local.describe_options()
    with pytest.raises(NotFound):
        remote.get_stream("no such stream")
    with pytest.raises(AlreadyExists):
        remote.create_stream(topic[0])


def test_facts_about_the_broker(tcp_broker: Embedded, remote: Client) -> None:
    assert remote.name == tcp_broker.tcp_address
    assert remote.ping() > 0
    assert remote.me().transport == "tcp"
    assert remote.me().id in [client.id for client in remote.list_clients()]
    assert remote.get_client(remote.me().id) == remote.me()
    with pytest.raises(NotFound):
        remote.get_client(1 << 31)
    assert len(remote.cluster()[1]) == 1
    assert remote.snapshot().startswith(b"PK")
    assert remote.stats()["broker"]["process_id"] == tcp_broker.pid


# --- producing -------------------------------------------------------------------------------------------------------


def test_what_is_sent_over_tcp_is_read_both_ways(local: Client, remote: Client, topic: tuple[str, str]) -> None:
    headers = {"text": "value", "number": typed(HeaderKind.INT32, -7), "raw": b"\x00\xff"}
    array = np.arange(300, dtype="<u8")
    with remote.producer(*topic) as producer:
        first = producer.send([b"one", b"two" * 1000, b"\x00"], partition=0, headers=headers, ids=[5, 0, 1 << 127])
        assert (first.partition, first.base_offset, first.count) == (0, 0, 3)
        second = producer.send_array(array, partition=0)
        assert (second.base_offset, second.count) == (3, 300)
        tickets = [producer.submit([b"%d" % number], partition=0) for number in range(200)]
        producer.flush()
    assert [ticket.result(0).base_offset for ticket in tickets] == list(range(303, 503))
    read = []
    for client in (local, remote):
        with client.consumer(*topic, partition=0) as consumer:
            read.append(all_of(consumer, 503))
    assert read[0] == read[1]
    assert [message.offset for message in read[0]] == list(range(503))
    assert read[0][0].headers == {"text": "value", "number": -7, "raw": b"\x00\xff"}
    assert read[0][0].id == 5
    assert read[0][2].id == 1 << 127
    assert [message.payload for message in read[0][3:303]] == [item.tobytes() for item in array]


def test_what_is_sent_locally_is_read_over_tcp(local: Client, remote: Client, topic: tuple[str, str]) -> None:
    with local.producer(*topic) as producer:
        for size in (1, 100, 3_000_000):
            producer.send([bytes([size % 251]) * size] * 3, partition=1)
    with remote.consumer(*topic, partition=1) as consumer:
        assert [len(message.payload) for message in all_of(consumer, 9)] == [1] * 3 + [100] * 3 + [3_000_000] * 3


def test_lingering_keys_and_turns(remote: Client, topic: tuple[str, str]) -> None:
    with remote.producer(*topic, linger=0.01) as producer:
        tickets = [producer.submit([b"%d" % number], key=b"key") for number in range(50)]
        spread = [producer.submit([b"x"]) for _ in range(10)]
        producer.flush()
    assert len({ticket.result(0).partition for ticket in tickets}) == 1
    assert {ticket.result(0).partition for ticket in spread} == {0, 1}
    offsets = [ticket.result(0).base_offset for ticket in tickets]
    assert offsets == sorted(offsets)


def test_many_threads_share_a_producer(remote: Client, topic: tuple[str, str]) -> None:
    failures: list[BaseException] = []
    with remote.producer(*topic) as producer:

        def work(name: int) -> None:
            try:
                for number in range(40):
                    producer.send([b"%d %d" % (name, number)])
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(name,)) for name in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
    assert not failures
    with remote.consumer(*topic) as consumer:
        payloads = [message.payload for message in all_of(consumer, 240)]
    assert sorted(payloads) == sorted(b"%d %d" % (name, number) for name in range(6) for number in range(40))


def test_refusals_of_a_producer(remote: Client, topic: tuple[str, str]) -> None:
    with remote.producer(*topic) as producer:
        with pytest.raises(InvalidMessage):
            producer.send([b""], partition=0)
        with pytest.raises(NotFound):
            producer.send([b"x"], partition=9)
        assert producer.send([b"x"], partition=0).base_offset == 0
    with pytest.raises(NotFound):
        remote.producer("no such stream", "topic")


class Proxy:
    """Between a client and its broker; from ``cut`` on, what the broker says ends the connection instead."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.target = (host, int(port))
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.cut = threading.Event()
        self.sockets: list[socket.socket] = []
        self.threads = [threading.Thread(target=self.accept, daemon=True)]
        self.threads[0].start()

    def accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.create_connection(self.target, WAIT_S)
            self.sockets += [client, server]
            for source, sink, is_reply in ((client, server, False), (server, client, True)):
                thread = threading.Thread(target=self.carry, args=(source, sink, is_reply), daemon=True)
                self.threads.append(thread)
                thread.start()

    def carry(self, source: socket.socket, sink: socket.socket, is_reply: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                if is_reply and self.cut.is_set():
                    break
                sink.sendall(data)
        except OSError:
            pass
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for each in self.sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join(WAIT_S)
        for each in self.sockets:
            each.close()


def test_rule_07_what_is_sent_again_after_a_lost_reply_is_appended_once(
    tcp_broker: Embedded, remote: Client, topic: tuple[str, str]
) -> None:
    proxy = Proxy(tcp_broker.tcp_address)
    client = shmbroker.connect(f"iggy://{USER}@{proxy.address}")
    producer = client.producer(*topic)
    try:
        assert producer.send([b"first"], partition=0).base_offset == 0
        proxy.cut.set()
        ticket = producer.submit([b"second", b"third"], partition=0)
        with pytest.raises(OutcomeUnknown):
            ticket.result(WAIT_S)
        with remote.producer(*topic) as another:
            assert another.send([b"between"], partition=0).base_offset == 3
            again = another.resend(ticket).result(WAIT_S)
            assert (again.base_offset, again.count) == (1, 2)
        with remote.consumer(*topic, partition=0) as consumer:
            payloads = [message.payload for message in all_of(consumer, 4)]
        assert payloads == [b"first", b"second", b"third", b"between"]
        assert remote.get_topic(*topic).partitions[0].message_count == 4
    finally:
        for each in (producer, client):
            with contextlib.suppress(ShmbrokerError):
                each.close(0.1)
        proxy.close()


# --- consuming -------------------------------------------------------------------------------------------------------


def test_where_a_consumer_starts(local: Client, remote: Client, topic: tuple[str, str]) -> None:
    with local.producer(*topic) as producer:
        for number in range(10):
            producer.send([b"%d" % (10 * number + each) for each in range(10)], partition=0)
    with remote.consumer(*topic, partition=0, offset=37) as consumer:
        (batch, *_) = consumer.poll(5, timeout=1.0)
        assert (batch.base_offset, batch.payloads()[0]) == (37, b"37")
        assert consumer.positions() == {0: 42}
        assert consumer.end_offsets() == {0: 100}
        consumer.seek(last=3)
        assert [message.payload for message in all_of(consumer, 3)] == [b"97", b"98", b"99"]
        stamp = batch.timestamp_us
        consumer.seek(timestamp=stamp)
        assert all_of(consumer, 1)[0].timestamp_us >= stamp
        consumer.seek(first=True)
        assert consumer.poll(1000, max_bytes=1)[0].count >= 1
        consumer.seek(offset=100)
        assert consumer.poll(timeout=0.0) == []
    with pytest.raises(NotFound):
        remote.consumer(*topic, partition=7)


def test_commits(local: Client, remote: Client, topic: tuple[str, str]) -> None:
    with local.producer(*topic) as producer:
        producer.send([b"%d" % number for number in range(20)], partition=0)
    with remote.consumer(*topic, partition=0, name="audit") as consumer:
        consumer.poll(5, timeout=1.0)
        consumer.commit()
    assert local.get_consumer_offset(*topic, 0, name="audit") == 4
    assert remote.get_consumer_offset(*topic, 0, name="audit") == 4
    with remote.consumer(*topic, partition=0, name="audit", auto_commit=True) as consumer:
        assert consumer.poll(5, timeout=1.0)[0].base_offset == 5
    deadline = time.monotonic() + WAIT_S
    while local.get_consumer_offset(*topic, 0, name="audit") != 9 and time.monotonic() < deadline:
        time.sleep(0.01)  # bounded by the deadline: the broker stores it behind the poll
    assert local.get_consumer_offset(*topic, 0, name="audit") == 9
    remote.set_consumer_offset(*topic, 0, 2, id=77)
    assert local.get_consumer_offset(*topic, 0, id=77) == 2
    with pytest.raises(InvalidOffset):
        remote.set_consumer_offset(*topic, 0, 1000, id=77)
    remote.delete_consumer_offset(*topic, 0, id=77)
    assert remote.get_consumer_offset(*topic, 0, id=77) is None
    with pytest.raises(NotFound):
        remote.delete_consumer_offset(*topic, 0, id=77)


def test_a_consumer_waits_for_what_comes(local: Client, remote: Client, topic: tuple[str, str]) -> None:
    with remote.consumer(*topic) as consumer, local.producer(*topic) as producer:
        timer = threading.Timer(0.1, lambda: producer.send([b"late"], partition=1))
        timer.start()
        assert [batch.payloads() for batch in consumer.poll(timeout=WAIT_S)] == [[b"late"]]
        timer.join()
        started = time.monotonic()
        assert consumer.poll(timeout=0.1) == []
        assert time.monotonic() - started >= 0.1


def test_members_of_a_group_over_tcp_share_its_partitions(
    local: Client, remote: Client, topic: tuple[str, str]
) -> None:
    with local.producer(*topic) as producer:
        for partition in (0, 1):
            producer.send([b"%d" % partition] * 10, partition=partition)
    one = remote.consumer(*topic, group="billing")
    two = remote.consumer(*topic, group="billing")
    owned: dict[str, set[int]] = {}
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        for name, consumer in (("one", one), ("two", two)):
            consumer.poll(100, timeout=0.1)
            consumer.commit()
            owned[name] = set(consumer.partitions)
        if owned["one"] and owned["two"] and not owned["one"] & owned["two"]:
            break
    assert owned["one"] | owned["two"] == {0, 1}
    assert len(local.get_group(*topic, "billing").members) == 2
    one.close()
    while set(two.partitions) != {0, 1} and time.monotonic() < deadline:
        two.poll(100, timeout=0.2)
    assert set(two.partitions) == {0, 1}
    two.close()
    assert [remote.get_consumer_offset(*topic, partition, group="billing") for partition in (0, 1)] == [9, 9]


def test_a_purge_is_told_once(local: Client, remote: Client, topic: tuple[str, str]) -> None:
    with local.producer(*topic) as producer, remote.consumer(*topic, partition=0) as consumer:
        producer.send([b"x"] * 10, partition=0)
        assert len(all_of(consumer, 10)) == 10
        local.purge_topic(*topic)
        with pytest.raises(PartitionReplaced):
            consumer.poll(timeout=0.0)
    with local.producer(*topic) as producer, remote.consumer(*topic, partition=0) as consumer:
        producer.send([b"new"], partition=0)
        assert all_of(consumer, 1)[0].offset == 0


# --- ends ------------------------------------------------------------------------------------------------------------


def test_closing_closes_what_it_made(tcp_broker: Embedded, topic: tuple[str, str]) -> None:
    client = shmbroker.connect(f"iggy://{USER}@{tcp_broker.tcp_address}")
    producer, consumer = client.producer(*topic, linger=3600), client.consumer(*topic, name="c")
    ticket = producer.submit([b"m"], partition=0)
    client.close()
    assert ticket.result(0).count == 1
    for call in (lambda: producer.send([b"m"]), consumer.poll, client.list_streams):
        with pytest.raises(Closed):
            call()
    client.close()


def test_a_broker_that_ends_is_noticed_by_all(tmp_path: Path) -> None:
    with shmbroker.embedded(tmp_path / "data", tcp="127.0.0.1:0", environment=ROOT) as broker:
        client = shmbroker.connect(f"iggy://{USER}@{broker.tcp_address}")
        client.create_stream("s")
        client.create_topic("s", "t")
        producer, consumer = client.producer("s", "t"), client.consumer("s", "t")
        producer.send([b"x"])
    for call in (client.list_streams, lambda: producer.send([b"m"], timeout=5.0), lambda: consumer.poll(timeout=5.0)):
        with pytest.raises((BrokerGone, OutcomeUnknown, Unavailable)):
            call()
    with pytest.raises((BrokerGone, OutcomeUnknown, Unavailable)):
        client.list_streams()
    assert not client.is_alive
    client.close()


def test_an_idle_session_gives_a_sign_of_life(remote: Client) -> None:
    session = remote._connection
    before = session.used_at
    session.ping_if_idle(3600.0)
    assert session.used_at == before
    session.ping_if_idle(0.0)
    assert session.used_at > before
    remote.close()
    session.ping_if_idle(0.0)  # nothing, and no error: whoever uses it next is told


def test_asyncio_over_tcp(tcp_broker: Embedded, topic: tuple[str, str]) -> None:
    async def work() -> list[bytes]:
        async with await shmbroker.connect_async(f"iggy://{USER}@{tcp_broker.tcp_address}") as client:
            async with await client.producer(*topic) as producer:
                await asyncio.gather(*(producer.send([b"%d" % number], partition=0) for number in range(20)))
            async with await client.consumer(*topic, partition=0) as consumer:
                found: list[bytes] = []
                while len(found) < 20:
                    found += [payload for batch in await consumer.poll(timeout=5.0) for payload in batch.payloads()]
            return found

    found = asyncio.run(asyncio.wait_for(work(), WAIT_S))
    assert sorted(found, key=int) == [b"%d" % number for number in range(20)]


# --- TLS -------------------------------------------------------------------------------------------------------------


def certificate(directory: Path) -> tuple[Path, Path]:
    """A certificate for ``localhost`` that signs itself, and its key."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    files = directory / "certificate.pem", directory / "key.pem"
    files[0].write_bytes(built.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return files


def test_tls(tmp_path: Path) -> None:
    files = certificate(tmp_path)
    settings = dict(zip(("SHMBROKER_TCP_CERTIFICATE", "SHMBROKER_TCP_PRIVATE_KEY"), map(str, files), strict=True))
    with shmbroker.embedded(tmp_path / "data", tcp="127.0.0.1:0", environment={**ROOT, **settings}) as broker:
        trusted = f"tls_ca_file={files[0]}"
        with shmbroker.connect(f"iggy+tls://{USER}@{broker.tcp_address}?{trusted}&tls_domain=localhost") as client:
            client.create_stream("s")
            client.create_topic("s", "t")
            with client.producer("s", "t") as producer:
                tickets = [producer.submit([bytes(1000)] * 1000) for _ in range(20)]
                producer.send([bytes(8_000_000)])
                assert sum(ticket.result(WAIT_S).count for ticket in tickets) == 20_000
            with client.consumer("s", "t") as consumer:
                assert len(all_of(consumer, 20_001)) == 20_001
        for wrong in (f"iggy+tls://{USER}@{broker.tcp_address}", f"iggy+tls://{USER}@{broker.tcp_address}?{trusted}"):
            with pytest.raises(Unavailable, match=r"(?i)certificate"):
                shmbroker.connect(wrong)
        with pytest.raises((Unavailable, OutcomeUnknown)):
            shmbroker.connect(f"iggy://{USER}@{broker.tcp_address}", timeout=5.0)
