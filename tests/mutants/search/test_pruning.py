"""Mutants that `tests/search/test_pruning.py` notices."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.search import test_pruning
from tracelake.search.model import ContentsOf
from tracelake.search.searcher import Searcher

MUTANTS: Final = (
    Mutation("times of all batches count", ContentsOf.add, rewrite("_1 += _2", "_1[:] = _2")),
    Mutation("scores are of all parts", Searcher._plan, rewrite("_ and _", "False")),
)


@pytest.mark.parametrize("broken", MUTANTS, ids=rule_of)
def test_a_broken_rule_changes_an_answer(
    tmp_path: Path, broken: Mutation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without any of the rules some answer changes."""
    monkeypatch.setattr("tracelake.search.build.INDEX_BATCH_ROWS", 3)
    assert_caught(broken, lambda: test_pruning.check_answers(tmp_path, 1, 60))


def test_all_are_asked_where_the_newest_do_not_fill_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too few newest hits for a page would otherwise end the result."""
    broken = Mutation(
        "the others are asked, too", Searcher._newest, rewrite("if _(_1) < _: ...", "if not _1: ...")
    )
    assert_caught(broken, lambda: test_pruning.check_newest(tmp_path, 0.5, monkeypatch))
