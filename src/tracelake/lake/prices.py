"""Own prices of a lake, and the correction of stored costs after a change of prices: `lake.prices`.

A correction goes through the tables a page of traces at a time. The transaction of a request writes a page
(`pipeline/sources/deletions.py`). If the process is killed, the next correction carries out the pending request, and
finds the remaining spans by their costs.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from tracelake import limits
from tracelake._errors import ContentionError, DamageError, TrimmedError
from tracelake.batching import has_elapsed
from tracelake.context import LakeContext
from tracelake.journal.prices import Prices
from tracelake.journal.store import Journal
from tracelake.lake.sources import commit_request
from tracelake.otlp.columns import costs_by
from tracelake.otlp.prices import PRICED_COLUMNS, PriceTable, outdated
from tracelake.pipeline.outputs.builtin import upper_of
from tracelake.pipeline.run_result import RunResult
from tracelake.pipeline.sources.base import Input
from tracelake.pipeline.sources.deletions import (
    REPRICINGS,
    RepricingRequest,
    RequestFence,
    fence_requests,
    finish,
    pending,
)
from tracelake.results import RepricedModel, RepricingReport
from tracelake.shards.rows import ROW_ID, literal
from tracelake.tables.builtin import TABLE_SPANS, TABLE_TRACES
from tracelake.tables.scan import connection
from tracelake.tables.table import LOOKED_UP_TRACES_MAX, Table
from tracelake.tables.view import CommitView
from tracelake.tasks.backoff import FailureLog, PeriodicThread
from tracelake.tasks.runners import InProcess, OnProgress, TaskRunner, silent
from tracelake.versions.branch_store import MAIN

_POLL_S: Final = 10.0
"""Time between two looks for a change of prices."""
_CLAIM_S: Final = 60.0
"""Time after which another process continues a correction."""
_CHECKED_TRANSACTIONS: Final = 100
"""Transactions with current prices after which their number is recorded."""
_EXAMINED_TOGETHER: Final = 1_000
"""Spans whose attributes are read together."""
_DIGITS: Final = 9
"""Decimal places of the dollars in a report."""
_STOP_MAX_S: Final = 30.0
"""Time that a stopping process waits for its correction."""

_log = logging.getLogger("tracelake.prices")


@dataclass(slots=True)
class _Page:
    """Traces of a bucket whose costs one transaction corrects."""

    after: str | None = ""
    """The last trace that was examined; None at the end of the bucket."""
    traces: list[str] = field(default_factory=list)
    spans: int = 0
    """All spans of these traces."""
    changes: list[RepricedModel] = field(default_factory=list)


_Outdated: TypeAlias = tuple[str, int]
"""Trace and row id of a span whose cost is not that of the prices."""


class LakePrices(Prices):
    """The own prices of an open lake. See `Prices`."""

    def __init__(self, opened: LakeContext) -> None:
        super().__init__(opened.key_value)
        self._opened = opened

    def apply(
        self, *, dry_run: bool = False, runner: TaskRunner | None = None, progress: OnProgress | None = None
    ) -> RepricingReport:
        """Correct the costs of stored spans by the current prices, also by those that this release ships. A cost that
        the sender states stays.

        Bounded transactions write the corrected spans beside ingest. Older commits keep the old costs. Servers and
        pipelines do this by themselves after a change of own prices, for models with an own price.

        Args:
            dry_run: only report the spans that would change.
            runner: runs the tasks instead of this process.
            progress: receives progress events.

        Raises UsageError while another client's explicit transaction is open, because the correction is a transaction
        too. With `dry_run` nothing is written, so this cannot happen.
        """
        return self._correct(dry_run=dry_run, runner=runner, progress=progress)

    def apply_when_due(
        self, *, checked: int = 0, stopping: Callable[[], bool] = lambda: False
    ) -> tuple[int, RepricingReport | None]:
        """Correct costs if own prices changed, or if a later transaction still used earlier ones.

        Return the transaction up to which costs are known to be right, and the report of a correction. `checked` is
        the transaction that the last call returned. Once `stopping` returns True, no further transaction begins.
        """
        prices, state, upper = self.table(), self.applied(), upper_of(self._opened.repository)
        if not (prices.version or self.is_changed()):
            return upper, None
        first, is_new = max(state.upper, checked), prices.version != state.version
        if not (is_new or self._has_other_prices(range(first, upper), prices.version)):
            if upper - state.upper >= _CHECKED_TRANSACTIONS:
                self.set_applied(replace(state, upper=upper), state)
            return upper, None
        claim = replace(state, claimed_at_s=time.time())
        is_claimed = not has_elapsed(_CLAIM_S, state.claimed_at_s, claim.claimed_at_s)
        if is_claimed or not self.set_applied(claim, state):
            return checked, None  # another process corrects them

        def goes_on() -> bool:
            self.set_applied(replace(state, claimed_at_s=time.time()))
            return not stopping() and self.table().version == prices.version

        report = self._correct(
            # A pipeline or an interrupted correction may have used a version between `state.version` and this one.
            includes=self.table_of_all().own_prices,
            since=0 if is_new else first,
            goes_on=goes_on,
        )
        if self.applied().version != prices.version:
            self.set_applied(state)
        return checked, report

    def is_due(self) -> bool:
        """Return whether own prices changed after the last correction, or a later transaction used other ones."""
        prices, state = self.table(), self.applied()
        later = range(state.upper, upper_of(self._opened.repository) if self.is_changed() else 0)
        return prices.version != state.version or self._has_other_prices(later, prices.version)

    def _correct(
        self,
        *,
        dry_run: bool = False,
        includes: Callable[[str], object] = lambda _: True,
        since: int = 0,
        goes_on: Callable[[], bool] = lambda: True,
        runner: TaskRunner | None = None,
        progress: OnProgress | None = None,
    ) -> RepricingReport:
        """Correct the costs of the models that `includes` accepts, in rows of transactions from `since` on. Stop once
        `goes_on` returns False; otherwise record that stored costs are right."""
        prices, upper = self.table(), upper_of(self._opened.repository)
        results: list[RunResult] = []

        if not dry_run:
            fence_requests(self._opened.objects, [REPRICINGS])  # those of killed processes
            results += self.finish_pending(runner, progress)
        changes: list[RepricedModel] = []
        guard = nullcontext() if dry_run else closing(RequestFence(self._opened.objects, REPRICINGS))
        with guard as fence:
            for page in _together(self._pages(upper, since, prices, includes)):
                if not goes_on():
                    return _report(changes, results)
                changes = _by_model([*changes, *page.changes])
                if page.traces and fence is not None:
                    results.append(self._carry_out(_submitted(fence, page), runner, progress))
        if not dry_run:
            spans = sum(counts.repriced for each in results for counts in each.counts)
            last = self.applied()
            if spans or not last.applied_at:
                at = datetime.now(UTC).isoformat(timespec="seconds")
                last = replace(last, spans=spans, applied_at=at)
            self.set_applied(replace(last, version=prices.version, upper=upper, claimed_at_s=0.0))
        return _report(changes, results)

    def finish_pending(
        self, runner: TaskRunner | None = None, progress: OnProgress | None = None
    ) -> list[RunResult]:
        """Carry out the requests that killed processes left, and return the results."""
        items = pending(self._opened.objects, REPRICINGS)
        return [self._carry_out(item, runner, progress) for item in items]

    def _carry_out(self, item: Input, runner: TaskRunner | None, progress: OnProgress | None) -> RunResult:
        result = commit_request(self._opened, item, runner or InProcess(), progress or silent)
        finish(self._opened.objects, item.path)
        return result

    def _has_other_prices(self, transactions: range, version: str) -> bool:
        """Return whether a transaction may have used other own prices, as one that began before a change."""
        journal = Journal(self._opened.key_value, "main")
        for transaction in transactions:
            try:
                steps = journal.read(transaction).steps
            except (TrimmedError, DamageError):
                return True
            if any(step.prices != version for step in steps):
                return True
        return False

    def _pages(
        self, upper: int, since: int, prices: PriceTable, includes: Callable[[str], object]
    ) -> Iterator[_Page]:
        """Yield pages of all buckets. Many are small or empty."""
        for bucket in range(self._opened.config.buckets if upper else 0):
            page = _Page()
            while page.after is not None:
                read = partial(self._page, bucket, page.after, since, prices, includes)
                page = self._opened.read(MAIN, read)
                yield page

    def _page(
        self,
        bucket: int,
        after: str,
        since: int,
        prices: PriceTable,
        includes: Callable[[str], object],
        view: CommitView,
    ) -> _Page:
        outdated_spans, end = _outdated(view.table(TABLE_SPANS.name), bucket, after, since, prices, includes)
        page = _Page(end)
        for group in trace_groups(outdated_spans):
            changes = _changes(view.table(TABLE_SPANS.name), group, prices)
            rows = view.table(TABLE_TRACES.name).lookup(sorted(changes), ["trace_id", "span_count"])
            for trace_id, spans in sorted(zip(*(column.to_pylist() for column in rows.columns), strict=True)):
                if page.traces and page.spans + spans > limits.DELETION_SPANS_MAX:
                    page.after = page.traces[-1]
                    return page
                page.traces.append(trace_id)
                page.spans += spans
                page.changes += changes[trace_id]
        return page


def _together(pages: Iterable[_Page]) -> Iterator[_Page]:
    """Join small pages. Yield an empty page where an empty one was, so that the caller may stop."""
    joined = _Page()
    for page in pages:
        is_full = (
            len(joined.changes) + len(page.changes) > limits.REPRICED_SPANS_MAX
            or joined.spans + page.spans > limits.DELETION_SPANS_MAX
        )
        if is_full:
            yield joined
            joined = _Page()
        joined.traces += page.traces
        joined.spans += page.spans
        joined.changes += page.changes
        yield _Page()
    yield joined


def _submitted(fence: RequestFence, page: _Page) -> Input:
    at = datetime.now(UTC).isoformat(timespec="microseconds")
    item = fence.submit(RepricingRequest(tuple(page.traces), page.spans, at))
    if item is None:
        raise ContentionError("an erasure or another correction has begun; correct the costs again.")
    return item


def _by_model(changes: Iterable[RepricedModel]) -> list[RepricedModel]:
    """Return the sums of changes by model."""
    by_model: dict[str, RepricedModel] = {}
    for each in changes:
        total = by_model.get(each.model) or RepricedModel(each.model, 0, 0.0, 0.0)
        by_model[each.model] = RepricedModel(
            each.model,
            total.spans + each.spans,
            round(total.cost_before + each.cost_before, _DIGITS),
            round(total.cost_after + each.cost_after, _DIGITS),
        )
    return [by_model[model] for model in sorted(by_model)]


def _report(changes: Sequence[RepricedModel], results: Sequence[RunResult]) -> RepricingReport:
    transactions = (transaction for each in results for transaction in each.transactions)
    return RepricingReport(tuple(changes), tuple(transactions))


def _outdated(
    spans: Table, bucket: int, after: str, since: int, prices: PriceTable, includes: Callable[[str], object]
) -> tuple[list[_Outdated], str | None]:
    """Return about REPRICED_SPANS_MAX spans of a bucket, those of whole traces, and the last of these traces; None at
    the end of the bucket."""
    where = f"model is not null and trace_id > {literal(after)} and transaction >= {since}"
    rows = spans.bucket_sql(bucket, where, ["trace_id", ROW_ID.name, *PRICED_COLUMNS])
    outdated_spans: list[_Outdated] = []
    if rows is None:
        return outdated_spans, None
    with connection() as db:
        models = [model for (model,) in db.sql(f"select distinct model from ({rows})").fetchall()]
        # Names of models may have characters that SQL cannot quote.
        db.register("included", pa.table({"model": pa.array(filter(includes, models), pa.string())}))
        query = f"from ({rows}) semi join included using (model) order by trace_id"
        for batch in db.sql(query).to_arrow_reader(_EXAMINED_TOGETHER):
            some = pa.Table.from_batches([batch])
            due = some.take(pa.array(outdated(some, prices), pa.int64()))
            ids: list[Any] = due[ROW_ID.name].to_pylist()
            outdated_spans += zip(map(str, due["trace_id"].to_pylist()), ids, strict=True)
            last = some["trace_id"][-1].as_py()  # the next batch may have more of its spans
            if len(outdated_spans) >= limits.REPRICED_SPANS_MAX and outdated_spans[0][0] != last:
                complete = [each for each in outdated_spans if each[0] != last]
                return complete, complete[-1][0]
    return outdated_spans, None


def trace_groups(outdated_spans: Sequence[_Outdated]) -> Iterator[list[_Outdated]]:
    """Yield the spans of a few traces each."""
    group: list[_Outdated] = []
    for _, of_trace in groupby(outdated_spans, itemgetter(0)):
        group += of_trace
        if (
            len(group) >= _EXAMINED_TOGETHER
            or len({trace_id for trace_id, _ in group}) >= LOOKED_UP_TRACES_MAX
        ):
            yield group
            group = []
    if group:
        yield group


def _changes(spans: Table, group: Sequence[_Outdated], prices: PriceTable) -> dict[str, list[RepricedModel]]:
    """Return the changes of the spans that state no cost, by trace."""
    columns = ["trace_id", ROW_ID.name, "model", "start_ns", "cost", "attributes", "otlp"]
    changes: defaultdict[str, list[RepricedModel]] = defaultdict(list)
    for first in range(0, len(group), _EXAMINED_TOGETHER):
        few = group[first : first + _EXAMINED_TOGETHER]
        ids = np.array([row_id for _, row_id in few], np.int64)
        rows = spans.lookup(sorted({trace_id for trace_id, _ in few}), columns, row_ids=ids)
        values = (rows[name].to_pylist() for name in ("trace_id", "model", "cost"))
        for trace_id, model, old, new in zip(*values, costs_by(rows, prices), strict=True):
            if new != old:
                changes[trace_id].append(RepricedModel(str(model), 1, float(old or 0), new or 0.0))
    return changes


class RepricingLoop(PeriodicThread):
    """Thread of a server or pipeline that corrects the costs of stored spans after a change of own prices."""

    def __init__(self, prices: LakePrices) -> None:
        """Create the thread. It ends after the current transaction."""
        self._prices = prices
        self._checked = 0
        failures = FailureLog(_log, "costs were not corrected, and will be soon", _POLL_S)
        super().__init__("tracelake-prices", self._apply, failures=failures, stop_max_s=_STOP_MAX_S)

    def _apply(self) -> float:
        """Correct costs if it is due, and log the result; return the seconds until the next check."""
        self._checked, report = self._prices.apply_when_due(checked=self._checked, stopping=self.stopping)
        if report is not None:
            _log.info("prices changed: the costs of %d spans were corrected", report.spans)
        return _POLL_S
