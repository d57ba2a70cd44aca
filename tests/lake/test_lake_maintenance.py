"""A lake that is read, verified and written during compaction and garbage collection."""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tracelake
from tests.pipeline.spans import AGENTS, a_line, a_span
from tracelake import Lake
from tracelake._errors import DamageError, ExpiredError, StorageError, UsageError
from tracelake.journal.store import record_key
from tracelake.lake.sources import main_pipeline
from tracelake.limits import LEASE_S
from tracelake.pipeline.outputs.builtin import CommitOutput, TableOutput
from tracelake.shards.protocol import LEASE_MARGIN_S, next_epoch
from tracelake.shards.shard import Shard
from tracelake.tables.builtin import BUILT_IN
from tracelake.tables.maintenance import Maintainer
from tracelake.tasks.runners import InProcess


def ingest(lake: Lake, folder: Path, number: int) -> None:
    """Ingest one transaction: a new trace, and a trace that every transaction changes."""
    path = folder / f"{number}.jsonl"
    spans = a_span(0, 0, end=10 + number, note=f"n{number}"), a_span(number + 1, number + 1)
    path.write_bytes(a_line(*spans))
    lake.ingest(path, runner=InProcess())


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a lake with five transactions, to copy."""
    folder = tmp_path_factory.mktemp("five")
    with tracelake.init(folder / "lake", buckets=2) as lake:
        for number in range(5):
            ingest(lake, folder, number)
    return folder / "lake"


@pytest.fixture
def lake(five: Path, tmp_path: Path) -> Iterator[Lake]:
    """Return a lake with five transactions."""
    shutil.copytree(five, tmp_path / "lake")
    with tracelake.open(tmp_path / "lake") as lake:
        yield lake


def hashes(lake: Lake) -> list[tuple[str, str]]:
    """Return the content of both tables at every commit, oldest first."""
    return [
        (lake.table("spans", at=c.id).content_hash(), lake.table("traces", at=c.id).content_hash())
        for c in reversed(lake.log())
    ]


def test_history_survives_compaction_and_collection(lake: Lake) -> None:
    """Every commit reads as before, by content, by totals and by search, and verify finds no damage."""
    before = hashes(lake)
    totals = [table.rows for table in lake.tables()]
    hits = [(hit.span_id, hit.score) for hit in lake.search("work", limit=50)]
    for report in lake.maintenance.compact(runner=InProcess()):
        assert report.batches == 5
    assert [collected.replaced > 0 for collected in lake.maintenance.gc()] == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert hashes(lake) == before
    assert [table.rows for table in lake.tables()] == totals
    assert [(hit.span_id, hit.score) for hit in lake.search("work", limit=50)] == hits
    assert lake.verify().findings == ()
    assert all(table.parts <= 2 for table in lake.tables())


def test_the_journal_keeps_the_newest_transactions(lake: Lake, tmp_path: Path) -> None:
    """Older transactions are erased and reported; an ingested file stays known forever, and verify misses nothing."""
    dry = lake.maintenance.gc(dry_run=True, journal_transactions=2)[-1]
    trimmed = lake.maintenance.gc(journal_transactions=2)[-1]
    assert (dry.table, dry.replaced, trimmed.replaced) == ("journal", 3, 3)
    left = [entry.key for entry in lake._opened.key_value.scan("journal/main")]
    assert left == [record_key(t, number) for t in (3, 4) for number in (0, 1)] + ["floor"]
    assert lake.verify().findings == ()
    before = hashes(lake)
    path = tmp_path / "again.jsonl"  # the bytes of the first transaction, under another name
    path.write_bytes(a_line(a_span(0, 0, end=10, note="n0"), a_span(1, 1)))
    report = lake.ingest(path, runner=InProcess())
    assert (report.files_known, report.spans_repeated, report.transactions) == (1, 2, ())
    ingest(lake, tmp_path, 5)
    assert hashes(lake)[:-1] == before
    assert lake.maintenance.gc(journal_transactions=2)[-1].replaced == 1


def test_a_floor_above_the_commits_is_damage(lake: Lake, tmp_path: Path) -> None:
    """If the branch alone was reset, a run reports damage, and does not wait for peers forever."""
    pipeline = main_pipeline(lake._opened, InProcess())
    pipeline._context.journal.raise_floor(6)
    with pytest.raises(DamageError, match="dropped transaction 5"):
        ingest(lake, tmp_path, 5)
    with pytest.raises(DamageError, match="dropped transaction 5"):
        lake.pipeline(runner=InProcess()).run_once()


def test_pipelines_compact_as_they_go(lake: Lake, tmp_path: Path) -> None:
    """After eight transactions there is one batch, and the batches that it replaced are deleted."""
    for number in range(5, 8):
        ingest(lake, tmp_path, number)
    for shard in (shard for shard, _ in lake.maintenance._maintained()):
        assert [ref.level for ref in shard.state().batches] == [1]
        assert shard.state().retired == ()
    assert lake.verify().findings == ()
    assert [report.replaced for report in lake.maintenance.gc()] == [0, 0, 0, 0, 0]


def test_all_columns_of_real_spans_survive(tmp_path: Path) -> None:
    """Maps, lists, bytes, nulls and numbers of real agent traces are preserved: equal rows, with types and order of
    keys."""
    with tracelake.init(tmp_path / "lake") as lake:
        lake.ingest(AGENTS, runner=InProcess(), transaction_bytes=1)
        ingest(lake, tmp_path, 1)

        def rows(name: str) -> pa.Table:
            return lake.table(name).to_arrow(order_by="all")

        def schemas(name: str) -> set[str]:
            return {str(pa.parquet.read_schema(file)) for file in lake.table(name).files()}

        before = {name: (rows(name), schemas(name)) for name in BUILT_IN}
        lake.maintenance.compact(runner=InProcess())
        for name, (table, schema) in before.items():
            assert rows(name).equals(table)
            assert schemas(name) == schema


def test_compaction_stops_where_a_killed_run_did(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run ends between its appends and its commit, and everything is compacted; the next run still makes the
    commit."""

    def killed(*_given: object, **_more: object) -> str:
        raise StorageError("killed before the commit")

    monkeypatch.setattr(CommitOutput, "publish", killed)
    with pytest.raises(StorageError, match="killed before"):
        ingest(lake, tmp_path, 7)
    monkeypatch.undo()
    assert [report.batches for report in lake.maintenance.compact(runner=InProcess())] == [5, 5]
    lake.maintenance.gc(epoch_min_s=0)
    before = hashes(lake)
    ingest(lake, tmp_path, 8)
    newest, finished, *_ = lake.log()
    assert (newest.metadata["spans_new"], finished.metadata["spans_new"]) == ("1", "1")
    assert hashes(lake)[: len(before)] == before
    assert lake.verify().findings == ()


def begin_epochs(lake: Lake, table: str, count: int) -> None:
    """Start a number of epochs of a table, as collections do."""
    shard = Shard(table, lake._opened.key_value, lake.objects)
    for _ in range(count):
        shard.change(partial(next_epoch, now_s=time.time(), epoch_min_s=0))


@pytest.mark.parametrize("table", BUILT_IN)
def test_a_run_that_is_slower_than_two_epochs_appends_nothing(
    lake: Lake, tmp_path: Path, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is slower than two epochs appends nothing, because its parts may have been collected. The epoch of
    the append is the one before its first upload."""
    publish = TableOutput.publish

    def slow(output: TableOutput, *given: Any) -> None:
        if output.table.name == table:
            begin_epochs(lake, table, 2)
        publish(output, *given)

    monkeypatch.setattr(TableOutput, "publish", slow)
    with pytest.raises(ExpiredError, match="uploaded too long ago"):
        ingest(lake, tmp_path, 7)
    monkeypatch.undo()
    ingest(lake, tmp_path, 7)
    assert lake.verify().findings == ()


def test_forgetting_keeps_what_is_newer(lake: Lake, tmp_path: Path) -> None:
    """Commits before the named one become unreadable, with an error that explains it; all others stay readable."""
    before, commits = hashes(lake), list(reversed(lake.log()))
    lake.maintenance.compact(forget_before=commits[3].id[:12], runner=InProcess())
    for commit in commits[:3]:
        with pytest.raises(ExpiredError, match="its history begins at 3"):
            lake._opened.view(commit.id)
    assert [lake.table("spans", at=c.id).content_hash() for c in commits[3:]] == [h[0] for h in before[3:]]
    ingest(lake, tmp_path, 9)
    assert lake.verify().findings == ()


def test_forgetting_is_refused_for_what_names_need(lake: Lake) -> None:
    """A tag or branch that would become unreadable is named, and nothing is compacted; without it, compaction runs."""
    commits = list(reversed(lake.log()))
    lake.tag("v1", commits[1].id)
    lake.create_branch("old", commits[2].id)
    before = [shard.state() for shard, _ in lake.maintenance._maintained()]
    with pytest.raises(UsageError, match="nothing was compacted: branch old, tag v1"):
        lake.maintenance.compact(forget_before="main", runner=InProcess())
    assert [shard.state() for shard, _ in lake.maintenance._maintained()] == before
    lake.maintenance.compact(forget_before="v1", runner=InProcess())
    assert lake.table("spans", at="v1").info().rows
    lake.delete_tag("v1")
    lake.branch("old").merge("main")
    lake.maintenance.compact(forget_before="main", runner=InProcess())
    assert lake.table("spans", at="old").content_hash() == lake.table("spans").content_hash()


def expire(peer: Lake) -> int:
    """Let collectors observe a lease until it expires, and one more collect; return the collected objects."""
    steady = time.monotonic
    peer.maintenance.gc()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.monotonic", lambda: steady() + LEASE_S + LEASE_MARGIN_S)
        return sum(report.replaced for report in peer.maintenance.gc())


READS: list[Callable[[tracelake.Table], object]] = [
    lambda table: table.to_arrow(["trace_id"]),
    lambda table: table.lookup(["0" * 31 + "1"]),
    lambda table: table.content_hash(),
    lambda table: table.check(),
    lambda table: table.sql(),
    lambda table: table.files(),
]


@pytest.mark.parametrize("read", range(len(READS)))
def test_s10_a_reader_whose_lease_has_ended(lake: Lake, tmp_path: Path, read: int) -> None:
    """A reader whose parts were collected gets an error with advice, not a damage error, and never other rows
    (S10)."""
    table = lake.table("spans")
    with tracelake.open(tmp_path / "lake") as peer:
        peer.maintenance.compact(runner=InProcess())
        assert expire(peer) > 0
    with pytest.raises(ExpiredError, match="Open the table again"):
        READS[read](table)
    assert lake.table("spans", at=lake.log()[0].id) is not None


def test_s10_a_reader_that_pauses_between_its_lease_and_its_read(lake: Lake, tmp_path: Path) -> None:
    """If a lease is valid when checked and expires before the parts are read, the reader gets the same error (S10)."""
    table = lake.table("spans")
    renew, paused = table._leases.renew, list[bool]()

    def pause_then_find_out(*, now: bool = False) -> None:
        if not paused:
            paused.append(True)
            with tracelake.open(tmp_path / "lake") as peer:
                peer.maintenance.compact(runner=InProcess())
                expire(peer)
            return
        renew(now=now)

    table._leases.renew = pause_then_find_out  # type: ignore[method-assign]
    with pytest.raises(ExpiredError, match="Open the table again"):
        table.to_arrow()


LAKE_READS: dict[str, Callable[[Lake], object]] = {
    "sql": lambda lake: lake.sql("select count(*) from spans").to_pylist(),
    "search": lambda lake: [hit.span_id for hit in lake.search("work", limit=50)],
    "trace": lambda lake: lake.trace(f"{1:032x}").summary["span_count"],
    "tables": lambda lake: [info.rows for info in lake.tables()],
    "an old commit": lambda lake: lake.sql("select count(*) from spans", at=lake.log()[2].id).to_pylist(),
}


@pytest.mark.parametrize("read", LAKE_READS.values(), ids=LAKE_READS.keys())
def test_a_lake_that_lost_its_parts_opens_them_anew(
    lake: Lake, tmp_path: Path, read: Callable[[Lake], object]
) -> None:
    """A server whose lease expired, for example during sleep, gives the same answers as before, at once and ever
    after."""
    before = read(lake)
    with tracelake.open(tmp_path / "lake") as peer:
        peer.maintenance.compact(runner=InProcess())
        assert expire(peer) > 0
    assert [read(lake), read(lake)] == [before, before]


def test_gc_by_a_clock_that_is_hours_ahead_leaves_readers_alone(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A live reader keeps its parts, however often a machine with such a clock collects."""
    table, before = lake.table("spans"), lake.table("spans").to_arrow(order_by="all")
    now = time.time
    with tracelake.open(tmp_path / "lake") as peer:
        peer.maintenance.compact(runner=InProcess())
        for hours in (3, 0, 6, 30):
            monkeypatch.setattr("time.time", lambda hours=hours: now() + hours * 3600)
            assert [report.held > 0 for report in peer.maintenance.gc()] == [True, True, False, False, False]
    assert table.to_arrow(order_by="all").equals(before)


def test_a_part_that_is_gone_under_a_good_lease_is_damage(lake: Lake) -> None:
    """A part that disappears under a valid lease is damage, because no process may delete it."""
    table = lake.table("spans")
    Path(table.files()[0]).unlink()
    with pytest.raises(DamageError, match="is missing"):
        table.to_arrow()


def test_verify_beside_compaction_and_collection(lake: Lake, tmp_path: Path) -> None:
    """Parts that verify has listed stay until it has read them."""
    with tracelake.open(tmp_path / "lake") as peer:
        meddled: list[object] = []

        def meddle(_: object) -> None:
            if not meddled:
                meddled.append(peer.maintenance.compact(runner=InProcess()))
                peer.maintenance.gc(epoch_min_s=0)

        assert lake.verify(meddle).findings == ()
        assert meddled


def test_counts_of_a_transaction_that_a_peer_commits_and_compacts_meanwhile(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between this process's reads of the head and of the batch, a peer commits and compacts it into a larger one."""
    pipeline = main_pipeline(lake._opened, InProcess())
    outputs, journal = pipeline._context.outputs, pipeline._context.journal
    step = journal.read(1).step
    assert step is not None
    expected = outputs.commit.counts(step)
    head = outputs.repository.head
    looks = []

    def peer_was_faster() -> str | None:
        looks.append(1)
        if len(looks) > 1:
            return head()
        found = outputs.repository.commit(str(head())).parents[0]
        maintainer = Maintainer(lake._opened.key_value, lake.objects, InProcess())
        for name in BUILT_IN:
            maintainer.compact_all(
                Shard(name, lake._opened.key_value, lake.objects), BUILT_IN[name].sorted_by
            )
        lake.maintenance.gc()
        return found

    monkeypatch.setattr(outputs.repository, "head", peer_was_faster)
    assert outputs.commit.counts(step) == expected


def test_what_is_damaged_keeps_no_other_kind_from_being_collected(lake: Lake, tmp_path: Path) -> None:
    """An unreadable head hides commits, files and index parts: the report names it, and tables are collected."""
    lake.maintenance.compact(runner=InProcess())
    head = lake.log()[0].id
    (damaged,) = (tmp_path / "lake").rglob(f"{head}.json")
    damaged.write_bytes(b"torn")
    with tracelake.open(tmp_path / "lake") as other:
        spans, traces, versions, parts, _ = other.maintenance.gc(epoch_min_s=0)
    assert (spans.replaced > 0, traces.replaced > 0) == (True, True)
    assert (spans.damage, traces.damage, parts.damage) == ((), (), ())
    assert [head in what for what in versions.damage] == [True]
    assert (versions.orphans, parts.orphans) == (0, 0)


def test_a_table_that_is_damaged_keeps_no_other_from_being_collected(lake: Lake) -> None:
    """The report names the unreadable part of one table; the other table's garbage is collected."""
    lake.maintenance.compact(runner=InProcess())
    lake._opened.key_value.set("shards", "spans", b"torn")
    spans, traces, *_ = lake.maintenance.gc(epoch_min_s=0)
    assert (spans.replaced, traces.replaced > 0) == (0, True)
    assert "spans" in spans.damage[0]


def test_a_damaged_part_keeps_nothing_newer_from_being_compacted(
    lake: Lake, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The run of batches with the damaged part stays due and is named; later batches are compacted as usual."""
    shard = lake._opened.shard("spans")
    ref = shard.state().batches[2]
    part = tmp_path / "lake" / shard.batch(ref).parts[0].path
    whole = part.read_bytes()
    part.write_bytes(whole[:40] + bytes([whole[40] ^ 1]) + whole[41:])
    order = BUILT_IN["spans"].sorted_by
    maintainer = Maintainer(lake._opened.key_value, lake._opened.objects, InProcess())
    for number in range(5, 16):  # without the damage, two runs of eight
        path = tmp_path / f"{number}.jsonl"
        path.write_bytes(a_line(a_span(number + 1, number + 1)))
        lake.ingest(path, runner=InProcess())
    maintainer.maintain(shard, order)
    assert "table spans was not compacted" in caplog.text
    levels = [(each.lower, each.upper, each.level) for each in shard.state().batches]
    assert max(level for lower, _, level in levels if lower > ref.lower) == 1, levels
    part.write_bytes(whole)
    maintainer.maintain(shard, order)
    assert lake.verify().findings == ()


def test_a_damaged_record_of_a_batch_keeps_nothing_newer_from_being_compacted(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compaction continues, although no reader can tell from there which parts the error affects."""
    shard = lake._opened.shard("spans")
    with monkeypatch.context() as patch:
        patch.setattr(Maintainer, "maintain", lambda *_: None)
        for number in range(5, 16):
            ingest(lake, tmp_path, number)
    ref = shard.state().batches[2]
    (tmp_path / "lake" / ref.path).write_bytes(b"")
    Maintainer(lake._opened.key_value, lake._opened.objects, InProcess()).maintain(
        shard, BUILT_IN["spans"].sorted_by
    )
    levels = [(each.lower, each.upper, each.level) for each in shard.state().batches]
    assert max(level for lower, _, level in levels if lower > ref.lower) == 1, levels


def test_what_tasks_of_maintenance_raise_ends_no_run(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk or a bug in a maintenance task is reported, in this process and on Spark, and the transaction is
    committed."""

    def fails(_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr("tracelake.tables.maintenance.run_compact_task", fails)
    monkeypatch.setattr("tracelake.indexing.build.run_merge_task", fails)
    for number in range(5, 9):
        ingest(lake, tmp_path, number)
    for what in (
        "table spans was not compacted",
        "table traces was not compacted",
        "the index was not merged",
    ):
        assert what in caplog.text
    assert "OSError: [Errno 28] no space left on device" in caplog.text
    monkeypatch.undo()
    assert lake.verify().findings == ()
