"""Bounds on what a transaction reads and holds: little of a bucket, and few large texts at a time."""

from __future__ import annotations

import contextlib
import json
import random
import uuid
from pathlib import Path
from typing import Any
from unittest import mock

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipeline.spans import a_line, a_span
from tracelake import limits
from tracelake._errors import DamageError, StorageError
from tracelake.pipeline import decode_task as reading
from tracelake.pipeline import merge_task, publish
from tracelake.pipeline.decode_task import StagedSlice
from tracelake.pipeline.driver import Pipeline
from tracelake.pipeline.outputs.builtin import IndexOutput
from tracelake.pipeline.publish import by_range, shape_tasks
from tracelake.pipeline.run_result import RunResult
from tracelake.pipeline.sources.files import find_files
from tracelake.search.build import build_part
from tracelake.shards import parts as footers
from tracelake.shards.model import Part
from tracelake.shards.rows import rows_sql
from tracelake.shards.shard import Shard, Snapshot
from tracelake.storage import LocalFiles, MemoryKeyValueStore, MemoryObjectStore, open_objects
from tracelake.tables.builtin import BUILT_IN
from tracelake.tables.maintenance import Maintainer
from tracelake.tasks.runners import InProcess

BUCKETS = 2
KIB = 1024


class Bucket:
    """A pipeline over a remote store that counts the bytes read of parts."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        objects = open_objects(f"memory://{uuid.uuid4().hex}")
        assert isinstance(objects, MemoryObjectStore)
        self.objects = objects
        self.key_value = MemoryKeyValueStore()
        self.read_bytes = 0
        self._folder = folder
        self._transaction = 0
        self._pipeline = Pipeline("main", self.key_value, objects, BUCKETS, InProcess())
        whole = objects.get
        monkeypatch.setattr(objects, "get", lambda path: self._count(path, whole(path)))
        monkeypatch.setattr(
            objects,
            "get_range",
            lambda path, start, length: self._count(path, whole(path)[start : start + length]),
        )

    def _count(self, path: str, data: bytes) -> bytes:
        if path.startswith(("shards/spans/parts/", "shards/traces/parts/")):
            self.read_bytes += len(data)
        return data

    def ingest(self, *spans: dict[str, Any]) -> RunResult:
        """Make one transaction in a process without memory of earlier ones; `read_bytes` counts its reads of parts."""
        file = self._folder / f"{self._transaction}.jsonl"
        self._transaction += 1
        file.write_bytes(b"\n".join(a_line(*spans[at : at + 10]) for at in range(0, len(spans), 10)))
        footers.forget()
        self.read_bytes = 0
        return self._pipeline.run([find_files(self.objects, str(file))])

    def resume(self) -> RunResult:
        """Finish the transaction of a failed run."""
        return self._pipeline.run([])

    def compact(self) -> None:
        for name, table in BUILT_IN.items():
            Maintainer(self.key_value, self.objects, InProcess()).compact_all(
                self.shard(name), table.sorted_by
            )

    def shard(self, name: str) -> Shard:
        return Shard(name, self.key_value, self.objects)

    def snapshot(self, name: str) -> Snapshot:
        return self.shard(name).snapshot(self._transaction - 1)

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of a table in order, without their transaction."""
        snapshot = self.snapshot(name)
        file = LocalFiles(self.objects, self._folder / "copies").file
        schema = pq.read_schema(file(snapshot.parts[0].path))
        columns = [column for column in schema.names if column not in ("transaction", "_row_id")]
        with duckdb.connect() as db:
            rows = db.sql(rows_sql(snapshot, file, columns, schema)).to_arrow_table().to_pylist()
        return sorted(rows, key=json.dumps)

    def groups(self, part: Part) -> list[pa.Table]:
        file = pq.ParquetFile(pa.BufferReader(self.objects.get(part.path)))
        return [file.read_row_group(number) for number in range(file.num_row_groups)]


def spans_of(first: int, count: int, *, text_bytes: int = 300) -> list[dict[str, Any]]:
    """Return spans of this many traces, five each, with incompressible text and random ids."""
    chance = random.Random(first)
    spans = []
    for trace in range(first, first + count):
        key = random.Random(trace).getrandbits(120)
        spans += [a_span(key, span, note=chance.randbytes(text_bytes // 2).hex()) for span in range(5)]
    return spans


@pytest.mark.parametrize(
    ("spans", "arrow_bytes", "tasks"),
    [
        (publish.SMALL_TRANSACTION_SPANS, limits.SHAPED_AT_ONCE_MAX_BYTES, 1),
        (publish.SMALL_TRANSACTION_SPANS + 1, 0, publish.SHAPE_TASKS_MIN),
        (1, limits.SHAPED_AT_ONCE_MAX_BYTES + 1, publish.SHAPE_TASKS_MIN),
        (publish.SHAPE_TASKS_MIN * publish.SHAPE_TASK_SPANS, 0, publish.SHAPE_TASKS_MIN),
        (publish.SHAPE_TASKS_MIN * publish.SHAPE_TASK_SPANS + 1, 0, publish.SHAPE_TASKS_MIN + 1),
        (100 * publish.SHAPE_TASK_SPANS, 0, 100),
        (1, 100 * limits.SHAPED_AT_ONCE_MAX_BYTES, 100),
    ],
)
def test_a_transaction_has_tasks_for_what_it_holds(spans: int, arrow_bytes: int, tasks: int) -> None:
    """A small transaction has one task, a large one a few, and a huge one more by its spans or bytes, without a
    cap."""
    assert shape_tasks(spans, arrow_bytes) == tasks


def test_each_piece_is_looked_at_once() -> None:
    """Each slice is read once and goes to its bucket's range in order, because slices cannot be read again."""
    pieces = [
        StagedSlice("a.arrow", at, 1, bucket, 1, 1, at) for at, bucket in enumerate((5, 0, 7, 3, 2, 0, 4))
    ]
    ranges = [(0, 3), (3, 4), (4, 8)]
    assert by_range(iter(pieces), ranges) == [
        [piece for piece in pieces if low <= piece.bucket < high] for low, high in ranges
    ]


def test_what_a_transaction_reads_does_not_grow_with_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten new traces read the parts' footers and no row; spans of an old trace read one row group of it."""
    # as if there were more than fits into one part
    monkeypatch.setattr(merge_task, "WRITTEN_TOGETHER_MAX_BYTES", 0)
    bucket = Bucket(tmp_path, monkeypatch)
    read, stored = [], []
    for number, traces in enumerate((100, 700)):
        bucket.ingest(*spans_of(number * 10_000, traces))
        bucket.compact()
        stored.append(sum(part.size_bytes for part in bucket.snapshot("spans").parts))
        result = bucket.ingest(*spans_of(number * 10_000 + 5_000, 10))
        assert result.counts[0].new == 50
        read.append(bucket.read_bytes)
    assert stored[1] > 5 * stored[0]
    assert read[1] - read[0] < 8 * 700  # a few bytes for the summary of each trace
    monkeypatch.setattr(limits, "ROW_GROUP_ROWS", 128)
    bucket.compact()
    old = spans_of(10_000, 1)
    result = bucket.ingest(
        old[0], old[1] | {"endTimeUnixNano": "99"}, a_span(int(old[0]["traceId"], 16) - 1, 9)
    )
    assert (result.counts[0].repeated, result.counts[0].replaced, result.counts[0].new) == (1, 1, 1)
    assert bucket.read_bytes < stored[1] / 3


def test_large_texts_are_merged_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables under limits of some KiB equal those under the usual limits, and parts and row groups keep the
    limits.

    Arrow fails on one gibibyte of one column at once, however much memory exists.
    """
    small = 64 * KIB
    first, second = spans_of(0, 60, text_bytes=4 * KIB), spans_of(0, 30, text_bytes=4 * KIB)
    again = [span | {"endTimeUnixNano": "50"} for span in second[:75]] + second[75:]
    tables = []
    for limited in (False, True):
        folder = tmp_path / str(limited)
        folder.mkdir()
        with monkeypatch.context() as patch:
            if limited:
                patch.setattr(limits, "SHAPED_AT_ONCE_MAX_BYTES", small)
                patch.setattr(limits, "ROW_GROUP_MAX_BYTES", small // 4)
                patch.setattr(reading, "STAGED_PIECE_MAX_BYTES", small // 4)
            bucket = Bucket(folder, patch)
            counts = bucket.ingest(*first).counts[0]
            assert (counts.new, counts.replaced, counts.repeated, counts.traces) == (300, 0, 0, 60)
            counts = bucket.ingest(*again).counts[0]
            assert (counts.new, counts.replaced, counts.repeated, counts.traces) == (0, 75, 75, 15)
            tables.append([bucket.rows("spans"), bucket.rows("traces")])
        if limited:
            parts = bucket.snapshot("spans").parts
            assert len(parts) > 10
            for part in parts:
                groups = bucket.groups(part)
                assert sum(group.nbytes for group in groups) < 1.2 * small
                assert max(group.nbytes for group in groups) < 1.2 * small / 4
    assert tables[0] == tables[1]


def test_a_recovery_gives_rows_of_several_parts_of_a_bucket_the_same_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recovery reads the rows of a transaction from the parts of table `spans`, and its index has their ids."""
    bucket, indexed = Bucket(tmp_path, monkeypatch), set[tuple[str, str, int]]()
    write: Any = build_part
    names = ["trace_id", "span_id", "_row_id"]

    def build(*arguments: Any, **options: Any) -> object:
        *others, rows = arguments
        batches = list(rows)
        indexed.update(*(zip(*batch.select(names).to_pydict().values(), strict=True) for batch in batches))
        return write(*others, batches, **options)

    monkeypatch.setattr(merge_task, "build_part", build)
    spans = spans_of(0, 60, text_bytes=3 * KIB)
    with monkeypatch.context() as patch:
        # A recovery has fewer rows.
        patch.setattr(limits, "SHAPED_AT_ONCE_MAX_BYTES", 64 * KIB)
        patch.setattr(limits, "ROW_GROUP_MAX_BYTES", 16 * KIB)
        patch.setattr(reading, "STAGED_PIECE_MAX_BYTES", 32 * KIB)
        patch.setattr(merge_task, "WRITTEN_TOGETHER_MAX_BYTES", 0)
        patch.setattr(IndexOutput, "publish", mock.Mock(side_effect=StorageError("killed")))
        with pytest.raises(StorageError, match="killed"):
            bucket.ingest(*spans, *(span | {"endTimeUnixNano": "50"} for span in spans[::7]))
    indexed.clear()
    bucket.resume()
    groups = [group for part in bucket.snapshot("spans").parts for group in bucket.groups(part)]
    assert len(bucket.snapshot("spans").parts) > 2 * BUCKETS
    stored = {row for group in groups for row in zip(*group.select(names).to_pydict().values(), strict=True)}
    assert indexed == stored


def test_a_flipped_bit_of_what_is_read_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a flip in the footer or a page, the transaction fails and names the part instead of merging wrong rows."""
    bucket = Bucket(tmp_path, monkeypatch)
    bucket.ingest(*spans_of(0, 3))
    (first, *_) = bucket.snapshot("spans").parts
    whole = bucket.objects.get(first.path)
    places = [4, 60, first.size_bytes - 9, first.size_bytes - first.footer_bytes, first.size_bytes - 1]
    key = next(group["trace_id"][0].as_py() for group in bucket.groups(first))
    for place in places:
        altered = bytearray(whole)
        altered[place] ^= 4
        bucket.objects.put(first.path, bytes(altered))
        with pytest.raises(DamageError, match=first.path):
            bucket.ingest(a_span(int(key, 16) - 1, 77))
    bucket.objects.delete(first.path)
    with pytest.raises(DamageError, match="is missing"):
        bucket.ingest(a_span(int(key, 16) - 1, 77))
    bucket.objects.put(first.path, whole)
    assert bucket.ingest(a_span(int(key, 16) - 1, 78)).commit is not None


def test_a_store_that_fails_is_not_taken_for_a_damaged_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A single failed read of a part raises the store's error, and the next run does everything."""
    bucket = Bucket(tmp_path, monkeypatch)
    bucket.ingest(*spans_of(0, 1))
    again = spans_of(0, 1)[0] | {"endTimeUnixNano": "77"}
    read = bucket.objects.get_range
    for failing in range(100):
        calls = 0

        def fail(path: str, start: int, length: int, failing: int = failing) -> bytes:
            nonlocal calls
            if "/parts/" in path and path.startswith("shards/"):
                calls += 1
                if calls == failing + 1:
                    raise StorageError("no file descriptor is left")
            return read(path, start, length)

        with monkeypatch.context() as patch:
            patch.setattr(bucket.objects, "get_range", fail)
            if failing == 0:
                with pytest.raises(StorageError, match="descriptor"):
                    bucket.ingest(again)
                continue
            footers.forget()
            with contextlib.suppress(StorageError):
                bucket.resume()
                break
    assert failing > 4, "footers and pages of both tables"
    (_,) = [row for row in bucket.rows("spans") if row["end_ns"] == 77]
    assert len(bucket.rows("traces")) == 1
