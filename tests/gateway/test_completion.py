"""Which answer proves what: each row of the completion table, with workers that stop, die and fail."""

from __future__ import annotations

import itertools
import os
import signal
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import httpx
import pytest

from shmbroker.limits import HTTP_WRITES_PER_USER_MAX
from tests.conftest import Eventually

from .conftest import Serve, Served, batch, make_topic, payloads

POLICIES = ["replicated", "persisted"]


# --- what proves completion -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("query", [{}, {"ack": "replicated"}])
def test_201_names_the_policy_of_the_topic_whatever_the_query_says(
    api: httpx.Client, policy: str, query: dict[str, str]
) -> None:
    topic = make_topic(api, durability=policy)
    answer = api.post(f"{topic}/messages", params=query, json=batch(b"one", b"two"))
    assert answer.status_code == 201
    assert answer.headers["Iggy-Durability"] == policy
    (confirmation,) = answer.json()["confirmations"]
    assert confirmation.keys() == {"stream_id", "topic_id", "partition_id", "base_offset"}
    assert confirmation["base_offset"] == 0
    assert payloads(api, topic) == [b"one", b"two"]
    again = api.post(f"{topic}/messages", params=query, json=batch(b"three"))
    assert again.json()["confirmations"][0]["base_offset"] == 2


@pytest.mark.parametrize("policy", POLICIES)
def test_what_was_answered_201_survives_the_death_of_every_process(serve: Serve, policy: str) -> None:
    served = serve()
    with served.client() as api:
        topic = make_topic(api, durability=policy)
        sent = [f"{number}".encode() for number in range(20)]
        for payload in sent:
            assert api.post(f"{topic}/messages", json=batch(payload)).status_code == 201
        worker = served.child("partition")
        served.process.send_signal(signal.SIGKILL)
        os.kill(worker, signal.SIGKILL)
    served.process.wait(60)
    with serve().client() as api:
        assert payloads(api, topic) == sent


@pytest.mark.parametrize("policy", POLICIES)
def test_ack_none_is_202_and_says_nothing(api: httpx.Client, eventually: Eventually, policy: str) -> None:
    topic = make_topic(api, durability=policy)
    answer = api.post(f"{topic}/messages", params={"ack": "none"}, json=batch(b"x"))
    assert (answer.status_code, answer.headers["Iggy-Durability"], answer.content) == (202, "none", b"")
    eventually(lambda: payloads(api, topic) == [b"x"], "the message that was dispatched")


def test_ack_none_does_not_wait_for_the_worker(served: Served, api: httpx.Client, topic: str) -> None:
    assert api.post(f"{topic}/messages", json=batch(b"opens the lane")).status_code == 201
    with served.stopped_worker():
        answer = api.post(f"{topic}/messages", params={"ack": "none"}, json=batch(b"x"))
        assert answer.status_code == 202


@pytest.mark.parametrize("ack", ["persisted", "all", "", "NONE", "1"])
def test_any_other_ack_is_400_and_dispatches_nothing(api: httpx.Client, topic: str, ack: str) -> None:
    answer = api.post(f"{topic}/messages", params={"ack": ack}, json=batch(b"never"))
    assert answer.status_code == 400
    assert answer.json()["field"] == "ack"
    assert api.post(f"{topic}/messages", json=batch(b"first")).json()["confirmations"][0]["base_offset"] == 0


# --- unknown ----------------------------------------------------------------------------------------------------------
def test_504_where_no_confirmation_comes_in_time_and_it_may_be_done_yet(
    served: Served, api: httpx.Client, topic: str, eventually: Eventually
) -> None:
    assert api.post(f"{topic}/messages", json=batch(b"opens the lane")).status_code == 201
    with served.stopped_worker():
        answer = api.post(f"{topic}/messages", json=batch(b"late"))
        assert answer.status_code == 504
        assert answer.json()["code"] == "produce_timeout"
        assert "Iggy-Durability" not in answer.headers
    eventually(lambda: payloads(api, topic) == [b"opens the lane", b"late"], "what had no answer in time")


def test_504_where_the_worker_died_with_the_request_under_way(serve: Serve) -> None:
    served = serve(CRASH_AT="after-append:3")
    with served.client() as api:
        topic = make_topic(api)
        statuses = [api.post(f"{topic}/messages", json=batch(b"%d" % number)).status_code for number in range(4)]
        assert statuses == [201, 201, 504, 201]
        assert payloads(api, topic) in ([b"0", b"1", b"2", b"3"], [b"0", b"1", b"3"])


def test_504_for_the_batch_whose_sync_failed_and_503_for_those_after_it(serve: Serve, tmp_path: Path) -> None:
    switch = tmp_path / "worn-out"
    served = serve(FAIL_AT=f"sync:{1:020}*.log:{switch}:EIO")
    with served.client() as api:
        topic = make_topic(api, durability="persisted")
        assert api.post(f"{topic}/messages", json=batch(b"safe")).status_code == 201
        switch.touch()
        failed = api.post(f"{topic}/messages", json=batch(b"who knows"))
        assert (failed.status_code, failed.json()["code"]) == (504, "produce_timeout")
        later = api.post(f"{topic}/messages", json=batch(b"not accepted"))
        assert (later.status_code, later.json()["code"]) == (503, "partition_poisoned")
        assert later.headers["Retry-After"] == "1"
        assert payloads(api, topic) == [b"safe"]
        switch.unlink()


def test_504_where_storing_an_offset_is_not_answered_in_time(served: Served, api: httpx.Client, topic: str) -> None:
    assert api.post(f"{topic}/messages", json=batch(b"x")).status_code == 201
    body = {"consumer_id": "c", "partition_id": 0, "offset": 0}
    assert api.put(f"{topic}/consumer-offsets", json=body).status_code == 204
    with served.stopped_worker():
        answer = api.put(f"{topic}/consumer-offsets", json=body)
        assert (answer.status_code, answer.json()["code"]) == (504, "offset_write_timeout")


# --- not accepted -----------------------------------------------------------------------------------------------------
def test_503_where_the_disk_is_full_and_nothing_was_accepted(serve: Serve, tmp_path: Path) -> None:
    switch = tmp_path / "full"
    served = serve(FAIL_AT=f"allocate:{1:020}:{switch}:ENOSPC")
    with served.client() as api:
        topic = make_topic(api)
        switch.touch()
        answer = api.post(f"{topic}/messages", json=batch(b"refused"))
        assert (answer.status_code, answer.json()["code"]) == (503, "disk_full")
        assert answer.headers["Retry-After"] == "1"
        switch.unlink()
        assert api.post(f"{topic}/messages", json=batch(b"accepted")).status_code == 201
        assert payloads(api, topic) == [b"accepted"]


def test_429_beyond_so_many_writes_of_one_user_and_none_of_those_was_accepted(serve: Serve) -> None:
    served = serve(HTTP_TIME_LIMIT="60s")
    surplus = 8
    bounds = httpx.Limits(max_connections=None)
    with served.client(limits=bounds) as api, ThreadPoolExecutor(HTTP_WRITES_PER_USER_MAX + surplus) as threads:
        topic = make_topic(api)
        assert api.post(f"{topic}/messages", json=batch(b"opens the lane")).status_code == 201

        def send(number: int) -> httpx.Response:
            return api.post(f"{topic}/messages", json=batch(b"%d" % number))

        with served.stopped_worker():
            sent = [threads.submit(send, number) for number in range(HTTP_WRITES_PER_USER_MAX + surplus)]
            refused = [future.result() for future in itertools.islice(as_completed(sent, timeout=60), surplus)]
            assert [answer.status_code for answer in refused] == [429] * surplus
            assert all(answer.headers["Retry-After"] == "1" for answer in refused)
        statuses = sorted(future.result().status_code for future in sent)
        assert statuses == [201] * HTTP_WRITES_PER_USER_MAX + [429] * surplus
        assert len(payloads(api, topic)) == 1 + HTTP_WRITES_PER_USER_MAX, "exactly those that were not refused"


# --- offsets ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("policy", POLICIES)
def test_204_for_an_offset_that_is_stored(api: httpx.Client, policy: str) -> None:
    topic = make_topic(api, consumer_offset_durability=policy)
    api.post(f"{topic}/messages", json=batch(b"a", b"b", b"c"))
    body = {"consumer_id": "worker", "partition_id": 0, "offset": 1}
    stored = api.put(f"{topic}/consumer-offsets", json=body)
    assert (stored.status_code, stored.content) == (204, b"")
    found = api.get(f"{topic}/consumer-offsets", params={"consumer_id": "worker"}).json()
    assert found == {"partition_id": 0, "current_offset": 2, "stored_offset": 1}
    assert payloads(api, topic, kind="next", consumer_id="worker") == [b"c"]
    assert api.delete(f"{topic}/consumer-offsets/worker").status_code == 204
    gone = api.get(f"{topic}/consumer-offsets", params={"consumer_id": "worker"})
    assert (gone.status_code, gone.json()["id"]) == (404, 3021)


def test_a_poll_that_commits_proves_delivery_and_stores_behind_it(
    api: httpx.Client, topic: str, eventually: Eventually
) -> None:
    api.post(f"{topic}/messages", json=batch(b"a", b"b", b"c"))
    query = {"kind": "next", "consumer_id": "7", "count": 2, "auto_commit": True}
    answer = api.get(f"{topic}/messages", params=query).json()
    assert [message["header"]["offset"] for message in answer["messages"]] == [0, 1]
    eventually(
        lambda: api.get(f"{topic}/consumer-offsets", params={"consumer_id": 7}).json().get("stored_offset") == 1,
        "the offset behind the poll",
    )
    assert payloads(api, topic, kind="next", consumer_id="7") == [b"c"]
