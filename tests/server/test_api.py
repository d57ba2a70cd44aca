"""The JSON API, over a lake in memory."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
from google.protobuf import json_format
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from tests.server.beside import FakeBeside
from tests.server.client import Client
from tests.server.fake_lake import FakeLake, span_row
from tracelake import limits
from tracelake.server.app import create_app
from tracelake.storage.local import MemoryObjectStore
from tracelake.tracking.ingest_queue import Inbox


@pytest.fixture
def lake() -> FakeLake:
    """Return a lake of three traces: a shop's, a long one with an error, one of an agent."""
    return FakeLake(
        [
            span_row(1, 1, name="Buy it"),
            span_row(1, 2, parent=1, output="the refund policy says no"),
            span_row(2, 1, name="pay", service="bank", status="ERROR", duration_ns=5_000_000_000),
            span_row(2, 9, parent=1),
            span_row(3, 1, name="ask", service="o'agent", session_id="s 1", user_id="u&1", output_tokens=7),
        ]
    )


def names(client: Client, **parameters: Any) -> list[str]:
    """Return the names of the traces that a filter finds, in order."""
    response = client.get("/api/v1/traces", params=parameters)
    assert response.status_code == 200, response.text
    return [trace["name"] for trace in response.json()["traces"]]


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, ["ask", "pay", "Buy it"]),
        ({"order": "oldest"}, ["Buy it", "pay", "ask"]),
        ({"order": "longest"}, ["pay", "Buy it", "ask"]),
        ({"order": "tokens"}, ["ask", "pay", "Buy it"]),
        ({"order": "errors", "limit": 1}, ["pay"]),
        ({"service": "bank"}, ["pay"]),
        ({"service": "o'agent"}, ["ask"]),
        ({"service": "' OR 1=1 --"}, []),
        ({"service": ""}, ["ask", "pay", "Buy it"]),
        ({"session": "s 1"}, ["ask"]),
        ({"user": "u&1"}, ["ask"]),
        ({"name": "BUY"}, ["Buy it"]),
        ({"name": "%"}, []),
        ({"name": "x') OR contains(name, 'a"}, []),
        ({"min_duration_ms": 1500}, ["pay", "Buy it"]),
        ({"min_duration_ms": ""}, ["ask", "pay", "Buy it"]),
        ({"errors": "true"}, ["pay"]),
        ({"limit": 1, "offset": 1}, ["pay"]),
        ({"offset": 99}, []),
        ({"offset": limits.PAGE_OFFSET_MAX}, []),
    ],
)
def test_traces_are_filtered(client: Client, parameters: dict[str, Any], expected: list[str]) -> None:
    """Each filter finds its traces, and hostile text in a filter is only text."""
    assert names(client, **parameters) == expected


def test_a_page_says_whether_more_follow(client: Client) -> None:
    """`more` is true on every page but the last."""
    pages = [client.get(f"/api/v1/traces?limit=2&offset={offset}").json() for offset in (0, 2)]
    assert [page["more"] for page in pages] == [True, False]


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=1001",
        "limit=x",
        "offset=-1",
        f"offset={limits.PAGE_OFFSET_MAX + 1}",
        "order=random",
        "min_duration_ms=-1",
        "min_duration_ms=nan",
        "min_duration_ms=1e99",
        "errors=maybe",
        "service=a%00b",
        f"name={'x' * 2000}",
    ],
)
def test_bad_parameters_are_refused(client: Client, query: str) -> None:
    """A parameter out of range or of the wrong type gets a 400 with its name or the reason."""
    response = client.get(f"/api/v1/traces?{query}")
    assert response.status_code == 400
    assert query.split("=", maxsplit=1)[0] in response.json()["error"] or "NUL" in response.json()["error"]


def test_services(client: Client) -> None:
    """Services are listed by name, once each."""
    assert client.get("/api/v1/services").json() == {"services": ["bank", "o'agent", "shop"]}


def test_trace(client: Client) -> None:
    """A trace is returned with its summary and its spans, with maps as objects."""
    document = client.get(f"/api/v1/traces/{1:032x}").json()
    assert document["summary"]["span_count"] == 2
    assert [span["name"] for span in document["spans"]] == ["Buy it", "step 2"]
    assert document["spans"][0]["resource"] == {"service.name": "shop"}


def test_trace_as_otlp(client: Client) -> None:
    """With format=otlp a trace is OTLP/JSON that the published schema reads."""
    response = client.get(f"/api/v1/traces/{1:032x}?format=otlp")
    assert response.headers["content-type"] == "application/json"
    spans = response.json()["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert [span["spanId"] for span in spans] == [f"{1:016x}", f"{2:016x}"]
    # Ids are hex in OTLP/JSON. The generic reader decodes them as base64, which is good enough for a check.
    assert json_format.Parse(response.content, TracesData()).resource_spans


def test_span(client: Client) -> None:
    """One span can be read alone."""
    assert client.get(f"/api/v1/traces/{2:032x}/spans/{9:016x}").json()["name"] == "step 9"


@pytest.mark.parametrize("path", ["traces/nope", f"traces/{1:032x}/spans/nope", "nothing"])
def test_what_is_not_there(client: Client, path: str) -> None:
    """An unknown trace, span or path gets a 404 in JSON."""
    response = client.get(f"/api/v1/{path}")
    assert response.status_code == 404
    assert response.json()["error"]


def test_search(client: Client) -> None:
    """A search returns hits with their locations and an excerpt."""
    (hit,) = client.get("/api/v1/search", params={"q": "refund policy", "service": "shop"}).json()["hits"]
    assert (hit["span_id"], hit["highlight"]) == (f"{2:016x}", "the [[refund policy]] says no")
    assert client.get("/api/v1/search", params={"q": "refund", "service": "bank"}).json()["hits"] == []


def test_completions(client: Client) -> None:
    """A partial query gets completions; a text that is too long for a query is refused."""
    answer = client.get("/api/v1/search/completions", params={"q": "a service:"})
    assert answer.json() == {"query": "a service:", "completions": ["a service:shop"]}
    assert client.get("/api/v1/search/completions", params={"q": "a" * 5_000}).status_code == 400


@pytest.mark.parametrize("query", ["", "q=", "q=%22open", "q=a&limit=0", "q=a&limit=1001"])
def test_bad_searches_are_refused(client: Client, query: str) -> None:
    """A search without text, or with an invalid query, gets a 400 in JSON."""
    response = client.get(f"/api/v1/search?{query}")
    answer = response.json()
    assert (response.status_code, "error" in answer) == (400, True)
    assert answer.get("character") == (1 if "open" in query else None)


def test_a_bug_shows_no_traceback(client: Client, lake: FakeLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unexpected exception becomes a 500 response without its text."""

    def fail(*_queries: str) -> None:
        raise KeyError("no such key")

    monkeypatch.setattr(lake, "select", fail)
    response = client.get("/api/v1/traces")
    assert response.status_code == 500
    assert "no such key" not in response.text
    assert "log" in response.json()["error"]


def test_health_and_schema(client: Client) -> None:
    """The process reports that it is alive and ready. The OpenAPI document exists; no page loads resources from
    other hosts."""
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/readyz").json() == {"ready": True, "reasons": [], "warning": None}
    assert "/v1/traces" in client.get("/openapi.json").json()["paths"]
    assert client.get("/docs").status_code == client.get("/redoc").status_code == 404


def test_foreign_host_names_are_refused(client: Client) -> None:
    """A page that rebinds its own host name to this server cannot read anything."""
    assert client.get("/api/v1/traces", headers={"Host": "evil.example"}).status_code == 400
    assert client.get("/api/v1/traces", headers={"Host": "localhost:4318"}).status_code == 200
    assert client.get("/api/v1/traces", headers={"Host": "[::1]:4318"}).status_code == 200


def test_a_failing_pipeline_is_a_warning(lake: FakeLake) -> None:
    """A failing pipeline does not affect requests: the server is ready, with a warning."""
    with closing(Inbox(MemoryObjectStore())) as inbox:
        client = Client(create_app(lake, inbox, FakeBeside("the pipeline failed")))
        response = client.get("/readyz")
        assert client.get("/api/v1/pipeline").json()["problem"] == "the pipeline failed"
        assert '<p class="problem" role="alert">the pipeline failed</p>' in client.get("/pipeline").text
    assert (response.status_code, response.json()["warning"]) == (200, "the pipeline failed")


def test_a_full_disk_is_not_ready(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """With too little free space the server is not ready, and names the full disk."""
    assert client.get("/readyz").status_code == 200
    monkeypatch.setattr(limits, "READY_SPACE_MIN_BYTES", 2**62)
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert "MB are free at" in answer.json()["reasons"][0]
