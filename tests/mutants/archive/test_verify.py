"""Mutants that `tests/archive/test_verify.py` notices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.archive import test_verify
from tests.archive.place import HotLake
from tests.archive.test_verify import lake
from tests.mutants.mutation import Mutation, assert_caught, rewrite
from tracelake.archive import verify as archive_verify
from tracelake.tracking import verify as tracking_verify


def test_a_repository_that_is_away_is_named(lake: HotLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other damage is named too. `verify` once ended with an error, and its earlier findings were lost."""
    test_verify.check_repository_away(lake, monkeypatch)
    for rule in (
        Mutation(
            "it is not read for ever",
            archive_verify._check_repository,
            rewrite("if _1 < _2: ...", "if _1 >= 0 or _2: ..."),
        ),
        Mutation(
            "of packs neither",
            archive_verify._check_repository,
            rewrite("_1(_2) and _3 < _4", "_1(_2) and _3 >= 0 or _4"),
        ),
        Mutation(
            "what was not read is told",
            archive_verify._check_repository,
            rewrite("_1 >= _2", "_1 < 0 and _2"),
        ),
    ):
        with monkeypatch.context() as patch:
            assert_caught(rule, lambda: test_verify.check_repository_away(lake, patch))


RULES: Final = [
    Mutation("hot has a payload", tracking_verify._trace_problems, rewrite("if not _: ...", "if False: ...")),
    Mutation("late spans go", tracking_verify._trace_problems, rewrite("_1 not in _", "_1 is None")),
    Mutation("spans of its own", tracking_verify._part_problem, rewrite("_1() != _._", "_1() is None")),
    Mutation("as many", tracking_verify._part_problem, rewrite("if _1 != _: ...", "if _1 < 0: ...")),
    Mutation("columns", tracking_verify._differ, rewrite("_ or _1", "False and _1")),
    Mutation("objects count", archive_verify._check_repository, rewrite("_1 != _", "_1 is None")),
]


@pytest.mark.parametrize("new_url", ["sqlite"], indirect=True)
def test_no_check_is_missing(lake: HotLake) -> None:
    """A test fails for each check that is left out, also for the SQLite file; `faults/flip_tracking` flips bits."""
    for rule in RULES:
        assert_caught(rule, lambda: test_verify.check_damages(lake))
    for damage, rule in FILE_DAMAGES:

        def check(damage: Callable[[Path], None] = damage) -> None:
            assert test_verify.named_of_copy(lake, damage) == {"tracking store"}

        check()
        assert_caught(rule, check)


FILE_DAMAGES: Final = (
    (
        test_verify.an_index_is_wrong,
        Mutation(
            "SQLite looks itself", tracking_verify._file_problems, rewrite("_1 != _2", "_1 == _1 == _2")
        ),
    ),
    (
        test_verify.a_text_is_a_blob,
        Mutation("kinds", tracking_verify._kind_problems, rewrite("_1 not in _", "_1 is None")),
    ),
)
