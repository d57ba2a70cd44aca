"""Assessments of traces and spans by people: labels, scores, comments and expectations.

They are stored in MLflow's format with their author and time, so MLflow's client reads them too. The form of the page
works without scripts.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import BaseModel, Field

from tracelake import limits
from tracelake._errors import NotFoundError, StorageError, UsageError
from tracelake.lake.lake import Lake
from tracelake.lake.trace_list import cut, literal, not_listed, where_of
from tracelake.server.http_policy import RequestLake
from tracelake.server.render import span_query
from tracelake.server.routes import (
    FormFields,
    JsonBody,
    JsonRoute,
    Limit,
    RequestModel,
    Text,
    author_of,
    is_allowed,
    json_response,
    refuse_unknown,
)
from tracelake.tables.page_tokens import Keyset, name_of_search

_NUMBER: Final = re.compile(r"[+-]?\d{1,15}(\.\d{1,15})?([eE][+-]?\d{1,3})?", re.ASCII)
_LISTED: Final = 3
"""Assessments of a trace in the list of traces."""


class NewAssessment(RequestModel):
    """Request body that assesses a trace or one of its spans."""

    name: Annotated[str, Field(min_length=1, max_length=limits.TRACKING_NAME_MAX_CHARS)]
    value: bool | int | float | str
    kind: Literal["feedback", "expectation"] = "feedback"
    comment: str | None = None
    span_id: str | None = None


api = APIRouter(prefix="/api/v1", route_class=JsonRoute)
"""JSON API for assessments."""
lists = APIRouter(prefix="/api/v1", route_class=JsonRoute, dependencies=[Depends(refuse_unknown)])
"""JSON API for lists of assessments and experiments."""
pages = APIRouter(include_in_schema=False)
"""Forms of the page of a trace."""


def assess(lake: Lake, author: str, trace_id: str, new: NewAssessment) -> dict[str, Any]:
    """Store an assessment and return it. Raises NotFoundError, UsageError, LimitError."""
    if isinstance(new.value, float) and not math.isfinite(new.value):
        raise UsageError("the value of an assessment must be a finite number, a text, true or false")
    if new.span_id is not None and not lake.hot.span_rows(trace_id, new.span_id).num_rows:
        raise NotFoundError(f"trace {trace_id} has no span {new.span_id[: limits.NAME_QUOTED_MAX_CHARS]}")
    body = {
        "assessment_name": new.name,
        "source": {"source_type": "HUMAN", "source_id": author},
        new.kind: {"value": new.value},
        "rationale": new.comment,
        "span_id": new.span_id,
    }
    return lake.annotations.log_assessment(trace_id, body)


_ORDER: Final = ("coalesce(created_ns, 0) DESC",)
_ID: Final = "md5(concat_ws('/', trace_id, span_id, workspace, kind, name, value, assessment_id, created_ns))"


class _AssessmentQuery(BaseModel):
    """Query parameters of the list of assessments. Each matches a whole value."""

    name: Text = None
    kind: Text = None
    value: Text = None
    author: Text = None
    trace: Text = None
    limit: Limit = limits.PAGE_ROWS_DEFAULT
    page: Text = None


@lists.get("/assessments")
def list_assessments(lake: RequestLake, wanted: Annotated[_AssessmentQuery, Query()]) -> Response:
    """List assessments, newest first, also those of evaluation events."""
    columns = {
        "name": wanted.name,
        "kind": wanted.kind,
        "value": wanted.value,
        "author": wanted.author,
        "trace_id": wanted.trace,
    }
    filters = [f"{column} = {literal(text)}" for column, text in columns.items() if text]
    keyset = Keyset.read(_ORDER, _ID, name_of_search("assessments", *filters), wanted.page)
    (table,) = lake.select(
        f"SELECT *, {keyset.selected} FROM assessments {where_of([*filters, *keyset.conditions])} "
        f"ORDER BY {keyset.order} LIMIT {wanted.limit + 1:d}"
    )
    page = keyset.page(table.to_pylist(), wanted.limit)
    rows = [{name: cut(value) for name, value in row.items()} for row in page.rows]
    return json_response(
        {
            "assessments": rows,
            "next_page": page.next_page,
            "previous_page": page.previous_page,
            "not_listed": "; ".join(not_listed(table)) or None,
        }
    )


@lists.get("/experiments")
def list_experiments(
    lake: RequestLake,
    filter: Annotated[Text, Query(description="as in MLflow: name LIKE 'a%' AND tags.team = 'b'")] = None,
    limit: Limit = limits.PAGE_ROWS_DEFAULT,
    page: Text = None,
) -> Response:
    """List experiments, newest first."""
    experiments, next_page = lake.annotations.search_experiments(filter, limit, (), page)
    return json_response({"experiments": experiments, "next_page": next_page})


@api.get("/traces/{trace_id}/assessments")
def assessments(lake: RequestLake, trace_id: str) -> Response:
    """List the assessments of a trace and its spans, the last changed last."""
    return json_response({"assessments": lake.annotations.assessments(trace_id)})


@api.post("/traces/{trace_id}/assessments")
def add_assessment(
    lake: RequestLake, request: Request, trace_id: str, body: JsonBody[NewAssessment]
) -> Response:
    """Assess a trace, or one of its spans, with a label, a score or an expectation, and a comment."""
    return json_response({"assessment": assess(lake, author_of(request), trace_id, body)}, 201)


@api.delete("/traces/{trace_id}/assessments/{assessment_id}")
def remove_assessment(lake: RequestLake, trace_id: str, assessment_id: str) -> Response:
    """Delete an assessment."""
    lake.annotations.delete_assessment(trace_id, assessment_id)
    return json_response({"assessment": assessment_id})


@pages.post("/traces/{trace_id}/assessments")
def submit_assessment(lake: RequestLake, request: Request, trace_id: str, fields: FormFields) -> Response:
    """Store the assessment of a form, and show the trace again."""
    comment = fields.get("comment", "").strip()
    text = fields.get("value", "").strip() or comment
    if not text:
        raise UsageError("give a value or a comment")
    name = fields.get("name", "").strip() or ("comment" if text == comment else "quality")
    kind = fields.get("kind", "feedback")
    if kind not in ("feedback", "expectation"):
        raise UsageError("kind is feedback or expectation")
    new = NewAssessment(
        name=_bounded(name),
        value=value_of(text),
        kind=kind,  # type: ignore[arg-type]
        comment=comment if comment and text != comment else None,
        span_id=fields.get("span") or None,
    )
    assess(lake, author_of(request), trace_id, new)
    return _to_trace(trace_id, fields)


@pages.post("/traces/{trace_id}/assessments/{assessment_id}/delete")
def delete_assessment(lake: RequestLake, trace_id: str, assessment_id: str, fields: FormFields) -> Response:
    """Delete an assessment, and show the trace again."""
    lake.annotations.delete_assessment(trace_id, assessment_id)
    return _to_trace(trace_id, fields)


def _bounded(name: str) -> str:
    if len(name) > limits.TRACKING_NAME_MAX_CHARS:
        raise UsageError(f"the name of an assessment has at most {limits.TRACKING_NAME_MAX_CHARS} characters")
    return name


def value_of(text: str) -> bool | int | float | str:
    """Return the value that a person typed: true or false, a number, or a text."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if not _NUMBER.fullmatch(text):
        return text
    number = int(text) if text.lstrip("+-").isdecimal() else float(text)
    return number if math.isfinite(number) else text


def _to_trace(trace_id: str, fields: Mapping[str, str]) -> Response:
    """Redirect to the page of the trace, with the span of the form selected."""
    address = f"/traces/{quote(trace_id, safe='')}"
    if fields.get("span"):
        query = span_query(fields["span"], fields.get("workspace"), fields.get("span_kind"))
        address += f"?{query}#{query}"
    return RedirectResponse(address, 303)


@dataclass(frozen=True, slots=True)
class AssessmentView:
    """An assessment on the page."""

    id: str
    name: str
    value: str
    is_good: bool | None
    """Whether the value is true or false; None for other values."""
    is_expectation: bool
    comment: str | None
    author: str
    at: str
    span_id: str | None


def view_assessment(stored: Mapping[str, Any]) -> AssessmentView:
    """Return an assessment as pages show it. Clients of MLflow may store any JSON value."""
    kind = "expectation" if isinstance(stored.get("expectation"), Mapping) else "feedback"
    content = stored.get(kind) or {}
    value = content.get("value", content.get("serialized_value", content.get("error")))
    source = stored.get("source")
    author = source.get("source_id") if isinstance(source, Mapping) else None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return AssessmentView(
        str(stored.get("assessment_id")),
        str(stored.get("assessment_name")),
        text[: limits.LIST_TEXT_MAX_CHARS],
        value if isinstance(value, bool) else None,
        kind == "expectation",
        None if stored.get("rationale") is None else str(stored["rationale"])[: limits.TEXT_SHOWN_MAX_CHARS],
        str(author or "unknown")[: limits.NAME_QUOTED_MAX_CHARS],
        str(stored.get("create_time") or "")[:16].replace("T", " "),
        stored.get("span_id"),
    )


def assessment_context(lake: Lake, request: Request, trace_id: str) -> dict[str, Any]:
    """Return the assessments of a trace for its page, and whether the caller may add some."""
    can_assess = is_allowed(request, f"/traces/{trace_id}/assessments") and lake.hot.is_there
    try:
        stored = lake.annotations.assessments(trace_id) if lake.hot.is_there else []
    except (StorageError, NotFoundError):
        stored = []
    return {
        "assessments": [view_assessment(each) for each in stored],
        "can_assess": can_assess,
        "can_add_example": is_allowed(request, "/add-to-dataset"),
    }


def listed_assessments(lake: Lake, trace_ids: Sequence[str]) -> dict[str, list[AssessmentView]]:
    """Return the last assessments of traces for a list. If they cannot be read, return none."""
    try:
        stored = lake.annotations.of_traces(trace_ids)[1] if trace_ids and lake.hot.is_there else {}
    except StorageError:
        return {}
    return {
        trace_id: [view_assessment(each) for each in several[-_LISTED:]]
        for trace_id, several in stored.items()
    }
