"""Mutants that `tests/shards/test_gather.py` notices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.shards import test_gather
from tracelake.shards.compaction import MergeSources, _group_bytes, _in_order
from tracelake.shards.parts import _halved, cut


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (
            Mutation(
                "a row is in the group that begins before it",
                MergeSources.gather,
                rewrite("a.b(c, d, _)", "a.b(c, d, 'left')"),
            ),
            test_gather.test_large_rows_among_small_ones_come_together,
        ),
        (
            Mutation("rows of a group count from its first", MergeSources._of_group, rewrite("_1 - _", "_1")),
            test_gather.test_rows_come_in_the_order_asked_for,
        ),
        (
            Mutation(
                "relative ids begin where the batch says",
                MergeSources.__init__,
                rewrite("_1 if _2 else 0", "_1 if not _2 else 0"),
            ),
            test_gather.test_rows_come_in_the_order_asked_for,
        ),
        (
            Mutation(
                "rows are put back into their order",
                _in_order,
                rewrite("_1(_._(_2))", "_1(sort(_2))", sort=np.sort),
            ),
            test_gather.test_rows_come_in_the_order_asked_for,
        ),
        (
            Mutation(
                "each row went when it went",
                MergeSources.gather,
                rewrite("None if _1 else a[_2]", "None if _1 else sort(a)[_2]", sort=np.sort),
            ),
            test_gather.test_rows_come_in_the_order_asked_for,
        ),
        (
            Mutation(
                "what turned out too large is read in fewer rows",
                MergeSources._read,
                rewrite("a > b", "a < -b"),
            ),
            test_gather.test_large_rows_among_small_ones_come_together,
        ),
        (
            Mutation("no row is passed over", MergeSources.gather, rewrite("_1 = a", "_1 = a + 1")),
            test_gather.test_large_rows_among_small_ones_come_together,
        ),
        (
            Mutation("sizes are not guessed at", _group_bytes, rewrite("if _: ...", "if False: ...")),
            test_gather.test_a_part_of_somebody_else_is_named,
        ),
        (
            Mutation(
                "a compacted part has a summary", MergeSources.__init__, rewrite("_1 |= _2", "_1 &= _2")
            ),
            test_gather.check_compacted,
        ),
    ],
    ids=rule_of,
)
def test_a_broken_gathering_is_noticed(
    broken: Mutation, check: Callable[[Path], None], tmp_path: Path
) -> None:
    """Each broken rule of gathering fails one of the tests above."""
    assert_caught(broken, lambda: check(tmp_path))


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("slices have so many bytes", _halved, rewrite("_1 <= a", "_1 <= 2 * a")),
        Mutation("both halves are there", _halved, rewrite("_1.a(_2)", "_1.a(_2 + 1)")),
        Mutation("slices follow one another", cut, rewrite("_1.a(_2, _3)", "_1.a(_2, _3 - 1)")),
    ],
    ids=rule_of,
)
def test_broken_cutting_is_noticed(broken: Mutation) -> None:
    """Slicing that loses rows or exceeds a limit is caught."""

    def check() -> None:
        for sizes in ([], [3], [0, 0, 100, 1], [50] * 9):
            for max_rows in (None, 1, 4):
                test_gather.check_cut(sizes, 120, max_rows)

    check()
    assert_caught(broken, check)
