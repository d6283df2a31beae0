"""How many logins may fail from one address: some at once, then one now and then. Time is an argument.

Only failures count, so that those who know their password are never held up by their own number. The table is bounded:
when it is full, the address that failed longest ago is forgotten first.
"""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address
from typing import Final

from shmbroker.limits import LOGIN_ADDRESSES_MAX, LOGIN_FAILURE_INTERVAL_S, LOGIN_FAILURES_MAX

_IPV6_HOST_BITS: Final = 64
"""Whoever has one address of such a network has all of them."""


def host_of(address: str) -> str:
    """What is counted together: the host of ``host:port``, the network of an IPv6 host, any other text as it is."""
    for host in (address, address.rpartition(":")[0]):
        try:
            found = ip_address(host.strip("[]").partition("%")[0])
        except ValueError:
            continue
        if isinstance(found, IPv6Address):
            if found.ipv4_mapped is not None:
                return str(found.ipv4_mapped)
            return str(IPv6Address(int(found) >> _IPV6_HOST_BITS << _IPV6_HOST_BITS))
        return str(found)
    return address


class Attempts:
    """Failed logins of each host: as many as LOGIN_FAILURES_MAX, of which one is forgiven each interval."""

    def __init__(self) -> None:
        self._forgiven_s: dict[str, float] = {}
        """When the last failure of a host is forgiven; in the order of their last failures."""

    def wait_s(self, host: str, now_s: float) -> float:
        """0 where another attempt may be made, else the time until it may."""
        left_s = self._forgiven_s.get(host, now_s) - now_s
        return max(0.0, left_s - (LOGIN_FAILURES_MAX - 1) * LOGIN_FAILURE_INTERVAL_S)

    def failed(self, host: str, now_s: float) -> None:
        """An attempt has failed."""
        forgiven_s = max(self._forgiven_s.pop(host, now_s), now_s) + LOGIN_FAILURE_INTERVAL_S
        self._forgiven_s[host] = forgiven_s
        while len(self._forgiven_s) > LOGIN_ADDRESSES_MAX:
            del self._forgiven_s[next(iter(self._forgiven_s))]
