"""The users' rules: each refusal by its number, ids, tokens, and what a restart would find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shmbroker.core import users as rules
from shmbroker.core.catalog import Catalog
from shmbroker.core.changes import TokenRemoved, UserChange
from shmbroker.core.permissions import (
    EVERYTHING,
    Action,
    Permissions,
    StreamPermissions,
    TopicPermissions,
)
from shmbroker.core.users import NO_PASSWORD, ROOT_ID, Users, check_password
from shmbroker.errors import ErrorCode, ShmbrokerError
from shmbroker.limits import TOKEN_COUNT_PER_USER_MAX, U64_MAX

HASH = "a hash"
NOW = 1_700_000_000_000_000
READ_ALL_STREAMS = Permissions(tuple(index == 5 for index in range(10)))


def carry_out(users: Users, changes: list[UserChange]) -> None:
    for change in changes:
        users.apply(change)


def create(users: Users, name: str, permissions: Permissions | None = None) -> None:
    carry_out(users, users.create(name, HASH, True, permissions, NOW))


@pytest.fixture
def users() -> Users:
    """Root, ``alice`` (1), ``robert`` (2)."""
    made = Users()
    carry_out(made, made.put_root(None, NO_PASSWORD, NOW))
    create(made, "alice")
    create(made, "robert", READ_ALL_STREAMS)
    return made


def refused(code: ErrorCode, decide: Callable[..., Any], *arguments: Any) -> None:
    with pytest.raises(ShmbrokerError) as caught:
        decide(*arguments)
    assert caught.value.number == code


@pytest.mark.parametrize(
    ("text", "good"),
    [("ab", False), ("abc", True), ("ä" * 25, True), ("ä" * 25 + "a", False), ("a" * 50, True), ("\ud800ab", False)],
)
def test_43_a_name_has_3_to_50_bytes(users: Users, text: str, good: bool) -> None:
    for decide in (users.check_name, lambda name: users.update("alice", name, None)):
        if good:
            decide(text)
        else:
            refused(ErrorCode.INVALID_USERNAME, decide, text)


@pytest.mark.parametrize(
    ("text", "good"), [("ab", False), ("abc", True), ("a" * 100, True), ("a" * 101, False), ("\ud800abc", False)]
)
def test_44_a_password_has_3_to_100_bytes(text: str, good: bool) -> None:
    if good:
        check_password(text)
    else:
        refused(ErrorCode.INVALID_PASSWORD, check_password, text)
        with pytest.raises(ShmbrokerError) as caught:
            check_password(text)
        assert text not in str(caught.value)


def test_46_a_name_is_taken_once(users: Users) -> None:
    refused(ErrorCode.USER_ALREADY_EXISTS, users.create, "alice", HASH, True, None, NOW)
    refused(ErrorCode.USER_ALREADY_EXISTS, users.update, "alice", "robert", None)
    assert users.update("alice", "alice", None) == [], "one's own name is not taken"
    assert users.update("alice", None, True) == []


def test_48_49_root_stays_as_it_is(users: Users) -> None:
    for root in (ROOT_ID, "iggy"):
        refused(ErrorCode.CANNOT_DELETE_USER, users.delete, root)
        refused(ErrorCode.CANNOT_CHANGE_PERMISSIONS, users.update_permissions, root, None)
        refused(ErrorCode.CANNOT_CHANGE_PERMISSIONS, users.update, root, None, False)
    carry_out(users, users.update("iggy", "admin", None))
    assert users.get("admin").is_root
    assert users.get(ROOT_ID).permissions == EVERYTHING


def test_55_there_is_an_end_to_users(users: Users, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "USER_COUNT_MAX", 4)
    create(users, "third")
    refused(ErrorCode.USERS_LIMIT_REACHED, users.create, "fourth", HASH, True, None, NOW)
    carry_out(users, users.delete("alice"))
    create(users, "fourth")


def test_20_nobody_is_found_by_another_name(users: Users) -> None:
    for decide in (
        users.get,
        users.delete,
        lambda user: users.update(user, None, True),
        lambda user: users.update_permissions(user, None),
        lambda user: users.change_password(user, HASH),
    ):
        for user in (3, "carol", "2"):
            refused(ErrorCode.RESOURCE_NOT_FOUND, decide, user)


def test_an_id_is_used_again_but_is_not_the_same_user(users: Users) -> None:
    alice = users.get("alice")
    assert users.holds(alice)
    carry_out(users, users.delete(1))
    create(users, "carol")
    assert users.get("carol").user_id == alice.user_id
    assert not users.holds(alice)


def test_a_change_reaches_who_holds_the_user(users: Users) -> None:
    held = users.get("alice")
    assert not held.grants.allow(Action.READ_STREAMS)
    carry_out(users, users.update_permissions("alice", READ_ALL_STREAMS))
    carry_out(users, users.update("alice", "alison", False))
    carry_out(users, users.change_password("alison", "another hash"))
    assert (held.name, held.is_active, held.password_hash) == ("alison", False, "another hash")
    assert held.grants.allow(Action.READ_STREAMS)
    carry_out(users, users.update_permissions("alison", None))
    assert not held.grants.allow(Action.READ_STREAMS)
    assert users.find("alice") is None


# --- tokens -----------------------------------------------------------------------------------------------------------
def token(users: Users, name: str, expiry_us: int = 0, now_us: int = NOW) -> list[UserChange]:
    changes = users.create_token(users.get("alice"), name, f"digest of {name} {now_us}".encode(), expiry_us, now_us)
    carry_out(users, changes)
    return changes


def test_50_51_52_56_tokens(users: Users) -> None:
    alice = users.get("alice")
    for name in ("ab", "a" * 31, "\ud800abc"):
        refused(ErrorCode.INVALID_TOKEN_NAME, users.create_token, alice, name, b"", 0, NOW)
    refused(ErrorCode.INVALID_TOKEN_EXPIRY, users.create_token, alice, "abc", b"", U64_MAX - 1, NOW)
    for number in range(TOKEN_COUNT_PER_USER_MAX):
        token(users, f"token {number}", U64_MAX if number % 2 else 0)
    assert {each.expires_at_us for each in alice.tokens.values()} == {0}, "0 and the largest number: never"
    refused(ErrorCode.TOKENS_LIMIT_REACHED, users.create_token, alice, "one more", b"", 0, NOW)
    refused(ErrorCode.TOKEN_ALREADY_EXISTS, users.create_token, alice, "token 0", b"", 0, NOW)
    refused(ErrorCode.RESOURCE_NOT_FOUND, users.delete_token, users.get("robert"), "token 0")
    carry_out(users, users.delete_token(alice, "token 0"))
    token(users, "one more")


def test_an_expired_token_makes_room(users: Users) -> None:
    token(users, "short", 10)
    refused(ErrorCode.TOKEN_ALREADY_EXISTS, users.create_token, users.get("alice"), "short", b"", 0, NOW + 9)
    assert TokenRemoved(1, "short") in token(users, "short", 0, NOW + 10)


def test_tokens_go_with_their_user(users: Users) -> None:
    token(users, "first")
    digest = users.get("alice").tokens["first"].digest
    found = users.find_token(digest)
    assert found is not None
    assert found[0] is users.get("alice")
    carry_out(users, users.delete("alice"))
    assert users.find_token(digest) is None


# --- with the catalog -------------------------------------------------------------------------------------------------
def test_a_new_stream_of_an_old_id_is_not_permitted() -> None:
    catalog = Catalog()
    for name in ("one", "two"):
        catalog.apply(catalog.create_stream(name, NOW))
        for topic in ("a", "b"):
            catalog.apply(catalog.create_topic(name, topic, [], [], NOW))
    entry = [StreamPermissions(n, (True,) * 6, (TopicPermissions(0, (True,) * 4), TopicPermissions(1, (True,) * 4)))
             for n in (0, 1)]  # fmt: skip
    catalog.apply(catalog.users.put_root(None, HASH, NOW))
    catalog.apply(catalog.users.create("alice", HASH, True, Permissions((False,) * 10, tuple(entry)), NOW))
    alice = catalog.users.get("alice")
    catalog.apply(catalog.delete_topic("one", "a"))
    catalog.apply(catalog.create_topic("one", "another", [], [], NOW))
    assert catalog.topic("one", "another").topic_id == 0
    assert alice.permissions == Permissions(
        (False,) * 10, (entry[0]._replace(topics=(TopicPermissions(1, (True,) * 4),)), entry[1])
    )
    catalog.apply(catalog.delete_stream("one"))
    assert alice.permissions == Permissions((False,) * 10, (entry[1],))
    catalog.apply(catalog.create_stream("three", NOW))
    assert catalog.stream("three").stream_id == 0
    assert not alice.grants.allow(Action.READ_STREAM, 0)
    assert alice.grants.allow(Action.READ_STREAM, 1)


def test_a_snapshot_builds_the_same_users(users: Users) -> None:
    token(users, "first")
    again = Users()
    carry_out(again, list(users.snapshot()))
    assert list(again.snapshot()) == list(users.snapshot())
    assert again.find_token(b"digest of first %d" % NOW) is not None


def test_no_hash_is_shown(users: Users) -> None:
    token(users, "first")
    carry_out(users, users.change_password("alice", "SECRET"))
    shown = repr([users.get("alice"), users.get("alice").tokens, list(users.snapshot())])
    assert "SECRET" not in shown
    assert "digest" not in shown
