"""`/api/v1/pipeline`: which input made which transaction, and what came of it, in the words of `tracelake pipeline`."""

from __future__ import annotations

import threading
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response

from tracelake import limits
from tracelake._errors import BackPressureError
from tracelake.lake.lake import Lake
from tracelake.server.api import json_response
from tracelake.server.beside import Beside, problem_of
from tracelake.server.json_body import body_in_openapi, json_body
from tracelake.server.params import Limit
from tracelake.server.transactions_api import NoDetails
from tracelake.tasks.runners import InProcess

PIPELINE = "/api/v1/pipeline"
Number = Annotated[int | None, Query(ge=0, le=limits.TRANSACTION_NUMBER_MAX)]


def pipeline_overview(lake: Lake, beside: Beside | None, limit: int, before: int | None) -> dict[str, Any]:
    """Return a page of transactions, what waits, the replicas, and what hinders the pipeline of this server."""
    infos = lake.journal.transactions(limit, before)
    is_more = len(infos) == limit and infos[-1].transaction > 0
    return {
        "problem": problem_of(beside),
        "replicas": lake.replicas(),
        "inbox": lake.inbox(),
        "transactions": infos,
        "next": infos[-1].transaction if is_more else None,
    }


def pipeline_api(lake: Lake, beside: Beside | None) -> APIRouter:
    """Return the routes of the JSON API for the pipeline."""
    router = APIRouter(prefix=PIPELINE)
    replaying = threading.Lock()

    @router.get("", summary="Replicas, what waits, and a page of transactions, the newest first")
    def overview(limit: Limit = limits.PAGE_ROWS_DEFAULT, before: Number = None) -> Response:
        return json_response(pipeline_overview(lake, beside, limit, before))

    @router.get("/transactions", summary="A page of transactions, the newest first")
    def transactions(limit: Limit = limits.PAGE_ROWS_DEFAULT, before: Number = None) -> Response:
        page = pipeline_overview(lake, beside, limit, before)
        return json_response({"transactions": page["transactions"], "next": page["next"]})

    @router.get("/transactions/{transaction}", summary="Which input made a transaction, and what came of it")
    def explain(transaction: int) -> Response:
        return json_response(lake.journal.explain(transaction))

    @router.post(
        "/transactions/{transaction}/replay",
        summary="Read its recorded input again, and compare",
        openapi_extra=body_in_openapi(NoDetails),
    )
    def replay(transaction: int, _body: Annotated[NoDetails, Depends(json_body(NoDetails))]) -> Response:
        if not replaying.acquire(blocking=False):
            raise BackPressureError(
                "a transaction is being replayed on this server; ask again when that is over"
            )
        try:
            report = lake.journal.replay(transaction, runner=InProcess())
        finally:
            replaying.release()
        return json_response({"ok": report.ok, **asdict(report)})

    return router
