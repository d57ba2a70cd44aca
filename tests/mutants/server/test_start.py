"""Mutants that `tests/server/test_start.py` notices."""

from __future__ import annotations

from pathlib import Path

from tests.mutants.mutation import Mutation, assert_caught, rewrite
from tests.server import test_start
from tracelake.archive.scheduler import ArchiveLoop


def test_broken_rules_are_caught(tmp_path: Path) -> None:
    """The checks fail if the rule is removed."""
    broken = Mutation(
        "who never began is not waited for", ArchiveLoop.stop, rewrite("if _: ...", "if 1: ...")
    )
    assert_caught(broken, lambda: test_start.check_the_error_of_a_start_is_its_own(tmp_path))
