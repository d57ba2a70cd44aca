"""Small OTLP inputs for pipeline tests: a span is (trace, span, end, and other fields that matter)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa

from tracelake.otlp.columns import SpanColumns
from tracelake.otlp.decode import decode_json

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"
AGENTS = SHARED / "agents.otlp.jsonl.gz"
MICROSERVICES = SHARED / "microservices.otlp.jsonl.gz"


def a_span(
    trace: int, span: int, *, end: int = 10, start: int = 1, note: str | None = None, **fields: Any
) -> dict[str, Any]:
    """Return a span as OTLP JSON; `note` is an attribute that distinguishes versions, `fields` are OTLP's."""
    if note is not None:
        fields["attributes"] = [{"key": "note", "value": {"stringValue": note}}]
    return {
        "traceId": f"{trace + 1:032x}",
        "spanId": f"{span + 1:016x}",
        "name": "work",
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(end),
        **fields,
    }


def a_line(*spans: dict[str, Any], service: str = "shop", workspace: str = "") -> bytes:
    """Return one TracesData line with these spans."""
    names = {"service.name": service, "tracelake.workspace": workspace}
    resource = {
        "attributes": [{"key": key, "value": {"stringValue": name}} for key, name in names.items() if name]
    }
    return json.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": spans}]}]}).encode()


def a_table(*spans: dict[str, Any], workspace: str = "") -> pa.Table:
    """Return the rows of these spans as the merge's input."""
    columns = SpanColumns()
    decoded = decode_json(a_line(*spans, workspace=workspace), columns)
    assert decoded.rejected == 0, decoded.reasons
    return pa.Table.from_batches([columns.take()])
