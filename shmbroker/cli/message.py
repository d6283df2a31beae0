"""``shmbroker message``: send, poll and flush.

Long input goes out in batches, a bounded number of them in flight, with a bar; the command returns when every batch has
met the topic's policy. A file of ``poll --output-file`` holds frames as on the wire, one after the other, and is what
``send --input-file`` reads.
"""

from __future__ import annotations

import base64
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from shmbroker.cli import output
from shmbroker.cli.connection import DATA_DEFAULT, Data, PartitionId, StreamName, TopicName, connected, identifier
from shmbroker.cli.output import Json
from shmbroker.errors import InvalidMessage
from shmbroker.formats.batch import FRAME_HEADER, FRAME_HEADER_SIZE
from shmbroker.formats.headers import HeaderItem, HeaderKind, decode_headers, encode_headers, typed
from shmbroker.limits import U32_MAX, U64_MAX

if TYPE_CHECKING:
    from shmbroker.client.batch import Message
    from shmbroker.client.ticket import Confirmation

BATCH_COUNT = 1_000
BATCH_SIZE_TARGET = 1 << 20
TIMEOUT_S = 30.0

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help=(
        "Messages: send them, poll them.\n\n"
        '`shmbroker message send market trades "hello" --partition-id 0`\n\n'
        "`shmbroker message send market trades --file lines.txt`\n\n"
        "`shmbroker message poll market trades 0 --first --message-count 10`"
    ),
)  # fmt: skip


class Outgoing(NamedTuple):
    payload: bytes
    id: int = 0
    headers: dict[HeaderItem, HeaderItem] | None = None
    input_size: int = 0
    """Bytes of input that it was read from: what the bar counts."""


@app.command()
def send(
    stream: StreamName,
    topic: TopicName,
    messages: Annotated[
        list[str] | None, typer.Argument(metavar="MESSAGE", help="None: one message for each line of input.")
    ] = None,
    partition_id: Annotated[
        int | None, typer.Option("--partition-id", "-p", min=0, max=U32_MAX, help="Into this partition.")
    ] = None,
    message_key: Annotated[
        str | None, typer.Option("--message-key", "-m", help="Into the partition that this key hashes to.")
    ] = None,
    headers: Annotated[
        str | None, typer.Option("--headers", "-H", metavar="KEY:KIND:VALUE,...", help="On every message.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", exists=True, dir_okay=False, help="One message for each line of it.")
    ] = None,
    input_file: Annotated[
        Path | None, typer.Option("--input-file", exists=True, dir_okay=False, help="What --output-file of poll wrote.")
    ] = None,
    data: Data = DATA_DEFAULT,
    as_json: Json = False,
) -> None:
    """Send messages, and wait until they have met the topic's policy.

    Without --partition-id or --message-key, batches go to the partitions in turn.

    `shmbroker message send market trades "first" "second" --message-key AAPL`

    `shmbroker message send market trades --file lines.txt`

    `shmbroker message send market trades "x" --headers "source:string:desk,level:uint8:3"`
    """
    if sum((bool(messages), file is not None, input_file is not None)) > 1:
        raise typer.BadParameter("give messages, or --file, or --input-file, not several of them")
    if partition_id is not None and message_key is not None:
        raise typer.BadParameter("give --partition-id or --message-key, not both")
    common = headers_of(headers) if headers else None
    source = messages_of(messages, file, input_file)
    place: dict[str, Any] = {} if partition_id is None else {"partition": partition_id}
    if message_key is not None:
        place["key"] = message_key
    size = next((path.stat().st_size for path in (file, input_file) if path), None)
    started = time.monotonic()
    with connected(data) as client, client.producer(identifier(stream), identifier(topic)) as producer:
        sent = send_all(producer, source, place, common, size)
    seconds = time.monotonic() - started
    facts = {
        "stream": stream, "topic": topic, "confirmed": sent.message_count, "last_partition": sent.partition,
        "last_base_offset": sent.base_offset, "seconds": round(seconds, 6),
    }  # fmt: skip
    where = (
        f"; the last batch is at offset {sent.base_offset:,} of partition {sent.partition}"
        if sent.message_count
        else ""
    )
    sentence = f"{sent.message_count:,} message{'' if sent.message_count == 1 else 's'} confirmed{where}."
    output.print_done(sentence, facts, as_json=as_json)


class Sent(NamedTuple):
    message_count: int
    partition: int | None
    base_offset: int | None


def send_all(
    producer: Any,
    source: Iterator[Outgoing],
    place: dict[str, Any],
    common: dict[HeaderItem, HeaderItem] | None,
    size: int | None,
) -> Sent:
    """Submits everything in batches and waits for the last confirmation; raises what the first failed batch raises."""
    count = 0
    last: Confirmation | None = None
    tickets: deque[Any] = deque()
    with output.progress(quiet=size is None) as bar:
        task = bar.add_task("bytes", total=size, note="")
        for batch in batches_of(source):
            tickets.append(submit(producer, batch, place, common))
            count += len(batch)
            while tickets and tickets[0].done():
                last = tickets.popleft().result()
            bar.update(task, advance=sum(message.input_size for message in batch), note=f"{count:,} messages")
        while tickets:
            last = tickets.popleft().result(TIMEOUT_S)
    return Sent(count, last.partition if last else None, last.base_offset if last else None)


def submit(
    producer: Any, batch: list[Outgoing], place: dict[str, Any], common: dict[HeaderItem, HeaderItem] | None
) -> Any:
    headers = [{**(common or {}), **(message.headers or {})} or None for message in batch]
    ids = [message.id for message in batch]
    return producer.submit(
        [message.payload for message in batch],
        headers=headers if any(headers) else None,
        ids=ids if all(ids) else None,
        **place,
    )


def batches_of(source: Iterator[Outgoing]) -> Iterator[list[Outgoing]]:
    """Up to BATCH_COUNT messages at a time, fewer where they are large."""
    batch: list[Outgoing] = []
    size = 0
    for message in source:
        batch.append(message)
        size += len(message.payload)
        if len(batch) >= BATCH_COUNT or size >= BATCH_SIZE_TARGET:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def messages_of(words: list[str] | None, file: Path | None, input_file: Path | None) -> Iterator[Outgoing]:
    if words:
        return (Outgoing(word.encode()) for word in words)
    if input_file is not None:
        return frames_of(input_file)
    return lines_of(file)


def lines_of(file: Path | None) -> Iterator[Outgoing]:
    """Every line that is not empty, without its end, of a file or of standard input."""
    with file.open("rb") if file is not None else closing(sys.stdin.buffer) as lines:
        for line in lines:
            payload = line.rstrip(b"\r\n")
            if payload:
                yield Outgoing(payload, input_size=len(line))


def frames_of(path: Path) -> Iterator[Outgoing]:
    with path.open("rb") as file:
        position = 0
        while head := file.read(FRAME_HEADER_SIZE):
            if len(head) < FRAME_HEADER_SIZE:
                raise InvalidMessage(f"{path}: at byte {position}: a frame is cut short")
            _, message_id, _, _, headers_length, payload_length, _ = FRAME_HEADER.unpack(head)
            body = file.read(payload_length + headers_length)
            if len(body) < payload_length + headers_length or not payload_length:
                raise InvalidMessage(f"{path}: at byte {position}: no frame that poll --output-file writes")
            headers = decode_headers(body[payload_length:]) if headers_length else None
            size = FRAME_HEADER_SIZE + len(body)
            yield Outgoing(body[:payload_length], int.from_bytes(message_id, "little"), headers, size)
            position += size


def frame_of(message: Message) -> bytes:
    block = encode_headers(message.headers) if message.headers else b""
    head = FRAME_HEADER.pack(0, message.id.to_bytes(16, "little"), 0, 0, len(block), len(message.payload), 0)
    return head + message.payload + block


def headers_of(text: str) -> dict[HeaderItem, HeaderItem]:
    """ "key:kind:value,..." as headers. A usage error where it does not read so."""
    found: dict[HeaderItem, HeaderItem] = {}
    for part in text.split(","):
        key, _, rest = part.partition(":")
        name, _, value = rest.partition(":")
        kind = HeaderKind.__members__.get(name.upper())
        if not key or not value or kind is None:
            kinds = ", ".join(member.lower() for member in HeaderKind.__members__)
            raise typer.BadParameter(f"{part!r} is not KEY:KIND:VALUE; kinds are {kinds}", param_hint="--headers")
        try:
            found[key] = typed(kind, scalar_of(kind, value))
        except (ValueError, InvalidMessage) as fault:
            raise typer.BadParameter(f"{value!r} is no {name}", param_hint="--headers") from fault
    return found


def scalar_of(kind: HeaderKind, value: str) -> str | bytes | bool | int | float:
    if kind is HeaderKind.STRING:
        return value
    if kind is HeaderKind.RAW:
        return value.encode()
    if kind is HeaderKind.BOOL:
        return {"true": True, "false": False}[value.lower()] if value.lower() in {"true", "false"} else bool(int(value))
    return float(value) if kind in {HeaderKind.FLOAT32, HeaderKind.FLOAT64} else int(value)


@app.command()
def poll(
    stream: StreamName,
    topic: TopicName,
    partition: PartitionId,
    offset: Annotated[
        int | None, typer.Option("--offset", "-o", min=0, max=U64_MAX, help="From this offset on.")
    ] = None,
    timestamp: Annotated[
        int | None, typer.Option("--timestamp", "-t", min=0, max=U64_MAX, help="From this time on: us since 1970.")
    ] = None,
    first: Annotated[bool, typer.Option("--first", "-f", help="From the earliest that is kept.")] = False,
    last: Annotated[bool, typer.Option("--last", "-l", help="The last ones.")] = False,
    following: Annotated[bool, typer.Option("--next", "-n", help="After the consumer's stored offset.")] = False,
    message_count: Annotated[
        int, typer.Option("--message-count", "-m", min=1, max=U32_MAX, help="How many at most.")
    ] = 1,
    auto_commit: Annotated[
        bool, typer.Option("--auto-commit", "-a", help="Store the offset of the last one printed, and wait for it.")
    ] = False,
    consumer: Annotated[str, typer.Option("--consumer", "-c", help="Name or number of the consumer.")] = "0",
    show_headers: Annotated[bool, typer.Option("--show-headers", "-s", help="A column for each header.")] = False,
    output_file: Annotated[
        Path | None, typer.Option("--output-file", dir_okay=False, help="Write them there, for send --input-file.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Then print every message as it comes, until Ctrl-C.")
    ] = False,
    data: Data = DATA_DEFAULT,
    as_json: Json = False,
) -> None:
    """Poll messages of one partition. Exactly one of --offset, --timestamp, --first, --last, --next says from where.

    `shmbroker message poll market trades 0 --first --message-count 10`

    `shmbroker message poll market trades 0 --next --consumer audit --auto-commit --json`

    `shmbroker message poll market trades 0 --last --follow`
    """
    start: dict[str, Any] = {
        "offset": offset, "timestamp": timestamp, "first": first or None,
        "last": message_count if last else None, "next": following or None,
    }  # fmt: skip
    start = {key: value for key, value in start.items() if value is not None}
    if len(start) != 1:
        raise typer.BadParameter("give exactly one of --offset, --timestamp, --first, --last, --next")
    if follow and output_file is not None:
        raise typer.BadParameter("--follow prints what comes: it does not go with --output-file")
    who = identifier(consumer)
    named: dict[str, Any] = {"id": who} if isinstance(who, int) else {"name": who}
    with (
        connected(data) as client,
        client.consumer(identifier(stream), identifier(topic), partition=partition, **named, **start) as reader,
    ):
        if follow:
            follow_messages(reader, auto_commit=auto_commit, as_json=as_json)
            return
        messages = list(islice(polled(reader, message_count), message_count))
        if output_file is not None:
            output_file.write_bytes(b"".join(map(frame_of, messages)))
        else:
            print_messages(messages, show_headers=show_headers, as_json=as_json)
        if auto_commit and messages:
            reader.commit(partition=partition, offset=messages[-1].offset)
    if output_file is not None:
        facts = {"messages": len(messages), "output_file": str(output_file)}
        output.print_done(f"{len(messages):,} messages written to {output_file}.", facts, as_json=as_json)


def follow_messages(reader: Any, *, auto_commit: bool, as_json: bool) -> None:
    """A line for each message, from where the reader stands, until it is interrupted. JSON: an object a line."""
    for batch in reader:
        for message in batch.messages():
            if as_json:
                output.print_json(row_of(message, as_json=True))
            else:
                row = row_of(message, as_json=False)
                output.print_line(f"{row['offset']:>12,}  {row['timestamp']}  {output.escaped(row['payload'])}")
        if auto_commit:
            reader.commit()


def polled(reader: Any, wanted: int) -> Iterator[Message]:
    """Messages until there are no more, or ``wanted``; never waits for new ones."""
    while wanted > 0 and (batches := reader.poll(max_messages=wanted, timeout=0)):
        for batch in batches:
            yield from batch.messages()
            wanted -= batch.count


def print_messages(messages: Iterable[Message], *, show_headers: bool, as_json: bool) -> None:
    columns = {"offset": "Offset", "timestamp": "Timestamp", "id": "ID", "length": "Length", "payload": "Payload"}
    rows = []
    for message in messages:
        row = row_of(message, as_json=as_json)
        if show_headers and not as_json:
            for key, value in message.headers.items():
                name = printable(key)
                columns.setdefault(f"header {name}", f"Header: {name}")
                row[f"header {name}"] = printable(value)
        rows.append(row)
    output.print_rows(rows, columns, as_json=as_json, empty="No messages from there on.")


def row_of(message: Message, *, as_json: bool) -> dict[str, Any]:
    row: dict[str, Any] = {
        "offset": message.offset,
        "timestamp": message.timestamp_us if as_json else output.time_text(message.timestamp_us),
        "id": f"{message.id:032x}",
        "length": len(message.payload),
        **payload_of(message.payload, as_json=as_json),
    }
    if as_json:
        row["headers"] = {printable(key): jsonable(value) for key, value in message.headers.items()}
    return row


def payload_of(payload: bytes, *, as_json: bool) -> dict[str, str]:
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode()} if as_json else {"payload": payload.hex(" ")}


def printable(item: HeaderItem) -> str:
    data = item.data if isinstance(item, tuple) else item
    return data.decode("utf-8", "backslashreplace") if isinstance(data, bytes) else str(data)


def jsonable(item: HeaderItem) -> str | int | float | bool:
    return item if isinstance(item, str | int | float | bool) else printable(item)


@app.command()
def flush(
    stream: StreamName,
    topic: TopicName,
    partition: PartitionId,
    fsync: Annotated[bool, typer.Option("--fsync", "-f", help="Also wait until it is on stable storage.")] = False,
    data: Data = DATA_DEFAULT,
    as_json: Json = False,
) -> None:
    """Write what a partition holds in its journal to its segment files now.

    `shmbroker message flush market trades 0 --fsync`
    """
    with connected(data) as client:
        client.flush(identifier(stream), identifier(topic), partition, sync=fsync)
    facts = {"stream": stream, "topic": topic, "partition": partition, "fsync": fsync}
    done = "written and on stable storage" if fsync else "written"
    output.print_done(f"{stream}/{topic}/{partition}: {done}.", facts, as_json=as_json)
