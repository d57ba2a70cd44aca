"""Tags, experiments and assessments on both databases; `tests/lake/test_annotations.py` tests their meaning."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest

from tests.tracking.requests import request, trace_id
from tracelake._errors import NotFoundError, QueryError, UsageError
from tracelake.archive.service import delete_traces, restore_trace
from tracelake.archive.store import ArchiveStore
from tracelake.tracking.annotations import Annotations
from tracelake.tracking.mlflow_search import TraceSearch
from tracelake.tracking.outbox import Uncommitted
from tracelake.tracking.store import TrackingStore


def test_both_databases_keep_them(store: TrackingStore) -> None:
    """Annotations work the same on SQLite and PostgreSQL; lakes that share a database do not see each other's."""
    store.write([request((1, 1))])
    said = Annotations(store)
    other = Annotations(TrackingStore(store.database, "lake-b"))
    for value in ("v", "w"):
        said.set_tag(trace_id(1), "k", value)
        other.set_tag(trace_id(1), "k", "theirs")
    said.set_tag(trace_id(1), "l", "é")
    assert said.tags([trace_id(1)])[trace_id(1)] == {
        "k": "w",
        "l": "é",
        "mlflow.trace.spansLocation": "TRACKING_STORE",
    }
    assert other.tags([trace_id(1)]) == {trace_id(1): {"k": "theirs"}}
    assert said.traces_with({"k": "w", "l": "é"}, 5) == [trace_id(1)]
    assert said.traces_with({"k": "theirs"}, 5) == []
    number = said.create_experiment("n")
    with pytest.raises(UsageError):
        said.create_experiment("n")
    other.create_experiment("n")
    said.set_experiment_tag(number, "a", "b")
    said.set_experiment_tag(number, "a", "c")
    assert dict(said.experiment(number).tags) == {"a": "c"}
    logged = said.log_assessment(trace_id(1), {"assessment_name": "x", "feedback": {"value": "é"}})
    changed = said.update_assessment(trace_id(1), logged["assessment_id"], {"rationale": "so"})
    assert said.assessments(trace_id(1)) == [changed]
    assert other.assessments(trace_id(1)) == []
    with pytest.raises(NotFoundError):
        other.delete_assessment(trace_id(1), logged["assessment_id"])
    said.delete_assessment(trace_id(1), logged["assessment_id"])
    said.delete_tag(trace_id(1), "k")
    assert other.tags([trace_id(1)]) == {trace_id(1): {"k": "theirs"}}


def test_what_no_database_holds_is_the_mistake_of_who_asked(store: TrackingStore) -> None:
    """PostgreSQL stores no NUL, and no database stores half a surrogate: a query finds nothing, or gets an error."""
    said, archive = Annotations(store), ArchiveStore(store)
    with pytest.raises(UsageError, match="cannot store such a value"):
        said.set_tag(trace_id(1), "\ud800", "v")
    for ask in (
        lambda: said.experiment("a\0"),
        lambda: said.find_experiment("a\0"),
        lambda: said.delete_tag(trace_id(1), "a\0"),
        lambda: said.delete_assessment(trace_id(1), "a\0"),
        lambda: said.delete_experiment_tag("0", "a\0"),
    ):
        with pytest.raises((NotFoundError, UsageError)):
            ask()
    with contextlib.suppress(UsageError):
        assert not said.traces_with({"a\0": "b"}, 5)
    store.write([request((1, 1), (2, 1))])
    crafted = ["a\0", "\ud800", "x" * 100_000, ""]
    assert not archive.unmark([*crafted, trace_id(1)])
    assert list(archive.archived([*crafted, trace_id(1)])) == [trace_id(1)]
    assert delete_traces(archive, None, [*crafted, trace_id(2)]) == [trace_id(2)]
    for each in crafted:
        with pytest.raises(NotFoundError):
            restore_trace(archive, None, lambda _: b"", each)


def check_searches(store: TrackingStore) -> None:
    """Check filters, pages, and that lakes of one database do not see each other."""
    search = TraceSearch(store).search
    other = TraceSearch(TrackingStore(store.database, "lake-b")).search

    def asked(filter: str) -> list[int]:
        return [int(row.trace_id, 16) for row in search(["0"], filter).rows]

    assert asked("tags.team LIKE 'a%'") == asked("tags.team = 'a\\b'") == [1]
    assert asked("tags.team ILIKE 'A\\_'") == [1, 2]
    assert asked("tags.team NOT IN ('a\\b')") == [2]
    assert asked("tags.team IS NULL AND span.name = 'span 2'") == [3]
    assert asked("span.name = 'span 9'") == []
    assert asked("execution_time_ms <= 0.5 AND timestamp_ms > -999999999999999999") == [1, 2, 3]
    assert [
        int(row.trace_id, 16) for row in other(["0"], "tags.team IS NULL AND span.name != 'span 2'").rows
    ] == [1]
    for order in (["status"], ["name DESC"], ["execution_time_ms ASC"], []):
        pages, token = list[int](), None
        while not pages or token:
            page = search(["0"], None, 1, order, token)
            pages += [int(row.trace_id, 16) for row in page.rows]
            token = page.next_page_token
        assert pages == [1, 2, 3], order
    token = search(["0"], None, 1).next_page_token
    for filter, of in (("tags.team IS NULL", search), ("timestamp_ms > " + 19 * "9", search)):
        with pytest.raises(QueryError):
            of(["0"], filter, 1, (), token)


def check_workspaces(store: TrackingStore) -> None:
    """Check that reads of a workspace find none of another's spans and experiments, even in a shared trace."""
    store.write([request((1, 1), workspace="a"), request((1, 2), (2, 3), workspace="b")])
    for workspace in ("a", "b"):
        experiment = Annotations(store).create_experiment(f"of {workspace}", workspace)
    assert store.ids_that_begin(trace_id(0)[:31], 9, "a") == [trace_id(1)]
    assert Uncommitted(store).received_spans(trace_id(1), "a") == 1
    assert [each.name for each in Annotations(store, "a").experiments()] == ["of a"]
    search = TraceSearch(store, "a").search
    assert [len(search(["0"], f"span.name = 'span {span}'").rows) for span in (1, 2, 3)] == [1, 0, 0]
    store.write([replace(request((4, 1), workspace="a"), experiment_id=experiment)])
    names = [Annotations(store, workspace).experiment_of(trace_id(4)) for workspace in (None, "a", "b")]
    assert names == ["of b", experiment, None]


def test_a_workspace_reads_its_own(store: TrackingStore) -> None:
    """See `check_workspaces`."""
    check_workspaces(store)


def test_mlflows_searches_on_both_databases(store: TrackingStore) -> None:
    """Searches find the same on SQLite and PostgreSQL."""
    store.write([request((1, 1), (2, 1), (3, 1), (3, 2))])
    TrackingStore(store.database, "lake-b").write([request((1, 1), (1, 9))])
    said = Annotations(store)
    said.set_tag(trace_id(1), "team", "a\\b")
    said.set_tag(trace_id(2), "team", "A\\c")
    check_searches(store)


def check_unended_and_named(store: TrackingStore) -> None:
    """Check how searches find a trace without an end, and a trace that a user named."""

    def asked(filter: str, *order: str) -> list[int]:
        return [
            int(row.trace_id, 16) for row in TraceSearch(store).search(["0"], filter, order_by=order).rows
        ]

    assert asked("execution_time_ms < 100") == asked("end_time_ms >= 0") == [2]
    assert asked("", "execution_time DESC") == asked("", "trace.end_time_ms DESC") == [2, 1]
    assert asked("tags.mlflow.traceName = 'mine'") == asked("name LIKE 'mi%'") == [1]
    assert asked("tags.mlflow.traceName = 'span 1'") == asked("attributes.name = 'span 1'") == [2]
    assert asked("tags.mlflow.traceName IS NOT NULL", "attributes.name ASC") == [1, 2]
    for order in ("tags.name DESC", "metadata.status", "span.name", "a.trace.name"):
        with pytest.raises(QueryError, match="cannot be ordered by"):
            asked("", order)


def test_searches_see_names_that_were_set_and_what_has_not_ended(store: TrackingStore) -> None:
    """Filters, orders and responses use the same name; a trace without an end has no duration."""
    store.write([request((1, 1), end_ns=0), request((2, 1))])
    TrackingStore(store.database, "lake-b").write([request((2, 1))])
    Annotations(TrackingStore(store.database, "lake-b")).set_tag(trace_id(2), "mlflow.traceName", "theirs")
    Annotations(store).set_tag(trace_id(1), "mlflow.traceName", "mine")
    check_unended_and_named(store)


def test_an_unknown_experiment_does_not_hide_its_traces(store: TrackingStore) -> None:
    """A write creates the experiments that it names, with their ids as names, and leaves existing ones unchanged."""
    said = Annotations(store)
    mine = said.create_experiment("taken")
    for number, experiment_id in enumerate(("no such; --", "taken", "über 12", "0", mine, "x" * 250), 1):
        store.write([replace(request((number, 1)), experiment_id=experiment_id)])
    names = {each.experiment_id: each.name for each in said.experiments()}
    assert names.pop("taken").startswith("taken ")
    assert names == {"no such; --": "no such; --", "über 12": "über 12", mine: "taken", "0": "Default"} | {
        "x" * 250: "x" * 250
    }
    another = TrackingStore(store.database, store.lake_id)
    another.write([replace(request((7, 1)), experiment_id="taken")])
    assert len(said.experiments()) == len(names) + 1
