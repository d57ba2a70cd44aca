"""Mutants that `tests/search/test_tiers.py` notices."""

from __future__ import annotations

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.search import test_tiers
from tracelake import batching
from tracelake.search import protocol as search_tiers
from tracelake.search.protocol import Generation, IndexWindows, due, due_when_idle


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("a run is no more than is joined", due, rewrite("_1(_2, _3, a)", "_1(_2, _3, 2 ** 62)")),
        Mutation("what nothing is joined with is left", Generation.is_full.fget, rewrite("_1 or _", "_1")),  # type: ignore[attr-defined]
    ],
    ids=rule_of,
)
def test_rules_of_large_runs_are_held(broken: Mutation) -> None:
    """The check detects each broken rule."""
    assert_caught(broken, lambda: test_tiers.check_no_run_is_built_of_rows(10000))


def test_rules_of_rest_are_held() -> None:
    """A test above fails for each broken rule."""
    assert_caught(
        Mutation("few are left", batching.due_when_idle, rewrite("_ * _1", "_1")),
        lambda: test_tiers.check_rest(1),
    )
    assert_caught(
        Mutation(
            "a large one is paid for",
            batching.due_when_idle,
            rewrite("_1(_2) <= _ * _", "_1(_2) <= len(_2) * sum(_2)"),
        ),
        lambda: test_tiers.check_rest(1),
    )
    for broken in (
        Mutation("few rows of one part", search_tiers._of_one_part, rewrite("_ and _1", "True and _1")),
        Mutation("few bytes of one part", search_tiers._of_one_part, rewrite("_1 and _", "_1 and True")),
    ):
        assert_caught(broken, test_tiers.check_rest_is_of_one_part)


@pytest.mark.parametrize(
    "broken",
    [
        Mutation(
            "windows are not merged", IndexWindows.groups, rewrite("[self._(a) for a in b]", "[0 for a in b]")
        ),
        Mutation("idle merges stay in the newest window", due_when_idle, rewrite("a(b, c)", "b", 1)),
        Mutation("a settled window is one part", due, rewrite("_ if a else _1", "_1", 1)),
    ],
    ids=rule_of,
)
def test_rules_of_windows_are_held(broken: Mutation) -> None:
    """The check detects each broken rule."""
    assert_caught(broken, lambda: test_tiers.check_windows(4))
