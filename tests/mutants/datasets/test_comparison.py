"""Mutants that `tests/datasets` notices: warnings about duplicates, and the comparison of evaluation runs."""

from __future__ import annotations

import pytest

from tests.datasets import test_evaluation
from tests.datasets.test_evaluation import of
from tests.datasets.test_examples import test_remarks_name_duplicates_and_missing_content as check_remarks
from tests.mutants.mutation import Mutation, assert_caught, rewrite
from tracelake.datasets import examples, runs


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("no duplicate of itself", examples.remarks, rewrite("_1 and _2 and _3", "_1 and _3")),
        Mutation("no input is no duplicate", examples.remarks, rewrite("_1 and _2 and _3", "_2 and _3")),
        Mutation("white space", examples.remarks, rewrite("_1._(_2._()) == a", "_2 == a")),
        Mutation("blank output", examples.remarks, rewrite("not (_1 or _2)._()", "not (_1 or _2)", nth=1)),
    ],
    ids=lambda broken: broken.rule,
)
def test_a_broken_warning_is_noticed(broken: Mutation) -> None:
    """Each rule of the warnings about a new example has a test that notices its loss."""
    check_remarks()
    assert_caught(broken, check_remarks)


@pytest.mark.parametrize(
    "broken",
    [
        Mutation(
            "by example",
            runs.compare,
            rewrite("a._(b)", "first(a)", nth=2, first=lambda results: next(iter(results.values()), None)),
        ),
        Mutation("examples of both runs", runs.compare, rewrite("{**a, **b}", "{**b}")),
        Mutation("shared scorers", runs.compare, rewrite("set(_1) & set(_2)", "set(_1) | set(_2)")),
        Mutation("most regressions first", runs.compare, rewrite("-len(_1)", "len(_1)")),
        Mutation("new errors", runs.score_changes, rewrite("(_1 is None) != (_2 is None)", "False")),
        Mutation(
            "missing scores",
            runs.score_changes,
            rewrite("a if _1 is None else b", "b if _1 is None else a", nth=2),
        ),
        Mutation("labels", runs.score_changes, rewrite("not any(_1)", "True")),
        Mutation("lower scores", runs.score_changes, rewrite("_1 < _2", "_1 > _2")),
    ],
    ids=lambda broken: broken.rule,
)
def test_a_broken_comparison_is_noticed(broken: Mutation) -> None:
    """Each rule of the comparison of two runs has a test that notices its loss."""
    check_comparisons()
    assert_caught(broken, check_comparisons)


def check_comparisons() -> None:
    """Run the tests of comparisons that need no lake."""
    test_evaluation.test_results_are_matched_by_example()
    test_evaluation.test_a_scorer_of_one_run_is_no_change()
    for base, run, change, worse in (
        (of(a=1.0), of(a=0.5), "regression", ("a",)),
        (of(a="good"), of(a="bad"), "same", ()),
        (of(a=1), of(error="lost"), "regression", ("error", "a")),
        (of(a=1), None, "removed", ()),
    ):
        test_evaluation.test_examples_are_compared(base, run, change, worse)


def test_a_broken_mean_is_noticed() -> None:
    """The mean of labels has a test that notices the loss of its rule."""
    broken = Mutation("labels have no mean", runs.mean_scores, rewrite("len(a) == len(b)", "True"))
    assert_caught(broken, test_evaluation.test_means_are_of_numbers_only)
