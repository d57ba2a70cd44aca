"""Mutants that `tests/storage/test_files.py` notices."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite, rule_of
from tests.storage import test_files
from tracelake.storage import FileObjectStore, local


def test_a_new_directory_is_named_where_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new directory is synced up to an ancestor that this store synced; other processes' directories do not
    count."""
    synced: list[str] = []

    def check(root: Path) -> None:
        store = FileObjectStore(root)
        (root / "a" / "other").mkdir(parents=True)
        monkeypatch.setattr(local, "sync_directory", synced.append)
        for path, expected in (
            ("a/b/c", ["a", "", "a/b"]),
            ("a/d/e/f", ["a/d", "a", "a/d/e"]),
            ("a/d/g", ["a/d"]),
            ("h/i", ["", "h"]),
        ):
            synced.clear()
            store.put(path, b"")
            assert synced == [str(root / each) for each in expected], path
        monkeypatch.undo()

    check(tmp_path / "lake")
    durable = FileObjectStore._make_durable_directory
    for number, broken in enumerate(
        (
            Mutation("the names above are durable", durable, rewrite("if _ in _: ...", "if True: ...")),
            Mutation("the name is durable where it stands", durable, drop("a(...)")),
            Mutation("what is synced is remembered", durable, rewrite("self.a.b(_)", "self.a.b([])")),
        )
    ):
        assert_caught(broken, partial(check, tmp_path / str(number)))
        monkeypatch.undo()


@pytest.mark.parametrize(
    "broken",
    [Mutation("a store knows alone", FileObjectStore.__init__, rewrite("_1 = _(_, _2)", "_1 = _2"))],
    ids=rule_of,
)
def test_stores_that_are_open_share_what_is_synced(
    broken: Mutation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check fails if the rule is broken."""
    assert_caught(
        broken, lambda: test_files.test_stores_that_are_open_share_what_is_synced(tmp_path, monkeypatch)
    )
