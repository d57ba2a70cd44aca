"""Mutants that `tests/pipeline/test_merge.py` notices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.pipeline import test_merge
from tracelake.pipeline import merge_task


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (
            Mutation(
                "few: what has the ids of another is compared",
                merge_task._of_few,
                rewrite("_1 is not _", "_1 is None"),
            ),
            test_merge.test_w11_workspaces_have_rows_of_their_own,
        ),
        (
            Mutation("the workspace orders rows", merge_task.winning_rows, rewrite("a = b.c", "a = b.c[:3]")),
            lambda _: test_merge.test_w11_row_ids_are_the_same_for_any_order_of_claims((3, 2, 1, 0)),
        ),
        (
            Mutation("what came twice is compared", merge_task._of_few, rewrite("_1 is not _", "_1 is None")),
            test_merge.test_s5_s6_what_is_there_gives_no_output,
        ),
        (
            Mutation(
                "what is stored is compared",
                merge_task.merge,
                rewrite("not a and (_1 := _2) is not None", "(_1 := _2) is not None"),
            ),
            test_merge.test_s5_s6_what_is_there_gives_no_output,
        ),
    ],
    ids=rule_of,
)
def test_what_is_of_few_is_held(tmp_path: Path, broken: Mutation, check: Callable[[Path], None]) -> None:
    """A test fails for each broken rule."""
    assert_caught(broken, lambda: check(tmp_path))
