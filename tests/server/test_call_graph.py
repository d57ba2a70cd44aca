"""The call graph of a trace: operations, calls between them, and where they are drawn."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from tests.browser.agent_trace import AGENT, ATTACK, agent_lake
from tests.server.client import Client
from tests.server.fake_lake import FakeLake, span_row
from tracelake.results import Row
from tracelake.server.app import create_app
from tracelake.server.call_graph import Drawing, draw, read_graph
from tracelake.storage.local import MemoryObjectStore
from tracelake.tracking.ingest_queue import Inbox

TRACE = f"{1:032x}"


def get(lake: FakeLake, path: str) -> Any:
    """Return the answer of a server over the lake."""
    with closing(Inbox(MemoryObjectStore())) as inbox:
        return Client(create_app(lake, inbox)).get(path)


def graph(lake: FakeLake, trace_id: str = TRACE) -> dict[str, Any]:
    """Return the call graph as JSON."""
    answer = get(lake, f"/api/v1/traces/{trace_id}/graph")
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def calls_of(document: dict[str, Any]) -> dict[tuple[str, str], tuple[int, int]]:
    """Return the number of calls and of failed ones by the names of caller and callee."""
    names = [each["name"] for each in document["operations"]]
    return {
        (names[each["caller"]], names[each["callee"]]): (each["calls"], each["errors"])
        for each in document["calls"]
    }


def spans(*parents: int | None, names: str) -> list[Row]:
    """Return spans of one trace, each with its parent and a one-letter name."""
    return [
        span_row(1, number, parent, name=name)
        for number, (parent, name) in enumerate(zip(parents, names, strict=True), 1)
    ]


def test_calls_of_an_agent() -> None:
    """Spans of one name and type are one operation, with its calls, failures and times."""
    document = graph(agent_lake(), AGENT)
    assert calls_of(document) == {
        ("plan trip", "travel policy"): (1, 0),
        ("plan trip", "moderate input"): (1, 0),
        ("plan trip", "chat gpt-4o"): (3, 0),
        ("plan trip", "train_search"): (1, 0),
        ("plan trip", "hotel_search"): (1, 1),
        ("travel policy", "embed query"): (1, 0),
        ("hotel_search", "GET /v2/hotels"): (1, 1),
    }
    chat = next(each for each in document["operations"] if each["name"] == "chat gpt-4o")
    assert (chat["type"], chat["calls"], chat["total_ns"]) == ("llm", 3, 6_200_000_000)


def test_recursion() -> None:
    """Calls of an operation by itself, and back to an earlier one, have edges of their own."""
    lake = FakeLake(spans(None, 1, 2, 3, 4, names="aabca"))
    assert calls_of(graph(lake)) == {
        ("a", "a"): (1, 0),
        ("a", "b"): (1, 0),
        ("b", "c"): (1, 0),
        ("c", "a"): (1, 0),
    }
    assert "↻ 1" in get(lake, f"/traces/{TRACE}/graph").text


def test_many_operations() -> None:
    """The operations with the fewest calls are one operation together, so that the graph stays readable."""
    lake = FakeLake([span_row(1, 1), *(span_row(1, n, 1, name=f"step {n}") for n in range(2, 202))])
    document = graph(lake)
    assert len(document["operations"]) == 61
    assert sum(each["calls"] for each in document["operations"]) == 201
    assert document["operations"][-1]["name"] == "(other operations)"


@pytest.mark.parametrize("names", ["abcdef", "aabbcc", "abcabc", "aaaaaa"])
def test_boxes_do_not_overlap(names: str) -> None:
    """Each box has another place, inside the drawing."""
    drawing = drawn(FakeLake(spans(None, 1, 1, 2, 3, 4, names=names)))
    places = [(box.x, box.y) for box in drawing.boxes]
    assert len(set(places)) == len(places)
    assert all(0 <= x < drawing.width and 0 <= y < drawing.height for x, y in places)


def drawn(lake: FakeLake) -> Drawing:
    """Return the drawing of the trace."""
    return draw(read_graph(lake, TRACE)[1])


def test_a_single_span_and_hostile_names() -> None:
    """A trace without calls has a page that says so; names of senders are escaped."""
    assert (
        "No span of this trace calls another."
        in get(FakeLake([span_row(1, 1)]), f"/traces/{TRACE}/graph").text
    )
    page = get(
        FakeLake([*spans(None, 1, names="ab")[:1], span_row(1, 2, 1, name="<script>x</script>")]),
        f"/traces/{TRACE}/graph",
    )
    assert "<script>x" not in page.text
    assert get(agent_lake(), f"/traces/{ATTACK}/graph").status_code == 200


def test_no_trace() -> None:
    """An unknown trace is an error of the client."""
    assert get(FakeLake([span_row(1, 1)]), f"/api/v1/traces/{'9' * 32}/graph").status_code == 404
