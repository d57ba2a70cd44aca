"""Mutants that `tests/archive/test_moved.py` notices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.archive import test_moved
from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tracelake.archive.repositories import path_in


@pytest.mark.parametrize("layout", ["trace", "pack"])
@pytest.mark.parametrize(
    "broken", [Mutation("where it was", path_in, rewrite("_ or _", "True"))], ids=rule_of
)
def test_a_lake_can_be_moved(broken: Mutation, folders: Iterator[Path], layout: str) -> None:
    """The check fails if the rule is broken."""
    assert_caught(broken, lambda: test_moved.test_a_lake_can_be_moved(folders, layout))
