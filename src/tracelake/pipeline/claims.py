"""The upsert rule (docs/internals/upsert-rule.md): of all claims about a span the greatest stands.

A span is known by both ids and its workspace: claims of another workspace are about another span. Of all spans
hardly any two have both ids in common, so what claims there are is looked for by the ids, and only where they are
compared the workspace counts, too.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tracelake.otlp.schema import SPANS
from tracelake.tables.built_in import TABLE_SPANS

REVISION: Final = "tracelake.revision"
"""The attribute of a span by which its sender says which of several claims is to stand: an integer, 0 without one."""

_REVISION: Final = f"attributes['{REVISION}']"
_FILLED: Final = " + ".join(f"({field.name} is not null)::int" for field in SPANS if field.nullable)
_CONTENT: Final = ", ".join(f"'{name}': {name}" for name in SPANS.names)

_MEASURES: Final = {
    # At most 18 digits, so that all are of int64; `try_cast` alone takes 5.7 for 6.
    "revision": f"case when regexp_full_match({_REVISION}, '-?[0-9]{{1,18}}') then {_REVISION}::bigint else 0 end",
    "ended": "end_ns",
    "outcome": "case status when 'ERROR' then 2 when 'OK' then 1 else 0 end",
    "filled": _FILLED,
    "attribute_count": "coalesce(cardinality(attributes), 0)",
    "event_count": "coalesce(len(events), 0)",
    "link_count": "coalesce(len(links), 0)",
    "digest": f"sha256(to_json({{{_CONTENT}}}))",
}
"""What claims are compared by, the first that differs decides; none is ever null, of which SQL has ideas of its own."""

COLUMNS: Final = ", ".join(f"{sql} as {name}" for name, sql in _MEASURES.items())
"""SQL of the measures, out of a relation with the columns of SPANS."""
KEY: Final = ", ".join(TABLE_SPANS.key)
"""SQL of what claims have in common that are compared."""
ORDER: Final = ", ".join(f"{name} desc" for name in _MEASURES)
"""SQL of the order of claims, the one that stands first. Claims that are equal in all have the same content."""


def without_repeats(rows: pa.Table) -> npt.NDArray[np.int64] | None:
    """Return the places of rows of SPANS that say something anew, of equal ones the first.

    None where two claims about one span differ: the measures have to tell then, which take a hundred times as long.
    """
    keys = rows.select(["trace_id", "span_id"])
    order = pc.sort_indices(keys, [("trace_id", "ascending"), ("span_id", "ascending")])
    before, after = keys.take(order[:-1]), keys.take(order[1:])
    repeats = np.logical_and(*(pc.equal(before[name], after[name]).to_numpy() for name in keys.column_names))
    places = order.to_numpy()
    first, again = places[:-1][repeats], places[1:][repeats]
    if len(again) and not rows.take(first).equals(rows.take(again)):
        return None
    return np.setdiff1d(np.arange(len(rows)), again)
