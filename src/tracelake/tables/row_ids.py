"""The rows of a table as of a commit by their ids: which are there, and which the table remembers to be gone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow.parquet as pq

from tracelake.search.live import RowIds
from tracelake.search.model import PartRef
from tracelake.shards.model import Part
from tracelake.shards.rows import GONE, ROW_ID, first_row_id, retracted, rows_sql
from tracelake.storage import LocalFiles
from tracelake.tables.scan import Scan, check_parts, connection


@dataclass(frozen=True, slots=True)
class TableRows:
    """`search.live.Rows` of a scan of a whole table."""

    scan: Scan
    files: LocalFiles

    @property
    def as_of(self) -> int:
        """The last transaction of the commit."""
        return self.scan.snapshot.as_of

    @property
    def count(self) -> int | None:
        """How many there are, None where only reading tells."""
        return self.scan.snapshot.rows

    def gone(self, parts: Sequence[PartRef]) -> RowIds:
        """Return ids of rows that are gone: all that are in these parts, as far as the table remembers them.

        Retractions tell of most. Of rows that were inserted and retracted within a compacted batch only its history
        does, and that is read where a part was built before they were.
        """
        snapshot = self.scan.snapshot
        if all(part.as_of >= snapshot.as_of for part in parts):
            return np.array([], np.int64)
        history = [*snapshot.history, *self._swallowed(parts)]
        with self.files.in_use():
            check_parts(self.files, (*snapshot.retractions, *history))
            known = [*retracted(snapshot, self.files.file).values(), *map(self._gone_of, history)]
        ids = np.concatenate(known) if known else np.array([], np.int64)
        return np.unique(ids[ids < first_row_id(snapshot.as_of + 1)])

    def live(self) -> RowIds:
        """Return the ids of all rows that are there, sorted."""
        scan = self.scan
        with self.files.in_use(), connection() as db:
            scan.check(self.files)
            rows = rows_sql(scan.snapshot, self.files.file, [ROW_ID.name], scan.schema)
            ids = db.sql(rows).to_arrow_table()[ROW_ID.name].to_numpy()
        return np.sort(ids)

    def _swallowed(self, parts: Sequence[PartRef]) -> Iterator[Part]:
        """Yield the parts of history that may have rows of these parts of the index."""
        for upper, part in self.scan.snapshot.swallowed:
            for built in parts:
                inserted = (
                    part.first_row_id < first_row_id(built.upper)
                    and first_row_id(built.lower) <= part.last_row_id
                )
                if inserted and built.as_of < upper - 1:
                    yield part
                    break

    def _gone_of(self, part: Part) -> RowIds:
        table = pq.read_table(self.files.file(part.path), columns=[ROW_ID.name, GONE.name])
        ids, times = (table[field.name].to_numpy() for field in (ROW_ID, GONE))
        gone: RowIds = ids[times <= self.scan.snapshot.as_of] + (part.first_row_id if part.relative else 0)
        return gone
