"""The link between the front and one of its workers: what a control lane cannot carry.

The front makes, for each run of a worker, a control lane (an ordinary lane whose requests are of kind CONTROL, or of
any kind for any log), and a pair of SOCK_SEQPACKET sockets. Over the sockets go descriptors to the worker, and texts to
the front. Each packet starts with::

    0    8    number     front to worker: descriptor number, named by a later control request
                         worker to front: request number of the control request that is answered; 0 for a notice
    8    4    status     0, or an error number; worker to front only
    12   4    more       1 where the text goes on in the next packet of this number
    16        text       UTF-8 JSON; at most PACKET_TEXT_SIZE_MAX bytes

A control request's body is a JSON object with its name in ``op``. ``right`` numbers are sums of RIGHT_*::

    open        {"partitions": [{"log_id", "partition_id", "create": bool, "options": {...}}, ...]}
                -> {"partitions": [{"log_id", "state": int, "reason": text or null, "incarnation": hex or null}]}
    update      {"log_ids": [...], "options": {...}}                        -> {}
    remove      {"log_ids": [...]}                                          -> {}
    purge       {"log_ids": [...]}                                          -> {"incarnations": {log_id: hex}}
    segments    {"log_id", "count"}                                         -> {"deleted": int}
    attach      {"session", "lane_id", "descriptors": number, "bell": name or null}   fds: memfd [, bell]
    detach      {"session", "lane_id"}
    grant       {"session", "grants": [[log_id, rights], ...]}
    end         {"session"}                     all its lanes and watches
    watch       {"session", "watch_id", "log_ids", "bell": name or null [, "descriptors": number]}
                                                fds: the bell, where it has no name
    unwatch     {"session", "watch_id"}
    stats       {}                              -> {"worker": {...}, "partitions": [describe(), ...]}
    stop        {}                              -> {"failures": [text, ...]}, after the final flush of everything

A notice is a JSON object with its name in ``notice``: ``lane-closed`` {"lane_id", "text"}.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

PACKET: Final = Struct("<QII")
PACKET_SIZE: Final = 16
PACKET_TEXT_SIZE_MAX: Final = 48 * 1024
DESCRIPTORS_MAX: Final = 2

RIGHT_APPEND: Final = 1
RIGHT_READ: Final = 2
RIGHT_OFFSETS: Final = 4
RIGHTS: Final = {"append": RIGHT_APPEND, "read": RIGHT_READ, "offsets": RIGHT_OFFSETS}
RIGHTS_ALL: Final = RIGHT_APPEND | RIGHT_READ | RIGHT_OFFSETS

assert PACKET.size == PACKET_SIZE


def packets_of(number: int, status: int, text: bytes) -> list[bytes]:
    """The packets of one answer or notice, in order."""
    pieces = [text[at : at + PACKET_TEXT_SIZE_MAX] for at in range(0, len(text), PACKET_TEXT_SIZE_MAX)] or [b""]
    last = len(pieces) - 1
    return [PACKET.pack(number, status, index < last) + piece for index, piece in enumerate(pieces)]
