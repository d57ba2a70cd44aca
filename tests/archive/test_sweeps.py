"""Sweeps delete nothing of another lake in the same repository; an invalid grace period is refused."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from math import inf, nan
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.archive.place import HotLake
from tests.tracking.requests import span_numbers, trace_id
from tracelake._errors import StorageError, UsageError
from tracelake.archive import archive_pass
from tracelake.archive.model import LAYOUTS
from tracelake.archive.repositories import new_attempt, path_of
from tracelake.cli import run
from tracelake.limits import ARCHIVE_GRACE_MAX_S
from tracelake.storage import FileObjectStore, open_objects


def shared(folder: Path, layout: str) -> None:
    """Check that a sweep of one of two lakes keeps the other's archive, and deletes its own garbage."""
    url = f"file://{folder}/repository"
    lakes = [
        HotLake(folder / id, lake_id=id, layout=layout, retention="1m", location=url) for id in ("one", "two")
    ]
    objects = open_objects(url)
    landed_late = path_of(LAYOUTS[layout], "0", trace_id(3), 1, new_attempt("one"))
    objects.put(landed_late, b"")
    for lake in lakes:
        with closing(lake.tracking), closing(lake.lake):
            lake.write((1, 1), (2, 1))
            assert lake.archive.run().fates == {"archived": 2}
            assert lake.archive.sweep(0) == (lake is lakes[0])
    for lake in lakes:
        assert lake.archive.restore(trace_id(1))
        assert span_numbers(lake.tracking.traces([trace_id(1)])[trace_id(1)].data) == [1]
        lake.tracking.close()
    assert objects.head(landed_late) is None


@pytest.mark.parametrize("layout", ["trace", "pack"])
def test_lakes_that_share_a_repository(folders: Iterator[Path], layout: str) -> None:
    """Each object's name contains its lake. Another lake's object has no row here, and is not an orphan."""
    shared(next(folders), layout)


@pytest.mark.parametrize("grace_s", [-1.0, nan, inf, 1e300, ARCHIVE_GRACE_MAX_S + 1])
def test_a_grace_that_makes_no_sense(folders: Iterator[Path], grace_s: float) -> None:
    """It is refused, also by the command, and not with a Python error."""
    lake = HotLake(next(folders), layout="trace")
    with closing(lake.tracking), closing(lake.lake):
        with pytest.raises(UsageError, match="grace"):
            lake.archive.sweep(grace_s)
        assert lake.archive.sweep(ARCHIVE_GRACE_MAX_S) == 0
        minutes = f"--grace-minutes={grace_s / 60!r}"
        assert run(["archive", "sweep", minutes, "--lake", str(lake.path)]) == 2


def test_an_object_that_cannot_be_deleted_now_is_told(
    folders: Iterator[Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The trace is deleted while its spans are still in the repository, and the caller gets a report."""
    lake = HotLake(next(folders), layout="trace", retention="1m")
    with closing(lake.tracking), closing(lake.lake):
        lake.write((1, 1))
        lake.archive.run()

        def away(*_given: object) -> None:
            raise StorageError("the bucket does not answer")

        monkeypatch.setattr(FileObjectStore, "delete", away)
        assert lake.archive.delete([trace_id(1)]) == [trace_id(1)]
        (said,) = caplog.messages[-1:]
        assert said.startswith("unreferenced objects stay in file://")
        assert said.endswith("until `tracelake archive sweep` deletes them: the bucket does not answer")
        assert lake.archive.space().uploads == 1
        monkeypatch.undo()
        assert (lake.archive.sweep(0), lake.archive.space().uploads) == (1, 0)


def away(*_given: object) -> None:
    """Fail like an unreachable bucket."""
    raise StorageError("the bucket does not answer")


def uploads_of_an_outage(lake: HotLake) -> None:
    """Check that passes leave at most a limit and a batch of rows while the repository is unreachable, and none
    afterwards."""
    lake.write(*((number, 1) for number in range(1, 9)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archive_pass, "ARCHIVE_GIVEN_UP_MAX", 4)
        patch.setattr(FileObjectStore, "put", away)
        patch.setattr(FileObjectStore, "delete", away)
        for _ in range(4):
            report = lake.archive.run()
            assert report.fates == {"failed": 8}
            assert lake.archive.space().uploads == 8
        assert "more than 4 abandoned objects cannot be deleted from file://" in str(report.failed_first)
        assert "uploads stop until they can: the bucket does not answer" in str(report.failed_first)
        patch.undo()
        patch.setattr(archive_pass, "ARCHIVE_GIVEN_UP_MAX", 4)
        assert lake.archive.run().fates == {"archived": 8}
    assert (lake.archive.space().uploads, lake.archive.sweep(0)) == (3, 3)
    assert lake.archive.restore(trace_id(8))


def test_rows_of_uploads_are_bounded_while_the_repository_is_away(make: Callable[..., HotLake]) -> None:
    """Each pass once left as many rows as traces; they are deleted before anything else is uploaded."""
    uploads_of_an_outage(make("trace"))


def one_that_stays(lake: HotLake) -> None:
    """Check that an object that cannot be deleted blocks no other."""
    lake.write((1, 1), (2, 1), (3, 1))
    assert lake.archive.run().fates == {"archived": 3}
    delete, asked = FileObjectStore.delete, []

    def but_the_first(objects: FileObjectStore, path: str) -> None:
        asked.append(path)
        if path == asked[0]:
            away()
        delete(objects, path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileObjectStore, "delete", but_the_first)
        assert len(lake.archive.delete([trace_id(1), trace_id(2), trace_id(3)])) == 3
        assert lake.archive.space().uploads == 1
        with pytest.raises(StorageError, match="does not answer"):
            lake.archive.sweep(0)
    assert (lake.archive.sweep(0), lake.archive.space().uploads) == (1, 0)


def test_an_object_that_cannot_be_deleted_keeps_no_other(make: Callable[..., HotLake]) -> None:
    """Other objects are deleted with their rows; an unreachable repository is not called for each of them."""
    one_that_stays(make("trace"))
    lake = make("trace")
    lake.write(*((number, 1) for number in range(1, 9)))
    lake.archive.run()
    asked: list[object] = []

    def counted(*given: object) -> None:
        asked.append(given)
        away()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileObjectStore, "delete", counted)
        patch.setattr(archive_pass, "ARCHIVE_DELETES_FAILED_S", 0.0)
        lake.archive.delete([trace_id(number) for number in range(1, 9)])
    assert len(asked) == 1


def some_that_stay(lake: HotLake) -> None:
    """Check that objects that cannot be deleted, with or without a row, do not block later ones in a sweep.

    The clock advances 20 s at each reading: no two of them fail one after the other.
    """
    objects = open_objects(f"file://{lake.path}/archive")
    delete, stay = FileObjectStore.delete, list[str]()

    def but_some(objects: FileObjectStore, path: str) -> None:
        if path in stay:
            away()
        delete(objects, path)

    numbers = range(1, 9)
    lake.write(*((number, 1) for number in numbers))
    assert lake.archive.run().fates == {"archived": len(numbers)}
    stay += sorted(info.path for info in objects.list(""))[:-1:2]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileObjectStore, "delete", but_some)
        patch.setattr(archive_pass, "time", SimpleNamespace(monotonic=count(0.0, 20.0).__next__))
        assert lake.archive.delete([trace_id(number) for number in numbers])
        assert [info.path for info in objects.list("")] == stay
        for number in range(101, 101 + len(numbers)):
            objects.put(path := path_of("trace", "0", trace_id(number), 1, new_attempt("lake-a")), b"")
            stay += [path] if number % 2 else []
        with pytest.raises(StorageError, match="does not answer"):
            lake.archive.sweep(0)
        assert sorted(info.path for info in objects.list("")) == sorted(stay)
    assert lake.archive.sweep(0) == len(stay)


def test_what_cannot_be_swept_keeps_no_other(make: Callable[..., HotLake]) -> None:
    """A sweep deletes the other objects, for any number of those that stay."""
    some_that_stay(make("trace"))


def test_what_landed_late_is_looked_for_piece_by_piece(
    make: Callable[..., HotLake], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Late uploads are listed in pages, because a repository may not fit in memory; a stopping server does not wait
    for the last page."""
    monkeypatch.setattr(archive_pass, "OBJECTS_LISTED_AT_ONCE", 2)
    lake = make("trace")
    lake.write((8, 1), (9, 1))
    assert lake.archive.run().fates == {"archived": 2}
    objects = open_objects(f"file://{lake.path}/archive")
    for number in range(1, 6):
        objects.put(path_of("trace", "0", trace_id(number), 1, new_attempt("lake-a")), b"")
    assert lake.archive.sweep(0, lambda: True) == 0
    assert (lake.archive.sweep(0), lake.archive.sweep(0)) == (5, 0)
    assert lake.archive.restore(trace_id(8))
    assert lake.archive.restore(trace_id(9))


def test_files_of_killed_archivers_are_deleted_after_a_day(folders: Iterator[Path]) -> None:
    """An archiver that was killed while it wrote leaves a temporary file in the repository."""
    lake = HotLake(next(folders), layout="trace", retention="1m")
    with closing(lake.tracking), closing(lake.lake):
        lake.write((1, 1))
        lake.archive.run()
        folder = lake.path / "archive" / ".tmp"
        for name, age_s in (("old", 25 * 3600), ("new", 3600)):
            (folder / name).write_bytes(b"spans")
            os.utime(folder / name, (time.time() - age_s,) * 2)
        lake.archive.sweep()
        assert [file.name for file in folder.iterdir()] == ["new"]
