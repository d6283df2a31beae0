"""What a request that gets no reply leaves behind: doubt, or nothing."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

import shmbroker
from shmbroker.errors import OutcomeUnknown, WaitTimeout


def test_only_of_what_changes_something_the_outcome_is_unknown(tmp_path: Path) -> None:
    with shmbroker.embedded(tmp_path / "data") as broker, broker.connect() as reader, broker.connect() as writer:
        reader.create_stream("s")
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            with pytest.raises(WaitTimeout):
                reader.list_streams(timeout=0.2)
            with pytest.raises(OutcomeUnknown):
                writer.create_stream("t", timeout=0.2)
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        assert {stream.name for stream in reader.list_streams()} >= {"s"}, "the late reply is dropped"


def test_every_error_is_caught_by_the_name_that_the_package_exports(tmp_path: Path) -> None:
    with pytest.raises(shmbroker.ShmbrokerError):
        shmbroker.connect(tmp_path, timeout=0.1)


def test_the_catalog_is_private_and_the_uptime_is_of_the_monotonic_clock(tmp_path: Path) -> None:
    began = time.monotonic()
    with shmbroker.embedded(tmp_path / "data") as broker, broker.connect() as client:
        path = tmp_path / "data" / "catalog.sqlite3"
        for each in tmp_path.glob("data/catalog.sqlite3*"):
            assert each.stat().st_mode & 0o077 == 0, each
        assert 0 <= client.stats()["broker"]["uptime_s"] <= time.monotonic() - began
    path.chmod(0o644)
    with shmbroker.embedded(tmp_path / "data"):
        assert path.stat().st_mode & 0o077 == 0, "one of an earlier version too"
