"""The worker's end of the link to its front (formats.link): descriptors come in, texts go out.

Texts are sent by a thread of their own with blocking sends, so that a front that is slow to read a long answer holds up
no producer. The front's death is noticed elsewhere, by its pipe: here it only makes the thread give up.
"""

from __future__ import annotations

import json
import queue
import socket
import threading
from array import array
from collections.abc import Mapping
from typing import Any

from shmbroker.errors import ErrorCode, LaneBroken
from shmbroker.formats.link import DESCRIPTORS_MAX, PACKET, PACKET_SIZE, packets_of

CLOSE_WAIT_S = 5.0
CONTROL_SIZE = socket.CMSG_SPACE(DESCRIPTORS_MAX * array("i").itemsize)


class Link:
    """Owned by the worker's loop; ``answer`` and ``notice`` may be called from any thread."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._arrived: dict[int, list[int]] = {}
        self._outgoing: queue.SimpleQueue[list[bytes] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._send, name="link", daemon=True)
        self._thread.start()

    def descriptors(self, number: int) -> list[int]:
        """The descriptors that the front sent as ``number``, which it did before it offered the request naming them.

        The caller owns them. LaneBroken where they are not there: front and worker disagree.
        """
        while number not in self._arrived:
            try:
                # Not recv_fds: that of Python 3.11 forgets the flags, and would wait.
                packet, control, _, _ = self._socket.recvmsg(PACKET_SIZE, CONTROL_SIZE, socket.MSG_DONTWAIT)
            except BlockingIOError:
                raise LaneBroken(f"the front named descriptors {number} and did not send them") from None
            if len(packet) != PACKET_SIZE:
                raise LaneBroken(f"the front sent a packet of {len(packet)} bytes with descriptors")
            fds = array("i")
            for level, kind, content in control:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
            self._arrived[PACKET.unpack(packet)[0]] = fds.tolist()
        return self._arrived.pop(number)

    def answer(self, number: int, body: Mapping[str, Any], status: int = ErrorCode.OK) -> None:
        self._outgoing.put(packets_of(number, status, json.dumps(body).encode()))

    def notice(self, body: Mapping[str, Any]) -> None:
        self.answer(0, body)

    def close(self) -> None:
        """Sends what is left, for a bounded time."""
        self._outgoing.put(None)
        self._thread.join(CLOSE_WAIT_S)
        self._socket.close()

    def _send(self) -> None:
        while (packets := self._outgoing.get()) is not None:
            try:
                for packet in packets:
                    self._socket.send(packet)
            except OSError:
                return  # The front is gone; its pipe tells the loop.
