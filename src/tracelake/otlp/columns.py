"""Builder of span record batches, column by column.

Each column is one list comprehension over the spans of a scope, so that a span is touched as few times as possible.
Attributes are two flat lists, keys and texts, and a count for each owner. A resource or scope is built once; Arrow's
`take` repeats it for its spans.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
from google.protobuf.message import DecodeError as ProtobufDecodeError
from opentelemetry.proto.common.v1.common_pb2 import EntityRef
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from tracelake.limits import OTLP_TEXT_MAX_BYTES, SPANS_EXPANDED_MAX_BYTES
from tracelake.otlp import conventions, messages, prices
from tracelake.otlp.conventions import SERVICE, WORKSPACE, WORKSPACE_DEFAULT
from tracelake.otlp.parse import ROW_BYTES, Dialect
from tracelake.otlp.schema import ATTRIBUTES, EVENT, KINDS, LINK, OTLP_REST, SCOPE, SPANS, STATUSES
from tracelake.otlp.values import (
    READABLE,
    Exceptions,
    Message,
    RefusedError,
    mark_repeats,
    to_text,
    types_tail,
)

if TYPE_CHECKING:
    Array: TypeAlias = pa.Array[Any]
else:
    Array = pa.Array  # generic in the stubs only


class Attributes(NamedTuple):
    """The attributes of several owners (spans, events, …), in the order of the owners."""

    keys: list[str]
    texts: list[str]
    letters: str | None
    """One type letter for each attribute, see values.py; None if all values are strings."""
    counts: list[int]
    types: list[str | None]
    """The type letters of each owner, None if all its values are strings. JSON follows if a letter is `r`: see
    `types_tail`."""


def read_attributes(owners: Sequence[Sequence[Message]]) -> Attributes:
    """Return the attributes of all owners as text. Raises RefusedError for an unsupported value."""
    flat = list(chain.from_iterable(owners))
    counts = list(map(len, owners))
    keys = [entry.key for entry in flat]
    texts: list[str] = [entry.value.string_value for entry in flat]
    if all(texts):
        marked = mark_repeats(keys, counts, None)
        if marked is None:
            return Attributes(keys, texts, None, counts, [None] * len(counts))
        return _with_letters(keys, texts, marked, counts, {})
    letters = ["s"] * len(flat)
    exceptions: dict[int, Exceptions] = {}
    for i, text in enumerate(texts):
        if not text:  # not a string, or an empty one
            try:
                texts[i], letters[i], exact = to_text(flat[i])
            except RefusedError as error:
                raise RefusedError(f"attribute {keys[i]!r:.60}: {error}") from None
            if exact is not None:
                exceptions[i] = exact
    return _with_letters(keys, texts, mark_repeats(keys, counts, letters) or letters, counts, exceptions)


def _with_letters(
    keys: list[str],
    texts: list[str],
    letters: list[str],
    counts: list[int],
    exceptions: dict[int, Exceptions],
) -> Attributes:
    joined = "".join(letters)
    types: list[str | None] = []
    for count, end in zip(counts, accumulate(counts), strict=True):
        piece = joined[end - count : end]
        if exceptions:
            piece += types_tail([exceptions[i] for i in range(end - count, end) if i in exceptions])
        types.append(piece if piece.strip("s") else None)
    return Attributes(keys, texts, joined, counts, types)


def check_texts(texts: Iterable[str], field: str) -> None:
    """Raise RefusedError for a text longer than OTLP_TEXT_MAX_BYTES."""
    for text in texts:
        # The length in characters is free, and a character has at most 4 bytes.
        if 4 * len(text) > OTLP_TEXT_MAX_BYTES and len(text.encode()) > OTLP_TEXT_MAX_BYTES:
            raise RefusedError(f"{field}: {len(text.encode())} bytes, must be at most {OTLP_TEXT_MAX_BYTES}")


class AttributesColumn:
    """Builder of the columns of attributes of many owners."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.texts: list[str] = []
        self.counts: list[int] = []
        self.types: list[str | None] = []

    def extend(self, more: Attributes) -> None:
        """Append the attributes of these owners."""
        self.keys += more.keys
        self.texts += more.texts
        self.counts += more.counts
        self.types += more.types

    def maps(self) -> Array:
        """Return one map for each owner."""
        keys, texts = pa.array(self.keys, pa.string()), pa.array(self.texts, pa.string())
        return pa.MapArray.from_arrays(_offsets(self.counts), keys, texts)

    def letters(self) -> Array:
        """Return the type letters of each owner's attributes."""
        return pa.array(self.types, pa.string())


def list_array(counts: Iterable[int], items: Array) -> Array:
    """Return the items as consecutive lists of the given lengths."""
    return pa.ListArray.from_arrays(_offsets(counts), items)


def _offsets(counts: Iterable[int]) -> Any:
    return pa.array(accumulate(counts, initial=0), pa.int32())


class Children(NamedTuple):
    """The events, or the links, of several spans, in the order of the spans."""

    flat: list[Message]
    counts: list[int]
    attributes: Attributes


_NO_ATTRIBUTES: Final = Attributes([], [], None, [], [])


def read_children(lists: Sequence[Sequence[Message]]) -> Children:
    """Return the children of all spans. Raises RefusedError for an unsupported attribute."""
    flat = list(chain.from_iterable(lists))
    attributes = read_attributes([child.attributes for child in flat]) if flat else _NO_ATTRIBUTES
    return Children(flat, list(map(len, lists)), attributes)


class ChildrenColumn:
    """Collector of the events, or of the links, of many spans."""

    def __init__(self, kind: pa.StructType) -> None:
        """Create a collector for children of an Arrow type."""
        self._fields = list(kind)
        self._counts: list[int] = []
        self._values: dict[str, list[Any]] = {field.name: [] for field in self._fields}
        self._attributes = AttributesColumn()

    def extend(self, children: Children, **values: Sequence[Any]) -> None:
        """Add the children of more spans, with the values of their fields other than attributes."""
        self._counts += children.counts
        if children.flat:
            for name, more in values.items():
                self._values[name] += more
            self._values["dropped_attributes_count"] += [
                child.dropped_attributes_count for child in children.flat
            ]
            self._attributes.extend(children.attributes)

    def lists(self) -> Array:
        """Return one list for each span."""
        arrays: dict[str, Array] = {
            "attributes": self._attributes.maps(),
            "attribute_types": self._attributes.letters(),
        }
        children = [
            arrays[field.name] if field.name in arrays else pa.array(self._values[field.name], field.type)
            for field in self._fields
        ]
        return list_array(self._counts, pa.StructArray.from_arrays(children, fields=self._fields))


class Resources:
    """Builder of the columns of resources. Each resource has a number, counted from 0."""

    def __init__(self) -> None:
        self.sizes_bytes: list[int] = []
        self._columns: dict[str, list[Any]] = {name: [] for name in _RESOURCE_TYPES}

    def add(self, resource_spans: Message) -> int:
        """Add the resource and schema URL of a ResourceSpans; return the resource's number. Raises RefusedError if an
        attribute or text is not supported."""
        row: dict[str, Any] = {"resource_schema_url": resource_spans.schema_url or None}
        size_bytes = len(resource_spans.schema_url)
        if resource_spans.HasField("resource"):
            resource = resource_spans.resource
            attributes = read_attributes([resource.attributes])
            check_texts(attributes.keys, "resource.attributes")
            check_texts(attributes.texts, "resource.attributes")
            row["resource"] = list(zip(attributes.keys, attributes.texts, strict=True))
            row["resource_types"] = attributes.types[0]
            row["resource_dropped_attributes_count"] = resource.dropped_attributes_count
            row["resource_entity_refs"] = [_entity_ref(ref) for ref in resource.entity_refs] or None
            row["service"] = _text_attribute(attributes, SERVICE)
            row["workspace"] = _text_attribute(attributes, WORKSPACE)
            size_bytes += sum(map(len, attributes.keys)) + sum(map(len, attributes.texts))
            size_bytes += len(attributes.types[0] or "")
        row["workspace"] = row.get("workspace") or WORKSPACE_DEFAULT
        for name, values in self._columns.items():
            values.append(row.get(name))
        self.sizes_bytes.append(size_bytes)
        return len(self.sizes_bytes) - 1

    def names(self, number: int) -> tuple[str | None, str]:
        """Return the service and workspace of a resource."""
        return self._columns["service"][number], self._columns["workspace"][number]

    def workspaces(self) -> set[str]:
        """Return the workspaces of all resources."""
        return set(self._columns["workspace"])

    def arrays(self) -> dict[str, Array]:
        """Return the columns, one row for each resource."""
        return {name: pa.array(values, _RESOURCE_TYPES[name]) for name, values in self._columns.items()}


_RESOURCE_TYPES: dict[str, pa.DataType] = {
    "workspace": pa.string(),
    "service": pa.string(),
    "resource": ATTRIBUTES,
    "resource_types": pa.string(),
    "resource_dropped_attributes_count": pa.uint32(),
    "resource_entity_refs": pa.list_(pa.binary()),
    "resource_schema_url": pa.string(),
}


class Scopes:
    """Builder of the columns of instrumentation scopes. Each scope has a number, counted from 0; `resources` maps it to
    its resource."""

    def __init__(self) -> None:
        self.resources: list[int] = []
        self.sizes_bytes: list[int] = []
        self._scopes: list[dict[str, Any] | None] = []
        self._schema_urls: list[str | None] = []

    def add(self, resource: int, scope_spans: Message) -> int:
        """Add the scope and schema URL of a ScopeSpans; return the scope's number. Raises RefusedError if an attribute
        or text is not supported."""
        row: dict[str, Any] | None = None
        size_bytes = len(scope_spans.schema_url)
        if scope_spans.HasField("scope"):
            scope = scope_spans.scope
            attributes = read_attributes([scope.attributes])
            check_texts(attributes.keys, "scope.attributes")
            check_texts(attributes.texts, "scope.attributes")
            row = {
                "name": scope.name,
                "version": scope.version,
                "attributes": list(zip(attributes.keys, attributes.texts, strict=True)),
                "attribute_types": attributes.types[0],
                "dropped_attributes_count": scope.dropped_attributes_count,
            }
            size_bytes += len(scope.name) + len(scope.version)
            size_bytes += sum(map(len, attributes.keys)) + sum(map(len, attributes.texts))
            size_bytes += len(attributes.types[0] or "")
        self.resources.append(resource)
        self.sizes_bytes.append(size_bytes)
        self._scopes.append(row)
        self._schema_urls.append(scope_spans.schema_url or None)
        return len(self.resources) - 1

    def arrays(self) -> dict[str, Array]:
        """Return the columns, one row for each scope."""
        return {
            "scope": pa.array(self._scopes, SCOPE),
            "scope_schema_url": pa.array(self._schema_urls, pa.string()),
        }


def of_workspace(data: bytes, workspace: str) -> bytes:
    """Return the spans of one workspace of a `TracesData`.

    Data that cannot be parsed is returned unchanged, because the later decoding reports the error.
    """
    resources = Resources()
    with suppress(ProtobufDecodeError, RefusedError):
        groups = TracesData.FromString(data).resource_spans
        own = [group for group in groups if resources.names(resources.add(group))[1] == workspace]
        return TracesData(resource_spans=own).SerializeToString()
    return data


def _text_attribute(attributes: Attributes, name: str) -> str | None:
    """Return the text of the first attribute with that name, if its type is readable."""
    if name not in attributes.keys:
        return None
    at = attributes.keys.index(name)
    return attributes.texts[at] if attributes.letters is None or attributes.letters[at] in READABLE else None


def _entity_ref(ref: Message) -> bytes:
    reference = EntityRef(
        schema_url=ref.schema_url, type=ref.type, id_keys=ref.id_keys, description_keys=ref.description_keys
    )
    return reference.SerializeToString(deterministic=True)


def derive_columns(attributes: Attributes, events: Children) -> dict[str, list[Any]]:
    """Return the derived columns that have any value, each with one entry for each span."""
    present = conventions.NAMES.intersection(attributes.keys)
    derived = conventions.derive(
        attributes.keys, attributes.texts, attributes.letters, attributes.counts, present
    )
    if not present.isdisjoint(messages.FIRST_KEYS) or messages.has_events(events.flat):
        messages.fill(derived, attributes, events)
    return derived


def costs_by(rows: pa.Table, table: prices.PriceTable) -> list[float | None]:
    """Return the cost that stored spans would get if they arrived now: as stated by the sender, or by a price table.

    Tokens are read from the attributes, because parts of earlier releases lack some columns.

    Args:
        rows: spans with `model`, `start_ns`, `attributes` and `otlp`.
        table: the prices.
    """
    several = [entries or [] for entries in rows["attributes"].to_pylist()]
    keys, texts = ([entry[place] for entries in several for entry in entries] for place in (0, 1))
    counts = list(map(len, several))
    types = (fields and fields["attribute_types"] for fields in rows["otlp"].to_pylist())
    letters = "".join(
        letters[:count] if letters else "s" * count for letters, count in zip(types, counts, strict=True)
    )
    derived = conventions.derive(keys, texts, letters, counts, conventions.COST_AND_USAGE.intersection(keys))
    derived["model"] = rows["model"].to_pylist()
    prices.fill(derived, rows["start_ns"].to_pylist(), table)
    return derived.get("cost") or [None] * len(rows)


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
    "type": pa.string(),
    "cost": pa.float64(),
    "trace_state": pa.string(),
    "flags": pa.uint32(),
    "dropped_attributes_count": pa.uint32(),
    "dropped_events_count": pa.uint32(),
    "dropped_links_count": pa.uint32(),
}
"""Columns, and fields of column `otlp`, that have one scalar value for each span."""


class _Read(NamedTuple):
    """The decoded spans of one scope, all of them valid."""

    plain: dict[str, list[Any]]
    attributes: Attributes
    events: Children
    links: Children
    link_ids: tuple[list[str], list[str]]


class SpanChecks:
    """Validator of spans: refuses the same spans as `SpanColumns` but stores nothing.

    `rows` counts the accepted spans; `approx_bytes` estimates their size in Arrow.
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
        """Start a new payload of this size. `growth` is the expected ratio of its size in Arrow to this size."""
        self._payload_bytes = size_bytes
        self._arrow_bytes = growth * size_bytes
        self._expanded_bytes = 0

    def add_resource(self, resource_spans: Message) -> int:
        """Add a resource and its schema URL; return the resource's number. Raises RefusedError if an attribute or text
        is not supported."""
        return self._resources.add(resource_spans)

    def workspaces(self) -> set[str]:
        """Return the workspaces of all accepted resources."""
        return self._resources.workspaces()

    def add_scope(self, resource: int, scope_spans: Message) -> int:
        """Add a scope and its schema URL; return the scope's number. Raises RefusedError if an attribute or text is not
        supported."""
        return self._scopes.add(resource, scope_spans)

    def add_spans(self, scope: int, spans: Sequence[Message], dialect: Dialect) -> None:
        """Add the spans of one scope. Raises RefusedError, without adding any span, if one is refused."""
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
        if self._payload_bytes > OTLP_TEXT_MAX_BYTES:  # a smaller payload cannot hold a longer text
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
            # A payload of 64 MiB can repeat a large resource or scope for a million spans.
            raise RefusedError(
                f"resource of {resource_bytes} bytes, scope of {scope_bytes}: with copies of them the "
                f"payload's spans take more than {SPANS_EXPANDED_MAX_BYTES} bytes; send fewer spans at once"
            )
        if not self._expanded_bytes:
            self.approx_bytes += self._arrow_bytes
        self._expanded_bytes += expanded
        self.approx_bytes += expanded
        self.rows += spans


class SpanColumns(SpanChecks):
    """Builder of record batches of schema SPANS from spans. It contains `rows` spans."""

    def __init__(self, table: prices.PriceTable = prices.SHIPPED) -> None:
        """Create a builder that computes costs by a price table."""
        super().__init__()
        self._prices = table

    def _begin(self) -> None:
        super()._begin()
        self._scope_of_row: list[int] = []
        self._plain: dict[str, list[Any]] = {name: [] for name in _PLAIN_TYPES}
        self._attributes = AttributesColumn()
        self._events = ChildrenColumn(EVENT)
        self._links = ChildrenColumn(LINK)

    def add_spans(self, scope: int, spans: Sequence[Message], dialect: Dialect) -> None:
        """Add the spans of one scope. Raises RefusedError, without adding any span, if one is refused."""
        plain, attributes, events, links, link_ids = self._read(scope, spans, dialect)
        for column, values in (plain | _read_unchecked(plain, spans)).items():
            self._plain[column] += values
        derived = derive_columns(attributes, events)
        prices.fill(derived, plain["start_ns"], self._prices)
        for column in conventions.COLUMNS:
            self._plain[column] += derived.get(column) or [None] * len(spans)
        self._attributes.extend(attributes)
        self._events.extend(
            events,
            time_ns=[event.time_unix_nano for event in events.flat],
            name=[event.name for event in events.flat],
        )
        self._links.extend(
            links,
            trace_id=link_ids[0],
            span_id=link_ids[1],
            trace_state=[link.trace_state or None for link in links.flat],
            flags=[link.flags for link in links.flat],
        )
        self._scope_of_row += [scope] * len(spans)

    def take(self) -> pa.RecordBatch:
        """Return the collected spans as one batch of schema SPANS, and reset the builder."""
        (batch,) = self.take_in_batches(None)
        return batch

    def take_in_batches(self, max_bytes: int | None) -> Iterator[pa.RecordBatch]:
        """Yield the collected spans in batches of at most `max_bytes`, and reset the builder. A larger span is a
        batch alone.

        Resources and scopes are repeated for one batch at a time, to save memory.
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
            children = [some[field.name] for field in OTLP_REST]
            some["otlp"] = pa.StructArray.from_arrays(children, fields=list(OTLP_REST))
            yield pa.RecordBatch.from_arrays([some[name] for name in SPANS.names], schema=SPANS)

    def _starts(self, own_bytes: int, max_bytes: int) -> list[int]:
        """Return the first row of each batch. `own_bytes` is the size of all columns except resources and scopes."""
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


def _read_unchecked(plain: dict[str, list[Any]], spans: Sequence[Message]) -> dict[str, list[Any]]:
    """Return the span columns that need no validation."""
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
    # Some senders write a zero parent id for a root span.
    return [None if parent == _ZERO_SPAN else parent for parent in ids] if _ZERO_SPAN in ids else ids
