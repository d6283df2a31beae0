"""Every action against every flag: what the protocol's table says, and nothing more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmbroker.core.permissions import (
    EVERYTHING,
    GLOBAL_FLAGS,
    RULES,
    STREAM_FLAGS,
    TOPIC_FLAGS,
    Action,
    Grants,
    Permissions,
    StreamPermissions,
    TopicPermissions,
)

# The table as people read it: everywhere | for the stream | for the topic.
TABLE = {
    Action.READ_SERVERS: "manage_servers read_servers | |",
    Action.READ_USERS: "manage_users read_users | |",
    Action.MANAGE_USERS: "manage_users | |",
    Action.READ_STREAMS: "manage_streams read_streams | |",
    Action.READ_STREAM: "manage_streams read_streams | manage_stream read_stream |",
    Action.CREATE_STREAM: "manage_streams | |",
    Action.MANAGE_STREAM: "manage_streams | manage_stream |",
    Action.READ_TOPICS: "manage_streams read_streams manage_topics read_topics |"
    " manage_stream read_stream manage_topics read_topics |",
    Action.READ_TOPIC: "manage_streams read_streams manage_topics read_topics |"
    " manage_stream read_stream manage_topics read_topics | manage_topic read_topic",
    Action.CREATE_TOPIC: "manage_streams manage_topics | manage_stream manage_topics |",
    Action.MANAGE_TOPIC: "manage_streams manage_topics | manage_stream manage_topics | manage_topic",
    Action.POLL: "poll_messages read_topics manage_topics read_streams manage_streams |"
    " poll_messages read_topics manage_topics read_stream manage_stream | manage_topic read_topic poll_messages",
    Action.SEND: "send_messages manage_streams manage_topics | send_messages manage_stream manage_topics |"
    " manage_topic send_messages",
}
STREAM, TOPIC, OTHER = 3, 5, 4


def flags(names: tuple[str, ...], wanted: str) -> tuple[bool, ...]:
    return tuple(name == wanted for name in names)


NO_GLOBAL = flags(GLOBAL_FLAGS, "")
NO_STREAM = flags(STREAM_FLAGS, "")
SINGLE = [
    *(("everywhere", name, Permissions(flags(GLOBAL_FLAGS, name))) for name in GLOBAL_FLAGS),
    *(
        ("stream", name, Permissions(NO_GLOBAL, (StreamPermissions(STREAM, flags(STREAM_FLAGS, name)),)))
        for name in STREAM_FLAGS
    ),
    *(
        (
            "topic",
            name,
            Permissions(
                NO_GLOBAL,
                (StreamPermissions(STREAM, NO_STREAM, (TopicPermissions(TOPIC, flags(TOPIC_FLAGS, name)),)),),
            ),
        )
        for name in TOPIC_FLAGS
    ),
]


def test_the_table_is_whole() -> None:
    assert TABLE.keys() == set(Action) == RULES.keys()


@pytest.mark.parametrize(("level", "name", "permissions"), SINGLE, ids=[f"{each[0]}-{each[1]}" for each in SINGLE])
@pytest.mark.parametrize("action", list(Action), ids=lambda action: action.name)
def test_one_flag_allows_what_the_table_says(action: Action, level: str, name: str, permissions: Permissions) -> None:
    row = dict(zip(("everywhere", "stream", "topic"), TABLE[action].split("|"), strict=True))
    expected = name in row[level].split()
    grants = Grants(permissions)
    assert grants.allow(action, STREAM, TOPIC) is expected
    everywhere = expected and level == "everywhere"
    assert grants.allow(action, OTHER, TOPIC) is everywhere, "another stream's topic of the same id"
    assert grants.allow(action, STREAM, OTHER) is (expected and level != "topic")
    assert grants.allow(action, STREAM, None) is (expected and level != "topic")
    assert grants.allow(action, None, None) is everywhere


@pytest.mark.parametrize("action", list(Action))
def test_everything_and_nothing(action: Action) -> None:
    assert Grants(EVERYTHING).allow(action)
    nothing = Permissions(NO_GLOBAL, (StreamPermissions(STREAM, NO_STREAM, (TopicPermissions(TOPIC, (False,) * 4),)),))
    for empty in (None, Permissions(NO_GLOBAL), nothing):
        assert not Grants(empty).allow(action, STREAM, TOPIC)


def some_flags(count: int) -> st.SearchStrategy[tuple[bool, ...]]:
    return st.lists(st.booleans(), min_size=count, max_size=count).map(tuple)


IDS = st.integers(0, 3)
PERMISSIONS = st.builds(
    Permissions,
    some_flags(10),
    st.lists(
        st.builds(
            StreamPermissions,
            IDS,
            some_flags(6),
            st.lists(st.builds(TopicPermissions, IDS, some_flags(4)), max_size=4).map(tuple),
        ),
        max_size=4,
    ).map(tuple),
)


@given(PERMISSIONS, st.sampled_from(list(Action)), IDS, IDS)
def test_normalising_keeps_each_flag_that_was_given(given_: Permissions, action: Action, one: int, other: int) -> None:
    normal = given_.normalised()
    ids = [stream.stream_id for stream in normal.streams]
    assert ids == sorted(set(ids))
    assert normal.normalised() == normal
    # By hand, from the list as it came.
    rule = RULES[action]
    bits = {"everywhere": given_.flags}
    expected = any(flag and rule.everywhere >> index & 1 for index, flag in enumerate(bits["everywhere"]))
    for stream in given_.streams:
        if stream.stream_id == one:
            expected |= any(flag and rule.stream >> index & 1 for index, flag in enumerate(stream.flags))
            for topic in stream.topics:
                if topic.topic_id == other:
                    expected |= any(flag and rule.topic >> index & 1 for index, flag in enumerate(topic.flags))
    assert Grants(normal).allow(action, one, other) is expected


@given(PERMISSIONS, st.sampled_from(list(Action)), IDS, IDS)
def test_what_was_permitted_for_a_deleted_thing_is_gone_and_nothing_else(
    given_: Permissions, action: Action, one: int, other: int
) -> None:
    normal = given_.normalised()
    bare = Grants(Permissions(normal.flags))
    without_stream = Grants(normal.without(one))
    assert without_stream.allow(action, one, other) is bare.allow(action, one, other)
    without_topic = Grants(normal.without(one, other))
    assert without_topic.allow(action, one, other) is Grants(normal).allow(action, one, None)
    for stream_id in range(4):
        for topic_id in range(4):
            kept = Grants(normal).allow(action, stream_id, topic_id)
            if stream_id != one:
                assert without_stream.allow(action, stream_id, topic_id) is kept
            if (stream_id, topic_id) != (one, other):
                assert without_topic.allow(action, stream_id, topic_id) is kept
