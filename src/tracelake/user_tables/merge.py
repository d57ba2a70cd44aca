"""Upsert into a table of the user: which staged rows are taken, which stored rows they retract.

A key has one row. A new row retracts the stored one, and a deleted key too; what is stored the same already
gives no output. Of several rows with one key in one write the one that compares greatest stands, column by
column in the table's order, and any row stands against a deletion: so neither the order of rows nor the number
of tasks matters. Without a key every row is new.

Only keys are compared, and the content of rows whose key is there already. The pieces of the tasks become parts
here, because the id of a row tells the time at which it came, which only the append settles.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import duckdb
import pyarrow as pa

from tracelake.limits import MERGE_THREADS_MAX, PART_COPIES_MAX_BYTES, SMALL_PARTS_MAX_BYTES
from tracelake.scan import Scan, check_parts, connection
from tracelake.shards.model import Part
from tracelake.shards.parts import write_part
from tracelake.shards.rows import RETRACTIONS, ROW_ID, literal, quoted, with_row_ids
from tracelake.storage import LocalFiles, ObjectStore
from tracelake.user_tables.spec import TableSpec
from tracelake.user_tables.staging import Staged


@dataclass(frozen=True, slots=True)
class Merged:
    """What a batch is made of."""

    parts: list[Part] = field(default_factory=list)
    retractions: list[Part] = field(default_factory=list)

    def paths(self) -> list[str]:
        """Return the paths of all parts."""
        return [part.path for part in (*self.parts, *self.retractions)]

    @property
    def is_empty(self) -> bool:
        """Whether no row changes."""
        return not self.parts and not self.retractions


class Merge:
    """Merges staged rows with the rows of a snapshot, each bucket by itself, some of them at once."""

    def __init__(self, objects: ObjectStore, copies: str, spec: TableSpec, staged: Sequence[Staged]) -> None:
        self._objects = objects
        self._files = LocalFiles(objects, Path(copies), PART_COPIES_MAX_BYTES)
        self._spec = spec
        self._rows = [part for task in staged for part in task.rows]
        self._deleted = [part for task in staged for part in task.deleted]
        self._key = ", ".join(map(quoted, spec.key))

    def against(self, stored: Scan, epoch: int) -> Merged:
        """Write the changes that lead from what is stored to what is wanted; called again for a newer state."""
        buckets = sorted({part.bucket for part in (*self._rows, *self._deleted)})
        merged = Merged()
        # DuckDB and Parquet leave other threads to run while they work.
        with ThreadPoolExecutor(min(MERGE_THREADS_MAX, os.cpu_count() or 1)) as threads:
            for of_bucket in threads.map(lambda bucket: self._merge_bucket(bucket, stored, epoch), buckets):
                merged.parts.extend(of_bucket.parts)
                merged.retractions.extend(of_bucket.retractions)
        return merged

    def _merge_bucket(self, bucket: int, stored: Scan, epoch: int) -> Merged:
        merged = Merged()
        rows = [part for part in self._rows if part.bucket == bucket]
        deleted = [part for part in self._deleted if part.bucket == bucket]
        here = replace(stored, snapshot=stored.snapshot.for_buckets({bucket}))
        with connection() as db:
            gone = pa.table({ROW_ID.name: pa.array([], pa.int64())})
            if self._spec.key:
                here.check(self._files)
                self._decide(db, rows, deleted, here)
                gone = db.sql("from gone order by all").to_arrow_table()
            else:
                db.execute("create temp table lost (_file varchar, _number bigint)")
            self._take(db, bucket, rows, stored.snapshot.as_of + 1, epoch, merged)
        if len(gone):
            times = pa.array([stored.snapshot.as_of + 1] * len(gone), pa.int64())
            retractions = pa.table([gone[0], times], schema=RETRACTIONS)
            merged.retractions.append(
                write_part(self._objects, self._spec.name, epoch, bucket, retractions, None)
            )
        return merged

    def _decide(
        self, db: duckdb.DuckDBPyConnection, rows: Sequence[Part], deleted: Sequence[Part], stored: Scan
    ) -> None:
        """Make tables `lost`, the places of staged rows that are not taken, and `gone`, ids of stored rows."""
        names = self._spec.schema.names
        content = ", ".join(map(quoted, names))
        held = stored.sql(self._files, [ROW_ID.name])
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
            select {self._key}, _row_id from ({held})
            semi join (select {self._key} from incoming union all select {self._key} from tombs)
                using ({self._key})
        """)
        same = " and ".join(f"i.{name} is not distinct from s.{name}" for name in map(quoted, names))
        db.execute(f"""
            create temp table same as
            select i._file, i._number, s._row_id
            from (select * from ({incoming}) anti join lost using (_file, _number)
                  semi join stored using ({self._key})) i
            join (select * from ({held}) semi join stored using (_row_id)) s using ({self._key})
            where {same}
        """)
        db.execute("insert into lost select _file, _number from same")
        db.execute("create temp table gone as select _row_id from stored anti join same using (_row_id)")

    def _incoming(self, rows: Sequence[Part], stored: Scan) -> str:
        if not rows:
            empty = stored.of_parts(()).sql(self._files)
            return f"select *, null::varchar as _file, null::bigint as _number from ({empty})"
        return f"""
            select * rename (file_row_number as _number) from
            read_parquet({self._list(rows)}, filename = '_file', file_row_number = true)
        """

    def _take(
        self,
        db: duckdb.DuckDBPyConnection,
        bucket: int,
        rows: Sequence[Part],
        time: int,
        epoch: int,
        merged: Merged,
    ) -> None:
        """Make parts of the staged rows of a bucket that are not lost."""
        names = ", ".join(map(quoted, self._spec.schema.names))
        order = f"order by {self._key}" if self._key else ""
        small = sum(part.size_bytes for part in rows) <= SMALL_PARTS_MAX_BYTES
        before = 0
        for group in [rows] if small and rows else [[part] for part in rows]:
            source = f"read_parquet({self._list(group)}, filename = '_file', file_row_number = true)"
            found = db.sql(f"""
                select {names} from (select * rename (file_row_number as _number) from {source})
                anti join lost using (_file, _number) {order}
            """)
            taken = found.to_arrow_table().cast(self._spec.schema)
            if len(taken):
                numbered = with_row_ids(taken, time, bucket, self._spec.buckets, before)
                merged.parts.append(write_part(self._objects, self._spec.name, epoch, bucket, numbered, None))
                before += len(taken)

    def _parquet(self, parts: Sequence[Part]) -> str:
        return f"read_parquet({self._list(parts)})"

    def _list(self, parts: Sequence[Part]) -> str:
        return "[" + ", ".join(literal(self._file(part)) for part in parts) + "]"

    def _file(self, part: Part) -> str:
        check_parts(self._files, [part])
        return self._files.file(part.path)
