"""The generated batch."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from tracelake.demo.run import SPREAD_NS, write_batch

END_NS = 1_800_000_000_000_000_000


def spans_of(path: Path) -> list[dict[str, Any]]:
    """Return all spans of a file of OTLP JSON lines."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [
            span
            for line in file
            for resource in json.loads(line)["resourceSpans"]
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
        ]


def test_whole_traces_as_many_as_asked(tmp_path: Path) -> None:
    """The batch has at least the requested spans, with unique ids, existing parents and enclosed children."""
    written = write_batch(tmp_path / "batch.gz", 1_234, END_NS)
    spans = {(span["traceId"], span["spanId"]): span for span in spans_of(tmp_path / "batch.gz")}
    assert len(spans) == written
    assert 1_234 <= written < 1_250
    for (trace_id, _), span in spans.items():
        start, end = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
        assert END_NS - SPREAD_NS <= start <= end
        if "parentSpanId" in span:
            parent = spans[trace_id, span["parentSpanId"]]
            assert int(parent["startTimeUnixNano"]) <= start
            assert end <= int(parent["endTimeUnixNano"])
    assert any(span["status"] for span in spans.values())


def test_same_seed_same_batch(tmp_path: Path) -> None:
    """Two runs write the same spans."""
    write_batch(tmp_path / "a.gz", 300, END_NS)
    write_batch(tmp_path / "b.gz", 300, END_NS)
    assert spans_of(tmp_path / "a.gz") == spans_of(tmp_path / "b.gz")
