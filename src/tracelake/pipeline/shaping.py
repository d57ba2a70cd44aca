"""The second task of a transaction, on executors: from staged pieces to parts and an index part.

A task owns a range of buckets. It reads their staged rows, merges them with what the tables hold as of the
transaction before, writes the parts of both tables, and builds one index part over the new rows.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from tracelake.otlp.schema import SPANS_TABLE
from tracelake.pipeline.merge import Merged, Stored, merge
from tracelake.pipeline.reading import Piece
from tracelake.search.build import build_part
from tracelake.shards.buckets import by_bucket
from tracelake.shards.model import Part
from tracelake.shards.parts import write_part
from tracelake.shards.rows import retractions_by_bucket, with_row_ids
from tracelake.shards.store import Snapshot
from tracelake.storage import LocalFiles, ObjectStore, open_objects


@dataclass(frozen=True, slots=True)
class ShapeTask:
    """Shape the buckets [low, high) of a transaction, given the live parts of both tables in them."""

    objects_url: str
    transaction: int
    index: str
    build: str
    buckets: int
    low: int
    high: int
    pieces: Sequence[Piece]
    spans: Snapshot
    traces: Snapshot
    spans_epoch: int
    traces_epoch: int


@dataclass(slots=True)
class ShapeReceipt:
    """What a shape task wrote; all numbers and names."""

    span_parts: list[Part] = field(default_factory=list)
    span_retractions: list[Part] = field(default_factory=list)
    trace_parts: list[Part] = field(default_factory=list)
    trace_retractions: list[Part] = field(default_factory=list)
    new: int = 0
    replaced: int = 0
    repeated: int = 0
    traces: int = 0


def run_shape_task(task: ShapeTask) -> ShapeReceipt:
    """Carry out one task."""
    objects = open_objects(task.objects_url)
    receipt = ShapeReceipt()
    new_spans = SPANS_TABLE.empty_table()
    if task.pieces:
        with tempfile.TemporaryDirectory(prefix="tracelake-shape-") as folder:
            files = LocalFiles(objects, Path(folder))
            incoming = _read_pieces(objects, task.pieces)
            merged = merge(
                incoming,
                Stored(task.spans, files.file),
                Stored(task.traces, files.file),
                task.transaction,
            )
        _write(objects, task, merged, receipt)
        new_spans = merged.spans
    build_part(objects, task.index, task.build, task.low, task.high, uuid.uuid4().hex, new_spans.to_batches())
    return receipt


def _write(objects: ObjectStore, task: ShapeTask, merged: Merged, receipt: ShapeReceipt) -> None:
    for shard, epoch, rows, into in (
        ("spans", task.spans_epoch, merged.spans, receipt.span_parts),
        ("traces", task.traces_epoch, merged.traces, receipt.trace_parts),
    ):
        for bucket, of_bucket in by_bucket(rows, "trace_id", task.buckets):
            numbered = with_row_ids(of_bucket, task.transaction, bucket, task.buckets)
            into.append(write_part(objects, shard, epoch, bucket, numbered, "trace_id"))
    for shard, epoch, gone, into in (
        ("spans", task.spans_epoch, merged.span_retractions, receipt.span_retractions),
        ("traces", task.traces_epoch, merged.trace_retractions, receipt.trace_retractions),
    ):
        for bucket, of_bucket in retractions_by_bucket(gone, task.buckets):
            into.append(write_part(objects, shard, epoch, bucket, of_bucket, None))
    receipt.new = merged.new
    receipt.replaced = merged.replaced
    receipt.repeated = merged.repeated
    receipt.traces = len(merged.traces)


def _read_pieces(objects: ObjectStore, pieces: Sequence[Piece]) -> pa.Table:
    tables = []
    for piece in pieces:
        data = objects.get_range(piece.path, piece.offset, piece.length)
        with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
            tables.append(reader.read_all())
    return pa.concat_tables(tables).combine_chunks()
