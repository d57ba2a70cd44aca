"""Small transactions: rows of all buckets share a staged stream and a part, and the rows are unaffected."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import duckdb
import pytest

import tracelake
from tests.pipeline.poison import good
from tests.pipeline.spans import a_line, a_span
from tracelake import Lake, limits
from tracelake.pipeline import decode_task, merge_task
from tracelake.pipeline.outputs.builtin import TableOutput
from tracelake.shards.rows import rows_sql
from tracelake.tasks.runners import InProcess

LINES = [
    a_line(*(a_span(trace, span) for trace in range(9) for span in range(3))),
    a_line(*(a_span(trace, span, end=99) for trace in range(3, 12) for span in range(2))),
    a_line(*(a_span(trace, 7) for trace in range(5))),
]


def ingested(folder: Path) -> Lake:
    """Return a lake of three transactions, of which later ones replace rows of earlier ones."""
    lake = tracelake.init(folder, buckets=4)
    for number, line in enumerate(LINES):
        (folder / f"{number}.jsonl").write_bytes(line)
        lake.ingest(folder / f"{number}.jsonl", runner=InProcess())
    return lake


def rows_of(lake: Lake) -> list[str]:
    """Return all rows of the built-in tables as of each transaction, with their ids."""
    found: list[str] = []
    for commit in lake.log():
        for table, order in (("spans", "trace_id, span_id"), ("traces", "trace_id")):
            shown = lake.table(table, at=commit.id)
            names = [*shown.schema.names, "_row_id"]
            query = rows_sql(
                shown.scan.snapshot, lambda path: str(lake.objects.local_path(path)), names, shown.schema
            )
            with duckdb.connect() as db:
                found += map(str, db.execute(f"from ({query}) order by {order}").fetchall())
    return found


def test_rows_are_the_same_as_in_parts_of_buckets(tmp_path: Path) -> None:
    """Rows, ids and `verify` agree as of every transaction."""
    with ingested(tmp_path / "together") as together:
        assert {part.bucket for part in together.table("spans").scan.snapshot.parts} == {-4}
        with patch.object(merge_task, "WRITTEN_TOGETHER_MAX_BYTES", 0), ingested(tmp_path / "apart") as apart:
            assert {part.bucket for part in apart.table("spans").scan.snapshot.parts} <= set(range(4))
            assert rows_of(together) == rows_of(apart)
            assert apart.verify().findings == together.verify().findings == ()


def finished(folder: Path) -> None:
    """Let a run die once `spans` has a transaction; the next one finishes it from its rows, without its input."""
    with tracelake.init(folder, buckets=4) as lake:
        for number in range(6):
            lake.objects.put(f"inbox/{number}.segment", good(number))
        publish = TableOutput.publish

        def dies(output: TableOutput, *args: object) -> None:
            if output.table.name == "traces":
                raise KeyboardInterrupt
            publish(output, *args)  # type: ignore[arg-type]

        with patch.object(TableOutput, "publish", dies), pytest.raises(KeyboardInterrupt):
            lake.pipeline(runner=InProcess()).run_once()
        lake.pipeline(runner=InProcess()).run_once()
        assert lake.table("traces").info().rows == 6
        assert lake.verify().findings == ()


def test_it_is_finished_by_the_rows_of_a_part_of_all(tmp_path: Path) -> None:
    """Rows staged from such a part go to their buckets."""
    finished(tmp_path / "lake")


def test_a_stream_is_shared_by_few_rows_only(tmp_path: Path) -> None:
    """The tables are the same under any bound on shared rows and on rows in memory."""
    wanted = rows_of(ingested(tmp_path / "wanted"))
    for name, shared, held in (("apart", 0, 2**28), ("again", 2**20, 2**20 - 1), ("bucket", 2**20, 1)):
        with (
            patch.object(decode_task, "STAGED_TOGETHER_MAX_BYTES", shared),
            patch.object(limits, "SHAPED_AT_ONCE_MAX_BYTES", held),
        ):
            assert rows_of(ingested(tmp_path / name)) == wanted
