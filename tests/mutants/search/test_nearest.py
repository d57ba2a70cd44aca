"""Mutants that `tests/search/test_nearest.py` notices."""

from __future__ import annotations

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.search import test_nearest
from tracelake.search import vector_index as nearest_module
from tracelake.search.semantic_search import reciprocal_rank_fusion
from tracelake.search.vector_index import nearest


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("what may be among the nearest is compared exactly", nearest, rewrite("_1 + _", "_1")),
        Mutation("codes are multiplied with a length of 1", nearest_module._bounds, rewrite("_1 / _", "_1")),
        Mutation("the least is that of the worst case", nearest, rewrite("a - b", "a + b")),
        Mutation("equal ones are in the order of their ids", nearest, rewrite("(_1, -_2)", "(-_2, _1)")),
        Mutation("rows that are gone are left out", nearest_module._positions, rewrite("_1 & _", "_1")),
        Mutation(
            "only rows that are allowed are found",
            nearest_module._positions,
            rewrite("_1 if _ else _2", "_1 if True else _2"),
        ),
    ],
    ids=rule_of,
)
def test_each_rule_is_held(broken: Mutation) -> None:
    """The checks detect each broken rule."""

    def check() -> None:
        test_nearest.check_doubtful()
        test_nearest.check_many()
        test_nearest.check_lengths()

    assert_caught(broken, check)


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("ranks count from 1", reciprocal_rank_fusion, rewrite("_1(_2, 1)", "_1(_2, 0)")),
        Mutation("better ranks come first", reciprocal_rank_fusion, rewrite("-_1", "_1")),
        Mutation("each ranking adds to the score", reciprocal_rank_fusion, rewrite("_1 += _2", "_1 = _2")),
    ],
    ids=rule_of,
)
def test_each_rule_of_fusion_is_held(broken: Mutation) -> None:
    """The checks detect each broken rule."""

    def check() -> None:
        assert reciprocal_rank_fusion([[3, 1], [1, 2], []]) == [
            (1, 1 / 62 + 1 / 61),
            (3, 1 / 61),
            (2, 1 / 62),
        ]

    check()
    assert_caught(broken, check)
