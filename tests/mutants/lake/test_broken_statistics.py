"""Mutants that the tests of statistics and of uncommitted rows notice."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import pytest

import tracelake
from tests.lake import test_statistics
from tests.lake.test_statistics import Clock
from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite, rule_of
from tracelake.lake.reads import LakeReads
from tracelake.pipeline.continuous import InboxPipeline
from tracelake.tables.result_cache import ResultCache
from tracelake.tables.table import span_counts
from tracelake.tables.view import CommitView
from tracelake.tracking.store import TrackingStore


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (
            Mutation("an old result waits", ResultCache.get, rewrite("_1 is None or _2 > _3", "_1 is None")),
            test_statistics.test_a_result_older_than_a_minute_is_not_returned,
        ),
        (
            Mutation("a young one is reused", ResultCache.get, rewrite("_1 > _2 and not _3", "not _3")),
            test_statistics.test_a_young_result_is_reused,
        ),
        (
            Mutation("one renewal at a time", ResultCache.get, rewrite("_1 > _2 and not _3", "_1 > _2")),
            test_statistics.test_an_older_result_is_renewed_behind_its_reader,
        ),
        (
            Mutation("an error ends a renewal", ResultCache._renew, drop("_ = False")),
            test_statistics.test_a_renewal_that_fails_is_tried_again,
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
        Mutation("an erasure hides at once", LakeReads.statistics, rewrite("(_1, _2, _3)", "(_2, _3)")),
        Mutation("each workspace has its own", LakeReads.statistics, rewrite("(_1, _2, _3)", "(_1, _3)")),
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
