"""The catalog on disk: one SQLite database (WAL, synchronous=FULL). Written by the front only, which holds broker.lock.

A request's changes are one transaction, durable when :meth:`CatalogStore.apply` returns; a crash leaves all of them or
none. The ceiling of log ids is raised in a transaction of its own *before* an id is used for a directory, so that a
crash in between wastes ids and never issues one twice. A deleted partition's log_id stays in the table of the buried
until its files are gone (LogGone), so that a restart finishes the removal.

A database that is damaged, newer than we know, or not ours is refused; it is never repaired or replaced here. An older
format is brought up to ours in one transaction, when it is opened: a crash leaves the one or the other.
"""

from __future__ import annotations

import json
import os
import sqlite3
import stat
from collections.abc import Iterable
from dataclasses import asdict
from typing import Final, Self

from shmbroker.core.catalog import Catalog
from shmbroker.core.changes import (
    Change,
    GroupPut,
    GroupRemoved,
    LogGone,
    PartitionPut,
    PartitionRemoved,
    StreamPut,
    StreamRemoved,
    TokenPut,
    TokenRemoved,
    TopicPut,
    TopicRemoved,
    UserPut,
    UserRemoved,
)
from shmbroker.core.options import STANDARD_DEFAULTS, Durability, TopicDefaults, TopicOptions
from shmbroker.core.permissions import (
    GLOBAL_FLAGS,
    STREAM_FLAGS,
    TOPIC_FLAGS,
    Flags,
    Permissions,
    StreamPermissions,
    TopicPermissions,
)
from shmbroker.errors import Corrupt, DiskFailed, InvalidConfiguration, NoSpace, Unavailable

FILE_NAME: Final = "catalog.sqlite3"
FORMAT_VERSION: Final = 2
"""1: without users. The steps from one to the next are in _STEPS."""
APPLICATION_ID: Final = int.from_bytes(b"SHMB", "big")
LOG_ID_FIRST: Final = 1
PRIVATE_MODE: Final = 0o600
_BUSY_TIMEOUT_S: Final = 5.0
_REMEDY: Final = "Restore it from a backup, or start with another data directory; the partitions are untouched"

_SCHEMA: Final = """
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
"""
_USERS_SCHEMA: Final = """
CREATE TABLE account (
    user_id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, password_hash TEXT NOT NULL, is_active INTEGER NOT NULL,
    permissions TEXT, created_at_us INTEGER NOT NULL
) STRICT;
CREATE TABLE token (
    user_id INTEGER NOT NULL REFERENCES account, name TEXT NOT NULL, digest BLOB NOT NULL UNIQUE,
    expires_at_us INTEGER NOT NULL, PRIMARY KEY (user_id, name)
) STRICT, WITHOUT ROWID;
"""
_STEPS: Final[dict[int, str]] = {1: _USERS_SCHEMA}
"""What makes the next format out of each."""
_TABLES: Final = frozenset({"counter", "stream", "topic", "partition", "consumer_group", "buried"})
"""Of every format."""
_USERS_TABLES: Final = frozenset({"account", "token"})
"""From format 2 on."""


def _keep_private(path: str, *, make: bool) -> None:
    """It holds hashes of passwords and tokens. SQLite gives the files beside it the mode of this one."""
    try:
        if make:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, PRIVATE_MODE))
        for each in (path, f"{path}-wal", f"{path}-shm"):
            if os.path.exists(each) and stat.S_IMODE(os.stat(each).st_mode) & 0o077:
                os.chmod(each, PRIVATE_MODE)
    except OSError as error:
        raise DiskFailed(f"{path}: {error.strerror}") from error


def _lost(path: str) -> InvalidConfiguration:
    """SQLite takes an empty file for a new database, and the file of a live one may be nearly empty: the rest is in the
    file beside it."""
    what = "is empty" if os.path.exists(path) else "is missing"
    return InvalidConfiguration(f"{path} {what}, and there are partitions. {_REMEDY}")


class CatalogStore:
    """The open database. Raises DiskFailed or NoSpace where the disk does; nothing is applied then."""

    def __init__(self, path: str, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection

    @classmethod
    def open(cls, directory: str, *, may_make: bool = True) -> Self:
        """Opens ``directory``/catalog.sqlite3, or makes it (durably, name included) where it is not there, or empty.
        Without ``may_make`` InvalidConfiguration there.

        Raises Corrupt (damaged, or not ours), InvalidConfiguration (a newer format), Unavailable (in use), DiskFailed.
        """
        path = os.path.join(directory, FILE_NAME)
        is_new = not os.path.exists(path) or os.path.getsize(path) == 0
        if is_new and not may_make:
            raise _lost(path)
        _keep_private(path, make=is_new)
        try:
            connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise DiskFailed(f"{path}: {error}") from error
        store = cls(path, connection)
        try:
            store._prepare(is_new, may_make)
        except BaseException as error:
            connection.close()
            if isinstance(error, sqlite3.Error):
                raise store._fault(error) from error
            raise
        # Every time: whoever made the file may have died before its name was safe.
        _sync_directory(directory)
        return store

    def _prepare(self, is_new: bool, may_make: bool) -> None:
        execute = self._connection.execute
        (application_id,) = execute("PRAGMA application_id").fetchone()
        (version,) = execute("PRAGMA user_version").fetchone()
        tables = {name for (name,) in execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        is_new = is_new or (application_id == 0 and version == 0 and not tables)
        if is_new and not may_make:
            raise _lost(self.path)
        # Looked at before anything is set: what is not ours is not to be changed.
        if not is_new and application_id != APPLICATION_ID:
            raise Corrupt(self.path, 0, "not a catalog of shmbroker", _REMEDY)
        if not is_new and not 1 <= version <= FORMAT_VERSION:
            text = f"{self.path} has format {version}, this shmbroker reads {FORMAT_VERSION}: use the one that wrote it"
            raise InvalidConfiguration(text)
        wanted = _TABLES if version < 2 else _TABLES | _USERS_TABLES
        if not is_new and not tables >= wanted:
            raise Corrupt(self.path, 0, f"tables are missing: {', '.join(sorted(wanted - tables))}", _REMEDY)
        execute("PRAGMA journal_mode = WAL")
        execute("PRAGMA synchronous = FULL")
        execute("PRAGMA foreign_keys = ON")
        if is_new:
            # One transaction: a crash leaves an empty database, which counts as new.
            self._connection.executescript(
                f"BEGIN IMMEDIATE; {_SCHEMA} {_USERS_SCHEMA}"
                f"INSERT INTO counter VALUES ('next_log_id', {LOG_ID_FIRST});"
                f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {FORMAT_VERSION}; COMMIT;"
            )
        (verdict,) = execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise Corrupt(self.path, 0, str(verdict), _REMEDY)
        if not is_new and version < FORMAT_VERSION:
            steps = "".join(_STEPS[each] for each in range(version, FORMAT_VERSION))
            self._connection.executescript(f"BEGIN IMMEDIATE; {steps} PRAGMA user_version = {FORMAT_VERSION}; COMMIT;")

    def load(self, defaults: TopicDefaults = STANDARD_DEFAULTS) -> Catalog:
        """The catalog as it was last applied. Raises Corrupt where the rows contradict each other."""
        catalog = Catalog(defaults)
        try:
            catalog.apply(self._rows())
            catalog.buried.update(log_id for (log_id,) in self._connection.execute("SELECT log_id FROM buried"))
        except sqlite3.Error as error:
            raise self._fault(error) from error
        except (AssertionError, KeyError, ValueError, TypeError) as error:
            raise Corrupt(self.path, 0, f"the tables contradict each other: {error!r}", _REMEDY) from error
        ceiling = self.next_log_id
        if any(log_id >= ceiling for log_id in (*catalog.logs, *catalog.buried)):
            raise Corrupt(self.path, 0, f"a log id is not below the counter {ceiling}", _REMEDY)
        if catalog.buried & catalog.logs.keys():
            raise Corrupt(self.path, 0, "a log is both used and buried", _REMEDY)
        return catalog

    def _rows(self) -> list[Change]:
        execute = self._connection.execute
        changes: list[Change] = []
        for user_id, name, password_hash, is_active, permissions, created in execute(
            "SELECT * FROM account ORDER BY 1"
        ):
            permitted = permissions_from_json(permissions)
            changes.append(UserPut(user_id, name, password_hash, bool(is_active), permitted, created))
        changes += [TokenPut(*row) for row in execute("SELECT * FROM token ORDER BY 1, 2")]
        changes += [StreamPut(*row) for row in execute("SELECT * FROM stream ORDER BY stream_id")]
        for stream_id, topic_id, name, created, options, group in execute("SELECT * FROM topic ORDER BY 1, 2"):
            changes.append(TopicPut(stream_id, topic_id, name, created, options_from_json(options), group))
        changes += [PartitionPut(*row) for row in execute("SELECT * FROM partition ORDER BY 1, 2, 3")]
        changes += [GroupPut(*row) for row in execute("SELECT * FROM consumer_group ORDER BY 1, 2, 3")]
        return changes

    @property
    def next_log_id(self) -> int:
        """The lowest log id never reserved."""
        try:
            row = self._connection.execute("SELECT value FROM counter WHERE name = 'next_log_id'").fetchone()
        except sqlite3.Error as error:
            raise self._fault(error) from error
        if row is None or row[0] < LOG_ID_FIRST:
            raise Corrupt(self.path, 0, "the counter of log ids is missing", _REMEDY)
        return int(row[0])

    def reserve_log_ids(self, count: int) -> range:
        """Log ids that nobody ever had, durably, before they are used for anything."""
        assert count >= 0
        first = self.next_log_id
        if count:
            self._transact([("UPDATE counter SET value = ? WHERE name = 'next_log_id'", (first + count,))])
        return range(first, first + count)

    def apply(self, changes: Iterable[Change]) -> None:
        """All changes or none, durable on return. Raises DiskFailed, NoSpace."""
        self._transact([statement for change in changes for statement in _statements(change)])

    def _transact(self, statements: list[tuple[str, tuple[object, ...]]]) -> None:
        if not statements:
            return
        execute = self._connection.execute
        try:
            execute("BEGIN IMMEDIATE")
            try:
                for sql, parameters in statements:
                    cursor = execute(sql, parameters)
                    # Every statement touches exactly the row it names: another count means a change that does not fit.
                    assert cursor.rowcount == 1, f"{sql} touched {cursor.rowcount} rows"
                execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise self._fault(error) from error

    def _fault(self, error: sqlite3.Error) -> Exception:
        number = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if number == sqlite3.SQLITE_FULL:
            return NoSpace(f"{self.path}: {error}")
        if number in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return Unavailable(f"{self.path} is in use by another process: {error}")
        if number in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return Corrupt(self.path, 0, str(error), _REMEDY)
        return DiskFailed(f"{self.path}: {error}")

    def close(self) -> None:
        """Checkpoints the write-ahead log and closes. Raises DiskFailed."""
        try:
            self._connection.close()
        except sqlite3.Error as error:
            raise self._fault(error) from error


def _statements(change: Change) -> list[tuple[str, tuple[object, ...]]]:
    match change:
        case StreamPut():
            put = "INSERT INTO stream VALUES (?1, ?2, ?3) ON CONFLICT DO UPDATE SET name = ?2, created_at_us = ?3"
            return [(put, tuple(change))]
        case StreamRemoved():
            return [("DELETE FROM stream WHERE stream_id = ?", tuple(change))]
        case TopicPut():
            put = (
                "INSERT INTO topic VALUES (?1, ?2, ?3, ?4, ?5, ?6)"
                " ON CONFLICT DO UPDATE SET name = ?3, created_at_us = ?4, options = ?5, next_group_id = ?6"
            )
            row = change._replace(options=options_to_json(change.options))  # type: ignore[arg-type]
            return [(put, tuple(row))]
        case TopicRemoved():
            return [("DELETE FROM topic WHERE stream_id = ? AND topic_id = ?", tuple(change))]
        case PartitionPut():
            return [("INSERT INTO partition VALUES (?, ?, ?, ?, ?)", tuple(change))]
        case PartitionRemoved():
            where = "stream_id = ? AND topic_id = ? AND partition_id = ? AND log_id = ?"
            return [
                (f"DELETE FROM partition WHERE {where}", tuple(change)),
                ("INSERT INTO buried VALUES (?)", (change.log_id,)),
            ]
        case GroupPut():
            return [("INSERT INTO consumer_group VALUES (?, ?, ?, ?)", tuple(change))]
        case GroupRemoved():
            where = "stream_id = ? AND topic_id = ? AND group_id = ?"
            return [(f"DELETE FROM consumer_group WHERE {where}", tuple(change))]
        case LogGone():
            return [("DELETE FROM buried WHERE log_id = ?", tuple(change))]
        case UserPut():
            put = (
                "INSERT INTO account VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT (user_id) DO UPDATE"
                " SET name = ?2, password_hash = ?3, is_active = ?4, permissions = ?5, created_at_us = ?6"
            )
            user_id, name, password_hash, is_active, permissions, created = change
            return [(put, (user_id, name, password_hash, int(is_active), permissions_to_json(permissions), created))]
        case UserRemoved():
            return [("DELETE FROM account WHERE user_id = ?", tuple(change))]
        case TokenPut():
            return [("INSERT INTO token VALUES (?, ?, ?, ?)", tuple(change))]
        case TokenRemoved():
            return [("DELETE FROM token WHERE user_id = ? AND name = ?", tuple(change))]


def options_to_json(options: TopicOptions) -> str:
    """A topic's options as they are stored: every effective value, and which the creator set."""
    return json.dumps(asdict(options) | {"explicit": sorted(options.explicit)}, sort_keys=True)


def options_from_json(text: str) -> TopicOptions:
    """The opposite. Raises ValueError or TypeError where it is not one."""
    found = json.loads(text)
    found["explicit"] = frozenset(found["explicit"])
    for key in ("durability", "consumer_offset_durability"):
        found[key] = Durability(found[key])
    return TopicOptions(**found)


def permissions_to_json(permissions: Permissions | None) -> str | None:
    """As they are stored: [flags, [[stream id, flags, [[topic id, flags] ...]] ...]], flags as text of 0 and 1."""
    if permissions is None:
        return None
    streams = [
        [
            stream.stream_id,
            _flags_text(stream.flags),
            [[each.topic_id, _flags_text(each.flags)] for each in stream.topics],
        ]
        for stream in permissions.streams
    ]
    return json.dumps([_flags_text(permissions.flags), streams])


def permissions_from_json(text: str | None) -> Permissions | None:
    """The opposite. Raises ValueError or TypeError where it is not one."""
    if text is None:
        return None
    flags, streams = json.loads(text)
    return Permissions(
        _flags(flags, len(GLOBAL_FLAGS)),
        tuple(
            StreamPermissions(
                int(stream_id),
                _flags(stream_flags, len(STREAM_FLAGS)),
                tuple(TopicPermissions(int(topic_id), _flags(each, len(TOPIC_FLAGS))) for topic_id, each in topics),
            )
            for stream_id, stream_flags, topics in streams
        ),
    )


def _flags_text(flags: Flags) -> str:
    return "".join("01"[flag] for flag in flags)


def _flags(text: str, count: int) -> Flags:
    if len(text) != count or set(text) - {"0", "1"}:
        raise ValueError(f"{text!r} is not {count} flags")
    return tuple(flag == "1" for flag in text)


def _sync_directory(directory: str) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        raise DiskFailed(f"{directory}: {error}") from error
    finally:
        os.close(fd)
