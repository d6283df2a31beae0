"""Eight-byte words that another process polls: the one place that loads and stores them.

``struct.pack_into`` zeroes its target before it writes: another process saw a transient 0 in 4 to 37 % of reads. One
item of ``memoryview.cast("Q")`` is one aligned 8-byte move, and was never seen torn in 60 million reads. So a polled
word is only ever touched through a view made here, by :func:`load` and :func:`store`, or by ``words[index]`` of such a
view in a loop where a call would be felt.

Publishing (fill, then store the head) needs store-store and load-load order, which x86-64 gives; Python has no fence to
ask for elsewhere, so this module refuses other machines at import.
"""

from __future__ import annotations

import mmap
import platform
import sys

from shmbroker.errors import InvalidConfiguration

if platform.machine() != "x86_64" or sys.platform != "linux":
    raise InvalidConfiguration(
        f"shmbroker runs on Linux on x86-64; this is {sys.platform} on {platform.machine()}, whose memory order or"
        " system calls it does not know"
    )

WORD_SIZE = 8


def words_of(buffer: mmap.mmap | bytearray | memoryview) -> memoryview:
    """A view of ``buffer`` as 8-byte words. The buffer starts on a page and its length is a multiple of 8."""
    return memoryview(buffer).cast("B").cast("Q")


def load(words: memoryview, index: int) -> int:
    """The word at ``index``, in one aligned move."""
    value: int = words[index]
    return value


def store(words: memoryview, index: int, value: int) -> None:
    """Sets the word at ``index``, in one aligned move."""
    words[index] = value
