"""Datasets on a branch with the sealed commit of a killed client, or with an unsafe staged entry."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.datasets.conversations import a_lake, ids
from tests.versions.test_poison import asked, put_on_list
from tracelake import Lake
from tracelake.datasets.files import write_file
from tracelake.datasets.model import example_path
from tracelake.versions.branch_store import MAIN, new_token
from tracelake.versions.model import Change, Epoch, FileAt
from tracelake.versions.tree import file_path

COAT = ids(0, 1)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """Return a lake of conversations."""
    with a_lake(tmp_path) as lake:
        yield lake


def test_what_waits_to_be_built_is_there(lake: Lake) -> None:
    """After a committer was killed just after sealing, dataset and examples are found and not made again."""
    refunds = lake.datasets.create("refunds")
    refunds.add(spans=[COAT[-16:]], metadata={"kind": "coat"})
    put_on_list(lake._opened.repository, asked("killed", Change(staged=True)))
    assert [info.name for info in lake.datasets.all()] == ["refunds"]
    assert refunds.add(spans=[COAT[-16:]]).known == 1
    lake.branch("main").commit("made, at last", allow_empty=True)
    (example,) = refunds.examples()
    assert example.metadata["kind"] == "coat"
    assert lake.branch("main").staged() == []


def test_an_example_that_the_next_commit_leaves_out_is_none_yet(lake: Lake) -> None:
    """If a killed writer's late example lost its file, adding the span again makes it."""
    refunds = lake.datasets.create("refunds", message="made")
    repository = lake._opened.repository
    path = example_path("refunds", COAT)
    late = write_file(lake.objects, b"{}", repository.epoch())
    for _ in range(3):
        lake.maintenance.gc(epoch_min_s=0)
    repository._records.stage(repository.branch().staging, path, late)
    assert lake.objects.head(file_path(late)) is None
    assert list(refunds.examples(staged=True)) == []
    assert lake.verify().findings == ()
    assert refunds.add(spans=[COAT[-16:]], message="added").known == 0
    assert [example.id for example in refunds.examples()] == [COAT]


def test_an_example_is_known_where_the_next_commit_has_it(lake: Lake) -> None:
    """A late example whose file still exists is staged again by the client that finds it, so it is not collected."""
    refunds = lake.datasets.create("refunds", message="made")
    refunds.add(spans=[COAT[-16:]])
    repository = lake._opened.repository
    ((path, named),) = repository.staged()
    assert isinstance(named, FileAt)
    repository._records.advance(lambda epoch: Epoch(epoch.number + 2))
    at = repository._records.read(MAIN)
    raised = replace(at.record, epoch=repository.epoch(), staging=new_token())
    assert repository._records.swap(MAIN, at, raised, is_mine=lambda _: False)[0]
    repository._records.stage(raised.staging, path, named)
    assert refunds.add(spans=[COAT[-16:]]).known == 1
    lake.objects.delete(file_path(named))
    assert len(list(refunds.examples(staged=True))) == 1
    lake.branch("main").commit("all")
    assert [example.id for example in refunds.examples()] == [COAT]


def test_an_example_that_was_staged_long_ago_is_whole_when_it_is_committed(lake: Lake) -> None:
    """An example staged long ago gets a new file at its commit, and the old file is collected; `verify` passes."""
    refunds = lake.datasets.create("refunds", message="made")
    refunds.add(spans=[COAT[-16:]])
    for _ in range(3):
        lake.maintenance.gc(epoch_min_s=0)
    lake.branch("main").commit("after a while")
    for _ in range(3):
        lake.maintenance.gc(epoch_min_s=0)
    assert lake.verify().findings == ()
    assert [example.id for example in refunds.examples()] == [COAT]
