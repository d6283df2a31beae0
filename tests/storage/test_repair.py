"""Verify finds what is wrong with the files of a stopped broker, and repair makes them start again, naming the loss."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shmbroker.errors import ClientMistake, Corrupt, Unavailable
from shmbroker.formats.offsets import KEY_CONSUMER, number_key
from shmbroker.formats.segment import GAP_REPAIR, index_name, log_name, pack_page, unpack_header, unpack_seal
from shmbroker.limits import PAGE_SIZE
from shmbroker.storage.dump import dump
from shmbroker.storage.inspect import PartitionReport, Severity, verify
from shmbroker.storage.partition_log import LogOptions
from shmbroker.storage.repair import Plan, repair
from tests.storage.test_reader_follows_log import Host, read_all

CONSUMER = number_key(KEY_CONSUMER, 9)


class Stopped(Host):
    """A broker's data directory with one partition of several segments, cleanly stopped, then harmed."""

    def __init__(self, path: Path, rng: random.Random) -> None:
        super().__init__(path, persisted=True)
        self.data = path / "data"
        (self.data / "runtime").write_text(str(path / "runtime"))
        (self.data / "broker.lock").touch()
        for number in range(40):
            self.append([rng.randbytes(rng.randint(500, 2000)) for _ in range(5)])
            assert self.log.flush(sync=True) == 0
            self.log.publish()
            if number % 10 == 5:
                assert self.log.offsets.store(CONSUMER, number, self.now_us, automatic=False, end_offset=10_000) == 0
                for call in self.log.offsets.prepare_flush(True):
                    call()
                self.log.offsets.finish_flush(None)
        self.bases = [info.base_offset for info in self.log.segments.infos]
        self.files = Path(self.log.segments.directory)
        assert len(self.bases) >= 4

    def stop_cleanly(self) -> None:
        self.log.close(self.now_us)
        self.executor.shutdown()

    def log_file(self, number: int) -> Path:
        return self.files / log_name(self.bases[number])

    def verify(self) -> PartitionReport:
        [report] = verify(self.disk, str(self.data))
        return report

    def repair(self, *, yes: bool) -> list[Plan]:
        return repair(self.disk, str(self.data), yes=yes)

    def start(self) -> list[tuple[int, bytes]]:
        """Opens the log again, appends to it, and gives everything that can be read."""
        from concurrent.futures import ThreadPoolExecutor

        self.executor = ThreadPoolExecutor(1)
        self.options = LogOptions(persisted=True, segment_size=64 * 1024)
        self.open()
        self.append([b"after"])
        assert self.log.flush(sync=True) == 0
        found = read_all(self.reader())
        assert found[-1] == self.messages[-1]
        self.stop_cleanly()
        return found


@pytest.fixture
def host(rng: random.Random) -> Iterator[Stopped]:
    path = Path(tempfile.mkdtemp(prefix="shmbroker-test-", dir="/dev/shm"))
    yield Stopped(path, rng)
    shutil.rmtree(path)


def flip(path: Path, position: int) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes((byte ^ 0x10,)))


def losses(report: PartitionReport) -> list[tuple[str, str]]:
    return [(finding.case, os.path.basename(finding.path)) for finding in report.findings
            if finding.severity is Severity.LOSS]  # fmt: skip


def test_a_whole_log_has_no_findings_and_needs_no_repair(host: Stopped) -> None:
    host.stop_cleanly()
    report = host.verify()
    assert report.findings == []
    assert report.whole
    assert (report.message_count, report.end_offset, report.first_offset) == (200, 200, 0)
    assert report.segment_count == len(host.bases)
    assert report.stored_offsets == {CONSUMER: 35}
    assert host.repair(yes=True) == []
    assert host.start() == host.messages


def test_a_broker_that_runs_is_left_alone(host: Stopped) -> None:
    host.stop_cleanly()
    with open(host.data / "broker.lock", "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(Unavailable, match="stop it first"):
            host.verify()
        with pytest.raises(Unavailable, match="stop it first"):
            host.repair(yes=True)


def test_a_directory_that_is_none_of_ours(tmp_path: Path, host: Stopped) -> None:
    host.stop_cleanly()
    with pytest.raises(ClientMistake):
        list(verify(host.disk, str(tmp_path)))
    with pytest.raises(ClientMistake):
        list(dump(str(tmp_path / "missing")))
    (tmp_path / "text").write_text("nothing of ours")
    with pytest.raises(ClientMistake):
        list(dump(str(tmp_path / "text")))


def test_a_crash_is_a_change_and_no_loss(host: Stopped) -> None:
    host.append([b"in the ring only"])
    host.log.publish()
    host.log.abandon()
    host.executor.shutdown()
    report = host.verify()
    assert report.whole
    assert [finding.case for finding in report.findings] == ["P"]
    assert host.repair(yes=True) == []
    assert host.start() == host.messages


# --- harm and repair ------------------------------------------------------------------------------------------------


def harm_sealed_content(host: Stopped) -> None:
    flip(host.log_file(1), PAGE_SIZE + 30_000)


def harm_sealed_first_record(host: Stopped) -> None:
    flip(host.log_file(1), PAGE_SIZE + 300)


def harm_sealed_header(host: Stopped) -> None:
    flip(host.log_file(1), 20)


def harm_seal(host: Stopped) -> None:
    flip(host.log_file(1), 512 + 30)


def harm_newest_content(host: Stopped) -> None:
    flip(host.log_file(-1), PAGE_SIZE + 300)


def harm_newest_header(host: Stopped) -> None:
    flip(host.log_file(-1), 30)


def remove_middle(host: Stopped) -> None:
    host.log_file(2).unlink()


def remove_newest(host: Stopped) -> None:
    host.log_file(-1).unlink()


def remove_all(host: Stopped) -> None:
    for path in host.files.glob("*.log"):
        path.unlink()


def make_foreign(host: Stopped) -> None:
    page = host.log_file(1).read_bytes()[:PAGE_SIZE]
    header = unpack_header(page)
    assert header is not None
    with open(host.log_file(1), "r+b") as file:
        file.write(pack_page(header._replace(log_id=99), unpack_seal(page)))


def harm_two(host: Stopped) -> None:
    harm_sealed_content(host)
    flip(host.log_file(-1), PAGE_SIZE + 300)


def lose_superblock(host: Stopped) -> None:
    flip(Path(host.directory) / "superblock", 20)
    flip(Path(host.directory) / "superblock", PAGE_SIZE + 20)


def remove_superblock(host: Stopped) -> None:
    (Path(host.directory) / "superblock").unlink()


HARMS: list[tuple[Callable[[Stopped], None], set[str], bool]] = [
    (harm_sealed_content, {"E"}, True),
    (harm_sealed_first_record, {"E"}, True),
    (harm_sealed_header, {"E"}, False),
    (harm_seal, {"E"}, False),
    (harm_newest_content, {"K"}, False),
    (harm_newest_header, {"G"}, False),
    (remove_middle, {"D"}, False),
    (remove_newest, {"I"}, False),
    (remove_all, {"B"}, False),
    (make_foreign, {"C"}, False),
    (harm_two, {"E", "K"}, False),
    (lose_superblock, {"superblock"}, False),
    (remove_superblock, {"superblock"}, False),
]


@pytest.mark.parametrize(("harm", "cases", "starts"), HARMS, ids=[harm.__name__ for harm, _, _ in HARMS])
def test_rule_05_repair_names_what_it_gives_up_and_the_log_starts_again(
    host: Stopped, harm: Callable[[Stopped], None], cases: set[str], starts: bool
) -> None:
    host.stop_cleanly()
    before = list(host.messages)
    harm(host)
    report = host.verify()
    assert {case for case, _ in losses(report)} == cases
    assert all(finding.remedy for finding in report.findings if finding.severity is Severity.LOSS)
    if not starts:
        with pytest.raises(Corrupt):
            host.start()
        host.executor.shutdown()
    contents = {path: path.read_bytes() for path in host.files.iterdir()}
    [plan] = host.repair(yes=False)
    assert plan.losses or harm is harm_seal
    assert {path: path.read_bytes() for path in host.files.iterdir()} == contents
    [plan] = host.repair(yes=True)
    assert host.verify().whole, host.verify().findings
    assert host.repair(yes=True) == []
    repaired = host.verify().superblock
    assert repaired is not None
    assert repaired.repair_epoch == 1
    assert not host.runtime.list_rings(5, host.log.incarnation)
    found = host.start()
    kept = [pair for pair in before if pair in set(found)]
    assert found == [*kept, host.messages[-1]]
    assert host.messages[-1][0] >= 2**26
    lost = [offset for offset, _ in before if offset not in dict(kept)]
    assert lost or harm in (harm_seal, lose_superblock, remove_superblock)
    for offset in lost:
        assert any(loss.first_offset <= offset < loss.end_offset for loss in plan.losses), (offset, plan.losses)
    assert all(str(loss.first_offset) in loss.text for loss in plan.losses if loss.end_offset)
    gaps = [header for path in sorted(host.files.glob("*.log")) if (header := unpack_header(path.read_bytes()))
            and header.gap_reason == GAP_REPAIR]  # fmt: skip
    assert gaps
    assert host.verify().whole


def test_what_was_given_up_is_kept_aside_and_can_be_looked_at(host: Stopped) -> None:
    host.stop_cleanly()
    harm_sealed_content(host)
    host.repair(yes=True)
    [path] = host.files.glob("*.given-up")
    lines = list(dump(str(path)))
    assert sum(line.endswith(" ok") for line in lines) >= 2
    assert any("BAD" in line for line in lines)


def test_an_intact_segment_behind_a_loss_stays(host: Stopped) -> None:
    host.stop_cleanly()
    harm_sealed_content(host)
    host.repair(yes=True)
    found = dict(host.start())
    later = [pair for pair in host.messages[:200] if pair[0] >= host.bases[2]]
    assert later
    assert all(found[offset] == payload for offset, payload in later)


def test_offsets_that_are_damaged_keep_what_can_be_read(host: Stopped) -> None:
    host.options = LogOptions(persisted=True, offsets_persisted=True, segment_size=64 * 1024)
    host.stop_cleanly()
    path = host.files / "consumers.offsets"
    flip(path, 4096 + 16)
    report = host.verify()
    assert losses(report) == [("offsets", "consumers.offsets")]
    [plan] = host.repair(yes=False)
    assert not plan.log_lost
    host.repair(yes=True)
    report = host.verify()
    assert report.findings == []
    assert report.stored_offsets == {CONSUMER: 35}
    assert host.start() == host.messages


def test_a_torn_index_is_a_change(host: Stopped) -> None:
    host.stop_cleanly()
    flip(host.files / index_name(host.bases[1]), 5)
    (host.files / index_name(host.bases[2])).unlink()
    report = host.verify()
    assert report.whole
    assert [finding.case for finding in report.findings] == ["index", "index"]
    assert host.start() == host.messages
    assert host.verify().findings == []


def test_a_residue_above_the_mark_is_a_change(host: Stopped) -> None:
    host.stop_cleanly()
    with open(host.log_file(-1), "r+b") as file:
        file.seek(PAGE_SIZE + host.verify().end_position - host.log.segments.infos[-1].base_position)
        file.write(b"what a group in flight left")
    report = host.verify()
    assert report.whole
    assert [finding.case for finding in report.findings] == ["J"]


def test_dump_shows_every_file(host: Stopped) -> None:
    host.append([b"in the ring"])
    host.log.publish()
    host.log.abandon()
    host.executor.shutdown()
    lines = list(dump(str(host.path), lines_max=100_000))
    text = "\n".join(lines)
    for part in ("(current)", "header:", "seal: ", "consumer 9: store 35", "ring: ", "visible_offset = ", "filler of"):
        assert part in text, part
    assert sum("offsets=" in line and line.endswith(" ok") for line in lines) == 40
    assert "BAD" not in text
    harm_sealed_content(host)
    assert "BAD content checksum" in "\n".join(dump(str(host.log_file(1))))
    assert len(list(dump(str(host.log_file(0)), lines_max=2))) == 3
