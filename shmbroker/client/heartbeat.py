"""Signs of life: one thread of this process pings the exchanges that said nothing for a while.

A broker takes a member of a consumer group for dead when it hears nothing from it; a program that thinks about its
messages for a minute is not dead. Exchanges are held weakly, and the thread ends when none is left.
"""

from __future__ import annotations

import threading
import weakref
from typing import Final

from shmbroker.client.exchange import Exchange

INTERVAL_S: Final = 5.0

_kept: weakref.WeakSet[Exchange] = weakref.WeakSet()
_lock = threading.Lock()
_threads: list[threading.Thread] = []


def keep_alive(exchange: Exchange) -> None:
    """Has ``exchange`` pinged after INTERVAL_S of silence, until it is closed or forgotten."""
    with _lock:
        _kept.add(exchange)
        if not any(thread.is_alive() for thread in _threads):  # none survives fork() either
            thread = threading.Thread(target=_run, name="shmbroker heartbeat", daemon=True)
            _threads[:] = [thread]
            thread.start()


def _run() -> None:
    pause = threading.Event()
    while True:
        pause.wait(INTERVAL_S / 2)
        with _lock:
            for exchange in [each for each in _kept if each.refusal is not None]:
                _kept.discard(exchange)
            kept = list(_kept)
            if not kept:
                _threads.clear()
                return
        for each in kept:
            each.ping_if_idle(INTERVAL_S)
        del kept
