"""The command line against a broker over TCP: who logs in, what is kept between runs, and the commands about users."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import shmbroker
from shmbroker.cli.main import app
from shmbroker.client.embedded import Embedded

Run = Callable[..., Any]
ROOT = {"IGGY_ROOT_USERNAME": "iggy", "IGGY_ROOT_PASSWORD": "secret"}
WAIT_S = 30


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    directory = tmp_path_factory.mktemp("broker") / "data"
    with shmbroker.embedded(directory, tcp="127.0.0.1:0", environment=ROOT) as embedded:
        yield embedded


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def run(home: Path) -> Run:
    """Runs a command; asserts the exit status; gives back the result."""

    def invoke(*words: str, status: int = 0, text: str | None = None, **variables: str) -> Any:
        nothing = dict.fromkeys(("SHMBROKER_DATA", "IGGY_USERNAME", "IGGY_PASSWORD"))
        environment = {**nothing, "SHMBROKER_HOME": str(home), **variables}
        result = CliRunner().invoke(app, list(words), input=text, env=environment)
        assert result.exit_code == status, f"{words}: {result.output} {result.exception!r}"
        assert "Traceback" not in result.output
        return result

    return invoke


@pytest.fixture
def server(broker: Embedded) -> list[str]:
    return ["--tcp-server-address", broker.tcp_address]


@pytest.fixture
def root(server: list[str]) -> list[str]:
    return [*server, "--username", "iggy", "--password", "secret"]


def parsed(result: Any) -> Any:
    return json.loads(result.stdout)


def test_who_logs_in(run: Run, server: list[str], root: list[str]) -> None:
    assert "who logs in" in run(*server, "ping", status=1).stderr
    assert "credentials" in run(*server, "-u", "iggy", "-p", "wrong", "ping", status=1).stderr
    run(*root, "ping")
    run(*server, "ping", IGGY_USERNAME="iggy", IGGY_PASSWORD="secret")
    run(*server, "-u", "iggy", "ping", IGGY_PASSWORD="secret")
    run(*server, "-u", "iggy", "ping", text="secret\n")
    run(*root, "stream", "list", "--data", "somewhere", status=2)


def test_a_login_lasts_until_the_logout(run: Run, server: list[str], root: list[str], home: Path) -> None:
    run(*server, "session", "status", status=1)
    assert parsed(run(*root, "login", "1h", "--json"))["user"] == "iggy"
    kept = home / "command-line.json"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert "secret" not in kept.read_text()
    assert parsed(run(*server, "me", "--json"))["transport"] == "tcp"
    assert not parsed(run(*server, "session", "status", "--json"))["has_ended"]
    first = json.loads(kept.read_text())["sessions"]
    run(*root, "login", "none")
    names = [token["name"] for token in parsed(run(*server, "pat", "list", "--json"))]
    assert not {session["token_name"] for session in first.values()} & set(names)
    run(*server, "logout")
    run(*server, "me", status=1)
    run(*server, "logout", status=1)
    assert parsed(run(*root, "pat", "list", "--json")) == []


def test_a_login_that_has_ended_is_not_used(run: Run, server: list[str], root: list[str], home: Path) -> None:
    run(*root, "login", "1h")
    kept = json.loads((home / "command-line.json").read_text())
    for session in kept["sessions"].values():
        session["expires_at_us"] = 1
    (home / "command-line.json").write_text(json.dumps(kept))
    assert parsed(run(*server, "session", "status", "--json"))["has_ended"]
    assert "who logs in" in run(*server, "me", status=1).stderr
    run(*root, "logout")


def test_contexts(run: Run, broker: Embedded, server: list[str]) -> None:
    run("context", "create", "here", "--data", broker.data)
    run("context", "create", "there", *server, "-u", "iggy", "-p", "secret")
    run("context", "create", "there", *server, status=1)
    run("context", "create", "nothing", status=2)
    run("context", "use", "nowhere", status=1)
    run("context", "use", "there")
    shown = run("context", "show", "--json")
    assert parsed(shown)["tcp_server_address"] == broker.tcp_address
    assert "secret" not in shown.stdout
    assert parsed(run("ping", "--json"))["broker"] == broker.tcp_address
    run("context", "use", "here")
    assert parsed(run("ping", "--json"))["broker"] == broker.data
    assert [row["name"] for row in parsed(run("ctx", "list", "--json"))] == ["default", "here", "there"]
    run("context", "delete", "here")
    assert parsed(run("context", "show", "--json")) == {"name": "default", "active": True}
    run("context", "delete", "default", status=2)


def test_tokens(run: Run, server: list[str], root: list[str]) -> None:
    token = parsed(run(*root, "pat", "create", "shown", "7days", "--json"))["token"]
    assert parsed(run(*server, "--token", token, "me", "--json"))["user"] == 0
    assert token not in run(*root, "pat", "create", "stored", "--store-token").stdout
    assert parsed(run(*server, "--token-name", "stored", "me", "--json"))["user"] == 0
    run(*root, "pat", "create", "stored", status=1)
    run(*root, "pat", "create", "late", "soon", status=2)
    assert {row["name"] for row in parsed(run(*root, "pat", "list", "--json"))} == {"shown", "stored"}
    for name in ("shown", "stored"):
        run(*root, "pat", "delete", name)
    assert "stored for" in run(*server, "--token-name", "stored", "me", status=1).stderr
    run(*server, "--token", token, "me", status=1)


def test_users_and_what_they_may_do(run: Run, server: list[str], root: list[str]) -> None:
    stream = parsed(run(*root, "stream", "create", "for users", "--json"))["id"]
    run(*root, "topic", "create", "for users", "topic", "1", "none")
    permissions = f"{stream}:r_top,poll_messages#0:s_msg"
    run(*root, "user", "create", "desk", "s3cret", "-g", "read_users", "-s", permissions)
    facts = parsed(run(*root, "user", "get", "desk", "--json"))
    assert facts["permissions"]["global"] == ["read_users"]
    (of_stream,) = facts["permissions"]["streams"]
    assert (of_stream["stream"], of_stream["flags"]) == (stream, ["read_topics", "poll_messages"])
    assert of_stream["topics"] == [{"topic": 0, "flags": ["send_messages"]}]
    desk = [*server, "-u", "desk", "-p", "s3cret"]
    run(*desk, "message", "send", "for users", "topic", "hello", "-p", "0")
    assert "hello" in run(*desk, "message", "poll", "for users", "topic", "0", "--first").stdout
    assert "desk" in run(*desk, "user", "list").stdout
    run(*desk, "stream", "delete", "for users", status=1)
    run(*root, "user", "permissions", "desk")
    run(*desk, "message", "send", "for users", "topic", "hello", "-p", "0", status=1)
    run(*desk, "user", "password", "desk", text="s3cret\nother\nother\n")
    run(*desk, "me", status=1)
    run(*root, "user", "status", "desk", "inactive")
    run(*server, "-u", "desk", "-p", "other", "me", status=1)
    run(*root, "user", "name", "desk", "front")
    assert "front" in run(*root, "u", "list").stdout
    run(*root, "user", "delete", "front")
    run(*root, "user", "get", "front", status=1)
    for wrong in ("market:r_top", "0:fly", "0#x:s_msg"):
        run(*root, "user", "create", "other", "s3cret", "-s", wrong, status=2)


def test_facts(run: Run, broker: Embedded, root: list[str], tmp_path: Path) -> None:
    me = parsed(run(*root, "me", "--json"))
    assert me["transport"] == "tcp"
    clients = parsed(run(*root, "client", "list", "--json"))
    assert [client["user"] for client in clients if client["transport"] == "tcp"] == [0]
    run(*root, "client", "get", str(1 << 31), status=1)
    assert parsed(run(*root, "cluster", "metadata", "--json"))["nodes"][0]["role"] == "leader"
    assert "durability" in {row["key"] for row in parsed(run(*root, "options", "topic", "--json"))}
    assert run(*root, "ping", "-c", "3").stdout.count("answer") == 3
    assert parsed(run(*root, "stats", "--json"))["broker"]["process_id"] == broker.pid
    assert "process id" in run(*root, "stats").stdout
    run(*root, "snapshot", "-o", str(tmp_path / "facts.zip"))
    assert (tmp_path / "facts.zip").read_bytes().startswith(b"PK")


def test_the_rest_of_the_tree_over_tcp(run: Run, root: list[str]) -> None:
    run(*root, "stream", "create", "tree")
    run(*root, "topic", "create", "tree", "topic", "1", "none", "--durability", "persisted")
    run(*root, "message", "send", "tree", "topic", "-p", "0", text="\n".join(map(str, range(3000))))
    found = parsed(run(*root, "message", "poll", "tree", "topic", "0", "--offset", "2990", "-m", "100", "--json"))
    assert [row["payload"] for row in found] == [str(number) for number in range(2990, 3000)]
    run(*root, "consumer-offset", "set", "audit", "tree", "topic", "0", "41")
    assert parsed(run(*root, "consumer-offset", "get", "audit", "tree", "topic", "0", "--json"))["stored_offset"] == 41
    run(*root, "consumer-group", "create", "tree", "topic", "group")
    assert "group" in run(*root, "consumer-group", "list", "tree", "topic").stdout
    run(*root, "partition", "create", "tree", "topic", "2")
    run(*root, "message", "flush", "tree", "topic", "0", "--fsync")
    run(*root, "topic", "purge", "tree", "topic")
    run(*root, "stream", "delete", "tree")


def test_following_prints_what_comes_until_it_is_interrupted(run: Run, broker: Embedded, root: list[str]) -> None:
    run(*root, "stream", "create", "follow")
    run(*root, "topic", "create", "follow", "topic", "1")
    run(*root, "message", "send", "follow", "topic", "before", "-p", "0")
    command = [str(Path(sys.executable).parent / "shmbroker"), *root]
    words = [*command, "message", "poll", "follow", "topic", "0", "--first", "--follow", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=os.environ) as follower:
        assert follower.stdout is not None
        assert json.loads(follower.stdout.readline())["payload"] == "before"
        run(*root, "message", "send", "follow", "topic", "after", "-p", "0")
        assert json.loads(follower.stdout.readline())["payload"] == "after"
        follower.send_signal(signal.SIGINT)
        assert follower.wait(WAIT_S) == 130
