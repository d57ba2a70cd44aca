"""Spans that are like another one: those of other traces that have the words which tell most of it.

The index holds no text, so tantivy cannot say by itself what is like a document: the words come from the row.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

import tantivy

from tracelake.limits import (
    LIKE_SHARE,
    LIKE_TEXT_MAX_CHARS,
    LIKE_WEIGHT_SHARE,
    LIKE_WORDS_MAX,
    LIKE_WORDS_READ_MAX,
)
from tracelake.search.analyzers import Analyzer

TextsOf: TypeAlias = Callable[[str, str, str | None], Sequence[str] | None]
"""Returns the texts of a span, by trace and span id and workspace (None for any); None where there is none."""
Alike: TypeAlias = Callable[[str, str], tantivy.Query | None]
"""Returns what finds spans like one, by trace and span id; None where there is no such span."""
SPAN: Final = re.compile(r"([0-9a-f]{32})[- ]([0-9a-f]{16})", re.ASCII)


def likeness(
    schema: tantivy.Schema,
    searcher: tantivy.Searcher,
    trace_id: str,
    texts: Sequence[str],
    analyzer: Analyzer,
) -> tantivy.Query:
    """Return what finds spans of other traces that have enough of the words which tell most of these texts."""
    told = _telling(searcher, texts, analyzer)
    if not told:
        return tantivy.Query.empty_query()
    words = [(tantivy.Occur.Should, tantivy.Query.term_query(schema, "text", stem, "freq")) for stem in told]
    alike = tantivy.Query.boolean_query(words, max(1, round(LIKE_SHARE * len(words))))
    own = tantivy.Query.term_query(schema, "trace", trace_id, "basic")
    return tantivy.Query.boolean_query([(tantivy.Occur.Must, alike), (tantivy.Occur.MustNot, own)])


def alike_in(
    schema: tantivy.Schema,
    searcher: tantivy.Searcher,
    texts_of: TextsOf | None,
    analyzer: Analyzer,
    workspace: str | None = None,
) -> Alike:
    """Return what makes queries of likeness to spans of a workspace, by how rare words are in what a searcher has."""

    def query(trace_id: str, span_id: str) -> tantivy.Query | None:
        texts = None if texts_of is None else texts_of(trace_id, span_id, workspace)
        return None if texts is None else likeness(schema, searcher, trace_id, texts, analyzer)

    return query


def _telling(searcher: tantivy.Searcher, texts: Sequence[str], analyzer: Analyzer) -> list[str]:
    """Return the stems that are frequent in the texts and rare in the index, those first that tell most."""
    counted: Counter[str] = Counter()
    for stem in _stems(texts, analyzer):
        if stem in counted or len(counted) < LIKE_WORDS_READ_MAX:
            counted[stem] += 1
    weights = {}
    for stem, count in counted.items():
        having = searcher.doc_freq("text", stem)
        if having > 1:  # a word of this span alone finds no other
            weights[stem] = math.sqrt(count) * math.log(max(1, searcher.num_docs / having))
    # What nearly all spans have tells nothing, unless it is all that there is to tell.
    least = LIKE_WEIGHT_SHARE * max(weights.values(), default=0)
    ranked = sorted(weights, key=lambda stem: (-weights[stem], stem))
    return [stem for stem in ranked[:LIKE_WORDS_MAX] if weights[stem] >= least]


def _stems(texts: Sequence[str], analyzer: Analyzer) -> Iterator[str]:
    room = LIKE_TEXT_MAX_CHARS
    for text in texts:
        yield from (word.stem for word in analyzer.words_of(text[:room]))
        room -= min(room, len(text))
