"""Batches of a large pass as tasks, on Spark or elsewhere: each opens the stores itself, and is one more archiver.

So a task that is killed, run twice, or goes on though nobody waits for it any more does what a pass beside this one
would: each trace is archived once, and what was uploaded for nothing is a sweep's. No task holds a credential: those of
databases and buckets are in the environment of the process that runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tracelake._errors import StorageError
from tracelake.archive.model import ArchiveSettings, HotSnapshot, Stored
from tracelake.archive.passes import ObjectRepository, TraceRepository, archive_batch
from tracelake.archive.retention import TraceFate
from tracelake.archive.store import ArchiveStore
from tracelake.archive.tables import Tables, TablesRepository
from tracelake.storage import ObjectStore, open_objects
from tracelake.tracking.place import find_tracking

OpenTables = Callable[[str], Tables]
"""(URL of a lake) → its tables, in whatever process a task runs: a function of a module."""


@dataclass(slots=True)
class Archived:
    """What became of a batch: of each trace, with a reason where it stays hot, and the bytes of those that went."""

    fates: dict[str, tuple[TraceFate, str]] = field(default_factory=dict)
    cleared_bytes: int = 0
    stored_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Into:
    """Where a pass puts traces."""

    settings: ArchiveSettings
    """Of the lake, as the pass began."""
    repository: TraceRepository
    objects: ObjectStore | None
    """None where nothing is uploaded."""

    def archive(self, store: ArchiveStore, trace_ids: Sequence[str]) -> Archived:
        """Archive a batch; see `archive_batch`."""
        archived = Archived()

        def on_stored(snapshot: HotSnapshot, stored: Stored) -> None:
            archived.cleared_bytes += len(snapshot.data)
            archived.stored_bytes += stored.size_bytes

        archived.fates = archive_batch(
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
    """A batch of a pass, and where all that it needs is."""

    lake_url: str
    settings: ArchiveSettings
    repository_url: str
    open_tables: OpenTables
    trace_ids: tuple[str, ...]
    size_bytes: int

    @property
    def work_bytes(self) -> int:
        """See `Weighed`."""
        return self.size_bytes


def run_archive_task(task: ArchiveTask) -> Archived:
    """Archive a batch. Raises StorageError where the tracking store cannot be reached from here."""
    tracking = find_tracking(open_objects(task.lake_url))
    if tracking is None:
        raise StorageError(
            f"{task.lake_url} has no tracking store that can be reached from where a task of the pass runs; keep the "
            "lake in a bucket and the store in PostgreSQL, or let the pass run without Spark"
        )
    return into(
        task.settings, task.repository_url, lambda: task.open_tables(task.lake_url), tracking.lake_id
    ).archive(ArchiveStore(tracking), task.trace_ids)


def into(settings: ArchiveSettings, repository_url: str, tables: Callable[[], Tables], lake_id: str) -> Into:
    """Return where a pass puts traces."""
    if settings.layout == "lake":
        return Into(settings, TablesRepository(tables(), lake_id), None)
    objects = open_objects(repository_url)
    return Into(settings, ObjectRepository(objects), objects)
