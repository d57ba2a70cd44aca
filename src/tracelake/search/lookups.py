"""Clauses of a query that the terms of one field do not answer: span types, columns of the table, and assessments.

A span's type follows from several attributes in the index. Costs and some token counts are read from table `spans`, so
that indexes of earlier releases answer too. Assessments change at any time; each search reads them from the tracking
store and from evaluation events.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, get_args

import tantivy

from tracelake.otlp.conventions import TYPE_NAMES, SpanType, types_by_value
from tracelake.search import analyzers, query_parser, query_values
from tracelake.search.query_values import path_term, term_of
from tracelake.search.similar import Alike

INHERITED: Final = ("session", "user")
"""Fields whose values a span inherits from its trace; see `inheritance.py`."""
Inherited: TypeAlias = Callable[[query_parser.Text, tantivy.Query], tantivy.Query]
"""Function that returns the query for spans with an own or inherited value, given that for own values."""
RowsWhere: TypeAlias = Callable[[str], Sequence[int]]
"""Function that returns the ids of the rows of table `spans` that meet an SQL condition."""
AssessedTraces: TypeAlias = Callable[[str, str, Callable[[Any], bool]], Collection[str]]
"""Function that returns the traces with an assessment of a kind and name whose value passes a test."""
SpansOf: TypeAlias = Callable[[str, str], Sequence[int]]
"""Function that returns the ids of the rows with a term in field `attribute` whose span id begins with a text."""


@dataclass(frozen=True, slots=True)
class Lookups:
    """Functions that answer the clauses that a compiled query alone cannot. A clause without its function finds
    nothing, as in a lake without spans."""

    alike: Alike | None = None
    inherited: Inherited | None = None
    rows_where: RowsWhere | None = None
    assessed: AssessedTraces | None = None
    spans: SpansOf | None = None


NO_LOOKUPS: Final = Lookups()


@dataclass(frozen=True, slots=True)
class DoubleBounds:
    """DoubleBounds of doubles; None is an open bound."""

    low: float | None
    high: float | None
    with_low: bool
    with_high: bool

    def holds(self, number: float) -> bool:
        """Return whether a number is within the bounds. NaN is not."""
        above = self.low is None or number > self.low or (self.with_low and number == self.low)
        below = self.high is None or number < self.high or (self.with_high and number == self.high)
        return above and below and number == number  # noqa: PLR0124  NaN


def doubles_of(node: query_parser.ValueRange) -> DoubleBounds:
    """Return the bounds of a range. Raises QuerySyntaxError if one is no number."""
    low, high = (None if text is None else query_values.double(text) for text in (node.low, node.high))
    for text, value in ((node.low, low), (node.high, high)):
        if text is not None and value is None:
            raise query_parser.QuerySyntaxError(node.place, f"{text!r} is not a number, such as 0.01")
    return DoubleBounds(low, high, node.with_low, node.with_high)


def cost_condition(node: query_parser.ValueRange) -> str:
    """Return the SQL condition on column `cost`, in US dollars."""
    bounds = doubles_of(node)
    sides = (
        (bounds.low, ">=" if bounds.with_low else ">"),
        (bounds.high, "<=" if bounds.with_high else "<"),
    )
    written = [f"cost {sign} '{bound!r}'::double" for bound, sign in sides if bound is not None]
    return " and ".join(written) or "cost is not null"


def is_number(value: Any) -> bool:
    """Return whether a JSON value is a number, which true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def value_test(node: query_parser.Text) -> Callable[[Any], bool]:
    """Return a test for the value of an assessment, which may be any JSON value. Texts match in any case."""
    if node.distance:
        raise query_parser.QuerySyntaxError(
            node.place, f"~ applies to words and names; write {node.field}:ab* instead"
        )
    if not node.text:
        raise query_parser.QuerySyntaxError(
            node.place, f"the value is empty; write {node.field}:* for any value"
        )
    number = None if node.quoted or node.prefix else query_values.double(node.text)
    wanted = analyzers.lowered(node.text)

    def matches(value: Any) -> bool:
        if number is not None and is_number(value):
            return float(value) == number
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        lowered = analyzers.lowered(text)
        return lowered.startswith(wanted) if node.prefix else lowered == wanted

    return matches


def types_wanted(node: query_parser.Text) -> list[SpanType]:
    """Return the span types that a clause names. Raises QuerySyntaxError if there are none."""
    types: tuple[SpanType, ...] = get_args(SpanType)
    text = node.text.lower()
    wanted = [each for each in types if each == text or (node.prefix and each.startswith(text))]
    if not wanted or node.distance:
        raise query_parser.QuerySyntaxError(
            node.place, f"there is no span type {node.text!r}; the types are {', '.join(types)}"
        )
    return wanted


def type_query(schema: tantivy.Schema, wanted: SpanType) -> tantivy.Query:
    """Return the query for spans of a type. As in column `type`, the first attribute with a known value states it;
    a span with a model and tokens, but without such an attribute, is a model call."""
    by_value, several = types_by_value(), list[tuple[tantivy.Occur, tantivy.Query]]()
    stated: list[tuple[tantivy.Occur, tantivy.Query]] = []
    for name in TYPE_NAMES:
        own = _states_type(schema, name, [value for value, each in by_value.items() if each == wanted])
        first = tantivy.Query.boolean_query([(tantivy.Occur.Must, own), *stated])
        several.append((tantivy.Occur.Should, first))
        stated.append((tantivy.Occur.MustNot, _states_type(schema, name, list(by_value))))
    if wanted == "llm":
        usage = [tantivy.Query.exists_query(name) for name in ("input_tokens", "output_tokens")]
        calls = [
            (tantivy.Occur.Must, tantivy.Query.exists_query("model")),
            (
                tantivy.Occur.Must,
                tantivy.Query.boolean_query([(tantivy.Occur.Should, each) for each in usage]),
            ),
        ]
        several.append((tantivy.Occur.Should, tantivy.Query.boolean_query([*calls, *stated])))
    return tantivy.Query.boolean_query(several)


def _states_type(schema: tantivy.Schema, name: str, values: Sequence[str]) -> tantivy.Query:
    path = path_term(f"attributes.{name}")
    # MLflow writes attributes as JSON.
    written = [text for value in values for text in (value, f'"{value}"')]
    terms = [analyzers.lowered(term_of(path, text)) for text in written]
    return tantivy.Query.term_set_query(schema, "attribute", terms)


def leaves(node: query_parser.Node, wanted: bool = False) -> Iterator[query_parser.Clause]:
    """Yield all clauses of a tree. With `wanted`, skip clauses that are negated."""
    nodes: list[tuple[query_parser.Node, bool]] = [(node, True)]
    while nodes:
        inner, positive = nodes.pop()
        match inner:
            case query_parser.Boost(node, _):
                nodes.append((node, positive))
            case query_parser.Not(node):
                nodes.append((node, not positive))
            case query_parser.AllOf(several) | query_parser.AnyOf(several):
                nodes += [(each, positive) for each in reversed(several)]
            case _:
                if positive or not wanted:
                    yield inner


def is_like(node: query_parser.Node) -> bool:
    """Whether a query has a `like:` clause. The index determines the words of such a clause."""
    return any(isinstance(leaf, query_parser.Text) and leaf.field == "like" for leaf in leaves(node))


def is_inherited(node: query_parser.Node) -> bool:
    """Whether a query has a value that spans inherit from their trace: a session, a user or an assessment."""
    return any(
        isinstance(leaf, query_parser.Text | query_parser.ValueRange)
        and (
            (leaf.field in INHERITED and isinstance(leaf, query_parser.Text) and leaf.text)
            or _path_of(leaf).startswith(query_parser.ASSESSED)
        )
        for leaf in leaves(node)
    )


def _path_of(leaf: query_parser.Text | query_parser.ValueRange) -> str:
    """Return the field of a clause, also of one that asks for its existence."""
    return leaf.text if isinstance(leaf, query_parser.Text) and leaf.field == "has" else leaf.field or ""


def reads_rows(node: query_parser.Node) -> bool:
    """Whether a query has a condition on columns of table `spans`."""
    return any(
        isinstance(leaf, query_parser.Text | query_parser.ValueRange)
        and _path_of(leaf) in query_parser.TABLE_NUMBERS
        for leaf in leaves(node)
    )


def is_relative(node: query_parser.Node) -> bool:
    """Whether the query depends on the current time, as `last 2h` does."""
    return any(isinstance(leaf, query_parser.Last) for leaf in leaves(node))
