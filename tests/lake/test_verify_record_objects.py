"""`verify` of a lake whose metadata are objects: a damaged record is named, and others are read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import tracelake
from tracelake import DamageError, Lake
from tracelake._errors import DamagedRecordsError
from tracelake.storage.object_records import note_path, record_path


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Return a lake in a directory, without a database, that has three tags and three requests."""
    lake = tracelake.init(tmp_path / "lake", metadata=(tmp_path / "metadata").as_uri())
    lake.datasets.create("questions", message="questions")
    for name in ("v1", "v2", "v3"):
        lake.tag(name)
    return lake


def cut(folder: Path, path: str) -> None:
    """Cut the end off the object at a path, or off its newest version."""
    file = folder / path
    newest = max(file.iterdir()) if file.is_dir() else file
    newest.write_bytes(newest.read_bytes()[:-1])


def test_each_damaged_record_is_named_and_others_are_read(lake: Lake, tmp_path: Path) -> None:
    """Two of three tags are damaged: `verify` names both by their keys, and still verifies the target of the third."""
    assert lake.verify().ok
    metadata = tmp_path / "metadata"
    for name in ("v1", "v3"):
        cut(metadata, record_path(f"{lake.config.id}/tags", name))
    named = [finding.path for finding in lake.verify().findings]
    assert named == ["tags/v1", "tags/v3"]
    with pytest.raises(DamagedRecordsError, match="1 more are damaged") as raised:
        lake._opened.key_value.scan("tags")
    assert [entry.key for entry in raised.value.whole] == ["v2"]
    with pytest.raises(DamageError):
        lake.tags()


def test_a_record_that_was_copied_over_another_is_named(lake: Lake, tmp_path: Path) -> None:
    """A record's file is valid only under its own name, and a record's version only under its own number."""
    tags = tmp_path / "metadata"
    first, second = (tags / record_path(f"{lake.config.id}/tags", name) for name in ("v1", "v2"))
    newest = max(first.iterdir())
    shutil.copy(max(second.iterdir()), newest)
    shutil.copy(max(second.iterdir()), second / f"{int(max(second.iterdir()).name) + 1:012}")
    assert [finding.path for finding in lake.verify().findings] == ["tags/v1", "tags/v2"]


def test_each_damaged_note_is_named(lake: Lake, tmp_path: Path) -> None:
    """Damaged notes, such as requests to commit, are named too."""
    for name in ("a", "b", "c"):
        lake._opened.key_value.note("requests/elsewhere", name, b"{}")
    for name in ("a", "c"):
        cut(tmp_path / "metadata", note_path(f"{lake.config.id}/requests/elsewhere", name))
    with pytest.raises(DamagedRecordsError) as raised:
        lake._opened.key_value.notes("requests/elsewhere")
    assert [entry.key for entry in raised.value.whole] == ["b"]
    assert [key for key, _ in raised.value.problems] == ["a", "c"]
