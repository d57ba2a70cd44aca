"""Queries that are ready to be asked: read and compiled once, however often they are, for they depend on no index."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import tantivy

from tracelake.limits import QUERIES_KEPT
from tracelake.search import fields
from tracelake.search.analyzers import ANALYZERS, EARLIER, Analyzer, named
from tracelake.search.grammar import AllOf, Node, Text
from tracelake.search.likeness import Alike
from tracelake.search.syntax import compiled, is_graded, is_like, is_ranked, is_relative, only_of, tree


@dataclass(frozen=True, slots=True)
class Prepared:
    """A query as it is asked, the service and the workspace that it is asked in among its words."""

    node: Node
    query: tantivy.Query | None
    """None where no word is in it: it finds nothing."""
    is_ranked: bool
    """Whether hits have scores by words of theirs."""
    is_graded: bool
    """Whether these tell hits apart, as those of words and phrases do: tantivy gives all that begin alike the same."""


@dataclass(frozen=True, slots=True)
class _Read:
    node: Node
    is_like: bool
    is_relative: bool


@lru_cache(len(ANALYZERS) + len(EARLIER))
def grammar_of(analyzer: Analyzer) -> tantivy.Index:
    """Return an empty index to make queries with: they are the same for all that have its fields and words."""
    index = tantivy.Index(fields.schema())
    fields.register_tokenizers(index, analyzer.tokenizer())
    index.config_reader(reload_policy="manual")
    return index


def asks_for_likeness(query: str) -> bool:
    """Whether a query has a span that others are to be like, which the index decides. Raises Refused, QueryError."""
    return _read(query).is_like


def prepared(
    query: str, service: str | None, analyzer: Analyzer, now_ns: int, workspace: str | None = None
) -> Prepared:
    """Return a query that asks for no likeness, in one service and workspace. Raises Refused, QueryError."""
    return _prepared(query, service, workspace, analyzer.name, now_ns if _read(query).is_relative else 0)


def prepared_alike(
    query: str,
    service: str | None,
    analyzer: Analyzer,
    now_ns: int,
    alike: Alike,
    workspace: str | None = None,
) -> Prepared:
    """Return a query that asks for likeness to a span, which `alike` makes words of. Raises Refused, QueryError."""
    return _compiled(query, service, workspace, analyzer, now_ns, alike)


@lru_cache(QUERIES_KEPT)
def _read(query: str) -> _Read:
    node = tree(query)
    return _Read(node, is_like(node), is_relative(node))


@lru_cache(QUERIES_KEPT)
def _prepared(query: str, service: str | None, workspace: str | None, text: str, now_ns: int) -> Prepared:
    return _compiled(query, service, workspace, named(text), now_ns, None)


def _compiled(
    query: str,
    service: str | None,
    workspace: str | None,
    analyzer: Analyzer,
    now_ns: int,
    alike: Alike | None,
) -> Prepared:
    node, grammar = _read(query).node, grammar_of(analyzer)
    asked = compiled(grammar, node, now_ns, alike, analyzer)
    for field, value in (("service", service), ("workspace", workspace)):
        if asked is not None and value is not None:
            asked = only_of(grammar, asked, field, value)
            node = AllOf((node, Text(field, value.encode(errors="replace").decode(), 0, quoted=True)))
    return Prepared(node, asked, is_ranked(node), is_graded(node))
