"""Staged rows between two tasks: Arrow streams by bucket, several in one object."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import pyarrow as pa
import xxhash

from tracelake._errors import DamageError
from tracelake.limits.units import MIB
from tracelake.shards.partitioning import by_bucket, cut
from tracelake.storage import ObjectStore

STAGED_PIECE_MAX_BYTES: Final = 64 * MIB
"""Arrow bytes that a decode task holds."""
STAGED_TOGETHER_MAX_BYTES: Final = 4 * MIB
"""Arrow bytes of several buckets' rows in one staged stream."""


# an eighth of the bytes to sync, in a tenth of a second
STAGED: Final = pa.ipc.IpcWriteOptions(compression="lz4")


@dataclass(frozen=True, slots=True)
class StagedSlice:
    """Rows of one bucket, in the Arrow stream at bytes [offset, offset + length) of a staged object."""

    path: str
    offset: int
    length: int
    bucket: int
    rows: int
    arrow_bytes: int = 0
    """Estimated memory of the rows."""
    xxh3: int = 0
    """Hash of these bytes. It is verified when they are read, because Arrow does not validate its input."""
    first: int = 0
    """Position of its first row in the stream, which several small slices share."""


def stage(rows: pa.Table, objects: ObjectStore, staging: str, buckets: int) -> list[StagedSlice]:
    """Write rows as one object, with Arrow streams of bounded size for each bucket. Its path begins with `staging`.

    A stream costs as much as a hundred small rows, so the buckets of a small table share one.
    """
    path = f"{staging}{uuid.uuid4().hex}.arrow"
    sink = pa.BufferOutputStream()
    pieces: list[StagedSlice] = []
    ordered = list(by_bucket(rows, "trace_id", buckets))
    if rows.nbytes <= STAGED_TOGETHER_MAX_BYTES:
        data = staged_bytes(pa.concat_tables(of_bucket for _, of_bucket in ordered).combine_chunks())
        pieces = _slices(path, data, ordered)
        sink.write(data)
    else:
        for bucket, of_bucket in ordered:
            for few in cut(of_bucket, STAGED_PIECE_MAX_BYTES):
                data = staged_bytes(few)
                pieces.append(slice_of(path, sink.tell(), data, bucket, few))
                sink.write(data)
    objects.put(path, sink.getvalue().to_pybytes())
    return pieces


def _slices(path: str, data: pa.Buffer, ordered: Sequence[tuple[int, pa.Table]]) -> list[StagedSlice]:
    """Describe the rows of each bucket in a shared stream, in which the buckets follow each other."""
    xxh3 = xxhash.xxh3_64_intdigest(memoryview(data))
    starts = accumulate((len(rows) for _, rows in ordered), initial=0)
    return [
        StagedSlice(path, 0, len(data), bucket, len(rows), rows.nbytes, xxh3, first)
        for (bucket, rows), first in zip(ordered, starts, strict=False)
    ]


def staged_bytes(rows: pa.Table) -> pa.Buffer:
    """Return rows as an Arrow stream, encoded like a staged slice."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=STAGED) as writer:
        writer.write_table(rows)
    return sink.getvalue()


def slice_of(path: str, offset: int, data: pa.Buffer, bucket: int, rows: pa.Table) -> StagedSlice:
    """Describe the rows of a stream at an offset of an object."""
    return StagedSlice(
        path, offset, len(data), bucket, len(rows), rows.nbytes, xxhash.xxh3_64_intdigest(memoryview(data))
    )


def read_piece(objects: ObjectStore, piece: StagedSlice) -> pa.Table:
    """Read staged rows. Raises DamageError if the checksum differs."""
    return read_stream(objects, piece).slice(piece.first, piece.rows)


def read_stream(objects: ObjectStore, piece: StagedSlice) -> pa.Table:
    """Read the stream of a slice, which others may share. Raises DamageError if the checksum differs."""
    data = objects.get_range(piece.path, piece.offset, piece.length)
    if xxhash.xxh3_64_intdigest(data) != piece.xxh3:
        raise DamageError(
            f"staged rows in {piece.path} are not what was written: their checksum differs. Nothing was published; "
            "run again, which stages them anew, and look at the disk."
        )
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        return reader.read_all()
