"""A broker that serves TCP, the published client connected to it, and the wire by hand for what no client sends."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from apache_iggy import IggyClient

import shmbroker
from shmbroker.client.embedded import Embedded
from shmbroker.wire.connection import Answer, ClientConnection, ConnectionFault
from shmbroker.wire.frame import PROTOCOL_VERSION
from shmbroker.wire.users import Login

ROOT = {"IGGY_ROOT_USERNAME": "iggy", "IGGY_ROOT_PASSWORD": "secret"}
WAIT_S = 30.0
_CLIENT_IDS = itertools.count(1)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Embedded]:
    with shmbroker.embedded(tmp_path / "data", tcp="127.0.0.1:0", workers=1, environment=ROOT) as embedded:
        yield embedded


@pytest.fixture
def local(broker: Embedded) -> Iterator[Any]:
    with broker.connect() as client:
        yield client


Program = Callable[[IggyClient], Coroutine[Any, Any, Any]]


@pytest.fixture
def run(broker: Embedded) -> Callable[[Program], Any]:
    """Runs a coroutine function with a client that is logged in, for a bounded time."""
    return lambda program: run_program(broker, program)


def run_program(broker: Embedded, program: Program) -> Any:
    async def whole() -> Any:
        client = IggyClient(broker.tcp_address)
        await client.connect()
        await client.login_user("iggy", "secret")
        return await program(client)

    return asyncio.run(asyncio.wait_for(whole(), WAIT_S))


class RawClient:
    """The wire by hand. ``connection`` encodes what is right; ``send`` takes any bytes."""

    def __init__(self, address: str, client_id: int = 0) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), WAIT_S)
        self.connection = ClientConnection(client_id or (next(_CLIENT_IDS) << 64 | 1))

    def login(self, password: str = "secret") -> Answer:
        answer = self.ask(Login(PROTOCOL_VERSION, "test", "1", "iggy", password))
        if not answer.status:
            self.connection.session = answer.value.session
        return answer

    def ask(self, request: Any) -> Answer:
        """One request, and the answer to it."""
        self.socket.sendall(self.connection.request(request))
        return self.take()

    def take(self) -> Answer:
        """The next answer. Raises ConnectionError at the end of the connection."""
        while True:
            answer = self.connection.next_answer()
            if isinstance(answer, ConnectionFault):
                raise AssertionError(answer.fault)
            if answer is not None:
                return answer
            data = self.socket.recv(1 << 16)
            if not data:
                raise ConnectionError("the broker closed the connection")
            self.connection.feed(data)

    def is_closed(self, timeout_s: float = WAIT_S) -> bool:
        """Whether the broker ends the connection within that time."""
        self.socket.settimeout(timeout_s)
        try:
            while self.socket.recv(1 << 16):
                pass
        except TimeoutError:
            return False
        except ConnectionError:
            pass
        return True

    def close(self) -> None:
        self.socket.close()


@pytest.fixture
def raw(broker: Embedded) -> Iterator[Callable[..., RawClient]]:
    """Makes raw clients; logged in unless told otherwise."""
    made: list[RawClient] = []

    def make(*, login: bool = True) -> RawClient:
        client = RawClient(broker.tcp_address)
        made.append(client)
        if login:
            assert client.login().status == 0
        return client

    yield make
    for client in made:
        client.close()
