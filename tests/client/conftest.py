"""One broker for the tests of a module that do it no harm; each gets an empty catalog. Others take ``broker``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import shmbroker
from shmbroker import Client
from shmbroker.client.embedded import Embedded


@pytest.fixture(scope="module")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    with shmbroker.embedded(tmp_path_factory.mktemp("shared") / "data") as broker:
        yield broker


@pytest.fixture
def client(shared_broker: Embedded) -> Iterator[Client]:
    with shared_broker.connect() as connected:
        yield connected
    with shared_broker.connect() as cleaner:
        for stream in cleaner.list_streams():
            cleaner.delete_stream(stream.id)
