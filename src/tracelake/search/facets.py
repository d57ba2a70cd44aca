"""Facets and completions.

Facets count all spans that a query matches, by service, model, day and so on, in one pass. Completions propose the
next part of a query that a user types: field names, attribute paths, and values of both.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Final, TypeAlias, get_args

import tantivy

from tracelake import limits
from tracelake._errors import LimitError, QueryError
from tracelake.limits import FACET_VALUES_COUNTED_MAX, FACET_VALUES_MAX
from tracelake.otlp.conventions import SpanType
from tracelake.search import analyzers
from tracelake.search.analyzers import lowered
from tracelake.search.query_compiler import KEYWORDS, only_of
from tracelake.search.query_parser import ORDERED, OWNERS, QUOTED_PATH, escaped, name_of, plain, written
from tracelake.search.query_values import SEPARATOR, as_written, path_term, term_of

_COMPLETIONS_LOOKED_AT_MAX: Final = 500
"""Most frequent values considered for the completions of one workspace."""

DAY: Final = "day"
NAMES: Final = (*analyzers.FACETS, DAY)
"""Names of facets: the whole-value fields, and the UTC day on which spans start."""

_DAY_NS: Final = timedelta(days=1) // timedelta(microseconds=1) * 1000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TOTAL: Final = "total of all"
_ONLY: Final = "only of"
Only: TypeAlias = tuple[tuple[str, str], ...]
"""Fields, each with the only value that is counted."""
NO_OTHERS: Final[Only] = ()
_NONE: Final = f"\0{secrets.token_hex(16)}"
"""Key under which tantivy counts the spans without a value. It is random, so that no real value can equal it."""


@dataclass(frozen=True, slots=True)
class RawFacet:
    """Values with their counts, and the number of spans whose values are not listed."""

    values: tuple[tuple[str, int], ...]
    others: int
    exact: bool = True


@dataclass(frozen=True, slots=True)
class FacetCounts:
    """Total number of spans, and facets by name."""

    total: int
    facets: dict[str, RawFacet]


def check(names: Sequence[str]) -> None:
    """Raise QueryError for an unknown facet name."""
    for name in names:
        if name not in NAMES:
            raise QueryError(f"there is no facet {name!r}; choose {', '.join(NAMES)}.")


def only(*, service: str | None, workspace: str | None) -> Only:
    """Return the field values to which a count is restricted."""
    pairs = (("workspace", workspace), ("service", service))
    return tuple((field, value) for field, value in pairs if value is not None)


def count(
    searcher: tantivy.Searcher, query: tantivy.Query, names: Sequence[str], only: Only = NO_OTHERS
) -> FacetCounts:
    """Count the spans that match a query and have exactly these field values. Raises LimitError if a facet has too many
    values to count."""
    try:
        return _counted(searcher, query, {name: _aggregation(name) for name in names}, only)
    except ValueError as error:
        if not _too_many(error):
            raise
    return _one_by_one(searcher, query, names, only)


def _counted(
    searcher: tantivy.Searcher, query: tantivy.Query, wanted: Mapping[str, Any], only: Only
) -> FacetCounts:
    if not only:
        terms_facet = next((name for name in wanted if "terms" in wanted[name]), None)
        counts = searcher.aggregate(query, {**wanted, **_with_total(terms_facet, wanted)})
        total = counts[_TOTAL]["value"] if terms_facet is None else _in_all(counts[terms_facet])
    else:
        # The index ignores case when it searches for names, but counts them by exact value.
        nested: dict[str, Any] = dict(wanted)
        for field, _ in reversed(only):
            nested = {_ONLY: {**_terms(field), "aggs": nested}}
        counts = searcher.aggregate(query, nested)
        for _, value in only:
            of_value = [bucket for bucket in counts[_ONLY]["buckets"] if bucket["key"] == value]
            if not of_value:
                return FacetCounts(0, {name: RawFacet((), 0) for name in wanted})
            counts = of_value[0]
        total = counts["doc_count"]
    return FacetCounts(int(total), {name: _facet(name, counts[name]) for name in wanted})


def _with_total(terms_facet: str | None, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the aggregation that yields the total.

    If a facet is counted in any case, it also counts spans without a value, which costs nothing extra.
    """
    if terms_facet is None:
        return {_TOTAL: {"value_count": {"field": "row"}}}
    return {terms_facet: {"terms": {**wanted[terms_facet]["terms"], "missing": _NONE}}}


def _in_all(counts: dict[str, Any]) -> int:
    return sum(int(bucket["doc_count"]) for bucket in counts["buckets"]) + int(counts["sum_other_doc_count"])


def _one_by_one(
    searcher: tantivy.Searcher, query: tantivy.Query, names: Sequence[str], only: Only
) -> FacetCounts:
    """Count each facet in a separate pass, because tantivy limits the values of all facets in one pass together."""
    totals = _counted(searcher, query, {}, only)
    for name in names:
        try:
            wanted = _last_days(searcher, query) if name == DAY else _aggregation(name)
            facet = _counted(searcher, query, {name: wanted}, only).facets[name]
        except ValueError as error:
            if not _too_many(error):
                raise
            raise LimitError(
                f"the facet {name} has more values than can be counted at once; narrow the search, or leave it out."
            ) from error
        if name == DAY:
            others = totals.total - sum(number for _, number in facet.values)
            facet = RawFacet(facet.values, others, exact=len(facet.values) == FACET_VALUES_MAX or not others)
        totals.facets[name] = facet
    return totals


def _last_days(searcher: tantivy.Searcher, query: tantivy.Query) -> dict[str, Any]:
    """Return an aggregation of the last days only, if there are more days than one pass can count."""
    latest = searcher.aggregate(query, {DAY: {"max": {"field": "start"}}})[DAY]["value"]
    last = int(latest) // _DAY_NS * _DAY_NS
    bounds = {"min": last - (FACET_VALUES_COUNTED_MAX - 1) * _DAY_NS, "max": last + _DAY_NS}
    return {"histogram": {**_aggregation(DAY)["histogram"], "hard_bounds": bounds}}


def _too_many(error: ValueError) -> bool:
    return str(error).startswith("Aborting aggregation")


def _aggregation(name: str) -> dict[str, Any]:
    if name == DAY:
        return {"histogram": {"field": "start", "interval": _DAY_NS, "min_doc_count": 1}}
    return _terms(name)


def _terms(field: str) -> dict[str, Any]:
    # Each segment returns all of its values. Otherwise, sums over segments would be too low.
    counted = FACET_VALUES_COUNTED_MAX
    return {"terms": {"field": field, "size": counted, "segment_size": counted}}


def _facet(name: str, counts: dict[str, Any]) -> RawFacet:
    buckets = [
        (_value(name, bucket["key"]), int(bucket["doc_count"]))
        for bucket in counts["buckets"]
        if bucket["key"] != _NONE
    ]
    order = sorted(buckets) if name == DAY else sorted(buckets, key=lambda value: (-value[1], value[0]))
    shown = order[-FACET_VALUES_MAX:] if name == DAY else order[:FACET_VALUES_MAX]
    others = sum(number for _, number in buckets) - sum(number for _, number in shown)
    # If a part of the index omits values, they may be values that other parts list.
    exact = not counts.get("doc_count_error_upper_bound")
    return RawFacet(tuple(shown), others + int(counts.get("sum_other_doc_count", 0)), exact)


def _value(name: str, key: str | float) -> str:
    if name != DAY:
        return str(key)
    return (_EPOCH + timedelta(days=int(key) // _DAY_NS)).date().isoformat()


_TYPED: Final = re.compile(
    rf"""(?:^|(?<=[\s(+-]))(?:({QUOTED_PATH}|[A-Za-z_][\w./-]*):)?(?:"((?:\\.|[^"\\])*)|([^\s"()]*))$""",
    re.DOTALL,
)
_PLAIN_PATH: Final = re.compile(r"\w+\.[\w./-]+")


@dataclass(frozen=True, slots=True)
class OneWorkspace:
    """Restricts completions to one workspace."""

    grammar: tantivy.Index
    name: str

    def has(self, searcher: tantivy.Searcher, field: str, term: str) -> bool:
        """Whether a span of this workspace has a term. The index's list of terms does not record workspaces."""
        schema = self.grammar.schema
        having = tantivy.Query.term_query(schema, field, term, "basic")
        # The index ignores case when it searches for a workspace, but counts by exact value.
        query = only_of(self.grammar, having, "workspace", self.name)
        return count(searcher, query, (), only(service=None, workspace=self.name)).total > 0


def completions(searcher: tantivy.Searcher, query: str, workspace: OneWorkspace | None = None) -> list[str]:
    """Return completed queries that begin with this one, the most frequent values first.

    If a workspace is given, only values of its spans are returned, from among the most frequent values of the index.
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
    # A cut value would complete to a query that finds nothing.
    short = (text for text in values if len(text) <= limits.LIST_TEXT_MAX_CHARS)
    queries = (query[: typed.start()] + text for text in short)
    return list(
        islice((each for each in queries if len(each) <= limits.QUERY_MAX_CHARS), limits.COMPLETIONS_MAX)
    )


def _names(index: _Terms, beginning: str) -> Iterator[str]:
    """Yield fields, and attributes whose path or key begins with this text."""
    for name in (*analyzers.TEXTS, *KEYWORDS, "type", "span", "has", "like"):
        if name.startswith(beginning):
            yield f"{name}:"
    for name in ORDERED:
        if name.startswith(beginning):
            yield f"{name}>"
    owned = () if beginning.startswith(OWNERS) else tuple(owner + beginning for owner in OWNERS)
    for prefix in (beginning, *owned):
        for path in index.beginning("has", path_term(prefix)):
            if path not in analyzers.PARTS:
                yield f"{_path(path)}:"


def _values(index: _Terms, field: str, beginning: str) -> Iterator[str]:
    if field == "has":
        for name in (*analyzers.FACETS, *analyzers.NUMBERS):
            if name.startswith(beginning):
                yield name
        for path in index.beginning("has", path_term(beginning)):
            yield written(path)
    elif field == "type":
        yield from (each for each in get_args(SpanType) if each.startswith(beginning))
    elif field in analyzers.FACETS:
        for value in index.beginning(field, beginning):
            yield written(value)
    elif field.startswith(OWNERS):
        for term in index.beginning("attribute", lowered(term_of(path_term(field), beginning))):
            yield written(term.partition(SEPARATOR)[2])


@dataclass(frozen=True, slots=True)
class _Terms:
    """Terms of an index, of one workspace or of all."""

    searcher: tantivy.Searcher
    workspace: OneWorkspace | None

    def beginning(self, field: str, prefix: str) -> Iterator[str]:
        """Yield the terms of a field with this prefix, in query syntax."""
        workspace = self.workspace
        most = limits.COMPLETIONS_MAX if workspace is None else _COMPLETIONS_LOOKED_AT_MAX
        for term, _ in self.searcher.terms_with_prefix(field, prefix, limit=most):
            if field == "has" and len(term) > limits.INDEX_VALUE_MAX_CHARS:
                continue  # a truncated path, which no query can contain
            if workspace is None or workspace.has(self.searcher, field, term):
                yield as_written(term) if field in analyzers.LISTS else term


def _path(path: str) -> str:
    owner, _, key = path.partition(".")
    return path if _PLAIN_PATH.fullmatch(path) else f'{owner}."{escaped(key)}"'
