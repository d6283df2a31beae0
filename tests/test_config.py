"""Settings: three sources, one check, and the names that are refused wherever they are given."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from shmbroker.config import KEYS, TOPIC_ONLY, VARIABLES, Config, load
from shmbroker.errors import InvalidConfiguration
from shmbroker.limits import GIB, MIB, U64_MAX, WORKER_COUNT_MAX

MINUTE_US = 60_000_000


def from_file(tmp_path: Path, text: str, environment: dict[str, str] | None = None, **flags: object) -> Config:
    path = tmp_path / "broker.toml"
    path.write_text(text)
    return load(path, environment or {}, {key.replace("__", "."): value for key, value in flags.items()})


def refused(
    text: str,
    file: Path | None = None,
    environment: dict[str, str] | None = None,
    flags: dict[str, object] | None = None,
) -> str:
    """The message of the refusal, which contains ``text``."""
    with pytest.raises(InvalidConfiguration) as caught:
        load(file, environment or {}, flags)
    assert text in str(caught.value)
    return str(caught.value)


def test_the_defaults() -> None:
    config = load(environment={})
    assert dataclasses.asdict(config) == {
        "broker": {"data": "./shmbroker-data", "runtime": None, "workers": 0},
        "partition": {"journal_memory_limit": 0},
        "retention": {"enabled": True, "interval_us": MINUTE_US},
        "topic": {"message_expiry_us": U64_MAX, "max_topic_size": U64_MAX},
        "tcp": {"enabled": False, "host": "127.0.0.1", "port": 8090, "certificate": None, "private_key": None},
        "http": {
            "enabled": False,
            "host": "127.0.0.1",
            "port": 3000,
            "certificate": None,
            "private_key": None,
            "origins": (),
            "body_size_max": 2_000_000,
            "time_limit_us": 10_000_000,
            "token_expiry_us": 3_600_000_000,
        },
        "heartbeat": {"interval_us": MINUTE_US // 2},
    }
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.broker.workers = 3  # type: ignore[misc]


FILE = """
[broker]
data = "/srv/data"
runtime = "/dev/shm/mine"
workers = 3
[partition]
journal_memory_limit = "256 MiB"
[retention]
enabled = false
interval = "5m"
[topic]
message_expiry = "7 days"
max_topic_size = 10737418240
[tcp]
enabled = true
address = "[::1]:0"
certificate = "/srv/tcp.pem"
private_key = "/srv/tcp-key.pem"
[http]
enabled = true
address = "0.0.0.0:80"
certificate = "/srv/cert.pem"
private_key = "/srv/key.pem"
origins = ["https://a.example", "http://b.example:8000"]
body_size_max = "64 KiB"
time_limit = 5
token_expiry = "1 day"
[heartbeat]
interval = "12 s"
"""


def test_a_file_sets_everything(tmp_path: Path) -> None:
    assert dataclasses.asdict(from_file(tmp_path, FILE)) == {
        "broker": {"data": "/srv/data", "runtime": "/dev/shm/mine", "workers": 3},
        "partition": {"journal_memory_limit": 256 * MIB},
        "retention": {"enabled": False, "interval_us": 5 * MINUTE_US},
        "topic": {"message_expiry_us": 7 * 24 * 60 * MINUTE_US, "max_topic_size": 10 * GIB},
        "tcp": {
            "enabled": True,
            "host": "::1",
            "port": 0,
            "certificate": "/srv/tcp.pem",
            "private_key": "/srv/tcp-key.pem",
        },
        "http": {
            "enabled": True,
            "host": "0.0.0.0",
            "port": 80,
            "certificate": "/srv/cert.pem",
            "private_key": "/srv/key.pem",
            "origins": ("https://a.example", "http://b.example:8000"),
            "body_size_max": 65_536,
            "time_limit_us": 5_000_000,
            "token_expiry_us": 24 * 60 * MINUTE_US,
        },
        "heartbeat": {"interval_us": 12_000_000},
    }


def test_the_environment_sets_everything(tmp_path: Path) -> None:
    values = {
        "SHMBROKER_BROKER_DATA": "/srv/data", "SHMBROKER_BROKER_RUNTIME": "/dev/shm/mine",
        "SHMBROKER_BROKER_WORKERS": "3",
        "SHMBROKER_PARTITION_JOURNAL_MEMORY_LIMIT": "256 MiB", "SHMBROKER_RETENTION_ENABLED": "false",
        "SHMBROKER_RETENTION_INTERVAL": "5m", "SHMBROKER_TOPIC_MESSAGE_EXPIRY": "7 days",
        "SHMBROKER_TOPIC_MAX_TOPIC_SIZE": "10GiB", "SHMBROKER_TCP_ENABLED": "true", "SHMBROKER_TCP_ADDRESS": "[::1]:0",
        "SHMBROKER_TCP_CERTIFICATE": "/srv/tcp.pem", "SHMBROKER_TCP_PRIVATE_KEY": "/srv/tcp-key.pem",
        "SHMBROKER_HEARTBEAT_INTERVAL": "12s",
        "SHMBROKER_HTTP_ENABLED": "True", "SHMBROKER_HTTP_ADDRESS": "0.0.0.0:80",
        "SHMBROKER_HTTP_CERTIFICATE": "/srv/cert.pem", "SHMBROKER_HTTP_PRIVATE_KEY": "/srv/key.pem",
        "SHMBROKER_HTTP_ORIGINS": "https://a.example, http://b.example:8000", "SHMBROKER_HTTP_BODY_SIZE_MAX": "64KiB",
        "SHMBROKER_HTTP_TIME_LIMIT": "5s", "SHMBROKER_HTTP_TOKEN_EXPIRY": "1 day",
    }  # fmt: skip
    assert values.keys() == VARIABLES.keys()
    assert load(environment=values) == from_file(tmp_path, FILE)
    others = {"PATH": "/bin", "IGGY_ROOT_PASSWORD": "secret", "SHMBROKER_TEST_SEED": "1", "SHMBROKER_TRACEBACK": "1"}
    assert load(environment=others) == load(environment={})


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    text = '[broker]\nworkers = 1\ndata = "file"'
    assert from_file(tmp_path, text).broker.workers == 1
    environment = {"SHMBROKER_BROKER_WORKERS": "2"}
    assert from_file(tmp_path, text, environment).broker.workers == 2
    config = from_file(tmp_path, text, environment, broker__workers=3, broker__data=None)
    assert (config.broker.workers, config.broker.data) == (3, "file")
    short = {"SHMBROKER_DATA": "short"}
    assert load(environment=short).broker.data == "short"
    assert load(environment={**short, "SHMBROKER_BROKER_DATA": "long"}).broker.data == "long"


def test_the_environment_of_the_process_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHMBROKER_BROKER_WORKERS", "7")
    assert load().broker.workers == 7


# --- what is refused by name ------------------------------------------------------------------------------------------
OPTION_OF = {
    "enforce_fsync": "durability",
    "durability": "durability",
    "consumer_offset_enforce_fsync": "consumer_offset_durability",
    "consumer_offset_durability": "consumer_offset_durability",
}
PLACES = ["{key} = true", "[broker]\n{key} = true", "[partition]\n{key} = true", "[topic]\n{key} = 'persisted'",
          "[system.partition]\n{key} = true", "[nonsense]\n{key} = 1", "[[list]]\n{key} = 1", "[{key}]\na = 1",
          "[system]\nsegment = {{ {key} = true }}", "[topic]\nenforce = [{{ {key} = 1 }}]"]  # fmt: skip
VARIABLE_FORMS = ["SHMBROKER_{key}", "SHMBROKER_PARTITION_{key}", "SHMBROKER_TOPIC_{key}", "SHMBROKER_BROKER_{key}",
                  "SHMBROKER_SYSTEM_PARTITION_{key}", "IGGY_{key}", "IGGY_PARTITION_{key}",
                  "IGGY_SYSTEM_PARTITION_{key}",
                  "SHMBROKER_TEST_{key}", "iggy_topic_{key}"]  # fmt: skip


def test_all_names_that_belong_to_topics() -> None:
    assert OPTION_OF == TOPIC_ONLY


def told(message: str, key: str) -> None:
    assert f"{key} is not a setting of the broker" in message
    assert f"create it with the topic option {OPTION_OF[key]}=" in message


@pytest.mark.parametrize("key", OPTION_OF)
@pytest.mark.parametrize("place", PLACES)
def test_a_file_may_not_set_durability(tmp_path: Path, key: str, place: str) -> None:
    path = tmp_path / "broker.toml"
    for form in {key, key.replace("_", "-"), key.upper()}:
        path.write_text(place.format(key=form))
        told(refused(str(path), path), key)


@pytest.mark.parametrize("key", OPTION_OF)
@pytest.mark.parametrize("form", VARIABLE_FORMS)
def test_no_variable_may_set_durability(key: str, form: str) -> None:
    name = form.format(key=key.upper())
    told(refused(name, environment={name: ""}), key)


@pytest.mark.parametrize("key", OPTION_OF)
def test_no_flag_may_set_durability(key: str) -> None:
    told(refused(f"flag topic.{key}", flags={f"topic.{key}": "persisted"}), key)
    told(refused(f"flag {key}", flags={key: True}), key)


# --- unknown and bad --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[broker]\nworker = 2", "broker.worker is not known; the nearest is broker.workers"),
        ("[broker]\ninterval = 2", "broker.interval is not known"),
        ("[brokr]\nworkers = 2", "[brokr] is not known; the nearest is broker"),
        ("workers = 2", "[workers] is not known"),
        ("broker = 2", "broker is a section: write [broker]"),
        ("[tcp.address]\nhost = 'x'", "tcp.address = {'host': 'x'}"),
        ("[broker", "not TOML"),
    ],
)
def test_an_unknown_key_of_a_file_names_itself(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "broker.toml"
    path.write_text(text)
    assert str(path) in refused(named, path)


def test_unknown_variables_and_flags_name_themselves() -> None:
    refused(
        "SHMBROKER_BROKER_WORKER is not known; the nearest is SHMBROKER_BROKER_WORKERS",
        environment={"SHMBROKER_BROKER_WORKER": "2"},
    )
    refused("SHMBROKER_X is not known", environment={"SHMBROKER_X": "2"})
    refused("flag tcp.adress is not known; the nearest is tcp.address", flags={"tcp.adress": "x"})
    refused("flag workers is not known; the nearest is broker.workers", flags={"workers": "x"})


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    refused("cannot be read: No such file", tmp_path / "none.toml")
    refused("cannot be read: Is a directory", tmp_path)
    (tmp_path / "latin").write_bytes(b"[broker]\ndata = '\xe4'")
    refused("not TOML", tmp_path / "latin")


BAD: dict[str, list[object]] = {
    "broker.data": ["", 3, True, "a\0b"],
    "broker.runtime": [3, False],
    "broker.workers": [-1, WORKER_COUNT_MAX + 1, "many", True, 1.5, "", "-1", "\u0663"],
    "partition.journal_memory_limit": [1, MIB - 1, "1 KiB", "much", -5, True, 2**64],
    "retention.enabled": ["yes", 1, ""],
    "retention.interval": [0, "0s", "500ms", "soon", -1, True, "", 2**32, "4294967296s"],
    "topic.message_expiry": [0, "0s", "soon", True],
    "topic.max_topic_size": [0, MIB - 1, "big", True, "17000000 TiB"],
    "tcp.enabled": ["on"],
    "tcp.address": ["localhost", ":8090", "localhost:", "localhost:x", "localhost:65536", "::1:8090", 8090, ""],
    "tcp.certificate": [3, "a\0b"],
    "tcp.private_key": [3, "a\0b"],
    "http.enabled": [0],
    "http.address": ["localhost:-1"],
    "http.certificate": [3, "a\0b"],
    "http.private_key": [3, "a\0b"],
    "http.origins": ["example.com", ["https://a b"], [3], 3, "ftp://x", "https://a/b"],
    "http.body_size_max": [0, "63 KiB", "257 MiB", "big", True],
    "http.time_limit": [0, "soon", True],
    "http.token_expiry": [0, "soon", True],
    "heartbeat.interval": [0, "9s", "soon", True],
}


def test_every_setting_has_bad_values_here() -> None:
    assert BAD.keys() == set(KEYS)


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in BAD.items() for value in values])
def test_bad_values_are_refused_with_their_name(key: str, value: object) -> None:
    refused(f"flag {key}: {key} = {value!r}: ", flags={key: value})


def test_a_certificate_needs_its_key() -> None:
    refused("set both or neither", flags={"http.certificate": "/srv/cert.pem"})
    refused("set both or neither", flags={"http.private_key": "/srv/key.pem"})


def test_words_for_what_is_found_out_later() -> None:
    config = load(None, {}, {"broker.workers": "auto", "partition.journal_memory_limit": "auto", "broker.runtime": ""})
    assert (config.broker.workers, config.partition.journal_memory_limit, config.broker.runtime) == (0, 0, None)
    config = load(None, {}, {"topic.message_expiry": "never_expire", "topic.max_topic_size": "unlimited"})
    assert (config.topic.message_expiry_us, config.topic.max_topic_size) == (U64_MAX, U64_MAX)
    assert load(None, {}, {"retention.interval": 90}).retention.interval_us == 90_000_000
