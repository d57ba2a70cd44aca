"""Mutants that `tests/lake/test_hot_sifting.py` notices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest

import tracelake
from tests.lake import test_hot_sifting
from tests.lake.test_hot_search import _patient
from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite
from tracelake.hot import index
from tracelake.hot.index import HotIndex, _Pending
from tracelake.hot.search import HotSearch
from tracelake.pipeline.continuous import InboxPipeline
from tracelake.search import tokenization
from tracelake.tasks.runners import InProcess
from tracelake.tracking.store import TrackingStore

PageCheck = Callable[[tracelake.Lake, TrackingStore, InboxPipeline, pytest.MonkeyPatch, Path], object]

MUTANTS: Sequence[tuple[Mutation, test_hot_sifting.Check]] = [
    (
        Mutation("what is read is kept", HotIndex.add_payloads, rewrite("{**_, **_1}", "{**_1}")),
        test_hot_sifting.test_texts_are_read_of_what_may_match,
    ),
    (
        Mutation(
            "only what may match is read", HotIndex._read, rewrite("{a for a in _1 if _}", "{a for a in _1}")
        ),
        test_hot_sifting.test_texts_are_read_of_what_may_match,
    ),
    (
        Mutation(
            "payloads are read once", HotIndex._read, rewrite("(a for a in _1 if _)", "(a for a in _1)", 1)
        ),
        test_hot_sifting.test_texts_are_read_of_what_may_match,
    ),
    (
        Mutation(
            "payloads with texts are forgotten",
            HotIndex.add_texts,
            rewrite("{a: b for a, b in _1 if _}", "{a: b for a, b in _1}"),
        ),
        test_hot_sifting.test_texts_are_read_of_what_may_match,
    ),
    (
        Mutation(
            "what has left is forgotten",
            HotIndex._refresh,
            rewrite("{a: b for a, b in _1 if _}", "{a: b for a, b in _1}", 2),
        ),
        test_hot_sifting.test_each_text_is_read_once,
    ),
    (
        Mutation(
            "texts are read once",
            _Pending.without_text,
            rewrite("_1 and _2", "_2"),
        ),
        test_hot_sifting.test_texts_are_read_of_what_may_match,
    ),
    (
        Mutation("what is not read is said", HotIndex.cover, rewrite("[a for a in _1 if a not in _]", "_1")),
        test_hot_sifting.test_the_newest_that_pass_are_found_and_the_rest_is_said,
    ),
    (
        Mutation(
            "what is excluded is read",
            HotIndex._read,
            rewrite("[a for a in _1 if a not in _]", "[*_1]"),
        ),
        test_hot_sifting.test_the_newest_that_pass_are_found_and_the_rest_is_said,
    ),
    (
        Mutation("time ends a scan", HotIndex._read, drop("if _: break")),
        test_hot_sifting.test_the_newest_that_pass_are_found_and_the_rest_is_said,
    ),
    (
        Mutation("and indexing", HotIndex._index, drop("if _: break")),
        test_hot_sifting.test_the_newest_that_pass_are_found_and_the_rest_is_said,
    ),
    (
        Mutation(
            "the newest first", HotIndex._index, rewrite("[a for a in _1 if a]", "[a for a in _1 if a][::-1]")
        ),
        test_hot_sifting.test_the_newest_that_pass_are_found_and_the_rest_is_said,
    ),
    (
        Mutation(
            "what is not indexed is said",
            _Pending.coverage,
            rewrite("(a for a, b in _1 if not b)", "(a for a, b in _1)"),
        ),
        test_hot_sifting.test_the_newest_that_pass_are_found_and_the_rest_is_said,
    ),
    (
        Mutation(
            "indexed rows without texts pass",
            _Pending.may_match,
            rewrite("_ is None or _1 or _2", "_1 or _2"),
        ),
        test_hot_sifting.test_the_claim_that_stands_is_found,
    ),
    (
        Mutation(
            "so do traces of which a commit has hits",
            HotSearch._once,
            rewrite("_1 and (a := _2)", "False and (a := _2)"),
        ),
        test_hot_sifting.test_the_claim_that_stands_is_found,
    ),
    (
        Mutation("only what passes is indexed", _Pending.wanted, rewrite("[a for a in _1 if _]", "_1")),
        test_hot_sifting.test_only_what_may_match_is_indexed,
    ),
    (
        Mutation("few spans need no scan", HotIndex.cover, rewrite("_1 <= _2", "False")),
        test_hot_sifting.test_only_what_may_match_is_indexed,
    ),
    (
        Mutation("what cannot be read is said", _Pending.coverage, rewrite("len(_)", "0")),
        test_hot_sifting.test_damage_hides_nothing_else,
    ),
    (
        Mutation("texts are looked through in lower case", index._searchable, rewrite("_1._()", "_1", 3)),
        test_hot_sifting.test_workspaces_are_walls,
    ),
    (
        Mutation("texts have the form of the words", index._searchable, rewrite("[*a, b]", "[*a]")),
        test_hot_sifting.test_words_in_any_case_and_form_are_found,
    ),
    (
        Mutation("other widths are replaced", tokenization.normalized, rewrite("a = _1", "pass")),
        test_hot_sifting.test_words_in_any_case_and_form_are_found,
    ),
]


PAGES: Sequence[tuple[Mutation, PageCheck]] = [
    (
        Mutation(
            "a page is scanned as the first",
            HotSearch._covered_by_page,
            rewrite("_1(_2, _3, _4, _5, _6, _7)", "_1(_2, _3, _4, None, _6, _7)"),
        ),
        test_hot_sifting.test_pages_go_on_where_they_began,
    ),
    (
        Mutation(
            "rows that are not searched are hidden",
            HotSearch._uncommitted_rows,
            rewrite("a = _1(_2, _3(_4))", "a = _3(_4)", 1),
        ),
        test_hot_sifting.test_pages_have_no_rows_that_the_first_did_not_have,
    ),
    (
        Mutation("the ranges of parts are apart", HotIndex._insert, rewrite("a + b", "a")),
        test_hot_sifting.test_equal_hits_have_one_order,
    ),
    (
        Mutation(
            "documents are in the order of rows",
            HotIndex._built,
            rewrite("a = a._(_._(a, _))", "pass"),
        ),
        test_hot_sifting.test_equal_hits_have_one_order,
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


@pytest.mark.parametrize(("broken", "check"), PAGES, ids=[broken.rule for broken, _ in PAGES])
def test_broken_pages_are_caught(
    lake: tracelake.Lake, store: TrackingStore, broken: Mutation, check: PageCheck, tmp_path: Path
) -> None:
    """A test fails for each broken rule."""

    def checked() -> None:
        with closing(lake.pipeline(runner=InProcess())) as pipeline, pytest.MonkeyPatch.context() as patch:
            check(lake, store, pipeline, patch, tmp_path)

    assert_caught(broken, checked)
