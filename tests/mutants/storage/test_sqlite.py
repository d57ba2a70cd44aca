"""Mutants that `tests/storage/test_sqlite.py` notices."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.storage import test_sqlite
from tracelake.storage import sqlite
from tracelake.storage.sqlite import Calls


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("none begins then", Calls.one, rewrite("_ and _1", "False and _1")),
        Mutation("those that have begun go on", Calls.one, rewrite("_1 and _", "_1")),
    ],
    ids=lambda broken: str(broken.rule),
)
def test_broken_rules_of_closing_are_caught(tmp_path: Path, broken: Mutation) -> None:
    """Each rule, broken once, is noticed."""
    assert_caught(
        broken, lambda: test_sqlite.closed_in_the_middle(test_sqlite.Faulty(tmp_path / "records.db"))
    )


@pytest.mark.parametrize(
    "broken",
    [
        Mutation(
            "it is told apart",
            sqlite._way_out,
            rewrite("_1 == _", "_1 == sqlite_full", sqlite_full=sqlite3.SQLITE_FULL),
        )
    ],
    ids=rule_of,
)
def test_a_file_that_may_not_be_written_names_the_right(broken: Mutation, tmp_path: Path) -> None:
    """The check fails if the rule is broken."""
    assert_caught(broken, lambda: test_sqlite.test_a_file_that_may_not_be_written_names_the_right(tmp_path))
