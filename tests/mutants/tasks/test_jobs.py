"""Mutants that `tests/tasks/test_jobs.py` notices."""

from __future__ import annotations

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.tasks import test_jobs
from tracelake.tasks.java import owns_gateway
from tracelake.tasks.spark import _has_session, _Jobs


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("many", _Jobs.are_enough, rewrite("_ and _1", "_1")),
        Mutation(
            "under way",
            _Jobs.are_enough,
            rewrite(
                "_1 = _",
                "_1 = owns_gateway() and (not has_session())",
                has_session=_has_session,
                owns_gateway=owns_gateway,
            ),
        ),
        Mutation("ours", _Jobs.are_enough, rewrite("_1 and _ and _2", "_1 and _2")),
        Mutation("of a user", _Jobs.are_enough, rewrite("_1 and _2 and _", "_1 and _2")),
    ],
    ids=rule_of,
)
def test_broken_rules_are_caught(broken: Mutation) -> None:
    """Each broken rule is caught."""
    assert_caught(broken, test_jobs.check_jobs)
