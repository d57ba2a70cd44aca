"""`/api/v1/transactions`: explicit transactions, in the words of `tracelake transaction`.

A server says what a client wants; who carries it out is a pipeline, this server's or any other. So an answer waits for
the end for a while, and says 202 where it is not there yet.
"""

from __future__ import annotations

import time
from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Depends, Response

from tracelake import limits
from tracelake.journal.modes import Wish
from tracelake.lake.lake import Lake
from tracelake.lake.transactions import ClientTransactionInfo
from tracelake.server.api import json_response
from tracelake.server.json_body import body_in_openapi, json_body

TRANSACTIONS = "/api/v1/transactions"


class NewTransaction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body that begins a transaction; what is null is as the settings say."""

    id: str | None = None
    when_gone: Literal["seal", "discard"] | None = None
    timeout_s: Annotated[float, msgspec.Meta(gt=0, le=limits.CLIENT_TIMEOUT_MAX_S)] | None = None


class NoDetails(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of what needs none: `{}`."""


Nothing = Annotated[NoDetails, Depends(json_body(NoDetails))]


def transactions_api(lake: Lake) -> APIRouter:
    """Return the routes of the JSON API for explicit transactions."""
    router = APIRouter(prefix=TRANSACTIONS)

    @router.get("", summary="The explicit transaction that was begun last: there is one at a time")
    def current() -> Response:
        info = lake.transactions.current()
        return json_response({"transactions": [] if info is None else [info]})

    @router.get("/{transaction_id}", summary="How an explicit transaction stands")
    def one(transaction_id: str) -> Response:
        return json_response(lake.transactions.get(transaction_id))

    @router.post("", summary="Begin one", openapi_extra=body_in_openapi(NewTransaction))
    def begin(body: Annotated[NewTransaction, Depends(json_body(NewTransaction))]) -> Response:
        begun = lake.transactions.begin(when_gone=body.when_gone, timeout_s=body.timeout_s, id=body.id)
        return _answer(lake.transactions.get(begun.id), 201)

    @router.post(
        "/{transaction_id}/seen",
        summary="Say that its client lives",
        openapi_extra=body_in_openapi(NoDetails),
    )
    def seen(transaction_id: str, _body: Nothing) -> Response:
        lake.transactions.alive(transaction_id, lambda _: None)
        return json_response(lake.transactions.get(transaction_id))

    @router.post(
        "/{transaction_id}/commit",
        summary="Commit all that it has and all that waits",
        openapi_extra=body_in_openapi(NoDetails),
    )
    def commit(transaction_id: str, _body: Nothing) -> Response:
        return _end(lake, transaction_id, "commit")

    @router.post(
        "/{transaction_id}/abort", summary="Publish nothing of it", openapi_extra=body_in_openapi(NoDetails)
    )
    def abort(transaction_id: str, _body: Nothing) -> Response:
        return _end(lake, transaction_id, "abort")

    return router


def _end(lake: Lake, id: str, wish: Wish) -> Response:
    """Say what a client wants, and wait for a pipeline to do it, for a while."""
    info = lake.transactions.end(lake.transactions.get(id).id, wish)
    until_s = time.monotonic() + limits.OPERATION_ANSWER_WAIT_S
    while info.state != "over" and time.monotonic() < until_s:
        time.sleep(limits.PIPELINE_POLL_S / 4)
        info = lake.transactions.get(id)
    return _answer(info, 200 if info.state == "over" else 202)


def _answer(info: ClientTransactionInfo, status: int) -> Response:
    response = json_response(info, status)
    response.headers["Location"] = f"{TRANSACTIONS}/{info.id}"
    return response
