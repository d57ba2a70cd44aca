"""Pruning of index parts by their contents. A part is kept unless its contents exclude every hit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import tantivy

from tracelake.search import analyzers
from tracelake.search.model import NAMED, PartContents, PartRef
from tracelake.search.query_compiler import forms_of
from tracelake.search.query_parser import AllOf, AnyOf, Boost, Last, Node, Text, ValueRange
from tracelake.search.query_values import starts

NEWEST_AHEAD_MAX_S: Final = 86_400
"""Time in the future at which a trace or span may start and still rank among the newest."""
SEARCH_NEWEST_SHARE: Final = 0.125
"""Share of all spans, in the newest parts, that a newest-first search reads first."""


_INT64_MAX: Final = (1 << 63) - 1
MayMatch: TypeAlias = Callable[[PartContents], bool]
"""Function that returns whether a part may have hits."""


def newest_after(parts: Sequence[PartRef]) -> int | None:
    """Return a time after which a small share of all spans start, in the newest parts; None if the contents give
    none."""
    last = [(part.contents.last_ns, part.documents) for part in parts if part.contents is not None]
    room = SEARCH_NEWEST_SHARE * sum(part.documents for part in parts)
    if len(last) < len(parts):
        return None
    for number, (last_ns, documents) in enumerate(sorted(last, reverse=True)):
        room -= documents
        if room < 0:
            return last_ns if number else None
    return None


def only_after(schema: tantivy.Schema, query: tantivy.Query, after_ns: int) -> tantivy.Query:
    """Restrict a query to spans that start after a time. tantivy skips segments without such spans."""
    later = tantivy.Query.range_query(
        schema, "start", tantivy.FieldType.Integer, after_ns, include_lower=False
    )
    uncounted = tantivy.Query.const_score_query(later, 0.0)
    return tantivy.Query.boolean_query([(tantivy.Occur.Must, query), (tantivy.Occur.Must, uncounted)])


def latest_start(now_ns: int) -> int:
    """Return the latest start time of spans that are listed among the newest."""
    return min(now_ns + NEWEST_AHEAD_MAX_S * 10**9, _INT64_MAX)


def only_until(schema: tantivy.Schema, query: tantivy.Query, time_ns: int) -> tantivy.Query:
    """Restrict a query to spans that start at a time or before."""
    until = tantivy.Query.range_query(schema, "start", tantivy.FieldType.Integer, None, time_ns)
    uncounted = tantivy.Query.const_score_query(until, 0.0)
    return tantivy.Query.boolean_query([(tantivy.Occur.Must, query), (tantivy.Occur.Must, uncounted)])


def may_match(node: Node, now_ns: int) -> MayMatch | None:  # noqa: PLR0911 - one for each kind of node
    """Return a test for parts that may have hits of a parsed query; None if any part may.

    An operand of NOT excludes no part: a part with one service may have other services too.
    """
    match node:
        case Boost(inner, _):
            return may_match(inner, now_ns)
        case AllOf(nodes):
            return _all_of([may for each in nodes if (may := may_match(each, now_ns)) is not None])
        case AnyOf(nodes):
            each_may = [may_match(each, now_ns) for each in nodes]
            known = [may for may in each_may if may is not None]
            return _any_of(known) if len(known) == len(each_may) else None
        case Last() | ValueRange("start"):
            return _starting(starts(node, now_ns))
        case Text("start", text, place) if text:
            return _starting(starts(ValueRange("start", text, text, place), now_ns))
        case Text(field) if field in NAMED and node.text:
            return _named(field, node)
        case _:
            return None


def _all_of(known: Sequence[MayMatch]) -> MayMatch | None:
    return (lambda contents: all(may(contents) for may in known)) if known else None


def _any_of(known: Sequence[MayMatch]) -> MayMatch:
    return lambda contents: any(may(contents) for may in known)


def _starting(within: tuple[int, int] | None) -> MayMatch:
    if within is None:
        return lambda _contents: False
    first, last = within
    return lambda contents: contents.first_ns <= last and first <= contents.last_ns


def _named(field: str, asked: Text) -> MayMatch | None:
    if asked.distance and not asked.quoted:
        return None
    forms = tuple(map(analyzers.lowered, forms_of(asked.text)))

    def may(contents: PartContents) -> bool:
        values = contents.values(field)
        if values is None:
            return True
        return any(each.startswith(forms) if asked.prefix else each in forms for each in values)

    return may
