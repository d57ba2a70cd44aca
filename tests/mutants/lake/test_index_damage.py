"""Mutants that `tests/lake/test_index_damage.py` notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lake import test_index_damage
from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tracelake.indexing import build
from tracelake.indexing.merge import IndexMerger, _Behind


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("others go on", _Behind.pass_by, rewrite("_[_]._", "1 << 40")),
        Mutation("long runs are tried as short ones", _Behind.pass_by, rewrite("if _: ...", "if True: ...")),
        Mutation("what fails is passed by", IndexMerger._merge_or_pass_by, rewrite("return True", "raise")),
    ],
    ids=rule_of,
)
def test_a_run_that_cannot_be_merged_holds_up_no_other(
    broken: Mutation, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The check fails for each broken rule."""
    assert_caught(
        broken, lambda: test_index_damage.test_a_run_that_cannot_be_merged_holds_up_no_other(tmp_path, caplog)
    )


@pytest.mark.parametrize(
    "broken",
    [
        Mutation(
            "parts are compared with what was written",
            build._opened,
            rewrite("_(_1, (_2, _3, _4))", "(lambda *_: 0)(_1, (_2, _3, _4))"),
        )
    ],
    ids=rule_of,
)
def test_an_index_is_not_built_of_damaged_rows(broken: Mutation, tmp_path: Path) -> None:
    """The check fails if the rule is broken."""
    assert_caught(broken, lambda: test_index_damage.test_an_index_is_not_built_of_damaged_rows(tmp_path))
