"""Mutants that `tests/lake/test_hot_sifting.py` notices."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

import tracelake
from tests.lake import test_hot_sifting
from tests.lake.test_hot_search import _patient
from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite
from tracelake.hot import index
from tracelake.hot.index import HotIndex, TextScan
from tracelake.hot.search import HotSearch
from tracelake.tasks.runners import InProcess
from tracelake.tracking.store import TrackingStore

MUTANTS: Sequence[tuple[Mutation, test_hot_sifting.Check]] = [
    (
        Mutation("what is read is kept", TextScan.newer, rewrite("a in b", "False")),
        test_hot_sifting.test_each_text_is_read_once,
    ),
    (
        Mutation(
            "what has left is forgotten",
            TextScan.newer,
            rewrite("{_1: _2 for _ in _3 if _}", "{_1: _2 for _1, _2 in _3}"),
        ),
        test_hot_sifting.test_each_text_is_read_once,
    ),
    (
        Mutation("where nothing is left nothing is kept", TextScan.newer, rewrite("a()", "self")),
        test_hot_sifting.test_each_text_is_read_once,
    ),
    (
        Mutation("texts are read ahead", HotIndex.index_newest, drop("self._ = _._._(...)")),
        test_hot_sifting.test_each_text_is_read_once,
    ),
    (
        Mutation("time ends", TextScan.newer, rewrite("_1 and _", "_1 and False")),
        test_hot_sifting.test_the_newest_that_pass_are_found_and_the_rest_is_said,
    ),
    (
        Mutation("much that passes is left", TextScan.passing, rewrite("_ and _", "False")),
        test_hot_sifting.test_the_newest_that_pass_are_found_and_the_rest_is_said,
    ),
    (
        Mutation("no more than a step", TextScan.passing, rewrite("_ > _1", "0 > _1")),
        test_hot_sifting.test_a_row_of_which_very_much_passes_is_left,
    ),
    (
        Mutation("one row at least", TextScan.passing, rewrite("_ and _1", "_1")),
        test_hot_sifting.test_the_newest_that_pass_are_found_and_the_rest_is_said,
    ),
    (
        Mutation("the newest first", TextScan.passing, rewrite("_1(_2, a=_)", "_1(_2)")),
        test_hot_sifting.test_the_newest_that_pass_are_found_and_the_rest_is_said,
    ),
    (
        Mutation("what was not looked through is said", HotIndex.sifted, rewrite("_ - _", "0")),
        test_hot_sifting.test_the_newest_that_pass_are_found_and_the_rest_is_said,
    ),
    (
        Mutation(
            "and of what is indexed",
            HotIndex.sifted,
            rewrite("{_1 for _2 in _._ for _1, _3 in _2.a}", "{1 for _2 in () for _1, _3 in _2.a}"),
        ),
        test_hot_sifting.test_the_claim_that_stands_is_found,
    ),
    (
        Mutation("what cannot be read is said", HotIndex.sifted, rewrite("_ + _", "0")),
        test_hot_sifting.test_damage_hides_nothing_else,
    ),
    (
        Mutation("texts are looked through in lower case", index._in_each_form, rewrite("a._()", "a")),
        test_hot_sifting.test_workspaces_are_walls,
    ),
]


PAGES: Sequence[Mutation] = [
    Mutation("a page is sifted as the first", HotSearch._of_page, rewrite("not _ or _ is None", "True")),
    Mutation(
        "nor has it what was replaced", HotSearch._of_page, rewrite("_1(_2, a=_._)", "_1(_2, a=frozenset())")
    ),
    Mutation(
        "a page that was sifted says so", HotSearch._uncommitted_rows, rewrite("if _(_): ...", "if 0: ...")
    ),
]


@pytest.mark.parametrize(("broken", "check"), MUTANTS, ids=[broken.rule for broken, _ in MUTANTS])
def test_broken_rules_are_caught(
    lake: tracelake.Lake, store: TrackingStore, broken: Mutation, check: test_hot_sifting.Check
) -> None:
    """A test fails for each broken rule."""

    def checked() -> None:
        with closing(lake.pipeline(runner=InProcess())) as pipeline, pytest.MonkeyPatch.context() as patch:
            check(lake, store, pipeline, patch)

    assert_caught(broken, checked)


@pytest.mark.parametrize("broken", PAGES, ids=[broken.rule for broken in PAGES])
def test_broken_pages_are_caught(
    lake: tracelake.Lake, store: TrackingStore, broken: Mutation, tmp_path: Path
) -> None:
    """A test fails for each broken rule."""

    def checked() -> None:
        with closing(lake.pipeline(runner=InProcess())) as pipeline, pytest.MonkeyPatch.context() as patch:
            test_hot_sifting.test_pages_go_on_where_they_began(lake, store, pipeline, patch, tmp_path)

    assert_caught(broken, checked)
