"""The upsert rule (docs/internals/upsert-rule.md): of all claims about a span, the greatest wins.

The key of a span is both ids, its workspace and its side. Kinds SERVER and CONSUMER are the server side, all others the
client side: with Zipkin's B3 headers both sides of a call share one span id. A claim is one received version of a span;
claims with different keys are about different spans. Few spans share both ids and the side, so repeats are found by
these, and the workspace matters only when claims are compared.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tracelake.otlp.schema import IS_SERVER_SQL, SPANS, SPANS_ADDED
from tracelake.results import SERVER_KINDS
from tracelake.tables.builtin import TABLE_SPANS

REVISION: Final = "tracelake.revision"
"""The span attribute by which a sender sets the precedence of a version: an integer, 0 if missing."""

_REVISION: Final = f"attributes['{REVISION}']"
_SENT: Final = [field for field in SPANS if field.name not in SPANS_ADDED]
"""Later columns only repeat attributes in another form. Compared, they would make each release and each price table
replace spans that arrive again unchanged."""
_FILLED: Final = " + ".join(f"({field.name} is not null)::int" for field in _SENT if field.nullable)
_CONTENT: Final = ", ".join(f"'{field.name}': {field.name}" for field in _SENT)

_MEASURES: Final = {
    # At most 18 digits fit into int64. `try_cast` alone would turn 5.7 into 6.
    "revision": f"case when regexp_full_match({_REVISION}, '-?[0-9]{{1,18}}') then {_REVISION}::bigint else 0 end",
    "ended": "end_ns",
    "outcome": "case status when 'ERROR' then 2 when 'OK' then 1 else 0 end",
    "filled": _FILLED,
    "attribute_count": "coalesce(cardinality(attributes), 0)",
    "event_count": "coalesce(len(events), 0)",
    "link_count": "coalesce(len(links), 0)",
    "digest": f"sha256(to_json({{{_CONTENT}}}))",
}
"""The measures that compare versions; the first difference decides. They are never null, to avoid SQL's null
semantics."""

COLUMNS: Final = ", ".join(f"{sql} as {name}" for name, sql in _MEASURES.items())
"""SQL of the measures over a relation with the columns of SPANS."""
SIDE: Final = "is_server"
KEY: Final = f"trace_id, span_id, workspace, {SIDE}"
"""Names of the key columns of claims that are compared."""
KEY_COLUMNS: Final = f"{', '.join(TABLE_SPANS.key_sql)} as {SIDE}"
"""SQL of the key columns, for a relation with the columns of SPANS."""
IDS: Final = f"trace_id, span_id, {SIDE}"
ID_COLUMNS: Final = f"trace_id, span_id, {IS_SERVER_SQL} as {SIDE}"
"""SQL of the columns by which repeats are found: the key without the workspace."""
ORDER: Final = ", ".join(f"{name} desc" for name in _MEASURES)
"""SQL of the order of versions, the winner first. Versions that are equal in all measures have the same content."""


def ids_of(rows: pa.Table) -> pa.Table:
    """Return the columns by which repeats are found, computed from rows with the columns of SPANS."""
    is_server = pc.is_in(rows["kind"], pa.array(SERVER_KINDS))
    return rows.select(["trace_id", "span_id"]).append_column(SIDE, is_server)


def drop_duplicates(rows: pa.Table) -> npt.NDArray[np.int64] | None:
    """Return the indices of rows of SPANS without exact duplicates; the first of equal rows stays.

    Returns None if two versions of one span differ. The caller must then rank the claims, which takes a hundred times
    as long.
    """
    keys = ids_of(rows)
    order = pc.sort_indices(keys, [(name, "ascending") for name in keys.column_names])
    before, after = keys.take(order[:-1]), keys.take(order[1:])
    repeats = np.logical_and(*(pc.equal(before[name], after[name]).to_numpy() for name in keys.column_names))
    places = order.to_numpy()
    first, again = places[:-1][repeats], places[1:][repeats]
    if len(again) and not rows.take(first).equals(rows.take(again)):
        return None
    return np.setdiff1d(np.arange(len(rows)), again)
