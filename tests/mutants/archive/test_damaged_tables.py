"""Mutants that `tests/archive/test_damaged_tables.py` notices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.archive import test_damaged_tables
from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tracelake.archive.repositories import TablesRepository


@pytest.mark.parametrize(
    "broken",
    [Mutation("damage is of some traces", TablesRepository._outcomes, rewrite("(_, _, OSError)", "OSError"))],
    ids=rule_of,
)
def test_a_damaged_part_keeps_only_what_is_in_it(broken: Mutation, folders: Iterator[Path]) -> None:
    """The check fails if the rule is broken."""
    assert_caught(broken, lambda: test_damaged_tables.test_a_damaged_part_keeps_only_what_is_in_it(folders))
