"""Decoding a small request with a large resource: memory is bounded, reserved first, and held until the response."""

from __future__ import annotations

import json
import tracemalloc
from typing import Final, NoReturn
from unittest import mock

import pytest
from opentelemetry.proto.trace.v1 import trace_pb2 as pb

from tests.server.otlp_requests import export_request
from tracelake import limits
from tracelake._errors import LimitError
from tracelake.otlp.encode import to_json
from tracelake.otlp.framing import Format
from tracelake.otlp.parse import JsonStructure, json_structure
from tracelake.server import otlp_http
from tracelake.server.otlp_http import Budget

RESOURCE_BYTES: Final = 60_000
SPANS: Final = 500
TRACES: Final = 10
WAYS: Final[list[tuple[Format, str | None]]] = [
    ("json", None),
    ("json", "team-a"),
    ("protobuf", None),
    ("protobuf", "team-a"),
]


def request_of(format: Format) -> bytes:
    """Return a request of one large resource and many small spans."""
    data = pb.TracesData()
    resource = data.resource_spans.add()
    resource.resource.attributes.add(key="large").value.string_value = "x" * RESOURCE_BYTES
    scope = resource.scope_spans.add()
    for n in range(SPANS):
        trace_id = (n % TRACES + 1).to_bytes(16)
        scope.spans.add(trace_id=trace_id, span_id=(n + 1).to_bytes(8), name="n", start_time_unix_nano=1)
    return to_json(data) if format == "json" else data.SerializeToString()


def check_room(format: Format = "json", workspace: str | None = None) -> None:
    """Check that decoded data has its reservation while it exists, and contains the resource once per trace."""
    payload = request_of(format)
    with Budget(limits.REQUESTS_MEMORY_MAX_BYTES).share() as share:
        taken = otlp_http.decode_request(format, payload, share, workspace, takes_apart=True)
        apart_bytes = sum(len(trace.data) for trace in taken.traces.values())
        assert taken.decoded.accepted == SPANS
        assert TRACES * RESOURCE_BYTES < apart_bytes < (TRACES + 1) * RESOURCE_BYTES
        assert share.size_bytes > apart_bytes


@pytest.mark.parametrize(("format", "workspace"), WAYS)
def test_it_has_room_until_the_answer(format: Format, workspace: str | None) -> None:
    """The request is decoded from either encoding, and with a key of one workspace too."""
    check_room(format, workspace)


@pytest.mark.parametrize(("format", "workspace"), WAYS)
def test_no_resource_is_repeated_for_each_span(format: Format, workspace: str | None) -> None:
    """Peak Python memory stays far below the size of spans with a copy of the resource each."""
    payload = request_of(format)
    tracemalloc.start()
    try:
        with Budget(limits.REQUESTS_MEMORY_MAX_BYTES).share() as share:
            otlp_http.decode_request(format, payload, share, workspace, takes_apart=True)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < SPANS * RESOURCE_BYTES / 3


EMPTIES: Final = 4_300_000
ATTRIBUTE_OF: Final = b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"events":null,"attributes":['
BOMBS: Final[dict[str, tuple[Format, bytes]]] = {
    "resources": ("json", b'{"resourceSpans":[' + b",".join([b"{}"] * EMPTIES) + b"]}"),
    "scopes": ("json", b'{"resourceSpans":[{"scopeSpans":[' + b",".join([b"{}"] * EMPTIES) + b"]}]}"),
    "spans": (
        "json",
        b'{"resourceSpans":[{"scopeSpans":[{"spans":[' + b",".join([b"{}"] * 150_000) + b"]}]}]}",
    ),
    "attributes": ("json", ATTRIBUTE_OF + b",".join([b"{}"] * EMPTIES) + b"]}]}]}]}"),
    "numbers": ("json", b'{"x":[' + b",".join([b"0"] * 3 * EMPTIES) + b"]}"),
    "protobuf resources": ("protobuf", b"\x0a\x00" * EMPTIES),
    "protobuf attributes": (
        "protobuf",
        b"\x0a\x00"
        + b"\x0a\x88\x80\x80\x04\x12\x84\x80\x80\x04\x12\x80\x80\x80\x04"
        + b"\x4a\x00" * (4 * 1024 * 1024),
    ),
    "protobuf junk": ("protobuf", b"\x48\x00" * EMPTIES),
}


def check_counted_before_parsed(bomb: str) -> None:
    """Check that a request of very many small parts is refused before it is parsed."""
    format, payload = BOMBS[bomb]

    def parse(*_args: object) -> NoReturn:
        pytest.fail("it was parsed")

    with (
        mock.patch.object(otlp_http, "decode_json", parse),
        mock.patch.object(otlp_http, "decode_protobuf", parse),
        Budget(limits.REQUESTS_MEMORY_MAX_BYTES).share() as share,
        pytest.raises(LimitError, match="the request has more than"),
    ):
        otlp_http.decode_request(format, payload, share, None, takes_apart=True)


@pytest.mark.parametrize("bomb", BOMBS)
def test_parts_are_counted_before_parsing(bomb: str) -> None:
    """Check that 12 KB of gzip do not cost seconds."""
    check_counted_before_parsed(bomb)


def check_careful_bound() -> None:
    """Check the separate bound of the careful decoder. One null makes the fast decoder fail; the careful one is far
    slower."""
    nulls = b",".join([b"null"] * 1_100_000)
    payload = b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"events":null}],"x":[' + nulls + b"]}]}]}"
    broken = export_request(1).SerializeToString() + b"\x0f"
    cases: tuple[tuple[Format, bytes], ...] = (
        ("json", payload),
        ("protobuf", b"\x0a\x00" * 90_000 + b"\x48\x00" * 1_100_000 + broken),
    )
    for format, data in cases:
        with (
            Budget(limits.REQUESTS_MEMORY_MAX_BYTES).share() as share,
            pytest.raises(LimitError, match="the request has more than 1000000"),
        ):
            otlp_http.decode_request(format, data, share, None, takes_apart=True)


def test_careful_bound() -> None:
    """A request beyond the careful decoder's bound gets a 413."""
    check_careful_bound()


def test_braces_in_texts_do_not_count() -> None:
    """Braces in a text, such as code in a prompt, do not count as structure, and escaped quotes do not end the
    text."""
    text = json.dumps('{"a": [1, 2, "b"]}, ' * 60_000)
    span = json.dumps({"traceId": "ab" * 16, "spanId": "cd" * 8, "name": "@"}).replace('"@"', text)
    payload = ('{"resourceSpans":[{"scopeSpans":[{"spans":[' + ",".join([span] * 3) + "]}]}]}").encode()
    with Budget(limits.REQUESTS_MEMORY_MAX_BYTES).share() as share:
        assert otlp_http.decode_request("json", payload, share, None, takes_apart=True).decoded.accepted == 3
    assert json_structure(payload, limits.OTLP_REQUEST_VALUES_MAX) == JsonStructure(1, 1, 3, 17)


def check_bound() -> None:
    """Check that traces that are too large with their resources are refused before they are made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(otlp_http, "REQUEST_APART_MAX_BYTES", TRACES * RESOURCE_BYTES)
        with (
            Budget(limits.REQUESTS_MEMORY_MAX_BYTES).share() as share,
            pytest.raises(LimitError, match="by trace"),
        ):
            otlp_http.decode_request("json", request_of("json"), share, None, takes_apart=True)


def test_too_much_by_trace_is_refused() -> None:
    """One large resource with many traces gets a 413."""
    check_bound()
