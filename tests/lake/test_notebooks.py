"""Objects in a notebook: short texts, escaped HTML, pandas frames, and completion without internals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import tracelake
from tests.pipeline.spans import a_line, a_span
from tracelake import Lake
from tracelake.tasks.runners import InProcess

TRACE_ID = f"{1:032x}"
HOSTILE = "<script>refund</script>"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """Return a lake with a trace of two spans: a parent, and a child whose name is markup."""
    folder = tmp_path_factory.mktemp("notebook")
    spans = [a_span(0, 0), a_span(0, 1, name=HOSTILE, parentSpanId=f"{1:016x}")]
    (folder / "spans.jsonl").write_bytes(a_line(*spans, service="shop"))
    with tracelake.init(folder / "lake", buckets=2) as opened:
        opened.ingest(folder / "spans.jsonl", runner=InProcess())
        yield opened


def objects(lake: Lake) -> dict[str, Any]:
    """Return each object that a notebook shows as HTML."""
    return {"table": lake.table("spans"), "trace": lake.trace(TRACE_ID), "hits": lake.search("refund")}


def test_texts_are_short(lake: Lake) -> None:
    """A lake, a table and a trace say what they are in one short line, whatever they contain."""
    assert repr(lake) == f"Lake({lake.place!r})"
    assert repr(lake.table("traces")).startswith("Table('traces', ")
    assert repr(lake.trace(TRACE_ID)) == f"Trace({TRACE_ID!r}, 2 spans)"


def test_html_escapes_texts_of_spans(lake: Lake) -> None:
    """HTML has the rows, and no markup of a span's name."""
    shown = {name: each._repr_html_() for name, each in objects(lake).items()}
    assert not [name for name, html in shown.items() if "<script" in html]
    assert "2 rows" in shown["table"]
    assert "<td>trace_id</td><td>string</td>" in shown["table"]
    assert shown["trace"].count("<tr>") == 2
    assert "padding-left:1em" in shown["trace"]
    for name in ("trace", "hits"):
        assert "&lt;script&gt;" in shown[name]
    assert "1 of 1 spans" in shown["hits"]
    assert "<table>" in lake.search("nothing")._repr_html_()
    assert "0 spans" in tracelake.Trace("0" * 32, {}, ())._repr_html_()


def test_objects_become_pandas_frames(lake: Lake) -> None:
    """A table, a trace and hits become frames with a row for each span and a column for each field."""
    frames = {name: each.to_pandas() for name, each in objects(lake).items()}
    assert {name: len(frame) for name, frame in frames.items()} == {"table": 2, "trace": 2, "hits": 1}
    assert set(frames["table"].columns) == set(lake.table("spans").schema.names)
    assert frames["hits"]["name"].to_list() == [HOSTILE]
    assert sorted(frames["trace"]["name"]) == sorted(frames["table"]["name"])
    assert lake.table("spans").to_pandas(["name"], limit=1).shape == (1, 1)
    empty = lake.search("nothing").to_pandas()
    assert (len(empty), "trace_id" in empty.columns) == (0, True)


def test_dir_lists_what_users_call(lake: Lake) -> None:
    """Completion has the public names, also of modules that are not imported yet, and no internals."""
    assert set(tracelake.__all__) <= set(dir(tracelake))
    assert {"_LAZY", "annotations", "lake"}.isdisjoint(dir(tracelake))
    of_table = {
        "to_arrow",
        "to_pandas",
        "to_polars",
        "to_duckdb",
        "to_spark",
        "files",
        "info",
        "name",
        "schema",
        "sql",
    }
    for one, wanted in (
        (lake, {"sql", "search", "trace", "table", "datasets", "annotations", "ingest"}),
        (lake.within("default"), {"sql", "search", "trace", "annotations", "workspace", "url", "audit"}),
        (lake.table("spans"), of_table),
    ):
        shown = {name for name in dir(one) if not name.startswith("__")}
        assert wanted <= shown
        assert not [name for name in shown if name.startswith("_")]
        assert {"objects", "scan", "config"}.isdisjoint(shown)
        assert all(getattr(type(one), name, None) is not None or hasattr(one, name) for name in shown)
    assert "ingest" not in dir(lake.within("default"))
    assert {name for name in dir(lake.table("spans")) if not name.startswith("__")} == of_table
