"""Tags, experiments and assessments on both databases; what they mean is in `tests/lake/test_annotations.py`."""

from __future__ import annotations

import contextlib

import pytest

from tests.tracking.requests import request, trace_id
from tracelake._errors import NotFoundError, UsageError
from tracelake.archive.store import ArchiveStore
from tracelake.tracking.annotations import Annotations
from tracelake.tracking.store import TrackingStore


def test_both_databases_keep_them(store: TrackingStore) -> None:
    """The same on SQLite and PostgreSQL; lakes that share a database do not see those of each other."""
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
    """PostgreSQL has no text with NUL, and none has half a surrogate: who asks finds none, or is told so."""
    said, archive = Annotations(store), ArchiveStore(store)
    with pytest.raises(UsageError, match="no place"):
        said.set_tag(trace_id(1), "\ud800", "v")
    for ask in (
        lambda: said.experiment("a\0"),
        lambda: said.experiment_named("a\0"),
        lambda: said.delete_tag(trace_id(1), "a\0"),
        lambda: said.delete_assessment(trace_id(1), "a\0"),
        lambda: said.delete_experiment_tag("0", "a\0"),
    ):
        with pytest.raises((NotFoundError, UsageError)):
            ask()
    for find in (lambda: said.traces_with({"a\0": "b"}, 5), lambda: archive.archived(["a\0"])):
        with contextlib.suppress(UsageError):
            assert not find()
