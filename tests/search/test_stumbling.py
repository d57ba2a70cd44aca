"""A file altered on disk after unpacking still opens, and tantivy fails on it only during a query."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.search.build_inputs import INDEX, finalize_build, index_of, span, table
from tests.search.embedders import HERE
from tracelake import DamageError, QueryError
from tracelake.search.build import build_part
from tracelake.search.model import Manifest
from tracelake.search.open_index import OpenIndex
from tracelake.search.part_cache import PartCache
from tracelake.search.searcher import Searcher
from tracelake.search.vectors import load
from tracelake.storage.local import MemoryObjectStore

OBJECTS = MemoryObjectStore()
SPANS = 1_500
FOOTER = 200
"""Bytes at the end of each file that describe its format: without them it does not open."""

Ask = Callable[[Searcher], object]
ASKS: dict[str, Ask] = {
    "search": lambda searcher: searcher.search("common w1", 20),
    "newest": lambda searcher: searcher.search("common", 20, sort="newest"),
    "count": lambda searcher: searcher.count("common", facets=("service", "day")),
    "completions": lambda searcher: searcher.completions("service:"),
    "traces": lambda searcher: searcher.traces_among([f"{number + 1:032x}" for number in range(3)]),
    "found": lambda searcher: searcher.matching_traces([f"{1:032x}"], "common", None, 0),
}


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    """Return an index of one part with spans of many words."""
    some = random.Random(1)
    words = [f"w{number}" for number in range(500)]
    rows = [span(n, input=" ".join(["common", *some.choices(words, k=20)])) for n in range(SPANS)]
    build_part(OBJECTS, INDEX, "spans-stumbling", 0, 1, "a", table(rows))
    return finalize_build(OBJECTS, 1, build="spans-stumbling", upper=1)


def altered(manifest: Manifest, directory: Path, suffix: str, byte: int = 0xFF) -> None:
    """Alter the body of an unpacked file in place, so that open mappings see the change."""
    (part,) = manifest.newest
    (file,) = (directory / part.sha256).glob(f"*.{suffix}")
    size = file.stat().st_size
    with file.open("r+b") as body:
        body.write(bytes([byte]) * max(1, size - FOOTER))


def check_mended(manifest: Manifest, directory: Path, suffix: str) -> None:
    """Check that each question is answered, both by a new searcher and by one opened before the damage."""
    expected = {name: ask(Searcher(OBJECTS, manifest, directory)) for name, ask in ASKS.items()}
    renewals = 0
    for name, ask in ASKS.items():
        before = Searcher(OBJECTS, manifest, OpenIndex(OBJECTS, directory))
        altered(manifest, directory, suffix)
        index = OpenIndex(OBJECTS, directory)
        late = Searcher(OBJECTS, manifest, index, at_once=False)
        assert ask(late) == expected[name], (name, "of who opens it")
        assert ask(before) == expected[name], (name, "of who had it open")
        renewals += index.renewals
        if not index.renewals:
            PartCache(OBJECTS, directory).drop_altered(manifest.newest)  # the altered file was never read
    assert renewals, "nobody has stumbled"


@pytest.mark.parametrize("suffix", ["idx", "term", "store", "fast"])
def test_what_tantivy_stumbles_over_comes_again(manifest: Manifest, tmp_path: Path, suffix: str) -> None:
    """A part on which tantivy panics or fails is fetched again; a searcher with the altered file reopens it, too."""
    check_mended(manifest, tmp_path, suffix)


def check_several(manifest: Manifest, directory: Path) -> None:
    """Check that each searcher of a process reopens its files, although one fetches all."""
    index = OpenIndex(OBJECTS, directory)
    several = [Searcher(OBJECTS, manifest, index) for _ in range(3)]
    expected = ASKS["search"](several[0])
    altered(manifest, directory, "idx")
    assert [ASKS["search"](each) for each in several] == [expected] * 3
    assert index.renewals == 1


def test_each_searcher_of_a_process_opens_it_anew(manifest: Manifest, tmp_path: Path) -> None:
    """The second searcher finds all copies as packed, because the first has fetched them again."""
    check_several(manifest, tmp_path)


def check_meaning(directory: Path) -> None:
    """Check that vector searches and their facets are repeated on the fetched parts."""
    settings = load(f"{HERE}:bag_of_words")[1]
    objects, manifest = index_of([table([span(n, input="refund") for n in range(200)])], vectors=settings)
    for suffix in ("store", "fast"):
        index = OpenIndex(objects, directory)
        searcher = Searcher(objects, manifest, index)
        by_meaning = searcher.by_meaning("refund", "semantic", None, None, 0)
        assert by_meaning is not None
        altered(manifest, directory, suffix)
        if suffix == "store":
            assert len(searcher.hits_by_meaning(by_meaning[1], 10, 0)) == 10
        else:
            assert searcher.count_by_meaning(by_meaning[1], ("service",)).total == 200
        assert index.renewals == 1


def test_searches_by_meaning_stumble_as_well(tmp_path: Path) -> None:
    """Vector searches recover as well: their hits and facets are read from the same parts."""
    check_meaning(tmp_path)


class Panicking:
    """A tantivy that fails on every call."""

    def __init__(self, error: BaseException) -> None:
        self.error, self.asked = error, 0
        self.num_docs = 1

    def search(self, *_: object, **__: object) -> None:
        """Fail."""
        self.asked += 1
        raise self.error


PanicException = type("PanicException", (BaseException,), {})


def check_unaltered(manifest: Manifest, directory: Path, error: BaseException, told: type[Exception]) -> None:
    """Check the error without an altered copy: the query is repeated once, and everything is read once in some
    minutes."""
    index = OpenIndex(OBJECTS, directory)
    searcher = Searcher(OBJECTS, manifest, index)
    broken = Panicking(error)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Searcher, "_opened", lambda _: opened_as(broken))
        with pytest.raises(told) as raised:
            searcher.search("common w1", 1)
        asked = broken.asked
        if told is DamageError:
            assert "index spans build spans-stumbling" in str(raised.value)
            assert "tracelake verify" in str(raised.value)
        patch.setattr("tracelake.search.part_cache.is_as_packed", lambda *_: pytest.fail("read again"))
        with pytest.raises(told):
            searcher.search("common w1", 1)
    assert (asked, broken.asked) == ((2, 3) if told is DamageError else (asked, broken.asked))


def opened_as(searcher: object) -> object:
    """Return an open index with our searcher."""
    return type("Opened", (), {"searcher": searcher})


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (PanicException("index out of bounds"), DamageError),
        (ValueError("An IO error occurred: 'short'"), DamageError),
        (ValueError("Data corrupted: 'x'"), DamageError),
        (ValueError("something new"), QueryError),
        (ValueError("An invalid argument was passed: 'x'"), QueryError),
    ],
    ids=repr,
)
def test_what_is_not_of_the_copies_is_told(
    manifest: Manifest, tmp_path: Path, error: BaseException, told: type[Exception]
) -> None:
    """An error without a damaged copy names the index and is never a panic; a possible query error is reported as
    such."""
    check_unaltered(manifest, tmp_path, error, told)


def check_query(manifest: Manifest, directory: Path) -> None:
    """Check that a query refused by tantivy causes no read of copies and no reopening."""
    index = OpenIndex(OBJECTS, directory)
    searcher = Searcher(OBJECTS, manifest, index)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PartCache, "drop_altered", lambda *_: pytest.fail("it is not of the copies"))
        for refused in ("(", "w1 AND", "start>never"):
            with pytest.raises(QueryError):
                searcher.search(refused, 1)
        error = ValueError("An invalid argument was passed: 'x'")
        patch.setattr(Searcher, "_opened", lambda _: opened_as(Panicking(error)))
        with pytest.raises(QueryError, match="write longer words"):
            searcher.search("common w1", 1)
    assert index.renewals == 0


def test_a_query_that_is_refused_is_no_damage(manifest: Manifest, tmp_path: Path) -> None:
    """An invalid query does not make the server read the whole index."""
    check_query(manifest, tmp_path)


def without_panics(check: Callable[..., None], *args: object) -> None:
    """Run a check, and fail on any panic, which would end the whole test run."""
    try:
        check(*args)
    except BaseException as error:
        if isinstance(error, Exception):
            raise
        raise AssertionError("it panicked") from error
