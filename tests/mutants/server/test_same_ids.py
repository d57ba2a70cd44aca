"""Mutants that `tests/server/test_same_ids.py` notices."""

from __future__ import annotations

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.server import test_same_ids
from tests.server.test_same_ids import fixture_teams
from tracelake.hot import tier


@pytest.mark.parametrize(
    "broken",
    [Mutation("each its tier", tier._key_of, rewrite("(_, _1, _2)", "('team-a', _1, _2)"))],
    ids=rule_of,
)
def test_each_team_keeps_its_own_row(broken: Mutation, teams: test_same_ids.Teams) -> None:
    """The check fails if the rule is broken."""
    assert_caught(broken, lambda: test_same_ids.test_each_team_keeps_its_own_row(teams))
