"""Looking at credentials, alone: what is hashed when, turns, and what an await in the middle may change."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from shmbroker.core.changes import UserChange
from shmbroker.core.users import NO_PASSWORD, User, Users
from shmbroker.errors import ErrorCode
from shmbroker.front.login import LoginRefused, Logins
from shmbroker.limits import LOGIN_FAILURES_MAX, LOGINS_AT_ONCE_PER_ADDRESS

NOW = 1_700_000_000_000_000
HERE = "192.0.2.1:7"


class WatchedLogins(Logins):
    """Says which hashes were looked at, and how many at a time; and what is to happen meanwhile."""

    def __init__(self, users: Users) -> None:
        super().__init__(users)
        self.looked_at: list[str] = []
        self.at_once = 0
        self.at_once_max = 0
        self.meanwhile: Callable[[], None] = lambda: None

    async def _fits(self, user: User | None, password: str) -> bool:
        self.at_once += 1
        self.at_once_max = max(self.at_once_max, self.at_once)
        try:
            return await super()._fits(user, password)
        finally:
            self.at_once -= 1

    def _verify(self, held: str, password: str) -> bool:
        self.looked_at.append(held)
        self.meanwhile()
        return super()._verify(held, password)


def with_logins(program: Callable[[WatchedLogins, Users], Awaitable[Any]]) -> Any:
    """Runs it with alice (1), and robert (2) who has no password."""

    async def whole() -> Any:
        users = Users()
        logins = WatchedLogins(users)
        try:
            carry_out(users, users.put_root(None, NO_PASSWORD, NOW))
            carry_out(users, users.create("alice", await logins.hash("her secret"), True, None, NOW))
            carry_out(users, users.create("robert", NO_PASSWORD, True, None, NOW))
            return await asyncio.wait_for(program(logins, users), 60)
        finally:
            logins.close()

    return asyncio.run(whole())


def carry_out(users: Users, changes: list[UserChange]) -> None:
    for change in changes:
        users.apply(change)


async def refused(code: ErrorCode, call: Awaitable[Any]) -> str:
    with pytest.raises(LoginRefused) as caught:
        await call
    assert caught.value.number == code
    return str(caught.value)


def cost_of(held: str) -> str:
    """Algorithm, version and cost, without salt and hash."""
    return held.rsplit("$", 2)[0]


def test_everybody_costs_the_same() -> None:
    async def program(logins: WatchedLogins, users: Users) -> None:
        alice = users.get("alice").password_hash
        texts = set()
        for username in ("alice", "robert", "nobody", "iggy", "1", ""):
            texts.add(await refused(ErrorCode.INVALID_CREDENTIALS, logins.by_password(username, "wrong", HERE)))
        assert len(texts) == 1, "and is told the same"
        assert len(logins.looked_at) == 6
        assert {cost_of(held) for held in logins.looked_at} == {cost_of(alice)}
        assert [len(held) for held in logins.looked_at] == [len(alice)] * 6

    with_logins(program)


def test_nobody_gets_in_without_a_password() -> None:
    async def program(logins: WatchedLogins, users: Users) -> None:
        for username in ("robert", "iggy"):
            for password in ("", NO_PASSWORD, "wrong"):
                await refused(ErrorCode.INVALID_CREDENTIALS, logins.by_password(username, password, HERE))

    with_logins(program)


def test_a_password_that_was_right_is_not_hashed_again_until_it_is_another() -> None:
    async def program(logins: WatchedLogins, users: Users) -> None:
        for _ in range(3):
            assert (await logins.by_password("alice", "her secret", HERE)).name == "alice"
        assert len(logins.looked_at) == 1
        await refused(ErrorCode.INVALID_CREDENTIALS, logins.by_password("alice", "her secret ", HERE))
        assert len(logins.looked_at) == 2
        carry_out(users, users.change_password("alice", await logins.hash("another")))
        await refused(ErrorCode.INVALID_CREDENTIALS, logins.by_password("alice", "her secret", HERE))
        assert (await logins.by_password("alice", "another", HERE)).name == "alice"
        # The next user of that id and hash-less: nothing is left of the old one.
        carry_out(users, users.delete("alice"))
        carry_out(users, users.create("carol", NO_PASSWORD, True, None, NOW))
        assert users.get("carol").user_id == 1
        await refused(ErrorCode.INVALID_CREDENTIALS, logins.by_password("carol", "another", HERE))

    with_logins(program)


@pytest.mark.parametrize("change", ["deleted", "another password"])
def test_a_user_that_changes_while_it_is_looked_at_does_not_get_in(change: str) -> None:
    async def program(logins: WatchedLogins, users: Users) -> None:
        other_hash = await logins.hash("another")

        def meanwhile() -> None:
            changes = users.delete("alice") if change == "deleted" else users.change_password("alice", other_hash)
            carry_out(users, changes)

        logins.meanwhile = meanwhile
        await refused(ErrorCode.INVALID_CREDENTIALS, logins.by_password("alice", "her secret", HERE))

    with_logins(program)


def test_one_address_has_so_many_turns_at_once_and_others_have_theirs() -> None:
    async def program(logins: WatchedLogins, users: Users) -> None:
        many = [logins.by_password("alice", "wrong", f"192.0.2.1:{port}") for port in range(40)]
        outcomes = await asyncio.gather(*many, return_exceptions=True)
        assert logins.at_once_max == LOGINS_AT_ONCE_PER_ADDRESS
        numbers = [getattr(outcome, "number", None) for outcome in outcomes]
        failed = numbers.count(ErrorCode.INVALID_CREDENTIALS)
        assert LOGIN_FAILURES_MAX <= failed < 40, "more are those under way, and who was forgiven meanwhile"
        assert numbers.count(ErrorCode.TRANSIENT_NOT_ACCEPTED) == 40 - failed
        assert (await logins.by_password("alice", "her secret", "192.0.2.2:1")).name == "alice"
        assert not logins._turns, "nothing is left of who is done"

    with_logins(program)


def test_a_login_that_is_given_up_gives_up_its_turn() -> None:
    async def program(logins: WatchedLogins, users: Users) -> None:
        tasks = [asyncio.ensure_future(logins.by_password("alice", "wrong", HERE)) for _ in range(5)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert not logins._turns
        assert (await logins.by_password("alice", "her secret", HERE)).name == "alice"

    with_logins(program)


def test_a_hash_that_is_none_fits_nobody() -> None:
    async def program(logins: WatchedLogins, users: Users) -> None:
        carry_out(users, users.change_password("alice", "no argon2 hash"))
        await refused(ErrorCode.INVALID_CREDENTIALS, logins.by_password("alice", "no argon2 hash", HERE))

    with_logins(program)
