"""Parts of the index are merged during transactions and all other work, and scores lose replaced rows."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tracelake
from tests.lake.test_lake_search import Killed, found, ingest, scores
from tests.pipeline.spans import a_span
from tracelake import Lake
from tracelake.indexing.build import IndexBuilder
from tracelake.indexing.merge import IndexMerger
from tracelake.search.finalize import finalize
from tracelake.search.protocol import INDEX_FAN_OUT as FAN_OUT
from tracelake.tasks.runners import InProcess
from tracelake.versions.repository import Repository

WORDS = ("work", "only3", '"long tail"', "work AND rare1", "status:error OR rare2", "*")


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Lake]:
    """Return an empty lake of two buckets."""
    with tracelake.init(tmp_path / "lake", buckets=2) as lake:
        yield lake


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a lake, to be copied, with one transaction less than a merge needs."""
    folder = tmp_path_factory.mktemp("filled")
    with tracelake.init(folder / "lake", buckets=2) as lake:
        fill(lake, folder, FAN_OUT - 1)
    return folder / "lake"


@pytest.fixture
def lake(filled: Path, tmp_path: Path) -> Iterator[Lake]:
    """Return a copy of it."""
    with tracelake.open(shutil.copytree(filled, tmp_path / "lake")) as lake:
        yield lake


def merger_of(lake: Lake) -> IndexMerger:
    """Return another merger, like another replica's."""
    stores = lake._opened.stores
    return IndexMerger(IndexBuilder(stores.key_value, stores.objects, 2, InProcess()))


def fill(lake: Lake, folder: Path, transactions: int, first: int = 0) -> None:
    """Ingest transactions with one new span and one replacement of the previous transaction's span."""
    for number in range(first, first + transactions):
        ingest(
            lake,
            folder,
            number,
            a_span(number, 0, note=f"only{number} work"),
            a_span(1_000, 1, end=20 + number, note=f"rare{number} work long tail"),
        )


def same_at_once(folder: Path, transactions: int) -> Lake:
    """Return a lake with the same rows in one transaction, each once: its index is one part."""
    other = tracelake.init(folder / "at-once", buckets=2)
    spans = [a_span(number, 0, note=f"only{number} work") for number in range(transactions)]
    last = transactions - 1
    spans.append(a_span(1_000, 1, end=20 + last, note=f"rare{last} work long tail"))
    ingest(other, folder, 99_999, *spans)
    return other


def counts(lake: Lake) -> tuple[int, int]:
    """Return the numbers of documents and parts in the head's index."""
    info = lake.index()
    assert info is not None
    return info.documents, info.parts


def test_merged_parts_score_as_one_index_over_the_live_rows(lake: Lake, tmp_path: Path) -> None:
    """After a merge the top 100 and their scores equal those of one tantivy index. Before it, replaced rows count;
    older commits keep their scores."""
    assert counts(lake) == (2 * (FAN_OUT - 1), FAN_OUT - 1)
    with same_at_once(tmp_path, FAN_OUT) as other:
        fill(lake, tmp_path, 1, FAN_OUT - 1)
        assert counts(lake) == counts(other) == (FAN_OUT + 1, 1)
        for query in WORDS:
            assert sorted(scores(lake, query)) == sorted(scores(other, query)), query
        before = [hit.score for hit in lake.search("work", at="main~1", limit=1)]
        assert before != [hit.score for hit in lake.search("work", limit=1)], "replaced rows count until then"
        assert found(lake, "work", at="main~1") == found(lake, "work")
    first = lake.log()[0]
    assert (first.committer, first.message) == (
        "index merge",
        f"index merged: from {FAN_OUT} to 1 parts, 1 in all",
    )
    fill(lake, tmp_path, 2, FAN_OUT)
    assert counts(lake) == (FAN_OUT + 5, 3)
    assert found(lake, "only9") == {"a"}
    assert lake.verify().findings == ()


def test_a_run_without_new_input_merges_what_a_killed_one_left(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run killed between the last commit and the merge leaves parts; a run over the same files merges them."""
    with monkeypatch.context() as patch:
        patch.setattr(IndexMerger, "maintain", lambda *_, **__: None)
        fill(lake, tmp_path, 1, FAN_OUT - 1)
    assert counts(lake) == (2 * FAN_OUT, FAN_OUT)
    fill(lake, tmp_path, 1, FAN_OUT - 1)
    assert counts(lake) == (FAN_OUT + 1, 1)


def test_rows_that_were_replaced_leave_the_index_when_they_are_many(
    empty: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of any size are rewritten once too large a share of the index was replaced."""
    for number in range(FAN_OUT):
        ingest(empty, tmp_path, number, *(a_span(n, 0, end=20 + number, note=f"old{n}") for n in range(6)))
    assert counts(empty) == (6, 1)
    ingest(empty, tmp_path, 50, *(a_span(n, 0, end=90, note=f"new{n}") for n in range(4)))
    assert counts(empty) == (10, 2)
    monkeypatch.setattr("tracelake.search.protocol.INDEX_REPLACED_MIN", 1)
    merger_of(empty).maintain()
    assert counts(empty) == (6, 2)
    assert found(empty, "old1 OR new1 OR old5") == {"2", "6"}
    assert empty.verify().findings == ()
    commits = len(empty.log())
    merger_of(empty).maintain()
    assert len(empty.log()) == commits, "then nothing is due"


def in_between(monkeypatch: pytest.MonkeyPatch, step: str, act: Callable[[], None]) -> list[bool]:
    """Run an action just before a step of a merge; return a list that is empty until then."""
    module = {"write_parts": "indexing.build", "finalize": "pipeline.outputs.builtin"}.get(
        step, "indexing.merge"
    )
    holder: Any = Repository if step == "commit_entries" else importlib.import_module(f"tracelake.{module}")
    original = getattr(holder, step)
    done: list[bool] = []

    def after(*args: Any, **options: Any) -> Any:
        if not done:
            done.append(True)
            act()
        return original(*args, **options)

    monkeypatch.setattr(holder, step, after)
    return done


STEPS = ("write_parts", "current_index", "with_lists", "write_marker", "commit_entries", "clean_staging")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("peer_does", ["merge", "ingest", "rebuild"])
def test_beside_a_merge_nothing_is_lost_or_undone(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, peer_does: str
) -> None:
    """The index is complete and merged, for any action of another merger, a pipeline or a rebuild at each step."""
    with monkeypatch.context() as patch:
        patch.setattr(IndexMerger, "maintain", lambda *_, **__: None)
        fill(lake, tmp_path, 1, FAN_OUT - 1)

    def act() -> None:
        with tracelake.open(lake.url) as peer:
            if peer_does == "merge":
                merger_of(peer).maintain()
            elif peer_does == "rebuild":
                peer.maintenance.rebuild_index(runner=InProcess())
            else:
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(IndexMerger, "maintain", lambda *_, **__: None)
                    fill(peer, tmp_path, 1, FAN_OUT)

    with monkeypatch.context() as patch:
        done = in_between(patch, step, act)
        merger_of(lake).maintain()
        assert done
    more = peer_does == "ingest"
    documents, parts = counts(lake)
    seen = more and step == "current_index"  # then it is merged, and its inputs are garbage as well
    assert parts == 1 + (more and not seen)
    assert documents == FAN_OUT + 1 + 2 * more - seen
    if peer_does == "rebuild":
        assert lake.log()[0].committer == "index rebuild", "what a rebuild has done stays"
    assert len(found(lake, "work", limit=100)) == FAN_OUT + 1 + more
    fill(lake, tmp_path, 1, FAN_OUT + more)
    assert counts(lake) == (documents + 2, parts + 1)
    assert lake.verify().findings == ()


@pytest.mark.parametrize("step", STEPS)
def test_a_merge_that_is_killed_leaves_one_complete_index(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A killed merge leaves the old index or the new one; the next run merges all new parts, and garbage is
    collected."""

    def die() -> None:
        raise Killed

    with monkeypatch.context() as patch:
        in_between(patch, step, die)
        with pytest.raises(Killed):
            fill(lake, tmp_path, 1, FAN_OUT - 1)
    assert len(found(lake, "work", limit=100)) == FAN_OUT + 1
    fill(lake, tmp_path, 1, FAN_OUT)
    was_merged = step == "clean_staging"  # then the last transaction followed the merge
    assert counts(lake)[1] == 1 + was_merged
    for _ in range(4):
        lake.maintenance.gc(epoch_min_s=0)
    builds = {info.path.split("/")[3] for info in lake.objects.list("search/spans/parts/")}
    assert len([build for build in builds if build.startswith("rebuild-")]) == 1
    assert list(lake.objects.list("search/spans/staging/")) == []
    assert len(found(lake, "work", limit=100)) == FAN_OUT + 2
    assert lake.verify().findings == ()


def test_a_transaction_that_did_not_see_a_merge_does_not_undo_it_for_good(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is committed with the parts that it had read; the next one, or a merger, returns to the merged parts."""
    with monkeypatch.context() as patch:
        patch.setattr(IndexMerger, "maintain", lambda *_, **__: None)
        fill(lake, tmp_path, 1, FAN_OUT - 1)

    maintain = IndexMerger.maintain

    def merge_late(*args: Any) -> Any:
        made = finalize(*args)
        with tracelake.open(lake.url) as peer:
            maintain(merger_of(peer))
            assert counts(peer)[1] == 1
        return made

    with monkeypatch.context() as patch:
        patch.setattr(IndexMerger, "maintain", lambda *_, **__: None)
        patch.setattr("tracelake.pipeline.outputs.builtin.finalize", merge_late)
        fill(lake, tmp_path, 1, FAN_OUT)
    assert counts(lake)[1] == FAN_OUT + 1
    fill(lake, tmp_path, 1, FAN_OUT + 1)
    assert counts(lake) == (FAN_OUT + 1 + 4, 3)
    assert lake.verify().findings == ()


def test_a_rebuild_takes_over_what_was_merged_with_older_parts_meanwhile(
    empty: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Concurrent transactions may share a part with older ones: each row exists once."""
    fill(empty, tmp_path, 3)

    def act() -> None:
        with tracelake.open(empty.url) as peer:
            fill(peer, tmp_path, FAN_OUT - 2, 3)
            assert counts(peer)[1] == 2

    in_between(monkeypatch, "write_parts", act)
    report = empty.maintenance.rebuild_index(runner=InProcess())
    assert len(found(empty, "work", limit=100)) == FAN_OUT + 2
    assert len(empty.search("work", limit=100)) == FAN_OUT + 2
    for _ in range(4):
        empty.maintenance.gc(epoch_min_s=0)
    fill(empty, tmp_path, 1, FAN_OUT + 1)
    assert len(empty.search("work", limit=100)) == FAN_OUT + 3
    assert report.parts == 3
    assert empty.verify().findings == ()


@pytest.mark.parametrize("step", ["write_parts", "write_marker", "commit_entries"])
def test_a_merge_beside_collections_is_published_whole_or_not_at_all(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """No commit names the objects collected during the merge; the transaction is published all the same."""

    def act() -> None:
        with tracelake.open(lake.url) as peer:
            for _ in range(3):
                peer.maintenance.gc(epoch_min_s=0)

    with monkeypatch.context() as patch:
        in_between(patch, step, act)
        fill(lake, tmp_path, 1, FAN_OUT - 1)
    assert counts(lake)[1] == FAN_OUT
    for _ in range(3):
        lake.maintenance.gc(epoch_min_s=0)
    fill(lake, tmp_path, 1, FAN_OUT)
    assert counts(lake)[1] == 1
    assert len(found(lake, "work", limit=100)) == FAN_OUT + 2
    assert lake.verify().findings == ()


def damaged(lake: Lake, folder: Path) -> None:
    """Alter a byte of a part, then merge, and check that the result is intact and that the log explains it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(IndexMerger, "maintain", lambda *_, **__: None)
        fill(lake, folder, FAN_OUT)
    part = sorted((folder / "lake").glob("**/search/spans/parts/*/*.pack"))[0]
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    merger_of(lake).maintain()
    assert counts(lake) == (FAN_OUT + 1, 1)
    assert found(lake, "only0") == {"1"}
    assert [finding.what for finding in lake.verify().findings] == ["index part"], "older commits keep theirs"
