"""The catalog's database: real processes killed in it, and files that are damaged, newer, foreign or full."""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shmbroker.core.catalog import Catalog
from shmbroker.core.changes import Change, LogGone, PartitionRemoved, StreamPut
from shmbroker.core.options import STANDARD_DEFAULTS, create_options, option_values
from shmbroker.core.permissions import Permissions, StreamPermissions, TopicPermissions
from shmbroker.errors import Corrupt, DiskFailed, InvalidConfiguration, NoSpace, Unavailable
from shmbroker.front import catalog_store
from shmbroker.front.catalog_store import (
    APPLICATION_ID,
    FILE_NAME,
    FORMAT_VERSION,
    CatalogStore,
    options_from_json,
    options_to_json,
)
from tests.front.catalog_child import steps

CHILD = str(Path(__file__).with_name("catalog_child.py"))
TIMEOUT_S = 60


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CatalogStore]:
    opened = CatalogStore.open(str(tmp_path))
    yield opened
    opened.close()


def decide_and_apply(store: CatalogStore, catalog: Catalog, changes: list[Change]) -> None:
    store.apply(changes)
    catalog.apply(changes)


def filled(store: CatalogStore) -> Catalog:
    """Stream ``market``, topic ``trades`` of two partitions, group ``billing``."""
    catalog = store.load()
    decide_and_apply(store, catalog, catalog.create_stream("market", 1))
    log_ids = list(store.reserve_log_ids(2))
    values = option_values({"durability": "persisted", "segment_size": "1 MiB"})
    decide_and_apply(store, catalog, catalog.create_topic("market", "trades", log_ids, values, 2))
    decide_and_apply(store, catalog, catalog.create_group("market", "trades", "billing"))
    return catalog


def reloaded(directory: Path) -> tuple[Catalog, int]:
    """What a new start finds, and the next log id that it would give."""
    store = CatalogStore.open(str(directory))
    try:
        return store.load(), store.next_log_id
    finally:
        store.close()


def state_of(catalog: Catalog) -> tuple[list[Change], set[int]]:
    return sorted(catalog.snapshot(), key=repr), set(catalog.buried)


# --- killed in the middle of a transaction ----------------------------------------------------------------------------
def states(seed: int) -> list[tuple[list[Change], set[int]]]:
    """The catalog before the first step, and after each."""
    catalog, next_log_id = Catalog(), 1

    def reserve(count: int) -> range:
        nonlocal next_log_id
        next_log_id += count
        return range(next_log_id - count, next_log_id)

    found = [state_of(catalog)]
    for changes in steps(catalog, seed, reserve):
        catalog.apply(changes)
        found.append(state_of(catalog))
    return found


def run_child(directory: Path, seed: int | str, kill_at: int) -> tuple[int, dict[str, int]]:
    """Its exit status, and the last number it printed for each word."""
    command = [sys.executable, CHILD, str(directory), str(seed), str(kill_at)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd=Path.cwd())
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    words = [line.split() for line in done.stdout.splitlines()]
    return done.returncode, {word: int(number) for word, number in words}


def test_a_kill_at_a_statement_leaves_all_or_nothing(tmp_path: Path, seed: int) -> None:
    expected = states(seed)
    status, printed = run_child(tmp_path / make(tmp_path, "whole"), seed, 0)
    assert (status, printed["done"]) == (0, len(expected) - 1)
    assert state_of(reloaded(tmp_path / "whole")[0]) == expected[-1]
    statement_count = printed["statements"]
    assert statement_count > len(expected)
    # Every statement would take minutes; all of the end, where transactions are long, and a spread of the rest.
    points = sorted({*range(1, statement_count, 7), *range(statement_count - 6, statement_count + 1)})
    for kill_at in points:
        directory = tmp_path / make(tmp_path, f"killed at {kill_at}")
        status, printed = run_child(directory, seed, kill_at)
        assert status == -signal.SIGKILL, f"statement {kill_at} of {statement_count}"
        catalog, next_log_id = reloaded(directory)
        acknowledged = printed.get("done", 0)
        assert state_of(catalog) in expected[acknowledged : acknowledged + 2], f"seed {seed}, killed at {kill_at}"
        assert next_log_id >= printed.get("reserved", 1), "an id that was given is never given again"


def make(parent: Path, name: str) -> str:
    (parent / name).mkdir()
    return name


# --- one process ------------------------------------------------------------------------------------------------------
def test_a_new_catalog_is_empty_and_synchronised(tmp_path: Path, store: CatalogStore) -> None:
    catalog = store.load()
    assert state_of(catalog) == ([], set())
    pragmas = {
        name: store._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")
    }
    assert pragmas == {"journal_mode": "wal", "synchronous": 2}
    assert (tmp_path / FILE_NAME).exists()


def test_everything_comes_back(tmp_path: Path, store: CatalogStore) -> None:
    catalog = filled(store)
    assert state_of(store.load()) == state_of(catalog)
    topic = store.load().topic("market", "trades")
    assert topic.options == create_options(option_values({"durability": "persisted", "segment_size": "1 MiB"}))
    assert topic.next_group_id == 1


def test_an_id_of_a_group_that_is_gone_does_not_come_back(store: CatalogStore) -> None:
    catalog = filled(store)
    decide_and_apply(store, catalog, catalog.delete_group("market", "trades", "billing"))
    again = store.load()
    decide_and_apply(store, again, again.create_group("market", "trades", "other"))
    assert again.group("market", "trades", "other").group_id == 1


def test_log_ids_are_never_given_twice(tmp_path: Path, store: CatalogStore) -> None:
    assert list(store.reserve_log_ids(3)) == [1, 2, 3]
    assert list(store.reserve_log_ids(0)) == []
    other = CatalogStore.open(str(tmp_path))
    assert list(other.reserve_log_ids(2)) == [4, 5], "though nothing was created with the first"
    other.close()


def test_deleted_logs_stay_buried_until_they_are_gone(store: CatalogStore) -> None:
    catalog = filled(store)
    decide_and_apply(store, catalog, catalog.delete_stream("market"))
    assert store.load().buried == {1, 2}
    store.apply([LogGone(1)])
    assert store.load().buried == {2}


def test_a_transaction_that_fails_changes_nothing(store: CatalogStore) -> None:
    catalog = filled(store)
    before = state_of(store.load())
    changes: list[Change] = [StreamPut(1, "other", 5), PartitionRemoved(0, 0, 7, 7)]
    with pytest.raises(AssertionError):
        store.apply(changes)
    assert state_of(store.load()) == before == state_of(catalog)
    with pytest.raises(DiskFailed, match="FOREIGN KEY"):
        store.apply([catalog.delete_stream("market")[-1]])
    assert state_of(store.load()) == before


def test_options_are_stored_whole() -> None:
    options = create_options(option_values({"durability": "persisted", "message_expiry": "7days"}))
    assert options_from_json(options_to_json(options)) == options
    assert options_to_json(options) == (
        '{"compression_algorithm": "none", "consumer_offset_durability": "replicated", "durability": "persisted",'
        ' "explicit": ["durability", "message_expiry"], "max_topic_size": 18446744073709551615,'
        ' "message_expiry_us": 604800000000, "messages_required_to_save": 1024, "preallocate_segments": false,'
        ' "segment_size": 1073741824, "size_of_messages_required_to_save": 1048576}'
    ), "the form of format 1: change it only together with the format's number"


# --- files that are not right -----------------------------------------------------------------------------------------
def test_an_empty_file_counts_as_new(tmp_path: Path) -> None:
    """What is left where the first transaction never came to its end."""
    (tmp_path / FILE_NAME).touch()
    assert state_of(reloaded(tmp_path)[0]) == ([], set())
    (tmp_path / FILE_NAME).unlink()
    connection = sqlite3.connect(tmp_path / FILE_NAME)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE x (y)")
    connection.execute("DROP TABLE x")
    connection.close()
    assert state_of(reloaded(tmp_path)[0]) == ([], set())


def damage_header(path: Path) -> None:
    path.write_bytes(b"not a database at all, but long enough to be looked at. " * 100)


def damage_page(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096:8192] = os.urandom(4096)
    path.write_bytes(data)


def cut_in_half(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2 // 4096 * 4096])


@pytest.mark.parametrize("damage", [damage_header, damage_page, cut_in_half])
def test_a_damaged_file_is_refused(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    store = CatalogStore.open(str(tmp_path))
    filled(store)
    store.close()
    damage(tmp_path / FILE_NAME)
    before = (tmp_path / FILE_NAME).read_bytes()
    with pytest.raises(Corrupt, match=FILE_NAME) as caught:
        reloaded(tmp_path)
    assert "partitions are untouched" in caught.value.remedy
    assert (tmp_path / FILE_NAME).read_bytes() == before, "evidence is not written over"


@pytest.mark.parametrize(
    ("sql", "fault"),
    [
        ("DROP TABLE consumer_group", "tables are missing: consumer_group"),
        ("PRAGMA application_id = 7", "not a catalog of shmbroker"),
        ("DELETE FROM counter", "counter of log ids is missing"),
        ("UPDATE counter SET value = 2", "a log id is not below the counter 2"),
        ("INSERT INTO buried VALUES (1)", "both used and buried"),
        ("UPDATE partition SET partition_id = 5 WHERE partition_id = 1", "contradict"),
        ("UPDATE topic SET options = '{}'", "contradict"),
        ("UPDATE topic SET options = 'x'", "contradict"),
        ("UPDATE topic SET options = replace(options, 'persisted', 'fsync')", "contradict"),
        ("INSERT INTO stream VALUES (7, 'market', 1)", "contradict"),
        ("INSERT INTO partition VALUES (0, 9, 0, 7, 1)", "contradict"),
    ],
)
def test_tables_that_contradict_are_refused(tmp_path: Path, sql: str, fault: str) -> None:
    store = CatalogStore.open(str(tmp_path))
    filled(store)
    store.reserve_log_ids(20)
    store.close()
    with sqlite3.connect(tmp_path / FILE_NAME) as connection:
        connection.execute(sql)
    connection.close()
    with pytest.raises(Corrupt, match=fault):
        reloaded(tmp_path)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    CatalogStore.open(str(tmp_path)).close()
    connection = sqlite3.connect(tmp_path / FILE_NAME)
    connection.execute("PRAGMA user_version = 3")
    connection.close()
    with pytest.raises(InvalidConfiguration, match="has format 3, this shmbroker reads 2"):
        CatalogStore.open(str(tmp_path))


# --- an older format --------------------------------------------------------------------------------------------------
FORMAT_1 = """
CREATE TABLE counter (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE stream (
    stream_id INTEGER PRIMARY KEY, name TEXT NOT NULL, created_at_us INTEGER NOT NULL
) STRICT;
CREATE TABLE topic (
    stream_id INTEGER NOT NULL REFERENCES stream, topic_id INTEGER NOT NULL, name TEXT NOT NULL,
    created_at_us INTEGER NOT NULL, options TEXT NOT NULL, next_group_id INTEGER NOT NULL,
    PRIMARY KEY (stream_id, topic_id)
) STRICT, WITHOUT ROWID;
CREATE TABLE partition (
    stream_id INTEGER NOT NULL, topic_id INTEGER NOT NULL, partition_id INTEGER NOT NULL,
    log_id INTEGER NOT NULL UNIQUE, created_at_us INTEGER NOT NULL,
    PRIMARY KEY (stream_id, topic_id, partition_id), FOREIGN KEY (stream_id, topic_id) REFERENCES topic
) STRICT, WITHOUT ROWID;
CREATE TABLE consumer_group (
    stream_id INTEGER NOT NULL, topic_id INTEGER NOT NULL, group_id INTEGER NOT NULL, name TEXT NOT NULL,
    PRIMARY KEY (stream_id, topic_id, group_id), FOREIGN KEY (stream_id, topic_id) REFERENCES topic
) STRICT, WITHOUT ROWID;
CREATE TABLE buried (log_id INTEGER PRIMARY KEY) STRICT;
INSERT INTO counter VALUES ('next_log_id', 9);
INSERT INTO stream VALUES (0, 'market', 1);
INSERT INTO topic VALUES (0, 0, 'trades', 2, '{options}', 1);
INSERT INTO partition VALUES (0, 0, 0, 7, 2);
INSERT INTO consumer_group VALUES (0, 0, 0, 'billing');
INSERT INTO buried VALUES (8);
PRAGMA application_id = {application};
PRAGMA user_version = 1;
"""


def write_format_1(directory: Path) -> None:
    """A catalog as the first format had it, frozen here."""
    options = options_to_json(create_options(option_values({"durability": "persisted"}), STANDARD_DEFAULTS, 1))
    connection = sqlite3.connect(directory / FILE_NAME)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript(FORMAT_1.replace("{options}", options).replace("{application}", str(APPLICATION_ID)))
    connection.close()


def user_version(directory: Path) -> int:
    connection = sqlite3.connect(directory / FILE_NAME)
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    connection.close()
    return int(found)


def is_what_format_1_had(catalog: Catalog) -> bool:
    topic = catalog.topic("market", "trades")
    kept = ([each.log_id for each in topic.partitions], list(topic.group_ids), topic.next_group_id, catalog.buried)
    return kept == ([7], ["billing"], 1, {8}) and len(catalog.users) == 0


def test_an_older_format_is_brought_up(tmp_path: Path) -> None:
    write_format_1(tmp_path)
    store = CatalogStore.open(str(tmp_path))
    catalog = store.load()
    assert is_what_format_1_had(catalog)
    assert store.next_log_id == 9
    decide_and_apply(store, catalog, [*catalog.users.put_root(None, "a hash", 3)])
    decide_and_apply(store, catalog, [*catalog.users.create_token(catalog.users.get(0), "token", b"digest", 0, 4)])
    store.close()
    assert user_version(tmp_path) == FORMAT_VERSION
    again, _ = reloaded(tmp_path)
    assert state_of(again) == state_of(catalog)


def test_a_kill_while_it_is_brought_up_leaves_the_one_or_the_other(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    write_format_1(tmp_path / "whole")
    status, printed = run_child(tmp_path / "whole", "open", 0)
    assert status == 0
    versions = set()
    for kill_at in range(1, printed["statements"] + 1):
        directory = tmp_path / make(tmp_path, f"killed at {kill_at}")
        write_format_1(directory)
        status, _ = run_child(directory, "open", kill_at)
        assert status == -signal.SIGKILL
        versions.add(user_version(directory))
        assert is_what_format_1_had(reloaded(directory)[0])
    assert versions == {1}, "the last statement is the COMMIT, which a kill comes before"
    assert user_version(tmp_path / "whole") == FORMAT_VERSION


def test_tables_of_users_that_are_missing_are_refused(tmp_path: Path) -> None:
    CatalogStore.open(str(tmp_path)).close()
    connection = sqlite3.connect(tmp_path / FILE_NAME)
    connection.execute("DROP TABLE token")
    connection.close()
    with pytest.raises(Corrupt, match="tables are missing: token"):
        CatalogStore.open(str(tmp_path))


@pytest.mark.parametrize(
    "fault",
    [
        "UPDATE account SET permissions = '[\"01\", []]'",
        "UPDATE account SET permissions = '7'",
        "UPDATE account SET permissions = '[\"0000000002\", []]'",
        "UPDATE account SET user_id = 1, name = 'two' WHERE user_id = 0",
    ],
)
def test_users_that_make_no_sense_are_refused(tmp_path: Path, fault: str) -> None:
    store = CatalogStore.open(str(tmp_path))
    catalog = store.load()
    decide_and_apply(store, catalog, [*catalog.users.put_root(None, "a hash", 3)])
    decide_and_apply(store, catalog, [*catalog.users.create_token(catalog.users.get(0), "token", b"digest", 0, 4)])
    store.close()
    connection = sqlite3.connect(tmp_path / FILE_NAME)
    connection.executescript(fault)
    connection.close()
    with pytest.raises(Corrupt, match="contradict each other"):
        reloaded(tmp_path)


def test_users_come_back_as_they_were(tmp_path: Path, store: CatalogStore) -> None:
    catalog = store.load()
    users = catalog.users
    topics = (TopicPermissions(4, (True, False, False, True)), TopicPermissions(5, (False,) * 4))
    permissions = Permissions(
        tuple(index % 3 == 0 for index in range(10)), (StreamPermissions(2, (True, False) * 3, topics),)
    )
    decide_and_apply(store, catalog, [*users.put_root("admin", "a hash", 3)])
    decide_and_apply(store, catalog, [*users.create("älice", "another", False, permissions, 4)])
    decide_and_apply(store, catalog, [*users.create("robert", "third", True, None, 4)])
    decide_and_apply(store, catalog, [*users.create_token(users.get("robert"), "token", b"digest", 7, 5)])
    decide_and_apply(store, catalog, [*users.update("robert", "rob", None)])
    again, _ = reloaded(tmp_path)
    assert state_of(again) == state_of(catalog)
    assert again.users.get("älice").permissions == permissions
    assert [user.password_hash for user in again.users] == ["a hash", "another", "third"]
    found = again.users.find_token(b"digest")
    assert found is not None
    assert (found[0].name, found[1].expires_at_us) == ("rob", 12)
    decide_and_apply(store, catalog, [*users.delete("rob")])
    assert state_of(reloaded(tmp_path)[0]) == state_of(catalog)


def test_somebody_elses_database_is_refused(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / FILE_NAME)
    connection.execute("CREATE TABLE guests (name)")
    connection.commit()
    connection.close()
    before = (tmp_path / FILE_NAME).read_bytes()
    with pytest.raises(Corrupt, match="not a catalog of shmbroker"):
        CatalogStore.open(str(tmp_path))
    assert (tmp_path / FILE_NAME).read_bytes() == before
    assert APPLICATION_ID != 0


def test_a_database_in_use_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_store, "_BUSY_TIMEOUT_S", 0.0)
    store = CatalogStore.open(str(tmp_path))
    holder = sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable, match="in use"):
        store.reserve_log_ids(1)
    holder.execute("ROLLBACK")
    holder.close()
    assert list(store.reserve_log_ids(1)) == [1]
    store.close()


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DiskFailed, match="No such file"):
        CatalogStore.open(str(tmp_path / "nowhere"))


def test_a_full_disk_refuses_and_changes_nothing(store: CatalogStore) -> None:
    catalog = filled(store)
    before = state_of(store.load())
    (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
    store._connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(NoSpace, match="full"):
        store.apply([StreamPut(number, f"{number} " + "x" * 200, 1) for number in range(1, 500)])
    assert state_of(store.load()) == before == state_of(catalog)
    store._connection.execute("PRAGMA max_page_count = 1000000")
    decide_and_apply(store, catalog, catalog.create_stream("later", 1))
    assert state_of(store.load()) == state_of(catalog)


def test_a_write_that_fails_is_a_failed_disk(store: CatalogStore) -> None:
    """A real error of the system call: the file may not grow (EFBIG)."""
    catalog = filled(store)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises((DiskFailed, NoSpace)):
            store.apply([StreamPut(number, f"{number} " + "x" * 200, 1) for number in range(1, 500)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    assert state_of(store.load()) == state_of(catalog)
