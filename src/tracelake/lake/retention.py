"""Retention of a lake's tables: `lake.retention` sets rules, previews what they delete, and applies them.

Rules are applied by ordinary transactions beside ingest (`pipeline/sources/deletions.py`). Each deletes whole traces
from tables and index. Then the hot tier and the archive repository delete their copies. A request object exists until
both are done, so that any later application finishes what a killed process began.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence, Set
from contextlib import closing
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Final

import msgspec
from sqlalchemy import select

from tracelake import limits
from tracelake._errors import NotFoundError, TracelakeError
from tracelake.access.audit import Audit, audit_record
from tracelake.access.keys import ALL_WORKSPACES
from tracelake.archive.service import open_archive
from tracelake.batching import has_elapsed
from tracelake.context import LakeContext
from tracelake.datasets.model import dataset_of
from tracelake.formats import decode, encode
from tracelake.hot.tier import HotTier
from tracelake.lake.annotations import annotations_of
from tracelake.lake.sources import commit_request
from tracelake.pipeline.sources import deletions
from tracelake.pipeline.sources.base import Input
from tracelake.pipeline.sources.deletions import DeletionRequest, RequestFence
from tracelake.search.finalize import read_manifest, read_parts
from tracelake.storage import ABSENT, Done, Entry
from tracelake.tables.builtin import TABLE_SPANS
from tracelake.tables.retention import (
    LAST_PRIORITY,
    PARTITION,
    PRIORITY,
    DueTrace,
    Evaluation,
    RetentionRule,
    RetentionRules,
    day_of,
    requests,
)
from tracelake.tables.view import INDEX_ENTRY, CommitView
from tracelake.tasks.backoff import FailureLog, PeriodicThread
from tracelake.tasks.runners import InProcess, OnProgress, TaskRunner, silent
from tracelake.tracking.database import at_once
from tracelake.tracking.schema import trace_info
from tracelake.versions.branch_store import MAIN
from tracelake.versions.model import IndexAt
from tracelake.versions.tree import DATASETS, below

RUN_VERSION: Final = 1
_RUN_KEY: Final = "run/last"
_TRACES_PER_PASS: Final = 50_000
"""Due traces that are collected before they are deleted."""


@dataclass(frozen=True, slots=True)
class RetentionDue:
    """Traces of one rule and day that go, or that went."""

    workspace: str
    rule: str
    day: str
    """UTC day of the end of their last spans."""
    traces: int
    spans: int
    size_bytes: int
    """Estimated stored bytes in table `spans` and the index, by the mean size of a span."""


@dataclass(slots=True)
class RetentionReport:
    """Result of a preview or an application of the retention rules."""

    applied: bool
    at: str
    """ISO 8601, UTC."""
    rules: int
    due: list[RetentionDue] = field(default_factory=list)
    stays: dict[str, int] = field(default_factory=dict)
    """Due traces that stay, counted by reason, such as a dataset that refers to them."""
    readable_at: tuple[str, ...] = ()
    """Tags at whose commits deleted traces stay readable."""
    transactions: list[int] = field(default_factory=list)
    spans_deleted: int = 0
    hot_deleted: int = 0
    """Traces deleted from the tracking store and the archive repository."""

    @property
    def traces(self) -> int:
        """The number of traces."""
        return sum(each.traces for each in self.due)

    @property
    def spans(self) -> int:
        """The number of spans."""
        return sum(each.spans for each in self.due)

    @property
    def size_bytes(self) -> int:
        """Their estimated stored bytes."""
        return sum(each.size_bytes for each in self.due)

    def to_dict(self) -> dict[str, object]:
        """Return the report as JSON shows it."""
        totals = {"traces": self.traces, "spans": self.spans, "size_bytes": self.size_bytes}
        return {**asdict(self), **totals}

    def add(self, due: Iterable[DueTrace], span_bytes: float) -> None:
        """Add traces by workspace, rule and day."""
        totals = {(each.workspace, each.rule, each.day): (each.traces, each.spans) for each in self.due}
        for each in due:
            key = (each.candidate.workspace, each.rule.name, day_of(each.candidate.end_ns))
            traces, spans = totals.get(key, (0, 0))
            totals[key] = traces + 1, spans + each.candidate.spans
        self.due = [
            RetentionDue(*key, traces, spans, round(spans * span_bytes))
            for key, (traces, spans) in sorted(totals.items())
        ]


class RetentionRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Record of the last application, which also prevents two at once in most cases."""

    began_at_s: float
    by: str
    ended_at_s: float | None = None
    traces: int = 0
    spans: int = 0
    error: str = ""
    format_version: int = RUN_VERSION


class Retention:
    """Retention rules of a lake: `lake.retention`."""

    def __init__(self, opened: LakeContext, hot: HotTier) -> None:
        self._opened = opened
        self._hot = hot
        self._rules = RetentionRules(lambda: opened.key_value)

    def rules(self, workspace: str | None = None) -> list[RetentionRule]:
        """Return the rules in the order in which they decide: of one workspace with those of all, or of every
        workspace."""
        return [
            rule
            for rule in self._rules.all()
            if workspace is None or rule.workspace in (workspace, ALL_WORKSPACES)
        ]

    def set(
        self,
        name: str,
        age: str,
        *,
        query: str = "",
        service: str = "",
        experiment: str = "",
        feedback: bool = False,
        priority: int | None = None,
        workspace: str = ALL_WORKSPACES,
        by: str = "python",
    ) -> RetentionRule:
        """Add a rule, or replace the rule of that name in its workspace.

        Args:
            name: the name of the rule.
            age: how long matching traces are kept, such as `30d` or `1y`; `forever` keeps them.
            query: a condition of the query language, such as `status:error`; it may be combined with the others.
            service: traces with a span of this service.
            experiment: traces of this experiment.
            feedback: traces with assessments.
            priority: the matching rule with the lowest number decides; by default 100, and 1000 without a condition.
            workspace: the workspace whose traces it concerns; all by default.
            by: the author, for the list of rules.

        Raises UsageError if the rule is invalid, or there are too many.
        """
        has_condition = bool(query or service or experiment or feedback)
        rule = RetentionRule(
            workspace=workspace,
            name=name,
            age=age,
            priority=(PRIORITY if has_condition else LAST_PRIORITY) if priority is None else priority,
            query=query,
            service=service,
            experiment=experiment,
            feedback=feedback,
            by=by,
            set_at=_now().isoformat(timespec="seconds"),
        )
        self._rules.set(rule)
        return rule

    def remove(self, name: str, workspace: str = ALL_WORKSPACES) -> RetentionRule:
        """Remove a rule and return it. Raises NotFoundError if the workspace has no such rule."""
        return self._rules.remove(workspace, name)

    def preview(self, now: datetime | None = None, workspace: str | None = None) -> RetentionReport:
        """Return what `apply` would delete now, by rule and day, and change nothing.

        Args:
            now: the time at which ages are computed, with a time zone; by default the current time.
            workspace: count only the traces of this workspace.
        """
        report = self._new_report(applied=False, now=now)

        def read(view: CommitView) -> None:
            evaluation = self._evaluation(view, now)
            due = (each for each in evaluation.due() if workspace in (None, each.candidate.workspace))
            span_bytes = self._span_bytes(view)
            while batch := list(islice(due, _TRACES_PER_PASS)):
                report.add(batch, span_bytes)
            report.stays = dict(evaluation.reserved)

        self._opened.read(MAIN, read)
        return report

    def apply(
        self,
        now: datetime | None = None,
        *,
        by: str = "python",
        runner: TaskRunner | None = None,
        progress: OnProgress | None = None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> RetentionReport:
        """Delete the traces that the rules do not keep, from tables, index, hot tier and archive repository.

        First, requests that a killed process left are finished. Each transaction deletes a bounded number of traces;
        once `stopping` returns True, no further one begins. Older commits show the traces until they expire.

        Raises UsageError while another client's explicit transaction is open.
        """
        audit = Audit(lambda: self._opened.key_value)
        record = audit_record("change", "command", "retention apply", name=by)
        report = self._new_report(applied=True, now=now)
        runner, progress = runner or InProcess(), progress or silent
        deletions.fence_requests(self._opened.objects, [deletions.PREFIX])  # those of killed processes
        self.finish_pending(report, runner, progress)
        if report.rules:
            may_be_more = True
            while may_be_more and not stopping():
                with closing(RequestFence(self._opened.objects)) as fence:
                    may_be_more = self._pass(report, fence, by, now, runner, progress, stopping)
                self._opened.forget_view()
        if report.transactions:
            detail = f"{report.traces} traces, {report.spans_deleted} spans"
            audit.write([msgspec.structs.replace(record, object=detail, outcome="done")])
        return report

    def apply_when_due(
        self,
        *,
        by: str,
        interval_s: float = limits.RETENTION_INTERVAL_S,
        stopping: Callable[[], bool] = lambda: False,
    ) -> RetentionReport | None:
        """Apply the rules if no process did so within the interval; otherwise return None. Servers and pipelines call
        this periodically."""
        if not self._rules.all() and not deletions.pending(self._opened.objects):
            return None
        key_value = self._opened.key_value
        entry = key_value.get(PARTITION, _RUN_KEY)
        last, run = _run_of(entry), RetentionRun(time.time(), by)
        if last is not None and not has_elapsed(interval_s, last.began_at_s, run.began_at_s):
            return None
        expected = ABSENT if entry is None else entry.version
        if not isinstance(key_value.set_if(PARTITION, _RUN_KEY, encode(run), expected), Done):
            return None  # another process applies them
        try:
            report = self.apply(by=by, stopping=stopping)
        except TracelakeError as error:
            self._end(run, error=str(error))
            raise
        self._end(run, traces=report.traces, spans=report.spans_deleted)
        return report

    def last_run(self) -> RetentionRun | None:
        """Return the record of the last periodic application, None if there was none."""
        return _run_of(self._opened.key_value.get(PARTITION, _RUN_KEY))

    def _end(self, run: RetentionRun, **changes: object) -> None:
        ended = msgspec.structs.replace(run, ended_at_s=time.time(), **changes)
        self._opened.key_value.set(PARTITION, _RUN_KEY, encode(ended))

    def _pass(
        self,
        report: RetentionReport,
        fence: RequestFence,
        by: str,
        now: datetime | None,
        runner: TaskRunner,
        progress: OnProgress,
        stopping: Callable[[], bool],
    ) -> bool:
        """Delete the traces that are due at the head, up to a limit. Return whether more may be due."""

        def read(view: CommitView) -> tuple[list[DueTrace], dict[str, int], int, float]:
            evaluation = self._evaluation(view, now)
            due = list(islice(evaluation.due(), _TRACES_PER_PASS))
            return due, dict(evaluation.reserved), view.time_of(TABLE_SPANS.name), self._span_bytes(view)

        due, report.stays, decided, span_bytes = self._opened.read(MAIN, read)
        for workspace, batch in requests(due, limits.DELETION_TRACES_MAX, limits.DELETION_SPANS_MAX):
            if stopping():
                return False
            rules = ", ".join(sorted({each.rule.name for each in batch}))
            request = DeletionRequest(
                decided,
                workspace,
                tuple(sorted(each.candidate.trace_id for each in batch)),
                sum(each.candidate.spans for each in batch),
                f"retention: {rules}",
                by,
                _now().isoformat(timespec="microseconds"),
            )
            item = fence.submit(request)
            if item is None:
                return True  # choose again: some of the traces may be erased
            self._carry_out(item, report, runner, progress)
            report.add(batch, span_bytes)
        return len(due) == _TRACES_PER_PASS

    def finish_pending(
        self,
        report: RetentionReport | None = None,
        runner: TaskRunner | None = None,
        progress: OnProgress = silent,
    ) -> None:
        """Carry out the requests that killed processes left, and add the counts to a report."""
        report, runner = report or self._new_report(applied=True, now=None), runner or InProcess()
        for item in deletions.pending(self._opened.objects):
            self._carry_out(item, report, runner, progress)

    def _carry_out(
        self, item: Input, report: RetentionReport, runner: TaskRunner, progress: OnProgress
    ) -> None:
        """Commit the transaction of a request, delete the copies of the hot tier, then the request."""
        try:
            request = deletions.read(self._opened.objects, item.path)
        except NotFoundError:
            return  # another process has finished it
        result = commit_request(self._opened, item, runner, progress)
        report.spans_deleted += sum(counts.deleted for counts in result.counts)
        report.transactions += result.transactions
        report.hot_deleted += self._delete_hot(request.traces)
        deletions.finish(self._opened.objects, item.path)

    def _delete_hot(self, trace_ids: Sequence[str]) -> int:
        """Delete traces that the tables no longer have from the tracking store and the archive repository."""
        if not self._hot.is_there:
            return 0
        archive = open_archive(self._opened)
        total = 0
        for ids in at_once(trace_ids):
            absent = sorted(set(ids) - self._in_tables(ids))
            total += len(archive.delete(absent)) if absent else 0
        return total

    def _in_tables(self, trace_ids: Sequence[str]) -> frozenset[str]:
        def read(view: CommitView) -> frozenset[str]:
            rows = view.table(TABLE_SPANS.name).lookup(trace_ids, ["trace_id"])
            return frozenset(map(str, rows["trace_id"].to_pylist()))

        return self._opened.read(MAIN, read)

    def _evaluation(self, view: CommitView, now: datetime | None) -> Evaluation:
        now_ns = time.time_ns() if now is None else int(now.timestamp()) * 10**9
        return Evaluation(
            view,
            self._opened.config.buckets,
            self._rules.all(),
            now_ns,
            self._with_feedback,
            self._in_experiment,
            self._in_datasets(),
        )

    def _with_feedback(self, workspace: str, trace_ids: Sequence[str]) -> Set[str]:
        if not self._hot.is_there:
            return frozenset()
        annotations = annotations_of(self._opened, self._hot.store, workspace)
        return {
            trace_id
            for ids in at_once(trace_ids)
            for trace_id, assessments in annotations.of_traces(ids)[1].items()
            if assessments
        }

    def _in_experiment(self, experiment: str, trace_ids: Sequence[str]) -> Set[str]:
        store = self._hot.store
        matching: set[str] = set()
        if store is None:
            return matching
        info = trace_info.c
        with store.database.reading() as connection:
            for ids in at_once(trace_ids):
                query = select(info.trace_id).where(
                    info.lake == store.lake, info.trace_id.in_(ids), info.experiment_id == experiment
                )
                matching.update(connection.execute(query).scalars())
        return matching

    def _in_datasets(self) -> dict[str, str]:
        """Return the traces from which examples of datasets were made, on any branch, each with the reason to keep
        it."""
        repository = self._opened.repository
        reasons: dict[str, str] = {}
        for name, branch in repository.branches().items():
            paths = (
                [path for path, _ in repository.scan(branch.head, *below(DATASETS))] if branch.head else []
            )
            readable, damaged = repository.staged_or_damaged(name)
            for path in (*paths, *readable, *damaged):
                trace_id = path.rpartition("/")[2].partition("-")[0]
                reasons.setdefault(trace_id, f"dataset {dataset_of(path)}")
        return reasons

    def _span_bytes(self, view: CommitView) -> float:
        """Return the mean stored bytes of a span in table `spans` and the index."""
        info = view.table(TABLE_SPANS.name).info()
        if not info.rows:
            return 0.0
        entry = self._opened.entries_at(view.commit_id or MAIN).get(INDEX_ENTRY)
        index_bytes = 0
        if isinstance(entry, IndexAt):
            manifest = read_manifest(self._opened.objects, entry.manifest)
            index_bytes = sum(part.size_bytes for part in read_parts(self._opened.objects, manifest))
        return (info.bytes + index_bytes) / info.rows

    def _new_report(self, *, applied: bool, now: datetime | None) -> RetentionReport:
        at = (now or _now()).astimezone(UTC).isoformat(timespec="seconds")
        tags = tuple(sorted(self._opened.repository.tags()))
        return RetentionReport(applied, at, len(self._rules.all()), readable_at=tags)


def _run_of(entry: Entry | None) -> RetentionRun | None:
    return None if entry is None else decode(RetentionRun, entry.value, "the last retention run", RUN_VERSION)


def _now() -> datetime:
    return datetime.now(UTC)


_FIRST_PAUSE_S: Final = 5.0
_POLL_S: Final = 60.0
_STOP_MAX_S: Final = 30.0
_log = logging.getLogger("tracelake.retention")


class RetentionLoop(PeriodicThread):
    """Thread of a server or pipeline that applies the rules once an interval; other processes share the interval."""

    def __init__(self, retention: Retention, by: str) -> None:
        """Create the thread. It ends after the current transaction, or abandons a scan that takes long."""
        self._retention = retention
        self._by = by
        failures = FailureLog(
            _log, "the retention rules were not applied, and will be within the hour", _POLL_S
        )
        super().__init__(
            "tracelake-retention", self._apply, _FIRST_PAUSE_S, failures=failures, stop_max_s=_STOP_MAX_S
        )

    def _apply(self) -> float:
        """Apply the rules if they are due, and log the result; return the seconds until the next check."""
        report = self._retention.apply_when_due(by=self._by, stopping=self.stopping)
        if report is not None and report.traces:
            _log.info("retention deleted %d traces, %d spans", report.traces, report.spans_deleted)
        return _POLL_S
