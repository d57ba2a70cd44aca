"""More-like-this: finds spans of other traces that share the most characteristic words of a span.

The index stores no text, so tantivy cannot find similar documents by itself. The words come from the table row.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

import tantivy

from tracelake.search.analyzers import Analyzer

_LIKE_WORDS_MAX: Final = 25
"""Words for a more-like-this search, the most distinctive."""
_LIKE_WORDS_READ_MAX: Final = 500
"""Distinct words of a span that more-like-this considers, the first of its text."""
_LIKE_TEXT_MAX_CHARS: Final = 20_000
"""Characters of a span that more-like-this considers."""
_LIKE_WEIGHT_SHARE: Final = 0.25
"""Minimum weight of a word, as a share of the most distinctive word's."""
_LIKE_SHARE: Final = 0.3
"""Share of these words that a similar span must contain."""

TextsOf: TypeAlias = Callable[[str, str, str | None], Sequence[str] | None]
"""Function that returns the texts of a span, by trace id, span id and workspace (None for any); None if it does not
exist."""
Alike: TypeAlias = Callable[[str, str], tantivy.Query | None]
"""Function that returns the query for spans similar to one, by trace and span id; None if the span does not exist."""
SPAN: Final = re.compile(r"([0-9a-f]{32})[- ]([0-9a-f]{16})", re.ASCII)


def likeness(
    schema: tantivy.Schema,
    searcher: tantivy.Searcher,
    trace_id: str,
    texts: Sequence[str],
    analyzer: Analyzer,
) -> tantivy.Query:
    """Return the query for spans of other traces that have enough of the most characteristic words of these texts."""
    stems = _telling(searcher, texts, analyzer)
    if not stems:
        return tantivy.Query.empty_query()
    words = [(tantivy.Occur.Should, tantivy.Query.term_query(schema, "text", stem, "freq")) for stem in stems]
    alike = tantivy.Query.boolean_query(words, max(1, round(_LIKE_SHARE * len(words))))
    own = tantivy.Query.term_query(schema, "trace", trace_id, "basic")
    return tantivy.Query.boolean_query([(tantivy.Occur.Must, alike), (tantivy.Occur.MustNot, own)])


def alike_in(
    schema: tantivy.Schema,
    searcher: tantivy.Searcher,
    texts_of: TextsOf | None,
    analyzer: Analyzer,
    workspace: str | None = None,
) -> Alike:
    """Return a function that makes more-like-this queries for spans of a workspace. Word frequencies in the searcher's
    index decide which words are rare."""

    def query(trace_id: str, span_id: str) -> tantivy.Query | None:
        texts = None if texts_of is None else texts_of(trace_id, span_id, workspace)
        return None if texts is None else likeness(schema, searcher, trace_id, texts, analyzer)

    return query


def _telling(searcher: tantivy.Searcher, texts: Sequence[str], analyzer: Analyzer) -> list[str]:
    """Return the stems that are frequent in the texts and rare in the index, the most characteristic first."""
    counted: Counter[str] = Counter()
    for stem in _stems(texts, analyzer):
        if stem in counted or len(counted) < _LIKE_WORDS_READ_MAX:
            counted[stem] += 1
    weights = {}
    for stem, count in counted.items():
        having = searcher.doc_freq("text", stem)
        if having > 1:  # a word that only this span has finds no other
            weights[stem] = math.sqrt(count) * math.log(max(1, searcher.num_docs / having))
    # Words of nearly all spans are dropped, unless there are no others.
    least = _LIKE_WEIGHT_SHARE * max(weights.values(), default=0)
    ranked = sorted(weights, key=lambda stem: (-weights[stem], stem))
    return [stem for stem in ranked[:_LIKE_WORDS_MAX] if weights[stem] >= least]


def _stems(texts: Sequence[str], analyzer: Analyzer) -> Iterator[str]:
    room = _LIKE_TEXT_MAX_CHARS
    for text in texts:
        yield from (word.stem for word in analyzer.words_of(text[:room]))
        room -= min(room, len(text))
