"""The archive of one lake: passes, plans, restores, deletions and sweeps, and lists of archived or failed traces.

A restore or deletion of traces ends with one transaction, and then deletes objects that are no longer referenced.
"""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final, Literal, TypeAlias

import pyarrow as pa
from sqlalchemy import select

from tracelake import _errors, limits
from tracelake._settings import duration_ns, find_metadata
from tracelake.archive import archive_pass, model
from tracelake.archive.archive_pass import ARCHIVE_FINALIZE_TRACES
from tracelake.archive.candidates import Candidates, Place, TraceBatch
from tracelake.archive.repositories import (
    Tables,
    count_spans,
    is_of,
    is_pack,
    path_in,
    read_archived,
    traces_data,
    traces_of_pack,
)
from tracelake.archive.retention import ArchiveOutcome, cutoff_ns, set_retention_override
from tracelake.archive.scheduler import Marks
from tracelake.archive.store import ArchiveSpace, ArchiveStore, is_still_at, reclaim_disk, space
from tracelake.batching import batches
from tracelake.context import LakeContext
from tracelake.limits import ARCHIVE_ROWS_MAX_BYTES, TRACE_ROWS_MAX_BYTES
from tracelake.location import open_location
from tracelake.storage import ObjectStore, open_objects, sweep_temporaries
from tracelake.tables.builtin import TABLE_SPANS
from tracelake.tables.maintenance import committed_upper
from tracelake.tables.table import Table
from tracelake.tables.view import CommitView
from tracelake.tasks.runners import InProcess, TaskRunner, run_reporting
from tracelake.tracking.erasure import ErasedTraces
from tracelake.tracking.location import find_tracking
from tracelake.tracking.schema import ARCHIVE_REPO, LAKE_LOCATION, TRACKING_STORE, trace_info
from tracelake.tracking.store import TrackingStore
from tracelake.versions.branch_store import MAIN

_log: Final = logging.getLogger(__name__)
ReadTables = Callable[[str], bytes]
"""(trace id) → all its spans in the lake's tables, as a `TracesData`. Raises NotFoundError."""
OnFailed = Callable[[str, _errors.TracelakeError], None]
"""(trace id, the reason why it stays)."""


def restore_trace(
    store: ArchiveStore, objects: ObjectStore | None, read_tables: ReadTables, trace_id: str
) -> bool:
    """Restore an archived trace to the tracking store. Return False if it is already hot.

    Raises NotFoundError for an unknown trace, LimitError if the tables have more of it than one read may take, and
    DamageError if its archive is missing or damaged. After an error or a crash at any step, the trace stays archived.
    """
    for _ in range(limits.ARCHIVE_RESTORE_TRIES_MAX):
        row = store.archived([trace_id]).get(trace_id)
        if row is None:
            raise _errors.NotFoundError(f"no trace {trace_id!r} in the tracking store of this lake.")
        if row.spans_location == TRACKING_STORE:
            return False
        location = str(row.archive_location)
        path = _path(objects, location)
        late = None if path else store.late(trace_id)
        if path and objects is not None:
            try:
                data = read_archived(objects, location, row.archive_bytes, row.archive_sha256)
            except _errors.DamageError:
                if is_still_at(store.tracking, trace_id, location):
                    raise
                continue  # a concurrent call restored or deleted it, and its object
        else:
            data = read_tables(trace_id)
        if store.restore(
            trace_id, location, data, count_spans(data, f"the archive of trace {trace_id}"), path, late
        ):
            if path and objects is not None:
                _clean_up(store, objects, [path])
            return True
    raise _errors.ContentionError(
        f"trace {trace_id} was repeatedly archived while it was restored; try again"
    )


def read_trace(store: ArchiveStore, objects: ObjectStore | None, trace_id: str) -> bytes | None:
    """Return an archived trace from its repository. Return no bytes if the tables are its archive, and None if it is
    not archived.

    Also returns None if the trace was restored, deleted, or archived again during the read. Raises DamageError if the
    archived trace is missing or altered, and StorageError if a store fails.
    """
    row = store.archived([trace_id]).get(trace_id)
    location = None if row is None else row.archive_location
    if row is None or location is None or row.spans_location == TRACKING_STORE:
        return None
    if location.startswith(LAKE_LOCATION) or objects is None:
        return b""
    try:
        return read_archived(objects, location, row.archive_bytes, row.archive_sha256)
    except (_errors.DamageError, _errors.NotFoundError):
        if is_still_at(store.tracking, trace_id, location):
            raise
        return None


def delete_traces(
    store: ArchiveStore,
    objects: ObjectStore | _errors.TracelakeError | None,
    trace_ids: Sequence[str],
    on_failed: OnFailed | None = None,
) -> list[str]:
    """Delete traces from the tracking store and the archive repository; return the deleted ones.

    `objects` is None if no trace is in a repository, and an error if the repository cannot be opened. A trace stays if
    it is archived or restored during the call, if its object is unknown, or if the tracking store fails; `on_failed` is
    called for each. Without it, the first such error is raised after the other traces are deleted.
    """
    places: dict[str, tuple[str | None, str]] = {}
    failed: dict[str, _errors.TracelakeError] = {}
    for trace_id, row in store.archived(trace_ids).items():
        location = None if row.spans_location == TRACKING_STORE else str(row.archive_location)
        try:
            places[trace_id] = (location, _path(objects, location))
        except _errors.TracelakeError as error:
            failed[trace_id] = error
    deleted: list[str] = []
    # writers wait during each transaction
    for some in batches(sorted(places), lambda _: 1, ARCHIVE_FINALIZE_TRACES):
        try:
            deleted += store.delete({trace_id: places[trace_id] for trace_id in some})
        except _errors.TracelakeError as error:
            failed |= dict.fromkeys(places.keys() - set(deleted), error)
            break
    if objects is not None and not isinstance(objects, _errors.TracelakeError):
        _clean_up(store, objects, sorted({places[trace_id][1] for trace_id in deleted} - {""}))
    for trace_id in places.keys() - failed.keys() - set(deleted):
        failed[trace_id] = _errors.ContentionError(
            f"trace {trace_id} is being archived, restored or deleted; try again"
        )
    _report(failed, on_failed)
    return deleted


def _report(failed: Mapping[str, _errors.TracelakeError], on_failed: OnFailed | None) -> None:
    for trace_id, error in failed.items():
        if on_failed is None:
            raise error
        on_failed(trace_id, error)


_DELETE_TRIES: Final = 3
"""Times that a deletion looks up traces that archivers or restores move."""


def _path(objects: ObjectStore | _errors.TracelakeError | None, location: str | None) -> str:
    """Return the object that a location names, or "" if it names none. Raises the repository's error."""
    if location is None or location.startswith(LAKE_LOCATION):
        return ""
    if objects is None:
        raise _errors.ContentionError(f"a trace was archived at {location} just now; try again")
    if isinstance(objects, _errors.TracelakeError):
        raise objects
    return path_in(objects, location)


def _clean_up(store: ArchiveStore, objects: ObjectStore, paths: Sequence[str]) -> None:
    """Delete unreferenced objects. A failure is logged, and the next sweep deletes them."""
    try:
        archive_pass.delete_condemned(store, objects, paths)
    except (_errors.StorageError, OSError) as error:
        _log.warning(
            "unreferenced objects stay in %s until `tracelake archive sweep` deletes them: %s",
            objects.url,
            error,
        )


_ARCHIVE_TASKS_AT_ONCE: Final = 64
"""Batches of a pass that run as tasks of one job."""

ArchiveState: TypeAlias = Literal["archived", "failed"]


@dataclass(frozen=True, slots=True)
class ArchivedTrace:
    """A trace that is archived, or that is marked because it cannot be archived."""

    trace_id: str
    experiment_id: str
    name: str | None
    start_ns: int
    archived_ns: int | None
    location: str | None
    size_bytes: int | None
    """Bytes in the repository; 0 in layout `lake`, None while it is hot."""
    failure: str | None
    """Its mark, such as `MALFORMED_TRACE`. Passes skip it until a user removes the mark."""


def list_traces(tracking: TrackingStore, state: ArchiveState, limit: int) -> list[ArchivedTrace]:
    """Return archived traces, the most recently archived first, or marked ones, the newest first."""
    info = trace_info.c
    columns = (
        *(info.trace_id, info.experiment_id, info.name, info.start_ns, info.archived_ns),
        *(info.archive_location, info.archive_bytes, info.archival_failure),
    )
    if state == "archived":
        which, order = info.spans_location == ARCHIVE_REPO, info.archived_ns.desc()
    else:
        which, order = info.archival_failure.is_not(None), info.start_ns.desc()
    query = (
        select(*columns).where(info.lake == tracking.lake, which).order_by(order, info.trace_id).limit(limit)
    )
    with tracking.database.reading() as connection:
        return [ArchivedTrace(*row) for row in connection.execute(query)]


FOLDER: Final = "archive"
"""Folder of the lake for its repository, unless the settings name another place."""
_MEMORY: Final = "memory://"
Runners: TypeAlias = Callable[[TaskRunner | None, str | None], TaskRunner]
"""(runner, Spark master) → the task runner to use."""


class LakeArchive:
    """The archive of a lake. Any number of archivers may run at once, in any processes."""

    def __init__(
        self,
        tracking: TrackingStore,
        lake_url: str,
        tables: Tables,
        runners: Runners = lambda runner, _master: runner or InProcess(),
        open_tables: archive_pass.OpenTables | None = None,
    ) -> None:
        """Create the archive. `runners` chooses the task runner, and `open_tables` opens a lake's tables inside a
        task."""
        self._runners, self._open_tables = runners, open_tables or (lambda _url: tables)
        self._tracking = tracking
        self._lake_url = lake_url
        self._tables = tables
        self._store = ArchiveStore(tracking)
        self._candidates = Candidates(tracking)
        self._places: dict[tuple[str, str], Place] = {}
        """Position in each experiment where the next pass continues, if the last one stopped at its limit."""

    def settings(self) -> model.ArchiveSettings:
        """Return the archive settings of the lake."""
        return model.read_settings(self._tracking)

    def configure(
        self,
        *,
        layout: str | None = None,
        location: str | None = None,
        retention: str | None = None,
        allowlist: Sequence[str] | None = None,
    ) -> model.ArchiveSettings:
        """Change the archive settings. None keeps a value; a retention of "" removes it.

        Archived traces stay where they are. Raises UsageError if a value is invalid, or if the repository to leave has
        archived traces.
        """
        changed: dict[str, Any] = {}
        if layout is not None:
            if layout not in model.LAYOUTS:
                raise _errors.UsageError(f"{layout!r} is not a layout; choose {', '.join(model.LAYOUTS)}")
            changed["layout"] = model.LAYOUTS[layout]
        if location is not None:
            changed["location"] = location.rstrip("/") or None
            if changed["location"]:
                self._check(open_objects(changed["location"]))
        if retention is not None:
            if retention:
                duration_ns(retention)
            changed["retention"] = retention or None
        if allowlist is not None:
            changed["allowlist"] = tuple(sorted(set(allowlist)))
        if "location" in changed:
            self._clear_repository(changed["location"])
        return model.change_settings(self._tracking, changed)

    def _clear_repository(self, location: str | None) -> None:
        """Before a move of the repository, delete leftovers in the old one, if it has no archived traces and is
        reachable."""
        with contextlib.suppress(_errors.TracelakeError, OSError):
            settings = self.settings()
            if location == settings.location or self._store.has_objects(only_live=True):
                return
            objects = self._repository(settings)
            # one by one, because the first shows whether it is reachable
            for leftover in self._store.leftovers(time.time_ns()):
                archive_pass.delete_condemned(self._store, objects, [leftover.path])

    def _check(self, repository: ObjectStore) -> None:
        if repository.url.startswith(_MEMORY) and not self._lake_url.startswith(_MEMORY):
            raise _errors.UsageError(
                f"{repository.url} ends with this process, and its archives too; name a permanent location"
            )

    def set_retention(
        self, retention: str, *, experiment: str | None = None, workspace: str | None = None
    ) -> None:
        """Set how long traces of an experiment or a workspace stay hot; "" removes the setting.

        If the lake's retention is shorter, it applies instead, unless the experiment is on the allowlist. Raises
        UsageError for an invalid duration, and NotFoundError for an experiment that was never created and has no
        traces.
        """
        set_retention_override(self._tracking, retention, experiment, workspace)

    def marks(self) -> Marks:
        """Return the experiments marked archiveNow, each with the text of its mark."""
        return self._candidates.marks()

    def experiments(self, limit: int | None = None) -> list[model.ArchiveDue]:
        """Return experiments with their retention and their hot, archived and due traces.

        Experiments with the most hot traces come first. Experiments beyond the limit are left out.
        """
        return self._candidates.due(self.settings(), time.time_ns(), limit)

    def retentions(self) -> list[model.ArchiveDue]:
        """Return each experiment with its retention, without counting due traces."""
        return self._candidates.resolved(self.settings(), time.time_ns())

    def plan(
        self, experiment: str | None = None, older_than: str | None = None, limit: int | None = None
    ) -> list[model.ArchiveDue]:
        """Return experiments with hot traces, their retention, and the traces that a pass would archive.

        `experiment` and `older_than` work as in `run`. Experiments with the most hot traces come first. Raises
        UsageError if `older_than` is no duration.
        """
        now_ns = time.time_ns()
        hot = self._candidates.hot(self.settings(), now_ns, limit if experiment is None else None)
        selected = self._selected(hot, experiment, older_than, now_ns)
        return selected if older_than is not None else self._candidates.counted(selected)

    def traces(
        self, state: ArchiveState = "archived", limit: int = limits.PAGE_ROWS_DEFAULT
    ) -> list[ArchivedTrace]:
        """Return archived traces, the most recently archived first, or marked ones, which cannot be archived."""
        return list_traces(self._tracking, state, limit)

    def run(
        self,
        *,
        dry_run: bool = False,
        experiment: str | None = None,
        older_than: str | None = None,
        traces_max: int | None = None,
        only_marked: bool = False,
        runner: TaskRunner | None = None,
        master: str | None = None,
        stopping: Callable[[], bool] = lambda: False,
        on_progress: Callable[[model.ArchiveReport], None] = lambda _report: None,
    ) -> model.ArchiveReport:
        """Archive due traces. Traces that cannot be archived stay hot and are reported with a reason; the pass
        continues.

        Args:
            dry_run: only report the due traces.
            experiment: archive only this experiment.
            older_than: use this age instead of the retention.
            traces_max: stop after this many traces. The report's `goes_on` then says that there may be more, and the
                next pass of this object continues after them.
            only_marked: archive only experiments marked archiveNow.
            runner, master: run many batches at a time as tasks of this runner or Spark master, for large passes.
            stopping: called before each batch; ends the pass if it returns True.
            on_progress: called after each round of batches with the report.

        Raises:
            UsageError: an argument is invalid.
            StorageError: the tracking store fails.
            TaskError: the task runner failed. Archived traces stay archived, and a sweep deletes useless uploads.
        """
        began_s = time.monotonic()
        settings, now_ns = self.settings(), time.time_ns()
        marks = self.marks()
        due = (self._candidates.due if dry_run else self._candidates.hot)(settings, now_ns)
        if not dry_run:
            self._candidates.done_where_nothing_is_hot(due, marks)
        due = [each for each in due if each.is_now or not only_marked]
        due = _in_turn(self._selected(due, experiment, older_than, now_ns))
        report = model.ArchiveReport(settings.layout, dry_run, due)
        if not dry_run:
            places = {} if traces_max is None else self._places
            is_far = runner is not None or master is not None
            archive = self._far(settings, self._runners(runner, master)) if is_far else self._here(settings)
            at_once = _ARCHIVE_TASKS_AT_ONCE if is_far else 1
            one = archive_pass.ArchivePass(
                self._candidates, archive, at_once, places, report, stopping, marks
            )
            one.take([each for each in due if each.cutoff_ns is not None], traces_max, on_progress)
        if ArchiveOutcome.ARCHIVED.value in report.fates:
            reclaim_disk(self._tracking.database, stopping)
        report.seconds = time.monotonic() - began_s
        if not dry_run:
            _log.log(logging.WARNING if report.problem else logging.INFO, "%s", report.line)
        return report

    def _selected(
        self, due: Sequence[model.ArchiveDue], experiment: str | None, older_than: str | None, now_ns: int
    ) -> list[model.ArchiveDue]:
        """Return the selected experiments with hot traces; `older_than` replaces their retention."""
        selected = [each for each in due if each.hot_traces and experiment in (None, each.experiment_id)]
        if older_than is None:
            return selected
        return self._candidates.older(selected, cutoff_ns(older_than, None, now_ns) or 0)

    def _here(self, settings: model.ArchiveSettings) -> archive_pass.Archive:
        """Return a function that archives batches in this process."""
        place = archive_pass.into(
            settings, self._repository_url(settings), lambda: self._tables, self._tracking.lake_id
        )
        return lambda batches: [place.archive(self._store, batch.trace_ids) for batch in batches]

    def _far(self, settings: model.ArchiveSettings, runner: TaskRunner) -> archive_pass.Archive:
        """Return a function that archives batches as tasks."""
        repository_url = self._repository_url(settings)

        def archive(batches: Sequence[TraceBatch]) -> list[archive_pass.Archived]:
            tasks = [
                archive_pass.ArchiveTask(
                    self._lake_url,
                    settings,
                    repository_url,
                    self._open_tables,
                    batch.trace_ids,
                    batch.size_bytes,
                )
                for batch in batches
            ]
            return run_reporting(runner, archive_pass.run_archive_task, tasks, lambda _done: None)

        return archive

    def restore(self, trace_id: str) -> bool:
        """Restore a trace to the tracking store. Return False if it is already hot. See `restore_trace`."""
        return restore_trace(self._store, self._repository_of([trace_id]), self._read_tables, trace_id)

    def read(self, trace_id: str) -> bytes | None:
        """Return an archived trace from its repository, as a `TracesData`. See `read_trace`."""
        return read_trace(self._store, self._repository_or_none(), trace_id)

    def retry(self, trace_ids: Sequence[str]) -> list[str]:
        """Remove the marks of traces that could not be archived, so that the next pass tries them again; return the
        traces that had a mark.

        A trace is marked if it is malformed, or incomplete: an outbox row was discarded or damaged, so the tables may
        lack spans. In layout `lake`, traces with spans missing from the tables stay hot. The other layouts archive the
        spans in the tracking store.
        """
        return self._store.unmark(trace_ids)

    def delete(self, trace_ids: Sequence[str], on_failed: OnFailed | None = None) -> list[str]:
        """Delete traces from the tracking store and the repository; return the deleted ones.

        Their rows in the lake's tables stay. A trace that an archiver or a restore moves meanwhile is looked up again.
        `on_failed` is called for each trace that stays, for example because the repository cannot be opened. Without
        it, the first such error is raised after the other traces are deleted.
        """
        deleted: list[str] = []
        failed: dict[str, _errors.TracelakeError] = {}
        remaining: Sequence[str] = trace_ids
        for _ in range(_DELETE_TRIES):
            objects: ObjectStore | _errors.TracelakeError | None
            try:
                objects = self._repository_of(remaining)
            except _errors.TracelakeError as error:
                objects = error
            for trace_id in remaining:
                failed.pop(trace_id, None)
            deleted += delete_traces(self._store, objects, remaining, failed.__setitem__)
            remaining = [each for each, why in failed.items() if isinstance(why, _errors.ContentionError)]
            if not remaining:
                break
        _report(failed, on_failed)
        return deleted

    def packs_with(self, trace_ids: Collection[str]) -> dict[str, set[str]]:
        """Return the packs that contain one of these traces, each with the other traces whose archive it is.

        A trace that changed or was deleted while a pack was written is still in it. A pack with a damaged index may
        contain any trace.
        """
        tracking = ErasedTraces(self._tracking.database, self._tracking.lake, self._tracking.lake_id)
        packs = [path for path in tracking.archive_objects() if is_pack(path)]
        objects = self._repository_or_none() if packs else None
        if objects is None:
            return {}
        wanted = set(trace_ids)
        mixed: dict[str, set[str]] = {}
        for path in packs:
            with contextlib.suppress(_errors.DamageError):
                if wanted.isdisjoint(traces_of_pack(objects, path)):
                    continue
            mixed[path] = tracking.traces_in(path) - wanted
        return mixed

    def sweep(
        self, grace_s: float = limits.ARCHIVE_UPLOAD_GRACE_S, stopping: Callable[[], bool] = lambda: False
    ) -> int:
        """Delete leftovers of killed archivers in the repository, and uploads older than `grace_s`; return their
        number.

        Objects of other lakes in the same repository stay. `stopping` is checked between objects. Raises UsageError if
        `grace_s` is out of range.
        """
        if not 0 <= grace_s <= limits.ARCHIVE_GRACE_MAX_S:
            raise _errors.UsageError(
                f"the grace must be from 0 to {limits.ARCHIVE_GRACE_MAX_S:.0f} s, not {grace_s:g} s"
            )
        objects = self._repository_or_none()
        if objects is None:
            return 0
        sweep_temporaries(objects)
        is_ours = partial(is_of, lake_id=self._tracking.lake_id)
        return archive_pass.sweep(
            self._store, objects, time.time_ns() - int(grace_s * 1e9), is_ours, stopping
        )

    def purge(self, find_erased: Callable[[bytes], Collection[str]]) -> None:
        """Delete leftovers of killed archivers. A new temporary file is deleted only if it contains erased values."""
        self.sweep(0)
        objects = self._repository_or_none()
        if objects is not None:
            sweep_temporaries(objects, find_erased)

    def space(self) -> ArchiveSpace:
        """Return counts and bytes of hot, archived and failed traces."""
        return space(self._tracking)

    def _read_tables(self, trace_id: str) -> bytes:
        archived = self._store.archived_spans(trace_id)
        rows, _ = self._tables.spans([trace_id])
        if missing := archived - set(rows["span_id"].to_pylist()):
            raise _errors.StorageError(
                f"trace {trace_id} is archived in the tables of this lake, and `main` does not have {len(missing):,} "
                f"of its {len(archived):,} spans; `tracelake log` shows whether a commit was reverted"
            )
        return traces_data(rows)

    def _repository(self, settings: model.ArchiveSettings) -> ObjectStore:
        return open_objects(self._repository_url(settings))

    def _repository_url(self, settings: model.ArchiveSettings) -> str:
        return settings.location or f"{self._lake_url}/{FOLDER}"

    def _repository_of(self, trace_ids: Sequence[str]) -> ObjectStore | None:
        """Return the repository if one of these traces is in it, otherwise None, so that other traces do not need a
        reachable repository."""
        places = [row.archive_location for row in self._store.archived(trace_ids).values()]
        if any(place is not None and not place.startswith(LAKE_LOCATION) for place in places):
            return self._repository(self.settings())
        return None

    def _repository_or_none(self) -> ObjectStore | None:
        """Return the repository, or None if it was never used."""
        settings = self.settings()
        if settings.layout == "lake" and settings.location is None and not self._store.has_objects():
            return None
        return self._repository(settings)


def _in_turn(due: Sequence[model.ArchiveDue]) -> list[model.ArchiveDue]:
    """Return experiments in the order of a pass: archiveNow first, and workspaces in random order."""
    places = {workspace: random.random() for workspace in {each.workspace for each in due}}  # noqa: S311  fairness
    return sorted(
        due, key=lambda each: (not each.is_now, places[each.workspace], each.workspace, each.experiment_id)
    )


_TASK_LAKES_OPEN_MAX: Final = 8
"""Lakes that a process keeps open for archive tasks."""


def open_archive(opened: LakeContext) -> LakeArchive:
    """Return the archive of a lake. Raises UsageError if the lake has no hot tier."""
    tracking = find_tracking(opened.objects)
    if tracking is None:
        raise _errors.UsageError(
            "this lake has no hot tier, so there is nothing to archive: its tables have every trace. "
            "`tracelake serve` creates one."
        )
    return LakeArchive(tracking, opened.objects.url, LakeTables(opened), opened.runner, open_tables)


@lru_cache(_TASK_LAKES_OPEN_MAX)
def open_tables(lake_url: str) -> LakeTables:
    """Return the tables of a lake inside a task's process. They are cached because a process may run many batches of
    a pass."""
    return LakeTables(LakeContext(open_location(lake_url, find_metadata(None))))


class LakeTables:
    """Table `spans` on `main`. Implements `archive.repositories.Tables`."""

    def __init__(self, opened: LakeContext) -> None:
        self._opened = opened

    def spans(self, trace_ids: Sequence[str], claims: pa.Table | None = None) -> tuple[pa.Table, int]:
        """See `Tables`."""

        def read(view: CommitView) -> tuple[pa.Table, int]:
            table = view.table(TABLE_SPANS.name)
            if claims is not None:
                rows = _about(table, trace_ids, claims)
            else:
                rows = table.lookup(trace_ids, max_bytes=TRACE_ROWS_MAX_BYTES)
            return rows, view.time_of(TABLE_SPANS.name)

        return self._opened.read(MAIN, read)

    def transaction(self) -> int:
        """See `Tables`."""
        return committed_upper(self._opened.repository, TABLE_SPANS.name) - 1


def _about(table: Table, trace_ids: Sequence[str], claims: pa.Table) -> pa.Table:
    """Return the rows of traces in a table. If all rows take too much memory, return only those about the spans of
    `claims`."""
    try:
        # Usually the tables have the same spans as `claims`, so a full lookup is small.
        return table.lookup(trace_ids, max_bytes=max(ARCHIVE_ROWS_MAX_BYTES, 2 * claims.nbytes))
    except _errors.LimitError:
        return table.about(claims, trace_ids)
