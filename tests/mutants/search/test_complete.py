"""Mutants that `tests/search/test_complete.py` notices."""

from __future__ import annotations

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.search import test_complete
from tests.search.test_complete import odd
from tracelake.search import facets
from tracelake.search.facets import _Terms
from tracelake.search.searcher import Searcher


@pytest.mark.parametrize(
    "broken",
    [
        Mutation(
            "what is typed has backslashes",
            facets.completions,
            rewrite("_(_1 if _2 else _3)", "str(_1 if _2 else _3)"),
        ),
        Mutation("so have paths", facets.completions, rewrite("a(b).c", "b.replace('\"', '').c")),
        Mutation(
            "no longer than a query",
            facets.completions,
            rewrite("_1((_2 for _2 in _3 if _), _4)", "_1((_2 for _2 in _3), _4)"),
        ),
        Mutation(
            "letters as in the index",
            facets.completions,
            rewrite("_1(_2, _3, _(_4))", "_1(_2, _3, _4.lower())"),
        ),
        Mutation("paths that are cut", _Terms.beginning, rewrite("len(_1)", "-len(_1)")),
    ],
    ids=rule_of,
)
def test_broken_rules_are_caught(odd: Searcher, broken: Mutation) -> None:
    """The checks detect each broken completion rule."""
    assert_caught(broken, lambda: test_complete.check_odd(odd))
