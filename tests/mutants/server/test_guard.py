"""Mutants that `tests/server/test_guard.py` notices."""

from __future__ import annotations

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.server import test_guard
from tests.server.test_guard import guarded
from tracelake.server import http_policy


@pytest.mark.parametrize(
    "broken",
    [
        Mutation(
            "what is not listed is for admins",
            http_policy.needed,
            rewrite("for _ in _1: ...\nreturn _", "for methods, pattern, need in _1: ...\nreturn 'read'"),
        )
    ],
    ids=rule_of,
)
def test_broken_rules_are_caught(guarded: test_guard.Guarded, broken: Mutation) -> None:
    """The test of all routes fails if a rule is removed."""
    assert_caught(broken, lambda: test_guard.check_every_route(guarded))
