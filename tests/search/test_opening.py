"""An index that stays open: the next manifest costs only its new parts, and searchers keep theirs."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path

import pytest

from tests.search.build_inputs import INDEX, finalize_build, span, table
from tracelake._errors import DamageError
from tracelake.limits import PART_COPY_IDLE_MIN_S
from tracelake.scratch import delete_directory
from tracelake.search.analyzers import WHITESPACE
from tracelake.search.build import build_part
from tracelake.search.finalize import read_list
from tracelake.search.model import ListRef, Manifest, PartRef
from tracelake.search.open_index import OpenIndex
from tracelake.search.part_cache import MAPS_PER_PART, link
from tracelake.search.searcher import Searcher
from tracelake.storage.local import MemoryObjectStore
from tracelake.storage.ports import ObjectStore

OBJECTS = MemoryObjectStore()


@pytest.fixture(scope="module")
def manifests() -> list[Manifest]:
    """Return the manifests of twelve one-span transactions; the last parts are in a list."""
    made: list[Manifest] = []
    for number in range(12):
        build = f"spans-{number:010d}"
        build_part(OBJECTS, INDEX, build, 0, 1, "a", table([span(number, input=f"common only{number}")]))
        parent = made[-1] if made else None
        made.append(finalize_build(OBJECTS, 1, build=build, upper=number + 1, parent=parent))
    assert made[-1].lists
    return made


def found(searcher: Searcher) -> int:
    """Return the number of spans."""
    return len(searcher.search("common", 100))


def test_only_what_is_new_is_linked_and_mapped(
    manifests: list[Manifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Open parts stay open, an earlier searcher answers as before, and parts in no manifest are closed."""
    linked: list[str] = []

    def counted(source: Path, target: Path) -> None:
        linked.append(target.name)
        link(source, target)

    monkeypatch.setattr("tracelake.search.part_cache.link", counted)
    index = OpenIndex(OBJECTS, tmp_path)
    before = Searcher(OBJECTS, manifests[9], index)
    assert len(linked) == 10 * MAPS_PER_PART
    after = Searcher(OBJECTS, manifests[11], index)
    assert len(linked) == 12 * MAPS_PER_PART
    assert (found(before), found(after)) == (10, 12)
    back = Searcher(OBJECTS, manifests[2], index)
    assert len(linked) == 12 * MAPS_PER_PART
    (directory,) = tmp_path.glob("open-*")
    assert len(list(directory.glob("*.idx"))) == 3
    assert [found(each) for each in (before, after, back)] == [10, 12, 3]
    paths = {
        line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(".idx")
    }
    # the others have no name left
    assert len({path for path in paths if path.startswith(str(tmp_path))}) in (
        0,
        3,
    )
    del index, before, after, back
    assert not list(tmp_path.glob("open-*"))


@pytest.mark.parametrize("gone", ["links", "cache", "meta"])
def test_what_was_swept_away_is_brought_back(manifests: list[Manifest], tmp_path: Path, gone: str) -> None:
    """The cache may be deleted at any time, and another process may take old links for a dead process's."""
    index = OpenIndex(OBJECTS, tmp_path / "cache")
    before = Searcher(OBJECTS, manifests[3], index)
    for directory in (tmp_path / "cache").glob("open-*" if gone != "cache" else "*"):
        if gone == "meta":
            (directory / "meta.json").unlink()
        else:
            delete_directory(directory)
    after = Searcher(OBJECTS, manifests[7], index)
    assert (found(before), found(after)) == (4, 8)


def check_another_analyzer(manifests: list[Manifest], folder: Path) -> None:
    """Open an index that was rebuilt with another analyzer, and continue with it for long."""
    build = f"spans-{uuid.uuid4().hex}"
    rows = table([span(number, input="common") for number in range(3)])
    build_part(OBJECTS, INDEX, build, 0, 1, "a", rows, analyzer=WHITESPACE)
    anew = finalize_build(OBJECTS, 1, build=build, upper=3, analyzer=WHITESPACE)
    index = OpenIndex(OBJECTS, folder)
    before = Searcher(OBJECTS, manifests[5], index)
    assert found(Searcher(OBJECTS, anew, index)) == 3
    assert len(list(folder.glob("open-*"))) == 2, "older commits are asked as before"
    for links in index._links.values():
        links.used_s -= PART_COPY_IDLE_MIN_S + 1
    assert found(Searcher(OBJECTS, anew, index)) == 3
    assert list(index._links) == [WHITESPACE.name]
    assert found(before) == 6, "who has it open keeps it"
    del before
    assert len(list(folder.glob("open-*"))) == 1
    assert found(Searcher(OBJECTS, manifests[5], index)) == 6


def test_what_nobody_asks_of_another_analyzer_is_let_go(manifests: list[Manifest], tmp_path: Path) -> None:
    """Otherwise, a rebuilt index would stay twice, on disk and in memory maps, as long as the process lives."""
    check_another_analyzer(manifests, tmp_path / "whole")


def test_searchers_of_several_manifests_may_be_opened_at_once(
    manifests: list[Manifest], tmp_path: Path
) -> None:
    """Each concurrently opened searcher has exactly its manifest's parts."""
    index = OpenIndex(OBJECTS, tmp_path)
    wrong: list[tuple[int, int]] = []

    def run(first: int) -> None:
        for number in (first, 11 - first, first):
            seen = found(Searcher(OBJECTS, manifests[number], index))
            if seen != number + 1:
                wrong.append((number, seen))

    threads = [threading.Thread(target=run, args=(first,)) for first in (0, 3, 7, 11)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_lists_are_read_once(
    manifests: list[Manifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list shared with the previous manifest is not read again."""
    read: list[str] = []

    def counted(objects: ObjectStore, ref: ListRef) -> tuple[PartRef, ...]:
        read.append(ref.path)
        return read_list(objects, ref)

    monkeypatch.setattr("tracelake.search.open_index.read_list", counted)
    index = OpenIndex(OBJECTS, tmp_path)
    for _ in range(2):
        assert found(Searcher(OBJECTS, manifests[11], index)) == 12
    assert len(read) == len(manifests[11].lists)


@pytest.mark.parametrize("harm", ["truncated", "flipped", "gone"])
def test_what_becomes_of_the_store_meanwhile_changes_no_open_searcher(tmp_path: Path, harm: str) -> None:
    """Open searchers and users of their copies still answer; others get an error that names the missing part (F14)."""
    objects = MemoryObjectStore()
    build_part(objects, INDEX, "spans-0", 0, 1, "a", table([span(1, input="common words")]))
    manifest = finalize_build(objects, 1, build="spans-0")
    before, later = (Searcher(objects, manifest, tmp_path / "one", at_once=once) for once in (True, False))
    [part] = manifest.newest
    data = objects.get(part.path)
    objects.delete(part.path)
    if harm != "gone":
        middle = len(data) // 2
        flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        objects.put(part.path, flipped if harm == "flipped" else data[:middle])
    for searcher in (before, later, Searcher(objects, manifest, tmp_path / "one")):
        assert len(searcher.search('"common words"', 10)) == 1
    with pytest.raises(DamageError, match=part.path):
        Searcher(objects, manifest, tmp_path / "another")
