"""Hypothesis strategies that several tests share: OTLP messages that use every field."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from opentelemetry.proto.common.v1 import common_pb2 as common
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1 import trace_pb2 as pb

from tracelake.otlp import conventions

MAX_INT64 = 2**63 - 1

texts = st.one_of(
    st.sampled_from(["", "a", "null", "1", "NaN", '"quoted"', "\0", "line\nbreak", "ü", "𝄞", "x" * 300]),
    st.text(max_size=8),
)
_DERIVED = [
    name
    for table in (conventions.TEXT_COLUMNS, conventions.TOKEN_COLUMNS)
    for column in table.values()
    for name in column
]
names = texts | st.sampled_from([conventions.SERVICE, conventions.WORKSPACE, *_DERIVED])
int64s = st.one_of(st.sampled_from([0, 1, -1, MAX_INT64, -(2**63)]), st.integers(-(2**63), MAX_INT64))
# Only one NaN, because the bits of others are not preserved.
doubles = st.one_of(
    st.sampled_from(
        [0.0, -0.0, 1.0, 1e16, 5e-324, 1.7976931348623157e308, float("inf"), float("-inf"), float("nan")]
    ),
    st.floats(allow_nan=False),
)
uint32s = st.one_of(st.just(0), st.integers(0, 2**32 - 1))
enums = st.one_of(st.integers(0, 6), st.sampled_from([-1, 77, 2**31 - 1, -(2**31)]))
times_ns = st.one_of(st.sampled_from([0, 1, MAX_INT64]), st.integers(0, MAX_INT64))


def ids(size: int) -> st.SearchStrategy[bytes]:
    """Draw ids of this many bytes, never all zero."""
    return st.one_of(
        st.sampled_from([bytes(size - 1) + b"\1", b"\xff" * size]), st.binary(min_size=size, max_size=size)
    ).filter(any)


def _plain_values() -> st.SearchStrategy[common.AnyValue]:
    return st.one_of(
        st.just(common.AnyValue()),
        texts.map(lambda text: common.AnyValue(string_value=text)),
        st.booleans().map(lambda flag: common.AnyValue(bool_value=flag)),
        int64s.map(lambda number: common.AnyValue(int_value=number)),
        doubles.map(lambda number: common.AnyValue(double_value=number)),
        st.binary(max_size=5).map(lambda data: common.AnyValue(bytes_value=data)),
        st.integers(0, 9).map(lambda index: common.AnyValue(string_value_strindex=index)),
    )


def _nested_values(inner: st.SearchStrategy[common.AnyValue]) -> st.SearchStrategy[common.AnyValue]:
    entries = st.builds(
        common.KeyValue, key=texts, value=st.none() | inner, key_strindex=st.sampled_from([0, 0, 0, 3])
    )
    return st.one_of(
        st.lists(inner, max_size=3).map(
            lambda values: common.AnyValue(array_value=common.ArrayValue(values=values))
        ),
        st.lists(entries, max_size=3).map(
            lambda values: common.AnyValue(kvlist_value=common.KeyValueList(values=values))
        ),
    )


values = st.recursive(_plain_values(), _nested_values, max_leaves=6)
key_values = st.builds(common.KeyValue, key=names, value=st.none() | values)
# names may repeat
attributes = st.lists(key_values, max_size=4)

events = st.builds(
    pb.Span.Event,
    time_unix_nano=times_ns,
    name=texts,
    attributes=attributes,
    dropped_attributes_count=uint32s,
)
links = st.builds(
    pb.Span.Link,
    trace_id=st.one_of(st.just(b""), st.binary(max_size=17)),
    span_id=st.one_of(st.just(b""), ids(8)),
    trace_state=texts,
    attributes=attributes,
    dropped_attributes_count=uint32s,
    flags=uint32s,
)
statuses = st.builds(pb.Status, message=texts, code=enums)
spans = st.builds(
    pb.Span,
    trace_id=ids(16),
    span_id=ids(8),
    trace_state=texts,
    parent_span_id=st.just(b"") | ids(8),
    flags=uint32s,
    name=texts,
    kind=enums,
    start_time_unix_nano=times_ns,
    end_time_unix_nano=times_ns,
    attributes=attributes,
    dropped_attributes_count=uint32s,
    events=st.lists(events, max_size=2),
    dropped_events_count=uint32s,
    links=st.lists(links, max_size=2),
    dropped_links_count=uint32s,
    status=st.none() | statuses,
)
entity_refs = st.builds(
    common.EntityRef,
    schema_url=texts,
    type=texts,
    id_keys=st.lists(texts, max_size=2),
    description_keys=st.lists(texts, max_size=2),
)
resources = st.builds(
    Resource,
    attributes=attributes,
    dropped_attributes_count=uint32s,
    entity_refs=st.lists(entity_refs, max_size=2),
)
scopes = st.builds(
    common.InstrumentationScope,
    name=texts,
    version=texts,
    attributes=attributes,
    dropped_attributes_count=uint32s,
)
scope_spans = st.builds(
    pb.ScopeSpans, scope=st.none() | scopes, spans=st.lists(spans, max_size=3), schema_url=texts
)
resource_spans = st.builds(
    pb.ResourceSpans,
    resource=st.none() | resources,
    scope_spans=st.lists(scope_spans, max_size=2),
    schema_url=texts,
)
traces_data = st.builds(pb.TracesData, resource_spans=st.lists(resource_spans, max_size=2))
"""Draw any message that Tracelake accepts whole."""


def span_facts(data: pb.TracesData) -> list[bytes]:
    """Return each span with its resource and scope, sorted: the facts that must survive every conversion."""
    facts: list[Any] = []
    for resource in data.resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                whole = pb.ResourceSpans(schema_url=resource.schema_url)
                if resource.HasField("resource"):
                    whole.resource.CopyFrom(resource.resource)
                part = whole.scope_spans.add(schema_url=scope.schema_url, spans=[span])
                if scope.HasField("scope"):
                    part.scope.CopyFrom(scope.scope)
                facts.append(whole.SerializeToString(deterministic=True))
    return sorted(facts)
