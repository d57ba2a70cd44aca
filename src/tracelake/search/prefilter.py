"""What a span must have written in it for a query to find it: told by looking through its text, without an index.

A sieve lets more through than the query finds, and never less: a few spans are indexed then, where all would be. It
goes by words and whole values. Where a span may be found by others, such as a number that is written otherwise, there
is none.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from tracelake._errors import QueryError
from tracelake.limits import SIEVE_TEXTS_MAX
from tracelake.search import analyzers, query_values
from tracelake.search.analyzers import Analyzer, Word
from tracelake.search.highlight import beginning
from tracelake.search.query_compiler import KEYWORDS, ids_in, tree
from tracelake.search.query_parser import OWNERS, AllOf, AnyOf, Boost, Node, Text
from tracelake.search.tokenization import normalized

_ESCAPED_IN_JSON: Final = '"\\'
Prefilter: TypeAlias = Callable[[bytes], bool]
"""Tells whether a text (`documents.written`, in lower case, UTF-8) may have what a query asks for."""


def prefilter_of(
    query: str, service: str | None, workspace: str | None, analyzer: Analyzer
) -> Prefilter | None:
    """Return what a span must have for a query to find it, in one service and workspace; None where any may do.

    None too for what is no query: who asks it is told why.
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
    """A sieve, and how many texts it looks for."""

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
    """Return what is written in each span that has a word, phrase or value; "" where nothing is sure."""
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
    """Return how each word begins that has this stem, or that begins as this word does."""
    return _sure(beginning(word.stem) if analyzer.stemmed else word.stem)


def _sure(text: str) -> str:
    """Return the longest run of characters that are written so in each text which is the same in lower case.

    What becomes of a letter that has two cases is sure of ASCII alone, and one in lower case may have got another in a
    newer Unicode than Python's. Control characters stand for others in terms.
    """
    return _longest(text, _is_sure)


def _sure_of_value(text: str, *, may_be_json: bool) -> str:
    """Return the same of a whole value: it may be written in another Unicode form, or in an array as JSON."""
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
    """Return a sieve for all of these, as far as it may look for so many texts: the rest lets more through."""
    sieves, texts = list[Prefilter](), 0
    for each in several:
        if texts + each.texts <= SIEVE_TEXTS_MAX:
            sieves.append(each.sieve)
            texts += each.texts
    return _Needed(lambda text: all(sieve(text) for sieve in sieves), texts) if sieves else None


def _any(several: Sequence[_Needed]) -> _Needed:
    texts = sum(each.texts for each in several)
    return _Needed(lambda text: any(each.sieve(text) for each in several), texts)
