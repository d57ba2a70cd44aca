"""Erasure: no reader finds the traces from the moment of the request, and later their bytes are gone."""

from __future__ import annotations

import gzip
import os
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from opentelemetry.proto.trace.v1 import trace_pb2 as pb
from pyspark.sql.streaming.datasource import ReadAllAvailable

import tracelake
from tests.pipeline.test_deletions import submit
from tests.tracking.conftest import new_url, postgres
from tests.tracking.requests import payload, request, trace_id
from tracelake import limits
from tracelake._errors import NotFoundError, UsageError
from tracelake.archive.service import LakeArchive
from tracelake.archive.store import ArchiveStore
from tracelake.journal.model import QuarantinedInput
from tracelake.journal.quarantine import QuarantineStore
from tracelake.lake.erasure import ValueScanner
from tracelake.location import open_location
from tracelake.otlp.partition import take_apart
from tracelake.pipeline.continuous import InboxPipeline
from tracelake.pipeline.decode_task import staged_bytes
from tracelake.pipeline.sources import deletions
from tracelake.pipeline.sources.deletions import RepricingRequest
from tracelake.pipeline.staging import STAGING
from tracelake.results import ErasureReport
from tracelake.search.finalize import Redactions
from tracelake.spark.source import Options, Reader, StreamReader, to_spark_schema
from tracelake.tasks.runners import InProcess
from tracelake.tracking.erasure import ErasedTraces
from tracelake.tracking.store import TracedRequest, TrackingStore

__all__ = ["new_url", "postgres"]

SECRET = "quetzalcoatl"
OTHER = "ordinary"


def fill(store: TrackingStore, pipeline: InboxPipeline) -> None:
    """Commit two transactions with a trace to erase in each, next to others, and a repeat of a span."""
    store.write([request((1, 1), (1, 2), text=SECRET), request((2, 1), text=OTHER)])
    pipeline.run_once()
    store.write([request((1, 3), text=SECRET, end_ns=3_000), request((3, 1), text=OTHER)])
    store.write([request((1, 1), text=f"{SECRET} later", end_ns=9_000)])
    pipeline.run_once()


def everything(lake: tracelake.Lake, at: str) -> dict[str, object]:
    """Return all that readers see at a commit."""
    return {
        "spans": lake.sql("select trace_id, span_id, input from spans order by all", at).to_pylist(),
        "traces": lake.sql("select trace_id, span_count from traces order by all", at).to_pylist(),
        "found": sorted((hit.trace_id, hit.span_id) for hit in lake.search("*", at=at, limit=100)),
        "total": lake.search("*", at=at).total,
        "rows": {table.name: table.rows for table in lake.tables(at)},
    }


def without(everything: dict[str, object], erased: str) -> dict[str, object]:
    spans = [row for row in everything["spans"] if row["trace_id"] != erased]  # type: ignore[attr-defined]
    traces = [row for row in everything["traces"] if row["trace_id"] != erased]  # type: ignore[attr-defined]
    found = [hit for hit in everything["found"] if hit[0] != erased]  # type: ignore[attr-defined]
    rows = {"spans": len(spans), "traces": len(traces)}
    return {"spans": spans, "traces": traces, "found": found, "total": len(found), "rows": rows}


def objects_with(lake: tracelake.Lake, text: bytes) -> list[str]:
    places = (Path(lake.place), lake._opened.stores.cache)
    files = [path for place in places for path in place.rglob("*") if path.is_file()]
    return [str(path) for path in files if text in path.read_bytes()]


def test_no_reader_sees_an_erased_trace(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """From the request on, no table, search or hot read finds the trace, at any commit; other rows stay."""
    fill(store, pipeline)
    commits = [commit.id for commit in lake.log()]
    before = {commit: everything(lake, commit) for commit in commits}
    assert lake.search(SECRET).total
    report = lake.erasures.request(trace=trace_id(1))
    assert report.state == "open"
    for commit in commits:
        assert everything(lake, commit) == without(before[commit], trace_id(1))
    assert lake.search(SECRET).total == 0
    assert not lake.completions("quetz")
    with pytest.raises(NotFoundError):
        lake.trace(trace_id(1))
    with pytest.raises(NotFoundError):
        lake.annotations.set_tag(trace_id(1), "key", "value")
    assert lake.trace(trace_id(2)).spans
    assert lake.hot.infos([trace_id(1), trace_id(2)]).keys() == {trace_id(2)}


def test_listeners_and_spark_show_nothing_of_an_erased_trace(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """From the request on, no change feed, Spark job or streaming query reads a row of the trace."""
    fill(store, pipeline)
    lake.erasures.request(trace=trace_id(1))
    for table in ("spans", "traces"):
        changes = lake.listen(table, since=-1, timeout_s=0)
        ids = {each for change in changes for each in change.rows["trace_id"].to_pylist()}
        options = Options.of({"lake": lake.place, "table": table})
        schema = to_spark_schema(lake.table(table).schema)
        insertions = Options.of({"lake": lake.place, "table": table, "changes": "insertions"})
        job, stream = Reader(options, schema), StreamReader(insertions, schema)
        first = {"transaction": -1}
        batches = [batch for task in job.partitions() for batch in job.read(task)]
        for task in stream.partitions(first, stream.latestOffset(first, ReadAllAvailable())):
            batches += stream.read(task)
        ids |= {each for batch in batches for each in batch.column("trace_id").to_pylist()}
        assert ids == {trace_id(2), trace_id(3)}, table


def test_an_uncommitted_trace_is_erased(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """An erasure waits for input from before the request, hides the trace in the meantime, and ends afterwards."""
    store.write([request((1, 1), text=SECRET), request((2, 1), text=OTHER)])
    assert lake.search(SECRET).total == 1
    report = lake.erase(trace=trace_id(1))
    assert (report.state, lake.search(SECRET).total) == ("open", 0)
    with pytest.raises(NotFoundError):
        lake.trace(trace_id(1))
    pipeline.run_once()
    assert lake.search(SECRET).total == 0
    (report,) = lake.erasures.run()
    assert report.state == "finished"
    assert lake.search(SECRET).total == 0
    assert lake.search(OTHER).total == 1


def test_quarantined_input_does_not_delay_an_erasure(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """Input that no pipeline takes is named in the report. A retry does not show its spans of erased traces."""
    fill(store, pipeline)
    store.write([request((1, 9), (4, 1), text=SECRET)])
    lake.objects.put("inbox/1", b"unreadable")
    newest = ErasedTraces(store.database, store.lake, store.lake_id).newest_outbox_row()
    outbox = f"outbox/{newest}"
    quarantine = QuarantineStore(open_location(lake.url, None).open_records(), "main")
    records = [
        QuarantinedInput(path.partition("/")[0], path, 9, "", 3, "killed a task", 3, "", "set aside")
        for path in (outbox, "inbox/1")
    ]
    for record in records:
        quarantine.change(record, lambda _, record=record: record)  # type: ignore[misc]
    report = lake.erase(trace=trace_id(1))
    assert report.state == "finished"
    assert report.not_removed[-2:] == ("quarantined inbox/1", f"quarantined {outbox}")
    for record in records:
        quarantine.change(record, lambda _: None)
    pipeline.run_once()
    assert {hit.trace_id for hit in lake.search(SECRET)} == {trace_id(4)}
    assert lake.sql("select 1 from spans where trace_id = '" + trace_id(1) + "'").num_rows == 0


def test_the_bytes_of_an_erased_trace_are_gone(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """A finished erasure leaves no bytes of the text, and every commit reads as before without the trace."""
    fill(store, pipeline)
    commits = [commit.id for commit in lake.log()]
    before = {commit: everything(lake, commit) for commit in commits}
    assert objects_with(lake, SECRET.encode())
    report = lake.erase(trace=trace_id(1))
    assert report.state == "finished"
    for commit in commits:
        assert everything(lake, commit) == without(before[commit], trace_id(1))
    assert objects_with(lake, SECRET.encode()) == []
    assert lake.verify().findings == ()


def test_a_trace_that_is_ingested_again_is_erased_again(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline, tmp_path: Path
) -> None:
    """A file brings an erased trace back: no reader sees it, and the next run of the erasures removes it."""
    fill(store, pipeline)
    report = lake.erase(trace=trace_id(1))
    (tmp_path / "again.pb").write_bytes(payload((1, 7), (4, 1), text=SECRET))
    lake.ingest(tmp_path / "again.pb", runner=InProcess())
    assert {hit.trace_id for hit in lake.search(SECRET)} == {trace_id(4)}
    assert lake.sql("select distinct trace_id from spans where span_id like '%7'").num_rows == 0
    assert lake.erasures.get(report.id).state == "finished"  # until an eraser continues it
    (again,) = lake.erasures.run()
    assert (again.id, again.state) == (report.id, "finished")
    assert {hit.trace_id for hit in lake.search(SECRET)} == {trace_id(4)}
    assert again.removed["table rows"] > report.removed["table rows"]
    assert lake.erasures.run() == []
    assert lake.verify().findings == ()


def test_late_spans_are_accepted_again_after_their_ids_expire(
    lake: tracelake.Lake,
    store: TrackingStore,
    pipeline: InboxPipeline,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After the stated time, the lake forgets the ids of erased traces, and stores their spans as any others."""
    fill(store, pipeline)
    report = lake.erase(trace=trace_id(1))
    monkeypatch.setattr(limits, "ERASED_IDS_S", 0.0)
    assert lake.erasures.run() == []
    with pytest.raises(NotFoundError):
        lake.erasures.verify(report.id)
    (tmp_path / "again.pb").write_bytes(payload((1, 7), text=SECRET))
    lake.ingest(tmp_path / "again.pb", runner=InProcess())
    assert [hit.trace_id for hit in lake.search(SECRET)] == [trace_id(1)]


def test_uploads_of_a_killed_archiver_are_erased(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """An archiver that was killed after its upload leaves no byte of a trace that is erased later."""
    fill(store, pipeline)
    lake.archive.configure(layout="pack")
    killed = mock.patch.object(ArchiveStore, "finalize", side_effect=KeyboardInterrupt)
    with killed, pytest.raises(KeyboardInterrupt):
        lake.archive.run(older_than="1d")
    assert list(lake.objects.list("archive/"))
    report = lake.erase(trace=trace_id(1))
    assert report.state == "finished"
    assert list(lake.objects.list("archive/")) == []
    assert lake.erasures.verify(report.id, [SECRET]).findings == ()
    assert lake.trace(trace_id(2)).spans


def check_packs(lake: tracelake.Lake) -> None:
    """Check that no archive object has a byte of the erased trace, and that the other trace is readable."""
    (report,) = lake.erasures.all()
    assert report.state == "finished"
    check = lake.erasures.verify(report.id, [SECRET])
    assert (check.findings, check.unread) == ((), ())
    assert lake.trace(trace_id(2)).spans
    assert lake.verify().findings == ()


def test_a_pack_with_a_trace_that_changed_is_erased(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """A pack still contains a trace that changed while the pack was written, and that it does not archive."""
    fill(store, pipeline)
    lake.archive.configure(layout="pack")
    finalize = ArchiveStore.finalize

    def late(self: ArchiveStore, *arguments: Any) -> Any:
        store.write([request((1, 4), text=SECRET)])
        return finalize(self, *arguments)

    with mock.patch.object(ArchiveStore, "finalize", late):
        lake.archive.run(older_than="1d")
    assert list(lake.objects.list("archive/"))
    pipeline.run_once()
    lake.erase(trace=trace_id(1))
    check_packs(lake)


def test_a_pack_that_is_written_beside_an_erasure_is_given_up(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """An archive pass after the erasure looked for packs archives no erased trace."""
    fill(store, pipeline)
    lake.archive.configure(layout="pack")
    packs_with = LakeArchive.packs_with

    def early(self: LakeArchive, trace_ids: Any) -> dict[str, set[str]]:
        packs = packs_with(self, trace_ids)
        lake.archive.run(older_than="1d")
        return packs

    with mock.patch.object(LakeArchive, "packs_with", early):
        lake.erase(trace=trace_id(1))
    check_packs(lake)


def flip(lake: tracelake.Lake, path: str, at: int) -> bytes:
    """Flip a byte of an object; return the bytes from before."""
    before = lake.objects.get(path)
    after = bytearray(before)
    after[at] ^= 1
    lake.objects.put(path, bytes(after))
    return before


@pytest.mark.parametrize("at", [-1, -6, -12, -60])
def test_a_pack_with_a_damaged_index_is_erased(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline, at: int
) -> None:
    """If the index of a pack is damaged anywhere, its readable traces are restored, and the pack is deleted."""
    fill(store, pipeline)
    lake.archive.configure(layout="pack")
    lake.archive.run(older_than="1d")
    (pack,) = lake.objects.list("archive/")
    flip(lake, pack.path, at)
    assert lake.erase(trace=trace_id(1)).state == "finished"
    check_packs(lake)


@pytest.mark.parametrize("is_deleted", [False, True])
def test_an_erasure_waits_for_a_damaged_pack(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline, is_deleted: bool
) -> None:
    """If another trace of a pack is damaged, the erasure removes everything else, names the pack, and ends after the
    pack is restored or deleted."""
    fill(store, pipeline)
    lake.archive.configure(layout="pack")
    lake.archive.run(older_than="1d")
    (pack,) = lake.objects.list("archive/")
    location = next(each.location for each in lake.archive.traces() if each.trace_id == trace_id(2))
    before = flip(lake, pack.path, int(str(location).rpartition("#")[2].partition("+")[0]) + 6)
    for report in (lake.erase(trace=trace_id(1)), *lake.erasures.run()):
        assert report.state == "open"
        assert "damaged archive packs" in str(report.step)
        assert pack.path.removeprefix("archive/") in report.not_removed[0]
    assert objects_with(lake, SECRET.encode()) == []
    if is_deleted:
        lake.objects.delete(pack.path)
    else:
        lake.objects.put(pack.path, before)
    (report,) = lake.erasures.run()
    assert (report.state, "pack" in report.not_removed[0]) == ("finished", False)
    if not is_deleted:
        check_packs(lake)


@pytest.mark.parametrize("layout", ["trace", "pack", "lake"])
def test_archive_objects_of_an_erased_trace_are_gone(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline, layout: str
) -> None:
    """In each layout of the archive, also in an object that another trace shares, no byte is left, and the other trace
    is readable."""
    fill(store, pipeline)
    lake.archive.configure(layout=layout)
    archived = lake.archive.run(older_than="1d")
    assert archived.fates
    report = lake.erase(trace=trace_id(1))
    assert report.state == "finished"
    assert lake.trace(trace_id(2)).spans
    check = lake.erasures.verify(report.id, [SECRET])
    assert (check.findings, check.unread) == ((), ())
    assert lake.verify().findings == ()


def test_verify_lists_what_is_left_of_an_erased_trace(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """The scan finds ids and texts in parts, databases, compressed frames and the index before the bytes are removed,
    and no value afterwards."""
    for name, number in (("alice", 1), ("bob", 2)):
        store.write([user_request(name, number)])
    pipeline.run_once()
    report = lake.erasures.request(user="alice")
    check = lake.erasures.verify(report.id, ["alice"])
    places = " ".join(f"{finding.what} {finding.path}" for finding in check.findings)
    assert all(word in places for word in ("shards/spans", "shards/traces", "index"))
    assert any("alice" in finding.detail for finding in check.findings)
    assert lake.erasures.run()[0].state == "finished"
    assert lake.erasures.verify(report.id, ["alice"]).findings == ()
    assert lake.erasures.verify(report.id, ["bob"]).findings


def test_the_scan_looks_into_compressed_and_columnar_data() -> None:
    """Values are found in text, OTLP, zstd frames at any place, gzip, and nested Parquet columns, and
    staged Arrow streams."""
    otlp = payload((1, 1), text=SECRET)
    table = pa.table({"a": [[{"key": "k", "value": SECRET}]], "id": [trace_id(1)]})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    empty, staged = (staged_bytes(rows).to_pybytes() for rows in (table.slice(1), table))
    for data in (
        empty + staged,
        otlp,
        b"head" + zstandard.compress(otlp) + zstandard.compress(b"rest"),
        gzip.compress(otlp),
        sink.getvalue().to_pybytes(),
    ):
        assert ValueScanner([trace_id(1)], [SECRET]).occurrences(data) == {trace_id(1), SECRET}
        assert ValueScanner([trace_id(2)], [OTHER]).occurrences(data) == set()


def test_the_scan_separates_the_values_of_a_column() -> None:
    """Two neighboring ids that form an erased one at their border are no finding. Nested texts are found."""
    first, erased = trace_id(0xC), trace_id(0xC0)
    assert erased in first + first
    for column in (
        pa.array([first, None, first]),
        pa.array([[first, first]]),
        pa.array([{"a": first}, {"a": first}]),
        pa.array([[(first, first), (trace_id(2), first)]], pa.map_(pa.string(), pa.string())),
        pa.array([first, trace_id(2)]).dictionary_encode(),
    ):
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({"column": column}), sink, compression="snappy")
        data = sink.getvalue().to_pybytes()
        assert ValueScanner([erased], []).occurrences(data) == set(), column.type
        assert ValueScanner([first], []).occurrences(data) == {first}, column.type


def test_late_spans_of_an_erased_trace_are_refused(lake: tracelake.Lake, store: TrackingStore) -> None:
    """The store refuses spans of an erased trace, and stores the rest of the request."""
    store.write([request((1, 1), text=SECRET)])
    lake.erase(trace=trace_id(1))
    (refused,) = store.write([request((1, 2), (2, 1), text=OTHER)])
    assert refused is not None
    assert (refused.spans, "erased" in refused.reason) == (1, True)
    assert lake.hot.infos([trace_id(1), trace_id(2)]).keys() == {trace_id(2)}


def test_late_spans_may_be_accepted_and_erased(lake: tracelake.Lake, store: TrackingStore) -> None:
    """With the setting, the sender learns of no refusal, and the spans are not stored."""
    store.write([request((1, 1), text=SECRET)])
    lake.erase(trace=trace_id(1))
    store.reports_erased = False
    assert store.write([request((1, 2), (2, 1), text=OTHER), request((1, 3))]) == [None, None]
    assert lake.hot.infos([trace_id(1), trace_id(2)]).keys() == {trace_id(2)}


def test_examples_of_an_erased_trace_are_gone(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """No dataset has an example of an erased trace, at any commit, and no file has its text."""
    fill(store, pipeline)
    dataset = lake.datasets.create("evaluation", message="create")
    dataset.add(where="true", message="add")
    run = dataset.evaluate(lambda _: "answer", [])
    before, commit = {example.id: example for example in dataset.examples()}, lake.log()[0].id
    report = lake.erasures.request(trace=trace_id(1))
    others = {key: each for key, each in before.items() if each.provenance.trace_id != trace_id(1)}
    assert 0 < len(others) < len(before)
    for _ in range(2):
        for at in ("main", commit):
            shown = lake.datasets.get("evaluation", at)
            assert {each.id: each for each in shown.examples()} == others
            assert {each.example_id for each in shown.run(run.info.id).results} == others.keys()
        (report,) = lake.erasures.run(report.id)
    assert report.state == "finished"
    assert report.removed["dataset examples"] == 2 * (len(before) - len(others))  # and their results
    assert objects_with(lake, SECRET.encode()) == []
    assert lake.verify().findings == ()


def test_the_traces_of_a_user_are_erased_before_and_after_their_commit(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """All traces with a span of the user are erased: committed ones, and pending ones."""
    users = (("alice", 1), ("bob", 2), ("alice", 3))
    for name, number in users[:2]:
        store.write([user_request(name, number)])
    pipeline.run_once()
    store.write([user_request(*users[2])])
    assert lake.erase(user="alice").state == "open"
    assert [hit.trace_id for hit in lake.search("*")] == [trace_id(2)]
    pipeline.run_once()
    (report,) = lake.erasures.run()
    assert (report.state, report.traces) == ("finished", 2)
    assert [hit.trace_id for hit in lake.search("*")] == [trace_id(2)]
    assert objects_with(lake, b"alice") == []
    assert report.value.startswith("sha256:")


def test_staged_rows_of_a_killed_pipeline_are_deleted(lake: tracelake.Lake, store: TrackingStore) -> None:
    """Rows that a pipeline staged before it was killed go with the erasure."""
    store.write([request((1, 1), text=SECRET), request((2, 1))])

    def stop(step: tracelake.Progress) -> None:
        if step.stage == "writing":
            raise KeyboardInterrupt

    killed = lake.pipeline(runner=InProcess())
    with pytest.raises(KeyboardInterrupt):
        killed.run_once(progress=stop)
    with closing(lake.pipeline(runner=InProcess())) as second:
        second.run_once()
    lake.objects.put(f"{STAGING}killed", staged_bytes(pa.table({"trace_id": [trace_id(1)]})).to_pybytes())
    report = lake.erase(trace=trace_id(1))
    assert report.state == "finished"
    assert list(lake.objects.list(STAGING)) == []
    assert lake.erasures.verify(report.id).findings == ()


def test_files_of_killed_writers_are_deleted(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """A killed writer leaves its temporary file in the lake or the archive repository. Only those with the trace go."""
    fill(store, pipeline)
    lake.archive.configure(layout="trace")
    lake.archive.run(older_than="1d")
    root = Path(lake.objects.local_path("x") or "").parent
    folders = [root / ".tmp", root / "archive" / ".tmp"]
    for folder in folders:
        for number in (1, 2):
            (folder / f"killed-{number}").write_bytes(payload((number, 1), text=SECRET))
    report = lake.erase(trace=trace_id(1))
    assert report.state == "finished"
    for folder in folders:
        assert [file.name for file in folder.iterdir()] == ["killed-2"]
    assert lake.erasures.verify(report.id).findings == ()
    (folders[0] / "killed-1").write_bytes(payload((1, 1)))
    (finding,) = lake.erasures.verify(report.id).findings
    assert finding.path.endswith("/.tmp/killed-1")


def test_a_staged_deletion_of_the_traces_is_deleted(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that applies retention rules is killed after it staged its list, beside the erasure. Staged rows of
    other traces stay."""
    fill(store, pipeline)
    listed = {number: staged_bytes(pa.table({"trace_id": [trace_id(number)]})) for number in (1, 2)}
    delete_replaced = Redactions.delete_replaced

    def stage_before(redactions: Redactions) -> None:
        for number, rows in listed.items():
            path = f"{STAGING}list-{number}"
            if lake.objects.head(path) is None:
                lake.objects.put(path, rows.to_pybytes())
                os.utime(lake.objects.local_path(path) or "", (time.time() + 60,) * 2)  # after the barrier
        delete_replaced(redactions)

    monkeypatch.setattr(Redactions, "delete_replaced", stage_before)
    report = lake.erase(trace=trace_id(1))
    assert report.state == "finished"
    assert [info.path for info in lake.objects.list(STAGING)] == [f"{STAGING}list-2"]
    assert lake.erasures.verify(report.id).findings == ()


@pytest.mark.parametrize("killed_at", ["commit_request", "open_archive"])
def test_requests_of_killed_processes_are_finished(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline, killed_at: str
) -> None:
    """A process that applies retention rules or corrects costs is killed before or after the commit of its request,
    which lists traces. The erasure carries the request out, so that no list of an erased trace is left."""
    fill(store, pipeline)
    lake.retention.set("rest", "1d")
    with (
        mock.patch(f"tracelake.lake.retention.{killed_at}", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        lake.retention.apply()
    submit(lake.objects, RepricingRequest((trace_id(1),), 3, "2026-11-27T10:00:00.000000+00:00"))
    assert len(deletions.pending_with(lake.objects, str)) == 2
    report = lake.erase(trace=trace_id(1))
    assert report.state == "finished"
    assert lake.erasures.verify(report.id, [SECRET]).findings == ()
    assert deletions.pending_with(lake.objects, str) == []
    assert lake.search("*").total == 0
    with pytest.raises(NotFoundError):
        lake.trace(trace_id(2))
    assert lake.verify().findings == ()


@pytest.mark.parametrize("paused_at", ["submit", "is_there"])
def test_a_list_that_is_written_after_an_erasure_has_none_of_its_traces(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline, paused_at: str
) -> None:
    """A process that applies retention rules sleeps from its reading of the traces until an erasure has finished, then
    writes its list and is killed. The list has no erased trace."""
    fill(store, pipeline)
    lake.retention.set("rest", "1d")
    reports: list[ErasureReport] = []
    awake = getattr(deletions.RequestFence, paused_at)

    def asleep(fence: deletions.RequestFence, *request: deletions.DeletionRequest) -> object:
        result = awake(fence) if paused_at == "is_there" else None
        if not reports:
            reports.append(lake.erase(trace=trace_id(1)))
        return awake(fence, *request) if result is None else result

    with (
        mock.patch.object(deletions.RequestFence, paused_at, asleep),
        mock.patch("tracelake.lake.retention.commit_request", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        lake.retention.apply()
    (report,) = reports
    assert report.state == "finished"
    (request,) = deletions.pending(lake.objects)
    assert deletions.read(lake.objects, request.path).traces == (trace_id(2), trace_id(3))
    assert lake.erasures.verify(report.id, [SECRET]).findings == ()
    lake.retention.apply()
    assert list(lake.objects.list(deletions.PREFIX)) == []
    assert lake.search("*").total == 0


def test_traces_that_match_a_condition_are_erased(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """A condition selects whole traces, by any version of their spans."""
    fill(store, pipeline)
    report = lake.erase(
        where=f"input = '{SECRET}' and span_id = '{1:016x}'"
    )  # a version that another one replaced
    assert (report.state, report.traces) == ("finished", 1)
    assert {hit.trace_id for hit in lake.search("*")} == {trace_id(2), trace_id(3)}


def user_request(name: str, number: int) -> TracedRequest:
    """Return a request with a span of a user."""
    body = pb.TracesData.FromString(payload((number, 1), text=OTHER))
    span = body.resource_spans[0].scope_spans[0].spans[0]
    span.attributes.add(key="user.id").value.string_value = name
    data = body.SerializeToString()
    return TracedRequest("protobuf", data, take_apart("protobuf", data))


@pytest.mark.parametrize("wrong", [{}, {"trace": "12"}, {"user": " "}, {"user": "a", "session": "b"}])
def test_an_unclear_selection_is_refused(lake: tracelake.Lake, wrong: dict[str, str]) -> None:
    """A request needs exactly one criterion, with a value."""
    with pytest.raises(UsageError):
        lake.erase(**wrong)


def test_an_erasure_on_each_database(tmp_path: Path, new_url: Callable[[], str]) -> None:
    """On SQLite and on PostgreSQL, no row of the tracking store has the trace, and assessments and tags go with it."""
    with (
        tracelake.init(tmp_path / "lake") as lake,
        closing(lake.pipeline(runner=InProcess())) as pipeline,
    ):
        fill(lake.hot.set_up(new_url()), pipeline)
        for number in (1, 2):
            lake.annotations.set_tag(trace_id(number), "note", SECRET if number == 1 else OTHER)
            note = {"rationale": SECRET if number == 1 else OTHER}
            assessment = {"assessment_name": "quality", "feedback": {"value": True}}
            lake.annotations.log_assessment(trace_id(number), assessment | note)
        report = lake.erase(trace=trace_id(1))
        assert report.state == "finished"
        assert report.removed["tracking rows"] > 6
        check = lake.erasures.verify(report.id, [SECRET])
        assert (check.findings, check.unread) == ((), ())
        assert lake.erasures.verify(report.id, [OTHER]).findings
        assert lake.verify().findings == ()
