"""What every command prints with: tables for people, JSON for scripts, progress on standard error.

A command collects its facts as plain dictionaries and hands them here once; only this file knows how they look. Results
go to standard output, everything else to standard error, so that a pipe gets results alone.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from shmbroker.limits import GIB, KIB, MIB, U64_MAX

PIPE_WIDTH = 240
"""Columns of a table that goes to a file or a pipe: wide enough that nothing is folded."""

TERMINAL_CONTROLS = re.compile("[\x7f-\x9f]")
"""Those that json leaves as they are."""

Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts instead of a table.")]


def console(*, stderr: bool = False) -> Console:
    """A console for the stream as it is now: wide where nobody is looking, plain where it is no terminal."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, highlight=False, width=None if stream.isatty() else PIPE_WIDTH)


def print_json(value: Any) -> None:
    """Names and payloads as they are; but what a terminal could obey in an escape of JSON, which means the same."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    print_line(TERMINAL_CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def escaped(text: str) -> str:
    """As it is, but characters that cannot be printed as repr() shows them: a name may hold any, and neither a table
    nor the terminal may obey it."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def print_line(text: str) -> None:
    """Now, even into a pipe: somebody may follow."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def print_rows(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str], *, as_json: bool, empty: str) -> None:
    """A list of things: ``columns`` maps the key of a row to its heading. JSON has every key of a row."""
    if as_json:
        print_json([dict(row) for row in rows])
        return
    if not rows:
        print_note(empty)
        return
    table = Table(header_style="bold")
    for key, heading in columns.items():
        numeric = all(isinstance(row.get(key), int) for row in rows)
        table.add_column(Text(escaped(heading)), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(escaped(shown(row.get(key)))) for key in columns))
    console().print(table)


def print_properties(facts: Mapping[str, Any], *, as_json: bool) -> None:
    """One thing: a table of its properties."""
    if as_json:
        print_json(dict(facts))
        return
    table = Table("Property", "Value", header_style="bold")
    for key, value in facts.items():
        # "option segment_size" is a key that somebody will type: it stays as it is.
        table.add_row(Text(escaped(key if " " in key else key.replace("_", " "))), Text(escaped(shown(value))))
    console().print(table)


def print_done(sentence: str, facts: Mapping[str, Any], *, as_json: bool) -> None:
    """What was carried out: one sentence, or its facts."""
    if as_json:
        print_json(dict(facts))
    else:
        print_line(escaped(sentence))


def warn_of_number(name: str) -> None:
    """Said when something gets a name of digits alone."""
    if name.isascii() and name.isdigit():
        print_note(
            f"A name of digits alone is taken for a number where text is given: {name!r} can be reached by the number"
            " that the broker assigned, not by its name."
        )


def print_note(text: str) -> None:
    """Something by the way, on standard error."""
    console(stderr=True).print(Text(escaped(text)))


def shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={shown(item)}" for key, item in value.items())
    if isinstance(value, Iterable) and not isinstance(value, str):
        return ", ".join(shown(item) for item in value)
    return str(value)


def time_text(timestamp_us: int) -> str:
    """A time of the broker (microseconds since 1970) as UTC, or "-" for none."""
    if not timestamp_us:
        return "-"
    return datetime.fromtimestamp(timestamp_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")


def size_text(size: int) -> str:
    """Bytes for people: "1.5 MiB". U64_MAX is "unlimited"."""
    if size == U64_MAX:
        return "unlimited"
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size / unit:,.1f} {name}".replace(".0 ", " ")
    return f"{size} B"


def duration_text(duration_us: int) -> str:
    """Microseconds for people: "7 days". 0 and U64_MAX are "never"."""
    if duration_us in (0, U64_MAX):
        return "never"
    seconds = duration_us / 1e6
    for unit, name in ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        if seconds >= unit and seconds % unit == 0:
            count = int(seconds // unit)
            return f"{count:,} {name}{'' if count == 1 else 's'}"
    return f"{seconds:g} seconds"


def progress(*, quiet: bool = False) -> Progress:
    """A bar on standard error with count, rate of progress and time left; silent where that is no terminal."""
    target = console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=target,
        disable=quiet or not target.is_terminal,
        transient=False,
    )
