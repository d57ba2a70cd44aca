"""What a sweep takes: nothing of another lake that has the same repository; a grace that makes no sense is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from math import inf, nan
from pathlib import Path

import pytest

from tests.archive.place import HotLake
from tests.broken import Broken, assert_caught
from tests.tracking.requests import span_numbers, trace_id
from tracelake._errors import StorageError, UsageError
from tracelake.archive.layouts import is_of, new_attempt, path_of
from tracelake.archive.model import LAYOUTS
from tracelake.cli import run
from tracelake.limits import ARCHIVE_GRACE_MAX_S
from tracelake.storage import FileObjectStore, open_objects


def shared(folder: Path, layout: str) -> None:
    """Check that a sweep of one of two lakes leaves what the other one has archived, and takes what is its own."""
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
    """Each object tells by its name whose it is: of another lake's no row is known here, and it is no orphan."""
    shared(next(folders), layout)
    broken = Broken("whose it is", is_of, "(match[1] or match[2]).startswith(_mark_of(lake_id))", "True")
    assert_caught(broken, lambda: shared(next(folders), layout))


@pytest.mark.parametrize("grace_s", [-1.0, nan, inf, 1e300, ARCHIVE_GRACE_MAX_S + 1])
def test_a_grace_that_makes_no_sense(folders: Iterator[Path], grace_s: float) -> None:
    """It is refused, by the command too, and not an error of Python's."""
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
    """The trace is gone, and its spans are in the repository still: who deleted it hears of that."""
    lake = HotLake(next(folders), layout="trace", retention="1m")
    with closing(lake.tracking), closing(lake.lake):
        lake.write((1, 1))
        lake.archive.run()

        def away(*_given: object) -> None:
            raise StorageError("the bucket does not answer")

        monkeypatch.setattr(FileObjectStore, "delete", away)
        assert lake.archive.delete([trace_id(1)]) == [trace_id(1)]
        (said,) = caplog.messages[-1:]
        assert said.startswith("what no trace names any more is still in file://")
        assert said.endswith("until `tracelake archive sweep` takes it away: the bucket does not answer")
        assert lake.archive.space().uploads == 1
        monkeypatch.undo()
        assert (lake.archive.sweep(0), lake.archive.space().uploads) == (1, 0)
