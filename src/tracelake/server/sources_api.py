"""`/api/v1/sources`: what pipelines take input from, and changing that while they run."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Response

from tracelake.lake.lake import Lake
from tracelake.server.api import json_response
from tracelake.server.json_body import body_in_openapi, json_body
from tracelake.server.locations import HttpLocations


class NewSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body that adds a source."""

    name: str
    address: str


class Pause(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body that pauses a source, or ends that."""

    on: bool = True


def sources_api(lake: Lake, locations: HttpLocations) -> APIRouter:
    """Return the routes of the JSON API for sources."""
    router = APIRouter(prefix="/api/v1/sources")

    @router.get("", summary="List sources: state, lag, and how fast each is taken")
    def sources() -> Response:
        return json_response({"sources": lake.sources.all()})

    @router.post(
        "",
        summary="Let every pipeline take what appears somewhere",
        openapi_extra=body_in_openapi(NewSource),
    )
    def add(body: Annotated[NewSource, Depends(json_body(NewSource))]) -> Response:
        locations.check_source(body.address)
        return json_response({"source": lake.sources.add(body.name, body.address)}, 201)

    @router.post(
        "/{name}/pause",
        summary="Take nothing of a source that appears from now on; `on` false resumes it",
        openapi_extra=body_in_openapi(Pause),
    )
    def pause(name: str, body: Annotated[Pause, Depends(json_body(Pause))]) -> Response:
        change = lake.sources.pause if body.on else lake.sources.resume
        return json_response({"source": change(name)})

    @router.delete("/{name}", summary="Forget a source; what is recorded of it is finished")
    def remove(name: str) -> Response:
        lake.sources.remove(name)
        return json_response({"source": name})

    return router
