"""Which traces a pass takes: experiments with their retention, and their hot traces that are old enough."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from sqlalchemy import case, delete, func, select

from tracelake._errors import DamageError, UsageError
from tracelake.archive.model import ArchiveDue, ArchiveSettings
from tracelake.archive.retention import (
    ARCHIVE_NOW_TAG,
    RETENTION_TAG,
    archive_now_of_tag,
    cutoff_ns,
    resolve,
    retention_of_tag,
)
from tracelake.archive.scheduling import Marks
from tracelake.limits import ARCHIVE_BATCH_BYTES, ARCHIVE_BATCH_TRACES
from tracelake.tracking.schema import (
    TRACKING_STORE,
    archive_settings,
    experiment_tags,
    trace_info,
    trace_parts,
    workspaces,
)
from tracelake.tracking.store import TrackingStore


class Candidates:
    """What is due in one lake. Nothing here rests on being up to date: finalize decides."""

    def __init__(self, tracking: TrackingStore) -> None:
        self._database, self._lake = tracking.database, tracking.lake

    def settings(self) -> ArchiveSettings:
        """Return how the lake archives. Raises DamageError."""
        query = select(archive_settings.c.settings).where(archive_settings.c.lake == self._lake)
        with self._database.reading() as connection:
            text = connection.execute(query).scalar()
        try:
            fields = {} if text is None else json.loads(text)
            return ArchiveSettings(**fields | {"allowlist": tuple(fields.get("allowlist", ()))})
        except (ValueError, TypeError, AttributeError) as error:
            raise DamageError(
                f"the settings of the archive cannot be read: {error}; set them anew"
            ) from error

    def set_settings(self, settings: ArchiveSettings) -> None:
        """Keep how the lake archives."""
        row = {"lake": self._lake, "settings": json.dumps(asdict(settings))}
        with self._database.writing() as connection:
            connection.execute(delete(archive_settings).where(archive_settings.c.lake == self._lake))
            connection.execute(archive_settings.insert(), row)

    def due(self, settings: ArchiveSettings, now_ns: int) -> list[ArchiveDue]:
        """Return each experiment that has traces, with what of it is due."""
        return [self._due(settings, now_ns, row) for row in self._experiments()]

    def _due(self, settings: ArchiveSettings, now_ns: int, row: Any) -> ArchiveDue:
        experiment_id, workspace, narrower, traces, hot_traces, failed_traces = row
        counts = {
            "hot_traces": hot_traces,
            "archived_traces": traces - hot_traces,
            "failed_traces": failed_traces,
        }
        tags = self._tags(experiment_id)
        try:
            resolved = resolve(
                settings.retention,
                narrower,
                retention_of_tag(tags.get(RETENTION_TAG)),
                allowed=experiment_id in settings.allowlist,
            )
            at_once = archive_now_of_tag(tags.get(ARCHIVE_NOW_TAG))
        except UsageError as error:
            return ArchiveDue(experiment_id, workspace, None, None, False, None, problem=str(error), **counts)
        cutoff = cutoff_ns(resolved.text, at_once, now_ns)
        is_idle = cutoff is None or not hot_traces
        due, size_bytes = (0, 0) if is_idle else self._totals(experiment_id, workspace, cutoff or 0)
        return ArchiveDue(
            experiment_id,
            workspace,
            resolved.text,
            resolved.source,
            at_once is not None,
            cutoff,
            due,
            size_bytes,
            **counts,
        )

    def older(self, due: ArchiveDue, cutoff: int) -> ArchiveDue:
        """Return an experiment with what of it is older than that, whatever its retention says."""
        traces, size_bytes = self._totals(due.experiment_id, due.workspace, cutoff)
        # What archiveNow asks for may be more than that, so this does not do it.
        return replace(
            due, is_now=False, cutoff_ns=cutoff, traces=traces, size_bytes=size_bytes, problem=None
        )

    def batches(self, due: ArchiveDue, traces_max: int | None = None) -> Iterator[list[str]]:
        """Yield the traces of an experiment that are due, the oldest first, in batches; each comes once."""
        after: tuple[int, str] = (-(2**63), "")
        left = traces_max
        while due.cutoff_ns is not None and (left is None or left > 0):
            rows = self._some(
                due, after, ARCHIVE_BATCH_TRACES if left is None else min(left, ARCHIVE_BATCH_TRACES)
            )
            if not rows:
                return
            batch: list[str] = []
            room = ARCHIVE_BATCH_BYTES
            for start_ns, trace_id, size_bytes in rows:
                if batch and size_bytes > room:
                    break
                batch.append(trace_id)
                room -= size_bytes
                after = (start_ns, trace_id)
            left = None if left is None else left - len(batch)
            yield batch

    def done_at_once(self, experiment_id: str, value: str) -> None:
        """Clear archiveNow of an experiment, unless somebody has set it to something else meanwhile."""
        tags = experiment_tags.c
        with self._database.writing() as connection:
            connection.execute(
                delete(experiment_tags).where(
                    tags.lake == self._lake,
                    tags.experiment_id == experiment_id,
                    tags.key == ARCHIVE_NOW_TAG,
                    tags.value == value,
                )
            )

    def marks(self) -> Marks:
        """Return the experiments that are marked archiveNow, each with the text of its mark."""
        tags = experiment_tags.c
        query = select(tags.experiment_id, tags.value).where(
            tags.lake == self._lake, tags.key == ARCHIVE_NOW_TAG
        )
        with self._database.reading() as connection:
            return frozenset((row.experiment_id, row.value) for row in connection.execute(query))

    def done_where_nothing_is_hot(self, due: Sequence[ArchiveDue], marks: Marks) -> None:
        """Clear archiveNow, as `marks` had it, of experiments that are not among those with hot traces."""
        hot = {each.experiment_id for each in due if each.hot_traces}
        for experiment_id, value in sorted(marks):
            if experiment_id not in hot and _says_something(value):
                self.done_at_once(experiment_id, value)

    def at_once_of(self, experiment_id: str) -> str | None:
        """Return the tag archiveNow of an experiment as it stands."""
        return self._tags(experiment_id).get(ARCHIVE_NOW_TAG)

    def _experiments(self) -> list[Any]:
        info = trace_info.c
        query = (
            select(
                info.experiment_id,
                info.workspace,
                func.max(workspaces.c.trace_archival_retention),
                func.count(),
                func.sum(case((info.spans_location == TRACKING_STORE, 1), else_=0)),
                func.sum(case((info.archival_failure.is_not(None), 1), else_=0)),
            )
            .outerjoin(
                workspaces, (workspaces.c.lake == info.lake) & (workspaces.c.workspace == info.workspace)
            )
            .where(info.lake == self._lake)
            .group_by(info.experiment_id, info.workspace)
            .order_by(info.workspace, info.experiment_id)
        )
        with self._database.reading() as connection:
            return list(connection.execute(query))

    def _tags(self, experiment_id: str) -> dict[str, str]:
        tags = experiment_tags.c
        query = select(tags.key, tags.value).where(
            tags.lake == self._lake, tags.experiment_id == experiment_id
        )
        with self._database.reading() as connection:
            return {row.key: row.value for row in connection.execute(query)}

    def _is_due(self, due_id: str, workspace: str, cutoff: int) -> tuple[Any, ...]:
        info = trace_info.c
        return (
            info.lake == self._lake,
            info.experiment_id == due_id,
            info.workspace == workspace,
            info.spans_location == TRACKING_STORE,
            info.archival_failure.is_(None),
            info.start_ns < cutoff,
        )

    def _totals(self, experiment_id: str, workspace: str, cutoff: int) -> tuple[int, int]:
        info, parts = trace_info.c, trace_parts.c
        is_due = self._is_due(experiment_id, workspace, cutoff)
        sizes = (
            select(func.coalesce(func.sum(parts.size_bytes), 0))
            .select_from(trace_info)
            .join(trace_parts, (parts.lake == info.lake) & (parts.trace_id == info.trace_id))
            .where(*is_due)
        )
        with self._database.reading() as connection:
            traces = connection.execute(
                select(func.count()).select_from(trace_info).where(*is_due)
            ).scalar_one()
            return int(traces), int(connection.execute(sizes).scalar_one())

    def _some(self, due: ArchiveDue, after: tuple[int, str], limit: int) -> list[Any]:
        info, parts = trace_info.c, trace_parts.c
        size_bytes = (
            select(func.coalesce(func.sum(parts.size_bytes), 0))
            .where(parts.lake == info.lake, parts.trace_id == info.trace_id)
            .scalar_subquery()
        )
        is_behind = (info.start_ns > after[0]) | ((info.start_ns == after[0]) & (info.trace_id > after[1]))
        query = (
            select(info.start_ns, info.trace_id, size_bytes)
            .where(*self._is_due(due.experiment_id, due.workspace, due.cutoff_ns or 0), is_behind)
            .order_by(info.start_ns, info.trace_id)
            .limit(limit)
        )
        with self._database.reading() as connection:
            return list(connection.execute(query))


def _says_something(mark: str) -> bool:
    """Whether archiveNow can be carried out; one that cannot stays for somebody to see."""
    try:
        archive_now_of_tag(mark)
    except UsageError:
        return False
    return True
