"""Deletion in the JSON API and on pages. Retention rules: list, set, remove, preview and apply them. Erasures: request
one with a confirmation, and list them with their reports. Only an admin key of the whole lake may see erasures.

An admin key of the whole lake changes the rules and applies them. While rules are applied, `/api/v1/archive/operations`
shows the progress. The forms of the page work without scripts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated, Any, Final, get_args

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse
from prometheus_client.core import GaugeMetricFamily, Metric
from pydantic import Field

from tracelake import limits
from tracelake._errors import QueryError, TracelakeError, UsageError
from tracelake.access.keys import ALL_WORKSPACES
from tracelake.erasure.protocol import Criterion
from tracelake.lake.lake import Lake
from tracelake.server import routes
from tracelake.server.archive import BY_REQUEST, Archiving, ReportProgress, Result, answer_operation
from tracelake.server.audit import tell_object
from tracelake.server.http_policy import RequestLake

OVERVIEW: Final = "/api/v1/retention"
PAGE: Final = "/retention"
ERASURES: Final = "/api/v1/erasures"
CRITERIA: Final[tuple[str, ...]] = get_args(Criterion)

api = APIRouter(prefix=OVERVIEW, route_class=routes.JsonRoute)
"""JSON API for retention rules."""
erasures_api = APIRouter(prefix=ERASURES, route_class=routes.JsonRoute)
"""JSON API for erasures."""
pages = APIRouter(include_in_schema=False)
"""Pages of the retention rules and of the erasures, and their forms."""

_Name = Annotated[str, Field(min_length=1, max_length=limits.TRACKING_NAME_MAX_CHARS)]
_Condition = Annotated[str, Field(max_length=limits.PARAMETER_MAX_CHARS)]
Workspace = Annotated[str, Query(min_length=1, max_length=limits.PARAMETER_MAX_CHARS)]


class NewRule(routes.RequestModel):
    """Request body that sets a retention rule."""

    name: _Name
    age: _Name
    query: _Condition = ""
    service: _Condition = ""
    experiment: _Condition = ""
    feedback: bool = False
    priority: int | None = None
    workspace: _Condition = ALL_WORKSPACES


def retention_overview(lake: Lake) -> dict[str, Any]:
    """Return the rules in the order in which they decide, and the last periodic application."""
    run = lake.retention.last_run()
    last = (
        None
        if run is None
        else {name: getattr(run, name) for name in run.__struct_fields__ if name != "format_version"}
    )
    return {"rules": [rule.to_dict() for rule in lake.retention.rules()], "last_run": last}


@api.get("")
def rules(lake: RequestLake) -> Response:
    """List the retention rules in the order in which they decide, and the last periodic application."""
    return routes.json_response(retention_overview(lake))


@api.post("/rules")
def set_rule(lake: RequestLake, request: Request, body: routes.JsonBody[NewRule]) -> Response:
    """Add a retention rule, or replace the rule of that name in its workspace."""
    rule = lake.retention.set(**body.model_dump(), by=routes.author_of(request))
    return routes.json_response(rule.to_dict(), 201)


@api.delete("/rules/{name}")
def remove_rule(lake: RequestLake, name: str, workspace: Workspace = ALL_WORKSPACES) -> Response:
    """Remove a retention rule."""
    return routes.json_response(lake.retention.remove(name, workspace).to_dict())


@api.get("/preview")
def preview(lake: RequestLake) -> Response:
    """Show what the rules would delete now, by rule and day."""
    return routes.json_response(lake.retention.preview().to_dict())


@api.post("/runs")
def apply(
    lake: RequestLake, archiving: Archiving, request: Request, _body: routes.JsonBody[routes.NoDetails]
) -> Response:
    """Apply the rules now: delete the traces that they do not keep."""
    author = routes.author_of(request)

    def run(_report_progress: ReportProgress) -> Result:
        return lake.retention.apply(by=author).to_dict()

    return answer_operation(archiving, archiving.operations.begin("retention", BY_REQUEST, run))


@pages.get(PAGE)
def retention_page(lake: RequestLake, request: Request, show: routes.Text = None) -> Response:
    """Show the rules and, on request, what they would delete."""
    report, problem = None, None
    if show == "preview":
        try:
            report = lake.retention.preview()
        except TracelakeError as error:
            problem = str(error)
    return routes.render_page(
        request,
        "retention.html",
        OVERVIEW,
        view=retention_overview(lake),
        report=report,
        problem=problem,
        can_change=routes.is_allowed(request, f"{PAGE}/rules"),
        is_previewed=show == "preview",
    )


@pages.post(f"{PAGE}/rules")
def submit_rule(lake: RequestLake, request: Request, fields: routes.FormFields) -> Response:
    """Set the rule of a form, and show the preview."""
    name, age = fields.get("name", "").strip(), fields.get("age", "").strip()
    priority = fields.get("priority", "").strip()
    if not name or not age:
        raise UsageError("a rule needs a name and an age, such as 30d")
    if priority and not priority.isdecimal():
        raise UsageError("a priority is a number; the lowest one decides first")
    tell_object(f"name {name}, age {age}")
    texts = {key: fields.get(key, "").strip() for key in ("query", "service", "experiment")}
    if any(len(text) > limits.PARAMETER_MAX_CHARS for text in (name, age, *texts.values())):
        raise UsageError(f"a field has at most {limits.PARAMETER_MAX_CHARS:,} characters")
    lake.retention.set(
        name,
        age,
        **texts,
        feedback=bool(fields.get("feedback")),
        priority=int(priority) if priority else None,
        workspace=fields.get("workspace", "").strip() or ALL_WORKSPACES,
        by=routes.author_of(request),
    )
    return RedirectResponse(f"{PAGE}?show=preview", 303)


@pages.post(f"{PAGE}/rules/delete")
def delete_rule(lake: RequestLake, fields: routes.FormFields) -> Response:
    """Remove the rule of a form, and show the rules."""
    name, workspace = fields.get("name", ""), fields.get("workspace", "") or ALL_WORKSPACES
    tell_object(f"name {name}, workspace {workspace}")
    lake.retention.remove(name, workspace)
    return RedirectResponse(PAGE, 303)


def retention_metrics(lake: Lake) -> Iterator[Metric]:
    """Yield metrics of the last periodic application of the rules, by any process; nothing if it is unreadable."""
    with suppress(TracelakeError, OSError):
        run = lake.retention.last_run()
        for name, text, value in (
            (
                "timestamp_seconds",
                "End of the last retention run; 0 before the first.",
                run and run.ended_at_s,
            ),
            ("traces", "Traces that the last retention run deleted.", run and run.traces),
            ("spans", "Spans that the last retention run deleted.", run and run.spans),
            ("failed", "1 if the last retention run failed, else 0.", run and bool(run.error)),
        ):
            yield GaugeMetricFamily(f"tracelake_retention_last_run_{name}", text, value=float(value or 0))


class NewErasure(routes.RequestModel):
    """Request body that erases traces. Exactly one field is set."""

    trace: str | None = None
    session: str | None = None
    user: str | None = None
    where: str | None = None


@erasures_api.get("")
def list_erasures(lake: RequestLake) -> Response:
    """List erasures, newest first."""
    return routes.json_response({"erasures": lake.erasures.all()})


@erasures_api.get("/{name}")
def show_erasure(lake: RequestLake, name: str) -> Response:
    """Report an erasure."""
    return routes.json_response(lake.erasures.get(name))


@erasures_api.post("")
def request_erasure(lake: RequestLake, body: routes.JsonBody[NewErasure]) -> Response:
    """Erase traces. The response comes when no reader sees them; `run` removes their bytes."""
    report = lake.erasures.request(trace=body.trace, session=body.session, user=body.user, where=body.where)
    return routes.json_response(report, 202)


@erasures_api.post("/{name}/run")
def run_erasure(lake: RequestLake, name: str) -> Response:
    """Continue an erasure as far as possible now, and report it."""
    (report,) = lake.erasures.run(name)
    return routes.json_response(report)


@pages.get(routes.ERASURES_PAGE)
def erasures_page(
    lake: RequestLake, request: Request, criterion: routes.Text = None, value: routes.Text = None
) -> Response:
    """List the erasures. With a criterion, ask for a confirmation and show the number of matching traces."""
    return _erasures_page(lake, request, criterion or "", value or "")


@pages.post(routes.ERASURES_PAGE)
def submit_erasure(lake: RequestLake, request: Request, fields: routes.FormFields) -> Response:
    """Request the erasure of a form whose value was typed again."""
    criterion, value = (fields.get(name, "") for name in ("criterion", "value"))
    tell_object(f"criterion {criterion[: limits.TRACKING_NAME_MAX_CHARS]}")
    if fields.get("confirm", "").strip() != value.strip():
        problem = UsageError("nothing was erased: the confirmation differs. Type the value again.")
        return _erasures_page(lake, request, criterion, value, problem)
    lake.erasures.request(**_selection(criterion, value))
    return RedirectResponse(routes.ERASURES_PAGE, 303)


def _erasures_page(
    lake: Lake, request: Request, criterion: str, value: str, problem: TracelakeError | None = None
) -> Response:
    traces = None
    if criterion and value:
        try:
            traces = lake.erasures.matching(**_selection(criterion, value))
        except (UsageError, QueryError) as error:
            problem = error
    return routes.render_page(
        request,
        "erasures.html",
        ERASURES,
        error=problem,
        criteria=CRITERIA,
        criterion=criterion,
        value=value,
        traces=traces,
        reports=lake.erasures.all(),
    )


def _selection(criterion: str, value: str) -> dict[str, str]:
    if criterion not in CRITERIA:
        raise UsageError(f"choose what to erase by: {', '.join(CRITERIA)}.")
    return {criterion: value}
