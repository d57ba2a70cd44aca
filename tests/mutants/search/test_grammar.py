"""Mutants that `tests/search/test_grammar.py` notices."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.search import test_grammar
from tracelake.search import query_compiler, query_parser
from tracelake.search.query_parser import _Parser


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (
            Mutation(
                "texts have no order",
                query_parser._word,
                rewrite("_1 and _2 and (_3 if _4 else _(_))", "_1 and _2 and (_3 if _4 else True)"),
            ),
            test_grammar.check_dots,
        ),
        (
            Mutation("has: a quoted path", _Parser._value, rewrite("a == _", "False")),
            test_grammar.check_paths,
        ),
        (
            Mutation("has: the beginning of one", _Parser._value, rewrite("bool(_(2))", "False")),
            test_grammar.check_paths,
        ),
    ],
    ids=rule_of,
)
def test_broken_rules_are_caught(broken: Mutation, check: Callable[[], None]) -> None:
    """The checks detect each broken rule of the grammar."""
    query_compiler._prepared.cache_clear()
    assert_caught(broken, check)
    query_compiler._prepared.cache_clear()
