"""Completions of a query as the user types."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.search.build_inputs import index_of, span, table
from tracelake import limits
from tracelake.limits import QUERY_MAX_CHARS
from tracelake.search.query_parser import escaped
from tracelake.search.searcher import Searcher

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
    """Completions are fields, attributes by path or key, and values, the most frequent first, quoted if needed."""
    assert searcher.completions(typed) == expected


@settings(deadline=None, max_examples=200)
@given(
    st.lists(
        st.sampled_from(["service:", '"', "a", " ", "(", "attributes.", "\\", "has:", "\ud800", "é"])
    ).map("".join)
)
def test_any_text_can_be_completed(searcher: Searcher, typed: str) -> None:
    """No text raises an error."""
    assert all(searcher.completions(typed))


@pytest.mark.parametrize("typed", ["service:", "attributes.http.status_code:", "attributes.v:", "model:"])
def test_what_is_offered_finds_something(searcher: Searcher, typed: str) -> None:
    """A completed value is a query that finds its span."""
    offered = searcher.completions(typed)
    assert offered
    assert all(searcher.search(query, 1) for query in offered)


ODD_KEYS = ('q"q', "back\\slash", "a b", "ΟΔΟΣ", "x" * 200, "plain")
ODD_VALUES = ("", "ΟΔΟΣ", "C:\\", 'q"q', "..", "*", "a~1", "tab\there", "x" * limits.QUERY_MAX_CHARS)


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Searcher:
    """Return spans of each odd value, in each column and attribute."""
    rows = [
        span(n, service=value, model=value, session_id=value, attributes=[(key, value) for key in ODD_KEYS])
        for n, value in enumerate(ODD_VALUES)
    ]
    return Searcher(*index_of([table(rows)]), tmp_path_factory.mktemp("cache"))


def check_odd(odd: Searcher) -> None:
    paths = [f'attributes."{escaped(key)}"' for key in ODD_KEYS]
    for field in ("service", "model", "session", *paths):
        offered = odd.completions(f"{field}:")
        assert len(offered) == len(ODD_VALUES) - 1 - (field not in paths), field
        assert all(odd.search(query, 1) for query in offered), field
        for value in ("ΟΔ", "ΟΔΟΣ", "C:\\", 'q"'):
            assert len(odd.completions(f'{field}:"{escaped(value)}')) == 1, (field, value)
    assert odd.completions("service:C:\\\\") == ['service:"c:\\\\"']
    offered = odd.completions("has:attributes.")
    assert len(offered) == len(ODD_KEYS) - 1
    assert all(odd.search(query, 1) for query in offered)
    assert 'attributes."q\\"q":' in odd.completions("attributes.")
    assert all(len(query) <= QUERY_MAX_CHARS for query in odd.completions("w " * 2040 + "service:"))


def test_what_is_offered_is_a_query_whatever_the_values_are(odd: Searcher) -> None:
    """Every completion is a valid query, for empty or Greek values and for quotes and backslashes; too long ones
    are omitted."""
    check_odd(odd)


def test_an_empty_index_offers_fields(tmp_path: Path) -> None:
    """Without parts, fields are completed and values are not."""
    objects, manifest = index_of([table([])])
    searcher = Searcher(objects, manifest, tmp_path)
    assert searcher.completions("serv") == ["service:"]
    assert searcher.completions("service:") == []
