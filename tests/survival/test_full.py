"""Full file systems, and ones that may only be read: a named error for who asks, nothing lost, and it goes on after.

File systems of this size have to be mounted, so most of these need root. What a full ``/dev/shm`` does is tried in a
mount namespace of its own, where another, small one is mounted in its place: the program below runs in it.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import shmbroker
from shmbroker.errors import DiskFull, JournalFull, NotAccepted, ShmbrokerError, Unavailable
from shmbroker.front.places import default_runtime
from tests.processes.conftest import WAIT_S, BrokerProcess, Start

from .load import Load, check, read_log
from .raw import ROOT

DISK_SIZE_MIB = 48
BALLAST_SIZE_MIB = 24
POLICIES = ("replicated", "persisted")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")


def run(*words: str | Path) -> None:
    subprocess.run([str(word) for word in words], check=True, capture_output=True)


def mount(kind: str, size_mib: int, image: Path, directory: Path) -> None:
    """A small file system of its own at ``directory``. Skips where this root may not."""
    directory.mkdir()
    try:
        if kind == "tmpfs":
            run("mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs", directory)
        else:
            with image.open("wb") as file:
                file.truncate(size_mib << 20)
            run("mkfs.ext4", "-q", "-m", "0", image)
            run("mount", "-o", "loop", image, directory)
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        pytest.skip(f"this root may not mount {kind}: {error}")


@pytest.fixture(params=["tmpfs", "ext4"])
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """``data`` is a directory of a file system of DISK_SIZE_MIB."""
    directory = tmp_path / "small"
    mount(request.param, DISK_SIZE_MIB, tmp_path / "image", directory)
    try:
        yield directory
    finally:
        run("umount", "-l", directory)


@pytest.fixture
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """On the small disk, for tests that have one."""
    return (tmp_path / "small" if "small_disk" in request.fixturenames else tmp_path) / "data"


def fill(path: Path, size: int) -> None:
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)


def fill_up(path: Path) -> None:
    """To the last page that there is."""
    with path.open("wb") as file:
        for step in (1 << 20, 1 << 12):
            with suppress(OSError):
                while True:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, step)
    assert os.statvfs(path).f_bavail < 64


@pytest.mark.root
@needs_root
def test_a_full_disk_refuses_producers_by_name_and_nothing_else(
    small_disk: Path, start: Start, rng: random.Random
) -> None:
    """Both policies, to the last byte; then a stop and a start on the full disk; then space."""
    fill(small_disk / "ballast", BALLAST_SIZE_MIB << 20)
    broker = start().ready()
    with broker.connect() as client:
        client.create_stream("s")
        for topic in POLICIES:
            client.create_topic("s", topic, durability=topic)
        loads = {
            topic: [Load(broker.connect, topic, rng, name=name, size_max=20_000).start() for name in range(2)]
            for topic in POLICIES
        }
        everybody = [load for each in loads.values() for load in each]
        for load in everybody:
            assert isinstance(load.join().error, DiskFull), load.error
        with client.consumer("s", "persisted", partition=0, name="reader", first=True) as consumer:
            consumer.poll(timeout=WAIT_S)
            with suppress(DiskFull):  # Its file may have to be made.
                consumer.commit()
        for topic in POLICIES:
            check(read_log(client, topic), loads[topic])
            assert dict(read_log(client, topic)) == {
                offset: payload for load in loads[topic] for offset, payload in load.acknowledged.items()
            }, "a batch that was refused is not there"
    assert broker.stop() == 0, broker.said()
    broker = start().ready()
    with broker.connect() as client:
        for topic in POLICIES:
            check(read_log(client, topic), loads[topic])
        (small_disk / "ballast").unlink()
        again = {topic: Load(broker.connect, topic, rng, name=2).start().await_acknowledged(50) for topic in POLICIES}
        for topic in POLICIES:
            assert again[topic].stop().error is None
            check(read_log(client, topic), [*loads[topic], again[topic]])
            assert not [each for each in client.stats()["partitions"] if each["state"] != "open"]
    assert broker.stop() == 0, broker.said()


@pytest.mark.root
@needs_root
def test_space_that_comes_back_is_used_without_a_restart(small_disk: Path, start: Start, rng: random.Random) -> None:
    """And what was refused may simply be sent again."""
    broker = start().ready()
    with broker.connect() as client:
        client.create_stream("s")
        for topic in POLICIES:
            client.create_topic("s", topic, durability=topic)
        for topic in POLICIES:
            with client.producer("s", topic) as producer:
                sent = [rng.randbytes(1 << 19)]
                producer.send(sent, partition=0)
                fill_up(small_disk / "ballast")
                refused = 0
                for _ in range(20):
                    sent.append(rng.randbytes(1 << 19))
                    try:
                        producer.send([sent[-1]], partition=0)
                    except DiskFull as error:
                        print(error)
                        refused += 1
                        (small_disk / "ballast").unlink(missing_ok=True)
                        producer.send([sent[-1]], partition=0)
                assert refused == 1, "it was full, once"
            assert [payload for _, payload in read_log(client, topic)] == sent
    assert broker.stop() == 0


@pytest.mark.root
@needs_root
def test_a_full_disk_refuses_new_topics_and_keeps_the_old(small_disk: Path, start: Start) -> None:
    broker = start().ready()
    with broker.connect() as client:
        client.create_stream("s")
        client.create_topic("s", "old", durability="persisted")
        with client.producer("s", "old") as producer:
            producer.send([b"before"], partition=0)
            fill_up(small_disk / "ballast")
            refusal = None
            for number in range(2000):
                try:
                    client.create_topic("s", f"new{number}", partitions=10)
                except ShmbrokerError as error:
                    refusal = error
                    break
            assert isinstance(refusal, NotAccepted), repr(refusal)
            assert producer.send([b"after"], partition=0).base_offset == 1, "there is room in what was allocated"
        assert read_log(client, "old") == [(0, b"before"), (1, b"after")]
        (small_disk / "ballast").unlink()
        client.create_topic("s", "now")
    assert broker.stop() == 0
    broker = start().ready()
    with broker.connect() as client:
        assert read_log(client, "old") == [(0, b"before"), (1, b"after")]
        assert client.get_topic("s", "now").partition_count == 1
    assert broker.stop() == 0


# --- shared memory ----------------------------------------------------------------------------------------------------


def in_small_shared_memory(what: str, data: Path, size_mib: int) -> subprocess.CompletedProcess[str]:
    """Runs one of PROGRAMS where /dev/shm has ``size_mib``. Skips where that cannot be had."""
    line = f'mount -t tmpfs -o size={size_mib}m tmpfs /dev/shm && exec "$@"'
    mounted = subprocess.run(["unshare", "-m", "sh", "-c", line, "sh", "true"], check=False, capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no mount namespace of one's own here: {mounted.stderr!r}")
    return subprocess.run(
        ["unshare", "-m", "sh", "-c", line, "sh", sys.executable, "-m", "tests.survival.test_full", what, str(data)],
        cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip


@pytest.mark.root
@needs_root
def test_rule_10_too_little_shared_memory_is_a_named_error_at_the_start(tmp_path: Path) -> None:
    done = in_small_shared_memory("start", tmp_path / "data", 1)
    assert done.returncode == 3, done.stderr
    assert "too small" in done.stdout
    assert "/dev/shm" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.root
@needs_root
def test_rule_10_shared_memory_that_fills_up_refuses_by_name_and_recovers(tmp_path: Path) -> None:
    done = in_small_shared_memory("fill", tmp_path / "data", 32)
    assert done.returncode == 0, done.stdout + done.stderr


def start_there(data: str) -> int:
    try:
        shmbroker.embedded(data, workers=1).start()
    except Unavailable as error:
        print(error)
        return 3
    return 0


def fill_there(data: str) -> int:
    """A stranger fills /dev/shm while the broker runs."""
    ballast = Path("/dev/shm/ballast")
    with shmbroker.embedded(data, workers=1) as broker, broker.connect() as client:
        client.create_stream("s")
        client.create_topic("s", "old")
        client.create_topic("s", "new", durability="persisted")
        with client.producer("s", "old") as old, client.producer("s", "new") as new:
            old.send([b"before"], partition=0)
            fill_up(ballast)
            try:
                new.send([b"refused"], partition=0)
            except JournalFull as error:
                print(error)
            else:
                raise AssertionError("there was no memory for a ring")
            for number in range(3000):  # More than its ring holds: it goes to the disk earlier, and goes on.
                old.send([b"%d" % number + bytes(1000)], partition=0)
            try:
                client.create_topic("s", "third")
            except NotAccepted as error:
                print("a new topic:", error)
            ballast.unlink()
            assert new.send([b"accepted"], partition=0).base_offset == 0
        assert read_log(client, "new") == [(0, b"accepted")]
        assert len(read_log(client, "old")) == 3001
    return 0


# --- directories that may only be read --------------------------------------------------------------------------------


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A file system that is mounted again read-only by ``seal``."""
    directory = tmp_path / "sealed"
    mount("tmpfs", 32, tmp_path, directory)
    try:
        yield directory
    finally:
        run("umount", "-l", directory)


def refused(data: Path) -> str:
    """What a broker says that does not start there."""
    broker = BrokerProcess(data)
    try:
        assert broker.wait() == 1
        assert not broker.is_ready()
        assert "Traceback" not in broker.said()
        assert not os.path.exists(default_runtime(str(data))), "no shared memory was made for it"
        return broker.said()
    finally:
        broker.close()


@pytest.mark.root
@needs_root
@pytest.mark.parametrize("used", [False, True], ids=["new", "used"])
def test_a_read_only_directory_is_a_named_error(read_only: Path, used: bool) -> None:
    data = read_only / "data"
    if used:
        with shmbroker.embedded(data) as broker, broker.connect() as client:
            client.create_stream("s")
            client.create_topic("s", "t")
            with client.producer("s", "t") as producer:
                producer.send([b"kept"], partition=0)
    run("mount", "-o", "remount,ro", read_only)
    said = refused(data)
    assert str(data) in said
    assert "Read-only file system" in said
    served = subprocess.run(
        [sys.executable, "-m", "shmbroker.cli.main", "serve", "--data", str(data)],
        capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert served.returncode == 1
    assert "Read-only file system" in served.stdout + served.stderr
    assert "Traceback" not in served.stdout + served.stderr
    run("mount", "-o", "remount,rw", read_only)
    if used:
        with shmbroker.embedded(data) as broker, broker.connect() as client:
            assert read_log(client, "t") == [(0, b"kept")]


PROGRAMS = {"start": start_there, "fill": fill_there}

if __name__ == "__main__":
    sys.exit(PROGRAMS[sys.argv[1]](sys.argv[2]))
