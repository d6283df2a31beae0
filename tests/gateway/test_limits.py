"""Bodies that are too large or too slow, logins that fail too often, answers that would be too large."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import uvicorn

from shmbroker.gateway.timely import timely

from .conftest import USER, Serve, Served, batch, make_topic

LIMIT = 64 * 1024


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Bodies of 64 KiB, and a second for each request."""
    served = Served(tmp_path_factory.mktemp("narrow") / "data", HTTP_BODY_SIZE_MAX=str(LIMIT), HTTP_TIME_LIMIT="1s")
    yield served
    served.close()


def test_413_for_a_body_that_says_it_is_too_large(narrow: Served) -> None:
    with narrow.client() as api:
        answer = api.post("/streams", content=b" " * (LIMIT + 1))
        assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")
        assert answer.headers["Connection"] == "close"
        topic = make_topic(api)
        assert api.post(f"{topic}/messages", json=batch(b"x" * (LIMIT // 2))).status_code == 201
        assert api.post(f"{topic}/messages", json=batch(b"x" * LIMIT)).status_code == 413


def test_413_for_a_body_that_turns_out_to_be(narrow: Served) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(LIMIT // 1024 + 1):
            yield b" " * 1024

    with narrow.client() as api:
        topic = make_topic(api)
        for path in ("/streams", f"{topic}/messages"):
            answer = api.post(path, content=chunks(), headers={"Content-Type": "application/json"})
            assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")


def test_408_for_a_body_that_does_not_come(narrow: Served) -> None:
    with narrow.client() as api:
        authorization = api.headers["Authorization"]
    host, _, port = narrow.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as slow:
        head = f"POST /streams HTTP/1.1\r\nHost: x\r\nAuthorization: {authorization}\r\nContent-Length: 100\r\n\r\n"
        slow.sendall(head.encode() + b'{"name"')
        received = b""
        while part := slow.recv(65_536):
            received += part
    assert received.startswith(b"HTTP/1.1 408 ")
    assert b'"request_timeout"' in received


@pytest.mark.parametrize("head", [b"", b"GET /ping HTTP/1.1\r\nHost:", b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\nGET /pi"])
def test_a_connection_with_half_a_head_is_closed(narrow: Served, head: bytes) -> None:
    host, _, port = narrow.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as silent:
        silent.sendall(head)
        received = b""
        while part := silent.recv(65_536):
            received += part
    assert received.count(b"pong") == head.count(b"\r\n\r\n")


def test_400_for_a_login_that_utf_8_cannot_carry(narrow: Served) -> None:
    with httpx.Client(base_url=narrow.url) as client:
        body = b'{"username": "\\ud800", "password": "\\ud800"}'
        answer = client.post("/users/login", content=body, headers={"Content-Type": "application/json"})
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_format")


def test_a_connection_that_takes_nothing_of_its_answer_is_closed() -> None:
    async def large(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(32 * 1024 * 1024)})

    async def run() -> None:
        protocol = timely(5.0, take_s=0.2)
        server = uvicorn.Server(uvicorn.Config(large, http=protocol, ws="none", lifespan="off", log_config=None))
        server.config.load()
        state = server.server_state
        listener = await asyncio.get_running_loop().create_server(
            lambda: protocol(server.config, state, {}), "127.0.0.1", 0
        )
        _, writer = await asyncio.open_connection(*listener.sockets[0].getsockname(), limit=1024)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(20):
            while state.total_requests == 0 or state.connections:
                await asyncio.sleep(0.05)
        writer.close()
        listener.close()

    asyncio.run(run())


def test_429_where_logins_fail_too_often_and_tokens_go_on(serve: Serve) -> None:
    served = serve()
    with served.client() as api, httpx.Client(base_url=served.url) as guesser:
        for number in range(200):
            answer = guesser.post("/users/login", json={"username": USER, "password": f"guess-{number}"})
            if answer.status_code != 400:
                break
        assert answer.status_code == 429
        assert answer.headers["Retry-After"] == "1"
        assert api.get("/streams").status_code == 200
        for _ in range(30):
            wrong = guesser.get("/streams", headers={"Authorization": "Bearer guessed"})
            assert wrong.status_code == 401
        token = api.post("/personal-access-tokens", json={"name": "robot", "expiry": 0}).json()["token"]
        robot = guesser.get("/streams", headers={"Authorization": f"Bearer {token}"})
        assert robot.status_code == 200, "wrong tokens of others do not lock out the right ones"


def test_a_poll_gives_what_fits_into_one_answer_and_the_rest_later(serve: Serve) -> None:
    served = serve(HTTP_BODY_SIZE_MAX="16 MiB", HTTP_TIME_LIMIT="60s")
    with served.client() as api:
        topic = make_topic(api)
        sent = [bytes([number]) * (7 * 1024 * 1024) for number in range(3)]
        for payload in sent:
            assert api.post(f"{topic}/messages", json=batch(payload)).status_code == 201
        offsets: list[int] = []
        while len(offsets) < len(sent):
            answer = api.get(f"{topic}/messages", params={"value": len(offsets), "count": 100}).json()
            found = [message["header"]["offset"] for message in answer["messages"]]
            assert 1 <= len(found) <= 2
            offsets += found
        assert offsets == [0, 1, 2]
