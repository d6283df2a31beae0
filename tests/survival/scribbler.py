"""A program: offers a record again and again while a thread of it flips bits in the published bytes.

``python -m tests.survival.scribbler DATA SEED``; prints how many batches were accepted and how many refused.
"""

from __future__ import annotations

import random
import sys
import threading

from shmbroker.formats.lane import REQUEST_SIZE, REQUESTS_POSITION

from .raw import RawClient, record_of

ROUNDS = 200
PAYLOADS = [b"changing %d" % number + bytes(200) for number in range(100)]


def main(data: str, seed: int) -> None:
    rng = random.Random(seed)
    record = record_of(PAYLOADS, producer_id=0)
    counts = [0, 0]
    place = [0, 0, 0]
    stopping = threading.Event()

    def scribble(view: memoryview) -> None:
        while not stopping.is_set():
            start, size, puts_back = place
            if size:
                position = start + rng.randrange(size)
                byte = view[position]
                view[position] = byte ^ 1
                if puts_back:
                    view[position] = byte

    with RawClient(data) as raw:
        thread = threading.Thread(target=scribble, args=(raw.region.view,))
        thread.start()
        for number in range(ROUNDS):
            before = raw.lane._place
            raw.offer(record)
            start = raw.lane._place - len(record)
            assert start >= before or start == REQUESTS_POSITION + REQUEST_SIZE
            # Only the body: a request's own header that lies would close the lane.
            place[:] = start, len(record), number % 2
            counts[raw.answer() != 0] += 1
            place[:] = 0, 0, 0
        stopping.set()
        thread.join()
    print(*counts)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
