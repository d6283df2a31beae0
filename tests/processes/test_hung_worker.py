"""A worker that hangs: nobody waits for it without bound, the catalog stays right, and the stop can be cut short."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from shmbroker.errors import OutcomeUnknown

from .conftest import WAIT_S, BrokerProcess, Start

IMPATIENT = (
    "import sys, shmbroker.front.main as main, shmbroker.front.worker_link as link\n"
    "link.CONTROL_WAIT_S = main.WAITED_S = 0.5\n"
    "sys.exit(main.main())"
)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, start: Start) -> BrokerProcess:
    """A broker of one worker that gives up after half a second, so that the test need not wait as long as users do."""
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} -c "$IMPATIENT" "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("IMPATIENT", IMPATIENT)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", str(script))
        broker = start("--workers=1")
    return broker.ready()


def said_in_time(broker: BrokerProcess, text: str) -> bool:
    deadline = time.monotonic() + WAIT_S
    while text not in broker.said():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_the_catalog_stays_right_while_a_worker_hangs(impatient: BrokerProcess, data: Path) -> None:
    (worker,) = impatient.workers()
    with impatient.connect() as client:
        client.create_stream("s")
        for name in ("kept", "purged", "deleted"):
            client.create_topic("s", name)
        with client.producer("s", "purged") as producer:
            producer.send([b"old"])
        os.kill(worker, signal.SIGSTOP)
        for call in (lambda: client.create_topic("s", "created"), lambda: client.purge_topic("s", "purged")):
            with pytest.raises(OutcomeUnknown, match=r"worker 0 .*unknown"):
                call()
        client.delete_topic("s", "deleted")
        assert {topic.name for topic in client.list_topics("s")} == {"kept", "purged"}
        os.kill(worker, signal.SIGCONT)
        client.create_topic("s", "created")
        with client.producer("s", "purged") as producer:
            producer.send([b"new"])
        with client.consumer("s", "purged", partition=0, first=True) as consumer:
            got = [payload for batch in consumer.poll(timeout=WAIT_S) for payload in batch.payloads()]
        assert got == [b"new"], "the purge that came late is known, and readers find the new incarnation"
        deadline = time.monotonic() + WAIT_S
        while len(list((data / "partitions").iterdir())) != 3 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert len(list((data / "partitions").iterdir())) == 3, "what was deleted or never created is gone"
    assert impatient.stop() == 0, impatient.said()


def test_a_second_signal_cuts_the_stop_short(impatient: BrokerProcess) -> None:
    (worker,) = impatient.workers()
    os.kill(worker, signal.SIGSTOP)
    impatient.process.send_signal(signal.SIGTERM)
    assert said_in_time(impatient, f"still waiting for worker 0 (process {worker})"), impatient.said()
    impatient.process.send_signal(signal.SIGINT)
    assert impatient.wait() == 1
    said = impatient.said()
    assert f"killing worker 0 (process {worker})" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("variable", ["SHMBROKER_FAIL_AT", "SHMBROKER_CRASH_AT"])
def test_an_unknown_fault_to_play_is_refused_by_name(start: Start, variable: str) -> None:
    broker = start(environment={variable: "foo"})
    assert broker.wait() == 1
    said = broker.said()
    assert said.startswith(f"shmbroker: {variable}: 'foo' is not")
    assert len(said.strip().splitlines()) == 1, said
