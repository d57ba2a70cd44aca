"""Selection of traces for a pass: experiments with their retention, and batches of their hot traces that are due."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from sqlalchemy import BigInteger, String, and_, case, column, delete, func, select, values

from tracelake._errors import UsageError
from tracelake.archive import retention
from tracelake.archive.model import ArchiveDue, ArchiveSettings
from tracelake.archive.retention import cutoff_ns
from tracelake.archive.scheduler import Marks
from tracelake.batching import batches
from tracelake.limits import TRACKING_IDS_AT_ONCE
from tracelake.limits.input import MIB
from tracelake.tracking import schema
from tracelake.tracking.store import TrackingStore

ARCHIVE_BATCH_TRACES: Final = 1_024
"""Traces in one batch of a pass, and in one pack."""
ARCHIVE_BATCH_BYTES: Final = 32 * MIB
"""Uncompressed OTLP in one batch; a larger trace is a batch by itself."""
ARCHIVE_LOOK_TRACES: Final = 4_096
"""Traces in one query of a pass for candidates, oldest first, before they are split into batches."""
_ARCHIVE_NOW_SEEN_S: Final = 600
"""Time for which an unfinished archiveNow mark covers the traces up to its first sighting."""

Place: TypeAlias = tuple[int, str]
"""Position among an experiment's traces by age: start and id of a trace."""
BEGINNING: Final[Place] = (-(2**63), "")
_LATEST_NS: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class TraceBatch:
    """Traces that are archived together."""

    trace_ids: tuple[str, ...]
    size_bytes: int
    """Their uncompressed OTLP bytes."""
    end: Place


def claim_batches(sizes_bytes: Mapping[str, int], end: Place) -> Iterator[TraceBatch]:
    """Split traces into batches by id, so that a batch reads adjacent rows of the tables."""
    for ids in batches(
        sorted(sizes_bytes), sizes_bytes.__getitem__, ARCHIVE_BATCH_BYTES, ARCHIVE_BATCH_TRACES
    ):
        yield TraceBatch(tuple(ids), sum(map(sizes_bytes.__getitem__, ids)), end)


ExperimentTags: TypeAlias = tuple[str | None, dict[str, str]]
"""The workspace of an experiment, None if all share it, and its archive tags."""
_SEEN_NS: Final = _ARCHIVE_NOW_SEEN_S * 10**9
_SILENT: Final[ExperimentTags] = (None, {})


class Candidates:
    """Selects due traces of one lake. A result may be out of date, so finalize checks each trace again."""

    def __init__(self, tracking: TrackingStore) -> None:
        self._database, self._lake = tracking.database, tracking.lake
        self._seen_ns: dict[tuple[str, str], int] = {}
        """Time when each archiveNow mark was first seen. Traces that begin later are not part of its request."""

    def due(self, settings: ArchiveSettings, now_ns: int, limit: int | None = None) -> list[ArchiveDue]:
        """Return experiments that have traces, each with its hot, archived and due counts.

        Experiments with the most hot traces come first. Experiments beyond the limit are left out.
        """
        return self.counted(self._resolved(settings, now_ns, limit, only_hot=False))

    def resolved(self, settings: ArchiveSettings, now_ns: int) -> list[ArchiveDue]:
        """Return each experiment that has traces with its retention, without counting due traces."""
        return self._resolved(settings, now_ns, None, only_hot=False)

    def hot(self, settings: ArchiveSettings, now_ns: int, limit: int | None = None) -> list[ArchiveDue]:
        """Return experiments with hot traces as input of a pass. Archived and due traces are not counted."""
        return self._resolved(settings, now_ns, limit, only_hot=True)

    def _resolved(
        self, settings: ArchiveSettings, now_ns: int, limit: int | None, *, only_hot: bool
    ) -> list[ArchiveDue]:
        """Return experiments with their effective retention. The number of queries does not depend on their number."""
        rows = self._experiments(limit, only_hot=only_hot)
        tags = self._tags(None if limit is None else [row.experiment_id for row in rows])
        return [
            self._due(settings, now_ns, row, _counting(row.workspace, *tags.get(row.experiment_id, _SILENT)))
            for row in rows
        ]

    def _due(self, settings: ArchiveSettings, now_ns: int, row: Any, tags: Mapping[str, str]) -> ArchiveDue:
        experiment_id, workspace, narrower, traces, hot_traces, failed_traces = row
        due = ArchiveDue(
            experiment_id,
            workspace,
            None,
            None,
            False,
            None,
            hot_traces=hot_traces,
            archived_traces=traces - hot_traces,
            failed_traces=failed_traces,
        )
        try:
            resolved = retention.resolve(
                settings.retention,
                narrower,
                retention.parse_retention_tag(tags.get(retention.RETENTION_TAG)),
                allowed=experiment_id in settings.allowlist,
                default=settings.default_retention,
            )
            mark = tags.get(retention.ARCHIVE_NOW_TAG)
            at_once = retention.parse_archive_now_tag(mark)
            seen_ns = self._seen_ns.get((experiment_id, mark or ""), now_ns)
        except UsageError as error:
            return replace(due, problem=str(error))
        # A request covers other traces than the default, so the default waits until it is done.
        text = None if resolved.source == "default" and at_once is not None else resolved.text
        cutoff = cutoff_ns(text, at_once, now_ns, max(seen_ns, now_ns - _SEEN_NS))
        return replace(
            due,
            retention=resolved.text,
            source=resolved.source,
            is_now=at_once is not None,
            cutoff_ns=cutoff,
            quiet_ns=retention.quiet_ns(resolved, at_once, cutoff),
        )

    def older(self, due: Sequence[ArchiveDue], cutoff: int) -> list[ArchiveDue]:
        """Return experiments with counts of traces older than a cutoff, regardless of retention."""
        # An archiveNow mark may ask for more than this cutoff, so ignore the mark and leave it uncleared.
        now = [replace(each, is_now=False, cutoff_ns=cutoff, quiet_ns=None, problem=None) for each in due]
        return self.counted(now)

    def batches(
        self, due: ArchiveDue, traces_max: int | None = None, after: Place = BEGINNING
    ) -> Iterator[TraceBatch]:
        """Yield batches of an experiment's due traces after a position, each trace once.

        The oldest few thousand are selected first and batched by id, because the tables have them in this order. The
        rows to compare a batch with are then adjacent. A batch's `end` is the position where the next selection
        starts.
        """
        remaining = traces_max
        while due.cutoff_ns is not None and (remaining is None or remaining > 0):
            rows = self._some(due, after, min(ARCHIVE_LOOK_TRACES, remaining or ARCHIVE_LOOK_TRACES))
            if not rows:
                return
            last = rows[-1]
            after = (last.start_ns, last.trace_id)
            remaining = None if remaining is None else remaining - len(rows)
            yield from claim_batches({row.trace_id: row.size_bytes for row in rows}, after)

    def done_at_once(self, experiment_id: str, value: str) -> None:
        """Clear an experiment's archiveNow mark, unless it was changed in the meantime."""
        self._seen_ns.pop((experiment_id, value), None)  # the same mark may be set again
        tags = schema.experiment_tags.c
        with self._database.writing() as connection:
            connection.execute(
                delete(schema.experiment_tags).where(
                    tags.lake == self._lake,
                    tags.experiment_id == experiment_id,
                    tags.key == retention.ARCHIVE_NOW_TAG,
                    tags.value == value,
                )
            )

    def marks(self) -> Marks:
        """Return the experiments with an archiveNow mark, each with the text of its mark."""
        tags = schema.experiment_tags.c
        query = select(tags.experiment_id, tags.value).where(
            tags.lake == self._lake, tags.key == retention.ARCHIVE_NOW_TAG
        )
        with self._database.reading() as connection:
            marks = frozenset((row.experiment_id, row.value) for row in connection.execute(query))
        now_ns = time.time_ns()
        self._seen_ns = {mark: self._seen_ns.get(mark, now_ns) for mark in marks}
        return marks

    def done_where_nothing_is_hot(self, due: Sequence[ArchiveDue], marks: Marks) -> None:
        """Clear the archiveNow marks of those experiments in `marks` that have no hot traces."""
        hot = {each.experiment_id for each in due if each.hot_traces and (each.is_now or each.problem)}
        for experiment_id, value in sorted(marks):
            if experiment_id not in hot and _says_something(value):
                self.done_at_once(experiment_id, value)

    def _experiments(self, limit: int | None, *, only_hot: bool) -> list[Any]:
        info = schema.trace_info.c
        which = (info.spans_location == schema.TRACKING_STORE,) if only_hot else ()
        counted = (
            select(
                info.experiment_id,
                info.workspace,
                func.count().label("traces"),
                func.sum(case((info.spans_location == schema.TRACKING_STORE, 1), else_=0)).label(
                    "hot_traces"
                ),
                func.count(info.archival_failure).label("failed_traces"),
            )
            .where(info.lake == self._lake, *which)
            .group_by(info.experiment_id, info.workspace)
            .subquery()
        )
        of = (schema.workspaces.c.lake == self._lake) & (schema.workspaces.c.workspace == counted.c.workspace)
        query = (
            select(
                counted.c.experiment_id,
                counted.c.workspace,
                schema.workspaces.c.trace_archival_retention,
                counted.c.traces,
                counted.c.hot_traces,
                counted.c.failed_traces,
            )
            .outerjoin(schema.workspaces, of)
            .order_by(counted.c.hot_traces.desc(), counted.c.workspace, counted.c.experiment_id)
            .limit(limit)
        )
        with self._database.reading() as connection:
            return list(connection.execute(query))

    def _tags(self, experiment_ids: Sequence[str] | None = None) -> dict[str, ExperimentTags]:
        """Return the archive tags of all or some experiments, with each experiment's workspace."""
        tags, of = schema.experiment_tags.c, schema.experiments.c
        is_its = (of.lake == tags.lake) & (of.experiment_id == tags.experiment_id)
        workspace = case(
            (tags.experiment_id == schema.DEFAULT_EXPERIMENT, None),
            else_=func.coalesce(of.workspace, schema.DEFAULT_WORKSPACE),
        ).label("workspace")
        query = (
            select(tags.experiment_id, tags.key, tags.value, workspace)
            .outerjoin(schema.experiments, is_its)
            .where(
                tags.lake == self._lake, tags.key.in_((retention.RETENTION_TAG, retention.ARCHIVE_NOW_TAG))
            )
        )
        if experiment_ids is not None:
            query = query.where(tags.experiment_id.in_(experiment_ids))
        tags_of: dict[str, ExperimentTags] = {}
        with self._database.reading() as connection:
            for row in connection.execute(query):
                tags_of.setdefault(row.experiment_id, (row.workspace, {}))[1][row.key] = row.value
        return tags_of

    def _hot(self) -> tuple[Any, ...]:
        info = schema.trace_info.c
        return (
            info.lake == self._lake,
            info.spans_location == schema.TRACKING_STORE,
            info.archival_failure.is_(None),
        )

    def counted(self, due: Sequence[ArchiveDue]) -> list[ArchiveDue]:
        """Return experiments with counts of due traces, with one query for some hundred experiments."""
        totals: dict[tuple[str, str], tuple[int, int]] = {}
        requested = [
            (each.experiment_id, each.workspace, each.cutoff_ns, each.quiet_ns or _LATEST_NS)
            for each in due
            if each.cutoff_ns is not None and each.hot_traces
        ]
        with self._database.reading() as connection:
            for start in range(0, len(requested), TRACKING_IDS_AT_ONCE):
                for query in self._totals(requested[start : start + TRACKING_IDS_AT_ONCE]):
                    for row in connection.execute(query):
                        before = totals.get((row.experiment_id, row.workspace), (0, 0))
                        both = (before[0] + row.traces, before[1] + int(row.size_bytes))
                        totals[row.experiment_id, row.workspace] = both
        counted = []
        for each in due:
            traces, size_bytes = totals.get((each.experiment_id, each.workspace), (0, 0))
            counted.append(replace(each, traces=traces, size_bytes=size_bytes))
        return counted

    def _totals(self, requested: Sequence[tuple[str, str, int | None, int]]) -> Iterator[Any]:
        """Yield queries whose results add up to the due counts."""
        info, parts = schema.trace_info.c, schema.trace_parts.c
        columns = (
            column("experiment_id", String),
            column("workspace", String),
            column("cutoff_ns", BigInteger),
            column("quiet_ns", BigInteger),
        )
        wanted = values(*columns, name="wanted").data(requested).cte()
        its = (
            *self._hot(),
            info.experiment_id == wanted.c.experiment_id,
            info.workspace == wanted.c.workspace,
        )
        if any(quiet_ns != _LATEST_NS for *_, quiet_ns in requested):
            its = (*its, info.updated_ns <= wanted.c.quiet_ns)
        for is_older in _are_older(wanted.c.cutoff_ns):
            yield (
                select(
                    info.experiment_id,
                    info.workspace,
                    func.count(info.trace_id.distinct()).label("traces"),
                    func.coalesce(func.sum(parts.size_bytes), 0).label("size_bytes"),
                )
                .select_from(wanted)
                .join(schema.trace_info, and_(*its, *is_older))
                .outerjoin(schema.trace_parts, (parts.lake == info.lake) & (parts.trace_id == info.trace_id))
                .group_by(info.experiment_id, info.workspace)
            )

    def _some(self, due: ArchiveDue, after: Place, limit: int) -> list[Any]:
        """Return the next due traces after a position, the oldest first."""
        rows: list[Any] = []
        with self._database.reading() as connection:
            for is_older in _are_older(due.cutoff_ns or 0):
                if len(rows) < limit:
                    rows += connection.execute(self._next(due, is_older, after, limit - len(rows)))
        return rows

    def _next(self, due: ArchiveDue, is_older: tuple[Any, ...], after: Place, limit: int) -> Any:
        info, parts = schema.trace_info.c, schema.trace_parts.c
        size_bytes = (
            select(func.coalesce(func.sum(parts.size_bytes), 0))
            .where(parts.lake == info.lake, parts.trace_id == info.trace_id)
            .scalar_subquery()
            .label("size_bytes")
        )
        # The index does not have this column.
        is_quiet = () if due.quiet_ns is None else (info.updated_ns <= due.quiet_ns,)
        is_behind = (info.start_ns > after[0]) | ((info.start_ns == after[0]) & (info.trace_id > after[1]))
        return (
            select(info.start_ns, info.trace_id, size_bytes)
            .where(
                *self._hot(),
                info.experiment_id == due.experiment_id,
                info.workspace == due.workspace,
                *is_older,
                *is_quiet,
                info.start_ns >= after[0],  # implied by `is_behind`, but needed to use the index
                is_behind,
            )
            .order_by(info.start_ns, info.trace_id)
            .limit(limit)
        )


def _are_older(cutoff_ns: Any) -> Iterator[tuple[Any, ...]]:
    """Yield conditions in order of start; a due trace meets exactly one.

    A trace whose start is in the future, because of a wrong clock, is judged by its last update. Otherwise it would
    stay hot until then. Separate conditions let the database scan one index range for each, and skip the rows in
    between.
    """
    info = schema.trace_info.c
    yield (info.start_ns < cutoff_ns,)
    yield (info.start_ns > time.time_ns(), info.updated_ns < cutoff_ns)


def _counting(workspace: str, of: str | None, tags: Mapping[str, str]) -> Mapping[str, str]:
    """Return the tags of an experiment that apply to a workspace's traces in it.

    Any sender may name another team's experiment, so the tags apply only to the experiment's own workspace.
    """
    return tags if of in (None, workspace) else {}


def _says_something(mark: str) -> bool:
    """Return whether an archiveNow mark is valid. An invalid mark is not cleared, so that users can see it."""
    try:
        retention.parse_archive_now_tag(mark)
    except UsageError:
        return False
    return True
