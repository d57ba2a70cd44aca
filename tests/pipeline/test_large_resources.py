"""A large resource of many small spans: the rows of a megabyte are a gigabyte, and never in memory together."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tests.lake.test_large_resources import grown
from tests.tracking.requests import request
from tracelake.otlp.columns import SpanColumns
from tracelake.otlp.partition import rows_of
from tracelake.pipeline import decode_task
from tracelake.pipeline import decode_task as staging
from tracelake.pipeline.decode_task import InputShare, ReadTask, read_piece, run_read_task
from tracelake.pipeline.sources.files import FILES
from tracelake.storage import FileObjectStore

PIECE_BYTES = 300_000
"""Bytes of rows in one slice here; a payload has twenty times as many."""


def check_batches() -> None:
    """Check that byte-limited batches have the same rows, an oversized span is a batch alone, and no batch is
    empty."""
    mixed = grown(1, range(1, 21)).payload + request((2, 1), (2, 2), text="apple").payload
    for data, max_bytes in ((mixed, 150_000), (mixed, 1), (mixed, 10**9)):
        every = rows_of(data).take()
        batches = list(rows_of(data).take_in_batches(max_bytes))
        assert pa.Table.from_batches(batches).combine_chunks() == pa.Table.from_batches([every])
        assert all(len(batch) for batch in batches)
        assert all(len(batch) == 1 or batch.nbytes < 1.3 * max_bytes for batch in batches)
        assert max_bytes != 150_000 or len(batches) < every.nbytes / 75_000
    assert [len(batch) for batch in SpanColumns().take_in_batches(1)] == [0]
    columns = rows_of(mixed)
    list(columns.take_in_batches(10_000))
    assert (columns.rows, columns.approx_bytes, len(columns.take())) == (0, 0, 0)


def check_staged(folder: Path) -> None:
    """Check that a task holds a bounded slice of a payload at a time, and stages all of it."""
    path = folder / "large.pb"
    payload = grown(1, range(1, 151)).payload
    path.write_bytes(payload)
    objects = FileObjectStore(folder / "objects")
    staged: list[int] = []
    stage = staging.stage

    def noted(rows: pa.Table, *others: object) -> object:
        staged.append(rows.nbytes)
        return stage(rows, *others)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode_task, "STAGED_PIECE_MAX_BYTES", PIECE_BYTES)
        patch.setattr(decode_task, "stage", noted)
        share = InputShare(FILES, str(path), path.stat().st_size)
        receipt = run_read_task(ReadTask(objects.url, (share,), 4, "staging/"))
    pieces = [*receipt.pieces, *receipt.shares[0].pieces]
    rows = pa.concat_tables(read_piece(objects, piece) for piece in pieces)
    assert receipt.shares[0].spans == len(rows) == 150
    assert rows.sort_by("span_id").combine_chunks() == pa.Table.from_batches([rows_of(payload).take()])
    assert max(staged) < 1.3 * PIECE_BYTES
    assert len(staged) > 10


def test_batches() -> None:
    """No batch exceeds the bound."""
    check_batches()


def test_staged(tmp_path: Path) -> None:
    """No staged slice exceeds the bound."""
    check_staged(tmp_path)
