"""Mutants that `tests/tasks/test_pod.py` notices."""

from __future__ import annotations

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.tasks import test_pod
from tracelake.tasks import java


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("in the order of numbers", java.command_of, rewrite("int(_1[1])", "_1[1]")),
        Mutation("a module that may not be there", java.command_of, rewrite("_1 != _", "_1")),
        Mutation("names what is missing", java.command_of, rewrite("not _", "False")),
    ],
    ids=rule_of,
)
def test_broken(broken: Mutation) -> None:
    """Each broken rule is caught."""
    assert_caught(broken, test_pod.it_is_as_described)
