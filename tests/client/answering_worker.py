"""A process at the worker's end of one lane, for tests of what a client does with answers: it appends nothing.

Run with the number of the lane's descriptor and the names of the two bells; it answers every APPEND with the next
offsets, and everything else with 0. On its standard input it takes commands, a line each, and says when it has obeyed:

    hold     answers nothing from now on; still takes requests
    release  answers what was held, and goes on
    fail N   answers every request with status N from now on (0: as usual)
    deaf     takes no more requests
    die      ends at once, without a word
"""

from __future__ import annotations

import os
import select
import sys

from shmbroker.formats.batch import unpack_header
from shmbroker.formats.lane import REQUEST_APPEND
from shmbroker.shm.doorbell import NamedDoorbell
from shmbroker.shm.lane import LaneServer
from shmbroker.shm.region import Region


class Answering:
    def __init__(self, fd: int, doorbell: str, completion: str) -> None:
        self.bell = NamedDoorbell.open_named(completion)
        self.doorbell = NamedDoorbell.open_named(doorbell)
        self.lane = LaneServer(Region.attach(fd), self.bell)
        self.next_offset = 0
        self.held: list[tuple[int, int, int]] = []
        self.is_holding = self.is_deaf = False
        self.status = 0

    def run(self) -> None:
        print("ready", flush=True)
        while True:
            rung = self.doorbell.wait(0.02)
            if not rung and select.select([0], [], [], 0)[0]:
                line = os.read(0, 100).decode()
                if not line:
                    return
                for command in line.split("\n")[:-1]:
                    self.obey(command)
            if not self.is_deaf:
                self.drain()

    def obey(self, command: str) -> None:
        word, _, argument = command.partition(" ")
        if word == "die":
            os._exit(1)
        self.is_deaf = word == "deaf"
        if word in ("hold", "release"):
            self.is_holding = word == "hold"
        if word == "fail":
            self.status = int(argument)
        if word == "release":
            self.answer(self.held)
            self.held = []
        print(command, flush=True)

    def drain(self) -> None:
        self.doorbell.drain()
        while requests := self.lane.drain():
            answers = []
            for kind, _, number, _, _, body in requests:
                count = unpack_header(bytes(body[:256])).message_count if kind == REQUEST_APPEND else 0
                answers.append((number, self.next_offset, count))
                self.next_offset += count
            del body, requests
            self.lane.release()
            if self.is_holding:
                self.held += answers
            else:
                self.answer(answers)

    def answer(self, answers: list[tuple[int, int, int]]) -> None:
        for number, offset, count in answers:
            self.lane.complete(number, self.status, 0, offset, count)
        if answers:
            self.lane.publish()


if __name__ == "__main__":
    Answering(int(sys.argv[1]), sys.argv[2], sys.argv[3]).run()
