"""Texts chosen by senders are short in every list, for any length, and complete in their trace."""

from __future__ import annotations

import pytest

from tests.server.client import Client
from tests.server.fake_lake import FakeLake, span_row
from tracelake import limits

LONG = "Summarize: " + "lorem ipsum " * 40_000
TEXTS = {"name": LONG, "service": LONG, "session_id": LONG, "user_id": LONG, "model": LONG}


@pytest.fixture
def lake() -> FakeLake:
    """Return a lake whose senders use prompts as names."""
    return FakeLake([span_row(trace, output="refund") | TEXTS for trace in range(1, 11)])


@pytest.mark.parametrize(
    "path", ["/", "/api/v1/traces", "/api/v1/services", "/search?q=refund", "/api/v1/search?q=refund"]
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
