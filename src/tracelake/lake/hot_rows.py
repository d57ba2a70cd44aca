"""Decoding stored span parts into rows of table `spans`, within a memory budget.

Each row repeats its resource and scope: a request of 1.5 MB with a large resource and a thousand small spans becomes
a gigabyte of rows. So the size is computed before the rows are built. The module also picks the winning version of
each span across both tiers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tracelake import limits
from tracelake._errors import DamageError, InputError
from tracelake.otlp.columns import SpanColumns, of_workspace
from tracelake.otlp.parse import rows_bytes
from tracelake.otlp.partition import add_rows, rows_of
from tracelake.otlp.schema import SPANS
from tracelake.tables import upsert_rule
from tracelake.tables.scan import connection
from tracelake.tables.table import too_large
from tracelake.tracking.store import unpacked
from tracelake.tracking.uncommitted import StoredPart

_UNCOMMITTED_PART_GROWTH_MAX: Final = 8
"""Ratio of such rows to their OTLP; text takes two to three times."""


@dataclass(frozen=True, slots=True)
class DecodedParts:
    """Decoded spans of some parts, and the parts left out."""

    rows: pa.Table
    unread: Sequence[StoredPart]
    """Unreadable parts."""
    large: Sequence[StoredPart]
    """Parts whose rows exceed the memory budget."""


def decoded(parts: Sequence[StoredPart], room_bytes: float) -> DecodedParts:
    """Return the spans of parts, up to `room_bytes` of rows. An unreadable part does not affect the others."""
    payloads = list[tuple[StoredPart, bytes]]()
    unread, large = list[StoredPart](), list[StoredPart]()
    for part in parts:
        try:
            data = unpacked(part.trace_id, part.payload, part.size_bytes)
        except DamageError:
            unread.append(part)
            continue
        takes = rows_bytes(data)
        if takes > room_bytes or grows_much(takes, data):
            large.append(part)
        else:
            payloads.append((part, data))
            room_bytes -= takes
    try:
        batches = [rows_of(b"".join(payload for _, payload in payloads)).take()]
    except InputError:
        batches = []
        for part, payload in payloads:
            try:
                batches.append(rows_of(payload).take())
            except InputError:
                unread.append(part)
    rows = pa.Table.from_batches(batches, batches[0].schema if batches else SPANS)
    return DecodedParts(rows, unread, large)


def add_part(
    part: StoredPart,
    columns: SpanColumns,
    room_bytes: float,
    *,
    spread: bool = True,
    workspace: str | None = None,
) -> None:
    """Add the spans of a part to `columns`. If the rows are large and a `workspace` is given, add only that
    workspace's spans.

    Raises LimitError if its rows do not fit, or if they grow much and `spread` is false. Raises DamageError if the
    part is unreadable. Some rows may have been added before an error.
    """
    data = unpacked(part.trace_id, part.payload, part.size_bytes)
    takes = rows_bytes(data)
    if workspace is not None and columns.approx_bytes + takes > limits.LARGE_TRACE_ROWS_BYTES:
        data = of_workspace(data, workspace)
        takes = rows_bytes(data)
    if columns.approx_bytes + takes > room_bytes or (grows_much(takes, data) and not spread):
        raise too_large(part.trace_id)
    try:
        add_rows(data, columns)
    except InputError as error:
        raise DamageError(
            f"the spans of trace {part.trace_id} in the tracking store cannot be read: {error}; restore the database"
        ) from error


def holds_span(part: StoredPart, span_id: str) -> bool:
    """Whether a part may hold a span: its bytes have the id, be it as the id of a span, a parent or a link.

    Raises DamageError.
    """
    return bytes.fromhex(span_id) in unpacked(part.trace_id, part.payload, part.size_bytes)


def grows_much(rows_bytes: int, data: bytes) -> bool:
    """Return whether lists and searches leave a part to the pipeline, regardless of free memory, which other calls
    need too."""
    return rows_bytes > max(limits.UNCOMMITTED_PART_ROWS_MAX_BYTES, _UNCOMMITTED_PART_GROWTH_MAX * len(data))


def cannot_be_read(traces: int) -> str:
    """Return the message for results that lack the spans of unreadable traces."""
    return f"the spans of {traces:,} traces in the tracking store cannot be read: run `tracelake verify`"


def are_large(traces: int) -> str:
    """Return the message for results that lack spans because their rows take too much memory."""
    return (
        f"spans of {traces:,} traces have large resources, and are searched once the pipeline has taken them: search "
        "again, or start it (`tracelake pipeline run`)"
    )


def latest_versions(claimed: Collection[pa.Table]) -> pa.Table:
    """Return the winning version of each span, with the columns of SPANS."""
    rows = pa.concat_tables([table.select(SPANS.names).cast(SPANS) for table in claimed])
    places = latest_version_rows(rows)
    return rows if len(places) == len(rows) else rows.take(places)


def latest_version_rows(rows: pa.Table) -> npt.NDArray[np.int64]:
    """Return the positions of the winning versions in rows with the columns of SPANS. Among equals the first wins."""
    keys = upsert_rule.ids_of(rows)
    # Most traces have one version of each span. Arrow detects this in a tenth of the time.
    if len(keys.group_by(keys.column_names, use_threads=False).aggregate([])) == len(rows):
        return np.arange(len(rows))
    # Until a trace is archived, both tiers have it, usually with identical content.
    if (places := upsert_rule.drop_duplicates(rows.select(SPANS.names))) is not None:
        return places
    keys = keys.append_column("ord", pa.array(range(len(rows)), pa.int64()))
    with connection() as db:
        db.register("keys", keys)
        claimed_again = (
            f"select ord from keys qualify count(*) over (partition by {upsert_rule.IDS}) > 1 order by ord"
        )
        several = db.sql(claimed_again).to_arrow_table()["ord"]
        db.register("claimed", rows.take(several).append_column("ord", several))
        losers = db.sql(
            f"select ord from (select {upsert_rule.KEY_COLUMNS}, ord, {upsert_rule.COLUMNS} from claimed) "
            f"qualify row_number() over (partition by {upsert_rule.KEY} order by {upsert_rule.ORDER}, ord) > 1"
        ).to_arrow_table()
    return np.delete(np.arange(len(rows)), losers["ord"].to_numpy())
