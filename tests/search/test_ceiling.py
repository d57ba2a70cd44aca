"""An index of more parts than a process can map is refused early, and never reported as damaged."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.search.build_inputs import index_of, span, table
from tests.search.embedders import HERE
from tracelake._errors import LimitError, StorageError
from tracelake.doctor.doctor import check_index
from tracelake.results import IndexInfo
from tracelake.search import part_cache
from tracelake.search.model import Manifest
from tracelake.search.part_cache import INDEX_MAPS_KEPT_FREE
from tracelake.search.searcher import Searcher
from tracelake.search.vectors import load
from tracelake.storage.local import MemoryObjectStore


@pytest.fixture
def allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file with the process's map limit, set so that three parts can be opened."""
    path = tmp_path / "max_map_count"
    path.write_text(f"{INDEX_MAPS_KEPT_FREE + 3 * part_cache.MAPS_PER_PART}\n")
    monkeypatch.setattr(part_cache, "_ALLOWED", path)
    # Mappings of other tests in this process must not count.
    (tmp_path / "used").touch()
    monkeypatch.setattr(part_cache, "_USED", tmp_path / "used")
    return path


@pytest.fixture
def four() -> tuple[MemoryObjectStore, Manifest]:
    """Return an index of four parts."""
    return index_of([table([span(n)]) for n in range(4)])


def test_one_part_too_many_is_refused_before_anything_is_fetched(
    four: tuple[MemoryObjectStore, Manifest], allowed: Path, tmp_path: Path
) -> None:
    """The error gives the number of parts, the limit and a remedy; a machine that allows more opens them."""
    objects, manifest = four
    assert part_cache.ceiling() == 3
    with pytest.raises(
        LimitError, match=r"has 4 parts, and this machine can open 3 .*Nothing is damaged: .*rebuild"
    ):
        Searcher(objects, manifest, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
    allowed.write_text("65530")
    assert part_cache.ceiling() == 10_588
    assert len(Searcher(objects, manifest, tmp_path / "cache").search("*", 10)) == 4


def test_what_the_process_has_open_counts(
    allowed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Maps of other searchers reduce the limit, beyond the reserve."""
    used = tmp_path / "maps"
    monkeypatch.setattr(part_cache, "_USED", used)
    used.write_bytes(b"a map\n" * INDEX_MAPS_KEPT_FREE)
    part_cache.check_ceiling(3, 3)
    used.write_bytes(b"a map\n" * (INDEX_MAPS_KEPT_FREE + 1))
    with pytest.raises(LimitError):
        part_cache.check_ceiling(3, 3)
    part_cache.check_ceiling(3, 2)
    allowed.write_text("none")
    part_cache.check_ceiling(1_000_000, 1)
    used.unlink()
    allowed.unlink()
    assert part_cache.ceiling() is None


@pytest.mark.parametrize(
    "said", ["Cannot allocate memory (os error 12)", "Too many open files (os error 24)"]
)
def test_a_system_that_has_no_more_to_give_is_no_damage(
    four: tuple[MemoryObjectStore, Manifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    """The error is the same if opening fails because maps or file descriptors have run out."""

    def fail(*_: object) -> None:
        raise ValueError(f"Failed to open file for read: 'IoError {{ io_error: {said} }}'")

    monkeypatch.setattr("tracelake.search.open_index.open_index", fail)
    with pytest.raises(LimitError, match="Nothing is damaged"):
        Searcher(*four, tmp_path)


def check_blocks_count(allowed: Path, folder: Path) -> None:
    """Check that vectors need one map more for each part: if these are too many, only word search works."""
    settings = load(f"{HERE}:bag_of_words")[1]
    objects, manifest = index_of([table([span(n, input="refund")]) for n in range(4)], vectors=settings)
    needed = 4 * (part_cache.MAPS_PER_PART + 1)
    allowed.write_text(f"{INDEX_MAPS_KEPT_FREE + needed - 1}")
    searcher = Searcher(objects, manifest, folder / "cache")
    assert len(searcher.search("refund", 10)) == 4
    with pytest.raises(LimitError, match=r"has 4 parts, .*can open 3 .*each takes 7 memory maps"):
        searcher.by_meaning("refund", "semantic", None, None, 0)
    allowed.write_text(f"{INDEX_MAPS_KEPT_FREE + needed}")
    assert searcher.by_meaning("refund", "semantic", None, None, 0) is not None
    maps = Path("/proc/self/maps").read_text()
    assert maps.count(f"{folder}/cache/") == needed


def test_vectors_count(allowed: Path, tmp_path: Path) -> None:
    """The mapped size of vectors equals their counted size."""
    check_blocks_count(allowed, tmp_path)


def test_new_blocks_take_from_what_is_free(
    allowed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Already mapped vectors count as open in the process."""
    used = tmp_path / "maps"
    monkeypatch.setattr(part_cache, "_USED", used)
    used.write_bytes(b"a map\n" * (INDEX_MAPS_KEPT_FREE + 17))
    allowed.write_text(f"{INDEX_MAPS_KEPT_FREE + 18}")
    part_cache.check_blocks(2, 1)
    with pytest.raises(LimitError):
        part_cache.check_blocks(2, 2)


@pytest.mark.parametrize(
    ("code", "kind", "says"),
    [
        (
            errno.EMFILE,
            LimitError,
            r"limit of open files. Nothing is damaged: raise that limit \(ulimit -n\)",
        ),
        (errno.ENOMEM, LimitError, "memory maps. Nothing is damaged"),
        (
            errno.ENOSPC,
            StorageError,
            "copies of the index in .* cannot be used: .*The lake is not damaged",
        ),
    ],
)
@pytest.mark.parametrize("at", ["text", "vectors"])
def test_a_cache_that_cannot_be_used_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[Exception], says: str, at: str
) -> None:
    """If files, memory or space run out at any step, the error names it, and the next search works."""
    settings = load(f"{HERE}:bag_of_words")[1]
    objects, manifest = index_of([table([span(1, input="refund")])], vectors=settings)
    searcher = Searcher(objects, manifest, tmp_path / "cache", at_once=False)

    def search() -> None:
        if at == "text":
            assert len(searcher.search("refund", 10)) == 1
        else:
            assert searcher.by_meaning("refund", "semantic", None, None, 0) is not None

    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code), str(tmp_path))

    if at == "vectors":
        assert len(searcher.search("refund", 10)) == 1
    with monkeypatch.context() as patch:
        target = "part_cache.unpack" if at == "text" else "vector_index.pa.memory_map"
        patch.setattr(f"tracelake.search.{target}", fail)
        with pytest.raises(kind, match=says):
            search()
    search()


@pytest.mark.parametrize(
    ("parts", "most", "documents", "status", "says"),
    [
        (10, 100, 50, "ok", "10 parts of 100 that this machine can open, 50 documents for 50 spans"),
        (10, None, 50, "ok", "10 parts, 50 documents"),
        (50, 100, 71, "ok", "50 parts"),
        (51, 100, 50, "warning", "sometimes has two open"),
        (100, 100, 50, "warning", "sometimes has two open"),
        (101, 100, 50, "failed", "searches are refused"),
        (10, 100, 72, "warning", "scores also count replaced spans"),
    ],
)
def test_doctor_tells_how_near_the_ceiling_is(
    parts: int, most: int | None, documents: int, status: str, says: str
) -> None:
    """It warns from half of the limit on, and about many documents of replaced rows, and names the remedy."""
    verdict = check_index(IndexInfo("m", 1, documents, parts, most), 50)
    assert verdict.status == status
    assert says in verdict.message
    assert ("tracelake index rebuild" in verdict.mend) == (status != "ok")
    assert check_index(None, 0).status == "ok"
