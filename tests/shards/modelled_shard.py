"""Small shard of real parts, with a model of its rows at every time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import duckdb
import pyarrow as pa
import pytest

from tracelake.results import CompactReport
from tracelake.shards.compaction import FOLDERS, Collector
from tracelake.shards.leases import Lease
from tracelake.shards.lookup import Lookup
from tracelake.shards.model import Batch, BatchRef, Part, ShardState
from tracelake.shards.parts import all_of, bucket_of, by_bucket, write_part
from tracelake.shards.protocol import UpperMismatch
from tracelake.shards.rows import (
    RETRACTIONS,
    ROW_ID,
    retractions_by_bucket,
    rows_sql,
    with_row_ids,
    with_row_ids_of_all,
)
from tracelake.shards.shard import Shard
from tracelake.storage import KeyValueStore, LocalFiles, MemoryKeyValueStore, ObjectStore, open_objects
from tracelake.tables.maintenance import Maintainer
from tracelake.tasks.runners import InProcess, TaskRunner

SCHEMA: pa.Schema = pa.schema({"key": pa.string(), "value": pa.int64()})  # type: ignore[arg-type]
ORDER = ("key",)
Rows: TypeAlias = dict[str, int]


class Lab:
    """Shard named `s` with one writer, and `model[t]`, its rows as of time t."""

    def __init__(
        self, folder: Path, buckets: int = 2, key_value: KeyValueStore | None = None, name: str = "objects"
    ) -> None:
        self.objects: ObjectStore = open_objects((folder / name).as_uri())
        self.key_value = key_value or MemoryKeyValueStore()
        self.shard = Shard("s", self.key_value, self.objects)
        self.buckets = buckets
        self.model: list[Rows] = []
        self.ids: dict[str, int] = {}
        """Create the shard and the writer's map of each live key to its row id."""
        self._files = LocalFiles(self.objects, folder)
        self._db = duckdb.connect(config={"threads": 1})

    def parts_of(
        self, changes: Mapping[str, int | None], time: int, epoch: int, *, together: bool = False
    ) -> tuple[list[Part], list[Part]]:
        """Upload parts and retractions of a transaction, with all buckets `together`; record the ids of its rows."""
        put = sorted((key, value) for key, value in changes.items() if value is not None)
        table = pa.Table.from_pylist([{"key": k, "value": v} for k, v in put], schema=SCHEMA)
        gone = sorted(self.ids.pop(key) for key in changes if key in self.ids)
        parts, retractions = [], []
        numbered_rows = (
            [(all_of(self.buckets), with_row_ids_of_all(table, time, "key", self.buckets))] * bool(put)
            if together
            else [
                (bucket, with_row_ids(rows, time, bucket, self.buckets))
                for bucket, rows in by_bucket(table, "key", self.buckets)
            ]
        )
        for bucket, numbered in numbered_rows:
            self.ids.update((str(row["key"]), int(row[ROW_ID.name])) for row in numbered.to_pylist())
            parts.append(write_part(self.objects, "s", epoch, bucket, numbered, "key", looked_up=True))
        retracted = pa.table({"row_id": gone, "time": [time] * len(gone)}, schema=RETRACTIONS)
        all_gone = [(all_of(self.buckets), retracted)] * bool(gone)
        for bucket, rows in all_gone if together else retractions_by_bucket(retracted, self.buckets):
            retractions.append(write_part(self.objects, "s", epoch, bucket, rows, None))
        return parts, retractions

    def upsert(self, changes: Mapping[str, int | None], *, together: bool = False) -> UpperMismatch | None:
        """Append one transaction with a value for each key; None deletes the key."""
        time = len(self.model)
        epoch = self.shard.state().epoch
        parts, retractions = self.parts_of(changes, time, epoch, together=together)
        before = self.model[-1] if self.model else {}
        after = {key: value for key, value in {**before, **changes}.items() if value is not None}
        self.model.append(after)
        batch = Batch(time, time + 1, f"b{time}", tuple(parts), tuple(retractions), {}, epoch=epoch)
        return self.shard.compare_and_append(batch)

    def compact(self, start: int, stop: int) -> CompactReport | None:
        """Compact a run of adjacent batches, given by their positions in the state."""

        def choose(batches: Sequence[BatchRef]) -> Sequence[BatchRef]:
            return batches[start:stop]

        return self.maintainer()._compact(self.shard, ORDER, choose)

    def maintainer(self, runner: TaskRunner | None = None, committed: int | None = None) -> Maintainer:
        """Return a maintainer for which all batches are committed, or those before a time."""

        def upper(_: str) -> int:
            return self.shard.state().upper if committed is None else committed

        return Maintainer(self.key_value, self.objects, runner or InProcess(), upper)

    def collector(self) -> Collector:
        """Return a collector with a separate view of the shard."""
        return Collector(Shard("s", self.key_value, self.objects), self.key_value, self.objects)

    def rows(self, as_of: int) -> Rows:
        """Read the rows as of a time under a lease, as a reader does; no key may appear twice."""
        with Lease(self.shard, self.key_value) as lease:
            return self.read(lease.state, as_of)

    def read(self, state: ShardState, as_of: int) -> Rows:
        """Read the rows of a state as of a time."""
        snapshot = self.shard.snapshot(as_of, state)
        query = rows_sql(snapshot, self._files.file, SCHEMA.names, SCHEMA)
        found = self._db.execute(query).fetchall()
        assert len({key for key, _ in found}) == len(found), f"a key twice as of {as_of}: {found}"
        assert snapshot.rows in (None, len(found))
        keys = sorted({"absent", *(key for key, _ in found), *(key for rows in self.model for key in rows)})
        tables = Lookup(self.objects, snapshot, "key").rows(keys, SCHEMA.names)
        looked_up = [(row["key"], row["value"]) for table in tables for row in table.to_pylist()]
        assert sorted(looked_up) == sorted(found), f"who looks for keys as of {as_of} finds {looked_up}"
        of_buckets = [
            row
            for bucket in range(self.buckets)
            for row in self._db.execute(
                rows_sql(snapshot.for_buckets({bucket}), self._files.file, SCHEMA.names, SCHEMA)
            ).fetchall()
            if bucket_of(row[0], self.buckets) == bucket or pytest.fail(f"{row} is not of bucket {bucket}")
        ]
        assert sorted(of_buckets) == sorted(found), f"who reads one bucket after the other finds {of_buckets}"
        return dict(found)

    def check(self) -> None:
        """Compare the rows at every readable time with the model."""
        since = self.shard.state().since
        for time in range(since, len(self.model)):
            assert self.rows(time) == self.model[time], f"as of {time}"

    def live(self) -> set[str]:
        """Return the paths of all objects that the state leads to."""
        state = self.shard.state()
        refs = [*state.batches, *(ref for retired in state.retired for ref in retired.batches)]
        parts = {part.path for ref in state.batches for part in self.shard.batch(ref).objects()}
        parts |= {ref.path for ref in refs}
        return parts if state.rolled is None else parts | {state.rolled.path}

    def stored(self) -> set[str]:
        """Return the paths of all objects of the shard."""
        return {info.path for folder in FOLDERS for info in self.objects.list(f"shards/s/{folder}/")}
