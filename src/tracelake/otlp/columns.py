"""Builds record batches of spans, column by column.

A span is touched as few times as possible: a list comprehension for each column over the spans of a scope.
What the spans of a scope share is built once and repeated by Arrow's `take`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import pyarrow as pa

from tracelake.limits import OTLP_TEXT_MAX_BYTES, SPANS_EXPANDED_MAX_BYTES
from tracelake.otlp import conventions
from tracelake.otlp.attributes import Array, Attributes, AttributesColumn, check_texts, read_attributes
from tracelake.otlp.children import Children, EventsColumn, LinksColumn, read_children
from tracelake.otlp.dialects import Dialect
from tracelake.otlp.messages import Message
from tracelake.otlp.names import KINDS, STATUSES
from tracelake.otlp.resources import Resources, Scopes
from tracelake.otlp.schema import OTLP_REST, SPANS
from tracelake.otlp.size import ROW_BYTES
from tracelake.otlp.values import RefusedError

_ZERO_SPAN: Final = "0" * 16

_PLAIN_TYPES: Final = {
    "trace_id": pa.string(),
    "span_id": pa.string(),
    "parent_span_id": pa.string(),
    "name": pa.string(),
    "kind": pa.string(),
    "status": pa.string(),
    "status_message": pa.string(),
    "start_ns": pa.int64(),
    "end_ns": pa.int64(),
    "duration_ns": pa.int64(),
    **dict.fromkeys(conventions.TEXT_COLUMNS, pa.string()),
    **dict.fromkeys(conventions.TOKEN_COLUMNS, pa.int64()),
    "trace_state": pa.string(),
    "flags": pa.uint32(),
    "dropped_attributes_count": pa.uint32(),
    "dropped_events_count": pa.uint32(),
    "dropped_links_count": pa.uint32(),
}
"""Columns, and fields of column `otlp`, that have one plain value for each span."""


class _Read(NamedTuple):
    """The spans of one scope, none of which is refused."""

    plain: dict[str, list[Any]]
    attributes: Attributes
    events: Children
    links: Children
    link_ids: tuple[list[str], list[str]]


class SpanChecks:
    """Takes spans and refuses those that cannot be taken, as `SpanColumns` does, and keeps nothing of them.

    `rows` spans were taken, of about `approx_bytes` in Arrow.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.rows = 0
        self.approx_bytes = 0
        self._payload_bytes = self._arrow_bytes = 0
        self._expanded_bytes = 0
        self._resources = Resources()
        self._scopes = Scopes()

    def start_payload(self, size_bytes: int, growth: int) -> None:
        """Say that what comes next is of a new payload of this size, which grows so many times in Arrow."""
        self._payload_bytes = size_bytes
        self._arrow_bytes = growth * size_bytes
        self._expanded_bytes = 0

    def add_resource(self, resource_spans: Message) -> int:
        """Take resource and schema URL, and return the resource's number. Raises RefusedError."""
        return self._resources.add(resource_spans)

    def workspaces(self) -> set[str]:
        """Return the workspaces of all resources that were taken."""
        return self._resources.workspaces()

    def add_scope(self, resource: int, scope_spans: Message) -> int:
        """Take scope and schema URL, and return the scope's number. Raises RefusedError."""
        return self._scopes.add(resource, scope_spans)

    def add_spans(self, scope: int, spans: Sequence[Message], dialect: Dialect) -> None:
        """Add the spans of one scope, all of them or none. Raises RefusedError."""
        self._read(scope, spans, dialect)

    def _read(self, scope: int, spans: Sequence[Message], dialect: Dialect) -> _Read:
        plain = _read_plain(spans, dialect)
        attributes = read_attributes([span.attributes for span in spans])
        events = read_children([span.events for span in spans])
        links = read_children([span.links for span in spans])
        link_ids = (
            dialect.loose_ids([link.trace_id for link in links.flat], "links.traceId"),
            dialect.loose_ids([link.span_id for link in links.flat], "links.spanId"),
        )
        if any(event.time_unix_nano >= 2**63 for event in events.flat):
            raise RefusedError("events.timeUnixNano: not below 2**63")
        if self._payload_bytes > OTLP_TEXT_MAX_BYTES:  # else no text can be longer
            for field in ("name", "status_message", "trace_state"):
                check_texts(filter(None, plain[field]), field)
            check_texts((event.name for event in events.flat), "events.name")
            check_texts((link.trace_state for link in links.flat), "links.traceState")
            for owner in (attributes, events.attributes, links.attributes):
                check_texts(owner.keys, "attributes")
                check_texts(owner.texts, "attributes")
        resource = self._scopes.resources[scope]
        self._count(len(spans), self._resources.sizes_bytes[resource], self._scopes.sizes_bytes[scope])
        return _Read(plain, attributes, events, links, link_ids)

    def _count(self, spans: int, resource_bytes: int, scope_bytes: int) -> None:
        expanded = spans * (ROW_BYTES + resource_bytes + scope_bytes)
        if self._expanded_bytes + expanded > SPANS_EXPANDED_MAX_BYTES:
            # A payload of 64 MiB can repeat a large resource, or scope, for a million spans.
            raise RefusedError(
                f"resource of {resource_bytes} bytes, scope of {scope_bytes}: with them the payload's spans take more "
                f"than {SPANS_EXPANDED_MAX_BYTES} bytes; send fewer spans at once"
            )
        if not self._expanded_bytes:
            self.approx_bytes += self._arrow_bytes
        self._expanded_bytes += expanded
        self.approx_bytes += expanded
        self.rows += spans


class SpanColumns(SpanChecks):
    """Collects spans, and gives them away as one record batch of schema SPANS. `rows` spans are held."""

    def _begin(self) -> None:
        super()._begin()
        self._scope_of_row: list[int] = []
        self._plain: dict[str, list[Any]] = {name: [] for name in _PLAIN_TYPES}
        self._attributes = AttributesColumn()
        self._events = EventsColumn()
        self._links = LinksColumn()

    def add_spans(self, scope: int, spans: Sequence[Message], dialect: Dialect) -> None:
        """Add the spans of one scope, all of them or none. Raises RefusedError."""
        plain, attributes, events, links, link_ids = self._read(scope, spans, dialect)
        for column, values in (plain | _read_rest(plain, spans)).items():
            self._plain[column] += values
        derived = conventions.derive(attributes.keys, attributes.texts, attributes.letters, attributes.counts)
        for column in conventions.COLUMNS:
            self._plain[column] += derived.get(column) or [None] * len(spans)
        self._attributes.extend(attributes)
        self._events.extend(events)
        self._links.extend(links, *link_ids)
        self._scope_of_row += [scope] * len(spans)

    def take(self) -> pa.RecordBatch:
        """Return what is held as one batch of schema SPANS, and start again with nothing."""
        (batch,) = self.take_in_batches(None)
        return batch

    def take_in_batches(self, max_bytes: int | None) -> Iterator[pa.RecordBatch]:
        """Yield what is held in batches that take so many bytes each, or have one span; and start again with nothing.

        Resource and scope are repeated for the spans of one batch at a time.
        """
        columns: dict[str, Array] = {
            name: pa.array(self._plain[name], type_) for name, type_ in _PLAIN_TYPES.items()
        }
        columns["attributes"] = self._attributes.maps()
        columns["attribute_types"] = self._attributes.letters()
        columns["events"] = self._events.lists()
        columns["links"] = self._links.lists()
        of_scopes, of_resources = self._scopes.arrays(), self._resources.arrays()
        resources = pa.array(self._scopes.resources, pa.int32())
        of_rows = pa.array(self._scope_of_row, pa.int32())
        starts = (
            [0]
            if max_bytes is None
            else self._starts(sum(each.nbytes for each in columns.values()), max_bytes)
        )
        self._begin()
        for start, end in pairwise([*starts, len(of_rows)]):
            scope_rows = of_rows.slice(start, end - start)
            resource_rows = resources.take(scope_rows)
            some = {name: array.slice(start, end - start) for name, array in columns.items()}
            some |= {name: array.take(resource_rows) for name, array in of_resources.items()}
            some |= {name: array.take(scope_rows) for name, array in of_scopes.items()}
            rest = [some[field.name] for field in OTLP_REST]
            some["otlp"] = pa.StructArray.from_arrays(rest, fields=list(OTLP_REST))
            yield pa.RecordBatch.from_arrays([some[name] for name in SPANS.names], schema=SPANS)

    def _starts(self, own_bytes: int, max_bytes: int) -> list[int]:
        """Return where batches begin, where all columns but those of resources and scopes take so many bytes."""
        each_bytes = own_bytes // max(len(self._scope_of_row), 1)
        resources, scopes = self._resources.sizes_bytes, self._scopes.sizes_bytes
        of_scope = [
            each_bytes + resources[resource] + size
            for resource, size in zip(self._scopes.resources, scopes, strict=True)
        ]
        starts, total_bytes = [0], 0
        for row, scope in enumerate(self._scope_of_row):
            total_bytes += of_scope[scope]
            if total_bytes > max_bytes and row > starts[-1]:
                starts.append(row)
                total_bytes = of_scope[scope]
        return starts


def _read_plain(spans: Sequence[Message], dialect: Dialect) -> dict[str, list[Any]]:
    starts = [span.start_time_unix_nano for span in spans]
    ends = [span.end_time_unix_nano for span in spans]
    for field, times in (("startTimeUnixNano", starts), ("endTimeUnixNano", ends)):
        if max(times, default=0) >= 2**63:
            raise RefusedError(f"{field}: {max(times)} is not below 2**63")
    trace_ids = dialect.ids([span.trace_id for span in spans], "traceId", 16)
    span_ids = dialect.ids([span.span_id for span in spans], "spanId", 8)
    for field, ids, zero in (("traceId", trace_ids, "0" * 32), ("spanId", span_ids, _ZERO_SPAN)):
        if zero in ids:
            raise RefusedError(f"{field}: all zero")
    statuses = dialect.statuses(spans)
    return {
        "trace_id": trace_ids,
        "span_id": span_ids,
        "parent_span_id": _read_parents(spans, dialect),
        "name": [span.name for span in spans],
        "kind": [KINDS[span.kind] for span in spans],
        "status": [None if status is None else STATUSES[status.code] for status in statuses],
        "status_message": [None if status is None else status.message or None for status in statuses],
        "start_ns": starts,
        "end_ns": ends,
        "trace_state": [span.trace_state or None for span in spans],
    }


def _read_rest(plain: dict[str, list[Any]], spans: Sequence[Message]) -> dict[str, list[Any]]:
    """Return the columns of spans that nothing is checked of."""
    times = zip(plain["start_ns"], plain["end_ns"], strict=True)
    return {
        "duration_ns": [end and end - start for start, end in times],
        "flags": [span.flags for span in spans],
        "dropped_attributes_count": [span.dropped_attributes_count for span in spans],
        "dropped_events_count": [span.dropped_events_count for span in spans],
        "dropped_links_count": [span.dropped_links_count for span in spans],
    }


def _read_parents(spans: Sequence[Message], dialect: Dialect) -> list[str | None]:
    parents = [span.parent_span_id for span in spans]
    digits = iter(dialect.ids([parent for parent in parents if parent], "parentSpanId", 8))
    ids = [next(digits) if parent else None for parent in parents]
    # Some senders write zeros for the parent of a root.
    return [None if parent == _ZERO_SPAN else parent for parent in ids] if _ZERO_SPAN in ids else ids
