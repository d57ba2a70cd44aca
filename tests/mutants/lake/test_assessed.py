"""Mutants that `tests/lake/test_assessed.py` notices."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import tracelake
from tests.lake.test_assessed import assess, check, some_request
from tests.mutants.mutation import Mutation, assert_caught, rewrite
from tracelake.search import query_compiler
from tracelake.search.inheritance import Inheritance
from tracelake.search.lookups import type_query
from tracelake.tables.uncommitted import rows_where
from tracelake.tasks.runners import InProcess
from tracelake.tracking.annotations import Annotations

MUTANTS = [
    Mutation(
        "the first attribute with a known type wins", type_query, rewrite("[(_1, _2), *_3]", "[(_1, _2)]")
    ),
    Mutation(
        "a model with tokens is a model call", type_query, rewrite("if _1 == _2: ...", "if _1 == 0: ...")
    ),
    Mutation(
        "an evaluation counts for its name", Inheritance._evaluated, rewrite("a(_1) == a(_2)", "_1 != 0")
    ),
    Mutation(
        "a workspace has its assessments",
        Inheritance.assessed,
        rewrite("_1(_2, _3, self._)", "_1(_2, _3, None)"),
    ),
    Mutation("feedback is no expectation", Annotations.values_of, rewrite("a(_1) == _2", "_1 != 0")),
    Mutation("uncommitted spans are read too", rows_where, rewrite("_1 is not None and _1._", "_1 == 0")),
]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tracelake.Lake]:
    """Return a lake with assessed traces, some of whose spans are not committed yet."""
    chance = random.Random(11)
    with tracelake.init(tmp_path_factory.mktemp("assessed") / "lake") as lake:
        store = lake.hot.set_up()
        store.write([some_request(chance) for _ in range(4)])
        with closing(lake.pipeline(runner=InProcess())) as pipeline:
            assert pipeline.run_once() is not None
        assess(lake, chance)
        store.write([some_request(chance) for _ in range(4)])
        assess(lake, chance)
        yield lake


@pytest.mark.parametrize("broken", MUTANTS, ids=[broken.rule for broken in MUTANTS])
def test_broken_rules_are_caught(both: tracelake.Lake, broken: Mutation) -> None:
    """Searches differ from SQL for each broken rule."""

    def compare() -> None:
        query_compiler._prepared.cache_clear()
        both._opened.forget_view()  # it caches rows and queries
        check(both, hot=True)

    try:
        assert_caught(broken, compare)
    finally:
        query_compiler._prepared.cache_clear()
        both._opened.forget_view()
