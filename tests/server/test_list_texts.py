"""Texts chosen by senders are short in every list, for any length, and complete in their trace."""

from __future__ import annotations

import pytest

from tests.server.client import Client
from tests.server.fake_lake import FakeLake, span_row
from tracelake import limits
from tracelake.lake.trace_list import cut
from tracelake.search.results import Facet, FacetValue, Hit, SearchResults
from tracelake.server import mlflow

LONG = "Summarize: " + "lorem ipsum " * 40_000
TEXTS = {"name": LONG, "service": LONG, "session_id": LONG, "user_id": LONG, "model": LONG}


@pytest.fixture
def lake() -> FakeLake:
    """Return a lake whose senders use prompts as names."""
    return FakeLake([span_row(trace, output="refund") | TEXTS for trace in range(1, 11)])


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/traces",
        "/api/v1/traces",
        "/api/v1/services",
        "/sessions",
        "/users",
        "/api/v1/trace-sessions",
        "/api/v1/users",
        "/search?q=refund",
        "/api/v1/search?q=refund",
        "/api/v1/search?q=refund&facet=service&facet=session&facet=user&facet=model",
        f"/traces/{1:032x}",
    ],
)
def test_lists_are_short(client: Client, path: str) -> None:
    """Ten traces with prompts of 480 KB as names make no list large."""
    answer = client.get(path)
    assert answer.status_code == 200
    assert len(answer.content) < 200_000
    assert "…" in answer.text


def test_details_have_the_whole_text(client: Client) -> None:
    """A listed text is a prefix of the complete one, which the trace has."""
    listed = client.get("/api/v1/traces").json()["traces"][0]
    assert len(listed["name"]) == limits.LIST_TEXT_MAX_CHARS
    assert LONG.startswith(listed["name"][:-1])
    trace = client.get(f"/api/v1/traces/{listed['trace_id']}").json()
    assert {trace["summary"]["name"], trace["spans"][0]["name"]} == {LONG}


def test_a_cut_facet_value_has_no_link(
    client: Client, lake: FakeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long facet value is cut in the API and on the page, where only short ones narrow the search."""
    facet = Facet((FacetValue(LONG, 9), FacetValue("shop", 1)), 0)
    monkeypatch.setattr(lake, "search", lambda *_, **__: SearchResults(total=10, facets={"service": facet}))
    values = client.get("/api/v1/search?q=refund&facet=service").json()["facets"]["service"]["values"]
    assert [len(value["value"]) for value in values] == [limits.LIST_TEXT_MAX_CHARS, len("shop")]
    page = client.get("/search?q=refund")
    assert len(page.content) < 20_000
    assert "service%3Ashop" in page.text
    assert "service%3A%22Summ" not in page.text


def test_a_hit_links_to_no_cut_session() -> None:
    """A query for the beginning of a session finds nothing, so a hit proposes none."""
    hit = Hit("1" * 32, "2" * 16, 1.0, "shop", "refund", 1, "", session_id=cut(LONG), user_id="ada")
    assert set(hit.neighbours) == {"like", "user"}


def test_entries_of_mlflow_lists_are_cut() -> None:
    """Names, tags and metadata of MLflow's lists are cut, and other fields are kept."""
    listed = mlflow._listed(
        {"trace_id": "tr-1", "trace_metadata": {"mlflow.trace.session": LONG}, "tags": {"a": LONG}}
    )
    assert {len(listed["trace_metadata"]["mlflow.trace.session"]), len(listed["tags"]["a"])} == {500}
    assert listed["trace_id"] == "tr-1"
    listed = mlflow._listed({"name": LONG, "tags": [{"key": "a", "value": LONG}], "creation_time": 1})
    assert {len(listed["name"]), len(listed["tags"][0]["value"])} == {500}
    assert listed["creation_time"] == 1
