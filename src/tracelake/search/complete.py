"""What may follow in a query that is being typed: names of fields, paths of attributes, and values of both."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Final

import tantivy

from tracelake import limits
from tracelake.search import fields
from tracelake.search.narrowing import escaped, written
from tracelake.search.syntax import KEYWORDS, OWNERS
from tracelake.search.values import SEPARATOR, as_written, path_term, term_of

_TYPED: Final = re.compile(
    r'(?:^|(?<=[\s(+-]))((?:(?:attributes|resource)\."[^"]*"|[A-Za-z_][\w./-]*):)?(?:"([^"]*)|([^\s"()]*))$'
)
_PLAIN_PATH: Final = re.compile(r"\w+\.[\w./-]+")


def completions(searcher: tantivy.Searcher, query: str) -> list[str]:
    """Return queries that begin like this one and go on with what is in the index, the most frequent values first."""
    typed = _TYPED.search(query)
    if typed is None or len(query) > limits.QUERY_MAX_CHARS:
        return []
    field, quoted, word = typed.groups()
    beginning = (word if quoted is None else quoted).encode(errors="replace").decode().lower()
    if field is not None:
        values: Iterator[str] = (
            field + text for text in _values(searcher, field[:-1].replace('"', ""), beginning)
        )
    elif quoted is None and beginning:
        values = _names(searcher, beginning)
    else:
        return []
    return [query[: typed.start()] + text for text in islice(values, limits.COMPLETIONS_MAX)]


def _names(searcher: tantivy.Searcher, beginning: str) -> Iterator[str]:
    """Yield fields, and attributes of which the path or the key begins so."""
    for name in (*fields.TEXTS, *KEYWORDS, "has", "like"):
        if name.startswith(beginning):
            yield f"{name}:"
    for name in fields.NUMBERS:
        if name.startswith(beginning):
            yield f"{name}>"
    owned = () if beginning.startswith(OWNERS) else tuple(owner + beginning for owner in OWNERS)
    for prefix in (beginning, *owned):
        for path in _terms(searcher, "has", path_term(prefix)):
            if path not in fields.PARTS:
                yield f"{_path(path)}:"


def _values(searcher: tantivy.Searcher, field: str, beginning: str) -> Iterator[str]:
    if field == "has":
        for name in (*fields.FACETS, *fields.NUMBERS):
            if name.startswith(beginning):
                yield name
        for path in _terms(searcher, "has", path_term(beginning)):
            yield written(path)
    elif field in fields.FACETS:
        for value in _terms(searcher, field, beginning):
            yield written(value)
    elif field.startswith(OWNERS):
        for term in _terms(searcher, "attribute", term_of(path_term(field.lower()), beginning)):
            yield written(term.partition(SEPARATOR)[2])


def _terms(searcher: tantivy.Searcher, field: str, prefix: str) -> Iterator[str]:
    for term, _ in searcher.terms_with_prefix(field, prefix, limit=limits.COMPLETIONS_MAX):
        yield as_written(term) if field in fields.LISTS else term


def _path(path: str) -> str:
    owner, _, key = path.partition(".")
    return path if _PLAIN_PATH.fullmatch(path) else f'{owner}."{escaped(key)}"'
