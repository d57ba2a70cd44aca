"""Erasures beside slow processes: rows that they read before the erasure do not come back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from msgspec.structs import replace

import tracelake
from tests.lake.test_erasure import SECRET, everything, fill, objects_with, without
from tests.tracking.requests import payload, request, trace_id
from tracelake.context import LakeContext
from tracelake.indexing.build import IndexBuilder, IndexedRows, StartedBuild
from tracelake.indexing.merge import current_index, publish_merged
from tracelake.indexing.redaction import IndexRedactor
from tracelake.lake import erasure
from tracelake.lake.erasure import Erasures
from tracelake.pipeline.continuous import InboxPipeline
from tracelake.pipeline.outputs import builtin
from tracelake.search.finalize import Redactions, finalize, read_parts, write_marker
from tracelake.search.model import Manifest
from tracelake.search.protocol import parts_of_build
from tracelake.shards.compaction import compact_tasks, run_compact_task
from tracelake.shards.model import Batch
from tracelake.storage.ports import KeyValueStore, ObjectStore
from tracelake.storage.wrappers import DelegatingObjectStore
from tracelake.tables.builtin import TABLE_SPANS
from tracelake.tables.redaction import TableRedactor
from tracelake.tasks.backoff import Throttle
from tracelake.tasks.runners import InProcess, silent
from tracelake.tracking.store import TrackingStore


def context_of(lake: tracelake.Lake) -> LakeContext:
    """Return the stores of a lake."""
    return lake._opened


def slow_merge(lake: tracelake.Lake) -> tuple[Callable[[], bool], Redactions]:
    """Merge all parts of the index. Return a function that publishes the merged parts, and the redactions."""
    opened = context_of(lake)
    builder = IndexBuilder(opened.key_value, opened.objects, opened.config.buckets, InProcess())
    standing = current_index(opened.repository, opened.objects)
    assert standing is not None
    parts = read_parts(opened.objects, standing.manifest)
    started = StartedBuild.now(opened.repository)
    snapshot = opened.shard(standing.shard).snapshot(standing.transaction)
    transactions = (0, standing.transaction + 1)
    wanted = IndexedRows(transactions, snapshot, standing.analyzer)
    receipts = builder.merge(started, parts, wanted, silent)
    redactions = Redactions(opened.key_value, opened.objects, "spans")
    merged = parts_of_build("spans", receipts, *transactions, as_of=standing.transaction)
    return partial(
        publish_merged, opened.repository, opened.objects, redactions, started, parts, merged
    ), redactions


def test_a_slow_compaction_does_not_bring_rows_back(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """A compaction that read parts before they were rewritten loses, so that the table keeps the rewritten ones."""
    fill(store, pipeline)
    opened = context_of(lake)
    shard = opened.shard(TABLE_SPANS.name)
    state = shard.state()
    run = state.batches
    tasks = compact_tasks(
        opened.objects.url,
        shard.name,
        state.epoch,
        state.since,
        TABLE_SPANS.sorted_by,
        [shard.batch(ref) for ref in run],
    )
    receipts = [run_compact_task(task) for task in tasks]
    merged = Batch(
        lower=run[0].lower,
        upper=run[-1].upper,
        id="slow",
        parts=tuple(part for receipt in receipts for part in receipt.parts),
        retractions=tuple(part for receipt in receipts for part in receipt.retractions),
        counts={},
        history=tuple(part for receipt in receipts for part in receipt.history),
        epoch=state.epoch,
    )
    redactor = TableRedactor(TABLE_SPANS, opened.config.buckets, opened.key_value, opened.objects)
    assert redactor.rewrite([trace_id(1)], state.upper).rows == 4
    assert not shard.replace(run, merged)
    assert redactor.count([trace_id(1)]) == 0


def test_a_slow_index_merge_does_not_bring_documents_back(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """A merge that read index parts before the erasure is not committed after it. The records of the replaced parts are
    dropped a day later."""
    fill(store, pipeline)
    publish, redactions = slow_merge(lake)
    assert lake.erase(trace=trace_id(1)).state == "finished"
    assert not publish()
    lake.erasures.run()
    assert {each.is_written for each in redactions.all().values()} == {True}
    with mock.patch.object(erasure, "REDACTIONS_S", -1.0):
        lake.erasures.run()
    assert redactions.all() == {}
    assert lake.search(SECRET).total == 0
    assert lake.search("*").total == 2


def test_a_slow_transaction_does_not_name_replaced_index_parts(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline, tmp_path: Path
) -> None:
    """A transaction that read the index before the erasure names the rewritten parts when it commits after it."""
    fill(store, pipeline)
    killed = mock.patch.object(Erasures, "_rewrite_index", side_effect=KeyboardInterrupt)
    with killed, pytest.raises(KeyboardInterrupt):
        lake.erase(trace=trace_id(1))
    states: list[str] = []

    def publish_late(*read: Any) -> tuple[str, Manifest]:
        states.extend(report.state for report in lake.erasures.run())
        return finalize(*read)

    (tmp_path / "more.pb").write_bytes(payload((5, 1)))
    with mock.patch.object(builtin, "finalize", publish_late):
        report = lake.ingest(tmp_path / "more.pb", runner=InProcess())
    assert (report.spans_new, states) == (1, ["finished"])
    assert lake.verify().findings == ()
    assert trace_id(1) not in {hit.trace_id for hit in lake.search("*")}
    (erased,) = lake.erasures.all()
    assert lake.erasures.verify(erased.id, [SECRET]).findings == ()


def test_readers_in_other_processes_go_on(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """A lake that was opened, and has read, before the erasure shows the other rows afterwards, and no error."""
    fill(store, pipeline)
    commits = [commit.id for commit in lake.log()]
    with tracelake.open(lake.place) as other:
        before = {commit: everything(other, commit) for commit in commits}
        assert lake.erase(trace=trace_id(1)).state == "finished"
        for commit in commits:
            assert everything(other, commit) == without(before[commit], trace_id(1))


def test_a_transaction_that_is_replayed_does_not_bring_rows_back(
    lake: tracelake.Lake, store: TrackingStore
) -> None:
    """Input that was recorded, but not committed, before the request is replayed by another pipeline: its rows stay
    hidden, and are erased."""
    store.write([request((1, 1), text=SECRET), request((2, 1))])

    def stop(step: tracelake.Progress) -> None:
        if step.stage == "publishing":
            raise KeyboardInterrupt

    with closing(lake.pipeline(runner=InProcess())) as first, pytest.raises(KeyboardInterrupt):
        first.run_once(progress=stop)
    assert lake.erase(trace=trace_id(1)).state == "open"
    with closing(lake.pipeline(runner=InProcess())) as second:
        second.run_once()
    assert [hit.trace_id for hit in lake.search("*")] == [trace_id(2)]
    (report,) = lake.erasures.run()
    assert report.state == "finished"
    assert [hit.trace_id for hit in lake.search("*")] == [trace_id(2)]
    assert objects_with(lake, SECRET.encode()) == []


def test_an_ingest_whose_parts_an_eraser_collects_is_repeated(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline, tmp_path: Path
) -> None:
    """An eraser that was killed before it collects, and collects while a transaction is published, does not fail the
    ingest."""
    fill(store, pipeline)
    killed = mock.patch.object(Erasures, "_collect", side_effect=KeyboardInterrupt)
    with killed, pytest.raises(KeyboardInterrupt):
        lake.erase(trace=trace_id(1))
    states: list[str] = []

    def erase(step: tracelake.Progress) -> None:
        if step.stage == "publishing" and step.done == 0:
            states.extend(report.state for report in lake.erasures.run())

    (tmp_path / "more.pb").write_bytes(payload((5, 1)))
    report = lake.ingest(tmp_path / "more.pb", runner=InProcess(), progress=erase)
    assert (report.spans_new, states) == (1, ["finished"])
    assert lake.verify().findings == ()


def test_a_merge_beside_an_erasure_does_not_bring_documents_back(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """An erasure that rewrites the index between the manifest of a merge and its commit leaves no document."""
    fill(store, pipeline)
    publish, _ = slow_merge(lake)
    late = mock.patch.object(Erasures, "_collect", side_effect=KeyboardInterrupt)

    def write_early(objects: ObjectStore, path: str, manifest: Manifest) -> Manifest:
        written = write_marker(objects, path, manifest)
        with late, pytest.raises(KeyboardInterrupt):
            lake.erase(trace=trace_id(1))
        return written

    with mock.patch("tracelake.indexing.merge.write_marker", write_early):
        publish()
    assert lake.search(SECRET).total == 0
    (report,) = lake.erasures.run()
    assert report.state == "finished"
    assert lake.verify().findings == ()
    assert lake.erasures.verify(report.id, [SECRET]).findings == ()


def test_a_collection_spares_a_replacement(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """Garbage collection keeps the replacement of a part that an eraser has recorded and not yet named."""
    fill(store, pipeline)
    opened = context_of(lake)
    standing = current_index(opened.repository, opened.objects)
    assert standing is not None
    part = read_parts(opened.objects, standing.manifest)[0]
    other = replace(part, path=part.path.replace(part.sha256, "0" * 64), sha256="0" * 64)
    assert Redactions(opened.key_value, opened.objects, "spans", "e").replace(part.path, other, b"new", None)
    for _ in range(3):
        lake.maintenance.gc(epoch_min_s=0)
    assert opened.objects.get(other.path) == b"new"


def test_a_slow_eraser_does_not_restore_replaced_parts(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """An eraser that read a manifest before another erasure, and is killed after it has written the manifest, does not
    restore the name of a deleted part."""
    for number in (1, 3):
        store.write([request((number, 1), text=SECRET), request((number + 1, 1))])
        pipeline.run_once()
    states: list[str] = []

    class SlowStore(DelegatingObjectStore):
        """Store in which a write of a manifest of two parts takes as long as another erasure."""

        def replace(self, path: str, data: bytes, expected: bytes) -> bool:
            is_first = not states and Manifest.from_json(data, path).part_count == 2
            if is_first:
                states.append("open")
                with tracelake.open(lake.place) as other:
                    states.append(other.erase(trace=trace_id(3)).state)
            is_replaced = super().replace(path, data, expected)
            if is_first:
                raise KeyboardInterrupt
            return is_replaced

    def open_redactor(key_value: KeyValueStore, objects: ObjectStore, *others: Any) -> IndexRedactor:
        return IndexRedactor(key_value, SlowStore(objects), *others)

    with mock.patch.object(erasure, "IndexRedactor", open_redactor), pytest.raises(KeyboardInterrupt):
        lake.erase(trace=trace_id(1))
    assert states == ["open", "finished"]
    assert {hit.trace_id for hit in lake.search("*")} == {trace_id(2), trace_id(4)}
    assert {report.state for report in lake.erasures.run()} == {"finished"}
    assert lake.verify().findings == ()


def test_an_erasure_gives_way_to_ingestion(
    pipeline: InboxPipeline, store: TrackingStore, lake: tracelake.Lake
) -> None:
    """It looks for commits of others after each part, and ends although one comes in each pause."""
    fill(store, pipeline)
    pauses: list[int] = []

    def commit_meanwhile(throttle: Throttle) -> None:
        if len(pauses) < 5:
            store.write([request((10 + len(pauses), 1))])
            pipeline.run_once()
        pauses.append(throttle.commits())

    with mock.patch.object(Throttle, "pause", commit_meanwhile):
        assert lake.erase(trace=trace_id(1)).state == "finished"
    assert len(pauses) > 5
    assert pauses[:5] == list(range(pauses[0], pauses[0] + 5)), "each commit is seen"
    assert objects_with(lake, SECRET.encode()) == []
    assert {hit.trace_id for hit in lake.search("*")} == {
        trace_id(number) for number in (2, 3, *range(10, 15))
    }
    assert lake.verify().findings == ()
