"""A lake that was moved together with its repository: its archived traces can be restored and deleted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import tracelake
from tests.archive.place import HotLake
from tests.tracking.requests import span_numbers, trace_id
from tracelake.tracking.location import find_tracking


def moved(folder: Path, layout: str) -> None:
    """Check a moved lake's reports and actions on traces archived before."""
    was = HotLake(folder / "was", layout=layout, retention="1m")
    with closing(was.tracking), closing(was.lake):
        was.write((1, 1), (1, 2), (2, 1))
        assert was.archive.run().fates == {"archived": 2}
    (folder / "was").rename(folder / "now")
    with closing(tracelake.open(folder / "now")) as lake:
        tracking = find_tracking(lake.objects)
        assert tracking is not None
        with closing(tracking):
            assert lake.verify().findings == ()
            assert lake.archive.restore(trace_id(1))
            assert span_numbers(tracking.traces([trace_id(1)])[trace_id(1)].data) == [1, 2]
            assert lake.archive.delete([trace_id(2)]) == [trace_id(2)]
            assert not [info.path for info in lake.objects.list("archive/")], "nobody names them any more"


@pytest.mark.parametrize("layout", ["trace", "pack"])
def test_a_lake_can_be_moved(folders: Iterator[Path], layout: str) -> None:
    """A location names the old place, which cannot be changed: its object is found by its own name."""
    moved(next(folders), layout)
