"""The table of topic options: every key, kind, bound and text form; and the numbers they are refused with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shmbroker.core import options as options_module
from shmbroker.core.options import (
    CREATE_ONLY,
    KEYS,
    NEVER,
    STANDARD_DEFAULTS,
    UNLIMITED,
    UPDATABLE,
    Durability,
    OptionValue,
    TopicDefaults,
    TopicOptions,
    create_options,
    describe,
    option_values,
    update_options,
)
from shmbroker.errors import ErrorCode, InvalidOption, ShmbrokerError, UnsupportedOption
from shmbroker.limits import GIB, MIB

DAY_US = 24 * 3600 * 1_000_000


def text(key: str, value: str) -> OptionValue:
    return OptionValue(key, 2, value.encode())


def u32(key: str, value: int) -> OptionValue:
    return OptionValue(key, 11, value.to_bytes(4, "little"))


def u64(key: str, value: int) -> OptionValue:
    return OptionValue(key, 12, value.to_bytes(8, "little"))


ACCEPTED: list[tuple[OptionValue, str, Any]] = [
    (text("compression_algorithm", "gzip"), "compression_algorithm", "gzip"),
    (OptionValue("compression_algorithm", 9, b"\1"), "compression_algorithm", "none"),
    (OptionValue("compression_algorithm", 9, b"\2"), "compression_algorithm", "gzip"),
    (u64("message_expiry", 1), "message_expiry_us", 1),
    (u64("message_expiry", NEVER), "message_expiry_us", NEVER),
    (text("message_expiry", "7 days"), "message_expiry_us", 7 * DAY_US),
    (text("message_expiry", "7days"), "message_expiry_us", 7 * DAY_US),
    (text("message_expiry", "1h 30m"), "message_expiry_us", 5400 * 1_000_000),
    (text("message_expiry", "never_expire"), "message_expiry_us", NEVER),
    (text("message_expiry", "none"), "message_expiry_us", NEVER),
    (text("message_expiry", "unlimited"), "message_expiry_us", NEVER),
    (text("message_expiry", "4294967295s"), "message_expiry_us", (2**32 - 1) * 1_000_000),
    (u64("max_topic_size", GIB), "max_topic_size", GIB),
    (u64("max_topic_size", UNLIMITED), "max_topic_size", UNLIMITED),
    (text("max_topic_size", "10GiB"), "max_topic_size", 10 * GIB),
    (text("max_topic_size", "unlimited"), "max_topic_size", UNLIMITED),
    (u64("segment_size", MIB), "segment_size", MIB),
    (u64("segment_size", GIB), "segment_size", GIB),
    (u64("segment_size", MIB + 512), "segment_size", MIB + 512),
    (u64("segment_size", 0), "segment_size", GIB),
    (text("segment_size", "16 MiB"), "segment_size", 16 * MIB),
    (text("durability", "persisted"), "durability", Durability.PERSISTED),
    (text("durability", "replicated"), "durability", Durability.REPLICATED),
    (text("consumer_offset_durability", "persisted"), "consumer_offset_durability", Durability.PERSISTED),
    (u32("messages_required_to_save", 1), "messages_required_to_save", 1),
    (u32("messages_required_to_save", 16_777_216), "messages_required_to_save", 16_777_216),
    (text("messages_required_to_save", "500"), "messages_required_to_save", 500),
    (u64("size_of_messages_required_to_save", GIB), "size_of_messages_required_to_save", GIB),
    (u64("size_of_messages_required_to_save", 1), "size_of_messages_required_to_save", 1),
    (u64("size_of_messages_required_to_save", 0), "size_of_messages_required_to_save", MIB),
    (text("size_of_messages_required_to_save", "64KiB"), "size_of_messages_required_to_save", 65_536),
    (OptionValue("preallocate_segments", 3, b"\1"), "preallocate_segments", True),
    (text("preallocate_segments", "true"), "preallocate_segments", True),
    (text("preallocate_segments", "false"), "preallocate_segments", False),
]
REFUSED_VALUES: list[OptionValue] = [
    text("compression_algorithm", "zstd"), text("compression_algorithm", "NONE"),
    OptionValue("compression_algorithm", 9, b"\0"), OptionValue("compression_algorithm", 9, b"\3"),
    OptionValue("compression_algorithm", 9, b""), u64("compression_algorithm", 1),
    text("message_expiry", "soon"), text("message_expiry", "7"), text("message_expiry", ""),
    text("message_expiry", "0s"),
    text("message_expiry", "4294967296s"), text("message_expiry", "-1s"), u32("message_expiry", 5),
    OptionValue("message_expiry", 12, b"\1"), OptionValue("message_expiry", 2, b"\xff"),
    text("max_topic_size", "big"), text("max_topic_size", "-1"), OptionValue("max_topic_size", 14, bytes(4)),
    u64("segment_size", MIB - 512), u64("segment_size", GIB + 512), u64("segment_size", MIB + 1),
    u64("segment_size", 1),
    text("segment_size", "unlimited"), text("segment_size", "1.5 B"),
    text("durability", "PERSISTED"), text("durability", "fsync"), text("durability", ""),
    text("durability", "persisted "),
    OptionValue("durability", 1, b"persisted"), u64("durability", 1),
    text("consumer_offset_durability", "quorum"), OptionValue("consumer_offset_durability", 3, b"\1"),
    u32("messages_required_to_save", 0), u32("messages_required_to_save", 16_777_217),
    u64("messages_required_to_save", 5), text("messages_required_to_save", "0"),
    text("messages_required_to_save", "1e3"),
    u64("size_of_messages_required_to_save", GIB + 1), u32("size_of_messages_required_to_save", 1),
    OptionValue("preallocate_segments", 3, b"\2"), text("preallocate_segments", "yes"),
    text("preallocate_segments", "True"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "field", "expected"), ACCEPTED, ids=lambda value: str(value)[:60])
def test_accepted(value: OptionValue, field: str, expected: object) -> None:
    assert getattr(create_options([value]), field) == expected


@pytest.mark.parametrize("value", REFUSED_VALUES, ids=lambda value: str(value)[:60])
def test_refused_with_4042(value: OptionValue) -> None:
    with pytest.raises(InvalidOption, match=f"Invalid option value for key: {value.key}") as caught:
        create_options([value])
    assert caught.value.number == ErrorCode.INVALID_OPTION_VALUE


def test_every_key_is_in_both_tables() -> None:
    assert {value.key for value, _, _ in ACCEPTED} == set(KEYS) == {value.key for value in REFUSED_VALUES}


def test_the_standard_options() -> None:
    options = create_options([])
    assert options == TopicOptions()
    assert options.report() == {
        "compression_algorithm": ("none", False),
        "consumer_offset_durability": ("replicated", False),
        "durability": ("replicated", False),
        "max_topic_size": ("unlimited", False),
        "message_expiry": ("never_expire", False),
        "messages_required_to_save": ("1024", False),
        "preallocate_segments": ("false", False),
        "segment_size": ("1 GiB", False),
        "size_of_messages_required_to_save": ("1 MiB", False),
    }


def test_the_two_policies_are_independent() -> None:
    options = create_options([text("durability", "persisted")])
    assert (options.durability, options.consumer_offset_durability) == ("persisted", "replicated")
    options = create_options([text("consumer_offset_durability", "persisted")])
    assert (options.durability, options.consumer_offset_durability) == ("replicated", "persisted")


@pytest.mark.parametrize("key", ["unknown", "Durability", "partitions", "", "durability\0"])
def test_unknown_keys_are_refused_with_4041(key: str) -> None:
    for change in (create_options, lambda values: update_options(TopicOptions(), values)):
        with pytest.raises(UnsupportedOption, match="Unsupported option key: ") as caught:
            change([text(key, "x")])
        assert caught.value.number == ErrorCode.UNSUPPORTED_OPTION_KEY


@pytest.mark.parametrize(
    ("key", "instead"),
    [("enforce_fsync", "durability"), ("consumer_offset_enforce_fsync", "consumer_offset_durability")],
)
def test_former_keys_say_what_to_use(key: str, instead: str) -> None:
    for change in (create_options, lambda values: update_options(TopicOptions(), values)):
        with pytest.raises(UnsupportedOption, match=f"^Unsupported option key: {key}. Use the topic option {instead} "):
            change([OptionValue(key, 3, b"\1")])


def test_create_only_keys_are_refused_in_an_update() -> None:
    assert set(KEYS) == CREATE_ONLY | UPDATABLE
    assert {"compression_algorithm", "message_expiry", "max_topic_size"} == UPDATABLE
    values = {value.key: value for value, _, _ in ACCEPTED}
    for key in CREATE_ONLY:
        with pytest.raises(UnsupportedOption, match=f"{key} can only be given when the topic is created"):
            update_options(TopicOptions(), [values[key]])


def test_an_update_is_a_patch() -> None:
    created = create_options([text("message_expiry", "1h"), text("durability", "persisted")])
    updated = update_options(created, [text("max_topic_size", "2GiB")])
    assert (updated.message_expiry_us, updated.max_topic_size) == (3600 * 1_000_000, 2 * GIB)
    assert updated.durability == "persisted"
    assert updated.explicit == {"message_expiry", "durability", "max_topic_size"}
    assert update_options(updated, []) == updated


def test_zero_is_resolved_at_creation_and_stays_as_it_is_in_an_update() -> None:
    defaults = TopicDefaults(message_expiry_us=5_000_000, max_topic_size=3 * GIB)
    zeros = [u64("message_expiry", 0), u64("max_topic_size", 0)]
    created = create_options(zeros, defaults)
    assert (created.message_expiry_us, created.max_topic_size, created.explicit) == (5_000_000, 3 * GIB, frozenset())
    assert create_options([text("message_expiry", "server_default")], defaults).message_expiry_us == 5_000_000
    changed = update_options(created, [text("message_expiry", "1h"), text("max_topic_size", "2GiB")])
    assert update_options(changed, zeros, defaults) == changed
    back = update_options(changed, [text("message_expiry", "server_default")], STANDARD_DEFAULTS)
    assert (back.message_expiry_us, back.max_topic_size) == (NEVER, 2 * GIB)


def test_a_topic_is_not_smaller_than_a_segment() -> None:
    fits = create_options([u64("segment_size", 2 * MIB), u64("max_topic_size", 2 * MIB)])
    assert fits.max_topic_size == 2 * MIB
    attempts: list[Callable[[], TopicOptions]] = [
        lambda: create_options([u64("max_topic_size", GIB - 1)]),
        lambda: create_options([u64("segment_size", 2 * MIB), u64("max_topic_size", 2 * MIB - 1)]),
        lambda: update_options(fits, [u64("max_topic_size", MIB)]),
    ]
    for attempt in attempts:
        with pytest.raises(ShmbrokerError) as caught:
            attempt()
        assert caught.value.number == ErrorCode.INVALID_TOPIC_SIZE
    # A small default of the broker refuses nobody who did not ask for it.
    assert create_options([], TopicDefaults(max_topic_size=2 * MIB)).max_topic_size == GIB


def test_preallocation_is_bounded() -> None:
    values = [text("preallocate_segments", "true")]
    assert create_options(values, partitions_count=64).preallocate_segments
    with pytest.raises(InvalidOption, match="preallocate_segments"):
        create_options(values, partitions_count=65)
    assert create_options([*values, u64("segment_size", MIB)], partitions_count=1000).preallocate_segments


def test_a_key_given_twice_and_too_many() -> None:
    with pytest.raises(InvalidOption, match="twice"):
        create_options([text("durability", "persisted"), text("durability", "persisted")])
    with pytest.raises(ShmbrokerError) as caught:
        create_options([text(f"k{number}", "x") for number in range(1025)])
    assert caught.value.number == ErrorCode.OPTIONS_BLOCK_TOO_LARGE


def test_values_go_out_in_canonical_kinds() -> None:
    options = create_options(
        [text("segment_size", "2 MiB"), text("preallocate_segments", "true"), text("messages_required_to_save", "7")]
    )
    assert options.explicit_values() == (
        u32("messages_required_to_save", 7),
        OptionValue("preallocate_segments", 3, b"\1"),
        u64("segment_size", 2 * MIB),
    )
    derived = options.derived_values()
    assert sorted(value.key for value in (*options.explicit_values(), *derived)) == sorted(KEYS)
    again = create_options([*options.explicit_values(), *derived])
    assert again.report() == {key: (value, True) for key, (value, _) in options.report().items()}


def test_the_catalogue_of_options() -> None:
    entries = describe()
    assert tuple(entry.key for entry in entries) == KEYS == tuple(sorted(KEYS, key=str.encode))
    assert create_options([OptionValue(*entry[:3]) for entry in entries]) == TopicOptions(explicit=frozenset(KEYS))
    assert all(entry.description for entry in entries)


def test_python_values() -> None:
    values = option_values(
        {
            "durability": Durability.PERSISTED,
            "messages_required_to_save": 5,
            "message_expiry": None,
            "segment_size": 2 * MIB,
            "preallocate_segments": True,
            "max_topic_size": "unlimited",
        }
    )
    assert values == (
        text("durability", "persisted"),
        text("max_topic_size", "unlimited"),
        u32("messages_required_to_save", 5),
        OptionValue("preallocate_segments", 3, b"\1"),
        u64("segment_size", 2 * MIB),
    )
    for settings in ({"messages_required_to_save": 2**32}, {"segment_size": -1}, {"durability": "x" * 256}, {"x": ""}):
        with pytest.raises(InvalidOption):
            option_values(settings)
    with pytest.raises(InvalidOption):
        create_options(option_values({"durability": True}))
    with pytest.raises(UnsupportedOption):
        create_options(option_values({"enforce_fsync": True}))


def test_there_is_a_text_for_every_value() -> None:
    for spec in options_module.SPECS.values():
        default = getattr(TopicOptions(), spec.field)
        assert spec.parse(spec.to_text(default)) == default
