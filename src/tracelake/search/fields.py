"""The fields of the index, and how whole values become terms; how texts become words, `analyzers.py` says.

| field | holds | how |
|---|---|---|
| `id` | trace id, span id, id of the row | stored, not searched |
| `row` | id of the row | for `live.py` alone |
| `service`, `kind`, `status`, `model`, `session`, `user`, `workspace` | the columns of those names | a whole value \
in lower case to find it, and as it is in a fast field, for facets |
| `trace` | the trace id | a whole value |
| `start`, `duration`, `tokens`, `input_tokens`, `output_tokens` | nanoseconds and counts | fast fields |
| `name` | the span's name | words with positions |
| `text` | input, output, attribute values, status message, events | words with positions |
| `attribute` | path and value of each attribute of span, events and resource, of elements of arrays; the span id | \
`values.py` |
| `number` | path and value of each attribute or element that is a number | `values.py` |
| `has` | the paths of all attributes, and of `PARTS` that are there | whole values |

Nothing but `id` is stored: text for highlights is read back from the table.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Final

import tantivy

from tracelake.limits import IDENTIFIER_MAX_BYTES, INDEX_VALUE_MAX_CHARS, INDEX_WORD_MAX_BYTES
from tracelake.search.grammar import ORDERED

KEYWORD: Final = "tracelake_keyword"
TERMS: Final = "tracelake_terms"
WORDS: Final = "tracelake_words"

FACETS: Final = {
    "service": "service",
    "kind": "kind",
    "status": "status",
    "model": "model",
    "session": "session_id",
    "user": "user_id",
    "workspace": "workspace",
}
"""Fields that hold a whole value, which can be counted, by their columns of table `spans`."""
KEYWORDS: Final = (*FACETS, "trace")
LISTS: Final = ("attribute", "number", "has")
"""Fields of many whole values, which tantivy gets as one text with `values.JOINT` between them: a value by itself
costs as much as a field."""
NUMBERS: Final = ORDERED
"""Fast fields of integers: nanoseconds since 1970, nanoseconds, and three counts."""
TEXTS: Final = ("name", "text")
"""Where words without a prefix are looked for."""
BOOSTS: Final = {"name": 1.5}
PARTS: Final = ("parent", "input", "output", "events", "links")
"""What a span may have that is no field of its own."""

FORMAT_VERSION: Final = 3
"""Version of the documents of a new index. Version 2 has no terms of events, elements of arrays and span ids, and keeps
the Unicode form of each word."""
EARLIER_FORMAT: Final = 2
"""Version of the documents of an index that an earlier release built; new parts of such an index have it, too."""


def settings(format_version: int) -> tuple[object, ...]:
    """Return what all indexes of a format have in common; what texts become is the other half of a fingerprint."""
    return (
        format_version,
        version("tantivy"),
        [FACETS, KEYWORDS, LISTS, ("row", *NUMBERS), TEXTS, PARTS],
        [INDEX_WORD_MAX_BYTES, INDEX_VALUE_MAX_CHARS, IDENTIFIER_MAX_BYTES],
    )


def schema() -> tantivy.Schema:
    """Return the tantivy schema of every part."""
    builder = tantivy.SchemaBuilder()
    builder.add_bytes_field("id", stored=True, indexed=False)
    builder.add_integer_field("row", fast=True, indexed=True)
    for name in KEYWORDS:
        builder.add_text_field(name, tokenizer_name=KEYWORD, index_option="basic", fast=name in FACETS)
    for name in LISTS:
        builder.add_text_field(name, tokenizer_name=TERMS, index_option="basic")
    for name in NUMBERS:
        builder.add_integer_field(name, fast=True, indexed=False)
    for name in TEXTS:
        builder.add_text_field(name, tokenizer_name=WORDS, index_option="position")
    return builder.build()


def keyword_analyzer() -> tantivy.TextAnalyzer:
    """Return what makes one word of a whole value, and of queries on it."""
    return tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.raw()).filter(tantivy.Filter.lowercase()).build()


def lowered(value: str) -> str:
    """Return a whole value as its term has it."""
    return "".join(_KEYWORD.analyze(value))


def _terms_analyzer() -> tantivy.TextAnalyzer:
    """Return what makes words of several whole values, the same as `keyword_analyzer` of each."""
    # Not with an expression: tantivy compiles its automaton anew for each document.
    builder = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.whitespace())
    return builder.filter(tantivy.Filter.lowercase()).build()


_KEYWORD: Final = keyword_analyzer()


def register_tokenizers(index: tantivy.Index, words: tantivy.TextAnalyzer) -> None:
    """Tell an index its tokenizers, that of `TEXTS` too; tantivy forgets them whenever it opens one."""
    index.register_tokenizer(KEYWORD, keyword_analyzer())
    index.register_tokenizer(TERMS, _terms_analyzer())
    index.register_tokenizer(WORDS, words)
    # Facets show values as they are.
    as_it_is = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.raw()).build()
    index.register_fast_field_tokenizer(KEYWORD, as_it_is)


def trace_of(stored: bytes) -> str:
    """Return the trace id of a stored `id`; documents.py writes it in bulk."""
    return stored[:16].hex()


def span_of(stored: bytes) -> str:
    """Return the span id of a stored `id`."""
    return stored[16:24].hex()


def row_of(stored: bytes) -> int:
    """Return the id of the row of a stored `id`."""
    return int.from_bytes(stored[24:])


def transaction_of(stored: bytes) -> int:
    """Return the transaction of the row of a stored `id`: the upper half of the row's id."""
    return int.from_bytes(stored[24:28])
