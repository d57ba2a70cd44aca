"""Mutants that `tests/test_batching.py` notices."""

from __future__ import annotations

import pytest

from tests import test_batching
from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite, rule_of
from tracelake.batching import batches


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("by bytes", batches, rewrite("_1 or _", "_1")),
        Mutation("by number", batches, rewrite("_ or _1", "_1")),
        Mutation(
            "each has all the room", batches, rewrite("_\n_ = _", "yield batch\nbatch, room = ([], room)")
        ),
        Mutation("one by itself is none too many", batches, rewrite("_ and _1", "_1")),
        Mutation("the last is one, too", batches, drop("if a: ...")),
        Mutation("what is in it takes room", batches, drop("_ -= _")),
    ],
    ids=rule_of,
)
def test_each_rule_is_needed(broken: Mutation) -> None:
    """Without any one rule, a batch exceeds the limit, or an item is left out."""
    assert_caught(broken, test_batching.check)
