"""Rows on their way from one task to another: Arrow streams by bucket, several in one staged object."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import xxhash

from tracelake._errors import DamageError
from tracelake.limits import STAGED_PIECE_MAX_BYTES
from tracelake.shards.buckets import by_bucket
from tracelake.shards.cutting import cut
from tracelake.storage import ObjectStore

STAGED: Final = pa.ipc.IpcWriteOptions(
    compression="lz4"
)  # an eighth of the bytes to sync, in a tenth of a second


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


def stage(rows: pa.Table, objects: ObjectStore, staging: str, buckets: int) -> list[Piece]:
    """Write rows as one object below `staging`: for each bucket Arrow streams of bounded size."""
    path = f"{staging}{uuid.uuid4().hex}.arrow"
    sink = pa.BufferOutputStream()
    pieces: list[Piece] = []
    for bucket, of_bucket in by_bucket(rows, "trace_id", buckets):
        for few in cut(of_bucket, STAGED_PIECE_MAX_BYTES):
            data = staged_bytes(few)
            pieces.append(piece_of(path, sink.tell(), data, bucket, few))
            sink.write(data)
    objects.put(path, sink.getvalue().to_pybytes())
    return pieces


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
