"""The two ends of a lane (formats.lane has the drawing): LaneClient in a client, LaneServer in a worker.

Who writes what. The client: requests, ``request_head``, ``completion_tail``. The worker: completions,
``completion_head``, ``request_tail``. ``closed``: the worker, or the front once the worker is dead. Each end keeps what
it writes in attributes of its own and never reads it back from memory that the other end can write.

Invariants of the client: ``request_head - request_tail <= request_size``; fewer than LANE_COMPLETION_COUNT requests are
in flight, so that a completion always has a slot.

The worker does not trust the client. All that it believes is what it holds privately: how far it has read, how many
requests it took, how many completions it wrote, and the size of the region, which is sealed. Every head, tail, length
and kind is copied out of the lane once and checked against those; the first that lies raises LaneBroken and is named
in it. No length that was not checked is ever used as a bound, so nothing outside of the request ring is read.
The check of requests in flight stands at the entrance (:meth:`LaneServer.drain` takes no request for which there is no
completion slot), so :meth:`LaneServer.complete` cannot fail and needs no check.

Full is a value: ``offer`` returns False. A broken peer and a mistake raise.

Orders that matter (x86-64 keeps stores in order and loads in order, shm.words refuses other machines):

- SYNC request: the client fills, then stores ``request_head``; the worker loads it, then reads.
- SYNC space: the worker is done with the bytes (release), then stores ``request_tail``; the client loads it, then
  overwrites.
- SYNC completion: the worker fills, stores ``completion_head``, rings; the client loads it, then reads.
- SYNC slot: the client has copied, then stores ``completion_tail``, and only then offers more: a worker that sees the
  new ``request_head`` sees this tail too.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from shmbroker.errors import BatchTooLarge, LaneBroken
from shmbroker.formats.lane import (
    COMPLETION,
    COMPLETION_SIZE,
    COMPLETIONS_POSITION,
    LANE_MAGIC,
    REQUEST,
    REQUEST_APPEND,
    REQUEST_CONTROL,
    REQUEST_SIZE,
    REQUEST_SKIP,
    REQUEST_WORD,
    REQUESTS_POSITION,
    WORD_CLOSED,
    WORD_COMPLETION_COUNT,
    WORD_COMPLETION_HEAD,
    WORD_COMPLETION_TAIL,
    WORD_LANE_ID,
    WORD_MAGIC,
    WORD_REQUEST_HEAD,
    WORD_REQUEST_SIZE,
    WORD_REQUEST_TAIL,
    region_size_of,
)
from shmbroker.limits import LANE_COMPLETION_COUNT, LANE_IN_FLIGHT_MAX, LANE_SIZE_MAX, LANE_SIZE_MIN, PAGE_SIZE
from shmbroker.shm import words as shared
from shmbroker.shm.doorbell import Doorbell
from shmbroker.shm.region import Region

Request = tuple[int, int, int, int, int, memoryview]
"""kind, flags, request_number, log_id, argument, body."""
Completion = tuple[int, int, int, int, int]
"""request_number, status, detail, value, argument."""

_pack_request = REQUEST.pack_into
_pack_completion = COMPLETION.pack_into
_COMPLETION_MASK = LANE_COMPLETION_COUNT - 1
_COMPLETIONS_END = COMPLETIONS_POSITION + LANE_COMPLETION_COUNT * COMPLETION_SIZE


def create_lane(request_size: int, lane_id: int) -> Region:
    """A new region that holds an empty lane; for the front. ``request_size`` is a multiple of a page.

    Raises NoSpace where there is no memory for it.
    """
    assert LANE_SIZE_MIN <= request_size <= LANE_SIZE_MAX
    assert request_size % PAGE_SIZE == 0
    region = Region.create(region_size_of(request_size), f"shmbroker-lane-{lane_id}")
    shared.store(region.words, WORD_REQUEST_SIZE, request_size)
    shared.store(region.words, WORD_COMPLETION_COUNT, LANE_COMPLETION_COUNT)
    shared.store(region.words, WORD_LANE_ID, lane_id)
    shared.store(region.words, WORD_MAGIC, LANE_MAGIC)
    return region


def close_lane(region: Region, error: int) -> None:
    """Says in the lane that it is closed, and why; for the front, when the worker has died. Ring the bell after it."""
    shared.store(region.words, WORD_CLOSED, error)


def _request_size_of(region: Region) -> int:
    """The size of the request ring, from the sealed size of the region. Raises LaneBroken where the words disagree."""
    size = region.size - REQUESTS_POSITION
    magic = shared.load(region.words, WORD_MAGIC)
    if magic != LANE_MAGIC:
        raise LaneBroken(f"lane: magic is {magic:#018x}, not a lane of this version")
    if not LANE_SIZE_MIN <= size <= LANE_SIZE_MAX:
        raise LaneBroken(f"lane: the region of {region.size} bytes is no lane")
    declared = shared.load(region.words, WORD_REQUEST_SIZE)
    if declared != size:
        raise LaneBroken(f"lane: request_size says {declared}, the region has room for {size}")
    count = shared.load(region.words, WORD_COMPLETION_COUNT)
    if count != LANE_COMPLETION_COUNT:
        raise LaneBroken(f"lane: completion_count is {count}, not {LANE_COMPLETION_COUNT}")
    return size


class LaneClient:
    """The client's end. Not thread-safe: its owner holds a lock around it.

    ``doorbell`` wakes the worker. The client waits on the lane's completion bell, which is not this object's business.
    """

    def __init__(self, region: Region, doorbell: Doorbell) -> None:
        """Raises LaneBroken where ``region`` holds no lane of this version, or one that was used before."""
        self.request_size = _request_size_of(region)
        """Bytes of the request ring."""
        self.body_length_max = self.request_size // 2 - REQUEST_SIZE
        """The longest body that always fits once the ring is empty, wherever its end happens to be."""
        self.lane_id = shared.load(region.words, WORD_LANE_ID)
        self._region = region
        self._doorbell = doorbell
        self._words = region.words
        self._view = region.view
        self._mapping = region.mapping
        self._end = REQUESTS_POSITION + self.request_size
        self._place = REQUESTS_POSITION  # in the region, of the next request
        self._head = 0
        self._head_max = self.request_size  # request_tail as last seen, and the size of the ring
        self._offered = 0
        self._offered_max = LANE_IN_FLIGHT_MAX  # completions taken, and as many as may be in flight
        self._completed = 0
        if shared.load(region.words, WORD_REQUEST_HEAD):
            raise LaneBroken("lane: another client has used it")

    def offer(
        self,
        kind: int,
        flags: int,
        request_number: int,
        log_id: int,
        argument: int,
        buffers: Sequence[bytes | bytearray | memoryview],
        body_length: int,
    ) -> bool:
        """Publishes one request whose body is ``buffers`` joined (``body_length`` bytes, C-contiguous each).

        False where the ring is full, too many requests are in flight (take the completions), or the lane is closed:
        nothing is published.
        Does not ring: call :meth:`ring` once after a group. ``request_number`` is not 0. A body that is no multiple
        of 8 is padded with zeros, and the worker sees them. Raises BatchTooLarge above ``body_length_max``.
        """
        if body_length > self.body_length_max:
            raise BatchTooLarge(f"a body of {body_length} bytes in a lane that takes {self.body_length_max}")
        length = (body_length + 39) & -8  # REQUEST_SIZE + body, aligned
        place = self._place
        head = self._head + length
        if place + length > self._end:
            head += self._end - place  # a SKIP fills the end
        words = self._words
        if (
            (head > self._head_max and not self._has_space(head))
            or self._offered >= self._offered_max
            or words[4]  # WORD_CLOSED: constants are quicker than names
        ):
            return False
        if place + length > self._end:
            place = self._skip(place)
        mapping = self._mapping
        _pack_request(mapping, place, length, kind, flags, request_number, log_id, argument)
        start = place + 32  # REQUEST_SIZE
        end = start + body_length
        for buffer in buffers:
            next_start = start + len(buffer)
            mapping[start:next_start] = buffer
            start = next_start
        if start != end:
            raise AssertionError(f"the buffers add up to {start - end + body_length} bytes, not to {body_length}")
        place += length
        if end != place:
            mapping[end:place] = bytes(place - end)
        self._place = place
        self._head = head
        self._offered += 1
        words[16] = head  # WORD_REQUEST_HEAD, SYNC request
        return True

    def _skip(self, place: int) -> int:
        """Fills the end of the ring with a SKIP, which is published with the request after it. Returns the start."""
        gap = self._end - place
        if gap:
            REQUEST_WORD.pack_into(self._mapping, place, gap, REQUEST_SKIP, 0)
        return REQUESTS_POSITION

    def _has_space(self, head: int) -> bool:
        """Looks again at how far the worker is. ``head`` is what it would be after the request."""
        tail: int = self._words[WORD_REQUEST_TAIL]  # SYNC space
        if not self._head_max - self.request_size <= tail <= self._head:
            raise LaneBroken(
                f"lane: request_tail is {tail}, after {self._head_max - self.request_size}, with {self._head} published"
            )
        self._head_max = tail + self.request_size
        return head <= self._head_max

    def ring(self) -> None:
        """Wakes the worker. Once after each group of offers."""
        self._doorbell.ring()

    def completions(self) -> list[Completion]:
        """Every completion published since the last call, in order: ``(request_number, status, detail, value,
        argument)``. Never waits. Raises LaneBroken where the worker's head is impossible."""
        tail = self._completed
        head: int = self._words[WORD_COMPLETION_HEAD]  # SYNC completion
        count = head - tail
        if not count:
            return []
        if not 0 < count <= self._offered - tail:
            raise LaneBroken(f"lane: completion_head is {head}, after {tail}, with {self._offered} requests made")
        start = COMPLETIONS_POSITION + (tail & _COMPLETION_MASK) * COMPLETION_SIZE
        end = start + count * COMPLETION_SIZE
        if end <= _COMPLETIONS_END:
            records = list(COMPLETION.iter_unpack(self._view[start:end]))
        else:
            records = list(COMPLETION.iter_unpack(self._view[start:_COMPLETIONS_END]))
            end -= _COMPLETIONS_END - COMPLETIONS_POSITION
            records += COMPLETION.iter_unpack(self._view[COMPLETIONS_POSITION:end])
        self._completed = head
        self._offered_max = head + LANE_IN_FLIGHT_MAX
        self._words[WORD_COMPLETION_TAIL] = head  # SYNC slot
        return records

    @property
    def in_flight_count(self) -> int:
        """Requests published whose completion was not taken yet."""
        return self._offered - self._completed

    @property
    def closed(self) -> int:
        """0, or the error number for which the worker (or the front for a dead one) closed the lane.

        Completions published before may still be taken."""
        closed: int = self._words[WORD_CLOSED]
        return closed

    def close(self) -> None:
        """Gives up the region. Its doorbell belongs to whoever made it."""
        self._region.close()
        for name in ("_words", "_view", "_mapping"):
            self.__dict__.pop(name, None)


class LaneServer:
    """The worker's end. One thread. ``bell`` wakes the client.

    A pass: ``drain`` until it returns nothing (or enough), ``complete`` each request once, ``release``, ``publish``:
    in this order, since a client that wakes from ``publish`` looks for space at once.
    """

    def __init__(self, region: Region, bell: Doorbell) -> None:
        """Raises LaneBroken where ``region`` holds no lane of this version."""
        self.request_size = _request_size_of(region)
        self.taken_count = 0
        """Requests handed out since the lane began."""
        self._region = region
        self._bell = bell
        self._words = region.words
        self._requests = region.view[REQUESTS_POSITION:]
        self._mapping = region.mapping
        self._index = 0  # in the ring, of the next request
        self._consumed = 0  # bytes taken since the lane began
        self._head = 0  # request_head as last seen
        self._released = 0
        self._completion_head = 0
        self._completion_tail = 0  # as last seen
        self._published = 0

    def drain(self, limit: int = LANE_COMPLETION_COUNT) -> list[Request]:
        """Up to ``limit`` requests, oldest first: ``(kind, flags, request_number, log_id, argument, body)``.

        **``body`` is lane memory: the client can change it at any time, even between two looks at it. Copy it first
        and check the copy.** It may be used until :meth:`release`. It has the request's length, padding included.

        Raises LaneBroken naming what lied. Requests before the lie are returned first, and the next call raises.
        """
        head: int = self._words[WORD_REQUEST_HEAD]  # SYNC request
        index = self._index
        end = index + head - self._consumed  # beyond the ring's size where it wraps
        if end == index:
            return []
        if head < self._head or head & 7 or head - self._released > self.request_size:
            raise LaneBroken(self._head_fault(head))
        self._head = head
        if limit > LANE_IN_FLIGHT_MAX - self.taken_count + self._completion_tail:
            limit = self._limit(limit)
        size = self.request_size
        taken: list[Request] = []
        while index != end and len(taken) < limit:
            stop = end if end < size else size
            index = self._take(index, stop, limit - len(taken), taken)
            if index == stop or len(taken) == limit:
                pass
            elif self._is_skip(index, stop):
                index = stop
            elif taken:
                break
            else:
                raise LaneBroken(self._request_fault(index, stop))
            if index == size:
                index = 0
                end -= size
        self._index = index
        self._consumed = head - (end - index)
        self.taken_count += len(taken)
        return taken

    def _take(self, index: int, stop: int, limit: int, taken: list[Request]) -> int:
        """Appends the requests from ``index``, at most ``limit``, none reaching beyond ``stop``. Returns where it
        stopped: at ``stop``, after the last one that ``limit`` allows, or at what is not a sound request."""
        requests = self._requests
        unpack_from = REQUEST.unpack_from
        append = taken.append
        try:
            for _ in range(limit):
                length, kind, flags, number, log_id, argument = unpack_from(requests, index)
                end: int = index + length
                # 32 is REQUEST_SIZE; 2 and 7 are REQUEST_APPEND and REQUEST_CONTROL: constants are quicker than names.
                if end > stop or length < 32 or length & 7 or kind < 2 or kind > 7 or not number:
                    break
                append((kind, flags, number, log_id, argument, requests[index + 32 : end]))
                if end == stop:
                    return end
                index = end
        except struct.error:
            pass  # fewer bytes than a request's header before the end of the ring: only a SKIP may stand there
        return index

    def _is_skip(self, index: int, stop: int) -> bool:
        """Whether a sound SKIP stands at ``index``: one that fills the ring to its end, and was published whole."""
        length, kind, _ = REQUEST_WORD.unpack_from(self._requests, index)
        return kind == REQUEST_SKIP and stop == self.request_size and length == stop - index

    def _limit(self, limit: int) -> int:
        """How many requests may be taken so that each has a completion slot. Raises LaneBroken where none may."""
        tail: int = self._words[WORD_COMPLETION_TAIL]  # SYNC slot
        if not self._completion_tail <= tail <= self._published:
            raise LaneBroken(
                f"lane: completion_tail is {tail}, after {self._completion_tail}, with {self._published} published"
            )
        self._completion_tail = tail
        slots = LANE_IN_FLIGHT_MAX - self.taken_count + tail
        if slots <= 0:
            raise LaneBroken(f"lane: more than {LANE_IN_FLIGHT_MAX} requests in flight (completion_tail is {tail})")
        return min(limit, slots)

    def _head_fault(self, head: int) -> str:
        if head & 7:
            return f"lane: request_head {head} is no multiple of 8"
        if head < self._head:
            return f"lane: request_head ran backwards, from {self._head} to {head}"
        return (
            f"lane: request_head {head} is beyond the capacity: request_tail {self._released} and"
            f" request_size {self.request_size}"
        )

    def _request_fault(self, index: int, stop: int) -> str:
        """What is wrong at ``index``. Read a second time, so a client that changes it meanwhile gets a vaguer text."""
        length, kind, _ = REQUEST_WORD.unpack_from(self._requests, index)
        where = f"lane: the request at {index} of the ring (published to {stop})"
        if kind == REQUEST_SKIP:
            return f"{where}: skip of length {length} does not end with the ring at {self.request_size}"
        if not REQUEST_APPEND <= kind <= REQUEST_CONTROL:
            return f"{where}: kind {kind} is not known"
        if length < REQUEST_SIZE or length & 7:
            return f"{where}: length {length} is not that of a request"
        if index + length > stop:
            return f"{where}: length {length} reaches beyond what was published"
        if self.request_size - index < REQUEST_SIZE:
            return f"{where}: no skip before the end of the ring"
        return f"{where}: request_number is 0"

    def release(self) -> None:
        """Gives the bytes of every drained request back to the client. Their bodies are not to be looked at again."""
        consumed = self._consumed
        if consumed != self._released:
            self._released = consumed
            self._words[WORD_REQUEST_TAIL] = consumed  # SYNC space

    def complete(self, request_number: int, status: int, detail: int, value: int, argument: int) -> None:
        """Writes one completion, which the client sees after :meth:`publish`. Once for each drained request."""
        head = self._completion_head
        place = 4096 + (head & _COMPLETION_MASK) * 32  # COMPLETIONS_POSITION, COMPLETION_SIZE; not yet published
        _pack_completion(self._mapping, place, request_number, status, detail, value, argument)
        self._completion_head = head + 1

    def publish(self) -> bool:
        """Shows the client what was completed, and rings its bell once. False where there was nothing new."""
        head = self._completion_head
        if head == self._published:
            return False
        assert head <= self.taken_count, "more completions than requests"
        self._published = head
        self._words[WORD_COMPLETION_HEAD] = head  # SYNC completion
        self._bell.ring()
        return True

    def close(self, error: int) -> None:
        """Closes the lane: publishes what was completed, says why in the lane, rings, gives up the region."""
        self.publish()
        shared.store(self._words, WORD_CLOSED, error)
        self._bell.ring()
        self._region.close()
        for name in ("_words", "_requests", "_mapping"):
            self.__dict__.pop(name, None)
