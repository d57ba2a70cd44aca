"""The texts of spans, as rows of table `spans` have them: for excerpts of hits, and for spans that others are like."""

from __future__ import annotations

from typing import Final

from tracelake.results import Row
from tracelake.search.documents import document_text
from tracelake.tables.newer import NewerRows
from tracelake.tables.table import Table, to_rows
from tracelake.tables.workspaces import within

TEXT_COLUMNS: Final = ("input", "output", "status_message", "attributes", "events")


def texts_of(
    spans: Table, newer: NewerRows | None, trace_id: str, span_id: str, workspace: str | None
) -> list[str] | None:
    """Return the texts of a span, None where there is none in the workspace.

    If a client and a server span share the id, the texts of both are returned.
    """
    columns = ["span_id", "workspace", *TEXT_COLUMNS]
    rows = [] if newer is None else to_rows(within(newer.of_span(trace_id, span_id, columns), workspace))
    rows = rows or to_rows(within(spans.lookup([trace_id], columns), workspace))
    its = [row for row in rows if row["span_id"] == span_id]
    if not its:
        return None
    both = [row for row in its if row["workspace"] == its[0]["workspace"]]
    return [text for row in both for text in document_text(row)]


def texts_to_show(row: Row) -> list[str]:
    """Return the texts that an excerpt is cut from, those first from which it is where nothing matches."""
    texts = (row[column] for column in ("output", "input", "status_message", "name"))
    return [*(text for text in texts if text), *document_text(row)]
