"""The broker itself: figures, connections, options, metrics, health."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Response
from fastapi.responses import JSONResponse, PlainTextResponse

from shmbroker.errors import ErrorCode, ShmbrokerError
from shmbroker.gateway import shapes
from shmbroker.gateway.bodies import U32, SnapshotBody
from shmbroker.gateway.caller import Deadline, Reader, Shared, Writer
from shmbroker.gateway.faults import refused
from shmbroker.gateway.metrics import CONTENT_TYPE, exposition, troubles_of
from shmbroker.wire import local, system

router = APIRouter(tags=["system"])
SCOPES = {"topic": system.SCOPE_TOPIC, "stream": system.SCOPE_STREAM, "user": system.SCOPE_USER}
_TEXT: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"const": "pong"}}}}}
_ZIP: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}}}
}
_METRICS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/openmetrics-text": {"schema": {"type": "string"}}}}
}
_NOT_READY: dict[int | str, dict[str, Any]] = {503: {"model": shapes.Readiness, "description": "It does not serve."}}


@router.get("/ping", response_class=PlainTextResponse, responses=_TEXT)
async def ping() -> str:
    """Says pong."""
    return "pong"


@router.get("/stats")
async def get_stats(caller: Reader) -> shapes.StatsInfo:
    """Figures of the broker."""
    return shapes.StatsInfo.of(await caller.command(system.GetStats()))


@router.get("/clients")
async def get_clients(caller: Reader) -> list[shapes.ClientInfo]:
    """All connections."""
    return [shapes.ClientInfo.of(entry) for entry in await caller.command(system.GetClients())]


@router.get("/clients/{client_id}")
async def get_client(client_id: Annotated[U32, Path()], caller: Reader) -> shapes.ClientInfoDetails:
    """One connection with its groups."""
    found = await caller.command(system.GetClient(client_id))
    if found is None:
        raise refused(ErrorCode.CLIENT_NOT_FOUND, f"there is no client {client_id}")
    return shapes.ClientInfoDetails.of_details(found)


@router.get("/options/{scope}")
async def get_options(scope: Literal["topic", "stream", "user"], caller: Reader) -> list[shapes.OptionEntry]:
    """The options that there are, with their defaults."""
    return shapes.option_entries(await caller.command(system.DescribeOptions(SCOPES[scope])))


@router.get("/cluster/metadata")
async def get_cluster(caller: Reader) -> shapes.ClusterInfo:
    """The cluster of one node."""
    return shapes.ClusterInfo.of(await caller.command(system.GetClusterMetadata()))


@router.post("/snapshot", response_class=Response, responses=_ZIP)
async def get_snapshot(body: SnapshotBody, caller: Writer) -> Response:
    """A ZIP archive of diagnostics."""
    reply = await caller.command(body.to_wire())
    return Response(reply.archive, HTTPStatus.OK, media_type="application/zip")


@router.get("/metrics", response_class=Response, responses=_METRICS)
async def metrics(caller: Reader) -> Response:
    """For Prometheus (with ``authorization`` in its scrape configuration), by who may look at the server. Costs the
    workers nothing."""
    reply = await caller.command(local.Logs())
    text = await caller.gateway.backend.carry(lambda: exposition(reply, caller.gateway.figures))
    return Response(text, HTTPStatus.OK, {"Content-Type": CONTENT_TYPE})


# --- health -----------------------------------------------------------------------------------------------------------
@router.get("/health/live")
async def live() -> shapes.Liveness:
    """Answered by the gateway alone: restart it where it does not."""
    return shapes.Liveness(status="live")


@router.get("/health/ready", response_model=shapes.Readiness, responses=_NOT_READY)
async def ready(gateway: Shared, deadline: Deadline) -> JSONResponse:
    """503 while a partition is refused or poisoned, saying which and why, and while the broker does not answer."""
    reason, found = None, []
    try:
        reply = await gateway.backend.ask(local.Logs(), deadline)
        found = [shapes.Trouble(**trouble) for trouble in troubles_of(reply.logs)]
    except ShmbrokerError as error:
        reason = str(error)
    is_ready = reason is None and not found
    readiness = shapes.Readiness(status="ready" if is_ready else "not_ready", reason=reason, partitions=found)
    status = HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE
    return JSONResponse(readiness.model_dump(), status)
