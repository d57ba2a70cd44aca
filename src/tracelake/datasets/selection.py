"""Which spans become examples: by id, by condition, by search; and what of them is kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from tracelake._errors import NotFoundError, UsageError
from tracelake.datasets.model import Example, Provenance, example_id
from tracelake.limits import DATASET_ADD_DEFAULT, DATASET_ADD_MAX, DATASET_LOOKUP_SPANS, SEARCH_HITS_MAX
from tracelake.otlp.conventions import WORKSPACE_DEFAULT
from tracelake.results import SERVER_KINDS, Row, is_server_side
from tracelake.shards.rows import literal
from tracelake.tables.commit_view import CommitView
from tracelake.tables.table import to_rows

Key: TypeAlias = tuple[str, str, str, bool]
"""Trace id, span id and workspace, and whether the span is on the server side."""
_KEY: Final = ("trace_id", "span_id", "workspace", "kind")
_COLUMNS: Final = (*_KEY, "input", "output", "service", "name", "model")
_KEPT: Final = ("service", "name", "model")
"""Columns that become metadata of an example."""
_ORDER: Final = "start_ns, trace_id, span_id, workspace, kind"


@dataclass(frozen=True, slots=True)
class Selection:
    """Which spans are wanted: by ids, or by a search or a condition, or both of these, at most `limit`."""

    traces: Sequence[str] = ()
    spans: Sequence[str] = ()
    where: str | None = None
    search: str | None = None
    limit: int = DATASET_ADD_DEFAULT

    def check(self) -> None:
        """Raise UsageError where it selects nothing, or by two ways that do not go together."""
        by_id, by_text = bool(self.traces or self.spans), self.where is not None or self.search is not None
        if by_id == by_text:
            raise UsageError(
                "say which spans to add: traces or spans by their ids, or else a condition, a search, or both."
            )
        most = DATASET_ADD_MAX if self.search is None else SEARCH_HITS_MAX
        if not 1 <= self.limit <= most:
            raise UsageError(f"limit must be from 1 to {most:,} here, not {self.limit:,}.")
        if len(self.traces) + len(self.spans) > DATASET_ADD_MAX:
            raise UsageError(f"at most {DATASET_ADD_MAX:,} ids can be added at once.")

    def keys(self, view: CommitView) -> list[Key]:
        """Return the spans in a view, each once. Raises NotFoundError for an id that is not there, QueryError."""
        if self.search is not None:
            hits = view.search(self.search, self.where, self.limit)
            return [(hit.trace_id, hit.span_id, hit.workspace, hit.kind in SERVER_KINDS) for hit in hits]
        if self.where is not None:
            return _matching(view, f"({self.where}\n) and coalesce(input, output) is not null", self.limit)
        if self.traces:
            return list(dict.fromkeys(key for trace in self.traces for key in self._of_trace(view, trace)))
        return self._everywhere(view)

    def _of_trace(self, view: CommitView, trace_id: str) -> list[Key]:
        trace = view.trace(trace_id)
        if not self.spans:
            walk = [span for _, span in trace.walk()]
            first = next((span for span in walk if _has_text(span)), walk[0])
            return [_key_of(first)]
        keys = [_key_of(span) for span in trace.spans if span["span_id"] in self.spans]
        missing = set(self.spans) - {span_id for _, span_id, *_ in keys}
        if len(self.traces) == 1 and missing:
            raise NotFoundError(f"trace {trace.trace_id} has no span {min(missing)}.")
        return keys

    def _everywhere(self, view: CommitView) -> list[Key]:
        keys = _matching(view, f"span_id in ({', '.join(map(literal, self.spans))})", DATASET_ADD_MAX)
        if missing := set(self.spans) - {span_id for _, span_id, *_ in keys}:
            raise NotFoundError(
                f"no span {min(missing)!r} in this lake. `tracelake search` finds ids by text."
            )
        return keys


def _matching(view: CommitView, where: str, limit: int) -> list[Key]:
    table = view.table("spans").to_arrow(list(_KEY), where, _ORDER, limit)
    return [_key_of(row) for row in table.to_pylist()]


def examples(
    view: CommitView, commit: str, keys: Sequence[Key], metadata: Mapping[str, str]
) -> Iterator[list[Example]]:
    """Yield the examples that spans make, some at a time; a span without input and output makes none.

    `metadata` is added to what the span itself says: its service, name and model.
    """
    for start in range(0, len(keys), DATASET_LOOKUP_SPANS):
        wanted = set(keys[start : start + DATASET_LOOKUP_SPANS])
        table = view.table("spans").lookup(sorted({trace_id for trace_id, *_ in wanted}), _COLUMNS)
        yield [
            _example(row, commit, metadata)
            for row in to_rows(table)
            if _key_of(row) in wanted and _has_text(row)
        ]


def _key_of(span: Row) -> Key:
    return span["trace_id"], span["span_id"], span["workspace"], is_server_side(span)


def _has_text(span: Row) -> bool:
    return span["input"] is not None or span["output"] is not None


def _example(row: Row, commit: str, metadata: Mapping[str, str]) -> Example:
    trace_id, span_id, workspace, is_server = _key_of(row)
    of = {} if workspace == WORKSPACE_DEFAULT else {"workspace": workspace}
    of |= {"kind": row["kind"]} if is_server else {}
    return Example(
        id=example_id(trace_id, span_id, workspace, is_server),
        input=row["input"],
        expected_output=row["output"],
        metadata={name: row[name] for name in _KEPT if row[name]} | of | dict(metadata),
        provenance=Provenance(trace_id, span_id, commit),
    )
