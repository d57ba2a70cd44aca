"""Text analyzers and the fields of the index.

A lake chooses one of three analyzers. Each has a fingerprint.

| name | word | for |
|---|---|---|
| `english` | a run of letters and digits, reduced to its English stem | most lakes |
| `whitespace` | characters between white space, brackets, quotes and commas | identifiers, ids, URLs |
| `cjk` | as `english`; in scripts without spaces, each pair of adjacent letters | Chinese, Japanese, Korean, Thai… |

All words are lower case. `tokenization.BatchTokenizer` splits the texts of many rows before tantivy gets them. The same
code splits the words of queries and excerpts. A query is analyzed with the analyzer of the manifest that it reads.

| field | holds | how |
|---|---|---|
| `id` | trace id, span id, id of the row | stored, not searched |
| `row` | id of the row | used by `live_docs.py` only |
| `FACETS` | service, kind, status, model, session, user, workspace | whole value in lower case; fast field |
| `trace` | the trace id | whole value |
| `start`, `duration`, `tokens`, `input_tokens`, `output_tokens` | nanoseconds and counts | fast fields |
| `name` | the span's name | words with positions |
| `text` | input, output, attribute values, status message, events | words with positions |
| `attribute` | path and value of attributes (span, events, resource, elements); begin of span id | `query_values.py` |
| `number` | path and value of each numeric attribute or element | `query_values.py` |
| `has` | the paths of all attributes, and the `PARTS` that the span has | whole values |

Only `id` is stored. The text for highlights is read back from the table.
"""

from __future__ import annotations

import hashlib
import json
import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from importlib.metadata import version
from typing import Final

import tantivy

from tracelake._errors import UsageError
from tracelake.limits import IDENTIFIER_MAX_BYTES, INDEX_VALUE_MAX_CHARS, INDEX_WORD_MAX_BYTES
from tracelake.search import tokenization
from tracelake.search.query_parser import INDEX_NUMBERS
from tracelake.search.tokenization import (
    GAP,
    INDEX_IDENTIFIERS_KEPT,
    BatchTokenizer,
    identifiers,
    parts_of_name,
)

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
"""Whole-value fields that facets can count, each with its column of table `spans`."""
KEYWORDS: Final = (*FACETS, "trace")
LISTS: Final = ("attribute", "number", "has")
"""Fields of many whole values. tantivy gets them as one text, joined by `JOINT`, because each separate value would
cost as much as a field."""
NUMBERS: Final = INDEX_NUMBERS
"""Fast integer fields: nanoseconds since 1970, nanoseconds, and three counts."""
TEXTS: Final = ("name", "text")
"""Fields that are searched for words without a prefix."""
BOOSTS: Final = {"name": 1.5}
PARTS: Final = ("parent", "input", "output", "events", "links")
"""Optional parts of a span that have no field."""

FORMAT_VERSION: Final = 4
"""Document version of a new index. Version 3 has whole span ids as terms. Version 2 lacks terms of events, array
elements and span ids, and keeps the Unicode form of each word."""
EARLIER_FORMATS: Final = (2, 3)
"""Document versions of indexes that earlier releases built. New parts of such an index keep its version."""
SPAN_TERM_DIGITS: Final = 4
"""Digits of a span id in its term. The stored ids of the spans with a term decide which of them match. Terms of whole
ids would take a third of the index."""


def settings(format_version: int) -> tuple[object, ...]:
    """Return the settings that all indexes of a format share. A fingerprint adds the analyzer's `says`."""
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
    """Return the analyzer that makes one word of a whole value, also in queries."""
    return tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.raw()).filter(tantivy.Filter.lowercase()).build()


def lowered(value: str) -> str:
    """Return a whole value in the form of its term."""
    return "".join(_KEYWORD.analyze(value))


def _terms_analyzer() -> tantivy.TextAnalyzer:
    """Return the analyzer for several whole values. Each becomes the same term as with `keyword_analyzer`."""
    # Not a regular expression, because tantivy would compile its automaton for each document.
    builder = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.whitespace())
    return builder.filter(tantivy.Filter.lowercase()).build()


_KEYWORD: Final = keyword_analyzer()


def register_tokenizers(index: tantivy.Index, words: tantivy.TextAnalyzer) -> None:
    """Register the tokenizers of an index, including that of `TEXTS`. tantivy forgets them whenever it opens an
    index."""
    index.register_tokenizer(KEYWORD, keyword_analyzer())
    index.register_tokenizer(TERMS, _terms_analyzer())
    index.register_tokenizer(WORDS, words)
    # Facets show values unchanged.
    as_it_is = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.raw()).build()
    index.register_fast_field_tokenizer(KEYWORD, as_it_is)


def trace_of(stored: bytes) -> str:
    """Return the trace id of a stored `id`, which documents.py writes in bulk."""
    return stored[:16].hex()


def span_of(stored: bytes) -> str:
    """Return the span id of a stored `id`."""
    return stored[16:24].hex()


def row_of(stored: bytes) -> int:
    """Return the row id of a stored `id`."""
    return int.from_bytes(stored[24:])


def transaction_of(stored: bytes) -> int:
    """Return the transaction of a stored `id`, which is the upper half of the row id."""
    return int.from_bytes(stored[24:28])


Parts = Callable[[Sequence[str]], dict[int, tuple[str, ...]]]

_STEMMER: Final = tantivy.Filter.stemmer("english")
_STEMS: Final = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.whitespace()).filter(_STEMMER).build()


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a text: its lower-case spelling, its stem (which the index holds) and its position."""

    written: str
    stem: str
    position: int
    begins: bool = False
    """Whether the word matches as a prefix. True for a single letter of a script without spaces."""


@dataclass(frozen=True)
class Analyzer:
    """Rules that split the texts of fields `name` and `text` into words. It is immutable and safe to share between
    threads."""

    name: str
    says: str
    """Description of the analysis. It is part of the fingerprint, so change it together with the code."""
    stemmed: bool
    cut: Callable[[str], Iterator[str]] | None = None
    """Splitter that yields words; None if tantivy splits by itself."""
    parts: Parts = field(default=identifiers, repr=False)
    """Function that returns the parts of the identifiers in texts, by text number."""
    parts_of_long: Callable[[str], Iterator[Sequence[str]]] = field(
        default=tokenization.parts_of_run, repr=False
    )
    """Function that yields the parts of a long text without separators, in batches."""
    parts_of_name: Callable[[str], tuple[str, ...]] = field(default=parts_of_name, repr=False)
    """Function that returns the parts of one name, with a cache because many spans have the same name."""
    letter: str = r"[^\W_]"
    """Regular expression for a letter of a word that has borders."""
    separators: str = field(default=tokenization.BETWEEN_RUNS, repr=False)
    """ASCII characters that separate words."""
    format_version: int = FORMAT_VERSION
    """Version of the documents that the analyzer makes."""

    @property
    def is_current(self) -> bool:
        """Whether the analyzer makes documents of the current format. Otherwise, an earlier release built the index."""
        return self.format_version == FORMAT_VERSION

    @property
    def has_all_terms(self) -> bool:
        """Whether documents have terms of events, array elements and span ids, and words one Unicode form."""
        return self.format_version > 2

    @property
    def span_term_digits(self) -> int | None:
        """Digits of a span id in its term; None for all."""
        return None if self.format_version <= 3 else SPAN_TERM_DIGITS

    @property
    def public_name(self) -> str:
        """The name by which users choose the analyzer, without its format."""
        return self.name.partition("@")[0]

    @cached_property
    def fingerprint(self) -> str:
        """Fingerprint of the settings. An index contains only parts with the same fingerprint."""
        return hashlib.sha256(json.dumps([*settings(self.format_version), self.says]).encode()).hexdigest()

    @staticmethod
    def tokenizer() -> tantivy.TextAnalyzer:
        """Return the tantivy tokenizer for texts that `wording` has already split."""
        plain = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.whitespace())
        return plain.filter(tantivy.Filter.custom_stopword([GAP])).build()

    @cached_property
    def wording(self) -> BatchTokenizer:
        """The tokenizer for the texts of many rows."""
        stems_of = _STEMS.analyze if self.stemmed else str.split
        return BatchTokenizer(
            self.separators,
            self._words_of_chunks,
            self._words_of_long,
            stems_of,
            self.parts,
            self.parts_of_long,
        )

    def _words_of_chunks(self, text: str) -> list[str]:
        """Return the lower-case words of a text, of any length. The text has no separators but spaces."""
        if self.separators is tokenization.BETWEEN_RUNS and text.isascii():
            return text.lower().split()
        return self._unbounded.analyze(self.prepared(text))

    def _words_of_long(self, text: str) -> Iterator[list[str]]:
        """Yield the lower-case words of a long text in batches."""
        text = self.normalized(text)
        if self.cut is None:
            pieces = tokenization.pieces(text, lru_cache(INDEX_IDENTIFIERS_KEPT)(self._unbounded.analyze))
        else:
            pieces = tokenization.together(self.cut(text))
        return map(self._unbounded.analyze, pieces)

    @cached_property
    def _unbounded(self) -> tantivy.TextAnalyzer:
        return self._built(bounded=False, stemmed=False)

    def normalized(self, text: str) -> str:
        """Normalize the Unicode form of a text, so that each spelling of a word is the same word."""
        return tokenization.normalized(text) if self.has_all_terms else text

    def prepared(self, text: str) -> str:
        """Return a text in the form that the index splits into words."""
        text = self.normalized(text)
        return text if self.cut is None else " ".join(self.cut(text))

    def words_of(self, text: str) -> list[Word]:
        """Return the words of a text in the form that the index holds."""
        cut = self.prepared(text)
        stems, written = (analyzer.pre_tokenize(cut).tokens for analyzer in (self._stems, self._written))
        return [Word(word.text, stem.text, word.position) for word, stem in zip(written, stems, strict=True)]

    def dropped_from(self, text: str) -> str | None:
        """Return the first part of a query's text that the index cannot hold; None if it holds all of it.

        If such a part were ignored, the query would find spans that do not have it. ASCII signs, punctuation and
        white space only separate words.
        """
        written = [word.written for word in self.words_of(text)]
        unbounded = self._unbounded.analyze(self.prepared(text))
        if len(unbounded) > len(written):
            return next(word for word in unbounded if len(word.encode()) >= INDEX_WORD_MAX_BYTES)
        if not written:
            return text
        symbols = dict.fromkeys(symbol for symbol in self.normalized(text) if tokenization.is_symbol(symbol))
        indexed = "".join(written) if symbols else ""
        return next((symbol for symbol in symbols if symbol.lower() not in indexed), None)

    def words_wanted(self, text: str) -> list[Word]:
        """Return the words that every matching text must contain.

        A run of letters without spaces may continue in the matching text. The last letter of a run is therefore not a
        separate word, and a single letter matches as a prefix.
        """
        wanted: list[Word] = []
        for word in self.words_of(text):
            if self.cut is not tokenization.pairs or not tokenization.is_letter(word.written):
                wanted.append(word)
            elif not (wanted and _goes_on(wanted[-1], word)):
                wanted.append(replace(word, begins=True))
        return wanted

    @cached_property
    def _stems(self) -> tantivy.TextAnalyzer:
        return self._built(bounded=True, stemmed=self.stemmed)

    @cached_property
    def _written(self) -> tantivy.TextAnalyzer:
        return self._built(bounded=True, stemmed=False)

    def _built(self, *, bounded: bool, stemmed: bool) -> tantivy.TextAnalyzer:
        plain = tantivy.Tokenizer.simple() if self.cut is None else tantivy.Tokenizer.whitespace()
        builder = tantivy.TextAnalyzerBuilder(plain).filter(tantivy.Filter.lowercase())
        if bounded:
            builder = builder.filter(tantivy.Filter.remove_long(INDEX_WORD_MAX_BYTES))
        return (builder.filter(_STEMMER) if stemmed else builder).build()


def _goes_on(before: Word, letter: Word) -> bool:
    """Whether a single-letter word is the end of the run that contains the previous word."""
    return before.position + 1 == letter.position and tokenization.is_pair(before.written)


ENGLISH: Final = Analyzer(
    "english", "simple, lowercase, remove_long, stemmer english, parts of identifiers", stemmed=True
)
WHITESPACE: Final = Analyzer(
    "whitespace",
    "between spaces and brackets, lowercase, remove_long, parts of words",
    stemmed=False,
    cut=tokenization.between_spaces,
    parts=tokenization.parts_of_words,
    parts_of_long=tokenization.parts_of_long,
    parts_of_name=tokenization.parts_of_identifier,
    separators=string.whitespace,
)
CJK: Final = Analyzer(
    "cjk",
    "pairs of letters without spaces, simple, lowercase, remove_long, stemmer english, parts of identifiers",
    stemmed=True,
    cut=tokenization.pairs,
    letter=tokenization.SPACED_LETTER,
)
ANALYZERS: Final = {each.name: each for each in (ENGLISH, WHITESPACE, CJK)}
NAMES: Final = tuple(ANALYZERS)
EARLIER: Final = {
    earlier.name: earlier
    for each in ANALYZERS.values()
    for version in EARLIER_FORMATS
    for earlier in [replace(each, name=f"{each.name}@{version}", format_version=version)]
}
"""Analyzers of indexes that an earlier release built. Such an index keeps its format until it is rebuilt."""
_BY_FINGERPRINT: Final = {each.fingerprint: each for each in (*ANALYZERS.values(), *EARLIER.values())}


def get_analyzer(name: str) -> Analyzer:
    """Return the analyzer of this name. Raises UsageError if the name is unknown."""
    try:
        return ANALYZERS.get(name) or EARLIER[name]
    except KeyError as error:
        raise UsageError(f"there is no text setting {name!r}; choose {', '.join(NAMES)}.") from error


def hint_of(analyzer: Analyzer, texts: Iterable[str]) -> str | None:
    """Return a warning if these texts are cut into words in a way that a search may miss; otherwise None."""
    if analyzer.cut is not tokenization.pairs and any(map(tokenization.has_unspaced, texts)):
        return (
            f"this index has the text setting {analyzer.public_name!r}, which finds Chinese, Japanese, Korean, Thai, "
            "Lao, Khmer and Burmese only by whole runs of letters; after `tracelake index rebuild --text "
            f"{CJK.name}` every part is found"
        )
    if not analyzer.has_all_terms:
        return (
            "an earlier version built this index: it has no attributes of events, elements of arrays and span ids, and "
            "each Unicode form of a word is another word; run `tracelake index rebuild`"
        )
    return None


def current(analyzer: Analyzer) -> Analyzer:
    """Return the analyzer of the same name that makes documents of the current format."""
    return ANALYZERS[analyzer.public_name]


def of_fingerprint(fingerprint: str) -> Analyzer | None:
    """Return the analyzer that built an index; None if this version knows no analyzer with the fingerprint."""
    return _BY_FINGERPRINT.get(fingerprint)
