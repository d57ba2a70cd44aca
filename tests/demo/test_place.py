"""Lakes that the demo may empty."""

from __future__ import annotations

from pathlib import Path

import pytest

import tracelake
from tracelake._errors import UsageError
from tracelake.demo.run import MARK, demo_lake


def lake_id(place: Path) -> str:
    """Return the identity of the lake there."""
    with tracelake.open(place) as lake:
        return lake.config.id


@pytest.mark.parametrize(("fresh", "emptied"), [(None, True), (True, True), (False, False)])
def test_its_own_lake(tmp_path: Path, fresh: bool | None, emptied: bool) -> None:
    """A lake that the demo made is emptied at the start, unless an option keeps it."""
    place = tmp_path / "lake"
    with demo_lake(str(place), fresh=None):
        before = lake_id(place)
    with demo_lake(str(place), fresh=fresh):
        assert (lake_id(place) != before) == emptied
        assert (place / MARK).exists()


def test_someone_elses_lake_is_kept(tmp_path: Path) -> None:
    """A lake that the demo did not make is used unchanged, and emptying it is refused."""
    tracelake.init(tmp_path / "lake").close()
    before = lake_id(tmp_path / "lake")
    with demo_lake(str(tmp_path / "lake"), fresh=None):
        assert lake_id(tmp_path / "lake") == before
    with (
        pytest.raises(UsageError, match="not made by the demo"),
        demo_lake(str(tmp_path / "lake"), fresh=True),
    ):
        pass
    assert lake_id(tmp_path / "lake") == before


def test_someone_elses_directory_is_kept(tmp_path: Path) -> None:
    """A directory with other files is refused, and all of them stay unchanged."""
    (tmp_path / "file").write_text("mine")
    for fresh in (None, True, False):
        with pytest.raises(UsageError), demo_lake(str(tmp_path), fresh=fresh):
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_one_demo_at_a_time(tmp_path: Path) -> None:
    """While one demo runs, another one neither empties its lake nor uses it."""
    place = tmp_path / "lake"
    with demo_lake(str(place), fresh=None):
        for fresh in (None, False):
            with pytest.raises(UsageError, match="a demo is running"), demo_lake(str(place), fresh=fresh):
                pass
        assert lake_id(place)
