"""Mutants that `tests/test_scratch.py` notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import test_scratch
from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite, rule_of
from tests.test_scratch import place
from tracelake import scratch


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("it is held", scratch._locked, drop("_(_, _)")),
        Mutation("of an age", scratch._delete_if_abandoned, rewrite("_1 + _", "_1")),
        Mutation("it is deleted", scratch._delete_if_abandoned, rewrite("_1\n_", "_1\npass")),
    ],
    ids=rule_of,
)
def test_what_a_killed_process_left_goes(broken: Mutation, place: Path) -> None:
    """The check fails for each broken rule."""
    assert_caught(broken, lambda: test_scratch.test_what_a_killed_process_left_goes(place))


@pytest.mark.parametrize(
    "broken",
    [Mutation("links are not followed", scratch._delete_if_abandoned, rewrite("_1 | _2 | _._", "_1 | _2"))],
    ids=rule_of,
)
def test_others_stay(broken: Mutation, place: Path) -> None:
    """The check fails if the rule is broken."""
    assert_caught(broken, lambda: test_scratch.test_others_stay(place))


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("now and then", scratch._sweep_now_and_then, drop("return")),
        Mutation("first", scratch.scratch_directory.__wrapped__, rewrite("if _: ...", "if False: ...")),  # type: ignore[attr-defined]
    ],
    ids=rule_of,
)
def test_a_process_looks_now_and_then(broken: Mutation, place: Path) -> None:
    """The check fails for each broken rule."""
    assert_caught(broken, lambda: test_scratch.test_a_process_looks_now_and_then(place))


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("unknown size", scratch._place, rewrite("_ is not None", "True")),
        Mutation("too large", scratch._place, rewrite("_ <= _1", "True")),
        Mutation("no room", scratch._place, rewrite("_ >= _1", "True")),
    ],
    ids=rule_of,
)
def test_small_contents_are_in_memory(broken: Mutation, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check fails for each broken rule."""
    assert_caught(broken, lambda: test_scratch.test_small_contents_are_in_memory(place, monkeypatch))
