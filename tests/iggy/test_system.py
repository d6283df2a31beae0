"""Commands about the server, through the published client; and that no secret is written down anywhere."""

from __future__ import annotations

import asyncio
import io
import json
import os
import time
import zipfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from apache_iggy import IggyClient

import shmbroker
from shmbroker.client.embedded import Embedded
from shmbroker.core import options
from shmbroker.errors import ErrorCode
from shmbroker.wire import groups, system, users
from shmbroker.wire.codes import Code
from shmbroker.wire.primitives import Reader
from tests.iggy.conftest import ROOT, WAIT_S, Program, RawClient

Run = Callable[[Program], Any]
Raw = Callable[..., RawClient]
NAMES = ["file_systems.txt", "processes.json", "resources.json", "test.txt", "log.txt", "settings.json"]


def test_stats(run: Run) -> None:
    async def program(client: IggyClient) -> None:
        await client.create_stream("s")
        await client.create_topic("s", "t", 3)
        await client.create_consumer_group("s", "t", "g")
        stats = await client.get_stats()
        counts = (stats.streams_count, stats.topics_count, stats.partitions_count, stats.consumer_groups_count)
        assert counts == (1, 1, 3, 1)
        assert stats.clients_count >= 1
        assert stats.memory_usage > 1 << 20
        assert stats.run_time > timedelta(0)
        assert abs(stats.start_time / 1e6 - time.time()) < 600
        assert stats.threads_count >= 2, "the front, and a worker"
        assert stats.cpu_usage > 0, "it has just started"
        assert stats.iggy_server_version

    run(program)


def test_options_are_described(run: Run) -> None:
    async def program(client: IggyClient) -> None:
        described = {each.key for each in await client.describe_options("topic")}
        assert described == {each.key for each in options.describe()}
        assert await client.describe_options("stream") == []
        assert await client.describe_options("user") == []

    run(program)


def test_the_cluster_is_one_node_with_our_port(broker: Embedded, raw: Raw) -> None:
    found = raw().ask(system.GetClusterMetadata()).value
    (node,) = found.nodes
    assert f"{node.ip}:{node.tcp_port}" == broker.tcp_address
    assert (node.role, node.status, node.quic_port, node.http_port) == (0, 0, 0, 0)


def test_who_is_connected(raw: Raw) -> None:
    first, second, stranger = raw(), raw(), raw(login=False)
    assert stranger.ask(system.Ping()).status == 0
    me = first.ask(system.GetMe()).value
    host, port = first.socket.getsockname()
    assert (me.client.user_id, me.client.transport, me.client.address) == (0, 1, f"{host}:{port}")
    everybody = {entry.client_id: entry for entry in first.ask(system.GetClients()).value}
    other = second.ask(system.GetMe()).value.client
    assert everybody[me.client.client_id] == me.client
    assert everybody[other.client_id] == other
    assert [entry.user_id for entry in everybody.values()].count(system.NO_USER) == 1, "who has not logged in"
    assert first.ask(system.GetClient(other.client_id)).value.client == other
    assert first.ask(system.GetClient(4_000_000_000)).value is None
    second.close()


def test_memberships_are_shown(run: Run, raw: Raw) -> None:
    async def program(client: IggyClient) -> None:
        await client.create_stream("s")
        await client.create_topic("s", "t", 1)
        await client.create_consumer_group("s", "t", "g")
        member = raw()
        assert member.ask(groups.JoinGroup("s", "t", "g")).status == 0
        me = member.ask(system.GetMe()).value
        assert me.memberships == (system.Membership(0, 0, 0),)
        assert raw().ask(system.GetClient(me.client.client_id)).value == me
        body = await client.send_binary_request(int(Code.GET_CLIENT), system.GetClient(me.client.client_id).encode())
        assert system.ClientDetails.decode(Reader(body)) == me
        assert member.ask(users.Logout()).status == 0
        assert raw().ask(system.GetClient(me.client.client_id)).value.memberships == ()

    run(program)


# --- the archive of facts ---------------------------------------------------------------------------------------------
def archive_of(raw_client: RawClient, compression: int, *kinds: int) -> zipfile.ZipFile:
    answer = raw_client.ask(system.GetSnapshot(compression, bytes(kinds)))
    assert answer.status == 0, answer.text
    return zipfile.ZipFile(io.BytesIO(answer.value.archive))


@pytest.mark.parametrize("compression", [1, 2, 3, 5])
def test_the_archive_holds_what_was_asked_for(broker: Embedded, raw: Raw, compression: int) -> None:
    client = raw()
    with archive_of(client, compression, 100) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == NAMES
        assert "catalog.sqlite3" in archive.read("file_systems.txt").decode()
        pids = [each["pid"] for each in json.loads(archive.read("processes.json"))]
        assert pids == broker.process_ids()
        assert json.loads(archive.read("resources.json"))["connections"] == 1
        assert "serving" in archive.read("log.txt").decode()
        assert json.loads(archive.read("settings.json"))["broker"]["data"] == broker.data
    with archive_of(client, compression, 6, 4, 4) as archive:
        assert archive.namelist() == ["test.txt", "settings.json"]


def test_an_archive_that_cannot_be_is_refused(raw: Raw) -> None:
    client = raw()
    for compression in (4, 6):
        answer = client.ask(system.GetSnapshot(compression, b"\x64"))
        assert answer.status == ErrorCode.FEATURE_UNAVAILABLE
    for kinds in (b"", b"\x07", b"\x01\x63"):
        assert client.ask(system.GetSnapshot(1, kinds)).status == ErrorCode.INVALID_COMMAND


def test_the_archive_through_the_published_client(run: Run) -> None:
    async def program(client: IggyClient) -> None:
        body = await client.send_binary_request(int(Code.GET_SNAPSHOT), system.GetSnapshot(2, b"\x04").encode())
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            assert archive.read("test.txt") == b"the archive can be read\n"

    run(program)


# --- secrets ----------------------------------------------------------------------------------------------------------
def test_no_secret_is_written_anywhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Not in the log, not in the files, not in the archive, not in what a worker inherits."""
    caplog.set_level("DEBUG")
    data = tmp_path / "data"
    secrets = {
        "root": "ROOT-passphrase",
        "new": "NEW-passphrase",
        "wrong": "WRONG-passphrase",
        "next": "NEXT-passphrase",
    }

    async def program(client: IggyClient, address: str) -> str:
        await client.connect()
        await client.login_user("iggy", secrets["root"])
        await client.create_user("alice", secrets["new"])
        other = IggyClient(address)
        await other.connect()
        for call in (
            other.login_user("alice", secrets["wrong"]),
            client.change_password("alice", secrets["wrong"], secrets["next"]),
            client.create_user("al ice" * 20, secrets["new"]),
        ):
            with pytest.raises(RuntimeError):
                await call
        await client.change_password("alice", secrets["new"], secrets["next"])
        body = await client.send_binary_request(int(Code.CREATE_TOKEN), users.CreateToken("token", 0).encode())
        return users.TokenReply.decode(Reader(body)).token

    environment = {"IGGY_ROOT_USERNAME": "iggy", "IGGY_ROOT_PASSWORD": secrets["root"]}
    with shmbroker.embedded(data, tcp="127.0.0.1:0", workers=1, environment=environment) as broker:
        client = IggyClient(broker.tcp_address)
        token = asyncio.run(asyncio.wait_for(program(client, broker.tcp_address), WAIT_S))
        raw_client = RawClient(broker.tcp_address)
        assert raw_client.login(password=secrets["root"]).status == 0
        with archive_of(raw_client, 1, 100) as archive:
            written = b"".join(archive.read(name) for name in archive.namelist())
        raw_client.close()
        for pid in broker.process_ids()[1:]:
            written += Path(f"/proc/{pid}/environ").read_bytes() + Path(f"/proc/{pid}/cmdline").read_bytes()
        runtime = Path((data / "runtime").read_text().strip())
        for directory in (data, runtime):
            for parent, _, names in os.walk(directory):
                for path in (Path(parent, name) for name in names):
                    if path.is_file():
                        written += path.read_bytes()
    written += caplog.text.encode()
    assert b"$argon2id$" in written, "the catalog was looked at"
    for secret in (*secrets.values(), token):
        assert secret.encode() not in written, secret


def test_what_is_kept_of_a_password_is_salted_and_slow(tmp_path: Path) -> None:
    import sqlite3
    from contextlib import closing

    with shmbroker.embedded(tmp_path / "data", environment=ROOT) as broker, broker.connect() as local:
        del local
    with closing(sqlite3.connect(tmp_path / "data" / "catalog.sqlite3")) as connection:
        ((held,),) = connection.execute("SELECT password_hash FROM account").fetchall()
    assert held.startswith("$argon2id$v=19$m=19456,t=2,p=1$")
