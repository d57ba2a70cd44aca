"""Mutants that `tests/server/test_gathering.py` notices."""

from __future__ import annotations

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.server import test_gathering
from tracelake.tracking.ingest_queue import GroupCommitter


@pytest.mark.parametrize(
    "broken",
    [Mutation("late groups are written", GroupCommitter._look, rewrite("_\nreturn", "return"))],
    ids=rule_of,
)
def test_who_is_too_late_holds_nothing_back(broken: Mutation) -> None:
    """The check fails if the rule is broken."""
    assert_caught(broken, test_gathering.test_who_is_too_late_holds_nothing_back)
