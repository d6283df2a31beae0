"""shmbroker: a message broker for one Linux host whose producers are mostly on that host.

::

    import shmbroker

    with shmbroker.connect("shm:///path/of/data") as client: ...     # a broker that runs already, on this host
    with shmbroker.connect("iggy://user:secret@host:8090") as client: ...    # any broker, over TCP
    with shmbroker.embedded("/path/of/data") as broker: ...          # one of one's own, ended with the block

The names in ``__all__`` are the interface; :mod:`shmbroker.errors` has the exceptions. They are imported when they are
first used, since every process of the broker imports this package too, and few of them are clients.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from shmbroker import errors
from shmbroker.errors import ShmbrokerError

if TYPE_CHECKING:
    from shmbroker.client.aio import AsyncClient, AsyncConsumer, AsyncProducer, connect_async
    from shmbroker.client.batch import Batch, Message
    from shmbroker.client.client import Client, connect
    from shmbroker.client.consumer import Consumer
    from shmbroker.client.embedded import embedded
    from shmbroker.client.producer import Producer
    from shmbroker.client.ticket import Confirmation, StillInFlight, Ticket
    from shmbroker.core.options import Durability
    from shmbroker.core.permissions import Permissions

__all__ = [
    "AsyncClient",
    "AsyncConsumer",
    "AsyncProducer",
    "Batch",
    "Client",
    "Confirmation",
    "Consumer",
    "Durability",
    "Message",
    "Permissions",
    "Producer",
    "ShmbrokerError",
    "StillInFlight",
    "Ticket",
    "connect",
    "connect_async",
    "embedded",
    "errors",
]

_HOMES = {
    "AsyncClient": "client.aio",
    "AsyncConsumer": "client.aio",
    "AsyncProducer": "client.aio",
    "Batch": "client.batch",
    "Client": "client.client",
    "Confirmation": "client.ticket",
    "Consumer": "client.consumer",
    "Durability": "core.options",
    "Message": "client.batch",
    "Permissions": "core.permissions",
    "Producer": "client.producer",
    "StillInFlight": "client.ticket",
    "Ticket": "client.ticket",
    "connect": "client.client",
    "connect_async": "client.aio",
    "embedded": "client.embedded",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
