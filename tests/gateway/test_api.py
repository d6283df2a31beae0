"""The REST API: shapes, statuses and error bodies."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import pytest

from shmbroker.errors import ErrorCode
from shmbroker.limits import U64_MAX

from .conftest import Served, batch, make_topic, payloads

ERROR_FIELDS = {"id", "code", "reason", "field"}


def fault(answer: httpx.Response) -> tuple[int, int, str]:
    """Status, id and code of an answer that must be an error."""
    body = answer.json()
    assert body.keys() == ERROR_FIELDS
    assert body["reason"]
    return answer.status_code, body["id"], body["code"]


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


# --- without a token --------------------------------------------------------------------------------------------------
def test_what_needs_no_token(served: Served) -> None:
    with httpx.Client(base_url=served.url) as nobody:
        assert nobody.get("/ping").text == "pong"
        assert nobody.get("/health/live").json() == {"status": "live"}
        assert nobody.get("/health/ready").json() == {"status": "ready", "reason": None, "partitions": []}
        for path in ("/streams", "/users", "/stats", "/clients", "/metrics", "/options/topic"):
            assert fault(nobody.get(path)) == (401, 77, "access_token_missing")
        assert nobody.get("/streams").headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize("token", ["a.b.c", "eyJhbGciOiJub25lIn0.eyJzdWIiOiIwIn0.", "nonsense", "x" * 5000])
def test_tokens_that_are_none(served: Served, token: str) -> None:
    answer = httpx.get(f"{served.url}/streams", headers={"Authorization": f"Bearer {token}"})
    number, code = (78, "invalid_access_token") if "." in token else (53, "invalid_personal_access_token")
    assert fault(answer) == (401, number, code)


# --- logins -----------------------------------------------------------------------------------------------------------
def test_wrong_credentials_are_400_with_42(served: Served) -> None:
    answer = httpx.post(f"{served.url}/users/login", json={"username": "iggy", "password": "wrong"})
    assert fault(answer) == (400, 42, "invalid_credentials")
    answer = httpx.post(f"{served.url}/personal-access-tokens/login", json={"token": "nonsense"})
    assert fault(answer) == (401, 53, "invalid_personal_access_token")


def test_a_refreshed_token_replaces_its_predecessor(served: Served) -> None:
    with served.client() as api:
        old = api.headers["Authorization"].removeprefix("Bearer ")
        answer = api.post("/users/refresh-token", json={"token": old}).json()
        assert answer.keys() == {"user_id", "access_token"}
        assert answer["access_token"].keys() == {"token", "expiry"}
        assert fault(api.get("/streams")) == (401, 78, "invalid_access_token")
        assert fault(api.post("/users/refresh-token", json={"token": old})) == (401, 78, "invalid_access_token")
        api.headers["Authorization"] = f"Bearer {answer['access_token']['token']}"
        assert api.get("/streams").status_code == 200
        assert api.delete("/users/logout").status_code == 204
        assert fault(api.get("/streams")) == (401, 78, "invalid_access_token")


def test_personal_access_tokens(served: Served, api: httpx.Client) -> None:
    token = api.post("/personal-access-tokens", json={"name": "robot", "expiry": 60_000_000}).json()["token"]
    (entry,) = api.get("/personal-access-tokens").json()
    assert entry["name"] == "robot"
    assert entry["expiry_at"] > 0
    robot = {"Authorization": f"Bearer {token}"}
    assert httpx.get(f"{served.url}/streams", headers=robot).status_code == 200
    login = httpx.post(f"{served.url}/personal-access-tokens/login", json={"token": token})
    assert login.json()["user_id"] == 0
    again = api.post("/personal-access-tokens", json={"name": "robot", "expiry": 0})
    assert fault(again) == (400, 51, "personal_access_token_already_exists")
    assert api.delete("/personal-access-tokens/robot").status_code == 204
    assert httpx.get(f"{served.url}/streams", headers=robot).status_code == 401


def test_a_token_of_a_deleted_user_is_not_the_next_ones_with_its_id(served: Served, api: httpx.Client) -> None:
    body = {"username": "first-user", "password": "secret"}
    number = api.post("/users", json=body).json()["id"]
    with served.client("first-user", "secret") as first:
        assert first.get(f"/users/{number}").json()["username"] == "first-user"
        assert api.delete(f"/users/{number}").status_code == 204
        assert fault(first.get("/cluster/metadata")) == (401, 40, "unauthenticated")
        second = api.post("/users", json={**body, "username": "second-user"}).json()
        assert second["id"] == number, "ids are used again, or this test proves nothing"
        assert fault(first.get("/cluster/metadata")) == (401, 40, "unauthenticated")
        assert fault(first.get(f"/users/{number}")) == (401, 40, "unauthenticated")
    api.delete(f"/users/{number}")


# --- permissions ------------------------------------------------------------------------------------------------------
def test_what_a_user_may_is_asked_at_every_request(served: Served, api: httpx.Client, topic: str) -> None:
    stream = api.get(topic.rpartition("/topics")[0]).json()["id"]
    api.post("/users", json={"username": "sender", "password": "secret"})
    with served.client("sender", "secret") as sender:
        assert fault(sender.post(f"{topic}/messages", json=batch(b"x"))) == (403, 41, "unauthorized")
        assert fault(sender.get("/streams")) == (403, 41, "unauthorized")
        allowed = {"global": {}, "streams": {str(stream): {"send_messages": True}}}
        assert api.put("/users/sender/permissions", json={"permissions": allowed}).status_code == 204
        assert sender.post(f"{topic}/messages", json=batch(b"x")).status_code == 201
        assert sender.post(f"{topic}/messages", json=batch(b"y", partition=None)).status_code == 201
        assert fault(sender.get(f"{topic}/messages")) == (403, 41, "unauthorized")
        offset = {"consumer_id": "c", "partition_id": 0, "offset": 0}
        assert fault(sender.put(f"{topic}/consumer-offsets", json=offset)) == (403, 41, "unauthorized")
        assert api.put("/users/sender/permissions", json={"permissions": None}).status_code == 204
        assert fault(sender.post(f"{topic}/messages", json=batch(b"z"))) == (403, 41, "unauthorized")
        assert api.put("/users/sender", json={"status": "inactive"}).status_code == 204
        assert fault(sender.get("/cluster/metadata")) == (401, 40, "unauthenticated")
    api.delete("/users/sender")
    assert payloads(api, topic) == [b"x", b"y"]


# --- shapes -----------------------------------------------------------------------------------------------------------
def test_the_shapes_of_streams_topics_and_groups(api: httpx.Client) -> None:
    topic = make_topic(api, partitions=2, durability="persisted", segment_size="1 MiB")
    api.post(f"{topic}/messages", json=batch(b"abc"))
    found = api.get(topic).json()
    assert found.keys() == {
        "id", "created_at", "name", "size", "message_expiry", "compression_algorithm", "max_topic_size",
        "messages_count", "partitions_count", "options", "partitions",
    }  # fmt: skip
    assert (found["message_expiry"], found["max_topic_size"], found["messages_count"]) == (U64_MAX, U64_MAX, 1)
    assert found["options"]["durability"] == {"value": "persisted", "explicit": True}
    assert found["options"]["consumer_offset_durability"] == {"value": "replicated", "explicit": False}
    assert found["partitions"][0].keys() == {
        "id", "created_at", "segments_count", "current_offset", "size", "messages_count",
    }  # fmt: skip
    stream = api.get(topic.rpartition("/topics")[0]).json()
    assert stream.keys() == {
        "id", "created_at", "name", "size", "messages_count", "topics_count", "options", "topics",
    }  # fmt: skip
    assert [each["name"] for each in stream["topics"]] == ["t"]
    group = api.post(f"{topic}/consumer-groups", json={"name": "g"}).json()
    assert group == {"id": 0, "name": "g", "partitions_count": 2, "members_count": 0, "members": []}
    assert api.get(f"{topic}/consumer-groups/0").json() == group
    assert api.put(topic, json={"name": "renamed", "message_expiry": 60_000_000}).status_code == 204
    renamed = api.get(topic.removesuffix("t") + "renamed").json()
    assert renamed["message_expiry"] == 60_000_000


def test_messages_as_json(api: httpx.Client, topic: str) -> None:
    headers = [
        {"key": {"kind": "string", "value": encoded(b"page")}, "value": {"kind": "uint16", "value": encoded(b"\1\2")}}
    ]
    message = {"id": "00000000-0000-0000-0000-0000000000ff", "payload": encoded(b"\0\xff"), "user_headers": headers}
    body = {"partitioning": {"kind": "balanced", "value": ""}, "messages": [message, {"id": "12", "payload": "YQ=="}]}
    assert api.post(f"{topic}/messages", json=body).status_code == 201
    answer = api.get(f"{topic}/messages", params={"count": 10}).json()
    assert (answer["partition_id"], answer["current_offset"], answer["count"]) == (0, 1, 2)
    first, second = answer["messages"]
    assert first.keys() == {"header", "payload", "user_headers"}
    assert first["header"].keys() == {
        "checksum", "id", "offset", "timestamp", "origin_timestamp", "user_headers_length", "payload_length",
        "reserved",
    }  # fmt: skip
    assert (first["header"]["id"], second["header"]["id"]) == (255, 12)
    assert first["header"]["checksum"] > 0
    assert first["user_headers"] == headers
    assert first["payload"] == encoded(b"\0\xff")
    assert (second["header"]["offset"], second["user_headers"]) == (1, [])


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"kind": "offset", "value": 2}, [b"2", b"3", b"4"]),
        ({"kind": "offset", "value": 99}, []),
        ({"kind": "first", "count": 2}, [b"0", b"1"]),
        ({"kind": "last", "count": 2}, [b"3", b"4"]),
        ({"kind": "next"}, [b"0", b"1", b"2", b"3", b"4"]),
        ({"kind": "timestamp", "value": 1}, [b"0", b"1", b"2", b"3", b"4"]),
        ({"kind": "timestamp", "value": 2**62}, []),
        ({"kind": "first", "count": 0}, []),
    ],
)
def test_every_strategy(api: httpx.Client, topic: str, query: dict[str, Any], expected: list[bytes]) -> None:
    for number in range(5):
        api.post(f"{topic}/messages", json=batch(b"%d" % number))
    assert payloads(api, topic, **query) == expected


# --- refusals ---------------------------------------------------------------------------------------------------------
MISSING = [
    ("GET", "/streams/none", 1009, "stream_id_not_found"),
    ("GET", "/streams/{s}/topics/none", 2010, "topic_id_not_found"),
    ("GET", "{t}/consumer-groups/none", 5000, "consumer_group_id_not_found"),
    ("GET", "/clients/999999", 100, "client_not_found"),
    ("GET", "/users/none", 20, "resource_not_found"),
    ("GET", "{t}/messages?partition_id=9", 3007, "partition_not_found"),
    ("GET", "{t}/consumer-offsets?consumer_id=none", 3021, "consumer_offset_not_found"),
    ("DELETE", "{t}/consumer-offsets/none", 3021, "consumer_offset_not_found"),
    ("GET", "/no/such/path", 404, "not_found"),
]


@pytest.mark.parametrize(("method", "path", "number", "code"), MISSING)
def test_404(api: httpx.Client, topic: str, method: str, path: str, number: int, code: str) -> None:
    answer = api.request(method, path.format(t=topic, s=topic.split("/")[2]))
    assert fault(answer) == (404, number, code)


def test_produced_to_what_is_not_there(api: httpx.Client, topic: str) -> None:
    assert fault(api.post(f"{topic}/messages", json=batch(b"x", partition=7)))[:2] == (404, 3007)
    assert fault(api.post(f"{topic}x/messages", json=batch(b"x", partition=None)))[0] == 404
    assert fault(api.post("/streams/none/topics/none/messages", json=batch(b"x")))[0] == 404
    empty = make_topic(api, partitions=0)
    assert fault(api.post(f"{empty}/messages", json=batch(b"x", partition=None)))[:2] == (404, 3007)


REFUSED = [
    ("POST", "/streams", {"name": "taken"}, ErrorCode.STREAM_NAME_ALREADY_EXISTS),
    ("POST", "/streams", {"name": "x" * 256}, None),
    ("POST", "/users", {"username": "iggy", "password": "secret"}, ErrorCode.USER_ALREADY_EXISTS),
    ("POST", "/users", {"username": "ab", "password": "secret"}, ErrorCode.INVALID_USERNAME),
    ("POST", "/users", {"username": "abc", "password": "x"}, ErrorCode.INVALID_PASSWORD),
    ("DELETE", "/users/0", None, ErrorCode.CANNOT_DELETE_USER),
    ("PUT", "/users/0/permissions", {"permissions": None}, ErrorCode.CANNOT_CHANGE_PERMISSIONS),
    ("POST", "/personal-access-tokens", {"name": "x", "expiry": 0}, ErrorCode.INVALID_TOKEN_NAME),
    ("POST", "{s}/topics", {"name": "t", "partitions_count": 1}, ErrorCode.TOPIC_NAME_ALREADY_EXISTS),
    ("POST", "{s}/topics", {"name": "o", "partitions_count": 1, "options": {"enforce_fsync": "true"}}, 4041),
    ("POST", "{s}/topics", {"name": "o", "partitions_count": 1, "options": {"durability": "PERSISTED"}}, 4042),
    ("PUT", "{t}", {"name": "t", "options": {"durability": "persisted"}}, ErrorCode.UNSUPPORTED_OPTION_KEY),
    ("POST", "{t}/consumer-groups", {"name": "taken"}, ErrorCode.GROUP_NAME_ALREADY_EXISTS),
    ("PUT", "{t}/consumer-offsets", {"consumer_id": "c", "offset": 5}, ErrorCode.INVALID_OFFSET),
    ("POST", "{t}/messages", {"messages": [{"payload": ""}]}, 400),
    ("POST", "{t}/messages", {"messages": []}, 400),
    ("POST", "{t}/messages", {"messages": [{"payload": "YQ=="}], "more": 1}, 400),
    ("POST", "{t}/messages", {"messages": [{"payload": "no base64"}]}, 400),
    ("POST", "{t}/messages", {"messages": [{"payload": "YQ==", "id": "x"}]}, 400),
    ("POST", "{t}/messages", {"messages": [{"payload": "YQ=="}], "partitioning": {"kind": "partition_id"}}, 4),
    ("POST", "{t}/messages", {"messages": [{"payload": "YQ=="}], "partitioning": {"kind": "messages_key"}}, 4028),
    ("GET", "{t}/messages?kind=middle", None, 400),
    ("GET", "{t}/messages?partition_id=-1", None, 400),
    ("DELETE", "{t}/partitions", None, 400),
    ("POST", "/streams", {"nom": "x"}, 400),
    ("POST", "/streams", {"name": 7}, 400),
]


@pytest.mark.parametrize(("method", "path", "body", "number"), REFUSED)
def test_400(
    api: httpx.Client, topic: str, method: str, path: str, body: dict[str, Any] | None, number: int | None
) -> None:
    api.post("/streams", json={"name": "taken"})
    api.post(f"{topic}/consumer-groups", json={"name": "taken"})
    answer = api.request(method, path.format(t=topic, s=topic.rpartition("/topics")[0]), json=body)
    status, found, _ = fault(answer)
    assert status == 400, answer.text
    assert number in (None, found), answer.text


def test_the_key_of_a_bad_option_is_in_the_text_and_the_field_of_a_bad_body_in_its_place(api: httpx.Client) -> None:
    stream = make_topic(api).rpartition("/topics")[0]
    body = {"name": "x", "partitions_count": 1, "options": {"enforce_fsync": "true"}}
    assert "enforce_fsync" in api.post(f"{stream}/topics", json=body).json()["reason"]
    assert api.post("/streams", json={}).json()["field"] == "name"


def test_a_method_that_a_path_does_not_have(api: httpx.Client) -> None:
    assert fault(api.put("/streams", json={})) == (405, 405, "method_not_allowed")
    assert fault(api.post("/streams", content=b"{", headers={"Content-Type": "application/json"}))[0] == 400
