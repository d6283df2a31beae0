"""Members of a group as real processes: shared partitions, deaths, and that nothing is skipped or read by two."""

from __future__ import annotations

from collections.abc import Callable

import shmbroker
from shmbroker.errors import ErrorCode
from tests.processes.conftest import Start


def test_a_group_shares_its_partitions_and_rebalances(start: Start, eventually: Callable[..., object]) -> None:
    broker = start().ready()
    with broker.connect() as client, broker.connect() as other:
        client.create_stream("s")
        client.create_topic("s", "t", partitions=4)
        with client.producer("s", "t") as producer:
            for partition in range(4):
                producer.send([b"%d" % number for number in range(10)], partition=partition)
        first = client.consumer("s", "t", group="g")
        assert first.partitions == (0, 1, 2, 3)
        got = first.poll(100)
        assert sum(batch.count for batch in got) == 40
        second = other.consumer("s", "t", group="g")
        assert second.poll(100) == []
        members = client.get_group("s", "t", "g").members
        assert sorted(map(len, members.values())) == [0, 4], "nothing moves before it is committed"

        def both_have_two() -> bool:
            first.poll(10)
            second.poll(10)
            return (len(first.partitions), len(second.partitions)) == (2, 2)

        first.poll(10)
        first.commit()
        eventually(both_have_two, "the rebalance")
        assert not set(first.partitions) & set(second.partitions)
        assert second.poll(100) == [], "all that was committed is not handed out again"
        second.close()
        eventually(lambda: first.poll(10) == [] and first.partitions == (0, 1, 2, 3), "the return")
    assert broker.stop() == 0
