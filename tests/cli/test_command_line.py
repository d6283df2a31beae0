"""The command line against a broker of its own: what it prints, its JSON, its exit status; and errors as one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import shmbroker
from shmbroker.cli import main
from shmbroker.cli.main import app

Run = Callable[..., Any]
TIMEOUT_S = 60


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("broker") / "data"
    with shmbroker.embedded(directory):
        yield directory


@pytest.fixture
def run(data: Path) -> Run:
    """Runs a command against the broker; asserts the exit status; gives back the result."""

    def invoke(*words: str, status: int = 0, text: str | None = None) -> Any:
        result = CliRunner().invoke(app, list(words), input=text, env={"SHMBROKER_DATA": str(data)})
        assert result.exit_code == status, f"{words}: {result.output} {result.exception!r}"
        assert "Traceback" not in result.output
        return result

    return invoke


@pytest.fixture
def topic(run: Run, request: pytest.FixtureRequest) -> tuple[str, str]:
    """A stream of the test's own, with a topic of two partitions."""
    stream = request.node.name
    run("stream", "create", stream)
    run("topic", "create", stream, "topic", "2", "none")
    return stream, "topic"


def parsed(result: Any) -> Any:
    return json.loads(result.stdout)


# --- streams and topics ---------------------------------------------------------------------------------------------


def test_the_life_of_a_stream(run: Run) -> None:
    created = parsed(run("stream", "create", "life", "--json"))
    assert created["name"] == "life"
    assert created["topics"] == created["messages"] == 0
    assert "life" in run("stream", "list").stdout
    run("stream", "update", "life", "afterlife")
    assert parsed(run("stream", "get", str(created["id"]), "--json"))["name"] == "afterlife"
    run("stream", "get", "life", status=1)
    run("s", "delete", "afterlife")
    assert "afterlife" not in run("s", "list").stdout


def test_a_name_that_is_taken_is_refused(run: Run) -> None:
    run("stream", "create", "twice")
    refused = run("stream", "create", "twice", status=1)
    assert refused.stderr.startswith("error: ")
    assert refused.stderr.count("\n") == 1


def test_the_topic_of_the_specification(run: Run) -> None:
    run("stream", "create", "my-stream")
    words = "topic create my-stream my-topic 1 none --durability persisted --consumer-offset-durability persisted"
    assert "persisted" in run(*words.split()).stdout
    facts = parsed(run("topic", "get", "my-stream", "my-topic", "--json"))
    assert facts["durability"] == facts["consumer_offset_durability"] == "persisted"
    assert facts["options"]["durability"] == {"value": "persisted", "explicit": True}
    assert not facts["options"]["segment_size"]["explicit"]
    assert len(facts["partition_list"]) == 1


def test_the_policies_are_independent_and_replicated_by_default(run: Run) -> None:
    run("stream", "create", "policies")
    run("topic", "create", "policies", "half", "1", "none", "--durability", "persisted")
    run("topic", "create", "policies", "plain", "1")
    half, plain = parsed(run("topic", "list", "policies", "--json"))
    assert (half["durability"], half["consumer_offset_durability"]) == ("persisted", "replicated")
    assert (plain["durability"], plain["consumer_offset_durability"]) == ("replicated", "replicated")


@pytest.mark.parametrize(
    "words",
    [
        ["--enforce-fsync"],
        ["--set", "enforce_fsync=true"],
        ["--set", "consumer_offset_enforce_fsync=true"],
    ],
)
def test_retired_settings_are_refused_by_name_and_say_what_to_use(run: Run, words: list[str]) -> None:
    run("stream", "create", f"retired {words}")
    refused = run("topic", "create", f"retired {words}", "topic", "1", "none", *words, status=1)
    assert "enforce_fsync" in refused.stderr
    assert "durability" in refused.stderr.replace("consumer_offset_durability", "durability")
    assert parsed(run("topic", "list", f"retired {words}", "--json")) == []


@pytest.mark.parametrize("value", ["PERSISTED", "fsync", ""])
def test_a_policy_that_is_none_is_refused(run: Run, value: str) -> None:
    run("stream", "create", f"policy {value!r}")
    refused = run("topic", "create", f"policy {value!r}", "topic", "1", "none", "--durability", value, status=1)
    assert "durability" in refused.stderr


def test_options_in_words(run: Run) -> None:
    run("stream", "create", "words")
    run("topic", "create", "words", "topic", "1", "none", "7days", "-m", "10GiB", "--set", "segment_size=2097152")
    facts = parsed(run("topic", "get", "words", "topic", "--json"))
    assert facts["message_expiry"] == "7 days"
    assert facts["message_expiry_us"] == 7 * 86_400_000_000
    assert facts["max_topic_size"] == "10 GiB"
    assert facts["options"]["segment_size"]["explicit"]
    run("topic", "update", "words", "topic", "renamed", "none", "30days")
    assert parsed(run("topic", "get", "words", "renamed", "--json"))["message_expiry"] == "30 days"


def test_durability_cannot_be_updated(run: Run, topic: tuple[str, str]) -> None:
    refused = run("topic", "update", *topic, "topic", "none", "--set", "durability=persisted", status=1)
    assert "durability" in refused.stderr
    run("topic", "update", *topic, "topic", "none", "--durability", "persisted", status=2)


def test_partitions_come_and_go_at_the_end(run: Run, topic: tuple[str, str]) -> None:
    run("partition", "create", *topic, "3")
    assert parsed(run("topic", "get", *topic, "--json"))["partitions"] == 5
    run("p", "delete", *topic, "4")
    assert [row["id"] for row in parsed(run("topic", "get", *topic, "--json"))["partition_list"]] == [0]
    run("partition", "delete", *topic, "2", status=1)
    run("partition", "create", *topic, "0", status=2)


# --- messages -------------------------------------------------------------------------------------------------------


def payloads(run: Run, topic: tuple[str, str], partition: int = 0, *words: str) -> list[str]:
    words = words or ("--first",)
    rows = parsed(run("message", "poll", *topic, str(partition), *words, "--message-count", "10000", "--json"))
    return [row["payload"] for row in rows]


def test_messages_go_in_and_come_out(run: Run, topic: tuple[str, str]) -> None:
    facts = parsed(run("message", "send", *topic, "one", "two", "three", "--partition-id", "0", "--json"))
    assert (facts["confirmed"], facts["last_partition"], facts["last_base_offset"]) == (3, 0, 0)
    assert payloads(run, topic) == ["one", "two", "three"]
    assert payloads(run, topic, 1) == []
    assert "two" in run("message", "poll", *topic, "0", "--offset", "1").stdout


def test_every_way_to_say_where_to_start(run: Run, topic: tuple[str, str]) -> None:
    for text in "abcde":
        run("message", "send", *topic, text, "--partition-id", "0")

    def polled(*words: str) -> list[str]:
        return [row["payload"] for row in parsed(run("message", "poll", *topic, "0", *words, "--json"))]

    assert polled("--first") == ["a"]
    assert polled("--last", "-m", "2") == ["d", "e"]
    assert polled("--offset", "2", "-m", "9") == ["c", "d", "e"]
    assert polled("--next", "-m", "2") == ["a", "b"]
    third = parsed(run("message", "poll", *topic, "0", "--offset", "2", "--json"))[0]
    assert polled("--timestamp", str(third["timestamp"])) == ["c"]
    run("message", "poll", *topic, "0", status=2)
    run("message", "poll", *topic, "0", "--first", "--last", status=2)


def test_a_consumer_goes_on_where_it_stopped(run: Run, topic: tuple[str, str]) -> None:
    run("message", "send", *topic, *"abcde", "--partition-id", "0")
    words = ("message", "poll", *topic, "0", "--next", "--consumer", "audit", "--auto-commit", "-m", "2", "--json")
    assert [row["payload"] for row in parsed(run(*words))] == ["a", "b"]
    assert parsed(run("consumer-offset", "get", "audit", *topic, "0", "--json"))["stored_offset"] == 1
    assert [row["payload"] for row in parsed(run(*words))] == ["c", "d"]
    run("consumer-offset", "set", "audit", *topic, "0", "0")
    assert [row["payload"] for row in parsed(run(*words))] == ["b", "c"]
    run("o", "delete", "audit", *topic, "0")
    run("o", "get", "audit", *topic, "0", status=1)


def test_lines_of_a_file_are_messages(run: Run, topic: tuple[str, str], tmp_path: Path) -> None:
    lines = [f"line {number}" for number in range(5_000)]
    path = tmp_path / "lines.txt"
    path.write_text("\n\n".join(lines) + "\n")
    sent = run("message", "send", *topic, "--file", str(path), "--message-key", "k")
    assert "5,000 messages confirmed" in sent.stdout
    assert sorted(payloads(run, topic) + payloads(run, topic, 1)) == sorted(lines)


def test_lines_of_standard_input_are_messages(run: Run, topic: tuple[str, str]) -> None:
    run("message", "send", *topic, "-p", "1", text="first\nsecond\n")
    assert payloads(run, topic, 1) == ["first", "second"]


def test_headers_and_a_file_of_messages(run: Run, topic: tuple[str, str], tmp_path: Path) -> None:
    run("message", "send", *topic, "x", "-p", "0", "-H", "source:string:desk,level:uint8:3,urgent:bool:true")
    shown = run("message", "poll", *topic, "0", "--first", "--show-headers").stdout
    assert "Header: source" in shown
    assert "desk" in shown
    path = tmp_path / "messages.bin"
    run("message", "poll", *topic, "0", "--first", "--output-file", str(path))
    run("message", "send", *topic, "-p", "1", "--input-file", str(path))
    before, after = (
        parsed(run("message", "poll", *topic, str(partition), "--first", "--json"))[0] for partition in (0, 1)
    )
    assert after["headers"] == before["headers"] == {"source": "desk", "level": 3, "urgent": True}
    assert (after["id"], after["payload"]) == (before["id"], "x")
    path.write_bytes(path.read_bytes()[:-1])
    assert "at byte 0" in run("message", "send", *topic, "-p", "1", "--input-file", str(path), status=1).stderr


@pytest.mark.parametrize(
    "header", ["source", "source:desk", "level:uint8:300", "level:uint8:x", "a:string:", ":string:b"]
)
def test_a_header_that_is_none_is_a_usage_error(run: Run, topic: tuple[str, str], header: str) -> None:
    run("message", "send", *topic, "x", "-H", header, status=2)


def test_binary_payloads_are_shown(run: Run, topic: tuple[str, str], data: Path) -> None:
    with shmbroker.connect(f"shm://{data}") as client, client.producer(*topic) as producer:
        producer.send([b"\xff\x00"], partition=0)
    assert "ff 00" in run("message", "poll", *topic, "0", "--first").stdout
    assert parsed(run("message", "poll", *topic, "0", "--first", "--json"))[0]["payload_base64"] == "/wA="


def test_purge_and_flush(run: Run, topic: tuple[str, str]) -> None:
    run("message", "send", *topic, "gone", "-p", "0")
    run("message", "flush", *topic, "0", "--fsync")
    run("segment", "delete", *topic, "0", "1")
    run("topic", "purge", *topic)
    assert payloads(run, topic) == []
    run("message", "send", *topic, "new", "-p", "0")
    assert parsed(run("message", "poll", *topic, "0", "--first", "--json"))[0]["offset"] == 0
    run("stream", "purge", topic[0])
    assert payloads(run, topic) == []
    run("topic", "delete", *topic)
    assert parsed(run("topic", "list", topic[0], "--json")) == []


def test_stats_tell_of_workers_and_partitions(run: Run, topic: tuple[str, str]) -> None:
    run("message", "send", *topic, "counted", "-p", "0")
    facts = parsed(run("stats", "--json"))
    assert facts["workers"]
    assert facts["partitions"]
    shown = run("stats").stdout
    assert "Worker" in shown
    assert topic[0] in shown


def test_the_workloads_are_listed(run: Run) -> None:
    assert "batches-100" in run("bench", "--list").stdout


# --- errors and status ----------------------------------------------------------------------------------------------


def test_what_is_refused_is_one_line_and_status_1(run: Run, topic: tuple[str, str]) -> None:
    for words in (
        ["message", "send", *topic, "", "-p", "0"],
        ["message", "send", *topic, "x", "-p", "9"],
        ["message", "poll", *topic, "9", "--first"],
        ["consumer-offset", "set", "audit", *topic, "0", "77"],
        ["consumer-offset", "get", "audit", *topic, "9"],
        ["partition", "delete", *topic, "3"],
        ["topic", "create", topic[0], topic[1], "1", "none"],
        ["topic", "create", topic[0], "gz", "1", "zip"],
        ["topic", "create", topic[0], "soon", "1", "none", "sometime"],
        ["topic", "create", topic[0], "odd", "1", "none", "--set", "segment_size=1"],
        ["topic", "create", topic[0], "odd", "1", "none", "--set", "colour=blue"],
        ["bench", "nonsense"],
    ):
        refused = run(*words, status=1)
        assert refused.stdout == "", words
        assert refused.stderr.startswith("error: "), words
        assert refused.stderr.count("\n") == 1, words
    run("topic", "create", topic[0], "odd", "1", "none", "--set", "segment_size", status=2)
    assert [each["name"] for each in parsed(run("topic", "list", topic[0], "--json"))] == [topic[1]]


@pytest.mark.parametrize(
    "words",
    [
        ["stream", "get", "nowhere"],
        ["stream", "delete", "77777"],
        ["topic", "get", "nowhere", "topic"],
        ["topic", "list", "nowhere"],
        ["partition", "create", "nowhere", "topic", "1"],
        ["segment", "delete", "nowhere", "topic", "0", "1"],
        ["message", "send", "nowhere", "topic", "x"],
        ["message", "poll", "nowhere", "topic", "0", "--first"],
        ["message", "flush", "nowhere", "topic", "0"],
        ["consumer-offset", "get", "audit", "nowhere", "topic", "0"],
        ["consumer-offset", "set", "audit", "nowhere", "topic", "0", "1"],
    ],
)
def test_what_is_not_there_is_one_line_and_status_1(run: Run, words: list[str]) -> None:
    missing = run(*words, status=1)
    assert missing.stdout == ""
    assert missing.stderr.startswith("error: ")
    assert missing.stderr.count("\n") == 1
    assert "shmbroker" in missing.stderr, "no remedy"


def test_without_a_broker_the_line_says_how_to_start_one(tmp_path: Path) -> None:
    nobody = CliRunner().invoke(app, ["stream", "list", "--data", str(tmp_path / "none")])
    assert nobody.exit_code == 1
    assert "shmbroker serve" in nobody.stderr
    assert nobody.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "words", [["nonsense"], ["stream", "create"], ["topic", "create", "s", "t", "many"], ["--nonsense"]]
)
def test_what_is_not_understood_is_status_2(run: Run, words: list[str]) -> None:
    run(*words, status=2)


def command_paths() -> list[list[str]]:
    import typer

    found: list[list[str]] = []

    def visit(command: Any, path: list[str]) -> None:
        found.append(path)
        for name, child in getattr(command, "commands", {}).items():
            if not child.hidden:
                visit(child, [*path, name])

    visit(typer.main.get_command(app), [])
    return found


@pytest.mark.parametrize("path", command_paths(), ids=" ".join)
def test_every_command_teaches_with_an_example(path: list[str]) -> None:
    result = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    example = " ".join(["shmbroker", *path])
    assert result.stdout.count(example) > 1 or not path, f"no example of {example}"


def test_the_installed_command_in_a_pipe(data: Path, run: Run, topic: tuple[str, str]) -> None:
    """A real process, whose output goes to another that stops reading: no traceback, whatever happens."""
    run("message", "send", *topic, "-p", "0", text="\n".join(map(str, range(5_000))))
    command = Path(sys.executable).parent / "shmbroker"
    words = f"{command} message poll {topic[0]} {topic[1]} 0 --first -m 5000 --data {data} | head -n 5"
    done = subprocess.run(["bash", "-c", words], capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
                          env={**os.environ, "TERM": "dumb"})  # fmt: skip
    assert len(done.stdout.splitlines()) == 5
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


def test_an_interrupt_before_a_command_has_begun_ends_without_a_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "app", interrupted)
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 130
    assert capsys.readouterr() == ("", "")


# --- names that are unusual, and what is not there --------------------------------------------------------------------

HOSTILE = "a\x1b[2Jb\nc\x9b\x7f"


def test_control_characters_in_names_are_shown_and_not_obeyed(run: Run) -> None:
    assert "\x1b" not in run("stream", "create", HOSTILE).stdout
    shown = run("stream", "list").stdout
    assert r"a\x1b[2Jb\nc\x9b\x7f" in shown
    assert not any(character in shown for character in "\x1b\x9b\x7f")
    as_json = run("stream", "list", "--json").stdout
    assert not any(character in as_json for character in "\x1b\x9b\x7f")
    assert HOSTILE in [stream["name"] for stream in json.loads(as_json)]
    missing = run("topic", "list", HOSTILE + "!", status=1)
    assert "\x1b" not in missing.stderr
    assert len(missing.stderr.splitlines()) == 1
    run("stream", "delete", HOSTILE)


def test_a_name_of_digits_is_warned_of(run: Run, topic: tuple[str, str]) -> None:
    stream, _ = topic
    for words in (
        ("stream", "create", "123123"),
        ("topic", "create", stream, "123", "1", "none"),
        ("consumer-group", "create", stream, "topic", "123"),
    ):
        result = run(*words)
        assert "not by its name" in " ".join(result.stderr.split()), words
    assert not run("stream", "create", "x123").stderr


def test_each_kind_that_is_not_there_is_looked_for_where_it_is(run: Run, topic: tuple[str, str]) -> None:
    stream, _ = topic
    offset = run("consumer-offset", "get", "nobody", stream, "topic", "0", status=1).stderr
    assert "stream list" not in offset
    assert "stream list" in run("topic", "list", "missing", status=1).stderr
    assert "topic list" in run("topic", "get", stream, "missing", status=1).stderr
    assert "consumer-group list" in run("consumer-group", "get", stream, "topic", "missing", status=1).stderr


def test_an_interrupt_while_the_rest_is_imported_shows_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nraise SystemError\n")
    result = subprocess.run(
        [sys.executable, "-c", "from shmbroker.cli.entry import main; main()", "--version"],
        check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert result.returncode == 130
    assert result.stderr == ""
