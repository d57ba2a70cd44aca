"""The first task of a transaction, on executors: from one input to Arrow pieces by bucket.

A task takes a path and answers with numbers; text goes from the input to the object store and never through
the driver or the JVM. Several tasks share one large file, each decoding its stripe of the records.
"""

from __future__ import annotations

import hashlib
import tempfile
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import xxhash

from tracelake._errors import DecodeError, NotFoundError
from tracelake.limits import PROBLEMS_MAX, STAGED_PIECE_MAX_BYTES
from tracelake.otlp.columns import SpanColumns
from tracelake.otlp.decode import decode_json, decode_protobuf
from tracelake.otlp.framing import Payload, read_payloads
from tracelake.records import Problem
from tracelake.shards.buckets import by_bucket
from tracelake.storage import LocalFiles, ObjectStore, open_objects

_STAGED = pa.ipc.IpcWriteOptions(compression="lz4")  # an eighth of the bytes to sync, in a tenth of a second


@dataclass(frozen=True, slots=True)
class ReadTask:
    """Decode the records of one input whose number modulo `stripes` is `stripe`."""

    objects_url: str
    source: str
    path: str
    in_lake: bool
    """Whether the path is an object of the lake (a segment of the inbox) rather than a file."""
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


@dataclass(slots=True)
class ReadReceipt:
    """What a read task did: all numbers, small problems in words."""

    source: str
    path: str
    stripe: int
    size_bytes: int = 0
    sha256: str = ""
    """Of the whole input, from stripe 0 only."""
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
    """Carry out one task. Input that is not OTLP ends up in the receipt, not in an exception."""
    objects = open_objects(task.objects_url)
    receipt = ReadReceipt(task.source, task.path, task.stripe)
    with tempfile.TemporaryDirectory(prefix="tracelake-read-") as folder:
        try:
            path = LocalFiles(objects, Path(folder)).file(task.path) if task.in_lake else task.path
        except NotFoundError:
            return receipt  # a peer has committed the segment and deleted it
        if task.stripe == 0:
            receipt.size_bytes, receipt.sha256 = fingerprint(path)
        columns = SpanColumns()
        for item in read_payloads(path, task.stripe, task.stripes):
            if isinstance(item, Problem):
                receipt.note(item)
                receipt.damaged = True
                continue
            _take(item, columns, receipt)
            if columns.approx_bytes >= STAGED_PIECE_MAX_BYTES:
                _stage(columns, task, objects, receipt)
        if columns.rows:
            _stage(columns, task, objects, receipt)
    return receipt


def fingerprint(path: str) -> tuple[int, str]:
    """Return size and SHA-256 of a file; (0, "") where it cannot be read, which no recorded file equals."""
    digest = hashlib.sha256()
    try:
        with Path(path).open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
            return file.tell(), digest.hexdigest()
    except OSError:
        return 0, ""


def _take(payload: Payload, columns: SpanColumns, receipt: ReadReceipt) -> None:
    receipt.records += 1
    receipt.checksum += xxhash.xxh3_64_intdigest(payload.data)
    decode = decode_json if payload.format == "json" else decode_protobuf
    try:
        decoded = decode(payload.data, columns)
    except DecodeError as error:
        receipt.note(Problem(str(error), payload.line, payload.offset))
        receipt.damaged = True
        return
    receipt.spans += decoded.accepted
    for number, reason in enumerate(decoded.reasons):
        # The first few rejected spans have a reason each; the last of them stands for the rest.
        rest = decoded.rejected - len(decoded.reasons) if number == len(decoded.reasons) - 1 else 0
        receipt.note(Problem(reason, payload.line, payload.offset), 1 + rest)


def _stage(columns: SpanColumns, task: ReadTask, objects: ObjectStore, receipt: ReadReceipt) -> None:
    """Write what the builder holds as one object: for each bucket an Arrow stream."""
    rows = pa.Table.from_batches([columns.take()])
    path = f"{task.staging}{uuid.uuid4().hex}.arrow"
    sink = pa.BufferOutputStream()
    pieces: list[Piece] = []
    for bucket, of_bucket in by_bucket(rows, "trace_id", task.buckets):
        start = sink.tell()
        with pa.ipc.new_stream(sink, rows.schema, options=_STAGED) as writer:
            writer.write_table(of_bucket)
        pieces.append(Piece(path, start, sink.tell() - start, bucket, len(of_bucket)))
    objects.put(path, sink.getvalue().to_pybytes())
    receipt.pieces += pieces
