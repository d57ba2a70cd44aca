"""Mutants that `tests/storage/test_local_copies.py` notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.storage import test_local_copies
from tracelake.storage import wrappers


@pytest.mark.parametrize(
    "broken",
    [Mutation("what held nothing is not kept", wrappers._end, rewrite("if _: ...", "if True: ..."))],
    ids=rule_of,
)
def test_nothing_is_kept_of_files_that_are_no_copies(broken: Mutation, tmp_path: Path) -> None:
    """The check fails if the rule is broken."""
    assert_caught(
        broken, lambda: test_local_copies.test_nothing_is_kept_of_files_that_are_no_copies(tmp_path)
    )
