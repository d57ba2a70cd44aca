"""Application of the server: OTLP, API and pages, with health checks, security headers, and errors without
tracebacks."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, Final, NamedTuple

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles
from fastapi.telemetry import TelemetryConfig
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tracelake import limits
from tracelake._errors import QueryError, StorageError, TracelakeError
from tracelake.access.oidc import OpenId
from tracelake.lake.lake import Lake
from tracelake.limits import INGEST_RETRY_AFTER_S
from tracelake.location import cache_directory, in_memory
from tracelake.server import (
    access,
    archive,
    assessments,
    call_graph,
    datasets,
    evaluations,
    mlflow,
    pipeline,
    retention,
    search,
    session_page,
    trace_comparison,
    trace_list_routes,
    trace_page,
    traces,
    versions,
)
from tracelake.server.admission import AdmissionControl
from tracelake.server.audit import AuditWriter
from tracelake.server.guard import Allowed, Guard, refusal_of
from tracelake.server.http_policy import HttpLocations, status_of
from tracelake.server.key_ring import KeyRing
from tracelake.server.metrics import Requests, add_metrics
from tracelake.server.otlp_http import SIGNALS, IgnoredSignalsEndpoint, RequestBody, TracesEndpoint
from tracelake.server.pipeline_process import PipelineHost, host_error
from tracelake.server.routes import STATIC, error_page, json_response, without_lake_path
from tracelake.storage.local import low_space
from tracelake.tables.table import large_reads
from tracelake.tracking.ingest_queue import RequestGroups

logger = logging.getLogger("tracelake.server")

NO_TELEMETRY: TelemetryConfig = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)
"""Security headers of every response."""

_mlflow: Final = APIRouter()
for _prefix in mlflow.VERSIONS:
    _mlflow.include_router(mlflow.api, prefix=_prefix)
_ROUTERS: Final = (
    *(trace_list_routes.api, trace_list_routes.pages),
    *(session_page.api, session_page.pages, assessments.api, assessments.lists, assessments.pages),
    *(traces.api, trace_page.pages, search.pages),
    *(call_graph.api, call_graph.pages, trace_comparison.api, trace_comparison.pages),
    *(versions.api, versions.pages, datasets.api, datasets.pages),
    *(evaluations.api, evaluations.pages),
    *(pipeline.api, pipeline.pages, archive.api, archive.pages),
    *(retention.api, retention.erasures_api, retention.pages),
    *(mlflow.client_api, access.api, access.pages, _mlflow),
)
_ROUTES: Final = [route for router in _ROUTERS for route in router.routes]
"""Routes of each application, which are analyzed when they are declared. `FastAPI.include_router` would analyze them
again at the first request to each application, which takes most of a second."""


def create_app(
    lake: Lake,
    queue: RequestGroups,
    host: PipelineHost | None = None,
    segment_wait_s: float = limits.SEGMENT_WAIT_S,
    archiving: archive.ArchiveService | None = None,
    allowed: Allowed | None = None,
    keys_demanded: bool = False,
    openid: OpenId | None = None,
) -> FastAPI:
    """Return the application.

    Args:
        lake: The lake to serve.
        queue: Store for OTLP requests.
        host: The server's pipeline.
        segment_wait_s: Longest time that a request waits for others.
        archiving: The server's archive service; None creates one that runs only requested passes.
        allowed: Host names of the server, sites that may send traces, and locations that requests may name.
        keys_demanded: Whether every request needs a key. Otherwise keys are needed once the lake has any.
        openid: Provider for sign-in, which also makes every request need a key.
    """
    archiving, allowed = archiving or archive.ArchiveService(lake), allowed or Allowed()
    # The built-in API pages would load scripts from other sites. Tracing is off, because a server that
    # exports traces to itself would never be idle.
    app = FastAPI(
        title="Tracelake", docs_url=None, redoc_url=None, telemetry=NO_TELEMETRY, exception_handlers=_HANDLERS
    )
    ring = KeyRing(lake.keys, lake.sessions, demanded=keys_demanded or openid is not None)
    auditing = app.state.auditing = AuditWriter(lake.audit)
    app.add_middleware(AdmissionControl, refusal=refusal_of)
    app.add_middleware(
        Guard,
        ring=ring,
        auditing=auditing,
        allowed=allowed,
        has_route=lambda scope: any(each.matches(scope)[0] is Match.FULL for each in app.router.routes),
    )
    requests = add_metrics(app, lake, host, archiving)
    endpoint = TracesEndpoint(queue, segment_wait_s)
    _add_otlp(app, endpoint, requests)
    # For gRPC, which uses a separate port.
    app.state.otlp = OtlpDoor(endpoint, requests, ring, auditing)
    # Routes reach these parts as dependencies, and the lake only as `RequestLake`.
    app.state.lake, app.state.sessions, app.state.host = lake, lake.sessions, host
    app.state.archiving, app.state.ring = archiving, ring
    app.state.locations = HttpLocations(lake.url, allowed.locations)
    app.state.provider = None if openid is None else access.Provider(openid)
    app.router.routes += _ROUTES if openid is None else [*_ROUTES, *access.provider_pages.routes]
    app.mount("/static", StaticFiles(directory=STATIC))
    app.add_api_route("/favicon.ico", lambda: FileResponse(STATIC / "icon.svg"), include_in_schema=False)
    _add_health(app, queue, (lambda: host_error(host), archiving.problem), disks_of(lake))
    app.add_middleware(_Answers, requests=requests)
    return app


class OtlpDoor(NamedTuple):
    """Parts that OTLP/gRPC shares with HTTP."""

    traces: TracesEndpoint
    requests: Requests
    ring: KeyRing
    auditing: AuditWriter


class _Answers:
    """Middleware that counts responses and adds the common headers."""

    def __init__(self, app: ASGIApp, requests: Requests) -> None:
        self._app = app
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        body = RequestBody(scope, receive)
        began = monotonic()

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                reads.end_build()
                self._requests.count(scope, message["status"], monotonic() - began)
                close = () if await body.discard() else ((b"connection", b"close"),)
                message["headers"] = [*message["headers"], *HEADERS, *close]
            await send(message)

        with large_reads() as reads:
            try:
                await self._app(scope, body.receive, answer)
            except Exception:
                self._requests.count(scope, 500, monotonic() - began)
                await body.discard()
                raise


def _add_otlp(app: FastAPI, traces: TracesEndpoint, requests: Requests) -> None:
    def add(signal: str, endpoint: ASGIApp, summary: str) -> None:
        @app.post(f"/v1/{signal}", summary=summary)
        async def export() -> None:
            """Receive an OTLP export request."""

        # Registered for OpenAPI only; requests are served by the ASGI endpoint.
        app.router.routes[-1].app = endpoint  # type: ignore[attr-defined]

    add("traces", traces, "Receive an OTLP ExportTraceServiceRequest, protobuf or JSON")
    for signal in SIGNALS:
        endpoint = IgnoredSignalsEndpoint(signal, requests.count_ignored)
        add(signal, endpoint, f"Accept an OTLP export of {signal}, which are counted but not stored")


def disks_of(lake: Lake) -> list[Path]:
    """Return the directories that a server writes to: of the lake, for copies, and for temporary files."""
    local = lake.objects.local_path("disk")
    copies = [] if in_memory(lake.url) else [cache_directory(lake.config.id)]
    return [*([Path(local).parent] if local else []), *copies, Path(tempfile.gettempdir())]


def _add_health(
    app: FastAPI, queue: RequestGroups, problems: Sequence[Callable[[], str | None]], disks: Sequence[Path]
) -> None:
    @app.get("/healthz", summary="Report whether the process is alive")
    async def healthz() -> Response:
        return json_response({"status": "ok"})

    @app.get("/readyz", summary="Report whether requests can be stored; 503 with reasons if not")
    def readyz() -> Response:
        reasons = low_space(disks)
        try:
            queue.check()
        except (StorageError, OSError) as error:
            reasons.append(str(error))
        warning = "; ".join(text for problem in problems if (text := problem())) or None
        document = {"ready": not reasons, "reasons": reasons, "warning": warning}
        return json_response(document, 503 if reasons else 200)


def _error(request: Request, status: int, text: str, **more: object) -> Response:
    if request.url.path.startswith(("/api/", "/v1/")) or request.method != "GET":
        response = json_response({"error": without_lake_path(request, text), **more}, status)
    else:
        response = error_page(request, status, text)
    if status == 503:
        response.headers["Retry-After"] = str(INGEST_RETRY_AFTER_S)
    return response


def _on_tracelake_error(request: Request, error: TracelakeError) -> Response:
    status = status_of(type(error))
    if status == 500:
        logger.error("%s %s: %s", request.method, request.url.path, error)
    where = error.character if isinstance(error, QueryError) else None
    return _error(request, status, str(error), **({} if where is None else {"character": where}))


def _on_invalid_request(request: Request, error: RequestValidationError) -> Response:
    """Answer with the invalid parameters, or with the first problem of the body, which may have thousands."""
    problems = []
    for problem in error.errors():
        (place, *path), text = problem["loc"], problem["msg"]
        if place == "body":
            field = ".".join(map(str, path))[: limits.QUOTED_MAX_CHARS]
            problems.append(
                f"the body cannot be read: {field}: {text}" if path else f"the body cannot be read: {text}"
            )
            break
        problems.append(f"{path[-1]}: {text}")
    return _error(request, 400, "; ".join(problems))


_HANDLERS: Final[Any] = {
    TracelakeError: _on_tracelake_error,
    RequestValidationError: _on_invalid_request,
    HTTPException: lambda request, error: _error(request, error.status_code, error.detail),
    ClientDisconnect: lambda _request, _error: Response(status_code=400),
    # The framework logs the traceback after this response.
    Exception: lambda request, _bug: _error(request, 500, "internal error; see the log of the server"),
}
