"""``shmbroker topic``: create, delete, update, get, list and purge topics, and choose what an acknowledgement means.

Options go to the broker as they were typed: it alone knows them, and refuses the unknown and the retired ones by name.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from shmbroker.cli import output
from shmbroker.cli.connection import DATA_DEFAULT, Data, StreamName, TopicName, connected, identifier
from shmbroker.cli.output import Json
from shmbroker.limits import PARTITION_COUNT_PER_REQUEST_MAX

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help=(
        "Topics: partitioned logs, each with its own durability.\n\n"
        "`shmbroker topic create market trades 4 none --durability persisted`\n\n"
        "`shmbroker topic get market trades`"
    ),
)  # fmt: skip

COLUMNS = {
    "id": "ID", "created": "Created", "name": "Name", "size_bytes": "Size (B)", "max_topic_size": "Max Topic Size",
    "compression": "Compression", "message_expiry": "Message Expiry", "messages": "Messages Count",
    "partitions": "Partitions Count", "durability": "Durability",
}  # fmt: skip

Partitions = Annotated[
    int, typer.Argument(metavar="PARTITIONS", min=0, max=PARTITION_COUNT_PER_REQUEST_MAX, help="How many.")
]
Compression = Annotated[str, typer.Argument(metavar="COMPRESSION", help="none or gzip. Kept, never applied.")]
Expiry = Annotated[
    list[str] | None,
    typer.Argument(metavar="EXPIRY", help="When messages may go: 7days, 1h 30m, never_expire, server_default."),
]
MaxSize = Annotated[
    str | None,
    typer.Option("--max-topic-size", "-m", help="10GiB, unlimited, server_default. Old segments go beyond it."),
]
Policy = Annotated[
    str | None,
    typer.Option(
        "--durability",
        help="What an acknowledged message survives: **replicated** (every process of the broker; the default) or"
        " **persisted** (the machine). For ever: a topic keeps the policy it was created with.",
    ),
]
OffsetPolicy = Annotated[
    str | None, typer.Option("--consumer-offset-durability", help="The same for stored offsets, and independent of it.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Any other topic option, as often as needed: segment_size, messages_required_to_save,"
        " size_of_messages_required_to_save, preallocate_segments.",
    ),
]


def facts_of(topic: Any) -> dict[str, Any]:
    return {
        "id": topic.id,
        "created": output.time_text(topic.created_at_us),
        "name": topic.name,
        "size_bytes": topic.size,
        "max_topic_size": output.size_text(topic.max_topic_size),
        "compression": topic.options.get("compression_algorithm", "none"),
        "message_expiry": output.duration_text(topic.message_expiry_us),
        "messages": topic.message_count,
        "partitions": topic.partition_count,
        "durability": topic.durability.value,
        "consumer_offset_durability": topic.consumer_offset_durability.value,
    }


def json_facts_of(topic: Any) -> dict[str, Any]:
    """For scripts: sizes in bytes and times in microseconds beside the words; 2^64 - 1 is never, and without bound."""
    return {
        **facts_of(topic),
        "created_at_us": topic.created_at_us,
        "max_topic_size_bytes": topic.max_topic_size,
        "message_expiry_us": topic.message_expiry_us,
    }


def settings_of(pairs: list[str] | None) -> dict[str, str]:
    """The options of ``--set``. A usage error where one is not KEY=VALUE."""
    found = {}
    for pair in pairs or ():
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise typer.BadParameter(f"{pair!r} is not KEY=VALUE", param_hint="--set")
        found[key.strip()] = value.strip()
    return found


def chosen(**options: str | None) -> dict[str, str]:
    return {key: value for key, value in options.items() if value is not None}


@app.command()
def create(
    stream: StreamName,
    name: Annotated[str, typer.Argument(metavar="NAME", help="1 to 255 bytes; unique in its stream.")],
    partitions: Partitions,
    compression: Compression = "none",
    expiry: Expiry = None,
    max_topic_size: MaxSize = None,
    durability: Policy = None,
    consumer_offset_durability: OffsetPolicy = None,
    settings: Settings = None,
    topic_id: Annotated[int | None, typer.Option("--topic-id", "-t", hidden=True)] = None,
    enforce_fsync: Annotated[bool, typer.Option("--enforce-fsync", hidden=True)] = False,
    data: Data = DATA_DEFAULT,
    as_json: Json = False,
) -> None:
    """Create a topic. Its durability is chosen here, once.

    `shmbroker topic create my-stream my-topic 1 none --durability persisted --consumer-offset-durability persisted`

    `shmbroker topic create market ticks 8 none 7days --set segment_size=268435456`
    """
    options: dict[str, Any] = {
        **chosen(
            compression_algorithm=compression,
            message_expiry=" ".join(expiry) if expiry else None,
            max_topic_size=max_topic_size,
            durability=durability,
            consumer_offset_durability=consumer_offset_durability,
            enforce_fsync="true" if enforce_fsync else None,
        ),
        "options": settings_of(settings),
    }
    with connected(data) as client:
        topic = client.create_topic(identifier(stream), name, partitions=partitions, **options)
    output.warn_of_number(name)
    output.print_done(
        f"Topic {stream}/{topic.name} created; its number is {topic.id}; messages are {topic.durability.value},"
        f" offsets {topic.consumer_offset_durability.value}.",
        facts_of(topic),
        as_json=as_json,
    )


@app.command()
def update(
    stream: StreamName,
    topic: TopicName,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new name; the old one to keep it.")],
    compression: Compression = "none",
    expiry: Expiry = None,
    max_topic_size: MaxSize = None,
    settings: Settings = None,
    data: Data = DATA_DEFAULT,
    as_json: Json = False,
) -> None:
    """Change what may change: name, compression, expiry and largest size. Durability may not.

    `shmbroker topic update market ticks ticks none 30days`
    """
    options: dict[str, Any] = {
        **chosen(
            compression_algorithm=compression,
            message_expiry=" ".join(expiry) if expiry else None,
            max_topic_size=max_topic_size,
        ),
        "options": settings_of(settings),
    }
    with connected(data) as client:
        client.update_topic(identifier(stream), identifier(topic), name=name, **options)
    output.warn_of_number(name)
    output.print_done(f"Topic {stream}/{topic} updated.", {"updated": topic, "name": name}, as_json=as_json)


@app.command()
def delete(stream: StreamName, topic: TopicName, data: Data = DATA_DEFAULT, as_json: Json = False) -> None:
    """Delete a topic with its messages and stored offsets.

    `shmbroker topic delete market trades`
    """
    with connected(data) as client:
        client.delete_topic(identifier(stream), identifier(topic))
    output.print_done(f"Topic {stream}/{topic} deleted.", {"deleted": topic}, as_json=as_json)


@app.command()
def get(stream: StreamName, topic: TopicName, data: Data = DATA_DEFAULT, as_json: Json = False) -> None:
    """Show one topic: its policies, its options, its partitions. Exit status 1 if there is none.

    `shmbroker topic get market trades`
    """
    with connected(data) as client:
        found = client.get_topic(identifier(stream), identifier(topic))
    partitions = [
        {
            "id": entry.id,
            "segments": entry.segment_count,
            "current_offset": entry.current_offset,
            "messages": entry.message_count,
            "size_bytes": entry.size,
        }
        for entry in found.partitions
    ]
    options = {key: {"value": value, "explicit": key in found.explicit} for key, value in sorted(found.options.items())}
    if as_json:
        output.print_json({**json_facts_of(found), "options": options, "partition_list": partitions})
        return
    shown = {
        f"option {key}": f"{entry['value']}{'' if entry['explicit'] else ' (default)'}"
        for key, entry in options.items()
    }
    output.print_properties({**facts_of(found), **shown}, as_json=False)
    columns = {
        "id": "Partition", "segments": "Segments", "current_offset": "Current offset", "messages": "Messages",
        "size_bytes": "Size (B)",
    }  # fmt: skip
    output.print_rows(partitions, columns, as_json=False, empty="It has no partitions.")


@app.command("list")
def list_(stream: StreamName, data: Data = DATA_DEFAULT, as_json: Json = False) -> None:
    """List the topics of a stream.

    `shmbroker topic list market`
    """
    with connected(data) as client:
        facts = json_facts_of if as_json else facts_of
        rows = [facts(topic) for topic in client.list_topics(identifier(stream))]
    empty = f"{stream} has no topic yet: shmbroker topic create {stream} NAME PARTITIONS"
    output.print_rows(rows, COLUMNS, as_json=as_json, empty=empty)


@app.command()
def purge(stream: StreamName, topic: TopicName, data: Data = DATA_DEFAULT, as_json: Json = False) -> None:
    """Drop all messages and stored offsets of a topic; offsets start at 0 again.

    `shmbroker topic purge market trades`
    """
    with connected(data) as client:
        client.purge_topic(identifier(stream), identifier(topic))
    output.print_done(f"Topic {stream}/{topic} purged.", {"purged": topic}, as_json=as_json)
