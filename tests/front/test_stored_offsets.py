"""What the front believes of stored offsets is never older than what a request after it on the lane would find."""

from __future__ import annotations

import random
from collections import deque

from shmbroker.front.stored_offsets import NONE_STORED, StoredOffsets


def test_an_answer_is_believed_unless_something_changed_since() -> None:
    offsets = StoredOffsets()
    asked = offsets.ask()
    offsets.raise_to(1, b"k", 7)
    offsets.learn(asked, 1, b"k", 3)
    assert offsets.find(1, b"k") is None
    offsets.learn(offsets.ask(), 1, b"k", NONE_STORED)
    offsets.raise_to(1, b"k", 5)
    offsets.raise_to(1, b"k", 4)
    assert offsets.find(1, b"k") == 5
    offsets.forget(1, b"k")
    assert offsets.find(1, b"k") is None


def test_nothing_is_known_of_a_shared_log() -> None:
    offsets = StoredOffsets()
    offsets.learn(offsets.ask(), 1, b"k", 3)
    offsets.learn(offsets.ask(), 2, b"k", 4)
    offsets.share(1)
    offsets.learn(offsets.ask(), 1, b"k", 3)
    assert offsets.find(1, b"k") is None
    assert offsets.find(2, b"k") == 4
    offsets.clear()
    assert offsets.find(2, b"k") is None


def test_any_order_of_requests_and_answers(rng: random.Random) -> None:
    """A worker that serves a lane in order, slow to answer explicit stores, as one that waits for its disk."""
    for _ in range(300):
        offsets = StoredOffsets()
        held: int | None = None
        lane: deque[tuple[str, int, int]] = deque()
        waiting: list[int] = []
        for _ in range(60):
            step = rng.choice(("ask", "auto", "store", "serve", "serve", "answer"))
            offset = rng.randrange(20)
            if step == "ask":
                known = offsets.find(1, b"k")
                if known is None:
                    lane.append(("get", offsets.ask(), 0))
                    continue
                # A question that went now would be served after all that is on the lane.
                future = held
                for kind, _, value in lane:
                    if kind == "store":
                        future = value
                    elif kind == "auto":
                        future = value if future is None else max(future, value)
                assert known == (NONE_STORED if future is None else future)
            elif step == "auto":
                offsets.raise_to(1, b"k", offset)
                lane.append(("auto", 0, offset))
            elif step == "store":
                offsets.forget(1, b"k")
                lane.append(("store", 0, offset))
            elif step == "serve" and lane:
                kind, asked, value = lane.popleft()
                if kind == "get":
                    offsets.learn(asked, 1, b"k", NONE_STORED if held is None else held)
                elif kind == "auto":
                    held = value if held is None else max(held, value)
                else:
                    held = value
                    waiting.append(value)
            elif step == "answer" and waiting:
                waiting.pop()
                offsets.forget(1, b"k")
