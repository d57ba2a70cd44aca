"""`/api/v1/archive`: what is hot and archived, and what `tracelake archive` does, by POST.

What may take long is an operation: it goes on in a thread of its own, and the answer waits for its end for a while.
Who gets a 202 asks for the operation again.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Depends, Query, Response

from tracelake import limits
from tracelake._errors import TracelakeError, UsageError
from tracelake.lake.lake import Lake
from tracelake.server.api import json_response
from tracelake.server.archive_reads import archive_overview, resolved_retention
from tracelake.server.archiving import Archiving
from tracelake.server.errors import status_of
from tracelake.server.json_body import body_in_openapi, json_body
from tracelake.server.locations import HttpLocations
from tracelake.server.operations import ServerOperation
from tracelake.server.params import Limit, Text

OVERVIEW = "/api/v1/archive"


class NewPass(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body that asks for a pass: over all that is due, or less."""

    experiment: str | None = None
    older_than: str | None = None
    max_traces: Annotated[int, msgspec.Meta(ge=1)] | None = None


class SomeTraces(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body that names traces."""

    trace_ids: Annotated[list[str], msgspec.Meta(min_length=1)]


class NewSweep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body that asks for a sweep of uploads that are so old."""

    grace_minutes: Annotated[float, msgspec.Meta(ge=0, le=limits.ARCHIVE_GRACE_MAX_S / 60)] = (
        limits.ARCHIVE_UPLOAD_GRACE_S / 60
    )


class NewRetention(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body that changes how the lake archives; what is null stays."""

    retention: str | None = None
    """A duration, or `none`."""
    layout: str | None = None
    location: str | None = None
    allowlist: list[str] | None = None
    experiment: str | None = None
    """Whose retention it is, instead of that of the lake."""
    workspace: str | None = None


def archive_api(lake: Lake, archiving: Archiving, locations: HttpLocations) -> APIRouter:
    """Return the routes of the JSON API for the archive."""
    router = APIRouter(prefix=OVERVIEW)
    _add_reads(router, lake, archiving)
    _add_retention(router, lake, locations)
    _add_operations(router, archiving)
    return router


def _add_reads(router: APIRouter, lake: Lake, archiving: Archiving) -> None:
    @router.get(
        "", summary="What is hot and what is archived, what failed, and what the next pass would take"
    )
    def overview(limit: Limit = limits.ARCHIVE_LISTED_DEFAULT) -> Response:
        return json_response(archive_overview(lake, archiving, limit))

    @router.get("/plan", summary="What a pass would take, of experiments with hot traces, the most first")
    def plan(
        experiment: Text = None, older_than: Text = None, limit: Limit = limits.PAGE_ROWS_DEFAULT
    ) -> Response:
        due = lake.archive.plan(experiment, older_than, limit + 1)
        return json_response({"experiments": due[:limit], "more": len(due) > limit})

    @router.get("/traces", summary="Archived traces, the last first, or those that are marked as malformed")
    def traces(
        state: Annotated[Literal["archived", "failed"], Query()] = "archived",
        limit: Limit = limits.PAGE_ROWS_DEFAULT,
    ) -> Response:
        return json_response({"traces": lake.archive.traces(state, limit)})

    @router.get(
        "/operations", summary="Passes, restores, deletions and sweeps of this server, the newest first"
    )
    def operations() -> Response:
        return json_response({"operations": [each.to_dict() for each in archiving.operations.newest()]})

    @router.get("/operations/{operation_id}", summary="One of them, and what came of it so far")
    def operation(operation_id: str) -> Response:
        return json_response(archiving.operations.get(operation_id).to_dict())


def _add_retention(router: APIRouter, lake: Lake, locations: HttpLocations) -> None:
    @router.get(
        "/retention", summary="How the lake archives, and how long traces of each experiment stay hot"
    )
    def retention() -> Response:
        return json_response(resolved_retention(lake))

    @router.post(
        "/retention",
        summary="Change how the lake archives; what is null stays",
        openapi_extra=body_in_openapi(NewRetention),
    )
    def configure(body: Annotated[NewRetention, Depends(json_body(NewRetention))]) -> Response:
        retention = "" if body.retention == "none" else body.retention
        if (body.experiment, body.workspace) != (None, None):
            if retention is None or (body.layout, body.location, body.allowlist) != (None, None, None):
                raise UsageError("with `experiment` or `workspace` send `retention`, and nothing else")
            lake.archive.set_retention(retention, experiment=body.experiment, workspace=body.workspace)
            return json_response(resolved_retention(lake))
        location = body.location and body.location.rstrip("/")
        if location and location != lake.archive.settings().location:
            locations.check_repository(location)
        lake.archive.configure(
            retention=retention,
            layout=body.layout,
            location=body.location,
            allowlist=body.allowlist,
        )
        return json_response(resolved_retention(lake))


def _add_operations(router: APIRouter, archiving: Archiving) -> None:
    def answer(operation: ServerOperation) -> Response:
        """Answer with what came of an operation, or, while it is under way, with where to ask again."""
        try:
            archiving.operations.wait(operation, limits.OPERATION_ANSWER_WAIT_S)
        except (TracelakeError, OSError) as error:
            status = status_of(type(error)) if isinstance(error, TracelakeError) else 503
            response = json_response({"error": str(error), "operation": operation.to_dict()}, status)
            if status == 503:
                response.headers["Retry-After"] = str(limits.INGEST_RETRY_AFTER_S)
            return response
        response = json_response(operation.to_dict(), 200 if operation.state == "done" else 202)
        response.headers["Location"] = f"{OVERVIEW}/operations/{operation.id}"
        return response

    @router.post(
        "/passes", summary="Archive what is due, in one pass", openapi_extra=body_in_openapi(NewPass)
    )
    def run(body: Annotated[NewPass, Depends(json_body(NewPass))]) -> Response:
        return answer(archiving.begin_pass(body.experiment, body.older_than, body.max_traces))

    @router.post("/restores", summary="Bring archived traces back", openapi_extra=body_in_openapi(SomeTraces))
    def restore(body: Annotated[SomeTraces, Depends(json_body(SomeTraces))]) -> Response:
        return answer(archiving.begin_restore(body.trace_ids))

    @router.post(
        "/deletions",
        summary="Delete traces from the hot tier and the archive repository",
        openapi_extra=body_in_openapi(SomeTraces),
    )
    def delete(body: Annotated[SomeTraces, Depends(json_body(SomeTraces))]) -> Response:
        return answer(archiving.begin_deletion(body.trace_ids))

    @router.post(
        "/sweeps",
        summary="Delete what killed passes left in the archive repository",
        openapi_extra=body_in_openapi(NewSweep),
    )
    def sweep(body: Annotated[NewSweep, Depends(json_body(NewSweep))]) -> Response:
        return answer(archiving.begin_sweep(body.grace_minutes * 60))
