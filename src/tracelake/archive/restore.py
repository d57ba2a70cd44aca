"""Restore and deletion of traces. Each ends with one transaction and then cleans up objects."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from tracelake._errors import ContentionError, DamageError, NotFoundError, StorageError, TracelakeError
from tracelake.archive.archive_pass import ARCHIVE_FINALIZE_TRACES, delete_condemned
from tracelake.archive.repositories import count_spans, path_in, read_archived
from tracelake.archive.store import ArchiveStore, is_still_at
from tracelake.batching import batches
from tracelake.limits import ARCHIVE_RESTORE_TRIES_MAX
from tracelake.storage import ObjectStore
from tracelake.tracking.schema import LAKE_LOCATION, TRACKING_STORE

_log: Final = logging.getLogger(__name__)
ReadTables = Callable[[str], bytes]
"""(trace id) → all its spans in the lake's tables, as a `TracesData`. Raises NotFoundError."""
OnFailed = Callable[[str, TracelakeError], None]
"""(trace id, the reason why it stays)."""


def restore_trace(
    store: ArchiveStore, objects: ObjectStore | None, read_tables: ReadTables, trace_id: str
) -> bool:
    """Restore an archived trace to the tracking store. Return False if it is already hot.

    Raises NotFoundError for an unknown trace, LimitError if the tables have more of it than one read may take, and
    DamageError if its archive is missing or damaged. After an error or a crash at any step it stays archived.
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
                continue  # a concurrent call restored or deleted it, and its object
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
    """Return an archived trace from its repository; no bytes if the tables are its archive; None if it is not
    archived.

    Also returns None if it was restored, deleted, or archived again during the read. Raises DamageError,
    StorageError.
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
    """Delete traces from the tracking store and the archive repository; return the deleted ones.

    `objects` is None if no trace is in a repository, and an error if the repository cannot be opened. A trace that is
    archived or restored during the call stays and is not returned; call again. A trace also stays if its object is
    unknown or the tracking store fails; `on_failed` is called for each. Without it, the first such error is raised
    after the other traces are deleted.
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
    # writers wait during each transaction
    for some in batches(sorted(places), lambda _: 1, ARCHIVE_FINALIZE_TRACES):
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
    """Return the object that a location names, or "" if it names none. Raises the repository's error."""
    if location is None or location.startswith(LAKE_LOCATION):
        return ""
    if objects is None:
        raise ContentionError(f"a trace was archived at {location} just now; try again")
    if isinstance(objects, TracelakeError):
        raise objects
    return path_in(objects, location)


def _clean_up(store: ArchiveStore, objects: ObjectStore, paths: Sequence[str]) -> None:
    """Delete unreferenced objects. A failure is logged, and the next sweep deletes them."""
    try:
        delete_condemned(store, objects, paths)
    except (StorageError, OSError) as error:
        _log.warning(
            "what no trace names any more is still in %s until `tracelake archive sweep` takes it away: %s",
            objects.url,
            error,
        )
