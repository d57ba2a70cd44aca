"""The rows of a transaction out of table `spans`, staged as if its input had been read again.

Once `spans` has the rows of T, T can be finished without its input, which may have changed or gone: what was taken of
it is these rows. Merged with the tables as of T-1 they give the trace rows, and the index part, that were missing.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import pyarrow.parquet as pq

from tracelake.limits import STAGED_PIECE_MAX_BYTES
from tracelake.otlp.schema import SPANS
from tracelake.pipeline.pieces import Piece, piece_of, stage, staged_bytes
from tracelake.scratch import scratch_directory
from tracelake.shards.buckets import is_all
from tracelake.shards.cutting import cut
from tracelake.shards.model import Part
from tracelake.shards.parts import check_part
from tracelake.storage import LocalFiles, open_objects


@dataclass(frozen=True, slots=True)
class RestageTask:
    """Stage the rows of one part of table `spans`."""

    objects_url: str
    part: Part
    staging: str
    """Prefix of the objects that the task writes."""


def run_restage_task(task: RestageTask) -> list[Piece]:
    """Carry out one task, a row group at a time. Raises DamageError for a part that is not what was written."""
    objects = open_objects(task.objects_url)
    pieces: list[Piece] = []
    with scratch_directory("restage") as folder:
        file = LocalFiles(objects, folder).file(task.part.path)
        check_part(file, task.part)
        with pq.ParquetFile(file) as part:
            for group in range(part.num_row_groups):
                rows = part.read_row_group(group, columns=SPANS.names).select(SPANS.names).cast(SPANS)
                if is_all(task.part.bucket):
                    pieces += stage(rows, objects, task.staging, -task.part.bucket)
                    continue
                for few in cut(rows, STAGED_PIECE_MAX_BYTES):
                    path, data = f"{task.staging}{uuid.uuid4().hex}.arrow", staged_bytes(few)
                    objects.put(path, data.to_pybytes())
                    pieces.append(piece_of(path, 0, data, task.part.bucket, few))
    return pieces
