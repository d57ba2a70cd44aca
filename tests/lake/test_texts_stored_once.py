"""A lake whose spans repeat their texts in attributes: each reader returns the spans as they were sent."""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final
from unittest import mock

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.protobuf.json_format import MessageToDict

import tracelake
from tests.pipeline.spans import a_line, a_span, a_table
from tracelake import Lake
from tracelake.context import LakeContext
from tracelake.lake.lake import find_location
from tracelake.otlp.encode import encode
from tracelake.otlp.schema import SPANS
from tracelake.pipeline.decode_task import read_stream
from tracelake.pipeline.outputs.external import NewSpans
from tracelake.pipeline.staging import RestageTask, run_restage_task
from tracelake.results import IngestReport
from tracelake.shards.rows import SHARED
from tracelake.shards.shard import Shard
from tracelake.tasks.runners import InProcess

SECRET: Final = "the parcel of Ada Lovelace is late, and nobody answers the telephone in the warehouse"


def a_chat(trace: int, span: int, **fields: Any) -> dict[str, Any]:
    """Return a model call as instrumentation sends it: its texts are long, and one is in two attributes."""
    received = json.dumps([{"role": "user", "content": f"question {span}: {SECRET}"}])
    returned = f"answer {span}: the parcel arrives on Monday, between eight and twelve o'clock. " * 4
    sent: dict[str, str] = {
        "langfuse.observation.input": received,
        "langfuse.trace.input": received,
        "gen_ai.request.model": "gpt-4o",
        "output.value": returned,
        "note": "",
    }
    attributes = [{"key": key, "value": {"stringValue": text}} for key, text in sent.items()]
    return a_span(trace, span, attributes=attributes, **fields)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """Return a lake of two transactions. The second repeats a span, and replaces one."""
    with tracelake.init(tmp_path / "lake", buckets=2) as opened:
        ingest(opened, a_chat(0, 1), a_chat(0, 2), a_chat(3, 5, end=9))
        report = ingest(opened, a_chat(0, 1), a_chat(1, 3), a_chat(3, 5, end=11))
        assert (report.spans_new, report.spans_replaced, report.spans_repeated) == (1, 1, 1)
        yield opened


SENT: Final = (a_chat(0, 1), a_chat(0, 2), a_chat(1, 3), a_chat(3, 5, end=11))


def ingest(lake: Lake, *spans: dict[str, Any]) -> IngestReport:
    """Add a transaction."""
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
        file.write(a_line(*spans))
        file.flush()
        return lake.ingest(file.name, runner=InProcess())


@contextmanager
def spans_of(lake: Lake) -> Iterator[tuple[LakeContext, Shard]]:
    """Open the shard of table `spans`."""
    with closing(LakeContext(find_location(lake.url, None))) as stores:
        yield stores, stores.shard("spans")


def by_id(rows: pa.Table) -> pa.Table:
    """Return rows with the columns of a span, in order."""
    return rows.select(SPANS.names).cast(SPANS).sort_by([("trace_id", "ascending"), ("span_id", "ascending")])


def check_reads(lake: Lake, *sent: dict[str, Any]) -> None:
    """Check that every read of a lake returns these spans as they were sent."""
    table, expected = lake.table("spans"), by_id(a_table(*sent))
    expected = by_id(expected.set_column(4, "service", pa.array(["shop"] * len(sent))))
    split = [batch for scan in table.splits() for batch in scan.batches()]
    for rows in (
        table.to_arrow(),
        lake.sql("select * from spans"),
        table.to_duckdb().to_arrow_table(),
        pa.Table.from_batches(split),
        table.to_arrow(where="attributes['output.value'] = output"),
        table.lookup(sorted({f"{number:032x}" for number in range(9)}), SPANS.names),
    ):
        columns = [name for name in SPANS.names if name != "resource"]
        assert by_id(rows).select(columns).equals(expected.select(columns))
    found = {each["span_id"]: each for span in sent for each in lake.trace(span["traceId"]).spans}
    for row in expected.to_pylist():
        assert found[row["span_id"]]["attributes"] == dict(row["attributes"])
        assert found[row["span_id"]]["input"] == row["input"]
    (messages,) = encode(table.to_arrow().select(SPANS.names)).resource_spans
    encoded = {span.span_id.hex(): span for span in messages.scope_spans[0].spans}
    for span in sent:
        assert MessageToDict(encoded[span["spanId"]])["attributes"] == span["attributes"]
    assert lake.search("parcel").total == len(sent)
    assert lake.search('"nobody answers the telephone"').total == len(sent)
    assert lake.verify().findings == ()


def test_the_files_have_each_text_once(lake: Lake) -> None:
    """A reader of the bare files finds the texts in their columns, and null in the attributes that repeat them."""
    assert lake.table("spans").files()
    for file in lake.table("spans").files():
        raw = pq.read_table(file)
        assert SHARED.name in raw.schema.names
        assert not any(SECRET in str(row) for row in raw["attributes"].to_pylist())
        assert all(SECRET in str(text) for text in raw["input"].to_pylist())
    ingest(lake, a_span(7, 7, note="no texts"))
    frame = pl.scan_parquet(lake.table("spans").files()).select("input", "output").collect()
    assert frame.null_count().row(0) == (1, 1)


def test_reads_of_texts_that_are_stored_once(lake: Lake) -> None:
    """Transactions, compaction, a new index, and the earlier commit return the spans exactly."""
    check_reads(lake, *SENT)
    with mock.patch.dict(os.environ, TRACELAKE_WINDOW="none"):
        lake.maintenance.compact(runner=InProcess())
    check_reads(lake, *SENT)
    lake.maintenance.rebuild_index(runner=InProcess())
    check_reads(lake, *SENT)
    old = lake.table("spans", at=lake.log()[-1].id).to_arrow()
    assert (
        by_id(old)["attributes"].to_pylist()
        == by_id(a_table(a_chat(0, 1), a_chat(0, 2), a_chat(3, 5, end=9)))["attributes"].to_pylist()
    )
    ingest(lake, *SENT[:2])
    check_reads(lake, *SENT)


def test_changes_of_texts_that_are_stored_once(lake: Lake) -> None:
    """Inserted and retracted rows have all values."""
    (changes,) = lake.listen("spans", since=0, timeout_s=0)
    assert Counter(changes.rows["_change"].to_pylist()) == {1: 2, -1: 1}
    for row in changes.rows.to_pylist():
        assert dict(row["attributes"])["langfuse.trace.input"] == row["input"]


def test_erasure_of_texts_that_are_stored_once(lake: Lake) -> None:
    """Erasure by a condition on an attribute finds its traces, and leaves the spans of others exact."""
    lake.erase(where="attributes['output.value'] like 'answer 3%'")
    check_reads(lake, SENT[0], SENT[1], SENT[3])
    lake.erase(trace=SENT[0]["traceId"])
    check_reads(lake, SENT[3])


def test_outputs_of_texts_that_are_stored_once(lake: Lake) -> None:
    """An output, and a pipeline that recovers a part, read all values."""
    with spans_of(lake) as (stores, shard):
        content = NewSpans(stores.key_value, stores.objects)
        batches = [shard.batch(ref) for ref in shard.state().batches]
        sent = [rows for batch in batches for rows in content.tables(batch)]
        assert sum(content.encode(rows).count(SECRET.encode()) for rows in sent) == 2 * (3 + 2)
        for part in batches[0].parts:
            pieces = run_restage_task(RestageTask(stores.objects.url, part, "staging/test/"))
            for piece in pieces:
                rows = read_stream(stores.objects, piece).slice(piece.first, piece.rows)
                assert all(SECRET in str(row) for row in rows["attributes"].to_pylist())
