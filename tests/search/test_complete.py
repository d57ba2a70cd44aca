"""What may follow in a query that is being typed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.search.build_inputs import index_of, span, table
from tracelake.search.query import Searcher

ROWS = (
    span(0, service="Shop", attributes=[("http.status_code", "500"), ('a "b', "GET /cart")]),
    span(1, service="Shop", model="gpt-4o", attributes=[("http.status_code", "200")]),
    span(2, service="multi agent", attributes=[("http.status_code", "500"), ("v", "1..2")]),
)


@pytest.fixture(scope="module")
def searcher(tmp_path_factory: pytest.TempPathFactory) -> Searcher:
    """Three spans in two parts."""
    objects, manifest = index_of([table(ROWS[:1]), table(ROWS[1:])])
    return Searcher(objects, manifest, tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("serv", ["service:"]),
        ("refund -(mod", ["refund -(model:"]),
        ("dur", ["duration>"]),
        ("attributes.h", ["attributes.http.status_code:"]),
        ("http", ["attributes.http.status_code:"]),
        ("attributes.a", ['attributes."a \\"b":']),
        ("service:", ["service:shop", 'service:"multi agent"']),
        ("x AND service:S", ["x AND service:shop"]),
        ('service:"multi a', ['service:"multi agent"']),
        (
            "attributes.http.status_code:",
            ["attributes.http.status_code:500", "attributes.http.status_code:200"],
        ),
        ("attributes.v:", ['attributes.v:"1..2"']),
        ("has:attributes.v", ["has:attributes.v"]),
        ("has:mod", ["has:model"]),
        ("model:nothing", []),
        ("refund ", []),
        ("", []),
    ],
)
def test_what_may_follow(searcher: Searcher, typed: str, expected: list[str]) -> None:
    """Fields, attributes by path or key, and values, the most frequent first, quoted where they must be."""
    assert searcher.completions(typed) == expected


@settings(deadline=None, max_examples=200)
@given(
    st.lists(
        st.sampled_from(["service:", '"', "a", " ", "(", "attributes.", "\\", "has:", "\ud800", "é"])
    ).map("".join)
)
def test_any_text_can_be_completed(searcher: Searcher, typed: str) -> None:
    """No text ends in an error."""
    assert all(searcher.completions(typed))


@pytest.mark.parametrize("typed", ["service:", "attributes.http.status_code:", "attributes.v:", "model:"])
def test_what_is_offered_finds_something(searcher: Searcher, typed: str) -> None:
    """A value that is offered is a query that finds its span."""
    offered = searcher.completions(typed)
    assert offered
    assert all(searcher.search(query, 1) for query in offered)


def test_an_empty_index_offers_fields(tmp_path: Path) -> None:
    """Without parts there are no values."""
    objects, manifest = index_of([table([])])
    searcher = Searcher(objects, manifest, tmp_path)
    assert searcher.completions("serv") == ["service:"]
    assert searcher.completions("service:") == []
