"""Checks of the archive for `tracelake verify`: each trace is complete at its recorded location (A14)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from sqlalchemy import Connection, select

from tracelake._errors import DamageError, NotFoundError, StorageError, UsageError
from tracelake.archive.model import read_settings
from tracelake.archive.protocol import LIVE
from tracelake.archive.repositories import check_pack, is_pack, path_in, read_archived
from tracelake.archive.service import FOLDER
from tracelake.archive.store import is_still_at
from tracelake.limits import TRACKING_NAME_MAX_CHARS
from tracelake.results import Finding
from tracelake.storage import ObjectStore, open_objects
from tracelake.storage.ports import VERIFY_ALIKE_MAX
from tracelake.tables.builtin import TABLE_SPANS
from tracelake.tables.scan import connection as duckdb_connection
from tracelake.tables.upsert_rule import KEY, KEY_COLUMNS
from tracelake.tables.view import CommitView
from tracelake.tracking import schema
from tracelake.tracking.store import TrackingStore

_VERIFY_SPANS_AT_ONCE: Final = 100_000
"""Spans of archived traces that `verify` reads at once."""

REPOSITORY: Final = "archive repository"
_CLAIMS = pa.schema([(name, pa.string()) for name in TABLE_SPANS.key])
_AS_STORED = f"replace(left(workspace, {TRACKING_NAME_MAX_CHARS}), chr(0), chr(65533))"
"""A workspace in the form of the tracking store's column. See `tracking.store.stored_name`."""


def check_archive(tracking: TrackingStore, lake_url: str) -> Iterator[Finding]:
    """Yield archived traces that are missing, cut or altered in the repository, and objects whose number of traces is
    wrong.

    A repository that cannot be opened or fails repeatedly is one finding, and reading stops. Raises StorageError if
    the tracking store is unavailable.
    """
    with tracking.database.reading() as connection:
        info, objects = schema.trace_info.c, schema.archive_objects.c
        query = (
            select(info.trace_id, info.archive_location, info.archive_bytes, info.archive_sha256)
            .where(info.lake == tracking.lake, info.spans_location == schema.ARCHIVE_REPO)
            .where(info.archive_location.not_like(f"{schema.LAKE_LOCATION}%"))
            .order_by(info.trace_id)
        )
        traces = connection.execute(query).all()
        query = select(objects.path, objects.traces).where(
            objects.lake == tracking.lake, objects.state == LIVE
        )
        live = {row.path: row.traces for row in connection.execute(query)}
    try:
        settings = read_settings(tracking)
    except DamageError as error:
        yield Finding("damaged", "record", schema.archive_settings.name, str(error))
        return  # the location of the repository is unknown
    if not traces and not live:
        return
    url = settings.location or f"{lake_url}/{FOLDER}"
    try:
        repository = open_objects(url)
    except (StorageError, UsageError, OSError) as error:
        yield Finding("missing", REPOSITORY, url, f"{len(traces)} archived traces are in it: {error}")
        return
    yield from _check_repository(tracking, repository, traces, live)


def _check_repository(
    tracking: TrackingStore, repository: ObjectStore, traces: Sequence[Any], live: Mapping[str, int]
) -> Iterator[Finding]:
    by_path = Counter[str]()
    unread = 0
    for trace_id, location, size_bytes, sha256 in traces:
        try:
            by_path[path_in(repository, location)] += 1
            if unread < VERIFY_ALIKE_MAX:
                read_archived(repository, location, size_bytes, sha256)
        except (DamageError, NotFoundError) as error:
            # ignore traces restored or deleted during the check
            if is_still_at(tracking, trace_id, location):
                yield Finding("damaged", "archived trace", trace_id, str(error))
        except (StorageError, OSError) as error:
            unread += 1
            yield Finding("missing", "archived trace", trace_id, f"its archive cannot be read: {error}")
    for path in sorted(live.keys() | by_path.keys()):
        if is_pack(path) and unread < VERIFY_ALIKE_MAX:
            try:
                yield from _check_pack(repository, path)
            except (StorageError, OSError) as error:
                unread += 1
                yield Finding("missing", "archive object", path, f"it cannot be read: {error}")
        if by_path[path] != live.get(path, 0):
            detail = (
                f"it contains {by_path[path]} traces, and its row says {live.get(path, 0)}: a sweep may "
                "delete too much"
            )
            yield Finding("mismatch", "archive object", path, detail)
    if unread >= VERIFY_ALIKE_MAX:
        detail = f"it could not be read {unread} times, so the rest of it was not checked"
        yield Finding("missing", REPOSITORY, repository.url, detail)


def _check_pack(repository: ObjectStore, path: str) -> Iterator[Finding]:
    """Yield damage of a pack. Traces that were restored or deleted from it are checked too, because an ingest of the
    pack reads all of its traces."""
    try:
        check_pack(repository.get(path), path)
    except DamageError as error:
        yield Finding("damaged", "archive object", path, str(error))
    except NotFoundError:
        pass  # its traces report the loss, or it was just deleted


def spans_of_archived(tracking: TrackingStore) -> list[pa.RecordBatch]:
    """Return the spans that the tables must have: those of traces archived in the tables, without spans pending in the
    outbox.

    The caller must read the tables after this call, so that they include these spans. Raises StorageError if the
    tracking store fails.
    """
    of_trace = (schema.trace_info.c.lake == schema.spans.c.lake) & (
        schema.trace_info.c.trace_id == schema.spans.c.trace_id
    )
    waiting = select(schema.outbox.c.sequence).where(schema.outbox.c.lake == tracking.lake)
    query = (
        select(*(schema.spans.c[name] for name in TABLE_SPANS.key))
        .join(schema.trace_info, of_trace)
        .where(
            schema.trace_info.c.lake == tracking.lake,
            schema.trace_info.c.spans_location == schema.ARCHIVE_REPO,
            schema.trace_info.c.archive_location.like(f"{schema.LAKE_LOCATION}%"),
            schema.trace_info.c.archival_failure.is_(None),  # an incomplete trace has a mark
            schema.spans.c.sequence.not_in(waiting),
        )
    )
    with tracking.database.reading() as connection:
        return list(_batches(connection, query))


def _batches(connection: Connection, query: Any) -> Iterator[pa.RecordBatch]:
    for rows in connection.execute(query).partitions(_VERIFY_SPANS_AT_ONCE):
        columns = zip(*rows, strict=True)
        yield pa.RecordBatch.from_arrays([pa.array(each, pa.string()) for each in columns], schema=_CLAIMS)


def check_tables(claims: list[pa.RecordBatch], view: CommitView) -> Iterator[Finding]:
    """Yield traces archived in the tables whose spans are missing from them."""
    if not claims:
        return
    table = view.table(TABLE_SPANS.name).sql()
    with duckdb_connection() as db:
        db.register("claims", pa.Table.from_batches(claims))
        missing = db.sql(
            f"select trace_id, count(*) from (select distinct {KEY_COLUMNS} from claims) anti join "
            f"(select {KEY_COLUMNS} from (select * replace ({_AS_STORED} as workspace) from ({table}))) using ({KEY}) "
            f"group by trace_id order by trace_id limit {VERIFY_ALIKE_MAX}"
        ).fetchall()
    for trace_id, count in missing:
        detail = f"it is archived in the tables, but they lack {count} of its spans; see `tracelake log`"
        yield Finding("missing", "archived trace", trace_id, detail)
