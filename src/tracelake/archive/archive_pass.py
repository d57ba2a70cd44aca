"""An archive pass: archives due traces experiment by experiment and batch by batch, up to a limit.

For each batch, the pass takes snapshots of traces, uploads them, reads them back, and finalizes them; then it deletes
uploads that lost a race. After an error of the repository or the database, the traces stay hot, and the next sweep
deletes the upload. No data is deleted on an unknown outcome.

Batches of a large pass may run as tasks, on Spark or elsewhere. Each task opens the stores itself and acts as one more
archiver. A task that is killed, run twice or abandoned therefore behaves like a concurrent pass: each trace is archived
once, and a sweep deletes useless uploads. Tasks contain no credentials; their process's environment supplies them.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Final, Protocol

from tracelake._errors import DamageError, StorageError
from tracelake.archive import model
from tracelake.archive.candidates import BEGINNING, Candidates, Place, TraceBatch
from tracelake.archive.repositories import Tables, TablesRepository, encode, new_attempt, read_back
from tracelake.archive.retention import ArchiveOutcome, is_archive_now_complete
from tracelake.archive.scheduler import Marks
from tracelake.archive.store import ArchiveStore
from tracelake.batching import batches
from tracelake.limits import OBJECTS_LISTED_AT_ONCE
from tracelake.limits.input import MIB
from tracelake.storage import ObjectStore, open_objects
from tracelake.tracking.location import find_tracking

ARCHIVE_FINALIZE_TRACES: Final = 64
"""Traces that one transaction clears or deletes while writers wait."""
ARCHIVE_FINALIZE_BYTES: Final = 8 * MIB
"""Uncompressed OTLP that one such transaction clears; a larger trace is cleared alone."""
_ARCHIVE_UPLOADS_AT_ONCE: Final = 8
"""Objects of one batch in concurrent upload."""
_ARCHIVE_FAILURES_TOLD_MAX: Final = 20
"""Traces whose failure reasons a pass reports."""
ARCHIVE_GIVEN_UP_MAX: Final = 1_024
"""Abandoned objects that are not deleted yet, for example because the repository is unreachable."""
ARCHIVE_DELETES_FAILED_S: Final = 30.0
"""Time during which consecutive deletions of abandoned objects fail."""


class TraceRepository(Protocol):
    """Place where a layout stores archived traces. `store` makes traces durable there before their payloads are cleared
    in the tracking store."""

    def store(
        self, snapshots: Sequence[model.HotSnapshot]
    ) -> tuple[list[model.StoredUpload], dict[str, tuple[ArchiveOutcome, str]]]:
        """Return the traces that are stored completely, and the outcomes and reasons of the others."""

    def holds(self) -> bool:
        """Return whether the traces stored last still exist. Called immediately before their payloads are cleared."""


class ObjectRepository:
    """Repository of layouts `trace` and `pack`: objects. Each upload is read back before it counts as stored."""

    def __init__(self, objects: ObjectStore, uploads_at_once: int = _ARCHIVE_UPLOADS_AT_ONCE) -> None:
        self.objects = objects
        self._at_once = uploads_at_once

    def store(
        self, snapshots: Sequence[model.HotSnapshot]
    ) -> tuple[list[model.StoredUpload], dict[str, tuple[ArchiveOutcome, str]]]:
        """Implement `TraceRepository`. Several uploads run in parallel."""
        groups = [list(group) for _, group in groupby(snapshots, lambda snapshot: snapshot.path)]
        if self._at_once == 1 or len(groups) == 1:
            results = [self._upload(group) for group in groups]
        else:
            with ThreadPoolExecutor(self._at_once, thread_name_prefix="tracelake-archive") as pool:
                results = list(pool.map(self._upload, groups))
        stored = [each for result in results if isinstance(result, list) for each in result]
        failed = {
            snapshot.trace_id: (ArchiveOutcome.FAILED, result)
            for group, result in zip(groups, results, strict=True)
            if isinstance(result, str)
            for snapshot in group
        }
        return stored, failed

    def holds(self) -> bool:
        """Implement `TraceRepository`. An object is never deleted while its row exists."""
        return True

    def _upload(self, snapshots: list[model.HotSnapshot]) -> list[model.StoredUpload] | str:
        """Return the stored traces, or the reason for a failed upload."""
        path = snapshots[0].path
        try:
            data, stored = encode(self.objects.url, path, snapshots)
            self.objects.put(path, data)
            read_back(self.objects, path, data)
        except (StorageError, DamageError, OSError) as error:
            return str(error)
        return stored


def archive_batch(
    store: ArchiveStore,
    layout: model.LayoutName,
    repository: TraceRepository,
    objects: ObjectStore | None,
    trace_ids: Sequence[str],
    on_stored: Callable[[model.HotSnapshot, model.StoredUpload], None] = lambda _snapshot, _stored: None,
    finalize_traces: int = ARCHIVE_FINALIZE_TRACES,
    location: str | None = None,
) -> dict[str, tuple[ArchiveOutcome, str]]:
    """Archive some hot traces. Return the outcome of each, with a reason if it stays hot.

    Uploads that lost are deleted from `objects`, which is None if nothing is uploaded. `location` is the setting at the
    start of the pass. One transaction finalizes at most `finalize_traces` traces. Raises StorageError if the tracking
    store fails. The outcomes of the rest of the batch are then unknown, and the next pass checks again.
    """
    hindrance = None if objects is None else _hindrance(store, objects)
    if hindrance is not None:
        return dict.fromkeys(trace_ids, (ArchiveOutcome.FAILED, hindrance))
    snapshots, outcomes = store.begin(layout, trace_ids, new_attempt(store.tracking.lake_id), location)
    stored, failed = repository.store(snapshots)
    outcomes.update(failed)
    of = {snapshot.trace_id: snapshot for snapshot in snapshots}
    malformed = [trace_id for trace_id, (outcome, _) in failed.items() if outcome is ArchiveOutcome.MALFORMED]
    store.mark_malformed({each: (of[each].generation, of[each].life) for each in malformed})
    won = set()
    contents = dict[str, list[str]]()
    for snapshot in snapshots:
        contents.setdefault(snapshot.path, []).append(snapshot.trace_id)
    for some in _pieces(stored, of, finalize_traces):
        decided = store.finalize(some, repository.holds, contents)
        for each in some:
            outcome = decided[each.trace_id]
            outcomes[each.trace_id] = (outcome, _REASONS.get(outcome, ""))
            if outcome is ArchiveOutcome.ARCHIVED:
                won.add(each.path)
                on_stored(of[each.trace_id], each)
    if objects is not None:
        with contextlib.suppress(StorageError, OSError):  # if this fails, the next sweep deletes them
            delete_condemned(store, objects, sorted({snapshot.path for snapshot in snapshots} - won))
    return outcomes


def _pieces(
    stored: Sequence[model.StoredUpload], of: Mapping[str, model.HotSnapshot], traces_max: int
) -> Iterator[list[model.StoredUpload]]:
    """Yield the uploads of each finalize transaction. Writers wait while it clears payloads.

    Traces that arrived together share pages of the database, so that a transaction writes fewer of them.
    """
    by_arrival = sorted(stored, key=lambda each: each.life)
    return batches(by_arrival, lambda each: len(of[each.trace_id].data), ARCHIVE_FINALIZE_BYTES, traces_max)


_REASONS = {
    ArchiveOutcome.WAITING: "the tables of main no longer contain it; the next pass checks again",
    ArchiveOutcome.CHANGED: "spans arrived while it was archived; the next pass archives it",
    ArchiveOutcome.FAILED: (
        "a sweep or a move of the repository discarded its upload; the next pass archives it"
    ),
}


def _hindrance(store: ArchiveStore, objects: ObjectStore) -> str | None:
    """If many uploads are abandoned, delete them. If that fails, return the reason, and the pass uploads nothing.

    Otherwise, while the repository is unavailable, each pass would leave as many rows, and perhaps objects, as it tries
    to upload.
    """
    leftovers = store.leftovers(0, ARCHIVE_GIVEN_UP_MAX + 1)
    if len(leftovers) <= ARCHIVE_GIVEN_UP_MAX:
        return None
    try:
        delete_condemned(store, objects, [each.path for each in leftovers])
    except (StorageError, OSError) as error:
        if len(store.leftovers(0, ARCHIVE_GIVEN_UP_MAX + 1)) > ARCHIVE_GIVEN_UP_MAX:
            return (
                f"more than {ARCHIVE_GIVEN_UP_MAX:,} abandoned objects cannot be deleted from {objects.url}; "
                f"uploads stop until they can: {error}"
            )
    return None


def delete_condemned(store: ArchiveStore, objects: ObjectStore, paths: Sequence[str]) -> int:
    """Delete unreferenced objects and their rows; return their number.

    Raises StorageError or OSError if a deletion fails. One failure does not stop the others, but an unavailable store
    is not tried for all of them.
    """
    failures: list[Exception] = []
    deleted = _delete_condemned(store, objects, paths, failures)
    if failures:
        raise failures[0]
    return deleted


def _delete_condemned(
    store: ArchiveStore, objects: ObjectStore, paths: Sequence[str], failures: list[Exception]
) -> int:
    """Do as `delete_condemned`, but add failures to a list instead of raising them."""
    condemned = [path for path in paths if store.condemn(path)]
    deleted = _delete(objects, condemned, failures)
    if deleted:
        store.forget(deleted)
    return len(deleted)


def _delete(objects: ObjectStore, paths: Sequence[str], failures: list[Exception]) -> list[str]:
    """Delete objects and return the deleted ones. Add the first failure to `failures`, and stop after deletions have
    failed for long."""
    deleted: list[str] = []
    failing_s: float | None = None
    for path in paths:
        try:
            objects.delete(path)
        except (StorageError, OSError) as error:
            if not failures:
                failures.append(error)
            failing_s = time.monotonic() if failing_s is None else failing_s
            if time.monotonic() - failing_s >= ARCHIVE_DELETES_FAILED_S:
                break
        else:
            deleted.append(path)
            failing_s = None
    return deleted


def sweep(
    store: ArchiveStore,
    objects: ObjectStore,
    began_before_ns: int,
    is_ours: Callable[[str], bool],
    stopping: Callable[[], bool] = lambda: False,
) -> int:
    """Delete abandoned uploads and objects without a row; return their number.

    Objects are listed before rows are read. An upload has its row before its first byte, and keeps it until no trace
    can ever name it. So an object without a row is garbage. `stopping` is checked between groups of objects. A failed
    deletion does not stop the others; it is raised at the end.
    """
    failures: list[Exception] = []
    leftovers = [leftover.path for leftover in store.leftovers(began_before_ns)]
    deleted = _delete_condemned(store, objects, leftovers, failures)
    ours = (info.path for info in objects.list("") if is_ours(info.path))
    for listed in batches(ours, lambda _path: 1, OBJECTS_LISTED_AT_ONCE):
        if stopping():
            break
        deleted += len(_delete(objects, store.unknown(listed), failures))
    if failures:
        raise failures[0]
    return deleted


OpenTables = Callable[[str], Tables]
"""(URL of a lake) → its tables. A module-level function, so that tasks can call it in any process."""


@dataclass(slots=True)
class Archived:
    """Result of a batch: each trace's outcome, with a reason if it stays hot, and the bytes of the archived ones."""

    outcomes: dict[str, tuple[ArchiveOutcome, str]] = field(default_factory=dict)
    cleared_bytes: int = 0
    stored_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ArchiveTarget:
    """Destination of one archive pass: the settings at its start, and the repository of their layout."""

    settings: model.ArchiveSettings
    """The lake's settings at the start of the pass."""
    repository: TraceRepository
    objects: ObjectStore | None
    """None if nothing is uploaded."""

    def archive(self, store: ArchiveStore, trace_ids: Sequence[str]) -> Archived:
        """Archive a batch of traces of a tracking store in this repository; return outcomes and bytes. See
        `archive_batch`."""
        archived = Archived()

        def on_stored(snapshot: model.HotSnapshot, stored: model.StoredUpload) -> None:
            archived.cleared_bytes += len(snapshot.data)
            archived.stored_bytes += stored.size_bytes

        archived.outcomes = archive_batch(
            store,
            self.settings.layout,
            self.repository,
            self.objects,
            trace_ids,
            on_stored,
            location=self.settings.location,
        )
        return archived


@dataclass(frozen=True, slots=True)
class ArchiveTask:
    """Task that archives a batch of a pass. It contains the locations of the stores, which it opens itself."""

    lake_url: str
    settings: model.ArchiveSettings
    repository_url: str
    open_tables: OpenTables
    trace_ids: tuple[str, ...]
    size_bytes: int

    @property
    def work_bytes(self) -> int:
        """See `Weighed`."""
        return self.size_bytes


def run_archive_task(task: ArchiveTask) -> Archived:
    """Open the stores of a task and archive its batch. Raises StorageError if this process cannot reach the tracking
    store."""
    tracking = find_tracking(open_objects(task.lake_url))
    if tracking is None:
        raise StorageError(
            f"{task.lake_url} has no tracking store that can be reached from where a task of the pass runs; keep the "
            "lake in a bucket and the store in PostgreSQL, or let the pass run without Spark"
        )
    return into(
        task.settings, task.repository_url, lambda: task.open_tables(task.lake_url), tracking.lake_id
    ).archive(ArchiveStore(tracking), task.trace_ids)


def into(
    settings: model.ArchiveSettings, repository_url: str, tables: Callable[[], Tables], lake_id: str
) -> ArchiveTarget:
    """Return the target of a pass with these settings."""
    if settings.layout == "lake":
        return ArchiveTarget(settings, TablesRepository(tables(), lake_id), None)
    objects = open_objects(repository_url)
    return ArchiveTarget(settings, ObjectRepository(objects), objects)


Archive = Callable[[Sequence[TraceBatch]], Sequence[Archived]]
"""(batches) → the result of each."""


@dataclass(slots=True)
class ArchivePass:
    """A running pass. `places` has, for each experiment, the position at which this pass starts and the next one
    continues."""

    candidates: Candidates
    archive: Archive
    at_once: int
    """Number of batches per call of `archive`."""
    places: dict[tuple[str, str], Place]
    report: model.ArchiveReport
    stopping: Callable[[], bool]
    marks: Marks
    """The archiveNow marks from before the search for due traces. Later marks are for the next pass."""

    def take(
        self,
        due: Sequence[model.ArchiveDue],
        traces_max: int | None,
        on_progress: Callable[[model.ArchiveReport], None],
    ) -> None:
        """Archive due traces. Each experiment may use its share of the limit, and the unused rest of those before it.

        An experiment shared by workspaces appears once per workspace. Its mark is cleared once all of them are done.
        """
        remaining = traces_max
        undone = Counter(each.experiment_id for each in due if each.is_now)
        marks = dict(self.marks)
        for place, each in enumerate(due):
            if self.stopping():
                return
            share = None if remaining is None else share_of(remaining, len(due) - place)
            archived, is_complete = self._experiment(each, share, on_progress)
            remaining = None if remaining is None else remaining - archived
            undone[each.experiment_id] -= each.is_now and is_complete
            if each.is_now and not undone[each.experiment_id] and each.experiment_id in marks:
                self.candidates.done_at_once(each.experiment_id, marks[each.experiment_id])

    def _experiment(
        self, due: model.ArchiveDue, share: int | None, on_progress: Callable[[model.ArchiveReport], None]
    ) -> tuple[int, bool]:
        """Archive at most `share` traces of an experiment; return their number, and whether the experiment is done."""
        key = (due.experiment_id, due.workspace)
        began = behind = self.places.pop(key, BEGINNING)
        outcomes: list[ArchiveOutcome] = []
        for each_round in _rounds(self.candidates.batches(due, share, began), self.at_once):
            if self.stopping():
                return len(outcomes), False
            for archived in self.archive(each_round):
                outcomes += [outcome for outcome, _ in archived.outcomes.values()]
                self._tell(archived)
            behind = each_round[-1].end
            on_progress(self.report)
        if len(outcomes) == share:
            self.places[key] = behind
        if (
            len(outcomes) == share or began != BEGINNING
        ):  # there may be more traces after or before this range
            self.report.goes_on = True
            return len(outcomes), False
        return len(outcomes), is_archive_now_complete(outcomes)

    def _tell(self, archived: Archived) -> None:
        """Add a batch's result to the report."""
        report = self.report
        report.archived_bytes += archived.cleared_bytes
        report.stored_bytes += archived.stored_bytes
        for trace_id, (outcome, reason) in archived.outcomes.items():
            report.fates[outcome.value] = report.fates.get(outcome.value, 0) + 1
            if outcome is ArchiveOutcome.FAILED and report.failed_first is None:
                report.failed_first = f"trace {trace_id}: {reason}"
            if reason and len(report.failures) < _ARCHIVE_FAILURES_TOLD_MAX:
                report.failures[trace_id] = reason


def _rounds(batches: Iterable[TraceBatch], at_once: int) -> Iterator[list[TraceBatch]]:
    """Yield groups of batches. A group's batches are all selected before any of them is archived."""
    remaining = iter(batches)
    while some := list(islice(remaining, at_once)):
        yield some


def share_of(remaining: int, experiments: int) -> int:
    """Return the next experiment's share of the limit, so that no experiment waits until another is finished."""
    return -(-remaining // experiments)
