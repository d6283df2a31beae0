"""The flush triggers: each at its threshold, none below, and in which order they are reported."""

from __future__ import annotations

from typing import Any

import pytest

from shmbroker.core.options import TopicOptions
from shmbroker.core.triggers import Trigger, flush_trigger
from shmbroker.limits import GIB, MIB

STANDARD = TopicOptions()


def fired(**facts: Any) -> Trigger | None:
    """With the standard options and a quiet journal, but for ``facts``."""
    quiet = {
        "messages_count": 1, "size": 1, "segment_used": 1, "segment_size": STANDARD.segment_size,
        "messages_required_to_save": STANDARD.messages_required_to_save,
        "size_required_to_save": STANDARD.size_of_messages_required_to_save,
    }  # fmt: skip
    return flush_trigger(**(quiet | facts))


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, None),
        ({"messages_count": 1023}, None),
        ({"messages_count": 1024}, Trigger.COUNT),
        ({"size": MIB - 1}, None),
        ({"size": MIB}, Trigger.SIZE),
        ({"segment_used": GIB - 1}, None),
        ({"segment_used": GIB}, Trigger.SEGMENT),
        ({"pressure": True}, Trigger.PRESSURE),
        ({"persisted": True}, Trigger.PERSISTENCE),
        ({"messages_required_to_save": 1}, Trigger.COUNT),
        ({"size_required_to_save": 1}, Trigger.SIZE),
        ({"messages_count": 1024, "size": MIB, "segment_used": GIB, "pressure": True}, Trigger.SEGMENT),
        ({"messages_count": 1024, "size": MIB, "pressure": True}, Trigger.COUNT),
        ({"messages_count": 1024, "persisted": True}, Trigger.PERSISTENCE),
        ({"messages_count": 0, "size": 0, "segment_used": GIB, "pressure": True, "persisted": True}, None),
    ],
)
def test_triggers(facts: dict[str, Any], expected: Trigger | None) -> None:
    assert fired(**facts) == expected
