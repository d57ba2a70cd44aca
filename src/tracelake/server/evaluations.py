"""Evaluation runs of a dataset on pages and in the JSON API `/api/v1`: scores, results, and comparisons of two runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from tracelake import limits
from tracelake.datasets.evaluation import check_score
from tracelake.datasets.runs import (
    ExampleResult,
    RunInfo,
    clean_text,
    score_names,
    score_of,
    score_text,
)
from tracelake.lake.lake import Lake
from tracelake.server import routes
from tracelake.server.http_policy import RequestLake
from tracelake.server.render import with_query
from tracelake.versions.branch_store import MAIN

_PAGE_RESULTS: Final = 50

Start = Annotated[int, Query(ge=0, le=limits.PAGE_OFFSET_MAX)]


class NewResult(routes.RequestModel):
    """Result of one example in a request body."""

    example_id: Annotated[str, Field(max_length=limits.PARAMETER_MAX_CHARS)]
    output: str | None = None
    scores: Annotated[
        dict[str, bool | int | float | str],
        Field(default_factory=dict, max_length=limits.EVALUATION_SCORES_MAX),
    ]
    error: str | None = None
    latency_ms: Annotated[float, Field(ge=0, le=limits.PARAMETER_MAX_MS)] = 0.0
    trace_id: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")] | None = None

    def to_result(self) -> ExampleResult:
        """Return the result as it is stored. Raises UsageError for a score that is no finite number."""
        return ExampleResult(
            example_id=self.example_id,
            output=None if self.output is None else clean_text(self.output),
            scores={name: check_score(score) for name, score in self.scores.items()},
            error=None if self.error is None else clean_text(self.error),
            latency_ms=self.latency_ms,
            trace_id=self.trace_id,
        )


class NewRun(routes.RequestModel):
    """Request body that stores an evaluation run."""

    name: str
    results: Annotated[list[NewResult], Field(min_length=1, max_length=limits.DATASET_ADD_MAX)]
    version: str = MAIN
    branch: str = MAIN
    metadata: dict[str, str] | None = None


api = APIRouter(prefix="/api/v1", route_class=routes.DatasetJsonRoute)
"""JSON API for evaluation runs."""
pages = APIRouter(include_in_schema=False)
"""Pages of evaluation runs."""


@api.get("/datasets/{name}/runs")
def runs(lake: RequestLake, name: str, ref: routes.Name = MAIN) -> Response:
    """List the evaluation runs of a dataset, newest first."""
    return routes.json_response({"runs": list_runs(lake, name, ref)})


@api.post("/datasets/{name}/runs")
def add_run(lake: RequestLake, request: Request, name: str, body: routes.JsonBody[NewRun]) -> Response:
    """Store an evaluation run, whose results another program has computed."""
    results = [each.to_result() for each in body.results]
    run = lake.datasets.get(name, body.version).log_run(
        results,
        name=body.name,
        metadata=body.metadata,
        branch=body.branch,
        committer=routes.author_of(request),
    )
    return routes.json_response({"run": run.info}, 201)


@api.get("/datasets/{name}/runs/{run}")
def run(
    lake: RequestLake,
    name: str,
    run: str,
    ref: routes.Name = MAIN,
    offset: Start = 0,
    limit: routes.Limit = limits.PAGE_ROWS_DEFAULT,
) -> Response:
    """Return an evaluation run by its id or name, with its results page by page."""
    stored = lake.datasets.get(name, ref).run(run)
    plain: dict[str, Any] = msgspec.to_builtins(stored.info)
    shown = stored.results[offset : offset + limit]
    return routes.json_response(plain | {"results": shown, "more": offset + limit < len(stored.results)})


@api.get("/datasets/{name}/comparison")
def comparison(
    lake: RequestLake,
    name: str,
    base: routes.Name,
    run: routes.Name,
    ref: routes.Name = MAIN,
    offset: Start = 0,
    limit: routes.Limit = limits.PAGE_ROWS_DEFAULT,
) -> Response:
    """Compare two evaluation runs by example, regressions first."""
    compared = lake.datasets.get(name, ref).compare(base, run).to_dict()
    examples = compared["examples"]
    shown = {"examples": examples[offset : offset + limit], "more": offset + limit < len(examples)}
    return routes.json_response(compared | shown)


def list_runs(lake: Lake, name: str, ref: str) -> list[RunInfo]:
    """Return the evaluation runs of a dataset, newest first. Raises DatasetNotFoundError."""
    return lake.datasets.get(name, ref).runs()


def columns_of(several: Sequence[RunInfo]) -> list[str]:
    """Return the names of the mean scores of runs."""
    return list(dict.fromkeys(name for each in several for name in each.scores))


@pages.get("/datasets/{name}/runs")
def runs_page(lake: RequestLake, request: Request, name: str, ref: routes.Name = MAIN) -> Response:
    """Show the evaluation runs of a dataset."""
    several = list_runs(lake, name, ref)
    return routes.render_page(
        request, "runs.html", f"/api/v1/datasets/{name}/runs",
        dataset=name, ref=ref, runs=several, columns=columns_of(several), score_text=score_text,
    )  # fmt: skip


@pages.get("/datasets/{name}/runs/{run}")
def run_page(
    lake: RequestLake, request: Request, name: str, run: str, ref: routes.Name = MAIN, offset: Start = 0
) -> Response:
    """Show an evaluation run with its results."""
    dataset = lake.datasets.get(name, ref)
    stored = dataset.run(run)
    shown = stored.results[offset : offset + _PAGE_RESULTS]
    more = offset + _PAGE_RESULTS < len(stored.results)
    return routes.render_page(
        request, "run.html", f"/api/v1/datasets/{name}/runs/{run}",
        dataset=name, ref=ref, run=stored.info, results=shown, columns=score_names(stored.results),
        examples=_examples(lake, name, stored.info.version, [each.example_id for each in shown]),
        others=[each for each in dataset.runs() if each.id != stored.info.id], score_text=score_text,
        next_url=with_query(request, offset=str(offset + _PAGE_RESULTS)) if more else None,
    )  # fmt: skip


@pages.get("/datasets/{name}/comparison")
def comparison_page(
    lake: RequestLake,
    request: Request,
    name: str,
    base: routes.Name,
    run: routes.Name,
    ref: routes.Name = MAIN,
    offset: Start = 0,
) -> Response:
    """Show two evaluation runs side by side, regressions first."""
    compared = lake.datasets.get(name, ref).compare(base, run)
    shown = compared.examples[offset : offset + _PAGE_RESULTS]
    more = offset + _PAGE_RESULTS < len(compared.examples)
    ids = [each.example_id for each in shown]
    return routes.render_page(
        request, "run_comparison.html", f"/api/v1/datasets/{name}/comparison",
        dataset=name, ref=ref, comparison=compared, shown=shown, score_text=score_text, score_of=score_of,
        means=[
            (each, compared.base.scores.get(each), compared.run.scores.get(each))
            for each in columns_of((compared.base, compared.run))
        ],
        examples={
            **_examples(lake, name, compared.base.version, ids), **_examples(lake, name, compared.run.version, ids),
        },
        next_url=with_query(request, offset=str(offset + _PAGE_RESULTS)) if more else None,
    )  # fmt: skip


def _examples(lake: Lake, name: str, version: str, ids: Sequence[str]) -> dict[str, Any]:
    """Return examples of a version by id. Those that a later deletion of the version took away are missing."""
    return {each.id: each for each in lake.datasets.examples_of(name, version, ids)}
