"""Mutants of comparisons of traces and texts, of the cache of lists, and of the page of a dataset."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.lake import test_select_cache
from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.server import test_datasets, test_trace_comparison
from tracelake.lake.reads import LakeReads
from tracelake.server import render
from tracelake.server.datasets import compare_texts


def texts() -> None:
    """Check the diff of a rewritten sentence."""
    expected = [("removed", "cancel two of them"), ("added", "keep one of these")]
    test_trace_comparison.test_texts("cancel two of them", "keep one of these", expected)


CACHED = test_select_cache.test_a_result_is_of_its_commit_query_and_workspace
KEY = "(_1._, _2._, self._, _3)"
"""Key of a cached result: commit, erased traces, workspace and query."""


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (
            Mutation("single words stay equal", render.diff_text, rewrite("_1 and _2 < _3", "False")),
            texts,
        ),
        (
            Mutation("the end is compared silently", compare_texts, rewrite("_1 > _2", "False")),
            test_datasets.test_texts_are_compared_by_word,
        ),
        (Mutation("of any commit", LakeReads._select, rewrite(KEY, "(_2._, self._, _3)")), CACHED),
    ],
    ids=lambda each: rule_of(each) if isinstance(each, Mutation) else "",
)
def test_a_broken_rule_is_noticed(broken: Mutation, check: Callable[[], None]) -> None:
    """A test detects each broken rule."""
    check()
    assert_caught(broken, check)
