"""A trace that is read whole: all its rows, as far as they fit into memory, and the errors where it cannot be."""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa

from tracelake._errors import LimitError, NotFoundError
from tracelake.limits import LARGE_TRACE_ROWS_BYTES, TRACE_ROWS_MAX_BYTES
from tracelake.otlp.schema import SPANS
from tracelake.search.live import RowIds
from tracelake.shards.rows import ROW_ID
from tracelake.tables.large_reads import begin_large_read
from tracelake.tables.table import Table
from tracelake.tables.workspaces import within


def whole(spans: Table, trace_id: str, workspace: str | None = None) -> pa.Table:
    """Return the spans of a trace as they were sent, in one workspace or in all: those of others take no memory.

    Raises LimitError where their rows take too much memory, BackPressureError where they take much, and others do.
    """
    few_bytes = min(LARGE_TRACE_ROWS_BYTES, TRACE_ROWS_MAX_BYTES)
    with suppress(LimitError):
        return within(spans.lookup([trace_id], SPANS.names, few_bytes), workspace)
    columns, own = SPANS.names, None
    if workspace is not None:
        columns = [*SPANS.names, ROW_ID.name]
        own = within(spans.lookup([trace_id], ["workspace", ROW_ID.name]), workspace)[ROW_ID.name].to_numpy()
        with suppress(LimitError):
            return spans.lookup([trace_id], columns, few_bytes, own).select(SPANS.names)
    begin_large_read()
    try:
        return spans.lookup([trace_id], columns, TRACE_ROWS_MAX_BYTES, own).select(SPANS.names)
    except LimitError as error:
        raise too_large(trace_id) from error


def read_rows(spans: Table, trace_id: str, row_ids: RowIds) -> pa.Table:
    """Return some spans of a trace, by their row ids. Raises as `whole` does."""
    columns = [*SPANS.names, ROW_ID.name]
    few_bytes = min(LARGE_TRACE_ROWS_BYTES, TRACE_ROWS_MAX_BYTES)
    with suppress(LimitError):
        return spans.lookup([trace_id], columns, few_bytes, row_ids).select(SPANS.names)
    begin_large_read()
    try:
        return spans.lookup([trace_id], columns, TRACE_ROWS_MAX_BYTES, row_ids).select(SPANS.names)
    except LimitError as error:
        raise too_large(trace_id) from error


def too_large(trace_id: str) -> LimitError:
    """Return the error for a trace that is not read whole."""
    return LimitError(
        f"the rows of trace {trace_id} take more than {TRACE_ROWS_MAX_BYTES:,} bytes, with resource and scope at each "
        "of its spans; read columns of it by SQL, such as "
        f"`select span_id, name, duration_ns from spans where trace_id = '{trace_id}'`"
    )


def no_trace(trace_id: str) -> NotFoundError:
    """Return the error for a trace that is not there."""
    return NotFoundError(f"no trace {trace_id!r} in this lake. `tracelake search` finds ids by text.")
