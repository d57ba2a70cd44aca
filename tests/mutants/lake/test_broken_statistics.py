"""Mutants that the tests of statistics and of uncommitted rows notice."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import pytest

import tracelake
from tests.lake import test_first_rows, test_statistics
from tests.lake.test_statistics import Clock
from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite, rule_of
from tracelake.lake.reads import LakeReads
from tracelake.pipeline.continuous import InboxPipeline
from tracelake.tables.builtin import without_traces
from tracelake.tables.result_cache import ResultCache
from tracelake.tables.table import span_counts
from tracelake.tables.view import CommitView
from tracelake.tracking.store import TrackingStore


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (
            Mutation("an old result waits", ResultCache.is_too_old, rewrite("_1 and _2 > _3", "False")),
            test_statistics.test_a_result_older_than_a_minute_is_not_returned,
        ),
        (
            Mutation(
                "a young one is reused",
                ResultCache.is_due,
                rewrite("not (_1 or _2 or _3)", "not (_2 or _3)"),
            ),
            test_statistics.test_a_young_result_is_reused,
        ),
        (
            Mutation(
                "one renewal at a time",
                ResultCache.is_due,
                rewrite("not (_1 or _2 or _3)", "not (_1 or _3)"),
            ),
            test_statistics.test_an_older_result_is_renewed_behind_its_reader,
        ),
        (
            Mutation(
                "a closed cache renews nothing",
                ResultCache.is_due,
                rewrite("not (_1 or _2 or _3)", "not (_1 or _2)"),
            ),
            test_statistics.test_a_closed_cache_renews_nothing,
        ),
        (
            Mutation("an error ends a renewal", ResultCache.renew, drop("_ = False")),
            test_statistics.test_a_renewal_that_fails_is_tried_again,
        ),
        (
            Mutation("a dropped result is not kept", ResultCache.clear, drop("_()")),
            lambda _, cache: test_statistics.test_a_result_that_began_before_a_change_is_not_kept(cache),
        ),
        (
            Mutation("an error is of one reader", ResultCache.get, rewrite("return (_1 or _2)()", "raise")),
            lambda _, cache: test_statistics.test_an_error_of_one_reader_is_not_that_of_another(cache),
        ),
    ],
    ids=rule_of,
)
def test_reuse_of_results(broken: Mutation, check: Callable[[Clock, ResultCache], None]) -> None:
    """A cache that returns old results, or computes too often or never again, is caught."""

    def run() -> None:
        clock, cache = Clock(), ResultCache()
        with mock.patch("tracelake.tables.result_cache.time.monotonic", side_effect=lambda: clock.now_s):
            try:
                check(clock, cache)
            finally:
                cache.close()

    assert_caught(broken, run)


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("an erasure hides at once", ResultCache.get, rewrite("_1 != _2", "False")),
        Mutation("each workspace has its own", LakeReads.statistics, rewrite("(_1, _2)", "_2", nth=3)),
        Mutation("a large lake reuses", LakeReads.statistics, rewrite("_1 < _2", "True")),
    ],
    ids=rule_of,
)
def test_statistics_of_a_large_lake(
    broken: Mutation, lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """A large lake that shows erased traces, or those of another workspace, is caught."""
    check = test_statistics.test_pages_of_a_large_lake_reuse_statistics
    assert_caught(broken, lambda: check(lake, store, pipeline))


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("uncommitted rows replace", CommitView.select, rewrite("any(_)", "False")),
        Mutation("spans of a commit are counted", span_counts, drop("_1[_2] += _3")),
    ],
    ids=rule_of,
)
def test_rows_in_both_tiers(
    broken: Mutation, lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """A list that counts a span of both tiers twice is caught."""
    check = test_statistics.test_spans_of_both_tiers_count_once
    assert_caught(broken, lambda: check(lake, store, pipeline))


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("replaced rows are dropped", without_traces, rewrite("_1 or _2", "True")),
    ],
    ids=rule_of,
)
def test_first_rows_of_both_tiers(
    broken: Mutation, lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """A list with an earlier row of a trace, or of an earlier commit, is caught."""
    assert_caught(broken, lambda: test_first_rows.check_both_tiers(lake, store, pipeline))


def test_rows_that_are_replaced(lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline) -> None:
    """A list that lacks the committed rows after replaced ones is caught."""
    broken = Mutation("replaced rows make room", LakeReads.first_rows, rewrite("_1 + _2", "_1"))
    check = test_first_rows.test_rows_that_are_replaced_leave_no_gap
    assert_caught(broken, lambda: check(lake, store, pipeline, 64))


@pytest.mark.parametrize("replacement", ["_1", "_2"])
def test_sessions_of_uncommitted_traces(
    replacement: str, lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """A list of sessions that always counts again, or never, is caught."""
    edit = rewrite("_1 if _3 or _4 else _2", replacement)
    broken = Mutation("sessions are counted again", LakeReads.first_rows, edit)
    assert_caught(broken, lambda: test_first_rows.check_groups(lake, store, pipeline))
