"""Hostile payloads at the server and in the task: the task can read every accepted payload, and none harms others."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.otlp.test_bad_payloads import json_payload, json_span, protobuf_payload, varint
from tracelake import limits
from tracelake._errors import DecodeError
from tracelake.limits import OTLP_JSON_DEPTH_MAX, PROBLEM_MAX_CHARS
from tracelake.otlp.columns import SpanColumns
from tracelake.otlp.decode import Decoded, decode_json
from tracelake.otlp.framing import Format, write_segment
from tracelake.otlp.parse import has_spans_beyond, pruned
from tracelake.pipeline.decode_task import Gathered, gather, read_tasks, run_read_task
from tracelake.pipeline.sources.base import Input
from tracelake.pipeline.sources.server_inputs import INBOX
from tracelake.server.otlp_http import Budget, BudgetShare, _decode
from tracelake.storage import open_objects

ResultT = TypeVar("ResultT")
URL = f"memory://{uuid.uuid4().hex}"
TASK_FRAMES = 700
"""Python frames that a task has left, fewer than in any worker; the server has the whole stack."""


def above(frames: int, call: Callable[[], ResultT]) -> ResultT:
    """Call with this number of frames below."""
    return above(frames - 1, call) if frames else call()


def with_stack(left: int | None, call: Callable[[], ResultT]) -> ResultT:
    """Call with about this number of frames left on the stack, or all, whatever the test runner uses."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(above, 0 if left is None else sys.getrecursionlimit() - left, call).result()


def by_the_door(format: Format, payload: bytes) -> Decoded | None:
    """Pass the payload to the server; return the accepted and refused spans, or None if it refuses the payload."""
    share = BudgetShare(Budget(limits.REQUESTS_MEMORY_MAX_BYTES))
    try:
        return with_stack(None, lambda: _decode(format, payload, share, None, takes_apart=False)[0])
    except DecodeError as error:
        str(error).encode()
        return None


def by_the_task(format: Format, payload: bytes) -> Gathered:
    """Read a payload that the server stored, as the pipeline does."""
    objects, path = open_objects(URL), f"inbox/{uuid.uuid4().hex}"
    segment = write_segment([(format, payload)])
    objects.put(path, segment)
    inputs = [Input(INBOX, path, len(segment))]
    (task,) = read_tasks(inputs, URL, 1, "staging/")
    return gather(inputs, [with_stack(TASK_FRAMES, lambda: run_read_task(task))])


def check(format: Format, payload: bytes) -> tuple[int, int]:
    """Compare server and task; return the numbers of accepted and refused spans, or (0, -1) for a refused payload."""
    answer = by_the_door(format, payload)
    if answer is None:
        return 0, -1
    if not answer.accepted:
        return 0, answer.rejected
    gathered = by_the_task(format, payload)
    (taken,) = gathered.sources[INBOX]
    assert not gathered.failed
    assert not taken.damaged
    assert taken.spans == sum(piece.rows for piece in gathered.pieces) == answer.accepted
    assert taken.problems_total == answer.rejected + len(answer.notes)
    assert tuple(reason for _, _, reason in taken.problems) == tuple(sorted((*answer.reasons, *answer.notes)))
    assert all(len(reason) <= PROBLEM_MAX_CHARS for reason in answer.reasons)
    assert msgspec.json.encode(taken)
    return taken.spans, answer.rejected


def deep(levels: int, kind: str = "[]") -> str:
    """Return JSON with this many levels of arrays, objects or attribute values, or without an end."""
    match kind:
        case "[]":
            return "[" * levels + "1" + "]" * levels
        case "{}":
            return '{"a":' * levels + '"[\\"{"' + "}" * levels
        case "open":
            return "[" * levels
        case "array":
            return '{"arrayValue":{"values":[' * levels + '{"intValue":1}' + "]}}" * levels
    head, tail = '{"kvlistValue":{"values":[{"key":"k","value":', "}]}}"
    return head * levels + '{"intValue":1}' + tail * levels


ATOMS = [
    "null",
    "true",
    "5",
    "-5",
    "1e400",
    "-1e400",
    "1.5",
    "NaN",
    "[]",
    "{}",
    "[null]",
    '""',
    '"5"',
    '"x"',
    "9" * 99,
    "9" * 300,
    "-" + "9" * 300,
    "9" * 400,
    "9" * 5000,
    '"' + "9" * 5000 + '"',
    str(2**63),
    str(-(2**63)),
    str(2**64),
    '"' + str(-(2**63)) + '"',
    r'"\ud800"',
    r'"\udc00x"',
    r'"a\ud83d"',
    r'"\ud83d\ude00"',
    r'"\u0000"',
    '"é"',
    r'{"\ud800":"\ud800"}',
    r'[{"bytesValue":"\ud800"}]',
    '{"stringValue":"x"}',
    '{"stringValue":5}',
]
DEPTHS = [31, 32, 33, 64, 180, 199, 200, 201, 230, 330, 480, 500, 700, 990, 1200, 5000]
hostile = st.one_of(
    st.sampled_from(ATOMS),
    st.builds(deep, st.sampled_from(DEPTHS), st.sampled_from(["[]", "{}", "array", "kvlist"])),
)
FIELDS = [
    "traceId",
    "spanId",
    "parentSpanId",
    "traceState",
    "name",
    "kind",
    "flags",
    "status",
    "startTimeUnixNano",
    "endTimeUnixNano",
    "attributes",
    "events",
    "links",
    "droppedEventsCount",
    "unknown",
    r"\ud800",
    "bytesValue",
]
VALUES = [
    "stringValue",
    "boolValue",
    "intValue",
    "doubleValue",
    "arrayValue",
    "kvlistValue",
    "bytesValue",
    "other",
]
GOOD = json.dumps(json_span())[:-1]


def of_attribute(key: str, name: str, value: str) -> str:
    """Return a span with an attribute of this value."""
    return f'{GOOD},"attributes":[{{"key":"{key}","value":{{"{name}":{value}}}}}]}}'


attributes = st.builds(
    of_attribute,
    st.sampled_from(["k", r"\udfff", "gen_ai.usage.input_tokens", "mlflow.chat.tokenUsage"]),
    st.sampled_from(VALUES),
    hostile,
)
fields = st.builds(lambda name, value: f'{GOOD},"{name}":{value}}}', st.sampled_from(FIELDS), hostile)


@given(
    bad=st.lists(attributes | fields, min_size=1, max_size=3),
    header=st.none() | st.tuples(st.sampled_from(["resource", "schemaUrl", "unknown"]), hostile),
)
@example(bad=[f'{GOOD},"name":5,"unknown":{deep(500)}}}'], header=None)
@example(bad=[f'{GOOD},"unknown":{deep(490)}}}'], header=None)
@example(bad=[of_attribute("k", "bytesValue", r'"\ud800"')], header=None)
@example(bad=[rf'{GOOD},"\ud800":1,"name":5}}'], header=("unknown", r'{"\ud800":1}'))
@settings(max_examples=50, deadline=None)
def test_hostile_json(bad: list[str], header: tuple[str, str] | None) -> None:
    """If a span or a separate resource contains any hostile JSON, the good spans before and after it are accepted."""
    spans = ",".join([GOOD + "}", *bad, GOOD + "}"])
    other = "" if header is None else f',{{"{header[0]}":{header[1]},"scopeSpans":[{{"spans":[{GOOD}}}]}}]}}'
    payload = f'{{"resourceSpans":[{{"scopeSpans":[{{"spans":[{spans}]}}]}}{other}]}}'.encode()
    accepted, rejected = check("json", payload)
    assert accepted >= 2
    assert accepted + rejected == 2 + len(bad) + (header is not None)


@given(text=hostile, at=st.integers(0, 200), kind=st.sampled_from(["instead", "inside", "open"]))
@settings(max_examples=60, deadline=None)
def test_hostile_json_anywhere(text: str, at: int, kind: str) -> None:
    """JSON that is broken or nested anywhere is refused, in whole or in part, and raises nothing else."""
    good = json_payload(json_span(), json_span()).decode()
    at = min(at, len(good))
    inside = good[:at] + (deep(500, "open") if kind == "open" else text) + good[at:]
    check("json", (text if kind == "instead" else inside).encode())


def nested_value(levels: int, of_maps: bool) -> bytes:
    """Return a protobuf AnyValue of this many levels."""
    value = b"\x18\x01"
    for _ in range(levels):
        if of_maps:
            value = b"\x0a\x01k\x12" + varint(len(value)) + value
        value = b"\x0a" + varint(len(value)) + value
        value = (b"\x32" if of_maps else b"\x2a") + varint(len(value)) + value
    return value


def with_value(place: str, value: bytes) -> bytes:
    """Return three protobuf spans, with an attribute of this value at one place of the second, or in its header."""
    data = protobuf_payload()
    span = data.resource_spans[0].scope_spans[0].spans[1]
    (span.events.add() if place == "event" else span.links.add() if place == "link" else span).SetInParent()
    entry = b"\x0a\x01k\x12" + varint(len(value)) + value
    parts = [one.SerializeToString() for one in data.resource_spans[0].scope_spans[0].spans]
    tags = {"span": b"\x4a", "event": b"\x1a", "link": b"\x22"}
    if place in tags:
        attribute = tags[place] + varint(len(entry)) + entry
        if place != "span":
            span.ClearField("events")
            span.ClearField("links")
            attribute = (b"\x5a" if place == "event" else b"\x6a") + varint(len(attribute)) + attribute
        parts[1] = span.SerializeToString() + attribute
    head = b""
    if place == "resource":
        head = b"\x0a" + varint(len(entry)) + entry
        head = b"\x0a" + varint(len(head)) + head
    scope = b"".join(b"\x12" + varint(len(part)) + part for part in parts)
    resource = head + b"\x12" + varint(len(scope)) + scope
    return b"\x0a" + varint(len(resource)) + resource


@pytest.mark.parametrize("of_maps", [False, True])
@pytest.mark.parametrize("place", ["span", "event", "link", "resource"])
def test_nested_protobuf(place: str, of_maps: bool) -> None:
    """Protobuf has the same nesting limit as JSON, at every place and for every type of value."""
    for levels in (31, 32, 33, 40, 300):
        fine = levels <= 32
        taken = 3 if fine else 0 if place == "resource" else 2
        assert check("protobuf", with_value(place, nested_value(levels, of_maps))) == (taken, 3 - taken)
        kind = deep(levels, "kvlist" if of_maps else "array")
        value = f'"attributes":[{{"key":"k","value":{kind}}}]'
        if place == "resource":
            spans = ",".join([GOOD + "}"] * 3)
            text = f'{{"resourceSpans":[{{"resource":{{{value}}},"scopeSpans":[{{"spans":[{spans}]}}]}}]}}'
        else:
            own = value if place == "span" else f'"{place}s":[{{{value}}}]'
            spans = f"{GOOD}}},{GOOD},{own}}},{GOOD}}}"
            text = f'{{"resourceSpans":[{{"scopeSpans":[{{"spans":[{spans}]}}]}}]}}'
        assert check("json", text.encode()) == (taken, 3 - taken)


@given(
    places=st.lists(st.integers(0, 400), max_size=3),
    bytes_=st.binary(min_size=1, max_size=4),
    insert=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_hostile_protobuf(places: list[int], bytes_: bytes, insert: bool) -> None:
    """Bytes that are flipped, inserted or deleted give some spans or none, and raise nothing else."""
    data = protobuf_payload()
    for span in data.resource_spans[0].scope_spans[0].spans:
        span.attributes.add(key="gen_ai.usage.input_tokens").value.int_value = -(2**63)
        span.events.add(name="e", time_unix_nano=5)
        span.links.add(trace_id=b"\1" * 16).attributes.add(key="k").value.kvlist_value.values.add(key="n")
    payload = data.SerializeToString()
    for place in places:
        at = place % len(payload)
        payload = payload[:at] + bytes_ + payload[at if insert else at + len(bytes_) :]
    check("protobuf", payload)


def test_groups_in_a_span() -> None:
    """Protobuf groups, which OTLP does not have, refuse at most the span in which they are nested."""
    for levels in (1, 90, 200, 5000):
        data = protobuf_payload()
        spans = data.resource_spans[0].scope_spans[0].spans
        parts = [span.SerializeToString() for span in spans]
        parts[1] += b"\xfb\x07" * levels + b"\xfc\x07" * levels  # field 127
        scope = b"".join(b"\x12" + varint(len(part)) + part for part in parts)
        resource = b"\x12" + varint(len(scope)) + scope
        accepted, rejected = check("protobuf", b"\x0a" + varint(len(resource)) + resource)
        assert accepted + rejected == 3
        assert accepted >= 2


def check_empty_spans() -> None:
    """Check that empty spans are counted."""
    payload = b"\x0a\x0a\x12\x08" + 4 * b"\x12\x00"
    assert has_spans_beyond(payload, 5), "a resource, a scope, and four spans of two bytes"
    assert not has_spans_beyond(payload, 6)


def test_empty_spans_are_counted() -> None:
    """A payload of empty spans, two bytes each, is not skipped as too small for many spans."""
    check_empty_spans()


@pytest.mark.parametrize(
    "group", [b"\xfb\x07\xfc\x07", b"\x0b\x0b\x08\x01\x0c\x12\x01a\x0c"], ids=["empty", "nested"]
)
def test_groups_around_what_is_counted(group: bytes) -> None:
    """Span counters before parsing see the spans after a group, wherever it is; so does a refusal."""

    def field(data: bytes, number: bytes) -> bytes:
        return group + number + varint(len(data)) + data + group

    of_resource = protobuf_payload().resource_spans[0]
    spans = [span.SerializeToString() for span in of_resource.scope_spans[0].spans]
    payload = field(field(b"".join(field(span, b"\x12") for span in spans), b"\x12"), b"\x0a")
    assert has_spans_beyond(payload, 4)
    assert not has_spans_beyond(payload, 5)
    assert check("protobuf", payload) == (3, 0)
    wrong = spans[0] + b"\x2a\x01\xff"  # a name that is not UTF-8
    payload = field(field(b"".join(field(span, b"\x12") for span in (wrong, *spans)), b"\x12"), b"\x0a")
    assert check("protobuf", payload) == (4, 0)


@given(
    st.lists(
        st.sampled_from(
            ["[", "]", "{", "}", '"', "\\", '\\"', '"[', "x", "[" * 150, "]" * 150, "{" * 210, "\\\\"]
        )
    )
)
@settings(max_examples=300, deadline=None)
def test_what_is_pruned(tokens: list[str]) -> None:
    """Pruning blanks exactly the too deep values, as a byte-by-byte reader does, also across 64-byte blocks."""
    text = "".join(tokens).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tracelake.limits.OTLP_BLOCK_BYTES", 64)
        assert pruned(text) == plainly_pruned(text)
    assert pruned(text) == plainly_pruned(text)


def plainly_pruned(text: bytes) -> bytes:
    """Prune in the simplest way."""
    if text.count(b"[") + text.count(b"{") <= OTLP_JSON_DEPTH_MAX:
        return text
    out, depth, in_text, escaped = bytearray(text), 0, False, False
    for at, byte in enumerate(text):
        opens, closes = byte in b"[{" and not in_text, byte in b"]}" and not in_text
        in_text ^= byte == ord('"') and not escaped
        escaped = byte == ord("\\") and not escaped
        depth += opens - closes
        if depth > OTLP_JSON_DEPTH_MAX or (depth == OTLP_JSON_DEPTH_MAX and not opens):
            out[at] = ord(" ")
    return bytes(out)


def test_a_neighbour_does_not_decide() -> None:
    """A span with odd content in an unknown field is accepted, also next to a refused span."""
    odd = [f'{GOOD},"unknown":{atom}}}' for atom in (deep(500), "9" * 300, r'"\ud800"', r'{"\udc00":[null]}')]
    for beside in (GOOD + "}", GOOD + ',"name":5}'):
        payload = f'{{"resourceSpans":[{{"scopeSpans":[{{"spans":[{",".join([*odd, beside])}]}}]}}]}}'
        assert decode_json(payload.encode(), SpanColumns()).accepted == len(odd) + (beside == GOOD + "}")


def test_reasons_are_short_and_text() -> None:
    """A reason is one short line that any record can hold, however long and odd the input is."""
    long: dict[str, Any] = {"stringValue": 5}
    for _ in range(30):
        long = {"kvlistValue": {"values": [{"key": "k", "value": long}]}}
    payload = json_payload(json_span(), json_span(attributes=[{"key": "k", "value": long}]))
    (reason,) = decode_json(payload, SpanColumns()).reasons
    assert len(reason) == PROBLEM_MAX_CHARS
