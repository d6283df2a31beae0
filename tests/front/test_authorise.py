"""The tables that say who may do what have every command in exactly one place."""

from __future__ import annotations

from shmbroker.front.authorise import ANY_USER, ANYBODY, NEEDED, RIGHT_ACTIONS
from shmbroker.front.handlers import HANDLERS
from shmbroker.wire.codes import Code
from shmbroker.wire.local import RIGHTS, LocalCode

ROOT_ALONE = {LocalCode.AUTHENTICATE, LocalCode.AS_USER, LocalCode.CHECK_USER, LocalCode.OPEN_PARTITION_AS}
"""More than root: the broker's own user, as a process of this machine."""
BY_RIGHTS = {LocalCode.OPEN_PARTITION}


def test_every_command_is_in_exactly_one_table() -> None:
    tables: list[set[int]] = [set(ANYBODY), set(ANY_USER), set(NEEDED), set(ROOT_ALONE), set(BY_RIGHTS)]
    everything = {int(code) for code in (*Code, *LocalCode)}
    assert set().union(*tables) == everything
    assert sum(map(len, tables)) == len(everything)
    assert RIGHT_ACTIONS.keys() == RIGHTS


def test_every_command_of_the_protocol_has_a_handler() -> None:
    assert HANDLERS.keys() >= {int(code) for code in (*Code, *LocalCode)}
