"""``shmbroker consumer-group``: tables, JSON, exit status, and members that are there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import shmbroker
from shmbroker.cli.main import app
from shmbroker.client.embedded import Embedded

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    with shmbroker.embedded(tmp_path_factory.mktemp("group") / "data") as broker:
        yield broker


@pytest.fixture
def run(served: Embedded) -> Run:
    def invoke(*words: str, status: int = 0) -> Any:
        result = CliRunner().invoke(app, list(words), env={"SHMBROKER_DATA": str(Path(served.data))})
        assert result.exit_code == status, f"{words}: {result.output} {result.exception!r}"
        return result

    return invoke


def test_the_life_of_a_group(run: Run, served: Embedded) -> None:
    run("stream", "create", "s")
    run("topic", "create", "s", "t", "3", "none")
    assert "no consumer groups" in run("consumer-group", "list", "s", "t").stderr
    assert json.loads(run("consumer-group", "list", "s", "t", "--json").stdout) == []
    assert json.loads(run("consumer-group", "create", "s", "t", "billing", "--json").stdout) == {
        "id": 0,
        "name": "billing",
    }
    refused = run("consumer-group", "create", "s", "t", "billing", status=1)
    assert refused.stderr.startswith("error: ")
    assert "created with ID 1" in run("g", "create", "s", "t", "audit").stdout
    listed = json.loads(run("g", "list", "s", "t", "--json").stdout)
    assert listed == [
        {"id": 0, "name": "billing", "partitions": 3, "members": 0},
        {"id": 1, "name": "audit", "partitions": 3, "members": 0},
    ]
    with served.connect() as client, client.consumer("s", "t", group="billing"):
        shown = json.loads(run("consumer-group", "get", "s", "t", "billing", "--json").stdout)
        (member,) = shown.pop("members")
        assert member["partitions"] == [0, 1, 2]
        assert shown == {"id": 0, "name": "billing", "partitions": 3}
        table = run("consumer-group", "get", "s", "t", "0").stdout
        assert f"member {member['id']}" in table
        assert "0, 1, 2" in table
        assert "billing" in run("consumer-group", "list", "s", "t").stdout
    assert "deleted" in run("consumer-group", "delete", "s", "t", "1").stdout
    run("consumer-group", "get", "s", "t", "audit", status=1)
    run("consumer-group", "delete", "s", "t", "audit", status=1)
    run("consumer-group", "get", "s", "none", "billing", status=1)
