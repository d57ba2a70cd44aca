"""Backups of a lake during writes, and their restore."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import tracelake
from tests.archive.place import HotLake
from tests.patience import HANG_S, wait_until
from tests.pipeline.spans import a_line, a_span
from tests.storage.servers.postgres import PostgresServer
from tests.tracking.requests import request, trace_id
from tracelake import ExpiredError, Lake, StorageError, UsageError
from tracelake.lake import backup
from tracelake.lake.backup import restore_backup
from tracelake.search.model import staging_prefix
from tracelake.storage import KeyValueStore
from tracelake.storage.ports import Row
from tracelake.tasks.runners import InProcess
from tracelake.tracking.location import set_up

SPANS = "select count(*) as n from spans"
PAUSE_S = 1.0
"""Time that a write gets before the second snapshot. With the pause of writers it has no effect on the result."""


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    """Start a server."""
    with closing(PostgresServer()) as server:
        yield server


class Work:
    """Concurrent work: a server that acknowledges spans, a pipeline that commits them, compaction and collection."""

    def __init__(self, lake: Lake, url: str | None = None) -> None:
        self.lake = lake
        self.tracking = set_up(lake.objects, lake.config.id, "", url)
        self.acknowledged = 0
        self.errors: list[BaseException] = []
        self.rounds: dict[str, int] = {}
        self._stop = threading.Event()

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Work until the end of the block."""
        threads = [
            threading.Thread(target=self._repeat, args=(do,))
            for do in (self.write, self.commit, self.maintain)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join(HANG_S)
        assert self.errors == []

    def write(self) -> None:
        """Acknowledge two spans of a new trace."""
        self.tracking.write([request((self.acknowledged + 1, 1), (self.acknowledged + 1, 2))])
        self.acknowledged += 2
        self._stop.wait(0.02)

    def commit(self) -> None:
        """Commit pending input."""
        with suppress(ExpiredError):  # collections without a wait expire uploads; the next run uploads again
            self.lake.pipeline(runner=InProcess()).run_once()

    def maintain(self) -> None:
        """Compact all tables, and collect garbage without a wait."""
        with suppress(ExpiredError):
            self.lake.maintenance.compact(runner=InProcess())
        self.lake.maintenance.gc(epoch_min_s=0)

    def _repeat(self, do: Callable[[], None]) -> None:
        while not self._stop.is_set() and not self.errors:
            try:
                do()
            except BaseException as error:  # the test reports it
                self.errors.append(error)
                raise
            self.rounds[do.__name__] = self.rounds.get(do.__name__, 0) + 1


def spans_of(place: Path | str, metadata: str | None = None) -> int:
    """Return the number of spans of a lake after its pipeline has committed all pending input."""
    with tracelake.open(place, metadata=metadata) as lake:
        pipeline = lake.pipeline(runner=InProcess())
        while pipeline.run_once() is not None:
            pass
        assert lake.verify().ok
        return int(lake.sql(SPANS).to_pylist()[0]["n"])


def check_backup_at_work(folder: Path) -> None:
    """Check that a backup during writes is intact, is restored completely, and has everything acknowledged before
    it began."""
    with tracelake.init(folder / "lake", buckets=2) as lake:
        work = Work(lake)
        with work.going_on():
            wait_until(lambda: work.errors or min(map(work.rounds.get, ("commit", "maintain"), (0, 0))) >= 2)
            for number in range(2):
                before = work.acknowledged
                report = lake.backup(folder / f"backup-{number}")
                assert report.verified.findings == ()
                restored = restore_backup(
                    str(folder / f"backup-{number}"), str(folder / f"restored-{number}")
                )
                assert restored.verified.findings == ()
                assert before <= spans_of(folder / f"restored-{number}") <= work.acknowledged + 2


def test_at_work(tmp_path: Path) -> None:
    """See `check_backup_at_work`."""
    check_backup_at_work(tmp_path)


def test_postgres(tmp_path: Path, postgres: PostgresServer) -> None:
    """A lake with both databases in PostgreSQL is backed up during writes, and restored to SQLite and to
    PostgreSQL."""
    url = postgres.url(postgres.new_schema())
    with tracelake.init(tmp_path / "lake", buckets=1, metadata=url) as lake:
        work = Work(lake, url)
        with work.going_on():
            wait_until(lambda: work.errors or work.rounds.get("commit", 0) >= 2)
            before = work.acknowledged
            report = lake.backup(tmp_path / "backup")
        assert report.verified.findings == ()
        with pytest.raises(UsageError, match="already has records of this lake"):
            restore_backup(str(tmp_path / "backup"), str(tmp_path / "again"), metadata=url)
    restore_backup(str(tmp_path / "backup"), str(tmp_path / "sqlite"))
    assert spans_of(tmp_path / "sqlite") >= before
    other = postgres.url(postgres.new_schema())
    restored = restore_backup(str(tmp_path / "backup"), str(tmp_path / "postgres"), metadata=other)
    assert restored.verified.findings == ()
    assert restored.tracking_rows == report.tracking_rows


def test_numbers_of_the_outbox_are_not_used_again(tmp_path: Path) -> None:
    """The restored outbox continues after the last number, even if it is empty, because the journal identifies rows
    by it."""
    hot = HotLake(tmp_path / "lake")
    hot.write((1, 1))
    hot.lake.backup(tmp_path / "backup")
    restore_backup(str(tmp_path / "backup"), str(tmp_path / "restored"))
    with tracelake.open(tmp_path / "restored") as lake:
        set_up(lake.objects, "lake-a", "").write([request((2, 1))])
        pipeline = lake.pipeline(runner=InProcess())
        pipeline.run_once()
        assert lake.sql(SPANS).to_pylist() == [{"n": 2}]
        assert lake.verify().ok


def check_snapshot(folder: Path) -> None:
    """Check that a request which is sent between the snapshots of both databases is in neither.

    Otherwise the journal of the restored lake knows a number that its outbox assigns again, and drops that row.
    """
    hot = HotLake(folder / "lake")
    hot.write((1, 1))
    snapshot, writer = backup._snapshot, threading.Thread(target=hot.write, args=((2, 1),))

    def snapshot_after_write(store: KeyValueStore) -> AbstractContextManager[Iterator[Row]]:
        writer.start()
        writer.join(PAUSE_S)
        return snapshot(store)

    with mock.patch.object(backup, "_snapshot", snapshot_after_write):
        hot.lake.backup(folder / "backup")
    writer.join(HANG_S)
    assert spans_of(folder / "lake") == 2
    restore_backup(str(folder / "backup"), str(folder / "restored"))
    with tracelake.open(folder / "restored") as lake:
        set_up(lake.objects, "lake-a", "").write([request((3, 1))])
    assert spans_of(folder / "restored") == 2
    with tracelake.open(folder / "restored") as lake:
        found = lake.sql("select trace_id from spans order by 1").to_pylist()
    assert found == [{"trace_id": trace_id(1)}, {"trace_id": trace_id(3)}]


def test_snapshots_are_of_one_moment(tmp_path: Path) -> None:
    """Writers pause until the snapshots of both databases have begun."""
    check_snapshot(tmp_path)


def check_commit_after_snapshot(folder: Path) -> None:
    """Check that a transaction which is committed between the snapshot and the copy of its objects is in the backup as
    pending input only.

    Otherwise the restored lake finds an index of a transaction that its journal does not have.
    """
    hot = HotLake(folder / "lake")
    hot.write((1, 1))
    hot.write((2, 1), commit=False)
    copy = backup.copy_snapshot
    staged = f"{staging_prefix('spans', 'spans-0000000001')}part_0-1_a.receipt"

    def copied_before_commit(*given: Any) -> tuple[int, int]:
        result = copy(*given)
        assert spans_of(folder / "lake") == 2
        hot.lake.objects.put(staged, b"as a pipeline writes it before it publishes the index")
        return result

    with mock.patch.object(backup, "copy_snapshot", copied_before_commit):
        assert hot.lake.backup(folder / "backup").verified.ok
    assert not (folder / "backup" / staged).exists()
    restore_backup(str(folder / "backup"), str(folder / "restored"))
    with tracelake.open(folder / "restored") as lake:
        set_up(lake.objects, "lake-a", "").write([request((3, 1))])
    assert spans_of(folder / "restored") == 3
    with tracelake.open(folder / "restored") as lake:
        assert lake.search("*").total == 3


def test_a_commit_after_the_snapshot_is_not_in_the_backup(tmp_path: Path) -> None:
    """See `check_commit_after_snapshot`."""
    check_commit_after_snapshot(tmp_path)


def test_what_is_refused(tmp_path: Path) -> None:
    """A non-empty directory, one inside the lake, and a lake without a database are refused; nothing is
    written."""
    with tracelake.init(tmp_path / "lake") as lake:
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "x").touch()
        for target, problem in (
            (tmp_path / "full", "not an empty directory"),
            (tmp_path / "lake" / "b", "is inside"),
        ):
            with pytest.raises(UsageError, match=problem):
                lake.backup(target)
        lake.backup(tmp_path / "backup")
        with pytest.raises(UsageError, match="is not empty"):
            restore_backup(str(tmp_path / "backup"), str(tmp_path / "full"))
    with (
        tracelake.init("memory://not-in-a-database") as lake,
        pytest.raises(UsageError, match="objects"),
    ):
        lake.backup(tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_backup_that_ends_on_the_way_is_no_lake(tmp_path: Path) -> None:
    """Until everything is copied, the directory does not open as a lake."""
    (tmp_path / "a.jsonl").write_bytes(a_line(a_span(1, 1)))
    with tracelake.init(tmp_path / "lake") as lake:
        lake.ingest(tmp_path / "a.jsonl", runner=InProcess())
        with (
            mock.patch.object(backup, "copy_snapshot", side_effect=StorageError("no space")),
            pytest.raises(StorageError, match="no space"),
        ):
            lake.backup(tmp_path / "backup")
    with pytest.raises(tracelake.LakeNotFoundError):
        tracelake.open(tmp_path / "backup")
