"""Sessions, users and assessments that spans have from their trace.

The session of a trace is that of its earliest span that has one, as in table `traces`; so is its user. A span without
a session has that of its trace. The index has only what spans carry themselves. So inheritance is resolved by each
search: the spans of a trace arrive in several commits, and the root span, which often carries the session, comes last.

Assessments are in the tracking store, and in evaluation events of spans. The index finds spans with such events of a
name; their rows say which value belongs to the name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import tantivy

from tracelake._errors import QueryError
from tracelake.limits import ASSESSED_TRACES_MAX, INHERITED_SPANS_MAX
from tracelake.otlp.conventions import EVALUATION_NAME, evaluations
from tracelake.search.analyzers import lowered
from tracelake.search.documents import AnyHit, RawHit, raw_hit
from tracelake.search.query_compiler import only_of
from tracelake.search.query_parser import Text
from tracelake.search.query_values import path_term, term_of

QUERIES_CACHED_MAX: Final = 64
_TIES_FIRST: Final = 16
_EARLIEST_READ_MAX: Final = 2_000
"""Spans of several traces that are read together to find the earliest of each."""


@dataclass(frozen=True, slots=True)
class Assessments:
    """Readers of assessments, which are not in the index."""

    stored: Callable[[str, str, str | None], Iterable[tuple[str, Any]]]
    """Function that returns trace ids and values of assessments of a kind and name, in one workspace or in all."""
    events_of: Callable[[Sequence[str], Sequence[int]], Iterable[tuple[str, Sequence[Mapping[str, Any]]]]]
    """Function that returns trace ids and events of spans, by the ids of their traces and rows."""


class Inheritance:
    """Inheritance among the documents of a searcher, in one workspace or in all."""

    def __init__(
        self,
        index: tantivy.Index,
        searcher: tantivy.Searcher,
        workspace: str | None,
        assessments: Assessments | None = None,
    ) -> None:
        self._assessments = assessments
        self._index = index
        self._searcher = searcher
        self._workspace = workspace
        self._queries: dict[tuple[object, ...], tantivy.Query] = {}

    def query(self, node: Text, own: tantivy.Query) -> tantivy.Query:
        """Return the query for spans with this value of their own or of their trace. See `query_compiler.Inherited`."""
        key = (node.field, node.text, node.prefix, node.distance, node.quoted)
        query = self._queries.get(key)
        if query is None:
            query = self._resolved(node.field or "", own)
            for oldest in list(self._queries)[: max(0, len(self._queries) + 1 - QUERIES_CACHED_MAX)]:
                self._queries.pop(oldest, None)  # other threads may drop it, too
            self._queries[key] = query
        return query

    def _resolved(self, field: str, own: tantivy.Query) -> tantivy.Query:
        hits = self._search([own], INHERITED_SPANS_MAX, order=tantivy.Order.Desc)
        carriers = [self._raw(hit) for hit in hits]
        traces = {carrier.trace_id for carrier in carriers}
        if not traces:
            return own
        others = self._search([self._of_traces(traces), tantivy.Query.exists_query(field)], without=own)
        if others:
            rows = {carrier.row for carrier in carriers}
            contested = {self._raw(hit).trace_id for hit in others}
            earliest = self.earliest(field, contested)
            traces -= {trace_id for trace_id in contested if earliest[trace_id].row not in rows}
        heirs = tantivy.Query.boolean_query(
            [
                (tantivy.Occur.Must, self._of_traces(traces)),
                (tantivy.Occur.MustNot, tantivy.Query.exists_query(field)),
            ]
        )
        return tantivy.Query.boolean_query([(tantivy.Occur.Should, own), (tantivy.Occur.Should, heirs)])

    def assessed(self, kind: str, name: str, matches: Callable[[Any], bool]) -> Collection[str]:
        """Return the traces with an assessment whose value matches. Raises QueryError if there are too many."""
        if self._assessments is None:
            return ()
        stored = self._assessments.stored(kind, name, self._workspace)
        traces = {trace_id for trace_id, value in stored if matches(value)}
        if kind == "feedback":
            traces |= self._evaluated(name, matches)
        if len(traces) > ASSESSED_TRACES_MAX:
            raise QueryError(
                f"more than {ASSESSED_TRACES_MAX:,} traces have this {kind} {name!r}; name a rarer value"
            )
        return traces

    def _evaluated(self, name: str, matches: Callable[[Any], bool]) -> set[str]:
        """Return the traces with an evaluation event of this name whose label or score matches."""
        assert self._assessments is not None
        term = lowered(term_of(path_term(f"events.{EVALUATION_NAME}"), name))
        having = tantivy.Query.term_query(self._index.schema, "attribute", term, "basic")
        carriers = [self._raw(hit) for hit in self._search([having], ASSESSED_TRACES_MAX + 1)]
        if not carriers:
            return set()
        traces = sorted({carrier.trace_id for carrier in carriers})
        read = self._assessments.events_of(traces, [carrier.row for carrier in carriers])
        return {
            trace_id
            for trace_id, events in read
            for evaluation in evaluations(events)
            if lowered(evaluation.name) == lowered(name)
            and any(matches(value) for value in (evaluation.label, evaluation.score) if value is not None)
        }

    def spans(self, term: str, beginning: str) -> list[int]:
        """Return the rows of the spans with a term in field `attribute` whose span id begins with a text."""
        documents = self._searcher.doc_freq("attribute", term)
        having = tantivy.Query.term_query(self._index.schema, "attribute", term, "basic")
        carriers = [self._raw(hit) for hit in self._search([having], documents)] if documents else []
        return [carrier.row for carrier in carriers if carrier.span_id.startswith(beginning)]

    def earliest(self, field: str, trace_ids: Collection[str]) -> dict[str, RawHit]:
        """Return the earliest span with a value of its own of each trace that has one."""
        having = tantivy.Query.exists_query(field)
        hits = self._search([self._of_traces(trace_ids), having], _EARLIEST_READ_MAX)
        if len(hits) < _EARLIEST_READ_MAX:
            by_trace: dict[str, list[tuple[float, RawHit]]] = {}
            for hit in hits:
                raw = self._raw(hit)
                by_trace.setdefault(raw.trace_id, []).append((hit[0], raw))
            return {trace_id: _first(several) for trace_id, several in by_trace.items()}
        each = {trace_id: self._earliest_of(having, trace_id) for trace_id in trace_ids}
        return {trace_id: raw for trace_id, raw in each.items() if raw is not None}

    def _earliest_of(self, having: tantivy.Query, trace_id: str) -> RawHit | None:
        of_trace, length = self._of_traces([trace_id]), _TIES_FIRST
        hits = self._search([of_trace, having], length)
        while len(hits) == length and hits[0][0] == hits[-1][0]:
            length *= 4
            hits = self._search([of_trace, having], length)
        return _first([(hit[0], self._raw(hit)) for hit in hits]) if hits else None

    def _search(
        self,
        queries: Sequence[tantivy.Query],
        limit: int | None = None,
        *,
        without: tantivy.Query | None = None,
        order: tantivy.Order = tantivy.Order.Asc,
    ) -> list[AnyHit]:
        """Return the documents that match all of these queries, by start time."""
        documents = self._searcher.num_docs
        clauses = [(tantivy.Occur.Must, query) for query in queries]
        if without is not None:
            clauses.append((tantivy.Occur.MustNot, without))
        query = tantivy.Query.boolean_query(clauses)
        if self._workspace is not None:
            query = only_of(self._index, query, "workspace", self._workspace)
        wanted = documents if limit is None else min(limit, documents)
        if not wanted:
            return []
        return self._searcher.search(query, wanted, count=False, order_by_field="start", order=order).hits

    def _of_traces(self, trace_ids: Collection[str]) -> tantivy.Query:
        return tantivy.Query.term_set_query(self._index.schema, "trace", sorted(trace_ids))

    def _raw(self, hit: AnyHit) -> RawHit:
        return raw_hit(self._searcher, 0.0, hit[1])


def _first(several: Sequence[tuple[float, RawHit]]) -> RawHit:
    """Return the first of these spans by start time and span id, as for table `traces`."""
    return min(several, key=lambda hit: (hit[0], hit[1].span_id, hit[1].row))[1]
