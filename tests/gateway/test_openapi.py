"""The API as its description has it: schemathesis makes requests of every operation, right ones and wrong ones, and
checks each answer against the description. Seeded; a failure prints what to repeat."""

from __future__ import annotations

import json

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ignored_auth,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from shmbroker.gateway.app import description
from tests.conftest import RUN_SEED

from .conftest import Served, batch, make_topic

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
    ignored_auth,
]
EXAMPLES = 12
"""Of each operation."""


SCHEMA = schemathesis.openapi.from_dict(description())
OPERATIONS = {
    found.ok().label: found.ok()
    for found in SCHEMA.get_all_operations()
    if found.ok().path not in ("/users/login", "/personal-access-tokens/login", "/users/logout")
}
"""Attempts to log in are limited, and a logout ends the token: they have tests of their own."""


@pytest.fixture(scope="module")
def headers(served: Served) -> dict[str, str]:
    """Of the root user of a broker that has something in it."""
    with served.client() as api:
        topic = make_topic(api, partitions=2)
        api.post(f"{topic}/messages", json=batch(b"one", b"two"))
        api.post(f"{topic}/consumer-groups", json={"name": "g"})
        return {"Authorization": api.headers["Authorization"]}


@pytest.mark.parametrize("label", OPERATIONS)
def test_an_operation_answers_as_described(served: Served, headers: dict[str, str], label: str) -> None:
    operation = OPERATIONS[label]
    right = operation.as_strategy(generation_mode=schemathesis.GenerationMode.POSITIVE)
    wrong = operation.as_strategy(generation_mode=schemathesis.GenerationMode.NEGATIVE)

    @seed(RUN_SEED)
    @settings(max_examples=EXAMPLES, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(right | wrong)
    def answers(case: schemathesis.Case) -> None:
        case.call_and_validate(base_url=served.url, headers=headers, checks=CHECKS)

    answers()


def test_the_description_is_served_as_it_is(served: Served, api: httpx.Client) -> None:
    assert api.get("/openapi.json").json() == description()
    assert api.get("/docs").status_code == 200
    assert "422" not in json.dumps(description())
