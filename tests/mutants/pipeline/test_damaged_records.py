"""Mutants that `tests/pipeline/test_damaged_records.py` notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.pipeline import test_damaged_records
from tests.pipeline.test_damaged_records import lake
from tracelake import Lake
from tracelake.journal.explicit_transactions import begin_transaction, of_steps, on_end
from tracelake.pipeline.outputs.configured import AddedOutputs


def test_commits_without_an_output_are_noticed(lake: Lake, tmp_path: Path) -> None:
    """The test above fails if commits ignore a torn output."""
    broken = Mutation("held back", AddedOutputs.opened, rewrite("a._._()", "()"))
    assert_caught(broken, lambda: test_damaged_records.torn_output(lake, tmp_path))


def test_a_forgotten_one_that_is_forgotten_whole_is_noticed(lake: Lake, tmp_path: Path) -> None:
    """The test above fails without the rule."""
    broken = Mutation("its steps speak for it", of_steps, rewrite("not _", "True"))
    assert_caught(broken, lambda: test_damaged_records.begun_after_it_was_forgotten(lake, tmp_path))


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("what became of them is kept", begin_transaction, rewrite("(_, _)", "()")),
        Mutation("the same end again is fine", on_end, rewrite("_1 and _ == _", "_1 and False")),
        Mutation("an id counts once", begin_transaction, rewrite("_ is not None", "False")),
    ],
    ids=rule_of,
)
def test_a_broken_rule_is_noticed(lake: Lake, broken: Mutation) -> None:
    """A test above fails for each broken rule of ended transactions."""
    assert_caught(broken, lambda: test_damaged_records.lost_answers(lake))
