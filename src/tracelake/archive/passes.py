"""One batch of a pass: snapshot, encode, upload, read back, finalize, and what is left of those that lost.

An error of the repository or the database leaves traces hot, and the upload to the next sweep: nothing is ever deleted
on an outcome that is not known.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import Protocol

from tracelake._errors import DamageError, StorageError
from tracelake.archive.layouts import encode, new_attempt, read_back
from tracelake.archive.model import HotSnapshot, LayoutName, Stored
from tracelake.archive.retention import TraceFate
from tracelake.archive.store import ArchiveStore
from tracelake.batching import batches
from tracelake.limits import (
    ARCHIVE_DELETES_FAILED_S,
    ARCHIVE_FINALIZE_BYTES,
    ARCHIVE_FINALIZE_TRACES,
    ARCHIVE_GIVEN_UP_MAX,
    ARCHIVE_UPLOADS_AT_ONCE,
    OBJECTS_LISTED_AT_ONCE,
)
from tracelake.storage import ObjectStore


class TraceRepository(Protocol):
    """Where a layout keeps traces: what makes a snapshot durable there before its payload is cleared."""

    def store(
        self, snapshots: Sequence[HotSnapshot]
    ) -> tuple[list[Stored], dict[str, tuple[TraceFate, str]]]:
        """Return the traces that are there whole, and what became of the others, with reasons."""

    def holds(self) -> bool:
        """Whether what was stored last is there still; asked right before payloads are cleared."""


class ObjectRepository:
    """Layouts `trace` and `pack`: objects, each read back before it counts."""

    def __init__(self, objects: ObjectStore, uploads_at_once: int = ARCHIVE_UPLOADS_AT_ONCE) -> None:
        self.objects = objects
        self._at_once = uploads_at_once

    def store(
        self, snapshots: Sequence[HotSnapshot]
    ) -> tuple[list[Stored], dict[str, tuple[TraceFate, str]]]:
        """See `TraceRepository`. Uploads are under way several at a time."""
        groups = [list(group) for _, group in groupby(snapshots, lambda snapshot: snapshot.path)]
        if self._at_once == 1 or len(groups) == 1:
            results = [self._upload(group) for group in groups]
        else:
            with ThreadPoolExecutor(self._at_once, thread_name_prefix="tracelake-archive") as pool:
                results = list(pool.map(self._upload, groups))
        stored = [each for result in results if isinstance(result, list) for each in result]
        failed = {
            snapshot.trace_id: (TraceFate.FAILED, result)
            for group, result in zip(groups, results, strict=True)
            if isinstance(result, str)
            for snapshot in group
        }
        return stored, failed

    def holds(self) -> bool:
        """See `TraceRepository`: nobody takes an object away whose row stands."""
        return True

    def _upload(self, snapshots: list[HotSnapshot]) -> list[Stored] | str:
        """Return what is stored, or why nothing is."""
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
    layout: LayoutName,
    repository: TraceRepository,
    objects: ObjectStore | None,
    trace_ids: Sequence[str],
    on_stored: Callable[[HotSnapshot, Stored], None] = lambda _snapshot, _stored: None,
    finalize_traces: int = ARCHIVE_FINALIZE_TRACES,
    location: str | None = None,
) -> dict[str, tuple[TraceFate, str]]:
    """Archive some hot traces; return what became of each, with a reason where it stays hot.

    `objects` is the repository of uploads that lost, None where nothing is uploaded, and `location` where the settings
    had it as the pass began. Traces are finalized so many at a
    time. Raises StorageError where the tracking store fails: then nobody knows of the rest of this batch, and the next
    pass looks again.
    """
    hindrance = None if objects is None else _hindrance(store, objects)
    if hindrance is not None:
        return dict.fromkeys(trace_ids, (TraceFate.FAILED, hindrance))
    snapshots, fates = store.begin(layout, trace_ids, new_attempt(store.tracking.lake_id), location)
    stored, failed = repository.store(snapshots)
    fates.update(failed)
    of = {snapshot.trace_id: snapshot for snapshot in snapshots}
    malformed = [trace_id for trace_id, (fate, _) in failed.items() if fate is TraceFate.MALFORMED]
    store.mark_malformed({each: (of[each].generation, of[each].life) for each in malformed})
    won = set()
    for some in _pieces(stored, of, finalize_traces):
        decided = store.finalize(some, repository.holds)
        for each in some:
            fate = decided[each.trace_id]
            fates[each.trace_id] = (fate, _REASONS.get(fate, ""))
            if fate is TraceFate.ARCHIVED:
                won.add(each.path)
                on_stored(of[each.trace_id], each)
    if objects is not None:
        with contextlib.suppress(StorageError, OSError):  # the next sweep does it
            delete_condemned(store, objects, sorted({snapshot.path for snapshot in snapshots} - won))
    return fates


def _pieces(
    stored: Sequence[Stored], of: Mapping[str, HotSnapshot], traces_max: int
) -> Iterator[list[Stored]]:
    """Yield what one transaction finalizes: writers wait as long as it clears payloads."""
    return batches(stored, lambda each: len(of[each.trace_id].data), ARCHIVE_FINALIZE_BYTES, traces_max)


_REASONS = {
    TraceFate.WAITING: "the tables of main do not hold it any more; the next pass looks again",
    TraceFate.CHANGED: "spans came while it was archived; the next pass takes it",
    TraceFate.FAILED: "a sweep, or who moved the repository, gave its upload up; the next pass takes it",
}


def _hindrance(store: ArchiveStore, objects: ObjectStore) -> str | None:
    """Take away what was given up, where that is much; return why nothing is to be uploaded, where that fails.

    Else each pass leaves as many rows, and perhaps objects, as it uploads, for as long as the repository is away.
    """
    left = store.leftovers(0, ARCHIVE_GIVEN_UP_MAX + 1)
    if len(left) <= ARCHIVE_GIVEN_UP_MAX:
        return None
    try:
        delete_condemned(store, objects, [each.path for each in left])
    except (StorageError, OSError) as error:
        if len(store.leftovers(0, ARCHIVE_GIVEN_UP_MAX + 1)) > ARCHIVE_GIVEN_UP_MAX:
            return (
                f"more than {ARCHIVE_GIVEN_UP_MAX:,} objects that were given up cannot be deleted from {objects.url}, "
                f"and nothing is uploaded until they can: {error}"
            )
    return None


def delete_condemned(store: ArchiveStore, objects: ObjectStore, paths: Sequence[str]) -> int:
    """Give up objects that nobody names, delete them, and forget those that are; return how many.

    Raises StorageError, OSError where some are not: one that cannot be deleted stops no others, and a store that is
    away is not asked for all of them.
    """
    failures: list[Exception] = []
    deleted = _delete_condemned(store, objects, paths, failures)
    if failures:
        raise failures[0]
    return deleted


def _delete_condemned(
    store: ArchiveStore, objects: ObjectStore, paths: Sequence[str], failures: list[Exception]
) -> int:
    """Do as `delete_condemned`, and note what fails."""
    condemned = [path for path in paths if store.condemn(path)]
    deleted = _delete(objects, condemned, failures)
    if deleted:
        store.forget(deleted)
    return len(deleted)


def _delete(objects: ObjectStore, paths: Sequence[str], failures: list[Exception]) -> list[str]:
    """Delete objects, and return those that are gone; note what fails first, and end where all do for long.

    A store that is away takes its time to say so; objects that may not be deleted are told at once, and keep no others.
    """
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
    """Delete uploads that came to nothing, and objects that no row knows; return how many.

    Objects are listed first and rows are read then: an upload has its row before its first byte, and keeps it until it
    can never be named, so what has none is nobody's. `stopping` is asked between some of them. What cannot be deleted
    keeps no other; it is raised at the end.
    """
    failures: list[Exception] = []
    leftovers = [left.path for left in store.leftovers(began_before_ns)]
    deleted = _delete_condemned(store, objects, leftovers, failures)
    ours = (info.path for info in objects.list("") if is_ours(info.path))
    for listed in batches(ours, lambda _path: 1, OBJECTS_LISTED_AT_ONCE):
        if stopping():
            break
        deleted += len(_delete(objects, store.unknown(listed), failures))
    if failures:
        raise failures[0]
    return deleted
