"""Names of streams, topics and groups, and how an identifier is read from text.

A name is 1 to 255 bytes of UTF-8, anything at all, compared exactly. In text (command line, URL, Python) an identifier
of decimal digits that fits a u32 is a number; everything else is a name. So an all-digit name can be created, and
is reached by its number only.
"""

from __future__ import annotations

from shmbroker.errors import ErrorCode, error_from
from shmbroker.limits import NAME_SIZE_MAX, U32_MAX

Identifier = int | str


def check_name(name: str, noun: str, code: ErrorCode) -> None:
    """Raises the error ``code`` unless ``name`` may be the name of a ``noun``."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise error_from(code, f"the name of a {noun} is UTF-8 text; {name!r} is not") from None
    if not 1 <= size <= NAME_SIZE_MAX:
        raise error_from(code, f"the name of a {noun} has 1 to {NAME_SIZE_MAX} bytes, not {size}")


def identifier_of(text: str | int) -> Identifier:
    """The number or the name that ``text`` means."""
    if isinstance(text, int):
        return text
    if text.isascii() and text.isdigit() and int(text) <= U32_MAX:
        return int(text)
    return text
