"""The application: routes, the shape of every fault, and what describes it all: ``/openapi.json`` and ``/docs``."""

from __future__ import annotations

import logging
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from shmbroker.config import HttpConfig
from shmbroker.errors import ShmbrokerError
from shmbroker.gateway import routes_catalog, routes_messages, routes_system, routes_users
from shmbroker.gateway.admission import Admission, answer_of
from shmbroker.gateway.caller import Gateway
from shmbroker.gateway.faults import ErrorBody, Refused, by_status, of_error
from shmbroker.gateway.messages import ProduceBody
from shmbroker.gateway.validation import invalid

US_PER_S: Final = 1_000_000
LOG: Final = logging.getLogger("shmbroker.gateway")
RETRY_HEADER: Final = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}}
FAULTS: Final[dict[int | str, dict[str, Any]]] = {
    400: {"model": ErrorBody, "description": "Not as it must be, or refused by the broker: change it."},
    401: {"model": ErrorBody, "description": "No valid token."},
    403: {"model": ErrorBody, "description": "This user may not."},
    404: {"model": ErrorBody, "description": "It is not there."},
    408: {"model": ErrorBody, "description": "The body did not come in time."},
    413: {"model": ErrorBody, "description": "The body is too large."},
    429: {"model": ErrorBody, "description": "Too many writes of this user: not accepted.", "headers": RETRY_HEADER},
    503: {"model": ErrorBody, "description": "Nothing was accepted: try again.", "headers": RETRY_HEADER},
    504: {"model": ErrorBody, "description": "No answer in time: the outcome of a write is unknown."},
}
ABOUT: Final = (
    "Streams, topics and messages over HTTP, as Apache Iggy has them. Every fault is answered with"
    " `{id, code, reason, field}`. Times are microseconds, binary values base64."
)


def make_app(gateway: Gateway, settings: HttpConfig) -> ASGIApp:
    """What uvicorn serves."""
    app = _routed()
    app.state.gateway = gateway
    admitted: ASGIApp = Admission(app, gateway.figures, settings.body_size_max, settings.time_limit_us / US_PER_S)
    if settings.origins:
        admitted = CORSMiddleware(
            admitted,
            allow_origins=settings.origins,
            allow_methods=["*"],
            allow_headers=["Authorization", "Content-Type"],
            expose_headers=[routes_messages.DURABILITY, "Retry-After"],
        )
    return admitted


def description() -> dict[str, Any]:
    """The OpenAPI document, as ``/openapi.json`` has it."""
    return _described(_routed())


def _routed() -> FastAPI:
    app = FastAPI(
        title="shmbroker",
        version=version("shmbroker"),
        description=ABOUT,
        responses=FAULTS,
        generate_unique_id_function=_operation_id,
    )
    for module in (routes_system, routes_users, routes_catalog, routes_messages):
        app.include_router(module.router)
    app.add_exception_handler(HTTPException, _http_fault)
    app.add_exception_handler(RequestValidationError, _not_valid)
    app.add_exception_handler(ShmbrokerError, _broker_fault)
    app.add_exception_handler(Exception, _own_fault)
    app.openapi = lambda: _described(app)  # type: ignore[method-assign]
    return app


# --- faults -----------------------------------------------------------------------------------------------------------
async def _http_fault(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    if isinstance(error, Refused):
        return answer_of(error)
    fault = by_status(error.status_code, str(error.detail))
    fault.extra.update(error.headers or {})
    return answer_of(fault)


async def _not_valid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return answer_of(invalid(error.errors()))


async def _broker_fault(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ShmbrokerError)
    return answer_of(of_error(error, "request"))


async def _own_fault(request: Request, error: Exception) -> JSONResponse:
    LOG.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return answer_of(by_status(HTTPStatus.INTERNAL_SERVER_ERROR, "the gateway failed to answer: see its log"))


# --- description ------------------------------------------------------------------------------------------------------
def _operation_id(route: APIRoute) -> str:
    return route.name


def _described(app: FastAPI) -> dict[str, Any]:
    """OpenAPI, without the 422 that is never sent, and with the body that produce decodes by itself."""
    if app.openapi_schema is None:
        described = FastAPI.openapi(app)
        for path in described["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        schemas = described["components"]["schemas"]
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        produced = ProduceBody.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(produced.pop("$defs"))
        schemas["ProduceBody"] = produced
        app.openapi_schema = described
    return app.openapi_schema
