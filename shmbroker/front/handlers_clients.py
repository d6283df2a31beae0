"""Who is connected: this connection, all of them, or one by the number that the broker gave it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shmbroker.front.handlers_catalog import Handler
from shmbroker.wire import system
from shmbroker.wire.codes import Code

if TYPE_CHECKING:
    from shmbroker.front.session import Session


def client_entry(session: Session, memberships_count: int) -> system.ClientEntry:
    user_id = system.NO_USER if session.user is None else session.user.user_id
    return system.ClientEntry(session.number, user_id, session.transport, session.address, memberships_count)


def client_details(session: Session) -> system.ClientDetails:
    memberships = tuple(system.Membership(*place) for place in session.broker.groups.places_of(session))
    return system.ClientDetails(client_entry(session, len(memberships)), memberships)


async def get_me(session: Session, request: system.GetMe) -> system.ClientDetails:
    return client_details(session)


async def get_client(session: Session, request: system.GetClient) -> system.ClientDetails | None:
    found = session.broker.sessions.get(request.client_id)
    return None if found is None else client_details(found)


async def get_clients(session: Session, request: system.GetClients) -> list[system.ClientEntry]:
    broker = session.broker
    return [client_entry(each, len(broker.groups.places_of(each))) for each in broker.sessions.values()]


HANDLERS: dict[int, Handler] = {
    Code.GET_ME: get_me,
    Code.GET_CLIENT: get_client,
    Code.GET_CLIENTS: get_clients,
}
