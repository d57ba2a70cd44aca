"""Documents of deleted rows are in no hit and no count at every commit, however the deletions became known."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from tests.search.build_inputs import INDEX, finalize_build, span, table
from tracelake.search.build import build_part
from tracelake.search.model import Manifest, PartRef, RowIds, write_marks
from tracelake.search.open_index import INDEX_MARKS_KEPT, OpenIndex
from tracelake.search.searcher import Searcher
from tracelake.storage.local import MemoryObjectStore

OBJECTS = MemoryObjectStore()
SIZES = (1, 63, 64, 65, 130)


@dataclass
class SomeRows:
    """Rows of which some are deleted, with a bound on the remembered ones and an optional row count."""

    everything: Sequence[int]
    without: frozenset[int]
    told: int
    counted: bool
    read: int = 0

    @property
    def as_of(self) -> int:
        """Return the last transaction."""
        return len(SIZES) - 1

    @property
    def count(self) -> int | None:
        """Return the number of rows, or None if unknown."""
        return len(set(self.everything) - self.without) if self.counted else None

    def removed_rows(self, parts: Sequence[PartRef]) -> RowIds:
        """Return the remembered deleted rows."""
        assert parts
        return np.array(sorted(self.without)[: self.told], np.int64)

    def live(self) -> RowIds:
        """Return the live rows."""
        self.read += 1
        return np.array(sorted(set(self.everything) - self.without), np.int64)


@pytest.fixture(scope="module")
def index() -> tuple[Manifest, list[int]]:
    """Return an index of parts with sizes around multiples of a word's bits, and the ids of their rows."""
    manifest: Manifest | None = None
    ids: list[int] = []
    for number, size in enumerate(SIZES):
        build = f"spans-{number:010d}"
        rows = table([span(1000 * number + n, input="common", transaction=number) for n in range(size)])
        ids += rows["_row_id"].to_numpy().tolist()
        build_part(OBJECTS, INDEX, build, 0, 1, "a", rows)
        manifest = finalize_build(OBJECTS, 1, build=build, upper=number + 1, parent=manifest)
    assert manifest is not None
    return manifest, ids


def found(searcher: Searcher, ids: Sequence[int]) -> set[int]:
    """Return the row ids of a search's hits, to show that they are right."""
    by_span = {}
    for row in ids:
        made = span(1000 * (row >> 32) + (row & 0xFFFF))
        by_span[made["trace_id"]] = row
    return {by_span[hit.trace_id] for hit in searcher.search("common", 1000)}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("told", "counted", "reads"), [(1.0, True, 0), (0.5, True, 1), (1.0, False, 1)])
def test_exactly_the_rows_that_are_there_are_found(
    index: tuple[Manifest, list[int]], tmp_path: Path, seed: int, told: float, counted: bool, reads: int
) -> None:
    """The table need not remember all deletions: if the numbers differ or are unknown, all rows are checked."""
    manifest, ids = index
    chance = random.Random(seed)
    opened = OpenIndex(OBJECTS, tmp_path)
    kept: list[tuple[Searcher, set[int]]] = []
    for share in (0.1, 0.0, 0.6, 1.0, 0.6):
        without = frozenset(chance.sample(ids, int(share * len(ids))))
        rows = SomeRows(ids, without, int(told * len(without)), counted)
        kept.append((Searcher(OBJECTS, manifest, opened, rows), set(ids) - without))
        assert rows.read == (reads if without or not counted else 0)
    for searcher, expected in kept:
        assert found(searcher, ids) == expected


def test_what_was_marked_before_is_not_written_again(
    index: tuple[Manifest, list[int]], tmp_path: Path
) -> None:
    """One more deleted row costs one file: that of its segment."""
    manifest, ids = index
    opened = OpenIndex(OBJECTS, tmp_path)
    written: list[int] = []
    kept: list[Searcher] = []  # otherwise the links would be deleted
    for gone in (ids[:70], ids[:70], ids[:71]):
        kept.append(
            Searcher(OBJECTS, manifest, opened, SomeRows(ids, frozenset(gone), len(gone), counted=True))
        )
        written.append(len(list(tmp_path.glob("open-*/*.del"))))
    assert written == [3, 3, 4]
    assert [len(found(searcher, ids)) for searcher in kept] == [len(ids) - 70, len(ids) - 70, len(ids) - 71]


def marked_often(index: tuple[Manifest, list[int]], folder: Path) -> None:
    """Open an index repeatedly, each time with one more deleted row of the same part, and now and then with the
    first."""
    manifest, ids = index
    opened = OpenIndex(OBJECTS, folder)
    kept: list[tuple[Searcher, int]] = []
    often, newest = range(1, 3 * INDEX_MARKS_KEPT), range(20, 20 + INDEX_MARKS_KEPT - 1)
    with patch("tracelake.search.open_index.write_marks", side_effect=write_marks) as written:
        for gone in (*often, 1, 2, 1, *newest, 1, newest[-1]):
            rows = SomeRows(ids, frozenset(ids[-gone:]), gone, counted=True)
            kept.append((Searcher(OBJECTS, manifest, opened, rows), len(ids) - gone))
            assert len(list(folder.glob("open-*/*.del"))) <= INDEX_MARKS_KEPT
    assert written.call_count == len(often) + 2 + len(newest), "what was used last is there"
    assert [len(found(searcher, ids)) for searcher, _ in kept] == [expected for _, expected in kept]


def test_marks_of_a_part_that_stays_do_not_add_up(index: tuple[Manifest, list[int]], tmp_path: Path) -> None:
    """Marks do not accumulate although each commit may replace a row of a part for weeks; earlier searchers keep
    theirs."""
    marked_often(index, tmp_path / "whole")
