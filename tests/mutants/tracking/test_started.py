"""Mutants that `tests/tracking/test_started.py` notices."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite, rule_of
from tests.server import test_mlflow_traces
from tests.tracking import test_started
from tests.tracking.requests import trace_id
from tracelake import limits
from tracelake.otlp.partition import with_attributes
from tracelake.server import mlflow
from tracelake.tracking import mlflow_search
from tracelake.tracking.annotations import (
    Annotations,
    ClientTraceInfo,
    StartedTrace,
    is_exclusive_to,
    visible_to,
)
from tracelake.tracking.database import TrackingDatabase
from tracelake.tracking.ingest_queue import TrackingDoor
from tracelake.tracking.mlflow_search import _EXPERIMENTS, ExperimentSearch, read_token
from tracelake.tracking.store import TrackingStore

_store_requests = TrackingDoor._store


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("metadata is kept", ClientTraceInfo.start, drop("_._(_, _, {_: _}, _)")),
        Mutation("fields of the info are kept", ClientTraceInfo.start, rewrite("_ in _", "False")),
        Mutation(
            "metadata of this lake", ClientTraceInfo.of_traces, rewrite("_1(_, _2, _3, _4)", "_1(_2, _3, _4)")
        ),
    ],
    ids=rule_of,
)
def test_what_is_said_of_a_trace_counts_whenever_its_spans_come(
    broken: Mutation, store: TrackingStore
) -> None:
    """The check fails for each broken rule."""
    assert_caught(
        broken, lambda: test_started.test_what_is_said_of_a_trace_counts_whenever_its_spans_come(store)
    )


@pytest.mark.parametrize(
    "broken",
    [Mutation("the generation advances", ClientTraceInfo.start, rewrite("_1 + 1", "_1"))],
    ids=rule_of,
)
def test_a3_what_is_said_after_the_spans_advances_the_generation(
    broken: Mutation, store: TrackingStore
) -> None:
    """The check fails if the rule is broken."""
    assert_caught(
        broken, lambda: test_started.test_a3_what_is_said_after_the_spans_advances_the_generation(store)
    )


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("others have spans", is_exclusive_to, rewrite("return _(_1, _)", "return _1")),
        Mutation("it has spans", is_exclusive_to, rewrite("return _(_, _1)", "return _1")),
        Mutation(
            "tags are of nobody", ClientTraceInfo.start, rewrite("{_1: _2, _3: _}", "{_1: _2, _3: 'default'}")
        ),
        Mutation(
            "assessments are of nobody", ClientTraceInfo._rows, rewrite("a(..., b)", "a(..., 'default')")
        ),
        Mutation(
            "metadata is told to who is alone",
            ClientTraceInfo.of_traces,
            rewrite("_1 is None", "_1 is not None"),
        ),
        Mutation("tags are told to who is alone", visible_to, rewrite("a(b, c)", "True")),
    ],
    ids=rule_of,
)
def test_what_is_said_for_all_is_told_to_who_has_a_trace_alone(
    broken: Mutation, store: TrackingStore
) -> None:
    """The check fails for each broken rule."""
    assert_caught(
        broken, lambda: test_started.test_what_is_said_for_all_is_told_to_who_has_a_trace_alone(store)
    )


def test_assessments_of_a_start_are_kept_all_or_none(
    store: TrackingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All assessments are stored in one transaction with the other metadata; the test fails for each broken part."""
    monkeypatch.setattr(limits, "ANNOTATIONS_MAX", 5)
    test_started.check_assessments(store, 1)
    none_yet = Mutation("of a trace without any", ClientTraceInfo._keep, rewrite("not _", "True"))
    with none_yet.applied():
        told = StartedTrace(assessments=[{"assessment_name": "a", "feedback": {"value": 1}}] * 2)
        for _ in range(2):
            ClientTraceInfo(store).start(trace_id(2), told)
    assert len(Annotations(store).assessments(trace_id(2))) == 2
    start, rows = (ClientTraceInfo.start, ClientTraceInfo._rows)
    for number, broken in enumerate(
        [
            none_yet,
            Mutation("assessments are kept", start, drop("_._(_, _, _)")),
            Mutation("they have a limit", rows, rewrite("_1 > _2", "_1 < -_2")),
        ]
    ):
        assert_caught(broken, partial(test_started.check_assessments, store, number + 3))


@pytest.mark.parametrize(
    "broken",
    [
        Mutation(
            "experiments of this lake",
            ExperimentSearch.__init__,
            rewrite("[_]", "[lake > 0]", lake=_EXPERIMENTS.lake),
        ),
        Mutation("tags of the experiment", ExperimentSearch._holds, rewrite("[_1, _, _2]", "[_1, _2]")),
        Mutation("a page goes on behind the one before", ExperimentSearch.search, rewrite("a > b", "a >= b")),
        Mutation("orders are known", mlflow_search._experiment_order, rewrite("_ > 1", "False")),
    ],
    ids=rule_of,
)
def test_experiments_are_searched(broken: Mutation, store: TrackingStore) -> None:
    """The check fails for each broken rule."""
    assert_caught(broken, lambda: test_started.test_experiments_are_searched(store))


@pytest.mark.parametrize(
    "broken",
    [
        Mutation(
            "constraints have errors of ours",
            TrackingDatabase._failures,
            rewrite(
                """
                try: ...
                except _1 as a: ...
                except _2 as a: ...
                except _ as a: ...
                except _3 as a: ...
                except _4 as a: ...
                except _5 as a: ...
                """,
                """
                try: ...
                except _1 as a: ...
                except _2 as a: ...
                except ZeroDivisionError as a: ...
                except _3 as a: ...
                except _4 as a: ...
                except _5 as a: ...
                """,
            ),
        )
    ],
    ids=rule_of,
)
def test_what_a_constraint_refuses_is_no_fault_of_the_server(
    broken: Mutation, database: TrackingDatabase
) -> None:
    """The check fails if the rule is broken."""
    assert_caught(
        broken, lambda: test_started.test_what_a_constraint_refuses_is_no_fault_of_the_server(database)
    )


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("nobody changes it", Annotations._check_own, rewrite("_ and _1", "False and _1")),
        Mutation("nobody reads it", Annotations._experiments, rewrite("self.a is not None", "False")),
        Mutation("nobody asks it", ExperimentSearch._holds, rewrite("self.a is not None", "False")),
    ],
    ids=rule_of,
)
def test_the_experiment_that_all_share_is_of_no_workspace(broken: Mutation, store: TrackingStore) -> None:
    """The check fails if the rule is broken."""
    assert_caught(broken, lambda: test_started.test_the_experiment_that_all_share_is_of_no_workspace(store))


@pytest.mark.parametrize(
    "broken", [Mutation("halves", read_token, rewrite("_1(_())", "_1('x')"))], ids=rule_of
)
def test_half_a_character_is_refused_without_telling_where_the_database_is(
    broken: Mutation, store: TrackingStore
) -> None:
    """The check fails if the rule is broken."""
    assert_caught(
        broken,
        lambda: test_started.test_half_a_character_is_refused_without_telling_where_the_database_is(store),
    )


@pytest.mark.parametrize(
    ("broken", "spans_come_first"),
    [
        (Mutation("spans first", mlflow._start, drop("a._([_])")), True),
        (Mutation("metadata first", _store_requests, drop("self._._(...)")), False),
        (Mutation("roots with parents", with_attributes, rewrite("not _._(_)", "True")), True),
    ],
    ids=lambda each: rule_of(each) if isinstance(each, Mutation) else None,
)
def test_all_reads_have_the_session_that_a_client_sends(
    broken: Mutation, spans_come_first: bool, tmp_path: Path
) -> None:
    """The check fails for each broken rule."""
    folders = iter((tmp_path / "one", tmp_path / "two"))
    check = test_mlflow_traces.test_all_reads_have_the_session_that_a_client_sends
    assert_caught(broken, lambda: check(next(folders), spans_come_first))


@pytest.mark.parametrize(
    "broken",
    [
        Mutation(
            "a failed join is no success",
            _store_requests,
            rewrite("[_1 if _2 else _3 for _4, _5 in _6]", "[_3 for _4, _5 in _6]"),
        )
    ],
    ids=rule_of,
)
def test_a_session_that_could_not_be_joined_is_joined_by_the_repeated_request(
    broken: Mutation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check fails if the rule is broken."""
    folders = iter((tmp_path / "one", tmp_path / "two"))
    check = test_mlflow_traces.test_a_session_that_could_not_be_joined_is_joined_by_the_repeated_request
    assert_caught(broken, lambda: check(next(folders), monkeypatch, False))
