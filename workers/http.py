"""The HTTP gateway's process: an ordinary local client of the broker, on uvicorn.

Started by the front with exec::

    python -m shmbroker.workers.http --data DIR --settings JSON --listen FD --pipe FD --ready FD

``--settings`` are those of config.HttpConfig; there is no secret among them. ``--listen`` is the bound socket, so that
a gateway that is started again has the same address and loses no connection that waits in its backlog. ``--ready`` gets
a byte once it serves. The end of ``--pipe`` says that the front is dead: nothing can be answered any more, and it exits
at once. SIGTERM, which it sends itself where it lost its way to the broker, has it finish what is under way, for
a bounded time; the front starts another.

Exit status: 0 after SIGTERM, 1 where it cannot start, 2 after the front's death.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import socket
import sys
from typing import Final

import uvicorn

from shmbroker.config import HttpConfig
from shmbroker.errors import ShmbrokerError
from shmbroker.gateway.access import Access
from shmbroker.gateway.admission import Figures
from shmbroker.gateway.app import make_app
from shmbroker.gateway.backend import Backend
from shmbroker.gateway.caller import Gateway
from shmbroker.gateway.exchange import Exchange
from shmbroker.gateway.timely import timely
from shmbroker.limits import HTTP_CONNECTIONS_MAX
from shmbroker.shm.liveness import PipeWatch

EXIT_FAILED: Final = 1
EXIT_ORPHANED: Final = 2
US_PER_S: Final = 1_000_000
BACKLOG: Final = 2_048
NICENESS: Final = 5
"""Where processors are short, JSON waits for the front and the workers, not they for it."""
KEEP_ALIVE_S: Final = 30
STOP_S: Final = 5
"""What is under way gets so long when it is told to stop."""
LOG: Final = logging.getLogger("shmbroker.gateway")


class Server(uvicorn.Server):
    """Says that it serves."""

    def __init__(self, config: uvicorn.Config, ready_fd: int) -> None:
        super().__init__(config)
        self._ready_fd = ready_fd

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        os.write(self._ready_fd, b"1")
        os.close(self._ready_fd)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="shmbroker.workers.http", description="started by the front")
    parser.add_argument("--data", required=True)
    parser.add_argument("--settings", required=True, type=lambda text: HttpConfig(**json.loads(text)))
    for name in ("listen", "pipe", "ready"):
        parser.add_argument(f"--{name}", required=True, type=int)
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # A terminal sends it to everybody; the front says when to stop.
    os.nice(NICENESS)
    logging.basicConfig(level=logging.INFO, format="shmbroker http %(levelname)s: %(message)s", stream=sys.stderr)
    watch = PipeWatch(options.pipe, lambda: os._exit(EXIT_ORPHANED))
    settings: HttpConfig = options.settings
    try:
        backend = Backend(options.data, lambda: os.kill(os.getpid(), signal.SIGTERM))
    except ShmbrokerError as error:
        LOG.error("%s", error)
        return EXIT_FAILED
    try:
        gateway = Gateway(backend, Exchange(backend), Access(settings.token_expiry_us // US_PER_S), Figures())
        return serve(gateway, settings, options)
    finally:
        backend.close()
        watch.close()


def serve(gateway: Gateway, settings: HttpConfig, options: argparse.Namespace) -> int:
    """Until SIGTERM."""
    listener = socket.socket(fileno=options.listen)
    config = uvicorn.Config(
        make_app(gateway, settings),
        loop="uvloop",
        http=timely(settings.time_limit_us / US_PER_S),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        backlog=BACKLOG,
        limit_concurrency=HTTP_CONNECTIONS_MAX,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=STOP_S,
        ssl_certfile=settings.certificate,
        ssl_keyfile=settings.private_key,
    )
    server = Server(config, options.ready)
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(server.serve([listener]))
    return 0 if server.started else EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
