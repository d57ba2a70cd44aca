"""Query parameters that pages and API share. A form sends empty fields as empty text: that means no filter."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query
from pydantic import BeforeValidator, Field

from tracelake import limits
from tracelake._errors import QueryError, UsageError
from tracelake.server.reads import Order, TraceFilter


def _none_if_empty(value: object) -> object:
    return None if value == "" else value


def _tag(text: str) -> tuple[str, str]:
    key, equal, value = text.partition("=")
    if not (key and equal):
        raise UsageError(f"{text[: limits.NAME_QUOTED_MAX_CHARS]!r} is no tag; write it as KEY=VALUE")
    return key, value


Text = Annotated[
    Annotated[str, Field(max_length=limits.PARAMETER_MAX_CHARS)] | None,
    BeforeValidator(_none_if_empty),
    Query(),
]
Name = Annotated[str, Query(min_length=1, max_length=limits.PARAMETER_MAX_CHARS)]
Milliseconds = Annotated[
    Annotated[float, Field(ge=0, le=limits.PARAMETER_MAX_MS)] | None, BeforeValidator(_none_if_empty), Query()
]
Limit = Annotated[int, Query(ge=1, le=limits.PAGE_ROWS_MAX)]
Offset = Annotated[int, Query(ge=0, le=limits.PAGE_OFFSET_MAX)]
Facets = Annotated[tuple[str, ...], Query(max_length=limits.FACETS_MAX)]
VectorText = Annotated[
    Annotated[str, Field(max_length=limits.VECTOR_PARAMETER_MAX_CHARS)] | None,
    BeforeValidator(_none_if_empty),
    Query(description="Numbers with commas between."),
]
Tags = Annotated[
    tuple[str, ...],
    Query(max_length=limits.FACETS_MAX, description="KEY=VALUE, of a tag that a trace has"),
]
Hits = Annotated[int, Query(ge=1, le=limits.SEARCH_HITS_MAX)]


def numbers_of(vector: str) -> list[float]:
    """Return the numbers of a vector. Raises QueryError."""
    try:
        return [float(number) for number in vector.split(",")]
    except ValueError as error:
        raise QueryError(
            "the vector holds what is no number; give numbers with commas between, such as 0.1,-0.25."
        ) from error


def _trace_filter(
    service: Text = None,
    session: Text = None,
    user: Text = None,
    name: Text = None,
    min_duration_ms: Milliseconds = None,
    errors: bool = False,
    tag: Tags = (),
    order: Order = "newest",
    limit: Limit = limits.PAGE_ROWS_DEFAULT,
    offset: Offset = 0,
    page: Text = None,
) -> TraceFilter:
    return TraceFilter(
        service,
        session,
        user,
        name,
        min_duration_ms,
        errors,
        tuple(map(_tag, tag)),
        order,
        limit,
        offset,
        page,
    )


Wanted = Annotated[TraceFilter, Depends(_trace_filter)]
