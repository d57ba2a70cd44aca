"""Mutants that `tests/shards/test_kept_sizes.py` notices."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.shards import test_kept_sizes
from tracelake.shards import lookup, parts
from tracelake.shards.parts import _SUMMARY_BYTES

BROKEN: list[tuple[Mutation, Callable[[], None]]] = [
    (
        Mutation("columns count", parts._size, rewrite("_ + _1 * _2", "0 + _1 * _2")),
        partial(test_kept_sizes.check_footer, 1),
    ),
    (
        Mutation("groups count", parts._size, rewrite("_1 * _._", "_1 * 1")),
        partial(test_kept_sizes.check_footer, 40),
    ),
    (
        Mutation(
            "a summary counts",
            parts._size_of_summary,
            rewrite("return _", "return summary_bytes + 0", summary_bytes=_SUMMARY_BYTES),
        ),
        test_kept_sizes.check_summary,
    ),
    (Mutation("a table counts", lookup._size, rewrite("_1 + _", "_1")), test_kept_sizes.check_column),
    (
        Mutation("a part's own words are left", lookup._without_metadata, rewrite("_1._(None)", "_1")),
        test_kept_sizes.check_column,
    ),
]


@pytest.mark.parametrize(("broken", "check"), BROKEN, ids=rule_of)
def test_broken_rules_are_caught(broken: Mutation, check: Callable[[], None]) -> None:
    """Each broken rule is caught."""
    assert_caught(broken, check)
