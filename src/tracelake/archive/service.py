"""The archive of one lake: passes over what is due, what they would do, and what is hot and archived.

Archived traces, and those that cannot be archived, as lists for people.
"""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, TypeAlias

from sqlalchemy import select

from tracelake._errors import StorageError, TracelakeError, UsageError
from tracelake.archive import archive_pass
from tracelake.archive.archive_pass import (
    Archive,
    Archived,
    ArchivePass,
    ArchiveTask,
    OpenTables,
    into,
    run_archive_task,
)
from tracelake.archive.candidates import Candidates, Place, TraceBatch
from tracelake.archive.disk_usage import ArchiveSpace, reclaim_disk, space
from tracelake.archive.model import LAYOUTS, ArchiveDue, ArchiveReport, ArchiveSettings
from tracelake.archive.repositories import Tables, is_of, traces_data
from tracelake.archive.restore import OnFailed, delete_traces, read_trace, restore_trace
from tracelake.archive.retention import ArchiveOutcome, cutoff_ns, set_retention_override
from tracelake.archive.scheduler import Marks
from tracelake.archive.settings import change_settings, read_settings
from tracelake.archive.store import ArchiveStore
from tracelake.durations import duration_ns
from tracelake.limits import (
    ARCHIVE_GRACE_MAX_S,
    ARCHIVE_TASKS_AT_ONCE,
    ARCHIVE_UPLOAD_GRACE_S,
    PAGE_ROWS_DEFAULT,
)
from tracelake.storage import ObjectStore, open_objects
from tracelake.tasks.runners import InProcess, TaskRunner, run_reporting
from tracelake.tracking.schema import ARCHIVE_REPO, LAKE_LOCATION, trace_info
from tracelake.tracking.store import TrackingStore

ArchiveState: TypeAlias = Literal["archived", "failed"]


@dataclass(frozen=True, slots=True)
class ArchivedTrace:
    """A trace that is archived, or that is marked because it cannot be."""

    trace_id: str
    experiment_id: str
    name: str | None
    start_ns: int
    archived_ns: int | None
    location: str | None
    size_bytes: int | None
    """In the repository; 0 in layout `lake`, None while it is hot."""
    failure: str | None
    """Its mark, `MALFORMED_TRACE`: passes skip it until somebody takes that away."""


def list_traces(tracking: TrackingStore, state: ArchiveState, limit: int) -> list[ArchivedTrace]:
    """Return archived traces, the last first, or marked ones, the newest first."""
    info = trace_info.c
    columns = (
        info.trace_id,
        info.experiment_id,
        info.name,
        info.start_ns,
        info.archived_ns,
        info.archive_location,
        info.archive_bytes,
        info.archival_failure,
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
"""Of the lake, where its repository is unless the settings name one."""
_MEMORY: Final = "memory://"
Runners: TypeAlias = Callable[[TaskRunner | None, str | None], TaskRunner]
"""(runner, Spark master) → where tasks run."""
_log: Final = logging.getLogger(__name__)


class LakeArchive:
    """What archivers of a lake share; any number of them may work at once, in this process or others."""

    def __init__(
        self,
        tracking: TrackingStore,
        lake_url: str,
        tables: Tables,
        runners: Runners = lambda runner, _master: runner or InProcess(),
        open_tables: OpenTables | None = None,
    ) -> None:
        """`runners` tells where tasks run, and `open_tables` opens the tables of a lake where they do."""
        self._runners, self._open_tables = runners, open_tables or (lambda _url: tables)
        self._tracking = tracking
        self._lake_url = lake_url
        self._tables = tables
        self._store = ArchiveStore(tracking)
        self._candidates = Candidates(tracking)
        self._places: dict[tuple[str, str], Place] = {}
        """Where the next pass goes on in experiments of which the last one took only some."""

    def settings(self) -> ArchiveSettings:
        """Return how the lake archives."""
        return read_settings(self._tracking)

    def configure(
        self,
        *,
        layout: str | None = None,
        location: str | None = None,
        retention: str | None = None,
        allowlist: Sequence[str] | None = None,
    ) -> ArchiveSettings:
        """Change how the lake archives; what is None stays, and a retention of "" is none.

        Traces that are archived stay where they are. Raises UsageError.
        """
        changed: dict[str, Any] = {}
        if layout is not None:
            if layout not in LAYOUTS:
                raise UsageError(f"{layout!r} is no layout; choose {', '.join(LAYOUTS)}")
            changed["layout"] = LAYOUTS[layout]
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
        return change_settings(self._tracking, changed)

    def _clear_repository(self, location: str | None) -> None:
        """Take away what passes left where no trace is archived, if it is reached: another one is to take its place."""
        with contextlib.suppress(TracelakeError, OSError):
            settings = self.settings()
            if location == settings.location or self._store.has_objects(only_live=True):
                return
            objects = self._repository(settings)
            for left in self._store.leftovers(
                time.time_ns()
            ):  # one by one: the first says whether it is reached
                archive_pass.delete_condemned(self._store, objects, [left.path])

    def _check(self, repository: ObjectStore) -> None:
        if repository.url.startswith(_MEMORY) and not self._lake_url.startswith(_MEMORY):
            raise UsageError(
                f"{repository.url} is gone with this process, and what would be archived there with it; name a place "
                "that stays"
            )

    def set_retention(
        self, retention: str, *, experiment: str | None = None, workspace: str | None = None
    ) -> None:
        """Set how long traces of an experiment or a workspace stay hot; "" takes that away again.

        Where what counts for the lake is shorter, that counts, unless the experiment is on the allowlist. Raises
        UsageError, and NotFoundError for an experiment that was never made and has no traces.
        """
        set_retention_override(self._tracking, retention, experiment, workspace)

    def marks(self) -> Marks:
        """Return the experiments that are marked archiveNow, each with the text of its mark."""
        return self._candidates.marks()

    def experiments(self, limit: int | None = None) -> list[ArchiveDue]:
        """Return experiments with what is hot and archived of each, its retention, and what the next pass takes.

        Those come first of which the most is hot; of what is behind the limit nothing is counted.
        """
        return self._candidates.due(self.settings(), time.time_ns(), limit)

    def retentions(self) -> list[ArchiveDue]:
        """Return each experiment with its retention, and with nothing counted that is due."""
        return self._candidates.resolved(self.settings(), time.time_ns())

    def plan(
        self, experiment: str | None = None, older_than: str | None = None, limit: int | None = None
    ) -> list[ArchiveDue]:
        """Return experiments with hot traces, the retention of each, and what a pass would take of it.

        Of one experiment, and with `older_than` instead of its retention, as `run`. Those come first of which the most
        is hot. Raises UsageError.
        """
        now_ns = time.time_ns()
        hot = self._candidates.hot(self.settings(), now_ns, limit if experiment is None else None)
        meant = self._meant(hot, experiment, older_than, now_ns)
        return meant if older_than is not None else self._candidates.counted(meant)

    def traces(self, state: ArchiveState = "archived", limit: int = PAGE_ROWS_DEFAULT) -> list[ArchivedTrace]:
        """Return archived traces, the last first, or those that are marked because they cannot be."""
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
        on_progress: Callable[[ArchiveReport], None] = lambda _report: None,
    ) -> ArchiveReport:
        """Archive what is due; of one experiment, with `older_than` by that instead of its retention.

        With `only_marked` of experiments that are marked archiveNow. After `traces_max` traces the pass ends, the
        report says that there may be more (`goes_on`), and the next one of this object goes on behind them. `stopping`
        is asked before each batch, and `on_progress` told what was done after it. What cannot be archived stays hot,
        and is told with its reason; it stops nothing beside it. Raises UsageError, StorageError where the tracking
        store fails.

        With a `runner`, or a Spark `master`, many batches at a time are tasks there: for large passes. TaskError is
        raised where it ended; what is archived then stays so, and a sweep takes what was uploaded for nothing.
        """
        began_s = time.monotonic()
        settings, now_ns = self.settings(), time.time_ns()
        marks = self.marks()
        due = (self._candidates.due if dry_run else self._candidates.hot)(settings, now_ns)
        if not dry_run:
            self._candidates.done_where_nothing_is_hot(due, marks)
        due = [each for each in due if each.is_now or not only_marked]
        due = _in_turn(self._meant(due, experiment, older_than, now_ns))
        report = ArchiveReport(settings.layout, dry_run, due)
        if not dry_run:
            places = {} if traces_max is None else self._places
            is_far = runner is not None or master is not None
            archive = self._far(settings, self._runners(runner, master)) if is_far else self._here(settings)
            at_once = ARCHIVE_TASKS_AT_ONCE if is_far else 1
            one = ArchivePass(self._candidates, archive, at_once, places, report, stopping, marks)
            one.take([each for each in due if each.cutoff_ns is not None], traces_max, on_progress)
        if ArchiveOutcome.ARCHIVED.value in report.fates:
            reclaim_disk(self._tracking.database, stopping)
        report.seconds = time.monotonic() - began_s
        if not dry_run:
            _log.log(logging.WARNING if report.problem else logging.INFO, "%s", report.line)
        return report

    def _meant(
        self, due: Sequence[ArchiveDue], experiment: str | None, older_than: str | None, now_ns: int
    ) -> list[ArchiveDue]:
        """Return those with hot traces that are meant; `older_than` counts instead of their retention."""
        meant = [each for each in due if each.hot_traces and experiment in (None, each.experiment_id)]
        if older_than is None:
            return meant
        return self._candidates.older(meant, cutoff_ns(older_than, None, now_ns) or 0)

    def _here(self, settings: ArchiveSettings) -> Archive:
        """Return what archives batches in this process."""
        place = into(settings, self._repository_url(settings), lambda: self._tables, self._tracking.lake_id)
        return lambda batches: [place.archive(self._store, batch.trace_ids) for batch in batches]

    def _far(self, settings: ArchiveSettings, runner: TaskRunner) -> Archive:
        """Return what makes tasks of batches."""
        repository_url = self._repository_url(settings)

        def archive(batches: Sequence[TraceBatch]) -> list[Archived]:
            tasks = [
                ArchiveTask(
                    self._lake_url,
                    settings,
                    repository_url,
                    self._open_tables,
                    batch.trace_ids,
                    batch.size_bytes,
                )
                for batch in batches
            ]
            return run_reporting(runner, run_archive_task, tasks, lambda _done: None)

        return archive

    def restore(self, trace_id: str) -> bool:
        """Bring a trace back into the tracking store; False where it is there already. See `restore_trace`."""
        return restore_trace(self._store, self._repository_of([trace_id]), self._read_tables, trace_id)

    def read(self, trace_id: str) -> bytes | None:
        """Return an archived trace out of its repository, as a `TracesData`. See `read_trace`."""
        return read_trace(self._store, self._repository_or_none(), trace_id)

    def retry(self, trace_ids: Sequence[str]) -> list[str]:
        """Let the next pass look again at traces that are marked, and return those that were.

        They are malformed, or incomplete: a row of the outbox was given up or damaged, so that tables may lack spans
        of them. In layout `lake` what the tables lack stays hot; the others archive what the tracking store has.
        """
        return self._store.unmark(trace_ids)

    def delete(self, trace_ids: Sequence[str], on_failed: OnFailed | None = None) -> list[str]:
        """Delete traces from the tracking store and the repository, and return those that were there.

        What the tables of the lake have of them stays. `on_failed` is told each that stays, as where the repository
        cannot be opened; without it the first such error is raised, once the others are gone.
        """
        objects: ObjectStore | TracelakeError | None
        try:
            objects = self._repository_of(trace_ids)
        except TracelakeError as error:
            objects = error
        return delete_traces(self._store, objects, trace_ids, on_failed)

    def sweep(
        self, grace_s: float = ARCHIVE_UPLOAD_GRACE_S, stopping: Callable[[], bool] = lambda: False
    ) -> int:
        """Delete what killed archivers left in the repository, uploads after so long; return how many objects.

        What another lake has in the same repository stays. `stopping` is asked between objects. Raises UsageError.
        """
        if not 0 <= grace_s <= ARCHIVE_GRACE_MAX_S:
            raise UsageError(f"a grace of {grace_s:g} s makes no sense: say 0 to {ARCHIVE_GRACE_MAX_S:.0f} s")
        objects = self._repository_or_none()
        if objects is None:
            return 0
        is_ours = partial(is_of, lake_id=self._tracking.lake_id)
        return archive_pass.sweep(
            self._store, objects, time.time_ns() - int(grace_s * 1e9), is_ours, stopping
        )

    def space(self) -> ArchiveSpace:
        """Return what is hot, archived and failed, and the bytes of both sides."""
        return space(self._tracking)

    def _read_tables(self, trace_id: str) -> bytes:
        archived = self._store.archived_spans(trace_id)
        rows, _ = self._tables.spans([trace_id])
        if missing := archived - set(rows["span_id"].to_pylist()):
            raise StorageError(
                f"trace {trace_id} is archived in the tables of this lake, and `main` does not have {len(missing):,} "
                f"of its {len(archived):,} spans; `tracelake log` shows whether a commit was reverted"
            )
        return traces_data(rows)

    def _repository(self, settings: ArchiveSettings) -> ObjectStore:
        return open_objects(self._repository_url(settings))

    def _repository_url(self, settings: ArchiveSettings) -> str:
        return settings.location or f"{self._lake_url}/{FOLDER}"

    def _repository_of(self, trace_ids: Sequence[str]) -> ObjectStore | None:
        """Return the repository where one of these traces is in it: the others do not fail if it cannot be opened."""
        places = [row.archive_location for row in self._store.archived(trace_ids).values()]
        if any(place is not None and not place.startswith(LAKE_LOCATION) for place in places):
            return self._repository(self.settings())
        return None

    def _repository_or_none(self) -> ObjectStore | None:
        """Return the repository, None where nothing was ever put into one."""
        settings = self.settings()
        if settings.layout == "lake" and settings.location is None and not self._store.has_objects():
            return None
        return self._repository(settings)


def _in_turn(due: Sequence[ArchiveDue]) -> list[ArchiveDue]:
    """Return experiments in the order of a pass: archiveNow first, and workspaces in an order of chance."""
    places = {workspace: random.random() for workspace in {each.workspace for each in due}}  # noqa: S311  fairness
    return sorted(
        due, key=lambda each: (not each.is_now, places[each.workspace], each.workspace, each.experiment_id)
    )
