"""Mutants that `tests/server/test_archiving.py` notices."""

from __future__ import annotations

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.server import test_archiving
from tracelake.server.archive import ArchiveService


@pytest.mark.parametrize(
    "broken",
    [Mutation("no pass repeats failures", ArchiveService._turn, rewrite("_1 and _", "_1"))],
    ids=rule_of,
)
def test_what_fails_keeps_no_others_for_the_interval(broken: Mutation) -> None:
    """The check fails if the rule is broken."""
    assert_caught(broken, test_archiving.test_what_fails_keeps_no_others_for_the_interval)
