"""Mutants that `tests/archive/test_sweeps.py` notices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.archive import test_sweeps
from tests.archive.place import HotLake
from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite, rule_of
from tracelake.archive import archive_pass
from tracelake.archive.repositories import is_of


@pytest.mark.parametrize("layout", ["trace", "pack"])
@pytest.mark.parametrize(
    "broken", [Mutation("whose it is", is_of, rewrite("_1 and _", "_1 and True"))], ids=rule_of
)
def test_lakes_that_share_a_repository(broken: Mutation, folders: Iterator[Path], layout: str) -> None:
    """The check fails if the rule is broken."""
    assert_caught(broken, lambda: test_sweeps.test_lakes_that_share_a_repository(folders, layout))


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("what was given up goes first", archive_pass._hindrance, rewrite("_1 <= _", "_1 >= 0")),
        Mutation(
            "nothing is uploaded", archive_pass.archive_batch, rewrite("if _: ...", "if False: ...", nth=1)
        ),
    ],
    ids=rule_of,
)
def test_rows_of_uploads_are_bounded_while_the_repository_is_away(
    broken: Mutation, make: Callable[..., HotLake]
) -> None:
    """The check fails for each broken rule."""
    assert_caught(
        broken, lambda: test_sweeps.test_rows_of_uploads_are_bounded_while_the_repository_is_away(make)
    )


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("others go", archive_pass._delete, rewrite("_1 >= _", "_1 >= 0")),
        Mutation("what stays is told", archive_pass.sweep, rewrite("if a: ...", "if False: ...")),
    ],
    ids=rule_of,
)
def test_an_object_that_cannot_be_deleted_keeps_no_other(
    broken: Mutation, make: Callable[..., HotLake]
) -> None:
    """The check fails for each broken rule."""
    assert_caught(broken, lambda: test_sweeps.test_an_object_that_cannot_be_deleted_keeps_no_other(make))


@pytest.mark.parametrize(
    "broken", [Mutation("in a row", archive_pass._delete, drop("_ = None"))], ids=rule_of
)
def test_what_cannot_be_swept_keeps_no_other(broken: Mutation, make: Callable[..., HotLake]) -> None:
    """The check fails if the rule is broken."""
    assert_caught(broken, lambda: test_sweeps.test_what_cannot_be_swept_keeps_no_other(make))
