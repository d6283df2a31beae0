"""Failed logins: how many at once, how they are forgiven, what is counted together, and that the table is bounded."""

from __future__ import annotations

import pytest

from shmbroker.core import attempts
from shmbroker.core.attempts import Attempts, host_of
from shmbroker.limits import LOGIN_FAILURE_INTERVAL_S, LOGIN_FAILURES_MAX


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("192.0.2.7:40000", "192.0.2.7"),
        ("192.0.2.7", "192.0.2.7"),
        ("[2001:db8:1:2:3:4:5:6]:40000", "2001:db8:1:2::"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::"),
        ("[::ffff:192.0.2.7]:40000", "192.0.2.7"),
        ("[fe80::1%eth0]:7", "fe80::"),
        ("process 17", "process 17"),
        ("", ""),
    ],
)
def test_a_host_is_counted_not_a_connection(address: str, host: str) -> None:
    assert host_of(address) == host


def test_so_many_at_once_and_then_one_each_interval() -> None:
    counted, now = Attempts(), 1_000.0
    for _ in range(LOGIN_FAILURES_MAX):
        assert counted.wait_s("here", now) == 0
        counted.failed("here", now)
    assert 0 < counted.wait_s("here", now) <= LOGIN_FAILURE_INTERVAL_S
    assert counted.wait_s("there", now) == 0
    now += LOGIN_FAILURE_INTERVAL_S
    assert counted.wait_s("here", now) == 0
    counted.failed("here", now)
    assert counted.wait_s("here", now) > 0
    now += LOGIN_FAILURES_MAX * LOGIN_FAILURE_INTERVAL_S
    for _ in range(LOGIN_FAILURES_MAX):
        assert counted.wait_s("here", now) == 0, "all is forgiven, and no more than all"
        counted.failed("here", now)
    assert counted.wait_s("here", now) > 0


def test_the_table_forgets_who_failed_longest_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "LOGIN_ADDRESSES_MAX", 3)
    counted = Attempts()
    for host in ("a", "b", "c"):
        for _ in range(LOGIN_FAILURES_MAX):
            counted.failed(host, 0.0)
    counted.failed("a", 0.0)
    counted.failed("d", 0.0)
    assert [counted.wait_s(host, 0.0) > 0 for host in "abcd"] == [True, False, True, False]
    assert len(counted._forgiven_s) == 3
