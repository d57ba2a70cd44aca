"""Mutants that `tests/lake/test_lake_search.py` notices."""

from __future__ import annotations

import pytest

from tests.lake import test_lake_search
from tests.lake.test_lake_search import lake
from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite, rule_of
from tracelake import Lake
from tracelake.search import searcher


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("queries", searcher.check_request, rewrite("if _1:\n    _", "if _1:\n    pass")),
        Mutation("facets", searcher.check_request, drop("a(_._)")),
        Mutation("orders", searcher.check_request, drop("_._(...)", nth=1)),
    ],
    ids=rule_of,
)
def test_an_empty_lake_refuses_what_others_refuse(broken: Mutation, lake: Lake) -> None:
    """The check fails for each broken rule."""
    assert_caught(broken, lambda: test_lake_search.test_an_empty_lake_refuses_what_others_refuse(lake))
