"""Tags, experiments and assessments over HTTP, in MLflow's words: paths, bodies and error codes of its REST API.

What MLflow's client asks under `/api/2.0` or `/api/3.0` is answered under both.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Final, ParamSpec

import msgspec
from fastapi import APIRouter, Depends, Request, Response

from tracelake._errors import LimitError, NotFoundError, QueryError, StorageError, TracelakeError, UsageError
from tracelake.access.protocol import check_need
from tracelake.lake.annotations import check_experiment_tag
from tracelake.lake.lake import Lake
from tracelake.limits import ANNOTATIONS_MAX, EXPERIMENTS_SHOWN_MAX, INGEST_RETRY_AFTER_S
from tracelake.server.api import json_response
from tracelake.server.errors import status_of
from tracelake.server.json_body import json_body
from tracelake.server.key_ring import ACTOR
from tracelake.tracking.annotations import Experiment

P = ParamSpec("P")
_CODES: Final[tuple[tuple[type[TracelakeError], str], ...]] = (
    (NotFoundError, "RESOURCE_DOES_NOT_EXIST"),
    (UsageError, "INVALID_PARAMETER_VALUE"),
    (QueryError, "INVALID_PARAMETER_VALUE"),
    (LimitError, "RESOURCE_EXHAUSTED"),
    (StorageError, "TEMPORARILY_UNAVAILABLE"),
)
_VERSIONS: Final = ("/api/2.0/mlflow", "/api/3.0/mlflow")


class TraceTag(msgspec.Struct, frozen=True):
    """A tag to set."""

    key: str
    value: str


class TraceTagKey(msgspec.Struct, frozen=True):
    """A tag to delete."""

    key: str


class ExperimentTag(msgspec.Struct, frozen=True):
    """A tag to set of an experiment."""

    experiment_id: str
    key: str
    value: str


class ExperimentTagKey(msgspec.Struct, frozen=True):
    """A tag to delete of an experiment."""

    experiment_id: str
    key: str


class NewExperiment(msgspec.Struct, frozen=True):
    """An experiment to make."""

    name: str
    tags: list[TraceTag] = []


class ExperimentQuery(msgspec.Struct, frozen=True):
    """A search of experiments."""

    filter: str | None = None
    max_results: int = EXPERIMENTS_SHOWN_MAX
    order_by: list[str] = []
    page_token: str | None = None
    view_type: str | None = None


class Assessed(msgspec.Struct, frozen=True):
    """An assessment, or what is to change of one."""

    assessment: dict[str, Any]


def mlflow_api(lake: Lake) -> APIRouter:
    """Return the routes."""
    router = APIRouter(include_in_schema=False)
    for prefix in _VERSIONS:
        _add_traces(router, prefix, lake)
        _add_assessments(router, prefix, lake)
        _add_experiments(router, prefix, lake)
    return router


def answered(handler: Callable[P, object]) -> Callable[P, Response]:
    """Answer with what a handler returns, or with its error as MLflow says it."""

    @wraps(handler)
    def respond(*args: P.args, **kwargs: P.kwargs) -> Response:
        try:
            answer = handler(*args, **kwargs)
            return answer if isinstance(answer, Response) else json_response(answer)
        except TracelakeError as error:
            code = next((code for kind, code in _CODES if isinstance(error, kind)), "INTERNAL_ERROR")
            response = json_response({"error_code": code, "message": str(error)}, status_of(type(error)))
            if response.status_code == 503:
                response.headers["Retry-After"] = str(INGEST_RETRY_AFTER_S)
            return response

    return respond


def _add_traces(router: APIRouter, prefix: str, lake: Lake) -> None:
    @router.get(f"{prefix}/traces/{{trace_id}}/tags")
    @answered
    def tags(trace_id: str) -> object:
        return {"tags": lake.annotations.tags(trace_id)}

    @router.patch(f"{prefix}/traces/{{trace_id}}/tags")
    @answered
    def set_tag(trace_id: str, body: TraceTag = Depends(json_body(TraceTag))) -> object:  # noqa: B008
        lake.annotations.set_tag(trace_id, body.key, body.value)
        return {}

    @router.delete(f"{prefix}/traces/{{trace_id}}/tags")
    @answered
    def delete_tag(trace_id: str, body: TraceTagKey = Depends(json_body(TraceTagKey))) -> object:  # noqa: B008
        lake.annotations.delete_tag(trace_id, body.key)
        return {}


def _add_assessments(router: APIRouter, prefix: str, lake: Lake) -> None:
    of_trace = f"{prefix}/traces/{{trace_id}}/assessments"

    @router.get(of_trace)
    @answered
    def assessments(trace_id: str) -> object:
        return {"assessments": lake.annotations.assessments(trace_id)}

    @router.post(of_trace)
    @answered
    def log(trace_id: str, body: Assessed = Depends(json_body(Assessed))) -> object:  # noqa: B008
        return {"assessment": lake.annotations.log_assessment(trace_id, body.assessment)}

    @router.get(f"{of_trace}/{{assessment_id}}")
    @answered
    def assessment(trace_id: str, assessment_id: str) -> object:
        for each in lake.annotations.assessments(trace_id):
            if each["assessment_id"] == assessment_id:
                return {"assessment": each}
        raise NotFoundError(f"trace {trace_id} has no assessment {assessment_id!r}.")

    @router.patch(f"{of_trace}/{{assessment_id}}")
    @answered
    def update(
        trace_id: str,
        assessment_id: str,
        body: Assessed = Depends(json_body(Assessed)),  # noqa: B008
    ) -> object:
        return {"assessment": lake.annotations.update_assessment(trace_id, assessment_id, body.assessment)}

    @router.delete(f"{of_trace}/{{assessment_id}}")
    @answered
    def remove(trace_id: str, assessment_id: str) -> object:
        lake.annotations.delete_assessment(trace_id, assessment_id)
        return {}


def _add_experiments(router: APIRouter, prefix: str, lake: Lake) -> None:
    @router.post(f"{prefix}/experiments/create")
    @answered
    def create(request: Request, body: NewExperiment = Depends(json_body(NewExperiment))) -> object:  # noqa: B008
        # All that can be refused is, before anything is made.
        if len({tag.key for tag in body.tags}) > ANNOTATIONS_MAX:
            raise LimitError(f"an experiment has at most {ANNOTATIONS_MAX:,} tags; give fewer.")
        for tag in body.tags:
            if check_experiment_tag(tag.key, tag.value):
                actor = request.scope[ACTOR]
                check_need(actor.key_id, actor.role, "admin")  # as where it is set alone
        experiment_id = lake.annotations.create_experiment(body.name)
        for tag in body.tags:
            lake.annotations.set_experiment_tag(experiment_id, tag.key, tag.value)
        return {"experiment_id": experiment_id}

    @router.post(f"{prefix}/experiments/search")
    @answered
    def search(body: ExperimentQuery = Depends(json_body(ExperimentQuery))) -> object:  # noqa: B008
        return _searched(lake, body)

    @router.get(f"{prefix}/experiments/get")
    @answered
    def get(experiment_id: str) -> object:
        return {"experiment": _told(lake.annotations.experiment(experiment_id))}

    @router.get(f"{prefix}/experiments/get-by-name")
    @answered
    def get_by_name(experiment_name: str) -> object:
        return {"experiment": _told(lake.annotations.experiment_named(experiment_name))}

    @router.post(f"{prefix}/experiments/set-experiment-tag")
    @answered
    def set_tag(body: ExperimentTag = Depends(json_body(ExperimentTag))) -> object:  # noqa: B008
        lake.annotations.set_experiment_tag(body.experiment_id, body.key, body.value)
        return {}

    @router.post(f"{prefix}/experiments/delete-experiment-tag")
    @answered
    def delete_tag(body: ExperimentTagKey = Depends(json_body(ExperimentTagKey))) -> object:  # noqa: B008
        lake.annotations.delete_experiment_tag(body.experiment_id, body.key)
        return {}


def _searched(lake: Lake, wanted: ExperimentQuery) -> dict[str, object]:
    if wanted.max_results < 1:
        raise UsageError(f"max_results is 1 or more, and not {wanted.max_results}.")
    if wanted.view_type == "DELETED_ONLY":
        return {"experiments": []}  # no experiment is deleted here
    experiments, token = lake.annotations.search_experiments(
        wanted.filter, wanted.max_results, wanted.order_by, wanted.page_token
    )
    told: dict[str, object] = {"experiments": [_told(each) for each in experiments]}
    return {**told, "next_page_token": token} if token else told


def _told(experiment: Experiment) -> dict[str, object]:
    """Return an experiment as MLflow's API says it; times are milliseconds there."""
    created_ms = experiment.created_ns // 1_000_000
    return {
        "experiment_id": experiment.experiment_id,
        "name": experiment.name,
        "lifecycle_stage": "active",
        "creation_time": created_ms,
        "last_update_time": created_ms,
        "tags": [{"key": key, "value": value} for key, value in experiment.tags.items()],
    }
