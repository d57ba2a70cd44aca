"""`POST /v1/traces`: the guarantees of OTLP/HTTP, for good and bad requests."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import AsyncIterator

import pytest
from google.rpc.error_details_pb2 import BadRequest  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from httpx import Response
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from tests.server.client import Client
from tests.server.faults import FaultyStore, inbox_payloads
from tests.server.otlp_requests import export_request
from tracelake import limits

PROTOBUF = "application/x-protobuf"
JSON = "application/json"
GOOD_JSON = (
    b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"5b8efff798038103d269b633813fc60c",'
    b'"spanId":"eee19b7ec3c1b174","name":"a","startTimeUnixNano":"1","endTimeUnixNano":"2"}]}]}]}'
)


def post(
    client: Client, body: bytes, content_type: str | None = PROTOBUF, encoding: str | None = None
) -> Response:
    """Send a request."""
    headers = {"Content-Type": content_type, "Content-Encoding": encoding}
    return client.post(
        "/v1/traces", content=body, headers={name: value for name, value in headers.items() if value}
    )


def error_of(response: Response) -> str:
    """Return the message of the google.rpc.Status that an error must carry, in the encoding of the request."""
    if response.headers["content-type"] == JSON:
        return str(response.json()["message"])
    assert response.headers["content-type"] == PROTOBUF
    return str(Status.FromString(response.content).message)


def test_protobuf_is_stored_before_it_is_acknowledged(client: Client, store: FaultyStore) -> None:
    """A protobuf request gets an empty success message, and the inbox contains its exact bytes."""
    body = export_request(1, 2).SerializeToString()
    response = post(client, body)
    assert (response.status_code, response.headers["content-type"]) == (200, PROTOBUF)
    assert not ExportTraceServiceResponse.FromString(response.content).HasField("partial_success")
    assert [(item.format, item.data) for item in inbox_payloads(store)] == [("protobuf", body)]


def test_json_is_answered_in_json(client: Client, store: FaultyStore) -> None:
    """A JSON request, with parameters in its content type, gets an empty JSON object."""
    response = post(client, GOOD_JSON, "application/json; charset=utf-8")
    assert (response.status_code, response.json(), response.headers["content-type"]) == (200, {}, JSON)
    assert [(item.format, item.data) for item in inbox_payloads(store)] == [("json", GOOD_JSON)]


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", gzip.compress(GOOD_JSON, mtime=0)),
        ("GZIP", gzip.compress(GOOD_JSON[:50], mtime=0) + gzip.compress(GOOD_JSON[50:], mtime=0)),
        ("deflate", zlib.compress(GOOD_JSON)),
        ("identity", GOOD_JSON),
    ],
)
def test_encodings_are_undone(client: Client, store: FaultyStore, encoding: str, body: bytes) -> None:
    """A compressed request, also with several gzip members, is stored decompressed."""
    assert post(client, body, JSON, encoding).status_code == 200
    assert [item.data for item in inbox_payloads(store)] == [GOOD_JSON]


def test_empty_request_succeeds(client: Client, store: FaultyStore) -> None:
    """A request without spans is a success, and nothing is stored."""
    assert post(client, b"").status_code == 200
    assert post(client, b"{}", JSON).status_code == 200
    assert not list(store.list("inbox/"))


def test_partial_success_counts_what_was_refused(client: Client, store: FaultyStore) -> None:
    """Refused spans are counted with a reason; the request is stored for the others."""
    body = export_request(1, 0, 2, 0).SerializeToString()
    response = post(client, body)
    partial = ExportTraceServiceResponse.FromString(response.content).partial_success
    assert (response.status_code, partial.rejected_spans) == (200, 2)
    assert "span" in partial.error_message
    assert [item.data for item in inbox_payloads(store)] == [body]


@pytest.mark.parametrize("levels", [480, 500, 990, 100_000])
def test_nesting_that_nobody_asked_for(client: Client, store: FaultyStore, levels: int) -> None:
    """A field unknown to OTLP may be nested to any depth: the good spans of the request are accepted."""
    deep = b'"unknown":' + b"[" * levels + b"]" * levels
    spans = [b'"name":"good",' + deep, b'"name":5,' + deep, b'"name":"good"']
    ids = b'{"traceId":"5b8efff798038103d269b633813fc60c","spanId":"eee19b7ec3c1b174",'
    body = b",".join(ids + span + b"}" for span in spans)
    body = b'{"resourceSpans":[{"scopeSpans":[{"spans":[' + body + b"]}]}]}"
    response = post(client, body, JSON)
    assert (response.status_code, response.json()["partialSuccess"]["rejectedSpans"]) == (200, "1")
    assert [item.data for item in inbox_payloads(store)] == [body]


def test_partial_success_in_json(client: Client, store: FaultyStore) -> None:
    """In JSON the count is a decimal string, as in protobuf's JSON mapping; without a good span nothing is stored."""
    response = post(client, GOOD_JSON.replace(b"eee19b7ec3c1b174", b"0" * 16), JSON)
    assert response.status_code == 200
    assert response.json()["partialSuccess"]["rejectedSpans"] == "1"
    assert response.json()["partialSuccess"]["errorMessage"]
    assert not list(store.list("inbox/"))


@pytest.mark.parametrize(
    ("body", "content_type", "encoding"),
    [
        pytest.param(export_request(1).SerializeToString()[:-5], PROTOBUF, None, id="truncated protobuf"),
        pytest.param(b"\xff\xff\xff\xff", PROTOBUF, None, id="not protobuf"),
        pytest.param(GOOD_JSON[:-3], JSON, None, id="truncated JSON"),
        pytest.param(b'{"resourceSpans": 7}', JSON, None, id="wrong types"),
        pytest.param(b'{"resourceMetrics": []}', JSON, None, id="metrics"),
        pytest.param(b"[" * 100_000, JSON, None, id="deep nesting"),
        pytest.param(b'{"resourceSpans": "\xff\xfe"}', JSON, None, id="not UTF-8"),
        pytest.param(b"plain", PROTOBUF, "gzip", id="not gzip"),
        pytest.param(gzip.compress(GOOD_JSON)[:-9], JSON, "gzip", id="truncated gzip"),
        pytest.param(gzip.compress(GOOD_JSON) + b"rest", JSON, "gzip", id="garbage after gzip"),
        pytest.param(b"", PROTOBUF, "gzip", id="empty gzip"),
    ],
)
def test_bad_bodies_are_refused_for_good(
    client: Client, store: FaultyStore, body: bytes, content_type: str, encoding: str | None
) -> None:
    """A body that cannot be decoded gets a 400 with a Status in the request's encoding; nothing is stored."""
    response = post(client, body, content_type, encoding)
    assert response.status_code == 400
    assert len(error_of(response)) > 10
    assert not list(store.list("inbox/"))
    assert post(client, GOOD_JSON, JSON).status_code == 200


def test_bad_request_details(client: Client) -> None:
    """A 400 carries google.rpc.BadRequest in the details of its Status."""
    details = BadRequest()
    assert Status.FromString(post(client, b"\xff").content).details[0].Unpack(details)
    assert details.field_violations[0].field == "body"


@pytest.mark.parametrize(
    ("content_type", "encoding"),
    [(None, None), ("text/plain", None), ("application/grpc", None), (JSON, "br"), (PROTOBUF, "zstd, gzip")],
)
def test_unknown_types_are_refused(client: Client, content_type: str | None, encoding: str | None) -> None:
    """An unknown content type or encoding gets a 415."""
    response = post(client, GOOD_JSON, content_type, encoding)
    assert response.status_code == 415
    assert "send" in error_of(response)


@pytest.mark.parametrize("encoding", [None, "gzip"])
def test_large_bodies_are_refused(
    client: Client, monkeypatch: pytest.MonkeyPatch, encoding: str | None
) -> None:
    """A body beyond the limit, also a gzip bomb of a few bytes, gets a 413."""
    monkeypatch.setattr(limits, "OTLP_REQUEST_MAX_BYTES", 1_000_000)
    body = b" " * 50_000_000
    response = post(client, gzip.compress(body, 1) if encoding else body, JSON, encoding)
    assert response.status_code == 413
    assert "1000000 bytes" in error_of(response)


def test_large_chunked_body_is_refused(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that does not declare its length is cut off at the limit."""
    monkeypatch.setattr(limits, "OTLP_REQUEST_MAX_BYTES", 1_000)

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b" " * 100

    assert client.post("/v1/traces", content=chunks(), headers={"Content-Type": JSON}).status_code == 413


def test_failing_store_gives_503_and_recovers(client: Client, store: FaultyStore) -> None:
    """While the store fails, the response is 503 with Retry-After and nothing is stored; then it is 200 again."""
    store.failing = True
    response = post(client, GOOD_JSON, JSON)
    assert (response.status_code, response.headers["retry-after"]) == (503, "5")
    assert "no space left" in error_of(response)
    ready = client.get("/readyz")
    assert (ready.status_code, ready.json()["ready"]) == (503, False)
    store.failing = False
    assert client.get("/readyz").status_code == 200
    assert post(client, GOOD_JSON, JSON).status_code == 200
    assert [item.data for item in inbox_payloads(store)] == [GOOD_JSON]


def test_a_get_is_refused(client: Client) -> None:
    """Any method except POST gets a 405."""
    assert client.get("/v1/traces").status_code == 405


def test_real_data_is_taken(client: Client, store: FaultyStore) -> None:
    """A line of real agent traces is accepted completely, in a JSON client's form."""
    with gzip.open("../shared/data/agents.otlp.jsonl.gz") as lines:
        line = next(iter(lines)).rstrip()
    assert post(client, gzip.compress(line, 1), JSON, "gzip").json() == {}
    assert [json.loads(item.data) for item in inbox_payloads(store)] == [json.loads(line)]
