"""Pipeline, sources, prices and explicit transactions in the JSON API and on pages.

`/api/v1/pipeline` reports transactions with their inputs, as `tracelake pipeline` does; pages show the same. The
route `/api/v1/sources` lists and changes the sources of running pipelines, `/api/v1/prices` the own prices of models.
`/api/v1/transactions` controls explicit transactions, as `tracelake transaction` does.

The server only records a client's request; a pipeline of this or another server executes it. Therefore a response
waits for a limited time, and is 202 if the request is still pending.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any, Final, Literal, TypeAlias

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import Field

from tracelake import limits
from tracelake._errors import BackPressureError, UsageError
from tracelake.journal.protocol import ClientRequest
from tracelake.lake.explicit_transactions import ClientTransactionInfo
from tracelake.lake.lake import Lake
from tracelake.otlp.prices import RATES, price_table
from tracelake.results import RepricingReport
from tracelake.server import routes
from tracelake.server.audit import tell_object
from tracelake.server.http_policy import RequestLake
from tracelake.server.pipeline_process import PipelineHost, host_error
from tracelake.server.render import with_query
from tracelake.tasks.runners import InProcess

TRANSACTIONS = "/api/v1/transactions"


class NewTransaction(routes.RequestModel):
    """Request body that begins a transaction; null values mean the settings' defaults."""

    id: str | None = None
    when_gone: Literal["seal", "discard"] | None = None
    timeout_s: Annotated[float, Field(gt=0, le=limits.CLIENT_TIMEOUT_MAX_S)] | None = None


Host: TypeAlias = Annotated[PipelineHost | None, routes.app_part("host")]
"""This server's pipeline."""
api = APIRouter(prefix="/api/v1", route_class=routes.JsonRoute)
"""JSON API for explicit transactions, the pipeline and its sources."""
pages = APIRouter(include_in_schema=False)
"""Pages of the pipeline."""


@api.get("/transactions")
def current(lake: RequestLake) -> Response:
    """Show the explicit transaction that was begun last; at most one is open."""
    info = lake.transactions.current()
    return routes.json_response({"transactions": [] if info is None else [info]})


@api.get("/transactions/{transaction_id}")
def one(lake: RequestLake, transaction_id: str) -> Response:
    """Show the state of an explicit transaction."""
    return routes.json_response(lake.transactions.get(transaction_id))


@api.post("/transactions")
def begin(lake: RequestLake, body: routes.JsonBody[NewTransaction]) -> Response:
    """Begin an explicit transaction."""
    transaction = lake.transactions.begin(when_gone=body.when_gone, timeout_s=body.timeout_s, id=body.id)
    return _answer(lake.transactions.get(transaction.id), 201)


@api.post("/transactions/{transaction_id}/seen")
def seen(lake: RequestLake, transaction_id: str, _body: routes.JsonBody[routes.NoDetails]) -> Response:
    """Keep a transaction alive: restart its timeout."""
    lake.transactions.alive(transaction_id, lambda _: None)
    return routes.json_response(lake.transactions.get(transaction_id))


@api.post("/transactions/{transaction_id}/commit")
def commit(lake: RequestLake, transaction_id: str, _body: routes.JsonBody[routes.NoDetails]) -> Response:
    """Commit a transaction with all pending input."""
    return _end(lake, transaction_id, "commit")


@api.post("/transactions/{transaction_id}/abort")
def abort(lake: RequestLake, transaction_id: str, _body: routes.JsonBody[routes.NoDetails]) -> Response:
    """Abort a transaction and publish nothing."""
    return _end(lake, transaction_id, "abort")


def _end(lake: Lake, id: str, request: ClientRequest) -> Response:
    """Record a client's commit or abort request, and wait a limited time for a pipeline to execute it."""
    info = lake.transactions.end(lake.transactions.get(id).id, request)
    until_s = time.monotonic() + limits.OPERATION_ANSWER_WAIT_S
    while info.state != "over" and time.monotonic() < until_s:
        time.sleep(limits.PIPELINE_POLL_S / 4)
        info = lake.transactions.get(id)
    return _answer(info, 200 if info.state == "over" else 202)


def _answer(info: ClientTransactionInfo, status: int) -> Response:
    response = routes.json_response(info, status)
    response.headers["Location"] = f"{TRANSACTIONS}/{info.id}"
    return response


PIPELINE = "/api/v1/pipeline"
PRICES_PAGE: Final = "/pipeline/prices"
_REPLAYING: Final = threading.Lock()
_CORRECTING: Final = threading.Lock()
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


@api.get("/pipeline")
def overview(
    lake: RequestLake, host: Host, limit: routes.Limit = limits.PAGE_ROWS_DEFAULT, before: Number = None
) -> Response:
    """Show replicas, pending input, and a page of transactions, newest first."""
    return routes.json_response(pipeline_overview(lake, host, limit, before))


@api.get("/pipeline/transactions")
def transactions(
    lake: RequestLake, host: Host, limit: routes.Limit = limits.PAGE_ROWS_DEFAULT, before: Number = None
) -> Response:
    """List a page of transactions, newest first."""
    page = pipeline_overview(lake, host, limit, before)
    return routes.json_response({"transactions": page["transactions"], "next": page["next"]})


@api.get("/pipeline/transactions/{transaction}")
def explain(lake: RequestLake, transaction: int) -> Response:
    """Show the inputs and the results of a transaction."""
    return routes.json_response(lake.journal.explain(transaction))


@api.post("/pipeline/transactions/{transaction}/replay")
def replay(lake: RequestLake, transaction: int, _body: routes.JsonBody[routes.NoDetails]) -> Response:
    """Read the recorded input of a transaction again and compare."""
    with _one_at_a_time(_REPLAYING, "a transaction is being replayed"):
        report = lake.journal.replay(transaction, runner=InProcess())
    return routes.json_response({"ok": report.ok, **asdict(report)})


@contextmanager
def _one_at_a_time(lock: threading.Lock, activity: str) -> Iterator[None]:
    """Hold a lock during expensive work. Raises BackPressureError if another request holds it."""
    if not lock.acquire(blocking=False):
        raise BackPressureError(f"{activity} on this server; retry when that has ended")
    try:
        yield
    finally:
        lock.release()


@pages.get("/pipeline")
def pipeline_page(
    lake: RequestLake,
    host: Host,
    request: Request,
    limit: routes.Limit = limits.PAGE_ROWS_DEFAULT,
    before: Number = None,
) -> Response:
    """Show pending input and transactions."""
    view = pipeline_overview(lake, host, limit, before)
    next_url = with_query(request, before=view["next"]) if view["next"] is not None else None
    return routes.render_page(request, "pipeline.html", PIPELINE, view=view, next_url=next_url)


class NewPrice(routes.RequestModel):
    """Request body that sets an own price of a model, in US dollars per million tokens."""

    model: str
    input: float
    output: float = 0.0
    cached_input: float | None = None
    cache_write: float | None = None
    valid_from: str = ""


def _corrections(lake: Lake) -> dict[str, object]:
    """Return whether the costs of stored spans are still those of earlier prices, and the last correction."""
    state = lake.prices.applied()
    return {"pending": lake.prices.is_due(), "applied_at": state.applied_at or None, "spans": state.spans}


@api.get("/prices")
def prices(lake: RequestLake) -> Response:
    """List the lake's own prices of models, and the last correction of stored costs."""
    return routes.json_response({"prices": lake.prices.all(), "corrections": _corrections(lake)})


@api.post("/prices")
def set_price(lake: RequestLake, body: routes.JsonBody[NewPrice]) -> Response:
    """Add or replace an own price of a model. A pipeline then corrects the costs of stored spans."""
    return routes.json_response({"price": lake.prices.set(**body.model_dump())}, 201)


@api.delete("/prices")
def remove_price(lake: RequestLake, model: routes.Name, valid_from: routes.Text = None) -> Response:
    """Remove the own prices of a model, or only the one that is valid from a day."""
    tell_object(f"model {model}")
    return routes.json_response({"removed": lake.prices.remove(model, valid_from)})


def _correct(lake: Lake, *, dry_run: bool) -> RepricingReport:
    """Correct the costs of stored spans, or return the planned correction."""
    with _one_at_a_time(_CORRECTING, "costs are being corrected"):
        return lake.prices.apply(dry_run=dry_run)


def _answer_correction(report: RepricingReport) -> Response:
    return routes.json_response({"spans": report.spans, **asdict(report)})


@api.get("/prices/corrections")
def preview_prices(lake: RequestLake) -> Response:
    """Show the stored spans whose cost differs from the prices, by model."""
    return _answer_correction(_correct(lake, dry_run=True))


@api.post("/prices/corrections")
def apply_current_prices(lake: RequestLake, _body: routes.JsonBody[routes.NoDetails]) -> Response:
    """Correct the costs of stored spans at once."""
    tell_object("all models")
    return _answer_correction(_correct(lake, dry_run=False))


@pages.get(PRICES_PAGE)
def prices_page(lake: RequestLake, request: Request, preview: bool = False) -> Response:
    """Show the prices by which costs are computed, and on request the costs that would change."""
    return routes.render_page(
        request, "prices.html", "/api/v1/prices",
        own=lake.prices.all(), shipped=price_table(), rates=RATES, corrections=_corrections(lake),
        report=_correct(lake, dry_run=True) if preview else None,
        can_change=routes.is_allowed(request, PRICES_PAGE),
    )  # fmt: skip


@pages.post(f"{PRICES_PAGE}/apply")
def apply_prices(lake: RequestLake) -> Response:
    """Correct the costs of stored spans, and show the prices."""
    tell_object("all models")
    _correct(lake, dry_run=False)
    return RedirectResponse(PRICES_PAGE, 303)


@pages.post(PRICES_PAGE)
def submit_price(lake: RequestLake, fields: routes.FormFields) -> Response:
    """Set the price of a form, and show the prices."""
    numbers: dict[str, float | None] = {}
    for name in RATES:
        text = fields.get(name, "").strip()
        try:
            numbers[name] = float(text) if text else None
        except ValueError:
            raise UsageError(f"{name} is a number of US dollars, such as 0.25") from None
    model, input = fields.get("model", ""), numbers.pop("input")
    if input is None:
        raise UsageError("a price needs the US dollars per million input tokens; 0 is allowed")
    tell_object(f"model {model.strip()}")
    output = numbers.pop("output") or 0.0
    lake.prices.set(
        model, input=input, output=output, **numbers, valid_from=fields.get("valid_from", "").strip()
    )
    return RedirectResponse(PRICES_PAGE, 303)


@pages.post(f"{PRICES_PAGE}/delete")
def delete_price(lake: RequestLake, fields: routes.FormFields) -> Response:
    """Remove the price of a form, and show the prices."""
    model, day = fields.get("model", ""), fields.get("valid_from", "")
    tell_object(f"model {model}")
    lake.prices.remove(model, day)
    return RedirectResponse(PRICES_PAGE, 303)


@pages.get("/pipeline/{transaction}")
def transaction_page(lake: RequestLake, request: Request, transaction: int) -> Response:
    """Show a transaction."""
    explained = lake.journal.explain(transaction)
    shown = limits.PAGE_ROWS_DEFAULT
    twin = f"{PIPELINE}/transactions/{transaction}"
    return routes.render_page(
        request, "transaction.html", twin, explanation=explained, info=explained.info, shown=shown
    )


class NewSource(routes.RequestModel):
    """Request body that adds a source."""

    name: str
    address: str


class Pause(routes.RequestModel):
    """Request body that pauses or resumes a source."""

    on: bool = True


@api.get("/sources")
def sources(lake: RequestLake) -> Response:
    """List sources with their state, lag and rate."""
    return routes.json_response({"sources": lake.sources.all()})


@api.post("/sources")
def add(lake: RequestLake, locations: routes.Locations, body: routes.JsonBody[NewSource]) -> Response:
    """Add a source for all pipelines."""
    locations.check_source(body.address)
    return routes.json_response({"source": lake.sources.add(body.name, body.address)}, 201)


@api.post("/sources/{name}/pause")
def pause(lake: RequestLake, name: str, body: routes.JsonBody[Pause]) -> Response:
    """Pause a source; `on` false resumes it."""
    change = lake.sources.pause if body.on else lake.sources.resume
    return routes.json_response({"source": change(name)})


@api.delete("/sources/{name}")
def remove(lake: RequestLake, name: str) -> Response:
    """Remove a source; its recorded input is still ingested."""
    lake.sources.remove(name)
    return routes.json_response({"source": name})
