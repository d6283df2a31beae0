"""Changes a catalog on disk, step by step, and kills itself with SIGKILL at the statement that it is told.

    python catalog_child.py DIRECTORY SEED KILL_AT        KILL_AT: a number of statements, or 0 for "run to the end"
    python catalog_child.py DIRECTORY open KILL_AT        only opens it, and counts from the first statement on

Prints the number of each step that was acknowledged, and the log ids that it reserved. The steps follow from the seed
alone, so that the test knows them.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator
from typing import Any

from shmbroker.core.catalog import Catalog
from shmbroker.core.changes import Change, LogGone
from shmbroker.core.options import option_values
from shmbroker.core.permissions import Permissions, StreamPermissions
from shmbroker.core.users import User
from shmbroker.front.catalog_store import CatalogStore

STEP_COUNT = 20


def steps(catalog: Catalog, seed: int, reserve: Callable[[int], range]) -> Iterator[list[Change]]:
    """Decisions on ``catalog``, each to be applied before the next is asked for."""
    rng = random.Random(seed)
    for number in range(STEP_COUNT):
        streams = list(catalog.streams.values())
        topics = [topic for stream in streams for topic in stream.topics.values()]
        users = list(catalog.users)
        choice = rng.randrange(12)
        if choice >= 8:
            yield user_step(catalog, rng, choice, number, rng.choice(users) if users else None)
        elif choice == 0 or not streams:
            yield catalog.create_stream(f"stream {number}", number)
        elif choice <= 2 or not topics:
            values = option_values({"durability": rng.choice(("persisted", "replicated"))})
            log_ids = list(reserve(rng.randrange(1, 6)))
            yield catalog.create_topic(rng.choice(streams).name, f"topic {number}", log_ids, values, number)
        elif choice == 3:
            topic = rng.choice(topics)
            yield catalog.create_group(topic.stream_id, topic.topic_id, f"group {number}")
        elif choice == 4:
            topic = rng.choice(topics)
            yield catalog.create_partitions(topic.stream_id, topic.topic_id, list(reserve(2)), number)
        elif choice == 5:
            yield catalog.delete_stream(rng.choice(streams).name)
        elif choice == 6 and catalog.buried:
            yield [LogGone(log_id) for log_id in sorted(catalog.buried)]
        else:
            topic = rng.choice(topics)
            yield catalog.delete_topic(topic.stream_id, topic.topic_id)


def user_step(catalog: Catalog, rng: random.Random, choice: int, number: int, user: User | None) -> list[Change]:
    """One decision about users: ``user`` is the one it is about, or None to make one."""
    known = catalog.users
    if user is None:
        return [*known.put_root(None, f"hash {number}", number)]
    if choice == 8 or (choice == 11 and user.is_root):
        permissions = Permissions((False,) * 10, (StreamPermissions(0, (True,) * 6), StreamPermissions(1, (True,) * 6)))
        return [*known.create(f"user {number}", f"hash {number}", bool(number % 2), permissions, number)]
    if choice == 9:
        return [*known.create_token(user, f"token {number}", b"digest %d" % number, 5, number)]
    if choice == 10:
        return [*known.update(user.user_id, f"user {number}", None)]
    return [*known.delete(user.user_id)]


def open_only(directory: str, kill_at: int) -> None:
    """Opens and closes the catalog, with every statement of the opening counted."""
    connect = sqlite3.connect
    statement_count = 0

    def count(_statement: str) -> None:
        nonlocal statement_count
        statement_count += 1
        if statement_count == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def traced(*arguments: Any, **named: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **named)
        connection.set_trace_callback(count)
        return connection

    sqlite3.connect = traced  # type: ignore[assignment]
    CatalogStore.open(directory).close()
    print("statements", statement_count, flush=True)


def main() -> None:
    directory, seed, kill_at = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if seed == "open":
        open_only(directory, kill_at)
        return
    store = CatalogStore.open(directory)
    catalog = store.load()
    statement_count = 0

    def count(_statement: str) -> None:
        nonlocal statement_count
        statement_count += 1
        if statement_count == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def reserve(wanted: int) -> range:
        reserved = store.reserve_log_ids(wanted)
        print("reserved", reserved.stop, flush=True)
        return reserved

    store._connection.set_trace_callback(count)
    for number, changes in enumerate(steps(catalog, int(seed), reserve), 1):
        store.apply(changes)
        print("done", number, flush=True)
        catalog.apply(changes)
    print("statements", statement_count, flush=True)
    store.close()


if __name__ == "__main__":
    main()
