"""Mutants that `tests/search/test_query.py` notices."""

from __future__ import annotations

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.search import test_query
from tests.search.test_query import searcher
from tracelake.search.searcher import Searcher


@pytest.mark.parametrize(
    "broken",
    [Mutation("only those that are asked for", Searcher.matching_traces, rewrite("_1 & _", "_1"))],
    ids=rule_of,
)
def test_traces_of_which_a_query_finds_spans(broken: Mutation, searcher: Searcher) -> None:
    """The check fails if the rule is broken."""
    assert_caught(broken, lambda: test_query.test_traces_of_which_a_query_finds_spans(searcher))
