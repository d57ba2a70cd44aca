"""Mutants that `tests/lake/test_annotations.py` notices."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import tracelake
from tests.lake import test_annotations
from tests.lake.test_annotations import store
from tests.mutants.mutation import Mutation, assert_caught, rewrite
from tracelake.lake.annotations import check_experiment_tag
from tracelake.tracking.annotations import Annotations
from tracelake.tracking.store import TrackingStore

MUTANTS: list[tuple[Mutation, Callable[[tracelake.Lake, TrackingStore], object]]] = [
    (
        Mutation(
            "only the archive says where a trace is", Annotations.set_tag, rewrite("_1 in _", "_1 == 0")
        ),
        test_annotations.test_tags_of_columns_are_the_archives,
    ),
    (
        Mutation(
            "a filter by tags asks for all of them", Annotations.traces_with, rewrite("_1 == 0", "_1 >= 0")
        ),
        test_annotations.test_tags_of_traces,
    ),
    (
        Mutation(
            "what the archive reads of an experiment is checked",
            check_experiment_tag,
            rewrite("if _1 in _: ...", "if _1 == 0: ..."),
        ),
        test_annotations.test_experiments,
    ),
]


@pytest.mark.parametrize(("broken", "check"), MUTANTS, ids=[broken.rule for broken, _ in MUTANTS])
def test_broken_rules_are_caught(
    lake: tracelake.Lake,
    store: TrackingStore,
    broken: Mutation,
    check: Callable[[tracelake.Lake, TrackingStore], object],
) -> None:
    """A test fails for each broken rule."""
    assert_caught(broken, lambda: check(lake, store))
