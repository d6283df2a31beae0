"""Metrics without any worker's help; liveness; readiness, which says what partition does not serve, and why."""

from __future__ import annotations

import re
from pathlib import Path

import httpx

from .conftest import Serve, Served, batch, make_topic, payloads

SAMPLE = re.compile(r"^([a-z_]+)(\{[^}]*\})? (-?[0-9.]+)$")


def scrape(api: httpx.Client) -> dict[str, float]:
    """Name with labels to value; every line is checked."""
    answer = api.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
    lines = answer.text.splitlines()
    assert lines[-1] == "# EOF"
    kinds: dict[str, str] = {}
    found = {}
    for line in lines[:-1]:
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in kinds, "families must not be split"
            kinds[name] = kind
        elif not line.startswith("# HELP "):
            sample = SAMPLE.match(line)
            assert sample, line
            name = sample[1]
            family = name.removesuffix("_total") if name not in kinds else name
            assert kinds[family] == ("counter" if name.endswith("_total") else "gauge")
            found[f"{name}{sample[2] or ''}"] = float(sample[3])
    return found


def test_counters_move_with_what_happens(api: httpx.Client) -> None:
    topic = make_topic(api, durability="persisted")
    labels = f'{{stream="{topic.split("/")[2]}",topic="t",partition="0"}}'
    before = scrape(api)
    for number in range(5):
        assert api.post(f"{topic}/messages", json=batch(b"%d" % number, b"x")).status_code == 201
    after = scrape(api)
    assert after[f"shmbroker_partition_messages_total{labels}"] == 10
    assert after[f"shmbroker_partition_batches_total{labels}"] == 5
    assert after[f"shmbroker_partition_syncs_total{labels}"] >= 5
    assert after[f"shmbroker_partition_next_offset{labels}"] == 10
    assert after[f"shmbroker_partition_offsets_not_durable{labels}"] == 0
    assert after[f"shmbroker_partition_serves{labels}"] == 1
    assert after["http_requests_total"] >= before["http_requests_total"] + 6
    assert after['http_answers_total{status="201"}'] >= 5
    assert after["messages"] >= before["messages"] + 10
    assert {"streams", "topics", "partitions", "segments", "users", "clients", "workers"} <= after.keys()


def test_names_are_escaped(api: httpx.Client) -> None:
    name = 'q"uote\\and\nline'
    stream = api.post("/streams", json={"name": name}).json()["id"]
    api.post(f"/streams/{stream}/topics", json={"name": "t", "partitions_count": 1})
    text = api.get("/metrics").text
    assert 'stream="q\\"uote\\\\and\\nline"' in text
    api.delete(f"/streams/{stream}")


def test_a_scrape_is_for_who_may_look_at_the_server(served: Served, api: httpx.Client, topic: str) -> None:
    user = {"username": "scraper", "password": "its-secret"}
    assert api.post("/users", json=user).status_code == 200
    with served.client(**user) as scraper:
        assert scraper.get("/metrics").status_code == 403
        flags = {"permissions": {"global": {"read_servers": True}}}
        assert api.put("/users/scraper/permissions", json=flags).status_code == 204
        assert scrape(scraper)["messages"] >= 0
        assert api.delete("/users/scraper").status_code == 204
        assert scraper.get("/metrics").status_code == 401


def test_a_scrape_costs_the_workers_nothing(served: Served, api: httpx.Client, topic: str) -> None:
    assert api.post(f"{topic}/messages", json=batch(b"x")).status_code == 201
    with served.stopped_worker():
        assert scrape(api)["messages"] >= 1
        assert api.get("/health/ready").status_code == 200
        assert api.get("/health/live").status_code == 200


def test_a_poisoned_partition_makes_it_not_ready_and_is_named(serve: Serve, tmp_path: Path) -> None:
    switch = tmp_path / "worn-out"
    served = serve(FAIL_AT=f"sync:{1:020}*.log:{switch}:EIO")
    with served.client() as api:
        topic = make_topic(api, partitions=2, durability="persisted")
        stream = topic.split("/")[2]
        assert api.get("/health/ready").json()["status"] == "ready"
        assert api.post(f"{topic}/messages", json=batch(b"safe", partition=0)).status_code == 201
        switch.touch()
        assert api.post(f"{topic}/messages", json=batch(b"x", partition=0)).status_code == 504
        switch.unlink()
        answer = api.get("/health/ready")
        assert answer.status_code == 503
        (trouble,) = answer.json()["partitions"]
        assert trouble.keys() == {"stream", "topic", "partition", "state", "reason"}
        assert (trouble["stream"], trouble["topic"], trouble["partition"]) == (stream, "t", 0)
        assert trouble["state"] == "poisoned"
        assert "until the broker is started again" in trouble["reason"]
        assert api.get("/health/live").status_code == 200
        labels = f'{{stream="{stream}",topic="t",partition="0"}}'
        assert scrape(api)[f"shmbroker_partition_serves{labels}"] == 0
        assert api.post(f"{topic}/messages", json=batch(b"y", partition=1)).status_code == 201


def test_a_refused_partition_makes_it_not_ready_and_is_named(serve: Serve) -> None:
    served = serve()
    with served.client() as api:
        topic = make_topic(api, partitions=2, durability="persisted")
        assert api.post(f"{topic}/messages", json=batch(b"lost", partition=0)).status_code == 201
        assert api.post(f"{topic}/messages", json=batch(b"kept", partition=1)).status_code == 201
    assert served.stop() == 0
    superblock = served.data / "partitions" / f"{1:020}" / "superblock"
    superblock.write_bytes(b"\xff" * superblock.stat().st_size)
    with serve().client() as api:
        answer = api.get("/health/ready")
        assert answer.status_code == 503
        (trouble,) = answer.json()["partitions"]
        assert (trouble["partition"], trouble["state"]) == (0, "refused")
        assert "superblock" in trouble["reason"]
        refused = api.post(f"{topic}/messages", json=batch(b"x", partition=0))
        assert (refused.status_code, refused.json()["code"]) == (503, "partition_refused")
        assert api.get(f"{topic}/messages").json()["code"] == "partition_refused"
        assert payloads(api, topic, partition_id=1) == [b"kept"]
