"""Application of the server: OTLP, API and pages, with health checks, security headers, and errors without
tracebacks."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.staticfiles import StaticFiles
from fastapi.telemetry import TelemetryConfig
from fastapi.templating import Jinja2Templates
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tracelake import limits
from tracelake._errors import QueryError, StorageError, TracelakeError
from tracelake.access.oidc import OpenId
from tracelake.access.sessions import Sessions
from tracelake.lake.lake import Lake
from tracelake.limits import INGEST_RETRY_AFTER_S
from tracelake.location import cache_directory, in_memory
from tracelake.server.access import audit_api, keys_api, sessions_api, sign_in_pages
from tracelake.server.admission import AdmissionControl
from tracelake.server.archive import ArchiveService, archive_api, archive_pages
from tracelake.server.audit import AuditWriter
from tracelake.server.guard import Allowed, Guard, refusal_of
from tracelake.server.http_policy import HttpLocations, status_of
from tracelake.server.key_ring import KeyRing
from tracelake.server.metrics import Requests, add_metrics
from tracelake.server.mlflow import mlflow_api, mlflow_search, mlflow_traces
from tracelake.server.otlp_http import SIGNALS, IgnoredSignalsEndpoint, RequestBody, TracesEndpoint
from tracelake.server.pipeline import pipeline_api, pipeline_pages, sources_api, transactions_api
from tracelake.server.pipeline_host import PipelineHost, host_error
from tracelake.server.search import search_pages
from tracelake.server.trace_list import list_api, list_pages, overview_pages
from tracelake.server.trace_page import trace_pages
from tracelake.server.traces import STATIC, api_routes, json_response, page_routes, page_templates
from tracelake.server.versions import versions_api, versions_pages
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


def create_app(
    lake: Lake,
    queue: RequestGroups,
    host: PipelineHost | None = None,
    segment_wait_s: float = limits.SEGMENT_WAIT_S,
    archiving: ArchiveService | None = None,
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
    archiving, allowed = archiving or ArchiveService(lake), allowed or Allowed()
    # The built-in API pages would load scripts from other sites. Tracing is off, because a server that
    # exports traces to itself would never be idle.
    app = FastAPI(title="Tracelake", docs_url=None, redoc_url=None, telemetry=NO_TELEMETRY)
    templates = page_templates()
    ring = KeyRing(lake.keys, lake.sessions, demanded=keys_demanded or openid is not None)
    error_page = _error_page(templates)
    auditing = app.state.auditing = AuditWriter(lake.audit)
    app.add_middleware(AdmissionControl, refusal=lambda scope, error: refusal_of(scope, error, error_page))
    app.add_middleware(
        Guard,
        ring=ring,
        auditing=auditing,
        allowed=allowed,
        has_route=lambda scope: any(each.matches(scope)[0] is Match.FULL for each in app.router.routes),
        error_page=error_page,
    )
    requests = add_metrics(app, lake, host, archiving)
    traces = TracesEndpoint(queue, segment_wait_s)
    _add_otlp(app, traces, requests)
    # For gRPC, which uses a separate port.
    app.state.otlp = OtlpDoor(traces, requests, ring, auditing)
    # Routes reach the lake only through `RequestLake`, so none of them gets it here.
    app.state.lake, sessions = lake, lake.sessions
    locations, disks = HttpLocations(lake.url, allowed.locations), disks_of(lake)
    app.include_router(list_api())
    app.include_router(list_pages(templates))
    app.include_router(overview_pages(templates))
    app.include_router(api_routes())
    app.include_router(page_routes())
    app.include_router(trace_pages(templates))
    app.include_router(search_pages(templates))
    app.include_router(versions_api())
    app.include_router(transactions_api())
    app.include_router(sources_api(locations))
    app.include_router(pipeline_api(host))
    app.include_router(pipeline_pages(host, templates))
    app.include_router(archive_api(archiving, locations))
    app.include_router(archive_pages(archiving, templates))
    app.include_router(mlflow_api())
    # Before the read routes, one of which accepts any trace id in the place of a name.
    app.include_router(mlflow_traces())
    app.include_router(mlflow_search())
    app.include_router(versions_pages(templates))
    app.include_router(keys_api(ring))
    app.include_router(sessions_api(ring))
    app.include_router(audit_api(auditing))
    # Users who sign in are not authenticated yet, so these pages get only the sessions.
    app.include_router(sign_in_pages(ring, auditing, templates, sessions, openid is not None))
    if openid is not None:
        app.include_router(_provider_pages(openid, ring, auditing, templates, sessions))
    app.mount("/static", StaticFiles(directory=STATIC))
    _add_health(app, queue, (lambda: host_error(host), archiving.problem), disks)
    _add_errors(app, error_page)
    app.add_middleware(_Answers, requests=requests)
    return app


def _provider_pages(
    openid: OpenId, ring: KeyRing, auditing: AuditWriter, templates: Jinja2Templates, sessions: Sessions
) -> APIRouter:
    # Imported lazily, because of the signature library.
    from tracelake.server.access import Provider, provider_pages  # noqa: PLC0415

    return provider_pages(openid, Provider(openid), ring, auditing, templates, sessions)


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


def _error_page(templates: Jinja2Templates) -> Callable[[Request, int, str], Response]:
    def page(request: Request, status: int, text: str) -> Response:
        context = {"status": status, "text": text, "json_url": None, "lake_url": ""}
        return templates.TemplateResponse(request, "error.html", context, status_code=status)

    return page


def _add_errors(app: FastAPI, error_page: Callable[[Request, int, str], Response]) -> None:
    def answer(request: Request, status: int, text: str, **more: object) -> Response:
        if request.url.path.startswith(("/api/", "/v1/")) or request.method != "GET":
            response = json_response({"error": text, **more}, status)
        else:
            response = error_page(request, status, text)
        if status == 503:
            response.headers["Retry-After"] = str(INGEST_RETRY_AFTER_S)
        return response

    @app.exception_handler(TracelakeError)
    def on_tracelake_error(request: Request, error: TracelakeError) -> Response:
        status = status_of(type(error))
        if status == 500:
            logger.error("%s %s: %s", request.method, request.url.path, error)
        where = error.character if isinstance(error, QueryError) else None
        return answer(request, status, str(error), **({} if where is None else {"character": where}))

    @app.exception_handler(RequestValidationError)
    def on_bad_parameter(request: Request, error: RequestValidationError) -> Response:
        problems = (f"{problem['loc'][-1]}: {problem['msg']}" for problem in error.errors())
        return answer(request, 400, "; ".join(problems))

    @app.exception_handler(HTTPException)
    def on_http_error(request: Request, error: HTTPException) -> Response:
        return answer(request, error.status_code, error.detail)

    @app.exception_handler(ClientDisconnect)
    def on_disconnect(_request: Request, _error: ClientDisconnect) -> Response:
        return Response(status_code=400)

    @app.exception_handler(Exception)
    def on_bug(request: Request, _error: Exception) -> Response:
        # The framework logs the traceback after this response.
        return answer(request, 500, "internal error; see the log of the server")
