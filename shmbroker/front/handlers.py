"""What the front does for each command: one table, from command code to handler.

A handler gets the session and the decoded request, and returns what ``wire.commands.encode_reply`` takes (None: an
empty body), or a reply with descriptors; it raises a ShmbrokerError to refuse. Commands that are not here are answered
with "feature unavailable". Handlers of one connection run one after the other.
"""

from __future__ import annotations

from shmbroker.front import (
    gateway_requests,
    handlers_catalog,
    handlers_clients,
    handlers_groups,
    handlers_local,
    handlers_messages,
    handlers_partitions,
    handlers_system,
    handlers_users,
    login,
)
from shmbroker.front.handlers_catalog import Handler
from shmbroker.wire.local import LocalCode

HANDLERS: dict[int, Handler] = {
    **handlers_system.HANDLERS,
    **handlers_catalog.HANDLERS,
    **handlers_partitions.HANDLERS,
    **handlers_messages.HANDLERS,
    **handlers_groups.HANDLERS,
    **handlers_local.HANDLERS,
    **login.HANDLERS,
    **handlers_users.HANDLERS,
    **handlers_clients.HANDLERS,
    **gateway_requests.HANDLERS,
}
HANDLERS[LocalCode.AS_USER] = gateway_requests.as_user(HANDLERS)
