"""What the index says of a hit, before its row is read."""

from __future__ import annotations

from dataclasses import dataclass

import tantivy

from tracelake.search import fields


@dataclass(frozen=True, slots=True)
class RawHit:
    """One row of table `spans` that matches: ids in lower-case hex, and the transaction of the row."""

    trace_id: str
    span_id: str
    transaction: int
    score: float
    """0 where hits are sorted by time."""


def raw_hit(searcher: tantivy.Searcher, score: float, address: tantivy.DocAddress) -> RawHit:
    """Return the hit of a document."""
    stored: bytes = searcher.doc(address)["id"][0]
    trace_id, span_id, transaction = fields.decode_id(stored)
    return RawHit(trace_id, span_id, transaction, score)
