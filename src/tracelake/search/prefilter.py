"""Prefilter for queries: a test on the text of a span, without an index.

A prefilter passes all spans that the query finds, and perhaps more. So only a few spans need to be indexed instead of
all. It uses words and whole values. If a span may match without them, such as by a number in another notation, there
is no prefilter.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from tracelake._errors import QueryError
from tracelake.search import analyzers, query_values
from tracelake.search.analyzers import Analyzer, Word
from tracelake.search.highlight import beginning
from tracelake.search.query_compiler import KEYWORDS, ids_in, tree
from tracelake.search.query_parser import OWNERS, AllOf, AnyOf, Boost, Node, Text
from tracelake.search.tokenization import normalized

SIEVE_TEXTS_MAX: Final = 16
"""Strings that a search's prefilter looks for in input left to a pipeline."""


_ESCAPED_IN_JSON: Final = '"\\'
Prefilter: TypeAlias = Callable[[bytes], bool]
"""Function that returns whether a text may match the query. The text is `documents.written`, lower case, in UTF-8."""


def prefilter_of(
    query: str, service: str | None, workspace: str | None, analyzer: Analyzer
) -> Prefilter | None:
    """Return the prefilter of a query in one service and workspace; None if any span may match.

    Also None if the query does not parse, because the search itself reports the error.
    """
    try:
        node = tree(query)
    except (ValueError, QueryError):
        return None
    whole_values = [
        Text(field, value.encode(errors="replace").decode(), 0, quoted=True)
        for field, value in (("service", service), ("workspace", workspace))
        if value is not None
    ]
    needed = _of_node(AllOf((node, *whole_values)), analyzer)
    return None if needed is None else needed.sieve


@dataclass(frozen=True, slots=True)
class _Needed:
    """Prefilter and the number of texts that it searches for."""

    sieve: Prefilter
    texts: int


def _of_node(node: Node, analyzer: Analyzer) -> _Needed | None:
    match node:
        case Boost(inner, _):
            return _of_node(inner, analyzer)
        case AllOf(nodes):
            return _all([needed for each in nodes if (needed := _of_node(each, analyzer)) is not None])
        case AnyOf(nodes):
            several = [needed for each in nodes if (needed := _of_node(each, analyzer)) is not None]
            return _any(several) if len(several) == len(nodes) else None
        case Text():
            return _all([_has(needle) for needle in _needles(node, analyzer) if needle])
        case _:
            return None


def _needles(node: Text, analyzer: Analyzer) -> Iterable[str]:
    """Return texts that each matching span contains; "" if no text is certain."""
    if node.distance and not node.quoted:
        return []
    if (ids := ids_in(node)) is not None:
        return [each for each in (ids.trace_id, ids.span_id) if each is not None]
    if node.field is None or node.field in analyzers.TEXTS:
        return [_of_word(word, analyzer) for word in analyzer.words_wanted(node.text)]
    is_number = not node.quoted and not node.prefix and query_values.double(node.text) is not None
    if node.field == "status" and node.text.lower() == "unset":
        return []
    if node.field in (*KEYWORDS, "span") or (node.field.startswith(OWNERS) and not is_number):
        value = analyzers.lowered(normalized(node.text))
        return [_sure_of_value(value, may_be_json=node.field.startswith(OWNERS))]
    return []


def _of_word(word: Word, analyzer: Analyzer) -> str:
    """Return the common prefix of all words that have this stem, or that begin with this word."""
    return _sure(beginning(word.stem) if analyzer.stemmed else word.stem)


def _sure(text: str) -> str:
    """Return the longest run of characters that every text with the same lower-case form contains unchanged.

    Only ASCII is certain among letters with two cases. A lower-case letter may have gained an upper case in a newer
    Unicode than Python's. Control characters are excluded because terms use them as replacements.
    """
    return _longest(text, _is_sure)


def _sure_of_value(text: str, *, may_be_json: bool) -> str:
    """Return the same for a whole value, which may have another Unicode form or be JSON inside an array."""
    unsure = _ESCAPED_IN_JSON if may_be_json else ""
    return _longest(text, lambda letter: letter not in unsure and _is_sure(letter) and _has_one_form(letter))


def _longest(text: str, is_sure: Callable[[str], bool]) -> str:
    return max("".join(letter if is_sure(letter) else "\n" for letter in text).split("\n"), key=len)


def _is_sure(letter: str) -> bool:
    return letter.isprintable() and (
        letter.isascii() or (letter == letter.lower() == letter.upper() and not letter.islower())
    )


def _has_one_form(letter: str) -> bool:
    return not unicodedata.combining(letter) and unicodedata.normalize("NFKD", letter) == letter


def _has(needle: str) -> _Needed:
    encoded = needle.encode()
    return _Needed(lambda text: encoded in text, 1)


def _all(several: Sequence[_Needed]) -> _Needed | None:
    """Return a prefilter that requires all of these, within the limit of texts. Omitting the others only passes more
    spans."""
    sieves, texts = list[Prefilter](), 0
    for each in several:
        if texts + each.texts <= SIEVE_TEXTS_MAX:
            sieves.append(each.sieve)
            texts += each.texts
    return _Needed(lambda text: all(sieve(text) for sieve in sieves), texts) if sieves else None


def _any(several: Sequence[_Needed]) -> _Needed:
    texts = sum(each.texts for each in several)
    return _Needed(lambda text: any(each.sieve(text) for each in several), texts)
