"""A searcher that compares meanings, beside the one of words: the same conditions, pages, totals and facets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import tantivy

from tracelake.limits import SEMANTIC_RESULTS_KEPT
from tracelake.search.analyzers import Analyzer
from tracelake.search.facets import Counted, Only, RawFacet, check, count, only
from tracelake.search.grammar import Everything, Node
from tracelake.search.likeness import TextsOf, alike_in
from tracelake.search.live import NOBODY, RowIds
from tracelake.search.meaning import Meant, meant
from tracelake.search.opening import Opened
from tracelake.search.raw_hits import RawHit, raw_hit
from tracelake.search.semantic import Mode, Ranked, Vector, Vectors, ranked
from tracelake.search.stumbling import blame
from tracelake.search.syntax import compiled, only_of, tree


@dataclass(frozen=True, slots=True)
class Asked:
    """One search by meaning."""

    query: str
    mode: Mode
    vector: Vector | None
    service: str | None
    now_ns: int
    workspace: str | None = None

    @property
    def only(self) -> Only:
        """What its spans have in common."""
        return only(service=self.service, workspace=self.workspace)


class ByMeaning:
    """Searches by meaning at one manifest. It never changes, and any number of threads may use it."""

    def __init__(
        self, opened: Opened, vectors: Vectors, texts_of: TextsOf | None, analyzer: Analyzer
    ) -> None:
        self._opened = opened
        self._vectors = vectors
        self._texts_of = texts_of
        self._analyzer = analyzer
        # The pages of one search, and its facets, are cut from the same order.
        self._ranked = lru_cache(SEMANTIC_RESULTS_KEPT)(self._rank)

    def search(self, asked: Asked, limit: int, offset: int) -> list[RawHit]:
        """Return hits `offset` to `offset + limit`, in order."""
        whole = self._ranked(asked)
        page = whole.rows[offset : offset + limit]
        searcher = self._opened.searcher
        if not page:
            return []
        these = tantivy.Query.term_set_query(self._opened.index.schema, "row", list(page))
        hits = searcher.search(these, len(page), count=False, order_by_field="row").hits
        addresses = {int(row): address for row, address in hits}
        scores = whole.scores[offset : offset + limit]
        return [
            raw_hit(searcher, score, addresses[row])
            for row, score in zip(page, scores, strict=True)
            if row in addresses
        ]

    def count(self, asked: Asked, facets: Sequence[str]) -> Counted:
        """Return how many spans the result has, and facets of these."""
        check(facets)
        rows = self._ranked(asked).rows
        if not rows:
            return Counted(0, {name: RawFacet((), 0) for name in facets})
        if not facets and not asked.only:
            return Counted(len(rows), {})
        these = tantivy.Query.term_set_query(self._opened.index.schema, "row", list(rows))
        return count(self._opened.searcher, these, facets, asked.only)

    def _rank(self, asked: Asked) -> Ranked:
        index = self._opened.index
        alike = alike_in(index.schema, self._opened.searcher, self._texts_of, self._analyzer, asked.workspace)

        def query_of(node: Node) -> tantivy.Query | None:
            query = compiled(index, node, asked.now_ns, alike, self._analyzer)
            for field, value in asked.only:
                query = None if query is None else only_of(index, query, field, value)
            return query

        try:
            node = tree(asked.query)
            parts = meant(node)
            if (
                asked.vector is not None
            ):  # words are conditions then: there is something to compare with already
                parts = Meant("", None, None if isinstance(node, Everything) else node)
            if parts.condition is None and asked.only:
                parts = Meant(parts.text, parts.like, Everything())
            words = query_of(node) if asked.mode == "hybrid" else None
            return ranked(
                asked.mode,
                self._vectors,
                self._opened.searcher,
                index.schema,
                parts,
                asked.vector,
                words,
                query_of,
                asked.workspace,
            )
        except ValueError as error:
            raise blame(asked.query, error) from error


def rows_gone(opened: Opened) -> RowIds:
    """Return the ids of the rows whose documents are left out, sorted."""
    addresses = [
        tantivy.DocAddress(segment, document)
        for segment, documents in opened.marks.items()
        for document in documents
    ]
    if not addresses:
        return NOBODY
    return np.sort(np.array(opened.searcher.fast_field_values("row", addresses), np.int64))
