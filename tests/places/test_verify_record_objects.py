"""`verify` of a lake whose metadata are objects: a damaged record is named, and others are read."""

from __future__ import annotations

from pathlib import Path

import pytest

import tracelake
from tests.storage.servers.s3 import S3Server
from tracelake import DamageError, Lake
from tracelake._errors import DamagedRecordsError
from tracelake.storage import ObjectStore, open_objects
from tracelake.storage.object_records import note_path, record_path


@pytest.fixture
def metadata(s3: S3Server) -> ObjectStore:
    """Return the objects that contain the lake's metadata."""
    return open_objects(s3.url())


@pytest.fixture
def lake(tmp_path: Path, metadata: ObjectStore) -> Lake:
    """Return a lake with its metadata in a bucket, that has three tags."""
    lake = tracelake.init(tmp_path / "lake", metadata=metadata.url)
    lake.datasets.create("questions", message="questions")
    for name in ("v1", "v2", "v3"):
        lake.tag(name)
    return lake


def cut(metadata: ObjectStore, path: str) -> None:
    """Cut the end off the object at a path."""
    metadata.put(path, metadata.get(path)[:-1])


def test_each_damaged_record_is_named_and_others_are_read(lake: Lake, metadata: ObjectStore) -> None:
    """Two of three tags are damaged: `verify` names both by their keys, and still verifies the target of the third."""
    assert lake.verify().ok
    for name in ("v1", "v3"):
        cut(metadata, record_path(f"{lake.config.id}/tags", name))
    named = [finding.path for finding in lake.verify().findings]
    assert named == ["tags/v1", "tags/v3"]
    with pytest.raises(DamagedRecordsError, match="1 more are damaged") as raised:
        lake._opened.key_value.scan("tags")
    assert [entry.key for entry in raised.value.whole] == ["v2"]
    with pytest.raises(DamageError):
        lake.tags()


def test_a_record_that_was_copied_over_another_is_named(lake: Lake, metadata: ObjectStore) -> None:
    """A record's object is valid only under its own name."""
    first, second = (record_path(f"{lake.config.id}/tags", name) for name in ("v1", "v2"))
    metadata.copy(second, first)
    assert [finding.path for finding in lake.verify().findings] == ["tags/v1"]


def test_each_damaged_note_is_named(lake: Lake, metadata: ObjectStore) -> None:
    """Damaged notes, such as requests to commit, are named too."""
    for name in ("a", "b", "c"):
        lake._opened.key_value.note("requests/elsewhere", name, b"{}")
    for name in ("a", "c"):
        cut(metadata, note_path(f"{lake.config.id}/requests/elsewhere", name))
    with pytest.raises(DamagedRecordsError) as raised:
        lake._opened.key_value.notes("requests/elsewhere")
    assert [entry.key for entry in raised.value.whole] == ["b"]
    assert [key for key, _ in raised.value.problems] == ["a", "c"]
