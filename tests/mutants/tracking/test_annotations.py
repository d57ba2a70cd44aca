"""Mutants that `tests/tracking/test_annotations.py` notices."""

from __future__ import annotations

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.tracking import test_annotations
from tracelake.tracking import mlflow_search
from tracelake.tracking.annotations import Annotations
from tracelake.tracking.mlflow_search import TraceSearch
from tracelake.tracking.outbox import Uncommitted
from tracelake.tracking.store import TrackingStore


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("a backslash is one", mlflow_search._escaped, rewrite("_1._(_, _)", "_1")),
        Mutation(
            "traces of this lake",
            TraceSearch.search,
            rewrite(
                "a(_8, _1(_2)).c(d._ == self._, *_3.e(d), _4.f.g(list(h)), *(_5(_6) for _6 in _7))",
                "a(_8, _1(_2)).c(*_3.e(_4), _4.f.g(list(h)), *(_5(_6) for _6 in _7))",
            ),
        ),
        Mutation("tags of the trace", TraceSearch._tag, rewrite("(_1, _, _2, _3)", "(_1, _2, _3)")),
        Mutation("tags of this lake", TraceSearch._tag, rewrite("(_, _1, _2, _3)", "(_1, _2, _3)")),
        Mutation("spans of this lake", TraceSearch._holds, rewrite("(_, _1, _2)", "(_1, _2)")),
        Mutation("a page goes on among equals", TraceSearch.search, rewrite("a(b, c(...))", "a(b, b)")),
        Mutation(
            "a token is of one search",
            mlflow_search.read_token,
            rewrite("_1 and _2 and _ and _3 and _4", "_1 and _2 and _3 and _4"),
        ),
    ],
    ids=rule_of,
)
def test_mlflows_searches_on_both_databases(broken: Mutation, store: TrackingStore) -> None:
    """The check fails for each broken rule."""
    assert_caught(broken, lambda: test_annotations.test_mlflows_searches_on_both_databases(store))


@pytest.mark.parametrize(
    "broken",
    [Mutation("what is ordered by is an attribute", mlflow_search._order, rewrite("_1 and _", "_1"))],
    ids=rule_of,
)
def test_searches_see_names_that_were_set_and_what_has_not_ended(
    broken: Mutation, store: TrackingStore
) -> None:
    """The check fails if the rule is broken."""
    assert_caught(
        broken, lambda: test_annotations.test_searches_see_names_that_were_set_and_what_has_not_ended(store)
    )


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("ids", TrackingStore.ids_that_begin, rewrite("if a is not None: ...", "pass")),
        Mutation("numbers of spans", Uncommitted.received_spans, rewrite("a is not None", "False")),
        Mutation("experiments", Annotations.experiments, rewrite("_1 if _ else _2", "_1")),
        Mutation("an experiment's name", Annotations.experiment_of, rewrite("[] if _ else _1", "[]")),
        Mutation("names of spans", TraceSearch._holds, rewrite("(_1, _2, *_)", "(_1, _2)")),
        Mutation("traces", TraceSearch._workspace_condition, rewrite("_ is None", "True")),
    ],
    ids=rule_of,
)
def test_a_workspace_reads_its_own(broken: Mutation, store: TrackingStore) -> None:
    """The check fails for each statement that reads rows of all workspaces."""
    assert_caught(broken, lambda: test_annotations.check_workspaces(store))
