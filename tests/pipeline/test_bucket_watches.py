"""Watched buckets: each new object is taken once, and a failing or slow bucket does not delay the others."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.bucket_place import Place, failing, fixture_place
from tests.pipeline.spans import a_line, a_span
from tracelake import (
    StorageError,
    UnreadInputsError,
)
from tracelake.limits import PIPELINE_PAUSE_MAX_S
from tracelake.otlp.framing import write_segment
from tracelake.pipeline.sources import poller, registry
from tracelake.storage import open_objects
from tracelake.storage.urls import ForeignObjects, open_foreign
from tracelake.tasks.backoff import Backoff

__all__ = ["fixture_place"]


def test_a_watched_bucket(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """New and replaced objects are taken once, the oldest first, a bounded number at a time."""
    pipeline = place.watch(place.url("in/*"), place.url("in/?"))
    assert pipeline.run_once() is None
    monkeypatch.setattr(registry, "WATCHED_OBJECTS_AT_ONCE", 2)
    for number, key in enumerate(("in/b", "in/a", "in/cc")):
        place.put(key, number)
    place.bucket.put("in/dd", b"nonsense")
    reports = [pipeline.run_once(goes_on=True) for _ in range(3)]
    assert [report and report.spans_new for report in reports] == [2, 1, None]
    place.put("in/a", 7)
    report = pipeline.run_once()
    assert report is not None
    assert (report.files, report.spans_new) == (1, 1)
    assert pipeline.run_once() is None
    known = place.watch(place.url("in/*")).run_once()
    assert known is not None
    assert (known.files_known, known.spans_new) == (3, 0), "another pipeline knows them by content"


def test_a_pipeline_that_runs_once_takes_all_that_a_bucket_has(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A single run takes a bucket of any size or reports the rest, because the next run, without memory, would
    leave the same."""
    monkeypatch.setattr(registry, "WATCHED_OBJECTS_AT_ONCE", 1)
    monkeypatch.setattr(registry, "OBJECTS_FOUND_MAX", 3)
    for number in range(3):
        place.put(f"in/{number}", number)
    began = place.watch(place.url("in/*"))
    assert began.run_once(goes_on=True) is not None
    for pipeline, spans in ((place.watch(place.url("in/*")), 2), (began, 0)):
        report = pipeline.run_once()
        assert report is not None
        assert report.spans_new == spans
        assert pipeline.run_once() is None
    place.put("in/4", 4)
    with pytest.raises(
        StorageError, match="more than OBJECTS_FOUND_MAX = 3 new objects; let a continuous pipeline"
    ):
        place.watch(place.url("in/*")).run_once()


def test_a_bucket_that_fails_stops_no_other_watch(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Inbox, files and other buckets are ingested; the failing one is named and is taken once it is back."""
    other = Place(place.lake, open_objects(f"memory://{uuid.uuid4().hex}"))
    place.put("in/a", 0)
    other.put("in/b", 1)
    place.lake.objects.put("inbox/1.segment", write_segment([("json", a_line(a_span(2, 0)))]))
    away, listing = [True], open_foreign

    class Failing:
        def __init__(self, objects: ForeignObjects) -> None:
            self.head, self.read, self._list = objects.head, objects.read, objects.list

        def list(self, prefix: str) -> Iterator[Any]:
            if away:
                raise StorageError("the bucket does not exist; create it")
            return self._list(prefix)

    monkeypatch.setattr(
        registry,
        "open_foreign",
        lambda url: Failing(listing(url)) if url == place.bucket.url else listing(url),
    )
    pipeline = place.watch(place.url("in/*"), other.url("in/*"), str(tmp_path / "*"))
    for _ in range(2):
        with pytest.raises(
            StorageError,
            match=r"/in/\* cannot be polled: the bucket does not exist.*All others were ingested",
        ):
            pipeline.run_once()
        assert place.lake.table("spans").info().rows == 2
        assert "the bucket does not exist" in (pipeline.replica().last_error or "")
    with pytest.raises(StorageError, match="the bucket does not exist"):
        place.ingest("in/*")
    away.clear()
    report = pipeline.run_once()
    assert report is not None
    assert (report.files, report.spans_new) == (1, 1)


def test_a_bucket_that_is_slow_holds_nobody_up(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a slow bucket is listed, the inbox is taken; a later poll takes the listed objects."""
    monkeypatch.setattr(poller, "LOOK_WAIT_S", 0.0)
    place.put("in/a", 0)
    pipeline = place.watch(place.url("in/*"))
    asked: list[Callable[[], None]] = []

    def begin(work: Callable[[], None]) -> None:
        asked.append(work)
        if len(asked) != 3:  # inbox, outbox, the bucket, inbox, outbox
            work()

    monkeypatch.setattr(pipeline._poller, "_begin", begin)
    for number in (1, 2):
        place.lake.objects.put(
            f"inbox/{number}.segment", write_segment([("json", a_line(a_span(number, 0)))])
        )
        report = pipeline.run_once(goes_on=True)
        assert report is not None
        assert (report.files, report.spans_new) == (1, 1)
    asked[2]()
    report = pipeline.run_once(goes_on=True)
    assert report is not None
    assert report.spans_new == 1


def test_what_fails_has_a_pause_of_its_own(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed bucket or object is not retried before its backoff ends; everything else is taken in the meantime."""
    clock = [0.0]
    lists: list[str] = []
    listed = registry._listed

    def listing(address: Any, own: Any) -> Iterator[Any]:
        lists.append(address.key)
        if address.key == "away/*" and clock[0] < 9:
            raise StorageError("no answer")
        return listed(address, own)

    monkeypatch.setattr(registry, "_listed", listing)
    away = failing(monkeypatch, "in/bad")
    place.put("away/a", 0)
    place.put("in/bad", 1)
    pipeline = place.watch(place.url("away/*"), place.url("in/*"))
    for pauses in (pipeline._poller.pauses, pipeline._input_backoff):
        monkeypatch.setattr(pauses, "_clock", lambda: clock[0])
    for number in range(2, 5):
        place.put(f"in/{number}", number)
        with pytest.raises(
            UnreadInputsError, match=r"away/.* no answer.*; 1 of the inputs .*in/bad.*no answer"
        ) as caught:
            pipeline.run_once(goes_on=True)
        assert (caught.value.report.spans_new, len(caught.value.report.transactions)) == (1, 1), "and told"
        assert place.lake.table("spans").info().rows == number - 1, "all others are in"
    assert lists.count("away/*") == 1
    away.clear()
    clock[0] = 9.0
    report = pipeline.run_once(goes_on=True)
    assert report is not None
    assert (report.spans_new, lists.count("away/*")) == (2, 2)


def test_pauses_double_and_end() -> None:
    """Backoff doubles up to its maximum; it ends after a success or when the input is no longer polled."""
    clock = [0.0]
    pauses = Backoff[str](lambda: clock[0])
    waited = []
    for _ in range(6):
        pauses.failed("a", "no answer")
        before = clock[0]
        while pauses.failing("a"):
            clock[0] += 0.5
        waited.append(clock[0] - before)
    assert waited == [1.0, 2.0, 4.0, 8.0, PIPELINE_PAUSE_MAX_S, PIPELINE_PAUSE_MAX_S]
    assert pauses.failing("b") is None
    pauses.failed("b", "no answer")
    pauses.succeeded("b")
    assert pauses.failing("b") is None
    clock[0] += 2 * PIPELINE_PAUSE_MAX_S
    pauses.failed("c", "no answer")
    assert list(pauses._failures) == ["c"]
