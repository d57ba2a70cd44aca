"""Ranges are a function of the entries alone; changes rewrite, and differences read, only affected ranges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelake.versions import tree
from tracelake.versions.model import FileAt, PathChanges, Range, RangeRef, Reference
from tracelake.versions.tree import id_of

PATHS = st.integers(0, 60).map(lambda number: f"p/{number:03d}")
NAMED = st.integers(0, 3).map(lambda size: FileAt("0" * 64, size))
ENTRIES = st.dictionaries(PATHS, NAMED, max_size=60)
CHANGES = st.lists(st.dictionaries(PATHS, st.none() | NAMED, max_size=20), max_size=6)


@pytest.fixture(autouse=True)
def _small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use ranges of four entries, so that few entries have many ranges."""
    monkeypatch.setattr(tree, "RANGE_ENTRIES_MEAN", 4)
    monkeypatch.setattr(tree, "RANGE_ENTRIES_MAX", 9)


class Store:
    """Ranges by id, with the number of reads."""

    def __init__(self) -> None:
        self.there: dict[str, Range] = {}
        self.reads: list[str] = []

    def read(self, range_id: str) -> Range:
        """Return a range."""
        self.reads.append(range_id)
        return self.there[range_id]

    def change(
        self, refs: tuple[RangeRef, ...], changes: PathChanges, epoch: int = 0
    ) -> tuple[RangeRef, ...]:
        """Apply changes, and store the new ranges."""
        refs, new = tree.changed(refs, changes, self.read, epoch)
        self.there.update({id_of(made): made for made in new})
        return refs


def _all(entries: dict[str, FileAt]) -> PathChanges:
    return tuple(sorted(entries.items()))


@given(ENTRIES, CHANGES)
def test_the_same_entries_have_the_same_ranges(
    first: dict[str, FileAt], steps: list[dict[str, FileAt]]
) -> None:
    """The same entries have the same ranges after any changes in any order, as if written at once."""
    store = Store()
    refs = store.change((), _all(first))
    model: dict[str, Reference] = dict(first)
    for step in steps:
        refs = store.change(refs, tree.latest(step.items()))
        model = {path: named for path, named in {**model, **step}.items() if named is not None}
        assert dict(tree.scan(refs, store.read)) == model
    fresh = Store()
    assert refs == fresh.change((), tree.latest(model.items()))
    assert [ref.entries for ref in refs] == [len(fresh.there[ref.id].entries) for ref in refs]


@given(ENTRIES, ENTRIES)
def test_differences_are_those_of_the_entries(before: dict[str, FileAt], after: dict[str, FileAt]) -> None:
    """Differences come in order of path; applied to one side, they give the other."""
    store = Store()
    one, two = store.change((), _all(before)), store.change((), _all(after))
    found = list(tree.differences(one, two, store.read))
    assert [difference.path for difference in found] == sorted(
        path for path in {**before, **after} if before.get(path) != after.get(path)
    )
    assert store.change(one, tuple((change.path, change.after) for change in found)) == two


@given(ENTRIES, PATHS, PATHS)
def test_scan_and_find_read_a_part(entries: dict[str, FileAt], start: str, stop: str) -> None:
    """A scan yields the entries of an interval, and `find` those of the given paths."""
    store = Store()
    refs = store.change((), _all(entries))
    between = {path: named for path, named in sorted(entries.items()) if start <= path < stop}
    assert list(tree.scan(refs, store.read, start, stop)) == list(between.items())
    wanted = sorted({start, stop})
    assert tree.find(refs, wanted, store.read) == {path: entries[path] for path in wanted if path in entries}


def test_a_change_of_one_entry_reads_and_writes_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changing one of ten thousand entries rewrites one range; a difference reads one range on each side."""
    monkeypatch.setattr(tree, "RANGE_ENTRIES_MAX", 1_000)  # no range ends because of its length
    store = Store()
    refs = store.change((), tuple((f"p/{number:05d}", FileAt("0" * 64, 1)) for number in range(10_000)))
    assert len(refs) > 1_000
    store.reads.clear()
    changed = store.change(refs, (("p/05000", FileAt("0" * 64, 2)),))
    assert len(set(store.reads)) == 1
    assert len(set(changed) - set(refs)) == 1
    store.reads.clear()
    assert [found.path for found in tree.differences(refs, changed, store.read)] == ["p/05000"]
    assert len(store.reads) == 2


def test_an_equal_range_of_another_epoch_is_not_written_again() -> None:
    """A change without effect keeps the existing ranges of another epoch."""
    store = Store()
    refs = store.change((), tuple((f"p/{number:03d}", FileAt("0" * 64, 1)) for number in range(100)))
    assert store.change(refs, (("p/050", FileAt("0" * 64, 1)),), epoch=1) == refs
