"""Tags, experiments and assessments of a lake's traces, in either tier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tracelake import limits
from tracelake._errors import LimitError, NotFoundError, UsageError
from tracelake.archive import retention
from tracelake.context import LakeContext
from tracelake.tables.builtin import TABLE_SPANS, TABLE_TRACES, in_workspace
from tracelake.tables.table import no_trace
from tracelake.tables.view import CommitView
from tracelake.tracking.annotations import (
    LOCATION_TAG,
    OF_COLUMNS,
    Annotations,
    ClientTraceInfo,
    Experiment,
    check_tag,
)
from tracelake.tracking.mlflow_search import ExperimentSearch
from tracelake.tracking.schema import ARCHIVE_REPO, DEFAULT_EXPERIMENT, DEFAULT_WORKSPACE
from tracelake.tracking.store import TrackingStore
from tracelake.versions.branch_store import MAIN

_OF_EXPERIMENTS = {
    retention.RETENTION_TAG: retention.parse_retention_tag,
    retention.ARCHIVE_NOW_TAG: retention.parse_archive_now_tag,
}
"""Experiment tags that the archive reads. Their values must parse."""


class LakeAnnotations:
    """Tags and assessments of traces, and experiments, of one lake. A trace is named by its id or a unique prefix of
    the id, with or without `tr-`. Methods that take a trace raise NotFoundError if no trace matches, several match, or
    the trace was deleted."""

    def __init__(self, opened: LakeContext, store: TrackingStore, workspace: str | None = None) -> None:
        """Open the annotations of one workspace, or of all if `workspace` is None."""
        self._opened = opened
        self._store = store
        self._workspace = workspace
        self._annotations = Annotations(store, workspace)

    def tags(self, trace_id: str) -> dict[str, str]:
        """Return the tags of a trace. The tag `mlflow.trace.spansLocation` names the place of its spans."""
        full, _ = self._trace(trace_id)
        return _with_location(self._annotations.tags([full])[full])

    def of_traces(
        self, trace_ids: Sequence[str]
    ) -> tuple[dict[str, dict[str, str]], dict[str, list[dict[str, Any]]]]:
        """Return tags and assessments by trace id. The ids must be complete and exist."""
        tags = self._annotations.tags(trace_ids)
        located = {trace_id: _with_location(of_trace) for trace_id, of_trace in tags.items()}
        return located, self._annotations.assessments_of(trace_ids)

    def shown_tags(self, trace_ids: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return tags for display, by full trace id: the first 20 of each trace, values cut after 200 characters.
        Location tags are omitted."""
        return self._annotations.shown_tags(trace_ids)

    def set_tag(self, trace_id: str, key: str, value: str) -> None:
        """Set a tag of a trace: a key of up to 250 characters, a value of up to 8,000.

        Raises UsageError if the key or value is too long or empty, or if only the archive may set the tag; LimitError
        if the trace has 1,000 tags already.
        """
        full, workspace = self._trace(trace_id)
        self._annotations.set_tag(full, key, value, workspace)

    def delete_tag(self, trace_id: str, key: str) -> None:
        """Delete a tag. Deleting `mlflow.trace.archivalFailure` lets the trace be archived again. Raises NotFoundError
        if the trace has no such tag."""
        self._annotations.delete_tag(self._trace(trace_id)[0], key)

    def traces_with(self, tags: Mapping[str, str]) -> list[str]:
        """Return the ids of all traces that have all these tags. Raises UsageError if `tags` is empty or contains a tag
        that the archive sets, and LimitError if more than `TAGGED_TRACES_MAX` traces match."""
        if not tags or any(key in OF_COLUMNS for key in tags):
            raise UsageError("name tags that were set; `tracelake archive status` lists archived traces.")
        most = limits.TAGGED_TRACES_MAX
        trace_ids = self._annotations.traces_with(tags, most + 1)
        if len(trace_ids) > most:
            raise LimitError(f"more than {most:,} traces have these tags; add another tag.")
        return trace_ids

    def create_experiment(self, name: str, workspace: str = DEFAULT_WORKSPACE) -> str:
        """Create an experiment and return its id. Raises UsageError if the name is taken."""
        return self._annotations.create_experiment(name, self._workspace or workspace)

    def experiment(self, experiment_id: str) -> Experiment:
        """Return an experiment with its tags. "0" is the experiment of traces that name none. Raises NotFoundError if
        no experiment has the id."""
        if experiment_id == DEFAULT_EXPERIMENT:
            self._annotations.make_default()
        return self._annotations.experiment(experiment_id)

    def experiment_named(self, name: str, workspace: str = DEFAULT_WORKSPACE) -> Experiment:
        """Return the experiment with this name. Raises NotFoundError if the workspace has none."""
        return self._annotations.find_experiment(name, self._workspace or workspace)

    def experiments(self) -> list[Experiment]:
        """Return the newest experiments, at most 1,000."""
        self._annotations.make_default()
        return self._annotations.experiments()

    def search_experiments(
        self,
        filter: str | None = None,
        max_results: int = limits.EXPERIMENTS_SHOWN_MAX,
        order_by: Sequence[str] = (),
        page_token: str | None = None,
    ) -> tuple[list[Experiment], str | None]:
        """Return a page of experiments that match a filter, and the token of the next page.

        The newest come first, at most 1,000. A filter looks like `name LIKE 'a%' AND tags.team = 'b'`. Raises
        QueryError if the filter or order does not parse, and BackPressureError if too many searches run.
        """
        self._annotations.make_default()
        return ExperimentSearch(self._store, self._workspace).search(
            filter, max_results, order_by, page_token
        )

    def experiment_of(self, trace_id: str) -> str | None:
        """Return the name of a trace's experiment, or its id if it has no name; None if the trace, given by its full
        id, names no experiment."""
        return self._annotations.experiment_of(trace_id)

    def set_experiment_tag(self, experiment_id: str, key: str, value: str) -> None:
        """Set a tag of an experiment. Some tags configure the archive: raises UsageError if such a value does not
        parse."""
        check_experiment_tag(key, value)
        if experiment_id == DEFAULT_EXPERIMENT:
            self._annotations.make_default()
        self._annotations.set_experiment_tag(experiment_id, key, value)

    def delete_experiment_tag(self, experiment_id: str, key: str) -> None:
        """Delete a tag of an experiment. Raises NotFoundError if the experiment or its tag does not exist."""
        self._annotations.delete_experiment_tag(experiment_id, key)

    def assessments(self, trace_id: str) -> list[dict[str, Any]]:
        """Return the assessments of a trace and its spans, the last changed last."""
        return self._annotations.assessments(self._trace(trace_id)[0])

    def log_assessment(self, trace_id: str, assessment: Mapping[str, Any]) -> dict[str, Any]:
        """Store an assessment and return it with its id.

        An example: `{"assessment_name": "correct", "feedback": {"value": True}}`; instead of `feedback` it may have an
        `expectation`. `span_id` names the assessed span, `source` the author, `rationale` the reason. Raises UsageError
        for an invalid assessment, and LimitError if it is too large or the trace has too many.
        """
        full, workspace = self._trace(trace_id)
        return self._annotations.log_assessment(full, assessment, workspace)

    def update_assessment(
        self, trace_id: str, assessment_id: str, changes: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Change fields of an assessment, and return the changed assessment. Raises NotFoundError if the trace has no
        assessment with this id, and UsageError for an invalid field."""
        return self._annotations.update_assessment(self._trace(trace_id)[0], assessment_id, changes)

    def delete_assessment(self, trace_id: str, assessment_id: str) -> None:
        """Delete an assessment. Raises NotFoundError if the trace has no assessment with this id."""
        self._annotations.delete_assessment(self._trace(trace_id)[0], assessment_id)

    def _trace(self, trace_id: str) -> tuple[str, str]:
        """Return the full id of a trace and its workspace, from the hot tier or the tables. Raises NotFoundError if no
        trace, or a deleted one, has the id or prefix."""
        full, workspace = self._resolve(trace_id)
        if ClientTraceInfo(self._store).deleted([full]):
            raise was_deleted(full)
        return full, workspace

    def _resolve(self, trace_id: str) -> tuple[str, str]:
        wanted, workspace = trace_id.lower().removeprefix("tr-"), self._workspace
        hot = self._store.ids_that_begin(wanted, 2, workspace) if wanted.isalnum() else []

        def read(view: CommitView) -> tuple[str, str]:
            full = view.full_id(wanted, hot, workspace)
            if full in hot and workspace is not None:
                return full, workspace
            if full in hot and (info := self._store.infos([full]).get(full)) is not None:
                return full, str(info["workspace"])
            # If workspaces share a trace, table `traces` has one row of it, but `spans` has rows of each
            # workspace.
            table = (TABLE_TRACES if workspace is None else TABLE_SPANS).name
            rows = view.table(table).lookup([full], ["trace_id", "workspace"])
            here = in_workspace(rows, workspace)["workspace"].to_pylist()
            if not here:
                raise no_trace(trace_id)
            return full, str(here[0])

        return self._opened.read(MAIN, read)


def was_deleted(trace_id: str) -> NotFoundError:
    """Return the error for a trace that was deleted from the tracking store."""
    return NotFoundError(
        f"trace {trace_id} was deleted from the tracking store; `tracelake trace {trace_id}` shows its spans "
        "in the tables of the lake."
    )


def _with_location(tags: Mapping[str, str]) -> dict[str, str]:
    """Return the tags of a trace with the tag that names the location of its spans.

    A trace without a row in the tracking store is in the lake's tables. Without the tag, MLflow's client looks for an
    artifact that does not exist.
    """
    return {LOCATION_TAG: ARCHIVE_REPO, **tags}


def check_experiment_tag(key: str, value: str) -> bool:
    """Return whether the archive reads this experiment tag. Raises UsageError if the tag or its value is invalid."""
    check_tag(key, value, limits.EXPERIMENT_TAG_MAX_CHARS)
    if key in _OF_EXPERIMENTS:
        _OF_EXPERIMENTS[key](value)
    return key in _OF_EXPERIMENTS


def annotations_of(
    opened: LakeContext, store: TrackingStore | None, workspace: str | None = None
) -> LakeAnnotations:
    """Return the annotations of one workspace, or of all. Raises UsageError without a tracking store."""
    if store is None:
        raise UsageError("this lake has no tracking store, which keeps tags; `tracelake serve` creates one.")
    return LakeAnnotations(opened, store, workspace)
