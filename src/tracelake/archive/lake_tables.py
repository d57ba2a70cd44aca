"""The archive of a lake: its tracking store, and its tables behind the interface that archive layout `lake` needs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import pyarrow as pa

from tracelake._errors import LimitError, UsageError
from tracelake._settings import find_metadata
from tracelake.archive.service import LakeArchive
from tracelake.context import LakeContext
from tracelake.limits import ARCHIVE_ROWS_MAX_BYTES, TRACE_ROWS_MAX_BYTES
from tracelake.location import open_location
from tracelake.tables.builtin import TABLE_SPANS
from tracelake.tables.maintenance import committed_upper
from tracelake.tables.table import Table
from tracelake.tables.view import CommitView
from tracelake.tracking.location import find_tracking
from tracelake.versions.branch_store import MAIN

_TASK_LAKES_OPEN_MAX: Final = 8
"""Lakes that a process keeps open for archive tasks."""


def open_archive(opened: LakeContext) -> LakeArchive:
    """Return the archive of a lake. Raises UsageError if the lake has no hot tier."""
    tracking = find_tracking(opened.objects)
    if tracking is None:
        raise UsageError(
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
    except LimitError:
        return table.about(claims, trace_ids)
