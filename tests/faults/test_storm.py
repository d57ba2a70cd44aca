"""V2 on a real PostgreSQL that stalls for a while, and the picture of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.faults.storm import Storm, most_overtaken
from tests.faults.storm_picture import draw
from tests.storage.servers.postgres import PostgresServer

SEED = 5
"""`python -m tests.campaigns storm` draws others, and takes longer."""


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """Start a separate server, because no other test may meet a stopped one."""
    started = PostgresServer()
    yield started
    started.close()


def test_v2_every_commit_of_the_storm_completes(server: PostgresServer, tmp_path: Path) -> None:
    """V2: the store stalls while commits arrive; all complete, and the linear history has each exactly once."""
    storm = Storm(rate=8, stall_s=2, seconds=4, seed=SEED, stall_begins_s=1)
    storm.run(server, tmp_path)
    during = [arrival for arrival in storm.arrivals if 1 < arrival.at_s < 3]
    assert len(during) > 5, "commits arrived in the stall"
    assert f"all {len(storm.arrivals)} commits completed" in storm.summary()


def test_overtaking_is_counted() -> None:
    """The worst overtaken commit shows how far new commits may pass old ones."""
    assert most_overtaken(["a", "b", "c"], ["a", "b", "c"]) == 0
    assert most_overtaken(["c", "b", "a"], ["a", "b", "c"]) == 2
    assert most_overtaken(["b", "c", "a", "d"], ["a", "b", "c", "d"]) == 2


def test_the_picture_has_a_point_for_each_commit() -> None:
    """Each storm has a panel with its escaped title, and each commit a point inside the picture."""
    panels = [("1 < 2", [(0.0, 0.01), (6.0, 9.0)]), ("50", [(30.0, 0.2)])]
    picture = ElementTree.fromstring(draw(panels, (5.0, 15.0), 30.0))
    _, _, width, height = map(float, picture.attrib["viewBox"].split())
    points = [node for node in picture.iter() if node.tag.endswith("circle")]
    assert len(points) == 3
    for point in points:
        assert 0 < float(point.attrib["cx"]) < width
        assert 0 < float(point.attrib["cy"]) < height
    assert "1 < 2" in [node.text for node in picture.iter()]
