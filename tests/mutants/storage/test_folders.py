"""Mutants that `tests/storage/test_folders.py` notices."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite, rule_of
from tests.storage import test_folders
from tracelake.pipeline.staging import Leftovers
from tracelake.search import finalize
from tracelake.storage import wrappers
from tracelake.storage.local import FileObjectStore


@pytest.mark.parametrize(
    ("check", "broken"),
    [
        (test_folders.check_removal, Mutation("removed", FileObjectStore.remove_folder, drop("_(_)"))),
        (
            test_folders.check_removal,
            Mutation("through wrappers", wrappers.remove_folders, rewrite("a(b)", "b")),
        ),
        (
            test_folders.check_robbed,
            Mutation("made again", FileObjectStore._give_name, rewrite("not _", "True")),
        ),
        (
            test_folders.check_vanishing,
            Mutation(
                "no error is an answer",
                FileObjectStore._give_name,
                rewrite("(FileNotFoundError, FileExistsError)", "()"),
            ),
        ),
        (
            test_folders.check_synced,
            Mutation("durable again", FileObjectStore._make_durable_directory, rewrite("_ and _1", "_1")),
        ),
        (
            test_folders.check_lake,
            Mutation(
                "staging of a build",
                finalize.clean_staging,
                rewrite("_1(_2, [_3.a for _3 in _4])\n_(_2, [_])", "_1(_2, [_3.a for _3 in _4])"),
            ),
        ),
        (
            test_folders.check_lake,
            Mutation("parts of a build", finalize.collect, rewrite("_(_, _1 - _2)", "print(_1 - _2)")),
        ),
        (
            test_folders.check_looks,
            Mutation("not each run", Leftovers.clean, rewrite("_ >= _1", "True or 0 >= _1")),
        ),
        (
            test_folders.check_looks,
            Mutation("at all", Leftovers.clean, rewrite("_ >= _1", "False and 0 >= _1")),
        ),
        (test_folders.check_looks, Mutation("the old", Leftovers.clean, rewrite("_ - _1", "0 * _1"))),
        (
            test_folders.check_looks,
            Mutation("not the new", Leftovers.clean, rewrite("_1 - _2", "_1 + 0 * _2")),
        ),
    ],
    ids=rule_of,
)
def test_broken(check: Callable[[Path], None], broken: Mutation, tmp_path: Path) -> None:
    """Each broken rule is caught."""
    assert_caught(broken, lambda: check(tmp_path / uuid.uuid4().hex))
