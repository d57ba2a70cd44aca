"""The first task of a transaction, on executors: from one input to Arrow pieces by bucket.

A task takes a path and answers with numbers; text goes from the input to the object store and never through
the driver or the JVM. Several tasks share one large file, each decoding its stripe of the records.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa
import xxhash

from tracelake._errors import DamageError, DecodeError, NotFoundError
from tracelake.limits import PROBLEMS_MAX, STAGED_PIECE_MAX_BYTES
from tracelake.otlp.columns import SpanColumns
from tracelake.otlp.decode import decode_json, decode_protobuf
from tracelake.otlp.framing import Payload, Reading
from tracelake.otlp.whole import Whole
from tracelake.pipeline.sources.registry import fetch
from tracelake.results import Problem
from tracelake.shards.buckets import by_bucket
from tracelake.shards.cutting import cut
from tracelake.storage import ObjectStore, open_objects

STAGED: Final = pa.ipc.IpcWriteOptions(
    compression="lz4"
)  # an eighth of the bytes to sync, in a tenth of a second


_NOTHING: Final = Whole(0, "")


@dataclass(frozen=True, slots=True)
class ReadTask:
    """Decode the records of one input whose number modulo `stripes` is `stripe`."""

    objects_url: str
    source: str
    path: str
    size_bytes: int
    """How many bytes of it are the input: what is appended later is not."""
    stripe: int
    stripes: int
    buckets: int
    staging: str
    """Prefix of the objects that the task writes."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one bucket in a staged object: an Arrow stream in the bytes [offset, offset + length)."""

    path: str
    offset: int
    length: int
    bucket: int
    rows: int
    arrow_bytes: int = 0
    """About what the rows take in memory."""
    xxh3: int = 0
    """The hash of its bytes: they lie in a store before they are read, and Arrow believes whatever it finds."""


@dataclass(slots=True)
class ReadReceipt:
    """What a read task did: all numbers, small problems in words."""

    source: str
    path: str
    stripe: int
    whole: Whole = _NOTHING
    """What the stripe saw of the whole input: all stripes read all of it."""
    failure: str | None = None
    """Why it could not be read this time, as when no more files can be opened; then nothing of it counts."""
    records: int = 0
    checksum: int = 0
    spans: int = 0
    problems: list[Problem] = field(default_factory=list)
    problems_total: int = 0
    damaged: bool = False
    """Whether a record could not be read at all."""
    pieces: list[Piece] = field(default_factory=list)

    def note(self, problem: Problem, count: int = 1) -> None:
        """Count problems, and keep the first few."""
        self.problems_total += count
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(problem)


def run_read_task(task: ReadTask) -> ReadReceipt:
    """Carry out one task. An input that is not OTLP, or cannot be read, ends up in the receipt, not in an exception."""
    objects = open_objects(task.objects_url)
    receipt = ReadReceipt(task.source, task.path, task.stripe)
    with tempfile.TemporaryDirectory(prefix="tracelake-read-") as folder:
        try:
            path = fetch(objects, task.source, task.path, task.size_bytes, Path(folder))
        except NotFoundError:
            return receipt  # a peer has committed the segment and deleted it
        except OSError as error:
            receipt.failure = _failure(error)
            return receipt
        reading = Reading(path, task.stripe, task.stripes, task.size_bytes)
        items = iter(reading)
        columns = SpanColumns()
        while (item := _next(items, receipt)) is not None:
            if isinstance(item, Problem):
                _damaged(item, receipt)
                continue
            _take(item, columns, receipt)
            if columns.approx_bytes >= STAGED_PIECE_MAX_BYTES:
                _stage(columns, task, objects, receipt)
        if columns.rows and receipt.failure is None:
            _stage(columns, task, objects, receipt)
    if reading.whole is not None:
        receipt.whole = reading.whole
        if task.stripe == 0 and reading.whole.problem is not None:  # once for all stripes
            _damaged(reading.whole.problem, receipt)
    return receipt


def _next(items: Iterator[Payload | Problem], receipt: ReadReceipt) -> Payload | Problem | None:
    """Return the next item, None at the end, or where the disk fails: the receipt then says so."""
    try:
        return next(items, None)
    except OSError as error:
        receipt.failure = _failure(error)
        return None


def _failure(error: OSError) -> str:
    return f"cannot be read: {error.strerror or error}"


def _damaged(problem: Problem, receipt: ReadReceipt) -> None:
    receipt.note(problem)
    receipt.damaged = True


def _take(payload: Payload, columns: SpanColumns, receipt: ReadReceipt) -> None:
    receipt.records += 1
    receipt.checksum += xxhash.xxh3_64_intdigest(payload.data)
    decode = decode_json if payload.format == "json" else decode_protobuf
    try:
        decoded = decode(payload.data, columns)
    except DecodeError as error:
        _damaged(Problem(str(error), payload.line, payload.offset), receipt)
        return
    receipt.spans += decoded.accepted
    for number, reason in enumerate(decoded.reasons):
        # The first few rejected spans have a reason each; the last of them stands for the rest.
        rest = decoded.rejected - len(decoded.reasons) if number == len(decoded.reasons) - 1 else 0
        receipt.note(Problem(reason, payload.line, payload.offset), 1 + rest)


def _stage(columns: SpanColumns, task: ReadTask, objects: ObjectStore, receipt: ReadReceipt) -> None:
    """Write what the builder holds as one object: for each bucket Arrow streams of bounded size."""
    rows = pa.Table.from_batches([columns.take()])
    path = f"{task.staging}{uuid.uuid4().hex}.arrow"
    sink = pa.BufferOutputStream()
    pieces: list[Piece] = []
    for bucket, of_bucket in by_bucket(rows, "trace_id", task.buckets):
        for few in cut(of_bucket, STAGED_PIECE_MAX_BYTES):
            data = staged_bytes(few)
            pieces.append(piece_of(path, sink.tell(), data, bucket, few))
            sink.write(data)
    objects.put(path, sink.getvalue().to_pybytes())
    receipt.pieces += pieces


def staged_bytes(rows: pa.Table) -> pa.Buffer:
    """Return rows as a piece has them."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=STAGED) as writer:
        writer.write_table(rows)
    return sink.getvalue()


def piece_of(path: str, offset: int, data: pa.Buffer, bucket: int, rows: pa.Table) -> Piece:
    """Describe rows whose bytes stand in an object."""
    return Piece(
        path, offset, len(data), bucket, len(rows), rows.nbytes, xxhash.xxh3_64_intdigest(memoryview(data))
    )


def read_piece(objects: ObjectStore, piece: Piece) -> pa.Table:
    """Read rows that were staged. Raises DamageError where they are not what was written."""
    data = objects.get_range(piece.path, piece.offset, piece.length)
    if xxhash.xxh3_64_intdigest(data) != piece.xxh3:
        raise DamageError(
            f"staged rows in {piece.path} are not what was written: their checksum differs. Nothing was published; "
            "run again, which stages them anew, and look at the disk."
        )
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        return reader.read_all()
