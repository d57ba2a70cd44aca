"""What may follow in a query that is being typed: names of fields, paths of attributes, and values of both."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

import tantivy

from tracelake import limits
from tracelake.search import fields
from tracelake.search.facets import count, only
from tracelake.search.fields import lowered
from tracelake.search.grammar import OWNERS, QUOTED_PATH, name_of, plain
from tracelake.search.narrowing import escaped, written
from tracelake.search.syntax import KEYWORDS, only_of
from tracelake.search.values import SEPARATOR, as_written, path_term, term_of

_TYPED: Final = re.compile(
    rf"""(?:^|(?<=[\s(+-]))(?:({QUOTED_PATH}|[A-Za-z_][\w./-]*):)?(?:"((?:\\.|[^"\\])*)|([^\s"()]*))$""",
    re.DOTALL,
)
_PLAIN_PATH: Final = re.compile(r"\w+\.[\w./-]+")


@dataclass(frozen=True, slots=True)
class OneWorkspace:
    """The workspace that what goes on must be of."""

    grammar: tantivy.Index
    name: str

    def has(self, searcher: tantivy.Searcher, field: str, term: str) -> bool:
        """Whether a span of this workspace has a term. The list of terms of an index says nothing of whose they are."""
        schema = self.grammar.schema
        having = tantivy.Query.term_query(schema, field, term, "basic")
        # The index finds a workspace in any case, and counts it as it is.
        asked = only_of(self.grammar, having, "workspace", self.name)
        return count(searcher, asked, (), only(service=None, workspace=self.name)).total > 0


def completions(searcher: tantivy.Searcher, query: str, workspace: OneWorkspace | None = None) -> list[str]:
    """Return queries that begin like this one and go on with what is in the index, the most frequent values first.

    With a workspace, with what its spans have, among the most frequent values of all.
    """
    typed = _TYPED.search(query)
    if typed is None or len(query) > limits.QUERY_MAX_CHARS:
        return []
    field, quoted, word = typed.groups()
    index = _Terms(searcher, workspace)
    beginning = plain(word if quoted is None else quoted).encode(errors="replace").decode()
    if field is not None:
        path = name_of(field).encode(errors="replace").decode()
        values: Iterator[str] = (f"{field}:{text}" for text in _values(index, path, lowered(beginning)))
    elif quoted is None and beginning:
        values = _names(index, lowered(beginning))
    else:
        return []
    queries = (query[: typed.start()] + text for text in values)
    return list(
        islice((each for each in queries if len(each) <= limits.QUERY_MAX_CHARS), limits.COMPLETIONS_MAX)
    )


def _names(index: _Terms, beginning: str) -> Iterator[str]:
    """Yield fields, and attributes of which the path or the key begins so."""
    for name in (*fields.TEXTS, *KEYWORDS, "span", "has", "like"):
        if name.startswith(beginning):
            yield f"{name}:"
    for name in fields.NUMBERS:
        if name.startswith(beginning):
            yield f"{name}>"
    owned = () if beginning.startswith(OWNERS) else tuple(owner + beginning for owner in OWNERS)
    for prefix in (beginning, *owned):
        for path in index.beginning("has", path_term(prefix)):
            if path not in fields.PARTS:
                yield f"{_path(path)}:"


def _values(index: _Terms, field: str, beginning: str) -> Iterator[str]:
    if field == "has":
        for name in (*fields.FACETS, *fields.NUMBERS):
            if name.startswith(beginning):
                yield name
        for path in index.beginning("has", path_term(beginning)):
            yield written(path)
    elif field in fields.FACETS:
        for value in index.beginning(field, beginning):
            yield written(value)
    elif field.startswith(OWNERS):
        for term in index.beginning("attribute", lowered(term_of(path_term(field), beginning))):
            yield written(term.partition(SEPARATOR)[2])


@dataclass(frozen=True, slots=True)
class _Terms:
    """The terms of an index, of one workspace or of all."""

    searcher: tantivy.Searcher
    workspace: OneWorkspace | None

    def beginning(self, field: str, prefix: str) -> Iterator[str]:
        """Yield those of a field that begin so, as they are written in queries."""
        workspace = self.workspace
        most = limits.COMPLETIONS_MAX if workspace is None else limits.COMPLETIONS_LOOKED_AT_MAX
        for term, _ in self.searcher.terms_with_prefix(field, prefix, limit=most):
            if field == "has" and len(term) > limits.INDEX_VALUE_MAX_CHARS:
                continue  # a path that is cut, which no query has
            if workspace is None or workspace.has(self.searcher, field, term):
                yield as_written(term) if field in fields.LISTS else term


def _path(path: str) -> str:
    owner, _, key = path.partition(".")
    return path if _PLAIN_PATH.fullmatch(path) else f'{owner}."{escaped(key)}"'
