"""Metadata that MLflow's client sends besides spans, and searches of experiments, on both databases."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import insert

from tests.server.walls import spans
from tests.tracking.requests import request, trace_id
from tracelake import limits
from tracelake._errors import ContentionError, LimitError, NotFoundError, QueryError, UsageError
from tracelake.archive.model import HotSnapshot, StoredUpload
from tracelake.archive.retention import ArchiveOutcome
from tracelake.archive.store import ArchiveStore
from tracelake.tracking import mlflow_search
from tracelake.tracking.annotations import (
    Annotations,
    ClientTraceInfo,
    StartedTrace,
)
from tracelake.tracking.database import TrackingDatabase
from tracelake.tracking.mlflow_search import ExperimentSearch, TraceSearch, make_token, read_token
from tracelake.tracking.outbox import Outbox
from tracelake.tracking.schema import experiments, lakes
from tracelake.tracking.store import TrackingStore

SESSION = "mlflow.trace.session"


def _stored(snapshot: HotSnapshot) -> StoredUpload:
    return StoredUpload(
        snapshot.trace_id, snapshot.generation, snapshot.life, snapshot.path, snapshot.path, 1, ""
    )


def check_started(store: TrackingStore, first: int) -> None:
    """Check that metadata sent before or after the spans is found, in this lake alone; a trace needs spans."""
    started, search = ClientTraceInfo(store), TraceSearch(store).search
    other = ClientTraceInfo(TrackingStore(store.database, "lake-b"))
    before, after = first, first + 1
    store.write([request((after, 1))])
    for number, name in ((before, "before"), (after, "after")):
        told = StartedTrace({"team": name}, {SESSION: name}, {"client_request_id": name})
        started.start(trace_id(number), told)
        other.start(trace_id(number), StartedTrace({"team": "x"}, {SESSION: "x"}, {"client_request_id": "x"}))
        started.start(trace_id(number), StartedTrace({}, {"more": "m"}))
    assert trace_id(before) not in store.infos([trace_id(before)])
    store.write([request((before, 1))])
    for number, name in ((before, "before"), (after, "after")):
        said = started.of_traces([trace_id(number)])
        assert said == {trace_id(number): ({SESSION: name, "more": "m"}, {"client_request_id": name})}
        for filter in ("tags.team", f"metadata.{SESSION}", "client_request_id"):
            assert [row.trace_id for row in search(["0"], f"{filter} = '{name}'").rows] == [trace_id(number)]


def test_what_is_said_of_a_trace_counts_whenever_its_spans_come(store: TrackingStore) -> None:
    """Searches find tags, metadata and ids."""
    check_started(store, 1)


def test_a3_what_is_said_after_the_spans_advances_the_generation(store: TrackingStore) -> None:
    """An archiver with an earlier snapshot reads again; metadata of an archived trace is stored all the same (A3)."""

    def check(number: int) -> None:
        store.write([request((number, 1))])
        Outbox(store).trim([row.sequence for row in Outbox(store).waiting()])
        (snapshot,), _ = archive.begin("trace", [trace_id(number)], f"attempt{number}")
        ClientTraceInfo(store).start(trace_id(number), StartedTrace({"team": "a"}))
        assert archive.finalize([_stored(snapshot)]) == {trace_id(number): ArchiveOutcome.CHANGED}
        (snapshot,), _ = archive.begin("trace", [trace_id(number)], f"again{number}")
        assert archive.finalize([_stored(snapshot)]) == {trace_id(number): ArchiveOutcome.ARCHIVED}
        ClientTraceInfo(store).start(trace_id(number), StartedTrace({"team": "b"}))
        assert Annotations(store).tags([trace_id(number)])[trace_id(number)]["team"] == "b"

    archive = ArchiveStore(store)
    check(1)


def check_shared(store: TrackingStore, first: int) -> None:
    """Check that metadata without a workspace is visible to a workspace while it alone has the trace, then to no
    workspace."""
    trace, tags = trace_id(first), {"team": "x", "mlflow.traceName": "named"}
    good = [{"assessment_name": "good", "feedback": {"value": True}}]
    ClientTraceInfo(store).start(trace, StartedTrace(tags, {SESSION: "s"}, {"client_request_id": "c"}, good))
    filters = (
        "tags.team = 'x'",
        "name = 'named'",
        "tags.`mlflow.traceName` = 'named'",
        "client_request_id = 'c'",
    )

    def seen(workspace: str | None) -> list[bool]:
        """Return the places in which a workspace sees any of it: tags, metadata, pages, lists by tags, and each
        filter."""
        own, search = Annotations(store, workspace), TraceSearch(store, workspace).search
        found = [trace in {row.trace_id for row in search(["0"], each).rows} for each in filters]
        listed = trace in own.traces_with({"team": "x"}, 100)
        said = ClientTraceInfo(store).of_traces([trace], workspace)
        return [
            "team" in own.tags([trace])[trace],
            bool(said),
            bool(own.assessments(trace)),
            trace in own.shown_tags([trace]),
            listed,
            *found,
        ]

    def write(workspace: str, span: int) -> None:
        store.write([spans(workspace, trace, span, root=span == 1)])

    assert not any(seen("team-a")), "it has no spans yet"
    write("team-a", 1)
    assert (all(seen("team-a")), any(seen("team-b"))) == (True, False)
    write("team-b", 2)
    write("default", 3)
    assert not any(any(seen(workspace)) for workspace in ("team-a", "team-b", "default"))
    assert all(seen(None))
    Annotations(store).set_tag(trace, "team", "mine", "team-a")
    assert Annotations(store).tags([trace])[trace]["team"] == "mine"
    assert Annotations(store, "team-a").tags([trace])[trace]["team"] == "mine"


def test_what_is_said_for_all_is_told_to_who_has_a_trace_alone(store: TrackingStore) -> None:
    """The rule also holds if the spans of others arrive later."""
    check_shared(store, 1)


def check_assessments(store: TrackingStore, number: int) -> None:
    """Check that the assessments of a trace are stored all or none, and once, with concurrent writers."""
    started, said = ClientTraceInfo(store), Annotations(store)
    several = [{"assessment_name": name, "feedback": {"value": True}} for name in "abc"]
    refused = [(UsageError, [*several, {}]), (LimitError, several * limits.ANNOTATIONS_MAX)]
    for error, wrong in refused:
        with pytest.raises(error):
            started.start(trace_id(number), StartedTrace({"k": "v"}, assessments=wrong))
    assert said.tags([trace_id(number)]) == {trace_id(number): {}}
    assert said.assessments(trace_id(number)) == []
    told = StartedTrace(assessments=several)
    with ThreadPoolExecutor(3) as threads:
        for told_twice in [threads.submit(started.start, trace_id(number), told) for _ in range(3)]:
            told_twice.result()
    logged = said.log_assessment(trace_id(number), several[0])
    started.start(trace_id(number), told)
    names = [each["assessment_name"] for each in said.assessments(trace_id(number))]
    assert sorted(names) == ["a", "a", "b", "c"]
    for each in said.assessments(trace_id(number)):
        if each != logged:
            said.delete_assessment(trace_id(number), each["assessment_id"])
    started.start(trace_id(number), told)
    assert said.assessments(trace_id(number)) == [logged]


def test_limits_of_what_is_said(store: TrackingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key or value that is too long, a NUL, or one tag too many stores nothing. No client may set locations."""
    started = ClientTraceInfo(store)
    monkeypatch.setattr(limits, "ANNOTATIONS_MAX", 3)
    longest = "v" * limits.TRACKING_VALUE_MAX_CHARS
    started.start(trace_id(1), StartedTrace({"a": longest, "mlflow.trace.spansLocation": "x"}, {"b": "c"}))
    for told in (
        StartedTrace({"a": longest + "v"}),
        StartedTrace({"x": "y"}, {"k" * (limits.TRACKING_KEY_MAX_CHARS + 1): "v"}),
        StartedTrace({"x": "y"}, {"a\0": "v"}),
        StartedTrace({"x": "y"}, {"": "v"}),
    ):
        with pytest.raises(UsageError):
            started.start(trace_id(1), told)
    with pytest.raises(LimitError, match="the limit is 3"):
        started.start(trace_id(1), StartedTrace({"x": "y"}, {str(number): "v" for number in range(3)}))
    assert Annotations(store).tags([trace_id(1)]) == {trace_id(1): {"a": longest}}
    assert started.of_traces([trace_id(1)]) == {trace_id(1): ({"b": "c"}, {})}


def check_experiments(store: TrackingStore) -> None:
    """Check filters, orders and pages of experiments."""
    search = ExperimentSearch(store).search

    def names(filter: str | None = None, *order: str) -> list[str]:
        """Return the names found, page by page with one result each."""
        several, token = list[str](), None
        while (not several or token) and len(several) < 5:
            page, token = search(filter, 1, order, token)
            several += [each.name for each in page] or ["nothing"]
        return several

    assert names(None, "name ASC") == names("name LIKE '%'", "name") == ["ab", "ac", "zA"]
    assert names(None, "attribute.name DESC") == ["zA", "ac", "ab"]
    assert sorted(names()) == sorted(names(None, "last_update_time")) == ["ab", "ac", "zA"]
    assert names("name LIKE '%a'") == ["nothing"]
    assert names("name ILIKE '%a'") == ["zA"]
    assert names("tags.team IS NULL") == ["ac"]
    assert names("tags.`team` IN ('x') AND name != 'zA'") == ["ab"]
    for filter, order in (
        ("status = 'OK'", ()),
        ("name", ()),
        ("", ("size",)),
        ("", ("name", "experiment_id")),
    ):
        with pytest.raises(QueryError):
            search(filter, 10, order)
    token = search(None, 1, ["name"])[1]
    with pytest.raises(QueryError, match="page token"):
        search(None, 1, ["name DESC"], token)


def test_experiments_are_searched(store: TrackingStore) -> None:
    """Experiments of this lake are found by name and tags, page by page."""
    said, other = Annotations(store), Annotations(TrackingStore(store.database, "lake-b"))
    for name in ("ab", "zA", "ac"):
        number = said.create_experiment(name)
        if name != "ac":
            said.set_experiment_tag(number, "team", "x")
    with store.database.writing() as connection:  # a row that no write creates
        connection.execute(experiments.delete().where(experiments.c.experiment_id == "0"))
    other.create_experiment("theirs")
    check_experiments(store)


def test_what_a_constraint_refuses_is_no_fault_of_the_server(database: TrackingDatabase) -> None:
    """An existing key means that another write committed first. A column without a value has no location."""
    row = {"lake": 7, "lake_id": "seven"}
    with database.writing() as connection:
        connection.execute(insert(lakes), row)

    def write(**changed: object) -> None:
        with database.writing() as connection:
            connection.execute(insert(lakes), {**row, **changed})

    def check() -> None:
        for changed in ({}, {"lake": 8}, {"lake_id": "eight"}):
            with pytest.raises(ContentionError, match="committed first"):
                write(**changed)
        with pytest.raises(UsageError, match="cannot store such a value"):
            write(lake=9, lake_id=None)
        with contextlib.suppress(ContentionError):
            write(lake=10, lake_id="ten")

    check()


def test_a_page_goes_on_by_what_it_was_ordered_by() -> None:
    """The page tokens contain the name of the request: a token of one search is invalid in another."""
    token = mlflow_search.make_token(mlflow_search.requested_name("experiments"), "a", "b")
    with pytest.raises(QueryError):
        mlflow_search.read_token(token, mlflow_search.requested_name("traces"), str)


def check_default_experiment(store: TrackingStore) -> None:
    """Check that experiment "0" belongs to all workspaces: only keys of all workspaces set and read its metadata."""
    whole, own = Annotations(store), Annotations(store, "default")
    whole.make_default()
    whole.set_experiment_tag("0", "note", "x")
    with pytest.raises(NotFoundError):
        own.set_experiment_tag("0", "note", "y")
    with pytest.raises(NotFoundError):
        own.delete_experiment_tag("0", "note")
    search = ExperimentSearch(store, "default").search
    several = [own.experiment("0"), own.find_experiment("Default"), *own.experiments(), *search()[0]]
    assert [(each.name, each.tags) for each in several] == [("Default", {})] * 4
    assert search("tags.note = 'x'")[0] == []
    assert whole.experiment("0").tags == {"note": "x"}
    assert len(ExperimentSearch(store).search("tags.note = 'x'")[0]) == 1


def test_the_experiment_that_all_share_is_of_no_workspace(store: TrackingStore) -> None:
    """It is not of the default workspace either, though its row has that name."""
    check_default_experiment(store)


def test_half_a_character_is_refused_without_telling_where_the_database_is(store: TrackingStore) -> None:
    """In a page token and in a filter, text that cannot be encoded is an error of the caller."""

    def check() -> None:
        with pytest.raises(QueryError, match="not a page token"):
            read_token(make_token("asked", "\ud800", "a"), "asked", str)

    check()
    with pytest.raises(UsageError, match=r"^the tracking store cannot store such a value") as error:
        TraceSearch(store).search(["0"], "name = '\ud800'")
    assert store.database.name not in str(error.value)
