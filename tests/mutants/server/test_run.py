"""Mutants that `tests/server/test_run.py` notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.server import test_run
from tracelake.server.connections import Renewal


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("what fits not does not count", Renewal._look, rewrite("OSError", "KeyError")),
        Mutation("a look lasts for a while", Renewal._look, rewrite("_ < _", "False")),
        Mutation("the same is none", Renewal._look, rewrite("_ == _", "False")),
        Mutation("it is looked at", Renewal._look, rewrite("_ = _\n_1", "pass\n_1")),
    ],
    ids=rule_of,
)
def test_a_certificate_that_is_renewed(broken: Mutation, tmp_path: Path) -> None:
    """The check fails for each broken rule."""
    assert_caught(broken, lambda: test_run.test_a_certificate_that_is_renewed(tmp_path))
