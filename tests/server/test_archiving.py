"""The archive in a server: passes by interval and by mark, their failures, and their metrics in `/metrics`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import httpx
import pytest
from sqlalchemy.exc import ProgrammingError

from tests.archive.place import HotLake
from tests.archive.test_archive import tag
from tests.patience import HANG_S, wait_until
from tests.server.client import Client
from tests.server.fake_lake import FakeLake
from tests.server.faults import FaultyStore
from tests.server.process import serving
from tests.server.test_metrics import Samples, scrape
from tracelake._errors import StorageError
from tracelake.archive import scheduler
from tracelake.archive.model import ArchiveReport
from tracelake.archive.retention import ARCHIVE_NOW_TAG
from tracelake.archive.scheduler import Marks
from tracelake.archive.service import LakeArchive
from tracelake.lake.lake import Lake
from tracelake.server.app import create_app
from tracelake.server.archive import ArchiveService
from tracelake.storage import FileObjectStore
from tracelake.tracking.ingest_queue import Inbox

Make = Callable[..., HotLake]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Return a factory of lakes with three hot traces from 1970 and the given archive settings."""
    lakes: list[HotLake] = []

    def of(**archive: str) -> HotLake:
        lake = HotLake(tmp_path / f"lake-{len(lakes)}", **archive)
        lakes.append(lake)
        lake.write((1, 1), (2, 1), (3, 1))
        return lake

    yield of
    for lake in lakes:
        with closing(lake.tracking), closing(lake.lake):
            pass


@pytest.fixture
def start() -> Iterator[Callable[[HotLake], ArchiveService]]:
    """Return a function that starts a server's archive, which stops at the end."""
    started: list[ArchiveService] = []

    def of(lake: HotLake) -> ArchiveService:
        archiving = ArchiveService(lake.lake, 3600.0, poll_s=0.01)
        archiving.start()
        started.append(archiving)
        return archiving

    yield of
    for archiving in started:
        archiving.stop()


def client_of(lake: HotLake, archiving: ArchiveService, store: FaultyStore) -> Client:
    """Return a client of a server with that archive."""
    with closing(Inbox(store, ack_timeout_s=HANG_S)) as inbox:
        return Client(create_app(lake.lake, inbox, archiving=archiving))


def of_archive(samples: Samples) -> dict[str, float]:
    """Return the archive's report."""
    return {
        f"{name.removeprefix('tracelake_archive_')} {label}".strip(): value
        for (name, label), value in samples.items()
        if name.startswith("tracelake_archive_")
    }


def test_what_is_due_is_archived(
    make: Make,
    start: Callable[[HotLake], ArchiveService],
    store: FaultyStore,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A server runs a pass when it starts, with one line in the log and metrics."""
    lake = make(layout="trace", retention="1m")
    with caplog.at_level(logging.INFO, "tracelake.archive"):
        archiving = start(lake)
        wait_until(lambda: archiving.totals.ended_ns)
    assert lake.hot([1, 2, 3]) == []
    lines = [record.getMessage() for record in caplog.records if "archive pass" in record.getMessage()]
    assert len(lines) == 1
    assert lines[0].startswith("archive pass (trace): 3 archived; ")
    figures = of_archive(scrape(client_of(lake, archiving, store)))
    assert figures["passes_total done"] == 1
    assert figures["traces_total archived"] == figures["archived_traces"] == 3
    assert figures["cleared_bytes_total"] == figures["stored_bytes_total"] == figures["archived_bytes"] > 100
    assert figures["last_pass_timestamp_seconds"] == pytest.approx((archiving.totals.ended_ns or 0) / 1e9)
    assert figures["interval_seconds"] == 3600
    assert figures["pass_seconds_total"] > 0
    assert figures["database_bytes"] > 4096
    zero = (
        "passes_total failed",
        "traces_total failed",
        "hot_traces",
        "hot_bytes",
        "failed_traces",
        "uploads",
    )
    assert [figures[name] for name in (*zero, "last_pass_failed")] == [0] * 7


def test_whatever_the_database_raises_the_scheduler_goes_on(
    make: Make, start: Callable[[HotLake], ArchiveService], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler survives foreign errors from the database driver. When they end, it processes marks again."""
    lake = make(layout="lake")

    def refuse(_archive: LakeArchive) -> Marks:
        asked.append(True)
        raise ProgrammingError("SELECT", None, Exception("no such table"))

    asked: list[bool] = []
    with monkeypatch.context() as patched:
        patched.setattr(LakeArchive, "marks", refuse)
        archiving = start(lake)
        wait_until(lambda: len(asked) > 2)
    tag(lake, ARCHIVE_NOW_TAG, "{}")
    wait_until(lambda: not lake.hot([1, 2, 3]))
    assert archiving.totals.passes["failed"] >= 1


def check_going_on() -> None:
    """Check the number of passes without a pause while part of the lake fails, and the last one."""
    passes = [{"archived": 2, "failed": 1}, {"archived": 1}, {"failed": 1}, {"archived": 9}]

    class Archive:
        def run(self, **_wanted: object) -> ArchiveReport:
            return ArchiveReport("lake", dry_run=False, fates=passes.pop(0), goes_on=True)

    archiving = ArchiveService(
        cast("Lake", SimpleNamespace(archive=Archive(), hot=SimpleNamespace(is_there=True)))
    )
    assert [archiving._turn(False), archiving._turn(False), archiving._turn(False)] == [True, True, False]
    assert archiving.totals.passes == {"failed": 2, "done": 1}
    assert [each.state for each in archiving.operations.newest()] == ["failed", "done", "failed"]


def test_what_fails_keeps_no_others_for_the_interval() -> None:
    """A pass that archived up to its limit is followed by the next at once, despite failures; a pass with only
    failures is not."""
    check_going_on()


def test_a_mark_is_taken_between(make: Make, start: Callable[[HotLake], ArchiveService]) -> None:
    """An experiment marked archiveNow does not wait for the interval, and its mark is removed."""
    lake = make(layout="lake")
    archiving = start(lake)
    wait_until(lambda: archiving.totals.ended_ns)
    assert lake.hot([1, 2, 3]) == [1, 2, 3], "without a retention nothing is due"
    tag(lake, ARCHIVE_NOW_TAG, "{}")
    wait_until(lambda: not lake.hot([1, 2, 3]))
    wait_until(lambda: archiving.totals.passes["done"] == 2)
    assert [each.asked_by for each in archiving.operations.newest()] == ["archiveNow", "interval"]
    assert lake.archive.marks() == frozenset()


def test_a_pass_that_fails_is_told_until_one_goes_well(
    make: Make, store: FaultyStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A failed pass is reported in the log, by /readyz and by /metrics until one succeeds. The traces stay hot, and
    the server accepts requests."""
    lake = make(layout="pack", retention="1m", location=f"file://{tmp_path}/repository")
    (tmp_path / "repository" / "packs").write_text("no directory")
    archiving = ArchiveService(lake.lake)
    client = client_of(lake, archiving, store)

    def warning() -> str:
        return str(client.get("/readyz").json()["warning"] or "")

    assert warning() == ""
    with caplog.at_level(logging.INFO, "tracelake.archive"):
        operation = archiving.begin_pass()
        wait_until(lambda: operation.state == "failed")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert (operation.result or {})["traces"] == {"failed": 3}
    assert "3 traces stay hot: trace 0000" in caplog.text
    assert "3 traces stay hot: trace 0000" in warning()
    figures = of_archive(scrape(client))
    assert (figures["passes_total failed"], figures["traces_total failed"]) == (1, 3)
    assert (figures["last_pass_failed"], figures["hot_traces"]) == (1, 3)
    (tmp_path / "repository" / "packs").unlink()
    archiving.operations.wait(archiving.begin_pass(experiment="none such"), HANG_S)
    assert warning(), "a pass over something else does not show that all is well"
    archiving.operations.wait(archiving.begin_pass(), HANG_S)
    assert warning() == ""
    assert lake.hot([1, 2, 3]) == []
    assert of_archive(scrape(client))["last_pass_failed"] == 0


def check_sweeps(lake: HotLake, caplog: pytest.LogCaptureFixture) -> None:
    """Check that a server deletes objects that could not be deleted before, and reports those that still cannot."""
    lake.archive.run()

    def away(*_given: object) -> None:
        raise StorageError("the bucket does not answer")

    caplog.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileObjectStore, "delete", away)
        patch.setattr(scheduler, "ARCHIVE_SWEEP_EACH_S", 0.01)
        lake.archive.delete(sorted(each.trace_id for each in lake.archive.traces()))
        assert lake.archive.space().uploads == 3
        archiving = ArchiveService(lake.lake, 0.01, poll_s=0.01)
        archiving.start()
        try:
            wait_until(lambda: "could not be swept: the bucket does not answer" in caplog.text)
            patch.undo()
            patch.setattr(scheduler, "ARCHIVE_SWEEP_EACH_S", 0.01)
            wait_until(lambda: lake.archive.space().uploads == 0)
            wait_until(
                lambda: any(
                    (each.kind, each.asked_by, each.result) == ("sweep", "interval", {"deleted_objects": 0})
                    for each in archiving.operations.newest()
                )
            )
        finally:
            archiving.stop()


def test_a_server_sweeps_by_itself(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    """A server sweeps leftovers of passes, restores and deletions without a request, once they can be deleted."""
    check_sweeps(make(layout="trace", retention="1m"), caplog)


def test_a_store_that_is_away_is_told(
    make: Make, store: FaultyStore, caplog: pytest.LogCaptureFixture
) -> None:
    """A pass that cannot begin is one line of the log, not a traceback, and the next one runs all the same."""
    lake = make(retention="1m")
    archiving = ArchiveService(lake.lake, 0.001)
    with lake.tracking.database.writing() as connection:
        connection.exec_driver_sql("ALTER TABLE tracelake_archive_settings RENAME TO away")
    archiving.start()
    wait_until(lambda: archiving.totals.passes["failed"] > 2)
    assert "retried in 0.001 s" in (archiving.problem() or "")
    assert not any(record.exc_info for record in caplog.records)
    figures = of_archive(scrape(client_of(lake, archiving, store)))
    assert figures["last_pass_failed"] == 1
    with lake.tracking.database.writing() as connection:
        connection.exec_driver_sql("ALTER TABLE away RENAME TO tracelake_archive_settings")
    wait_until(lambda: archiving.problem() is None)
    archiving.stop()
    assert lake.hot([1, 2, 3]) == []


def test_a_lake_without_a_hot_tier_has_no_archive(store: FaultyStore) -> None:
    """No pass runs, and nothing is reported."""
    lake = FakeLake([])
    archiving = ArchiveService(lake, 0.001)
    archiving.start()
    with closing(Inbox(store, ack_timeout_s=HANG_S)) as inbox:
        assert of_archive(scrape(Client(create_app(lake, inbox, archiving=archiving)))) == {}
    archiving.stop()
    assert archiving.operations.newest() == []


def test_a_server_process_archives_and_ends(make: Make) -> None:
    """A real server archives, and ends cleanly after SIGTERM."""
    lake = make(layout="lake", retention="1m")
    with serving(lake.path, hot=True) as server:
        wait_until(
            lambda: (
                "\ntracelake_archive_archived_traces 3.0\n"
                in httpx.get(f"{server.url}/metrics", timeout=HANG_S).text
            )
        )
        assert server.stop() == (0, "closed\n")
    assert lake.hot([1, 2, 3]) == []
