"""Semantic search: finds the spans with the nearest vectors, or ranks them together with text hits (hybrid).

A result has at most `SEMANTIC_HITS_MAX` nearest spans, and as many text hits. It has pages, a total and facets like any
other result. Conditions are applied first: no ranking contains spans that do not meet them.

Hybrid rankings are combined by reciprocal rank fusion (Cormack, Clarke and Büttcher, SIGIR 2009).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import tantivy

from tracelake import limits
from tracelake._errors import QueryError
from tracelake.search import query_parser
from tracelake.search.analyzers import Analyzer
from tracelake.search.documents import RawHit, raw_hit
from tracelake.search.facets import FacetCounts, Only, RawFacet, check, count, only
from tracelake.search.inheritance import Assessments, Inheritance
from tracelake.search.lookups import Lookups, RowsWhere
from tracelake.search.model import NOBODY, RowIds
from tracelake.search.open_index import OpenedIndex
from tracelake.search.part_cache import classify_error
from tracelake.search.query_compiler import compiled, only_of, tree
from tracelake.search.similar import SPAN, TextsOf, alike_in
from tracelake.search.vector_index import Doubles, VectorBlock, nearest, vector_of
from tracelake.search.vectors import HOW, VectorSettings, call, load_embedder

_SEMANTIC_FARTHER: Final = 4
"""Growth factor of the number of nearest spans, if too few meet the conditions."""
_SEMANTIC_RESULTS_KEPT: Final = 8
"""Results of semantic searches that a searcher caches for further pages."""


def reciprocal_rank_fusion(rankings: Sequence[Sequence[int]]) -> list[tuple[int, float]]:
    """Merge rankings of rows into one; return its rows with their scores, best first.

    A row's score is the sum of 1 / (60 + rank) over the rankings that contain it. The best row of a ranking has rank 1.
    Rows with equal scores are ordered by number. 60 is the constant of the paper.
    """
    scores: defaultdict[int, float] = defaultdict(float)
    for ranking in rankings:
        for rank, row in enumerate(ranking, 1):
            scores[row] += 1 / (60 + rank)
    return sorted(scores.items(), key=lambda one: (-one[1], one[0]))


Mode: TypeAlias = Literal["text", "semantic", "hybrid"]
"""Search by words, by meaning, or by both in one ranking."""
Vector: TypeAlias = tuple[float, ...]

NO_VECTORS: Final = (
    f"this lake has no vectors to compare meanings with. {HOW} creates them, with your function or from an "
    "attribute; or search by words, with mode text."
)


@dataclass(frozen=True, slots=True)
class RankedRows:
    """Rows with their scores, best first."""

    rows: tuple[int, ...]
    scores: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Vectors:
    """Vectors of an index as of one manifest."""

    settings: VectorSettings
    blocks: Sequence[VectorBlock]
    removed: RowIds
    """Removed rows, sorted."""

    def nearest_rows(
        self,
        searcher: tantivy.Searcher,
        schema: tantivy.Schema,
        condition: tantivy.Query | None,
        vector: Doubles,
    ) -> tuple[RowIds, Doubles]:
        """Return the nearest rows that meet a condition, best first, at most `SEMANTIC_HITS_MAX`."""
        most = limits.SEMANTIC_HITS_MAX
        if condition is None:
            return nearest(self.blocks, vector, most, excluded=self.removed)
        counted: Any = searcher.search(condition, 1, count=True)
        meeting = counted.count or 0
        if meeting <= limits.SEMANTIC_FILTERED_MAX_ROWS:
            return nearest(self.blocks, vector, most, allowed=rows_of(searcher, condition, meeting))
        candidates = _SEMANTIC_FARTHER * most
        while True:
            rows, scores = nearest(self.blocks, vector, candidates, excluded=self.removed)
            these = tantivy.Query.term_set_query(schema, "row", rows.tolist())
            met = np.isin(rows, rows_of(searcher, _both(condition, these), len(rows)))
            if met.sum() >= most or len(rows) < candidates:
                return rows[met][:most], scores[met][:most]
            candidates *= _SEMANTIC_FARTHER

    def vector_of_text(self, text: str) -> Doubles:
        """Return the vector of a query text.

        Raises:
            UsageError: The function is not available here, or makes other vectors than those of the index.
            EmbeddingError: The function failed.
            QueryError: There is nothing to compare with, or the vectors come from an attribute.
        """
        if self.settings.attribute is not None:
            raise QueryError(
                f"the vectors of this lake come from {self.settings.source}, so there is no function for "
                "words; give a vector, or like: with a span, or search by words, with mode text."
            )
        vectors = call(load_embedder(self.settings), [text[: limits.EMBEDDED_TEXT_MAX_CHARS]])
        return self.checked(vectors[0].tolist())

    def checked(self, vector: Sequence[float]) -> Doubles:
        """Return a user's vector in the form that is compared. Raises QueryError if it has the wrong length or is not
        usable."""
        try:
            numbers = np.array(vector, np.float64)
        except (TypeError, ValueError, OverflowError) as error:
            raise QueryError("the vector contains a non-numeric value; give a list of numbers.") from error
        if numbers.shape != (self.settings.dimensions,):
            raise QueryError(
                f"the vector has {numbers.size} dimensions, and the index has {self.settings.dimensions}: its "
                f"vectors come from {self.settings}."
            )
        length = float(np.linalg.norm(numbers))
        if not 0 < length < float(np.finfo(np.float32).max):
            raise QueryError("the vector is all zeros, or contains NaN or infinity; it cannot be compared.")
        return numbers / length if self.settings.metric == "cosine" else numbers

    def vector_of_span(
        self,
        searcher: tantivy.Searcher,
        schema: tantivy.Schema,
        like: query_parser.Text,
        workspace: str | None,
    ) -> Doubles:
        """Return the vector of a span, by its two ids and its workspace. Raises QuerySyntaxError if it has none."""
        ids = SPAN.fullmatch(like.text.lower())
        if ids is None:
            raise query_parser.QuerySyntaxError(
                like.place, "like: needs a span, written as its trace id and its span id with - between"
            )
        here = only(service=None, workspace=workspace)
        of_trace = tantivy.Query.term_query(schema, "trace", ids[1], "basic")
        for row, address in searcher.search(of_trace, searcher.num_docs, order_by_field="row").hits:
            if searcher.doc(address)["id"][0][16:24].hex() == ids[2]:
                vector = vector_of(self.blocks, int(row))
                # Each workspace that sends the same ids has a separate row (W11).
                this = tantivy.Query.term_set_query(schema, "row", [int(row)])
                if vector is not None and count(searcher, this, (), here).total:
                    return self.checked(vector.tolist())
        raise query_parser.QuerySyntaxError(
            like.place, f"the span {like.text} is not here, or has no vector; copy both ids from a hit"
        )


def rank_rows(
    mode: Mode,
    vectors: Vectors,
    searcher: tantivy.Searcher,
    schema: tantivy.Schema,
    semantic_query: query_parser.SemanticQuery,
    vector: Vector | None,
    words: tantivy.Query | None,
    compiled: Callable[[query_parser.Node], tantivy.Query | None],
    workspace: str | None = None,
) -> RankedRows:
    """Return the rows that a semantic search finds, with their scores, best first.

    Rows are compared with `vector`, else with the span of the query's `like:`, else with the text of the query. The
    trace of a `like:` span is left out. Mode `semantic` ranks by similarity. Mode `hybrid` merges that ranking with the
    one of the text search by reciprocal rank fusion.

    Args:
        words: The complete query, compiled for the text search of mode `hybrid`.
        compiled: Compiles a condition.
        workspace: The workspace in which the span of `like:` is looked up; None for any.

    Raises:
        QueryError: There is nothing to compare with, the vector is unusable, or the `like:` span has none.
        UsageError: The embedding function is not available here.
        EmbeddingError: The embedding function failed.
    """
    own: tantivy.Query | None = None
    if vector is not None:
        target = vectors.checked(vector)
    elif semantic_query.like is not None:
        target = vectors.vector_of_span(searcher, schema, semantic_query.like, workspace)
        trace = semantic_query.like.text.lower()[:32]
        own = tantivy.Query.term_query(schema, "trace", trace, "basic")
    elif semantic_query.text.strip():
        target = vectors.vector_of_text(semantic_query.text)
    else:
        raise QueryError("there is nothing to compare with: add words to the conditions, a vector, or like:.")
    condition = None if semantic_query.condition is None else compiled(semantic_query.condition)
    if own is not None:
        everything = condition or tantivy.Query.all_query()
        condition = tantivy.Query.boolean_query(
            [(tantivy.Occur.Must, everything), (tantivy.Occur.MustNot, own)]
        )
    rows, scores = vectors.nearest_rows(searcher, schema, condition, target)
    if mode == "semantic":
        return RankedRows(tuple(rows.tolist()), tuple(scores.tolist()))
    hits = [] if words is None else searcher.search(words, limits.SEMANTIC_HITS_MAX, count=False).hits
    of_words = searcher.fast_field_values("row", [address for _, address in hits]) if hits else []
    together = reciprocal_rank_fusion([[int(row) for row in of_words if row is not None], rows.tolist()])
    return RankedRows(tuple(row for row, _ in together), tuple(score for _, score in together))


def rows_of(searcher: tantivy.Searcher, query: tantivy.Query, most: int) -> RowIds:
    """Return the ids of the rows that a query finds, sorted."""
    if most < 1:
        return NOBODY
    hits = searcher.search(query, most, count=False, order_by_field="row").hits
    return np.sort(np.array([row for row, _ in hits], np.int64))


def _both(one: tantivy.Query, other: tantivy.Query) -> tantivy.Query:
    return tantivy.Query.boolean_query([(tantivy.Occur.Must, one), (tantivy.Occur.Must, other)])


@dataclass(frozen=True, slots=True)
class SemanticRequest:
    """Request for a semantic search."""

    query: str
    mode: Mode
    vector: Vector | None
    service: str | None
    now_ns: int
    workspace: str | None = None

    @property
    def only(self) -> Only:
        """The field values to which the request is restricted."""
        return only(service=self.service, workspace=self.workspace)


class SemanticSearch:
    """Semantic search at one manifest. It is immutable and safe to share between threads."""

    def __init__(
        self,
        opened: OpenedIndex,
        vectors: Vectors,
        texts_of: TextsOf | None,
        analyzer: Analyzer,
        rows_where: RowsWhere | None = None,
        assessments: Assessments | None = None,
    ) -> None:
        self._opened = opened
        self._vectors = vectors
        self._texts_of = texts_of
        self._analyzer = analyzer
        self._rows_where = rows_where
        self._assessments = assessments
        # Cached because the pages and facets of a search are taken from the same ranking.
        self._ranked = lru_cache(_SEMANTIC_RESULTS_KEPT)(self._rank)

    def search(self, request: SemanticRequest, limit: int, offset: int) -> list[RawHit]:
        """Return up to `limit` hits from `offset` on, best first."""
        ranking = self._ranked(request)
        page = ranking.rows[offset : offset + limit]
        searcher = self._opened.searcher
        if not page:
            return []
        these = tantivy.Query.term_set_query(self._opened.index.schema, "row", list(page))
        hits = searcher.search(these, len(page), count=False, order_by_field="row").hits
        addresses = {int(row): address for row, address in hits}
        scores = ranking.scores[offset : offset + limit]
        return [
            raw_hit(searcher, score, addresses[row])
            for row, score in zip(page, scores, strict=True)
            if row in addresses
        ]

    def count(self, request: SemanticRequest, facets: Sequence[str]) -> FacetCounts:
        """Return the number of spans in the result and their facets."""
        check(facets)
        rows = self._ranked(request).rows
        if not rows:
            return FacetCounts(0, {name: RawFacet((), 0) for name in facets})
        if not facets and not request.only:
            return FacetCounts(len(rows), {})
        these = tantivy.Query.term_set_query(self._opened.index.schema, "row", list(rows))
        return count(self._opened.searcher, these, facets, request.only)

    def _rank(self, request: SemanticRequest) -> RankedRows:
        index = self._opened.index
        alike = alike_in(
            index.schema, self._opened.searcher, self._texts_of, self._analyzer, request.workspace
        )

        inheritance = Inheritance(index, self._opened.searcher, request.workspace, self._assessments)
        lookups = Lookups(alike, inheritance.query, self._rows_where, inheritance.assessed, inheritance.spans)

        def query_of(node: query_parser.Node) -> tantivy.Query | None:
            query = compiled(index, node, request.now_ns, lookups, self._analyzer)
            for field, value in request.only:
                query = None if query is None else only_of(index, query, field, value)
            return query

        try:
            node = tree(request.query)
            parts = query_parser.split_semantic(node)
            # words become conditions, because the vector is what to compare with already
            if request.vector is not None:
                parts = query_parser.SemanticQuery(
                    "", None, None if isinstance(node, query_parser.Everything) else node
                )
            if parts.condition is None and request.only:
                parts = query_parser.SemanticQuery(parts.text, parts.like, query_parser.Everything())
            words = query_of(node) if request.mode == "hybrid" else None
            return rank_rows(
                request.mode,
                self._vectors,
                self._opened.searcher,
                index.schema,
                parts,
                request.vector,
                words,
                query_of,
                request.workspace,
            )
        except ValueError as error:
            raise classify_error(request.query, error) from error


def omitted_rows(opened: OpenedIndex) -> RowIds:
    """Return the row ids of omitted documents, sorted."""
    addresses = [
        tantivy.DocAddress(segment, document)
        for segment, documents in opened.marks.items()
        for document in documents
    ]
    if not addresses:
        return NOBODY
    return np.sort(np.array(opened.searcher.fast_field_values("row", addresses), np.int64))
