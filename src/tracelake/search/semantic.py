"""Search by meaning: the spans whose vectors are nearest, and those ranked together with hits of words.

A result has at most `SEMANTIC_HITS_MAX` spans of either kind: it has pages, a total and facets as any other, but ends
where likeness does. Conditions come first: spans that do not meet them are in no ranking.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import tantivy

from tracelake import limits
from tracelake._errors import QueryError
from tracelake.limits import SEMANTIC_FARTHER
from tracelake.search.embedder import call, load_for
from tracelake.search.facets import count, only
from tracelake.search.fusion import fused
from tracelake.search.grammar import Node, Refused, Text
from tracelake.search.likeness import SPAN
from tracelake.search.live import NOBODY, RowIds
from tracelake.search.meaning import Meant
from tracelake.search.nearest import Doubles, nearest, vector_of
from tracelake.search.vector_block import VectorBlock
from tracelake.search.vectors import HOW, VectorSettings

Mode: TypeAlias = Literal["text", "semantic", "hybrid"]
"""By words, by meaning, or ranked by both."""
Vector: TypeAlias = tuple[float, ...]

NO_VECTORS: Final = (
    f"this lake has no vectors to compare meanings with. {HOW} makes them, with a function of yours or "
    "of an attribute; or search by words, with mode text."
)


@dataclass(frozen=True, slots=True)
class Ranked:
    """Rows in order, best first, each with its score."""

    rows: tuple[int, ...]
    scores: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Vectors:
    """The vectors of an index as of one manifest, beside the searcher of its texts."""

    settings: VectorSettings
    blocks: Sequence[VectorBlock]
    gone: RowIds
    """Rows that are not there any more, sorted."""

    def near(
        self,
        searcher: tantivy.Searcher,
        schema: tantivy.Schema,
        condition: tantivy.Query | None,
        vector: Doubles,
    ) -> tuple[RowIds, Doubles]:
        """Return the nearest rows that meet a condition, best first, at most `SEMANTIC_HITS_MAX`."""
        most = limits.SEMANTIC_HITS_MAX
        if condition is None:
            return nearest(self.blocks, vector, most, gone=self.gone)
        counted: Any = searcher.search(condition, 1, count=True)
        meeting = counted.count or 0
        if meeting <= limits.SEMANTIC_FILTERED_MAX_ROWS:
            return nearest(self.blocks, vector, most, allowed=rows_of(searcher, condition, meeting))
        asked = SEMANTIC_FARTHER * most
        while True:
            rows, scores = nearest(self.blocks, vector, asked, gone=self.gone)
            these = tantivy.Query.term_set_query(schema, "row", rows.tolist())
            met = np.isin(rows, rows_of(searcher, _both(condition, these), len(rows)))
            if met.sum() >= most or len(rows) < asked:
                return rows[met][:most], scores[met][:most]
            asked *= SEMANTIC_FARTHER

    def vector_of_text(self, text: str) -> Doubles:
        """Return the vector of a text that is searched for.

        Raises:
            UsageError: The function is not here, or makes other vectors than the index has.
            EmbeddingError: It failed.
            QueryError: There is nothing to compare with, or the vectors come from an attribute.
        """
        if self.settings.attribute is not None:
            raise QueryError(
                f"the vectors of this lake come from {self.settings.source}, and no function makes one of words; "
                "give a vector, or like: with a span, or search by words, with mode text."
            )
        vectors = call(load_for(self.settings), [text[: limits.EMBEDDED_TEXT_MAX_CHARS]])
        return self.checked(vectors[0].tolist())

    def checked(self, vector: Sequence[float]) -> Doubles:
        """Return a vector ready to compare with. Raises QueryError for one that is none."""
        try:
            numbers = np.array(vector, np.float64)
        except (TypeError, ValueError, OverflowError) as error:
            raise QueryError("the vector holds what is no number; give a list of numbers.") from error
        if numbers.shape != (self.settings.dimensions,):
            raise QueryError(
                f"the vector has {numbers.size} numbers, and those of the index have {self.settings.dimensions}: "
                f"they are by {self.settings}."
            )
        length = float(np.linalg.norm(numbers))
        if not 0 < length < float(np.finfo(np.float32).max):
            raise QueryError(
                "the vector is all zeros, or has numbers that are none; there is nothing to compare."
            )
        return numbers / length if self.settings.metric == "cosine" else numbers

    def vector_of_span(
        self, searcher: tantivy.Searcher, schema: tantivy.Schema, like: Text, workspace: str | None
    ) -> Doubles:
        """Return the vector of a span, by both of its ids and its workspace. Raises Refused where it has none."""
        ids = SPAN.fullmatch(like.text.lower())
        if ids is None:
            raise Refused(like.place, "like: takes a span, as its trace id and its span id with - between")
        here = only(service=None, workspace=workspace)
        of_trace = tantivy.Query.term_query(schema, "trace", ids[1], "basic")
        for row, address in searcher.search(of_trace, searcher.num_docs, order_by_field="row").hits:
            if searcher.doc(address)["id"][0][16:24].hex() == ids[2]:
                vector = vector_of(self.blocks, int(row))
                # Workspaces that send the same ids have a row each (W11).
                this = tantivy.Query.term_set_query(schema, "row", [int(row)])
                if vector is not None and count(searcher, this, (), here).total:
                    return self.checked(vector.tolist())
        raise Refused(
            like.place, f"the span {like.text} is not here, or has no vector; take both ids of a hit"
        )


def ranked(
    mode: Mode,
    vectors: Vectors,
    searcher: tantivy.Searcher,
    schema: tantivy.Schema,
    asked: Meant,
    vector: Vector | None,
    words: tantivy.Query | None,
    compiled: Callable[[Node], tantivy.Query | None],
    workspace: str | None = None,
) -> Ranked:
    """Return the rows that a search by meaning finds, in order.

    Args:
        mode: `semantic`, or `hybrid`, which ranks them together with hits of words.
        vectors: those of the index.
        searcher: the searcher of its texts.
        schema: that of the searcher.
        asked: the query in its parts.
        vector: what to compare with, instead of the words.
        words: the whole query, for its hits; of hybrid searches only.
        compiled: makes a query of a condition.
        workspace: of which a span must be to compare with it.
    """
    own: tantivy.Query | None = None
    if vector is not None:
        target = vectors.checked(vector)
    elif asked.like is not None:
        target = vectors.vector_of_span(searcher, schema, asked.like, workspace)
        trace = asked.like.text.lower()[:32]
        own = tantivy.Query.term_query(schema, "trace", trace, "basic")
    elif asked.text.strip():
        target = vectors.vector_of_text(asked.text)
    else:
        raise QueryError(
            "there is nothing to compare with: give words beside the conditions, a vector, or like:."
        )
    condition = None if asked.condition is None else compiled(asked.condition)
    if own is not None:
        everything = condition or tantivy.Query.all_query()
        condition = tantivy.Query.boolean_query(
            [(tantivy.Occur.Must, everything), (tantivy.Occur.MustNot, own)]
        )
    rows, scores = vectors.near(searcher, schema, condition, target)
    if mode == "semantic":
        return Ranked(tuple(rows.tolist()), tuple(scores.tolist()))
    hits = [] if words is None else searcher.search(words, limits.SEMANTIC_HITS_MAX, count=False).hits
    of_words = searcher.fast_field_values("row", [address for _, address in hits]) if hits else []
    together = fused([[int(row) for row in of_words if row is not None], rows.tolist()])
    return Ranked(tuple(row for row, _ in together), tuple(score for _, score in together))


def rows_of(searcher: tantivy.Searcher, query: tantivy.Query, most: int) -> RowIds:
    """Return the ids of the rows that a query finds, sorted."""
    if most < 1:
        return NOBODY
    hits = searcher.search(query, most, count=False, order_by_field="row").hits
    return np.sort(np.array([row for row, _ in hits], np.int64))


def _both(one: tantivy.Query, other: tantivy.Query) -> tantivy.Query:
    return tantivy.Query.boolean_query([(tantivy.Occur.Must, one), (tantivy.Occur.Must, other)])
