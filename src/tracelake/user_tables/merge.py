"""Upsert into a table of the user: which staged rows are taken, which stored rows they retract.

A key has one row. A new row retracts the stored one, and a deleted key too; what is stored the same already
gives no output. Of several rows with one key in one write the one that compares greatest stands, column by
column in the table's order, and any row stands against a deletion: so neither the order of rows nor the number
of tasks matters. Without a key every row is new.

Only keys are compared, and the content of rows whose key is there already. A staged part all of whose rows are
taken becomes a part of the table as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import duckdb
import pyarrow as pa

from tracelake.limits import SMALL_PARTS_MAX_BYTES
from tracelake.scan import PLACE, Scan, connection, literal, local_files, quoted_name
from tracelake.shards.model import Part
from tracelake.shards.parts import check_part, write_part
from tracelake.storage import ObjectStore
from tracelake.user_tables.spec import TableSpec
from tracelake.user_tables.staging import Staged


@dataclass(frozen=True, slots=True)
class Merged:
    """What a batch is made of, and which of its parts were written by the merge."""

    parts: list[Part] = field(default_factory=list)
    retractions: list[Part] = field(default_factory=list)
    written: list[str] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether no row changes."""
        return not self.parts and not self.retractions


class Merge:
    """Merges staged rows with the rows of a snapshot, a bucket after the other."""

    def __init__(self, objects: ObjectStore, copies: str, spec: TableSpec, staged: Sequence[Staged]) -> None:
        self._objects = objects
        self._files = local_files(objects.url, copies)
        self._spec = spec
        self._rows = [part for task in staged for part in task.rows]
        self._deleted = [part for task in staged for part in task.deleted]
        self._key = ", ".join(map(quoted_name, spec.key))

    def against(self, stored: Scan) -> Merged:
        """Return the changes that lead from what is stored to what is wanted; called again for a newer state."""
        merged = Merged()
        for bucket in sorted({part.bucket for part in (*self._rows, *self._deleted)}):
            rows = [part for part in self._rows if part.bucket == bucket]
            if not self._spec.key:
                self._take(bucket, rows, set(), merged, None)
                continue
            deleted = [part for part in self._deleted if part.bucket == bucket]
            here = stored.of_parts(part for part in stored.snapshot.parts if part.bucket == bucket)
            here.check()
            with connection() as db:
                self._decide(db, rows, deleted, here)
                lost = {file for (file,) in db.sql("select distinct _file from lost").fetchall()}
                gone = db.sql(f"select {', '.join(PLACE)} from gone order by all").to_arrow_table()
                self._take(bucket, rows, lost, merged, db)
            if len(gone):
                part = write_part(self._objects, self._spec.name, bucket, stored.retraction(gone), None)
                merged.retractions.append(part)
                merged.written.append(part.path)
        return merged

    def _decide(
        self, db: duckdb.DuckDBPyConnection, rows: Sequence[Part], deleted: Sequence[Part], stored: Scan
    ) -> None:
        """Make tables `lost`, the places of staged rows that are not taken, and `gone`, those of stored rows."""
        names = self._spec.schema.names
        content = ", ".join(map(quoted_name, names))
        place = ", ".join(PLACE)
        incoming = self._incoming(rows, stored)
        db.execute(f"create temp table incoming as select {self._key}, _file, _number from ({incoming})")
        tombs = self._parquet(deleted) if deleted else "(select * from incoming where false)"
        db.execute(f"create temp table tombs as select distinct {self._key} from {tombs}")
        db.execute(f"""
            create temp table lost as
            select _file, _number from (
                select _file, _number,
                    row_number() over (partition by {self._key} order by row({content}) desc, _file) as rank
                from ({incoming})
                semi join (select {self._key} from incoming group by all having count(*) > 1) using ({self._key})
            ) where rank > 1
        """)
        db.execute(f"""
            create temp table stored as
            select {self._key}, {place} from ({stored.placed_sql()})
            semi join (select {self._key} from incoming union all select {self._key} from tombs)
                using ({self._key})
        """)
        same = " and ".join(f"i.{name} is not distinct from s.{name}" for name in map(quoted_name, names))
        db.execute(f"""
            create temp table same as
            select i._file, i._number, {", ".join(f"s.{column}" for column in PLACE)}
            from (select * from ({incoming}) anti join lost using (_file, _number)
                  semi join stored using ({self._key})) i
            join (select * from ({stored.placed_sql()}) semi join stored using ({place})) s using ({self._key})
            where {same}
        """)
        db.execute("insert into lost select _file, _number from same")
        db.execute(f"create temp table gone as select {place} from stored anti join same using ({place})")

    def _incoming(self, rows: Sequence[Part], stored: Scan) -> str:
        if not rows:
            empty = stored.of_parts(()).sql()
            return f"select *, null::varchar as _file, null::bigint as _number from ({empty})"
        return f"""
            select * rename (file_row_number as _number) from
            read_parquet({self._list(rows)}, filename = '_file', file_row_number = true)
        """

    def _take(
        self,
        bucket: int,
        rows: Sequence[Part],
        lost: set[str],
        merged: Merged,
        db: duckdb.DuckDBPyConnection | None,
    ) -> None:
        """Make the staged rows of a bucket that are not lost parts of the table."""
        small = sum(part.size_bytes for part in rows) <= SMALL_PARTS_MAX_BYTES
        for group in [rows] if small and rows else [[part] for part in rows]:
            if len(group) == 1 and self._file(group[0]) not in lost:
                merged.parts.append(group[0])
                continue
            taken = self._rows_of(group, db)
            if len(taken):
                part = write_part(self._objects, self._spec.name, bucket, taken, None)
                merged.parts.append(part)
                merged.written.append(part.path)

    def _rows_of(self, group: Sequence[Part], db: duckdb.DuckDBPyConnection | None) -> pa.Table:
        names = ", ".join(map(quoted_name, self._spec.schema.names))
        source = f"read_parquet({self._list(group)}, filename = '_file', file_row_number = true)"
        if db is None:
            with connection() as own:
                rows: pa.Table = own.sql(f"select {names} from {source}").to_arrow_table()
        else:
            rows = db.sql(f"""
                select {names} from (select * rename (file_row_number as _number) from {source})
                anti join lost using (_file, _number) order by {self._key}
            """).to_arrow_table()
        return rows.cast(self._spec.schema)

    def _parquet(self, parts: Sequence[Part]) -> str:
        return f"read_parquet({self._list(parts)})"

    def _list(self, parts: Sequence[Part]) -> str:
        return "[" + ", ".join(literal(self._file(part)) for part in parts) + "]"

    def _file(self, part: Part) -> str:
        file = self._files.file(part.path)
        check_part(file, part)
        return file
