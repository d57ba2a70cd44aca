"""A query made by a click finds the intersection with the clicked value, and the next click removes the clause."""

from __future__ import annotations

import pytest

from tracelake.search.query_parser import AllOf, Text, clause_of, narrowed, parse, widened


@pytest.mark.parametrize(
    ("value", "clause"),
    [
        ("shop", "service:shop"),
        ("GET /cart", 'service:"GET /cart"'),
        ('say "hi"\\', 'service:"say \\"hi\\"\\\\"'),
        ("1..2", 'service:"1..2"'),
        ("a*", 'service:"a*"'),
        ("a~1", 'service:"a~1"'),
        ("a^2", 'service:"a^2"'),
        ("(a)", 'service:"(a)"'),
    ],
)
def test_a_clause_finds_the_value_as_it_is(value: str, clause: str) -> None:
    """The clause of any value is one text of one field."""
    assert clause_of("service", value) == clause
    parsed = parse(clause)
    assert isinstance(parsed, Text)
    assert (parsed.field, parsed.text, parsed.prefix, parsed.distance) == ("service", value, False, 0)


@pytest.mark.parametrize(
    "query",
    ["a", "a OR b", "a AND b", "NOT a", "(a b) OR c", 'x "service:shop" y', "service:shopping", "last 2h"],
)
def test_narrowing_is_undone_by_widening(query: str) -> None:
    """A clause applies to the whole query, whatever its operators, and can be removed again."""
    clause = clause_of("service", "shop")
    assert widened(query, [clause]) == {}
    longer = narrowed(query, clause)
    before, after = parse(query), parse(longer)
    assert isinstance(after, AllOf)
    assert after.nodes[-1] == Text("service", "shop", len(query) + 1)
    assert after.nodes[:-1] in ((before,), getattr(before, "nodes", ()))
    assert widened(longer, [clause]) == {clause: query}
    assert narrowed("*", clause) == clause
    assert widened(clause, [clause]) == {clause: "*"}


@pytest.mark.parametrize(
    "query",
    [
        "a AND service:shop",
        "service:shop OR b",
        "NOT service:shop",
        "-service:shop",
        "(a service:shop) b",
        '"',
    ],
)
def test_a_clause_that_does_not_narrow_all_is_not_taken_away(query: str) -> None:
    """A clause next to an operator or in a group cannot be removed."""
    assert widened(query, ["service:shop"]) == {}
