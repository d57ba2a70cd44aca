"""A payload sieve passes every payload of which a text passes, and few others."""

from __future__ import annotations

import gzip
import re
from base64 import b64encode
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.trace.v1 import trace_pb2 as pb

from tests.strategies import resource_spans, values
from tracelake.hot.index import _searchable
from tracelake.otlp import conventions
from tracelake.otlp.partition import rows_of, take_apart
from tracelake.otlp.wire import OLD_SCOPE_SPANS_TAG
from tracelake.search.analyzers import ANALYZERS, ENGLISH
from tracelake.search.documents import written
from tracelake.search.prefilter import payload_text, prefilter_of, run_of_payload

WORDS = (
    *(
        "refund",
        "Refunds",
        "dying",
        "orderId42",
        "q7f3a",
        "1e5",
        "true",
        "None",
        "tool",
        "role",
        "\nnew",
        "\x1bred",
    ),
    *("\u212aelvin", "\ufb01ne", "\uff26ull", "\u0130zmir", "e\u0301te", "\uff7a\uff9e", "7", "-3.5", "東京"),
    *("\\u0041pple", "\\u005cu0062ad", "\\uff26ar", "\\nest", '\\"quote', "caf\\u00e9", "<b>", "\x7f", "\0"),
)
texts = st.lists(st.sampled_from(WORDS) | st.text(max_size=3), min_size=1, max_size=4).map("".join)
QUOTED = st.sampled_from(("mlflow.spanInputs", "mlflow.spanOutputs", "mlflow.trace.session"))
KEYS = st.sampled_from(
    ("x", "message", "llm.input_messages.0.message.tool_calls.0.tool_call.id", *conventions.NAMES)
)
EVENTS = ("gen_ai.choice", "gen_ai.user.message", "gen_ai.client.inference.operation.details")
worded = st.one_of(
    texts.map(lambda text: AnyValue(string_value=text)),
    texts.map(lambda text: AnyValue(bytes_value=text.encode())),
    texts.map(lambda text: AnyValue(array_value=ArrayValue(values=[AnyValue(string_value=text)]))),
    texts.map(lambda text: AnyValue(array_value=ArrayValue(values=[AnyValue(bytes_value=text.encode())]))),
    st.builds(
        lambda key, value: AnyValue(kvlist_value=KeyValueList(values=[KeyValue(key=key, value=value)])),
        texts,
        values,
    ),
)
attributes = st.one_of(
    st.builds(KeyValue, key=KEYS, value=worded),
    st.builds(KeyValue, key=QUOTED, value=texts.map(lambda text: AnyValue(string_value=f'"{text}"'))),
)
events = st.builds(
    pb.Span.Event,
    name=st.sampled_from(EVENTS),
    attributes=st.lists(attributes),
)


@st.composite
def payloads(draw: st.DrawFn) -> bytes:
    """Generate a payload with any fields, and with texts that payloads have in another form."""
    resource = draw(resource_spans)
    for scope in resource.scope_spans:
        for span in scope.spans:
            span.name += draw(texts)
            span.attributes.extend(draw(st.lists(attributes, max_size=3)))
            span.events.extend(draw(st.lists(events, max_size=1)))
    return pb.TracesData(resource_spans=[resource]).SerializeToString()


NOT_SOUGHT = ("trace_id", "span_id", "kind", "status", "workspace")


def text_of(payload: bytes) -> bytes:
    """Return the text of a payload that a sieve tests, without columns that no payload sieve is for."""
    batch = rows_of(payload).take()
    columns = {
        name: pa.nulls(len(batch), pa.string()) if name in NOT_SOUGHT else batch.column(name)
        for name in batch.schema.names
    }
    return _searchable(written(pa.record_batch(columns)).to_pylist())


def queries_of(text: bytes) -> set[str]:
    """Return queries for words and values of a text."""
    words = re.findall(r"\w+", text.decode(errors="replace"))
    values = [
        line for line in text.decode(errors="replace").split("\n") if 0 < len(line) < 40 and '"' not in line
    ]
    fields = ("service", "model", "session", "user", "attributes.x", "name")
    every = {form for word in words for form in (word, word[: len(word) // 2 + 1] + "*")}
    return every | {f'{field}:"{value}"' for value in values[:9] for field in fields if "\\" not in value}


def check_payload(payload: bytes) -> int:
    """Check that the sieves of all queries for a payload's words pass it; return the number of useful sieves."""
    text, low, useful = text_of(payload), payload_text(payload), 0
    if low is None:
        return 0
    for run in re.findall(rb"[a-z0-9]+", text):
        assert run_of_payload(run.decode()).encode() in low, run
    for query in islice(sorted(queries_of(text)), 400):
        for analyzer in ANALYZERS.values():
            sieve = prefilter_of(query, None, None, analyzer)
            if sieve is not None and sieve.payload_passes is not None:
                useful += 1
                assert sieve.payload_passes(low) or not sieve(text), (query, analyzer.name)
    return useful


@given(payloads())
@settings(deadline=None)
def test_what_the_text_sieve_passes_passes(payload: bytes) -> None:
    """For any payload and any word of its texts, the payload sieve passes it, unless the payload hides text."""
    check_payload(payload)


def any_value(text: str) -> AnyValue:
    return AnyValue(string_value=text)


def payload_of(key: str, value: AnyValue, event: str = "", trace_id: bytes = b":" * 16) -> bytes:
    """Return a payload of one span with an attribute of the span, and of an event if it has a name."""
    span = pb.Span(trace_id=trace_id, span_id=b":" * 8, start_time_unix_nano=1, end_time_unix_nano=2)
    span.attributes.add(key=key).value.CopyFrom(value)
    if event:
        span.events.add(name=event).attributes.add(key="content").value.CopyFrom(value)
    scope = pb.ScopeSpans(spans=[span])
    return pb.TracesData(resource_spans=[pb.ResourceSpans(scope_spans=[scope])]).SerializeToString()


BYTES_ENTRY = KeyValue(key="inner", value=AnyValue(bytes_value=b"refund policy"))
TEXT_ENTRY = KeyValue(key="same", value=any_value("na\u00efve\nbest"))
CASES: dict[str, tuple[str, AnyValue] | tuple[str, AnyValue, str]] = {
    "kelvin": ("x", any_value("\u212aelvin")),
    "ligature": ("x", any_value("\ufb01ne")),
    "full width": ("x", any_value("\uff21\uff22le")),
    "full width, small": ("x", any_value("\uff41\uff42le")),
    "dotted": ("x", any_value("AP\u0130X")),
    "escaped": ("mlflow.spanInputs", any_value('"\\u0041pple"')),
    "escaped escape": ("mlflow.spanInputs", any_value('"\\u005cu0041pple"')),
    "bytes": ("x", AnyValue(bytes_value=b"refund policy")),
    "long bytes": ("x", AnyValue(bytes_value=b"refund" * 99)),
    "bytes of a list": ("x", AnyValue(array_value=ArrayValue(values=[AnyValue(bytes_value=b"refund")]))),
    "long bytes of a list": (
        "x",
        AnyValue(array_value=ArrayValue(values=[AnyValue(bytes_value=b"refund" * 99)])),
    ),
    "line of a list": ("x", AnyValue(array_value=ArrayValue(values=[any_value("a\nbest\x1bold")]))),
    "number": ("x", AnyValue(int_value=4711)),
    "double": ("x", AnyValue(double_value=1.5e300)),
    "no number": ("x", AnyValue(double_value=float("nan"))),
    "truth": ("x", AnyValue(bool_value=True)),
    "nothing": ("x", AnyValue(array_value=ArrayValue(values=[AnyValue()]))),
    "message": ("llm.prompts.0.content", any_value("hello"), "gen_ai.choice"),
    "message in JSON": ("x", any_value('{"cont\\u0065nt": "pl\\u0061in\\nbest"}'), "gen_ai.choice"),
    "accents": ("x", any_value("e\u0301te\u0301 CAF\u00c9s na\u00efve")),
    "surrogates": ("mlflow.spanInputs", any_value('"\\ud83d\\ude00smile na\\u00efve \\ud83d"')),
    "half pair in text": ("x", any_value("\\ud83dhalf")),
    "compressed": ("x", AnyValue(bytes_value=gzip.compress(b"refund policy" * 9, mtime=0))),
    "bytes of a map": ("x", AnyValue(kvlist_value=KeyValueList(values=[BYTES_ENTRY]))),
    "repeated key": ("x", AnyValue(kvlist_value=KeyValueList(values=[TEXT_ENTRY, TEXT_ENTRY]))),
    "user": ("metadata", any_value('{"user_id": "\\u0041da"}')),
    "session": ("mlflow.trace.session", any_value('"Ses\\u0073ion-7"')),
    "notations": ("x", any_value("1e3 1000 0x1f 1_000")),
    "whole double": ("x", AnyValue(double_value=1000)),
    "unspaced": ("x", any_value("\u6771\u4eac\u90fdabc \uff76\uff9e\uff97\uff7d")),
    "stems": ("x", any_value("dying policies getUserName a-17 \u017ftone")),
    "id": ("x", any_value("ab" * 16)),
    "invisible": ("x", any_value("soft\u00adhyphen zero\u200bwidth \ufeffmark")),
}


def check_case(name: str) -> None:
    check_payload(payload_of(*CASES[name]))


def framed(tag: bytes, *pieces: bytes) -> bytes:
    return tag + bytes([len(b"".join(pieces))]) + b"".join(pieces)


def check_other_form(value: bytes) -> None:
    """Check a payload with an attribute value that is serialized in another form."""
    span = pb.Span(trace_id=b"t" * 16, span_id=b"s" * 8, start_time_unix_nano=1).SerializeToString()
    attribute = framed(b"\x4a", framed(b"\n", b"x"), framed(b"\x12", value))
    payload = framed(b"\n", framed(b"\x12", framed(b"\x12", span, attribute)))
    assert b64encode(b"refund").lower() in text_of(payload)
    check_payload(payload)


OTHER_FORMS = {
    "two values": framed(b"\n", b"text") + framed(b":", b"refund"),
    "a long tag": framed(b"\xba\x00", b"refund"),
    "an unknown field": framed(b":", b"refund") + framed(b"\xfa\x01", b"more"),
}


@pytest.mark.parametrize("name", OTHER_FORMS)
def test_bytes_in_other_forms_are_noticed(name: str) -> None:
    """Bytes that become base64 are noticed in each form that protobuf accepts."""
    check_other_form(OTHER_FORMS[name])


def test_an_older_name_of_spans_is_sought_in_texts_only() -> None:
    """A payload may have spans in an unknown field."""
    assert payload_text(payload_of("x", any_value("\xc2\x3e"))) is not None
    assert payload_text(pb.TracesData().SerializeToString() + OLD_SCOPE_SPANS_TAG + b"\0") is None


@pytest.mark.parametrize("name", CASES)
def test_texts_in_another_form_are_found(name: str) -> None:
    """Texts that are in a payload in another form, or not at all, are found by their words."""
    check_case(name)


def check_field(field: str, value: str) -> None:
    sieve = prefilter_of(f"{field}:{value}", None, None, ENGLISH)
    assert sieve is not None
    assert sieve.payload_passes is None


DERIVED = {"kind": "server", "status": "error", "workspace": "default", "trace": "ab" * 16, "span": "ab" * 8}


@pytest.mark.parametrize("field", DERIVED)
def test_values_that_payloads_lack_are_sought_in_texts_only(field: str) -> None:
    """Enumerations, defaults and ids are no texts of payloads."""
    check_field(field, DERIVED[field])


def check_pasted_id() -> None:
    sieve = prefilter_of("ab" * 16, None, None, ENGLISH)
    assert sieve is not None
    assert sieve.payload_passes is None


def test_a_pasted_id_is_sought_in_texts_only() -> None:
    """A payload has an id as bytes."""
    check_pasted_id()


def test_little_else_passes() -> None:
    """A payload sieve excludes payloads without the words of a query."""
    low = payload_text(payload_of("x", any_value("A Refund for q7f3a9 was JUST sent")))
    assert low is not None, "the ids begin with the tag of bytes"
    for query, passes in {
        "refunds": True,
        "refunds q7f3a8": False,
        "just OR nope": True,
        "apple": False,
    }.items():
        sieve = prefilter_of(query, None, None, ENGLISH)
        assert sieve is not None
        assert sieve.payload_passes is not None
        assert sieve.payload_passes(low) == passes, query


DATA = Path(__file__).parents[3] / "shared" / "data" / "agents.otlp.jsonl.gz"


def test_real_traces_pass() -> None:
    """Words of real traces pass; most payloads hide nothing."""
    with gzip.open(DATA) as lines:
        traces = [trace for line in islice(lines, 5) for trace in take_apart("json", line).values()]
    useful = [check_payload(trace.data) for trace in traces[:12]]
    assert sum(useful) > 100, useful
