"""The gateway as a process: supervised, orphaned, stopped, without its packages, behind TLS, with CORS."""

from __future__ import annotations

import datetime
import ipaddress
import os
import signal
import socket
import ssl
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from shmbroker.front.places import default_runtime
from tests.conftest import Eventually
from tests.processes.conftest import is_alive

from .conftest import Serve, Served, batch, make_topic, payloads

WAIT_S = 60


def answers(served: Served) -> bool:
    try:
        return httpx.get(f"{served.url}/ping", timeout=1).text == "pong"
    except httpx.TransportError:
        return False


def test_a_gateway_that_dies_is_started_again_at_the_same_address_and_the_broker_goes_on(
    serve: Serve, eventually: Eventually
) -> None:
    served = serve()
    with served.client() as api:
        topic = make_topic(api)
        assert api.post(f"{topic}/messages", json=batch(b"before")).status_code == 201
    worker, first = served.child("partition"), served.child("http")
    os.kill(first, signal.SIGKILL)
    eventually(lambda: served.child("http") not in (0, first), "another gateway")
    eventually(lambda: answers(served), "its first answer")
    with served.client() as api:
        assert api.post(f"{topic}/messages", json=batch(b"after")).status_code == 201
        assert payloads(api, topic) == [b"before", b"after"]
    assert served.child("partition") == worker
    assert "the HTTP gateway has died (status -9)" in served.said()
    assert served.stop() == 0


def test_access_tokens_end_with_the_gateway(serve: Serve, eventually: Eventually) -> None:
    served = serve()
    with served.client() as api:
        os.kill(served.child("http"), signal.SIGKILL)
        eventually(lambda: answers(served), "another gateway")
        assert api.get("/streams").json()["code"] == "invalid_access_token"


def test_no_gateway_outlives_its_broker(serve: Serve, eventually: Eventually) -> None:
    served = serve()
    gateway = served.child("http")
    served.process.kill()
    served.process.wait(WAIT_S)
    eventually(lambda: not is_alive(gateway), "the end of the gateway")
    assert not answers(served)


def test_a_request_under_way_is_answered_when_the_broker_stops(serve: Serve, eventually: Eventually) -> None:
    served = serve()
    with served.client() as api, ThreadPoolExecutor(1) as thread:
        topic = make_topic(api, durability="persisted")
        assert api.post(f"{topic}/messages", json=batch(b"x")).status_code == 201
        with served.stopped_worker():
            late = thread.submit(lambda: api.post(f"{topic}/messages", json=batch(b"under way")))
            eventually(lambda: "http_writes_under_way 1\n" in api.get("/metrics").text, "the request")
            served.process.send_signal(signal.SIGTERM)
            eventually(lambda: not answers(served), "the end of new requests")
        assert late.result().status_code == 201
    assert served.process.wait(WAIT_S) == 0
    with serve().client() as api:
        assert payloads(api, topic) == [b"x", b"under way"]


def test_no_secret_is_in_what_the_processes_say_or_show(serve: Serve) -> None:
    served = serve()
    with served.client() as api:
        token = api.post("/personal-access-tokens", json={"name": "robot", "expiry": 0}).json()["token"]
        access = api.headers["Authorization"].removeprefix("Bearer ")
        httpx.get(f"{served.url}/streams", headers={"Authorization": f"Bearer {token}"})
        httpx.post(f"{served.url}/users/login", json={"username": "iggy", "password": "guessed-secret"})
    gateway = Path(f"/proc/{served.child('http')}")
    shown = (gateway / "cmdline").read_bytes() + (gateway / "environ").read_bytes()
    assert served.stop() == 0
    for secret in (token, access, "root-secret", "guessed-secret"):
        assert secret not in served.said()
        assert secret.encode() not in shown


def test_without_the_packages_the_broker_does_not_start_and_says_how_to_install_them(tmp_path: Path) -> None:
    program = (
        "import importlib.util as util, sys\n"
        "find = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'fastapi' else find(name, *rest)\n"
        "from shmbroker.front.main import main\n"
        "sys.exit(main([f'--data={sys.argv[1]}', '--http=127.0.0.1:0', '--workers=1']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "data"], capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 1
    assert "fastapi" in done.stderr
    assert "pip install 'shmbroker[http]'" in done.stderr


def test_an_address_that_is_taken_is_named(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "shmbroker.front", f"--data={data}", f"--http=127.0.0.1:{port}"],
            capture_output=True, text=True, timeout=WAIT_S, check=False,
        )  # fmt: skip
    assert not Path(default_runtime(str(data))).exists(), "a start that failed leaves nothing"
    assert done.returncode == 1
    assert f"http.address 127.0.0.1:{port}: cannot listen there: Address already in use" in done.stderr


# --- TLS and CORS -----------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Of 127.0.0.1, its own authority; and its key."""
    directory = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = directory / "certificate.pem", directory / "key.pem"
    paths[0].write_bytes(built.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return paths


def test_tls_alone_where_there_is_a_certificate(serve: Serve, certificate: tuple[Path, Path]) -> None:
    path, key = certificate
    served = serve(HTTP_CERTIFICATE=str(path), HTTP_PRIVATE_KEY=str(key))
    with served.client(verify=ssl.create_default_context(cafile=str(path))) as api:
        topic = make_topic(api)
        assert api.post(f"{topic}/messages", json=batch(b"x")).status_code == 201
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://{served.address}/ping")
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(f"https://{served.address}/ping")


def test_cors_is_off_unless_origins_are_set(served: Served, serve: Serve) -> None:
    asked = {"Origin": "https://a.example", "Access-Control-Request-Method": "GET"}
    assert not [name for name in httpx.get(f"{served.url}/ping", headers=asked).headers if "access-control" in name]
    assert httpx.options(f"{served.url}/streams", headers=asked).status_code == 405
    other = serve(HTTP_ORIGINS="https://a.example")
    answer = httpx.options(f"{other.url}/streams", headers=asked)
    assert answer.headers["Access-Control-Allow-Origin"] == "https://a.example"
    refused = httpx.options(f"{other.url}/streams", headers={**asked, "Origin": "https://b.example"})
    assert "Access-Control-Allow-Origin" not in refused.headers
