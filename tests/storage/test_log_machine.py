"""A log against a plain list: any order of appends, flushes, upkeep, purges, stops, kills and power failures.

The list is the Oracle of log_oracle: after each crash it says whether what came back is allowed, and goes on from
there, so that one history crosses many crashes.
"""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from shmbroker.errors import ErrorCode
from shmbroker.formats import control as words
from tests.storage.log_oracle import Oracle, recover_and_check
from tests.storage.log_world import make_disk, open_log, record_of
from tests.storage.memory_runtime import MemoryRuntime

PAYLOADS = st.lists(st.integers(1, 5000), min_size=1, max_size=5)


class LogMachine(RuleBasedStateMachine):
    @initialize(persisted=st.booleans(), segment_size=st.sampled_from([8192, 32_768, 1 << 20]), count=st.integers(1, 9))
    def begin(self, persisted: bool, segment_size: int, count: int) -> None:
        self.options: dict[str, Any] = {
            "persisted": persisted, "segment_size": segment_size, "messages_required_to_save": count,
            "offsets_persisted": True,
        }  # fmt: skip
        self.disk = make_disk(seed=1)
        self.runtime = MemoryRuntime()
        self.log = open_log(self.disk, self.runtime, **self.options)
        self.oracle = Oracle(self.log)
        self.number = 0
        self.now_us = 2_000_000

    @rule(sizes=PAYLOADS, finish=st.booleans())
    def append(self, sizes: list[int], finish: bool) -> None:
        self.number += 1
        self.oracle.append(self.log, [b"%d." % self.number * size for size in sizes], self.now_us)
        if finish:
            self.oracle.finish_pass(self.log)

    @rule()
    def finish(self) -> None:
        self.oracle.finish_pass(self.log)

    @rule(lie=st.integers(0, 400))
    def refused(self, lie: int) -> None:
        record = bytearray(record_of([b"never" * 20, b"seen"]))
        record[lie] ^= 0x40
        before = self.log.committed_offset
        assert self.log.append(memoryview(bytes(record)), self.now_us)[0] != ErrorCode.OK
        assert self.log.committed_offset == before

    @rule(sync=st.booleans())
    def flush(self, sync: bool) -> None:
        self.oracle.flush(self.log, sync=sync)

    @rule()
    def quiet(self) -> None:
        self.now_us += 1_000_000
        self.oracle.maintain(self.log, self.now_us)

    @rule(count=st.integers(1, 3))
    def delete(self, count: int) -> None:
        self.oracle.delete(self.log, count)

    @rule()
    def purge(self) -> None:
        self.oracle.purge(self.log)

    @rule()
    def store_offset(self) -> None:
        if self.log.committed_offset:
            self.oracle.store_offset(self.log, self.log.committed_offset - 1)

    @rule()
    def stop(self) -> None:
        self.oracle.close(self.log)
        self.restart(power=False)

    @rule()
    def kill(self) -> None:
        self.log.abandon()
        self.restart(power=False)

    @rule(data=st.data())
    def power_failure(self, data: st.DataObject) -> None:
        self.log.abandon()
        images = list(self.disk.images(1, subsets=2))
        self.disk = data.draw(st.sampled_from(images), label="image")
        self.runtime = self.runtime.after_power_failure()
        self.restart(power=True)

    def restart(self, *, power: bool) -> None:
        if not power:
            self.disk = self.disk.process_image()
        self.log = recover_and_check(self.oracle, self.disk, self.runtime, power=power, **self.options)

    @invariant()
    def words_are_in_order(self) -> None:
        control = self.log.control
        durable, written = control[words.WORD_DURABLE_POSITION], control[words.WORD_FILE_POSITION]
        assert durable <= written <= control[words.WORD_COMMITTED_POSITION]
        assert control[words.WORD_STABLE_POSITION] <= written
        assert control[words.WORD_VISIBLE_OFFSET] <= control[words.WORD_COMMITTED_OFFSET]
        if self.options["persisted"]:
            assert control[words.WORD_VISIBLE_POSITION] <= durable

    def teardown(self) -> None:
        self.log.abandon()


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(
    max_examples=150, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True,
    derandomize=True,
)  # fmt: skip
