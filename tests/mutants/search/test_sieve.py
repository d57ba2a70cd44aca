"""Mutants that `tests/search/test_sieve.py` notices."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite
from tests.search import test_sieve
from tracelake.search import prefilter
from tracelake.search.prefilter import prefilter_of

MUTANTS: list[tuple[Mutation, Callable[[], object]]] = [
    (
        Mutation("stems end otherwise", prefilter._of_word, rewrite("_(_1.a)", "_1.a")),
        test_sieve.check_passes,
    ),
    (
        Mutation(
            "only English is stemmed", prefilter._of_word, rewrite("_1 if _ else _2", "_1 if True else _2")
        ),
        test_sieve.check_passes,
    ),
    (
        Mutation("what has two cases is not sure", prefilter._is_sure, rewrite("_ or _1", "True or _1")),
        test_sieve.check_none("ΣΆΣ"),
    ),
    (
        Mutation(
            "what stands for others is not sure", prefilter._is_sure, rewrite("return _ and _1", "return _1")
        ),
        test_sieve.check_control,
    ),
    (Mutation("one of several suffices", prefilter._any, rewrite("any", "all")), test_sieve.check_passes),
    (Mutation("of several all are needed", prefilter._all, rewrite("all", "any")), test_sieve.check_passes),
    (
        Mutation("OR may mean any", prefilter._of_node, rewrite("_(_1) == _(_)", "_1")),
        test_sieve.check_none("refund OR *"),
    ),
    (
        Mutation("of many, as many as it may", prefilter._all, rewrite("_1 <= _", "_1 < 1000")),
        test_sieve.check_many,
    ),
    (
        Mutation("a word may differ", prefilter._needles, rewrite("_._ and (not _)", "False")),
        test_sieve.check_none("refund~1"),
    ),
    (
        Mutation(
            "numbers are written in many ways", prefilter._needles, rewrite("_1 or (_2 and _)", "_1 or _2")
        ),
        test_sieve.check_none("attributes.retries:31"),
    ),
    (
        Mutation("a service is asked for", prefilter_of, rewrite("((_, _), (_1, _2))", "(_1, _2)")),
        test_sieve.test_service_and_workspace_are_asked_for_too,
    ),
    (
        Mutation("a workspace is asked for", prefilter_of, rewrite("((_1, _2), (_, _))", "((_1, _2),)")),
        test_sieve.test_service_and_workspace_are_asked_for_too,
    ),
]


@pytest.mark.parametrize(("broken", "check"), MUTANTS, ids=[broken.rule for broken, _ in MUTANTS])
def test_broken_rules_are_caught(broken: Mutation, check: Callable[[], object]) -> None:
    """A test fails for each broken rule."""
    assert_caught(broken, check)
