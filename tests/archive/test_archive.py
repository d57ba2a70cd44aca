"""Passes, restore, delete and sweep on real stores: SQLite and PostgreSQL, and each layout."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData
from sqlalchemy import event, insert, select, update

from tests.archive.place import HotLake
from tests.pipeline.poison import POISON, Poisoned
from tests.tracking.requests import payload, request, span_numbers, trace_id
from tracelake._errors import DamageError, NotFoundError, StorageError, TracelakeError, UsageError
from tracelake.archive import archive_pass
from tracelake.archive import repositories as archive_tables
from tracelake.archive import service as archives
from tracelake.archive.repositories import TablesRepository, path_in
from tracelake.archive.service import LakeTables
from tracelake.archive.store import ArchiveStore
from tracelake.cli import run
from tracelake.otlp.partition import rows_of
from tracelake.storage import open_objects
from tracelake.tables.upsert_rule import KEY
from tracelake.tracking.schema import experiment_tags, trace_parts, workspaces

Make = Callable[..., HotLake]
LAYOUTS = ("lake", "trace", "pack")


def tag(lake: HotLake, key: str, value: str, experiment: str = "0") -> None:
    """Set a tag of an experiment."""
    row = {"lake": lake.tracking.lake, "experiment_id": experiment, "key": key, "value": value}
    with lake.tracking.database.writing() as connection:
        connection.execute(insert(experiment_tags), row)


def normal(data: bytes) -> list[str]:
    """Return the spans of a message with their resource and scope, sorted."""
    message = TracesData.FromString(data)
    return sorted(
        f"{group.resource}{group.schema_url}{scope.scope}{scope.schema_url}{span}"
        for group in message.resource_spans
        for scope in group.scope_spans
        for span in scope.spans
    )


def payload_of(lake: HotLake, number: int) -> bytes:
    """Return the store's own spans of a trace."""
    return lake.tracking.traces([trace_id(number)])[trace_id(number)].data


@pytest.mark.parametrize("layout", LAYOUTS)
def test_there_and_back_without_loss(make: Make, layout: str) -> None:
    """Archived traces leave the database, and come back with every field; each pass reports its work."""
    lake = make(layout)
    lake.write((1, 1), (1, 2), (2, 1), text="tall tale")
    before = [normal(payload_of(lake, number)) for number in (1, 2)]
    assert [(due.experiment_id, due.source, due.traces) for due in lake.archive.plan()] == [
        ("0", "server", 2)
    ]
    assert lake.archive.run(dry_run=True).fates == {}
    assert lake.hot([1, 2]) == [1, 2]
    report = lake.archive.run()
    assert report.fates == {"archived": 2}
    assert report.line.startswith(f"archive pass ({layout}): 2 archived")
    assert (lake.hot([1, 2]), payload_of(lake, 1)) == ([], b"")
    assert lake.archive.run().fates == {}
    assert lake.archive.space().archived_traces == 2
    assert len(lake.lake.trace(trace_id(1)).spans) == 2
    assert [lake.archive.restore(trace_id(number)) for number in (1, 2)] == [True, True]
    assert [normal(payload_of(lake, number)) for number in (1, 2)] == before
    assert not lake.archive.restore(trace_id(1))
    assert lake.archive.sweep(0) == 0
    assert lake.archive.space().archived_bytes == 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a1_a_write_between_snapshot_and_finalize(
    make: Make, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pass leaves the trace hot and deletes its upload; the next pass archives all of it (A1)."""
    lake = make(layout)
    lake.write((1, 1))
    finalize = ArchiveStore.finalize

    def late(self: ArchiveStore, *given: Any) -> Any:
        monkeypatch.undo()
        lake.write((1, 2))
        return finalize(self, *given)

    monkeypatch.setattr(ArchiveStore, "finalize", late)
    assert lake.archive.run().fates == {"changed": 1}
    assert span_numbers(payload_of(lake, 1)) == [1, 2]
    assert [
        each for each in lake.lake.objects.list("archive/") if "trace" in each.path or "pack" in each.path
    ] == []
    assert lake.archive.run().fates == {"archived": 1}
    assert lake.archive.restore(trace_id(1))
    assert sorted(span_numbers(payload_of(lake, 1))) == [1, 2]


def test_a10_a_restore_that_was_overtaken_puts_nothing_old_back(make: Make) -> None:
    """A restore that read an outdated archive restores nothing: the trace was restored, changed and archived again
    since (A10)."""

    def check() -> None:
        lake = make("trace")
        lake.write((1, 1))
        lake.archive.run()
        restore, overtaken = ArchiveStore.restore, list[int]()

        def late(self: ArchiveStore, *given: Any) -> bool:
            if not overtaken:
                overtaken.append(1)
                assert lake.archive.restore(trace_id(1))
                lake.write((1, 2))
                assert lake.archive.run().fates == {"archived": 1}
            return restore(self, *given)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ArchiveStore, "restore", late)
            assert lake.archive.restore(trace_id(1))
        assert sorted(span_numbers(payload_of(lake, 1))) == [1, 2]

    check()


def test_a12_an_upload_of_an_earlier_life_is_never_finalized(make: Make) -> None:
    """A pass reports that the generation has changed after a concurrent pass, restore and write (A12)."""

    def check() -> None:
        lake = make("trace")
        lake.write((1, 1))
        finalize, overtaken = ArchiveStore.finalize, list[int]()

        def late(self: ArchiveStore, *given: Any) -> Any:
            if not overtaken:
                overtaken.append(1)
                assert lake.archive.run().fates == {"archived": 1}
                assert lake.archive.restore(trace_id(1))
                lake.write((1, 2))
            return finalize(self, *given)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ArchiveStore, "finalize", late)
            assert lake.archive.run().fates == {"changed": 1}
        assert sorted(span_numbers(payload_of(lake, 1))) == [1, 2]

    check()


def test_a12_an_upload_of_a_trace_that_was_deleted_and_came_again_is_never_finalized(make: Make) -> None:
    """The new trace's generations start again and so are equal; its life differs (A12)."""

    def check() -> None:
        lake = make("trace")
        lake.write((1, 1))
        finalize = ArchiveStore.finalize

        def late(self: ArchiveStore, *given: Any) -> Any:
            assert lake.archive.delete([trace_id(1)]) == [trace_id(1)]
            lake.write((1, 2))
            return finalize(self, *given)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ArchiveStore, "finalize", late)
            assert lake.archive.run(traces_max=1).fates == {"changed": 1}
        assert span_numbers(payload_of(lake, 1)) == [2]

    check()


@pytest.mark.parametrize("layout", ["trace", "pack"])
def test_a2_a15_a_late_span_is_refused_alone(make: Make, layout: str) -> None:
    """The error names the solution, no partial trace is stored, and the rest of the request is (A2, A15)."""
    lake = make(layout)
    lake.write((1, 1))
    lake.archive.run()
    (refused,) = lake.tracking.write([request((1, 2), (2, 1), (3, 1), (4, 1))])
    assert refused is not None
    assert (refused.spans, "tracelake archive restore" in refused.reason) == (1, True)
    assert (lake.hot([1, 2, 3, 4]), payload_of(lake, 1)) == ([2, 3, 4], b"")
    assert lake.archive.restore(trace_id(1))
    lake.write((1, 2))
    assert span_numbers(payload_of(lake, 1)) == [1, 2]


def test_a18_a_late_span_in_layout_lake(make: Make) -> None:
    """A late span is accepted and reaches the tables, and the trace stays archived and complete (A18)."""
    lake = make("lake")
    lake.write((1, 1))
    lake.archive.run()
    assert lake.tracking.write([request((1, 2))]) == [None]
    assert span_numbers(payload_of(lake, 1)) == [2]
    lake.commit()
    assert (lake.hot([1]), payload_of(lake, 1)) == ([], b"")
    assert len(lake.lake.trace(trace_id(1)).spans) == 2
    assert lake.archive.restore(trace_id(1))
    assert sorted(span_numbers(payload_of(lake, 1))) == [1, 2]


def test_a18_a_late_span_while_it_is_restored(make: Make) -> None:
    """A late span that reaches the tables after a restore has read them is part of the restored trace (A18)."""

    def check() -> None:
        lake = make("lake")
        lake.write((1, 1))
        lake.archive.run()
        spans, late = LakeTables.spans, list[int]()

        def overtaken(
            self: LakeTables, trace_ids: Sequence[str], claims: pa.Table | None = None
        ) -> tuple[pa.Table, int]:
            rows = spans(self, trace_ids, claims)
            if not late:
                late.append(1)
                lake.write((1, 2))
            return rows

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LakeTables, "spans", overtaken)
            assert lake.archive.restore(trace_id(1))
        assert sorted(span_numbers(payload_of(lake, 1))) == [1, 2]

    check()


def test_a5_two_archivers_at_once(make: Make) -> None:
    """With two concurrent archivers each trace is archived once, and no object is garbage (A5)."""
    lake = make("trace")
    lake.write(*((number, 1) for number in range(1, 21)))
    archivers = [archives.LakeArchive(lake.tracking, lake.lake.url, lake.archive._tables) for _ in range(2)]
    fates: list[dict[str, int]] = []
    threads = [threading.Thread(target=partial(_run, each, fates)) for each in archivers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(each.get("archived", 0) for each in fates) == 20
    assert len([each for each in lake.lake.objects.list("archive/") if each.path.endswith(".pb")]) == 20
    assert lake.archive.sweep(0) == 0


def _run(archive: archives.LakeArchive, fates: list[dict[str, int]]) -> None:
    fates.append(archive.run().fates)


def test_a6_a_malformed_trace_is_marked_and_skipped(make: Make) -> None:
    """A malformed trace stops no other trace, and is retried once a user deletes its mark (A6)."""
    lake = make("lake")
    lake.write((1, 1), (2, 1))
    of_first = (trace_parts.c.trace_id == trace_id(1), trace_parts.c.lake == lake.tracking.lake)
    with lake.tracking.database.writing() as connection:
        whole = connection.execute(trace_parts.select().where(*of_first)).one().payload
        connection.execute(update(trace_parts).where(*of_first).values(payload=whole[:-3]))
    assert lake.archive.run().fates == {"archived": 1, "malformed": 1}
    assert lake.archive.run().fates == {}
    assert lake.archive.space().failed_traces == 1
    with lake.tracking.database.writing() as connection:
        connection.execute(update(trace_parts).where(*of_first).values(payload=whole))
    assert lake.archive.retry([trace_id(1), trace_id(2)]) == [trace_id(1)]
    assert lake.archive.run().fates == {"archived": 1}


def test_what_was_given_up_is_told_and_holds_up_nothing(make: Make) -> None:
    """Traces of a discarded input report that, and no pass waits for them until the user retries the input."""
    lake = make("lake")
    lake.write((1, 1))
    lake.write((1, 2), (2, 1), text=POISON, commit=False)
    lake.write((3, 1), commit=False)
    pipeline = lake.lake.pipeline(runner=Poisoned("merge"))
    while pipeline.run_once() is not None:
        pass
    (aside,) = [each for each in lake.lake.quarantine.all() if each.state == "set aside"]
    assert lake.archive.run().fates == {"archived": 1, "waiting": 2}
    assert [each.state for each in lake.lake.quarantine.discard(aside.transaction)] == ["discarded"]
    assert lake.archive.run().fates == {}, "nothing is due that can never go"
    stored = lake.tracking.traces([trace_id(1), trace_id(2)])
    assert {trace.info["archival_failure"] for trace in stored.values()} == {"INCOMPLETE_TRACE"}
    assert lake.archive.space().failed_traces == 2
    assert len(lake.lake.trace(trace_id(1)).spans) == 2, "it may be all that there is"
    assert lake.archive.retry([trace_id(1), trace_id(3)]) == [trace_id(1)]
    assert lake.archive.run().fates == {"waiting": 1}
    lake.archive.configure(layout="pack")
    assert lake.archive.run().fates == {"archived": 1}


def beside_a_repository_that_cannot_be_opened(make: Make) -> None:
    """Check which traces can be restored and deleted, alone and together with traces of the unreachable repository."""
    lake = make("lake")
    lake.write((1, 1), (2, 1))
    assert lake.archive.run().fates == {"archived": 2}
    away = lake.path.parent / "away"
    lake.archive.configure(layout="trace", location=f"file://{away}")
    lake.write((3, 1))
    lake.write((4, 1))
    assert lake.archive.run(traces_max=1).fates == {"archived": 1}
    away.rename(lake.path.parent / "elsewhere")
    away.write_bytes(b"no directory")
    assert lake.archive.restore(trace_id(1))
    failed: dict[str, TracelakeError] = {}
    several = [trace_id(number) for number in (3, 1, 9)]
    assert lake.archive.delete(several, failed.__setitem__) == [trace_id(1)]
    assert list(failed) == [trace_id(3)]
    assert "cannot open" in str(failed[trace_id(3)])
    with pytest.raises(StorageError, match="cannot open"):
        lake.archive.delete([trace_id(3), trace_id(2)])
    assert list(lake.archive._store.archived([trace_id(2), trace_id(3)])) == [trace_id(3)]
    lake.archive.configure(layout="lake")
    lake.write((5, 1))
    lake.write((6, 1))
    where = ["--lake", str(lake.path), "--json"]
    with pytest.MonkeyPatch.context() as patch:
        if url := lake.environment().get("TRACELAKE_TRACKING"):
            patch.setenv("TRACELAKE_TRACKING", url)
        assert run(["archive", "restore", trace_id(3), trace_id(5), *where]) == 1
        assert run(["archive", "delete", trace_id(3), trace_id(5), *where]) == 1
    assert list(lake.archive._store.archived([trace_id(3), trace_id(5)])) == [trace_id(3)]
    assert lake.archive.delete([trace_id(4)]) == [trace_id(4)]
    for act in (lake.archive.restore, lambda id: lake.archive.delete([id])):
        with pytest.raises(StorageError, match="cannot open"):
            act(trace_id(3))


def test_a_repository_that_cannot_be_opened_stops_nothing_beside_it(make: Make) -> None:
    """Traces archived in the tables can be restored, and hot ones deleted, next to traces of an unreachable
    repository."""
    beside_a_repository_that_cannot_be_opened(make)


def test_a7_archive_now(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """archiveNow needs no retention, stays while a pass fails, and is cleared when it is done (A7)."""
    lake = make("trace", retention="")
    lake.write((1, 1))
    assert lake.archive.run().fates == {}
    tag(lake, "mlflow.trace.archiveNow", "{}")
    monkeypatch.setattr(archive_pass, "read_back", _fail)
    assert lake.archive.run().fates == {"failed": 1}
    assert lake.archive.marks() == {("0", "{}")}
    monkeypatch.undo()
    assert lake.archive.run().fates == {"archived": 1}
    assert not lake.archive.marks()


def test_a8_retention_of_workspaces_and_experiments(make: Make) -> None:
    """Both retentions are read from MLflow's tags. An invalid tag is reported, and stops no other experiment (A8)."""
    lake = make("trace", retention="30d")
    lake.write((1, 1))
    with lake.tracking.database.writing() as connection:
        row = {"lake": lake.tracking.lake, "workspace": "default", "trace_archival_retention": "9999999d"}
        connection.execute(insert(workspaces), row)
    (due,) = lake.archive.plan()
    assert (due.retention, due.source) == ("30d", "server")
    lake.archive.configure(allowlist=["0"])
    (due,) = lake.archive.plan()
    assert (due.retention, due.source, due.traces) == ("9999999d", "workspace", 0)
    tag(lake, "mlflow.trace.archivalRetention", '{"type":"duration","value":"1h"}')
    assert [(due.retention, due.source, due.traces) for due in lake.archive.plan()] == [
        ("1h", "experiment", 1)
    ]
    tag(lake, "mlflow.trace.archiveNow", "now")
    (due,) = lake.archive.plan()
    assert (due.traces, "must be a JSON object" in (due.problem or "")) == (0, True)
    assert lake.archive.run(older_than="1d").fates == {"archived": 1}


def test_a8_several_set_a_retention_at_once(make: Make) -> None:
    """Among concurrent changes of a retention the last one counts, and none fails. If two names are given, both or
    none count (A8)."""
    lake = make("trace")
    experiment = lake.lake.annotations.create_experiment("x")
    engine, others = lake.tracking.database.engine, list[dict[str, str]]()

    def said() -> tuple[str | None, str | None]:
        with lake.tracking.database.reading() as connection:
            of_workspace = connection.execute(select(workspaces.c.trace_archival_retention)).scalar()
        of_experiment = lake.lake.annotations.experiment(experiment).tags.get(
            "mlflow.trace.archivalRetention"
        )
        return of_experiment, of_workspace

    def before(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("INSERT") and others:
            lake.archive.set_retention("2d", **others.pop())

    if not lake.tracking.database.is_sqlite:  # which has one writer at a time
        event.listen(engine, "before_cursor_execute", before)
        others += [{"experiment": experiment}]
    lake.archive.set_retention("1d", experiment=experiment)
    others += [] if lake.tracking.database.is_sqlite else [{"workspace": "default"}]
    lake.archive.set_retention("1d", workspace="default")
    one_day = '{"type":"duration","value":"1d"}'
    assert (said(), others) == ((one_day, "1d"), [])
    for names in (
        {"experiment": experiment, "workspace": ""},
        {"experiment": "none", "workspace": "default"},
        {"experiment": "x" * 999, "workspace": "default"},
    ):
        with pytest.raises((UsageError, NotFoundError)):
            lake.archive.set_retention("3d", **names)
        assert said() == (one_day, "1d")
    lake.archive.set_retention("", experiment=experiment, workspace="default")
    assert said() == (None, None)


def _fail(*_: Any) -> None:
    raise StorageError("the repository cannot be reached")


@pytest.mark.parametrize("layout", ["trace", "pack"])
def test_a9_the_repository_cannot_be_reached(
    make: Make, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Traces stay hot with the reason, and reading an archived one is an error, never an empty trace (A9)."""
    lake = make(layout)
    lake.write((1, 1))
    lake.archive.run()
    lake.write((2, 1))
    monkeypatch.setattr(
        archive_pass.ObjectRepository, "_upload", lambda *_: "the repository cannot be reached"
    )
    report = lake.archive.run()
    assert (report.fates, list(report.failures)) == ({"failed": 1}, [trace_id(2)])
    monkeypatch.setattr("tracelake.archive.service.read_archived", _fail)
    with pytest.raises(StorageError, match="cannot be reached"):
        lake.archive.restore(trace_id(1))
    assert lake.hot([1, 2]) == [2]


@pytest.mark.parametrize("layout", ["trace", "pack"])
def test_a14_a_damaged_archive_stays_as_it_is(make: Make, layout: str) -> None:
    """A restore names the damaged object and changes nothing; once repaired, the trace is restored (A14)."""
    lake = make(layout)
    lake.write((1, 1))
    lake.archive.run()
    repository = open_objects(f"{lake.lake.url}/archive")
    info = lake.tracking.traces([trace_id(1)])[trace_id(1)].info
    path = path_in(repository, info["archive_location"])
    whole = repository.get(path)
    for damaged in (whole[:10], bytes([whole[0] ^ 1]) + whole[1:], None):
        repository.delete(path) if damaged is None else repository.put(path, damaged)
        with pytest.raises(DamageError, match=path.rpartition("/")[2]):
            lake.archive.restore(trace_id(1))
        assert lake.hot([1]) == []
        findings = lake.lake.verify().findings  # for a pack, also the pack, which may have other traces
        assert [each.path for each in findings if each.what == "archived trace"] == [trace_id(1)]
        assert all(path in f"{each.path} {each.detail}" for each in findings), findings
    repository.put(path, whole)
    assert lake.lake.verify().ok
    assert lake.archive.restore(trace_id(1))


def test_a11_what_is_not_ours_stays(make: Make) -> None:
    """Passes, deletion and sweeps keep attachments, and foreign objects in the repository (A11)."""
    lake = make("trace")
    others = [f"archive/0/traces/tr-{trace_id(1)}/artifacts/{name}" for name in ("a.png", "traces.pb")]
    for path in others:
        lake.lake.objects.put(path, b"theirs")
    lake.write((1, 1))
    lake.archive.run()
    assert lake.archive.delete([trace_id(1)]) == [trace_id(1)]
    assert lake.archive.sweep(0) == 0
    assert [each.path for each in lake.lake.objects.list("archive/")] == others


@pytest.mark.parametrize("layout", LAYOUTS)
def test_delete_tells_what_was_there(make: Make, layout: str) -> None:
    """Hot, archived and unknown traces are reported; a pack goes with the last of its traces, and nothing of a
    trace remains."""
    lake = make(layout)
    lake.write((1, 1), (2, 1))
    lake.archive.run()
    lake.write((3, 1))
    assert lake.archive.delete([trace_id(1), trace_id(3), trace_id(9)]) == [trace_id(1), trace_id(3)]
    assert lake.archive.restore(trace_id(2))
    with pytest.raises(NotFoundError):
        lake.archive.restore(trace_id(1))
    assert lake.archive.space().hot_traces == 1
    assert [each for each in lake.lake.objects.list("archive/") if "." in each.path] == []


def test_a16_a_trace_that_never_ends_is_archived_by_age(make: Make) -> None:
    """A trace without a root and a trace in progress are archived too (A16)."""
    lake = make("trace")
    lake.tracking.write([request((1, 2), end_ns=0)])
    lake.commit()
    assert lake.tracking.traces([trace_id(1)])[trace_id(1)].info["state"] == "IN_PROGRESS"
    assert lake.archive.run().fates == {"archived": 1}


def _altered(rows: Any) -> Any:
    """Return rows with an earlier end: a version with lower precedence."""
    at = rows.schema.get_field_index("end_ns")
    return rows.set_column(at, rows.schema.field(at), [[1_500] * len(rows)])


def test_a13_the_check_and_the_clearing_are_one(make: Make) -> None:
    """A writer that arrives during a finalize waits for its end, and gets an error that it came too late (A13)."""
    lake = make("trace")
    lake.write((1, 1))
    inside, answers = threading.Event(), list[Any]()

    def write() -> None:
        inside.wait()
        answers.extend(lake.tracking.write([request((1, 2))]))

    writer = threading.Thread(target=write)
    writer.start()
    clear = ArchiveStore._clear

    def slowly(self: ArchiveStore, *given: Any) -> None:
        inside.set()
        writer.join(1.0)  # it cannot end before this thread does
        assert writer.is_alive()
        clear(self, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ArchiveStore, "_clear", slowly)
        assert lake.archive.run().fates == {"archived": 1}
    writer.join()
    assert answers[0].spans == 1


def test_w11_the_tables_hold_the_spans_of_each_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of another workspace with a higher precedence does not count as the snapshot's row in the tables (W11)."""
    ours, theirs = (
        pa.Table.from_batches([rows_of(payload((1, 1), end_ns=end, workspace=name)).take()])
        for name, end in (("a", 5_000), ("b", 9_000))
    )
    both = pa.concat_tables([ours, theirs])
    differences = TablesRepository(LakeTables.__new__(LakeTables), "lake-a")._differences

    def check() -> None:
        assert differences(both, both) == differences(ours, both) == []
        assert differences(both, theirs) == differences(ours, theirs) == [(trace_id(1), 1, 0)]

    check()
    monkeypatch.setattr(archive_tables, "_MISSING", archive_tables._MISSING.replace(KEY, "trace_id, span_id"))
    with pytest.raises(AssertionError):
        check()


def test_settings_that_make_no_sense(make: Make) -> None:
    """Invalid settings are refused, and so is a new location while the old one has archived traces."""
    lake = make("trace")
    for name, value in (
        ("layout", "box"),
        ("retention", "1y"),
        ("location", "ftp://x"),
        ("location", "file:///"),
    ):
        wrong: dict[str, Any] = {name: value}
        with pytest.raises(UsageError):
            lake.archive.configure(**wrong)
    for no_name in ("memory://", "memory:///"):  # the rest of it is no URL, and would fail every pass
        with pytest.raises(UsageError, match="not the URL of an object store"):
            lake.archive.configure(location=no_name)
    lake.write((1, 1))
    lake.archive.run()
    with pytest.raises(UsageError, match="restore or delete"):
        lake.archive.configure(location=f"file://{lake.path}/elsewhere")


def test_a_lake_without_a_hot_tier(tmp_path: Any) -> None:
    """A lake without a hot tier reports that, and how to get one."""
    import tracelake  # noqa: PLC0415  as a user would

    with tracelake.init(tmp_path / "cold") as lake, pytest.raises(UsageError, match="no hot tier"):
        lake.archive.run()


def test_space_comes_back(make: Make) -> None:
    """After a pass the database is smaller, or the next traces reuse the freed space."""
    lake = make("lake")
    texts = [random.Random(number).randbytes(8_000).hex() for number in range(400)]

    def fill(first: int) -> None:
        for number, text in enumerate(texts, first):
            lake.tracking.write([request((number, 1), text=text)])
        lake.commit()

    fill(1)
    full = lake.archive.space().database_bytes
    assert lake.archive.run().fates == {"archived": 400}
    empty, free = lake.archive.space().database_bytes, lake.archive.space().free_bytes
    if lake.tracking.database.is_sqlite:
        assert empty < full
        assert free == 0, "the file has no page that nothing is in"
    else:
        fill(1_000)
        assert lake.archive.space().database_bytes <= max(full, empty) * 1.3
