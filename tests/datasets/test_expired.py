"""Adding examples during garbage collection: objects collected before they are staged are written again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.datasets.conversations import a_lake, ingest, talk
from tracelake import Dataset, ExpiredError, Lake
from tracelake.datasets.dataset import create
from tracelake.datasets.files import FILES_EXPIRED_TRIES_MAX
from tracelake.datasets.model import DatasetSpec
from tracelake.versions.gc import RepositoryCollector
from tracelake.versions.repository import Repository

_EFFECTS = ("put", "create", "copy", "delete", "set", "set_if", "delete_if")


class Collecting:
    """Stores of a lake in which garbage is collected a number of times before some effects of others."""

    def __init__(self, lake: Lake, *at: int, every: int = 0, times: int = 1) -> None:
        self.lake, self.at, self.every, self.times = lake, at, every, times
        self.effects = 0
        self.lock = threading.Lock()

    def dataset(self, name: str) -> Dataset:
        """Return a dataset with these effects."""
        dataset, objects = self.lake.datasets._dataset(name, "main"), self._watched(self.lake.objects)
        dataset._objects = objects
        dataset._repository = Repository(self._watched(self.lake._opened.key_value), objects)
        return dataset

    def _watched(self, store: Any) -> Any:
        return _Watched(store, self._act)

    def _act(self, call: Any, *args: Any, **named: Any) -> Any:
        with self.lock:
            self.effects += 1
            if self.effects in self.at or (self.every and self.effects % self.every == 0):
                for _ in range(self.times):
                    RepositoryCollector(self.lake._opened.key_value, self.lake.objects).collect(epoch_min_s=0)
        return call(*args, **named)


class _Watched:
    def __init__(self, store: Any, act: Any) -> None:
        self._store, self._act = store, act

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._store, name)
        return partial(self._act, call) if name in _EFFECTS else call


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """Return a lake with fifty more questions."""
    with a_lake(tmp_path) as lake:
        ingest(
            lake, tmp_path, *(talk(100 + n, 0, f"question {n:02}", "yes", start=n + 10) for n in range(50))
        )
        yield lake


@pytest.mark.parametrize("every", [40, 90])
def test_fifty_examples_are_added_beside_collections_again_and_again(lake: Lake, every: int) -> None:
    """All fifty examples are added and committed although collections repeatedly run between effects."""
    lake.datasets.create("many", message="a dataset")
    world = Collecting(lake, every=every)
    report = world.dataset("many").add(where="starts_with(input, 'question')", message="added")
    assert report.added == 50
    assert world.effects > 100
    for _ in range(3):
        lake.maintenance.gc(epoch_min_s=0)
    found = [example.input for example in lake.datasets.get("many", report.commit or "").examples()]
    assert found == [f"question {n:02}" for n in range(50)]
    assert lake.branch("main").staged() == []
    assert lake.verify().findings == ()


def test_collections_between_any_two_effects_of_adding_and_creating(lake: Lake) -> None:
    """If three collections delete all unreachable objects, the dataset is created, written and staged again."""
    position = 0
    while True:
        position += 1
        name = f"d{position}"
        world = Collecting(lake, position, times=3)
        create(world.dataset(name), DatasetSpec(name, "made"), "made")
        report = world.dataset(name).add(search="refund", message="added")
        assert report.added == 3
        assert len(list(lake.datasets.get(name, report.commit or "").examples())) == 3
        assert lake.branch("main").staged() == []
        if world.effects < position:
            break
    assert position > 8
    assert lake.verify().findings == ()


def test_one_upload_that_is_always_too_slow_is_given_up(lake: Lake) -> None:
    """If collections come before each effect, the upload fails after a bounded number of tries."""
    lake.datasets.create("one", message="a dataset")
    world = Collecting(lake, every=1, times=3)
    with pytest.raises(ExpiredError, match="garbage collection ran twice"):
        world.dataset("one").add(search="weather", message="added")
    assert FILES_EXPIRED_TRIES_MAX <= world.effects < 5 * FILES_EXPIRED_TRIES_MAX
