"""Mutants that `tests/pipeline/test_together.py` notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.pipeline import test_together
from tracelake.pipeline import decode_task, merge_task, staging

BROKEN = [
    Mutation(
        "rows are staged by their bucket", staging.run_restage_task, rewrite("if _: ...", "if False: ...")
    ),
    Mutation("a slice begins where it begins", decode_task._slices, rewrite("a(..., b)", "a(..., 0)")),
    Mutation(
        "of a stream that others share the rows of a piece are taken",
        merge_task._OldParts._alone,
        rewrite("_ > _", "False"),
    ),
]


@pytest.mark.parametrize("broken", BROKEN, ids=rule_of)
def test_a_broken_rule_is_noticed(broken: Mutation, tmp_path: Path) -> None:
    """Each broken rule would lose rows, or take those of another bucket."""

    def check() -> None:
        test_together.finished(tmp_path / "finished")
        test_together.test_a_stream_is_shared_by_few_rows_only(tmp_path)

    assert_caught(broken, check)
