"""The way back into the tracking store, and the way out for good: both end with one transaction, then clean up."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from tracelake._errors import ContentionError, DamageError, NotFoundError, StorageError, TracelakeError
from tracelake.archive.archive_pass import delete_condemned
from tracelake.archive.repositories import count_spans, path_in, read_archived
from tracelake.archive.store import ArchiveStore, is_still_at
from tracelake.batching import batches
from tracelake.limits import ARCHIVE_FINALIZE_TRACES, ARCHIVE_RESTORE_TRIES_MAX
from tracelake.storage import ObjectStore
from tracelake.tracking.schema import LAKE_LOCATION, TRACKING_STORE

_log: Final = logging.getLogger(__name__)
ReadTables = Callable[[str], bytes]
"""(trace id) → all its spans in the tables of the lake, as a `TracesData`. Raises NotFoundError."""
OnFailed = Callable[[str, TracelakeError], None]
"""(trace id, why it stays)."""


def restore_trace(
    store: ArchiveStore, objects: ObjectStore | None, read_tables: ReadTables, trace_id: str
) -> bool:
    """Bring an archived trace back into the tracking store; False where it is there already.

    Raises NotFoundError where nobody knows it, LimitError where the tables have more of it than is read whole,
    DamageError where its archive is missing or damaged: then it stays archived as it is, and so after a crash at any
    step.
    """
    for _ in range(ARCHIVE_RESTORE_TRIES_MAX):
        row = store.archived([trace_id]).get(trace_id)
        if row is None:
            raise NotFoundError(f"no trace {trace_id!r} in the tracking store of this lake.")
        if row.spans_location == TRACKING_STORE:
            return False
        location = str(row.archive_location)
        path = _path(objects, location)
        late = None if path else store.late(trace_id)
        if path and objects is not None:
            try:
                data = read_archived(objects, location, row.archive_bytes, row.archive_sha256)
            except DamageError:
                if is_still_at(store.tracking, trace_id, location):
                    raise
                continue  # somebody has restored or deleted it meanwhile, and its object with it
        else:
            data = read_tables(trace_id)
        if store.restore(
            trace_id, location, data, count_spans(data, f"the archive of trace {trace_id}"), path, late
        ):
            if path and objects is not None:
                _clean_up(store, objects, [path])
            return True
    raise ContentionError(
        f"trace {trace_id} was archived anew while it was restored, again and again; try again"
    )


def read_trace(store: ArchiveStore, objects: ObjectStore | None, trace_id: str) -> bytes | None:
    """Return an archived trace out of its repository, nothing where that are the tables; None where it is not archived.

    None too where it was restored, deleted, or archived anew meanwhile. Raises DamageError, StorageError.
    """
    row = store.archived([trace_id]).get(trace_id)
    location = None if row is None else row.archive_location
    if row is None or location is None or row.spans_location == TRACKING_STORE:
        return None
    if location.startswith(LAKE_LOCATION) or objects is None:
        return b""
    try:
        return read_archived(objects, location, row.archive_bytes, row.archive_sha256)
    except (DamageError, NotFoundError):
        if is_still_at(store.tracking, trace_id, location):
            raise
        return None


def delete_traces(
    store: ArchiveStore,
    objects: ObjectStore | TracelakeError | None,
    trace_ids: Sequence[str],
    on_failed: OnFailed | None = None,
) -> list[str]:
    """Delete traces from the tracking store and its archive repository; return those that were there.

    `objects` is None where no trace is in a repository, and an error where it cannot be opened. A trace that is
    archived or restored meanwhile stays, and is not among them: call again. `on_failed` is told each that stays because
    nobody can say which object it has, or the tracking store failed; without it the first such error is raised, once
    the others are gone.
    """
    places: dict[str, tuple[str | None, str]] = {}
    failed: dict[str, TracelakeError] = {}
    for trace_id, row in store.archived(trace_ids).items():
        location = None if row.spans_location == TRACKING_STORE else str(row.archive_location)
        try:
            places[trace_id] = (location, _path(objects, location))
        except TracelakeError as error:
            failed[trace_id] = error
    gone: list[str] = []
    for some in batches(
        sorted(places), lambda _: 1, ARCHIVE_FINALIZE_TRACES
    ):  # writers wait for each of them
        try:
            gone += store.delete({trace_id: places[trace_id] for trace_id in some})
        except TracelakeError as error:
            failed |= dict.fromkeys(places.keys() - set(gone), error)
            break
    if objects is not None and not isinstance(objects, TracelakeError):
        _clean_up(store, objects, sorted({places[trace_id][1] for trace_id in gone} - {""}))
    for trace_id, why in failed.items():
        if on_failed is None:
            raise why
        on_failed(trace_id, why)
    return gone


def _path(objects: ObjectStore | TracelakeError | None, location: str | None) -> str:
    """Return the object that a location names, "" where it names none. Raises what the repository failed with."""
    if location is None or location.startswith(LAKE_LOCATION):
        return ""
    if objects is None:
        raise ContentionError(f"a trace was archived at {location} just now; try again")
    if isinstance(objects, TracelakeError):
        raise objects
    return path_in(objects, location)


def _clean_up(store: ArchiveStore, objects: ObjectStore, paths: Sequence[str]) -> None:
    """Delete objects that nobody names any more; what fails now is the next sweep's, and is told."""
    try:
        delete_condemned(store, objects, paths)
    except (StorageError, OSError) as error:
        _log.warning(
            "what no trace names any more is still in %s until `tracelake archive sweep` takes it away: %s",
            objects.url,
            error,
        )
