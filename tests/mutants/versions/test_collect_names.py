"""Mutants that `tests/versions/test_collect_names.py` notices."""

from __future__ import annotations

import pytest

from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite, rule_of
from tests.versions import test_collect_names
from tracelake.versions.commits import RefClaims
from tracelake.versions.gc import RepositoryCollector


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("a name is told of before it is given", RefClaims.give, drop("_()")),
        Mutation(
            "where one was given, a collector looks again",
            RepositoryCollector._reached_at_once,
            rewrite("if _: ...", "if True: ..."),
        ),
    ],
    ids=rule_of,
)
def test_broken_so_a_name_is_missed(broken: Mutation) -> None:
    """Without either half of the rule, a commit that always had a name is collected."""

    def check() -> None:
        for moves in range(1, 20):
            test_collect_names.test_a_name_that_moves_while_a_collector_looks(moves)

    assert_caught(broken, check)
