"""Mutants that `tests/tasks/test_on_worker.py` notices."""

from __future__ import annotations

import pytest

from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite, rule_of
from tests.tasks import test_on_worker
from tests.tasks.test_on_worker import fixture_unfrozen
from tracelake.tasks import spark
from tracelake.tasks.spark import OnWorker

pytestmark = pytest.mark.usefixtures("unfrozen")


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("set aside", spark._keep_imports, rewrite("_1\n_", "_1\npass")),
        Mutation("a task ends with it", OnWorker.__call__, drop("_(_)")),
    ],
    ids=rule_of,
)
def test_broken(broken: Mutation) -> None:
    """Each broken rule is caught."""
    assert_caught(broken, test_on_worker.imports_are_set_aside)
