"""Mutants that `tests/search/test_merging.py` notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.search import test_merging
from tests.search.build_inputs import INDEX, finalize_build, index_of
from tracelake.search import build
from tracelake.search.build import merge_parts
from tracelake.search.finalize import read_parts
from tracelake.search.searcher import Searcher


@pytest.mark.parametrize(
    "broken",
    [Mutation("parts have one document for each row", build._marks, rewrite("not _", "False"))],
    ids=rule_of,
)
def test_parts_that_lack_a_row_are_refused(broken: Mutation) -> None:
    """The check fails if the rule is broken."""
    assert_caught(broken, test_merging.test_parts_that_lack_a_row_are_refused)


@pytest.mark.parametrize(
    "broken",
    [
        Mutation(
            "the documents are those of the rows, each once",
            build._marks,
            rewrite("not _(_1, _2)", "len(_1) != len(_2)"),
        )
    ],
    ids=rule_of,
)
def test_parts_that_have_a_row_twice_are_refused(broken: Mutation) -> None:
    """The check fails if the rule is broken."""
    assert_caught(broken, test_merging.test_parts_that_have_a_row_twice_are_refused)


@pytest.mark.parametrize(
    "broken",
    [Mutation("files are those that tantivy wrote", build._write, rewrite("not _1", "None is _1"))],
    ids=rule_of,
)
def test_a_part_that_was_damaged_before_it_was_packed_is_not_passed_on(broken: Mutation) -> None:
    """The check fails if the rule is broken."""
    assert_caught(broken, test_merging.test_a_part_that_was_damaged_before_it_was_packed_is_not_passed_on)


@pytest.mark.parametrize(
    "rule",
    [
        Mutation(
            "documents of rows that are gone stay behind", build._marks, rewrite("return _", "return {}")
        ),
        Mutation("each segment counts as small", build._write, rewrite("_ - 1", "0")),
        Mutation("few segments are made up", build._fillers, rewrite("range(_)", "range(0)")),
        Mutation("what has nothing left is not taken", build._write, rewrite("_1 < _2", "_1 <= _2")),
    ],
    ids=rule_of,
)
def test_rules_that_are_broken_are_noticed(tmp_path: Path, rule: Mutation) -> None:
    """The checks detect each broken rule on three parts, one without a live row and one large."""

    def check() -> None:
        rows = test_merging.rows_of([300, 1, 64])
        objects, manifest = index_of(rows)
        live = test_merging.ids_of([rows[0]])[::2]
        merge_parts(objects, INDEX, "merged", 0, 1, "a", read_parts(objects, manifest), live)
        merged = finalize_build(objects, 1, build="merged", upper=2)
        assert Searcher(objects, merged, tmp_path).count("*").total == len(live)

    check()
    assert_caught(rule, check)
