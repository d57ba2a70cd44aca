"""Mutants that `tests/journal/test_store.py` notices."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.journal import test_store
from tests.mutants.mutation import Mutation, assert_caught, rewrite
from tracelake.journal.store import _validated


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (
            Mutation("records fit together", _validated, rewrite("_1 or _ or _2", "_1 or False or _2")),
            test_store.test_j12_a_step_in_the_middle_that_is_gone_is_loud,
        ),
        (
            Mutation("records fit together", _validated, rewrite("_1 or _2 or _", "_1 or _2")),
            test_store.test_j12_a_torn_record_is_loud,
        ),
        (
            Mutation("records fit together", _validated, rewrite("a is not None and (not b)", "False")),
            test_store.test_j12_a_torn_record_is_loud,
        ),
        (
            Mutation("records fit together", _validated, rewrite("not _(...)", "False")),
            test_store.test_j12_a_torn_record_is_loud,
        ),
    ],
)
def test_j12_broken(broken: Mutation, check: Callable[[], None]) -> None:
    """For each comparison, a test above fails if it is broken (J12)."""
    assert_caught(broken, check)
