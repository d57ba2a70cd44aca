"""Pipeline, sources and explicit transactions in the JSON API and on pages.

`/api/v1/pipeline` reports transactions with their inputs, as `tracelake pipeline` does; pages show the same. The
route `/api/v1/sources` lists and changes the sources of running pipelines. `/api/v1/transactions` controls explicit
transactions, as `tracelake transaction` does.

The server only records a client's request; a pipeline of this or another server executes it. Therefore a response
waits for a limited time, and is 202 if the request is still pending.
"""

from __future__ import annotations

import threading
import time
from dataclasses import asdict
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.templating import Jinja2Templates

from tracelake import limits
from tracelake._errors import BackPressureError
from tracelake.journal.protocol import ClientRequest
from tracelake.lake.explicit_transactions import ClientTransactionInfo
from tracelake.lake.lake import Lake
from tracelake.server.http_policy import HttpLocations, RequestLake
from tracelake.server.pipeline_host import PipelineHost, host_error
from tracelake.server.render import with_query
from tracelake.server.request_body import body_in_openapi, json_body
from tracelake.server.traces import Limit, json_response, page_maker
from tracelake.tasks.runners import InProcess

TRANSACTIONS = "/api/v1/transactions"


class NewTransaction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request body that begins a transaction; null values mean the settings' defaults."""

    id: str | None = None
    when_gone: Literal["seal", "discard"] | None = None
    timeout_s: Annotated[float, msgspec.Meta(gt=0, le=limits.CLIENT_TIMEOUT_MAX_S)] | None = None


class NoDetails(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Empty request body: `{}`."""


Nothing = Annotated[NoDetails, Depends(json_body(NoDetails))]


def transactions_api() -> APIRouter:
    """Return the routes of the JSON API for explicit transactions."""
    router = APIRouter(prefix=TRANSACTIONS)

    @router.get("", summary="Show the explicit transaction that was begun last; at most one is open")
    def current(lake: RequestLake) -> Response:
        info = lake.transactions.current()
        return json_response({"transactions": [] if info is None else [info]})

    @router.get("/{transaction_id}", summary="Show the state of an explicit transaction")
    def one(lake: RequestLake, transaction_id: str) -> Response:
        return json_response(lake.transactions.get(transaction_id))

    @router.post("", summary="Begin one", openapi_extra=body_in_openapi(NewTransaction))
    def begin(
        lake: RequestLake, body: Annotated[NewTransaction, Depends(json_body(NewTransaction))]
    ) -> Response:
        transaction = lake.transactions.begin(when_gone=body.when_gone, timeout_s=body.timeout_s, id=body.id)
        return _answer(lake.transactions.get(transaction.id), 201)

    @router.post(
        "/{transaction_id}/seen",
        summary="Keep it alive: restart its timeout",
        openapi_extra=body_in_openapi(NoDetails),
    )
    def seen(lake: RequestLake, transaction_id: str, _body: Nothing) -> Response:
        lake.transactions.alive(transaction_id, lambda _: None)
        return json_response(lake.transactions.get(transaction_id))

    @router.post(
        "/{transaction_id}/commit",
        summary="Commit it with all pending input",
        openapi_extra=body_in_openapi(NoDetails),
    )
    def commit(lake: RequestLake, transaction_id: str, _body: Nothing) -> Response:
        return _end(lake, transaction_id, "commit")

    @router.post(
        "/{transaction_id}/abort",
        summary="Abort it and publish nothing",
        openapi_extra=body_in_openapi(NoDetails),
    )
    def abort(lake: RequestLake, transaction_id: str, _body: Nothing) -> Response:
        return _end(lake, transaction_id, "abort")

    return router


def _end(lake: Lake, id: str, request: ClientRequest) -> Response:
    """Record a client's commit or abort request, and wait a limited time for a pipeline to execute it."""
    info = lake.transactions.end(lake.transactions.get(id).id, request)
    until_s = time.monotonic() + limits.OPERATION_ANSWER_WAIT_S
    while info.state != "over" and time.monotonic() < until_s:
        time.sleep(limits.PIPELINE_POLL_S / 4)
        info = lake.transactions.get(id)
    return _answer(info, 200 if info.state == "over" else 202)


def _answer(info: ClientTransactionInfo, status: int) -> Response:
    response = json_response(info, status)
    response.headers["Location"] = f"{TRANSACTIONS}/{info.id}"
    return response


PIPELINE = "/api/v1/pipeline"
Number = Annotated[int | None, Query(ge=0, le=limits.TRANSACTION_NUMBER_MAX)]


def pipeline_overview(
    lake: Lake, host: PipelineHost | None, limit: int, before: int | None
) -> dict[str, Any]:
    """Return one page of transactions, the pending input, the replicas, and the error of this server's pipeline."""
    infos = lake.journal.transactions(limit, before)
    is_more = len(infos) == limit and infos[-1].transaction > 0
    return {
        "problem": host_error(host),
        "replicas": lake.replicas(),
        "inbox": lake.inbox(),
        "transactions": infos,
        "next": infos[-1].transaction if is_more else None,
    }


def pipeline_api(host: PipelineHost | None) -> APIRouter:
    """Return the routes of the JSON API for the pipeline."""
    router = APIRouter(prefix=PIPELINE)
    replaying = threading.Lock()

    @router.get("", summary="Show replicas, pending input, and a page of transactions, newest first")
    def overview(
        lake: RequestLake, limit: Limit = limits.PAGE_ROWS_DEFAULT, before: Number = None
    ) -> Response:
        return json_response(pipeline_overview(lake, host, limit, before))

    @router.get("/transactions", summary="List a page of transactions, newest first")
    def transactions(
        lake: RequestLake, limit: Limit = limits.PAGE_ROWS_DEFAULT, before: Number = None
    ) -> Response:
        page = pipeline_overview(lake, host, limit, before)
        return json_response({"transactions": page["transactions"], "next": page["next"]})

    @router.get("/transactions/{transaction}", summary="Show the inputs and the results of a transaction")
    def explain(lake: RequestLake, transaction: int) -> Response:
        return json_response(lake.journal.explain(transaction))

    @router.post(
        "/transactions/{transaction}/replay",
        summary="Read its recorded input again and compare",
        openapi_extra=body_in_openapi(NoDetails),
    )
    def replay(
        lake: RequestLake, transaction: int, _body: Annotated[NoDetails, Depends(json_body(NoDetails))]
    ) -> Response:
        if not replaying.acquire(blocking=False):
            raise BackPressureError(
                "a transaction is being replayed on this server; retry when that has ended"
            )
        try:
            report = lake.journal.replay(transaction, runner=InProcess())
        finally:
            replaying.release()
        return json_response({"ok": report.ok, **asdict(report)})

    return router


def pipeline_pages(host: PipelineHost | None, templates: Jinja2Templates) -> APIRouter:
    """Return the routes of the pipeline's pages over `lake`."""
    router = APIRouter(include_in_schema=False)
    page = page_maker(templates)

    @router.get("/pipeline")
    def pipeline(
        lake: RequestLake, request: Request, limit: Limit = limits.PAGE_ROWS_DEFAULT, before: Number = None
    ) -> Response:
        view = pipeline_overview(lake, host, limit, before)
        next_url = with_query(request, before=view["next"]) if view["next"] is not None else None
        return page(request, "pipeline.html", PIPELINE, view=view, next_url=next_url)

    @router.get("/pipeline/{transaction}")
    def transaction(lake: RequestLake, request: Request, transaction: int) -> Response:
        account = lake.journal.explain(transaction)
        shown = limits.PAGE_ROWS_DEFAULT
        twin = f"{PIPELINE}/transactions/{transaction}"
        return page(request, "transaction.html", twin, account=account, info=account.info, shown=shown)

    return router


class NewSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request body that adds a source."""

    name: str
    address: str


class Pause(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request body that pauses or resumes a source."""

    on: bool = True


def sources_api(locations: HttpLocations) -> APIRouter:
    """Return the routes of the JSON API for sources."""
    router = APIRouter(prefix="/api/v1/sources")

    @router.get("", summary="List sources with their state, lag and rate")
    def sources(lake: RequestLake) -> Response:
        return json_response({"sources": lake.sources.all()})

    @router.post(
        "",
        summary="Add a source for all pipelines",
        openapi_extra=body_in_openapi(NewSource),
    )
    def add(lake: RequestLake, body: Annotated[NewSource, Depends(json_body(NewSource))]) -> Response:
        locations.check_source(body.address)
        return json_response({"source": lake.sources.add(body.name, body.address)}, 201)

    @router.post(
        "/{name}/pause",
        summary="Pause a source; `on` false resumes it",
        openapi_extra=body_in_openapi(Pause),
    )
    def pause(lake: RequestLake, name: str, body: Annotated[Pause, Depends(json_body(Pause))]) -> Response:
        change = lake.sources.pause if body.on else lake.sources.resume
        return json_response({"source": change(name)})

    @router.delete("/{name}", summary="Remove a source; its recorded input is still ingested")
    def remove(lake: RequestLake, name: str) -> Response:
        lake.sources.remove(name)
        return json_response({"source": name})

    return router
