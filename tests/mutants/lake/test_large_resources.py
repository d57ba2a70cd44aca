"""Mutants that `tests/lake/test_large_resources.py` notices."""

from __future__ import annotations

import pytest

import tracelake
from tests.lake import test_large_resources
from tests.lake.test_large_resources import _small
from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite, rule_of
from tracelake.hot import rows as hot_lists
from tracelake.hot import rows as hot_rows
from tracelake.hot import search, tier
from tracelake.hot.index import Coverage, HotIndex
from tracelake.hot.rows import UncommittedTraces
from tracelake.hot.tier import HotTraces
from tracelake.otlp import parse
from tracelake.pipeline.continuous import InboxPipeline
from tracelake.tables import scan
from tracelake.tables import table as whole_trace
from tracelake.tracking.store import TrackingStore


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (
            Mutation("resources count for each span", parse.rows_bytes, rewrite("_(_) * _1", "1 * _1")),
            test_large_resources.check_sizes,
        ),
        (
            Mutation("what is sent counts", parse.rows_bytes, rewrite("_1\n_2 = _", "_1\n_2 = 0")),
            test_large_resources.check_sizes,
        ),
        (
            Mutation("what grows much is not listed", hot_rows.add_part, rewrite("not _", "False")),
            test_large_resources.check_lists,
        ),
        (
            Mutation("none of it is listed", UncommittedTraces.newest, rewrite("not _", "True")),
            test_large_resources.check_lists,
        ),
        (
            Mutation(
                "nor said to be",
                UncommittedTraces.newest,
                rewrite("(_1 for _ in _2 if _)", "(_1 for _1, _, _ in _2 if True)"),
            ),
            test_large_resources.check_lists,
        ),
        (
            Mutation("lists have so much room", UncommittedTraces.newest, rewrite("_1 - _", "_1 - 0")),
            test_large_resources.check_room,
        ),
        (
            Mutation("text grows too", hot_rows.grows_much, rewrite("return _1", "return True or _1")),
            test_large_resources.check_sizes_of_text,
        ),
        (
            Mutation(
                "commits are read as far as there is room",
                hot_lists.HotLists.build,
                rewrite("[_1 for _1 in _2 if _]", "[_1 for _1 in _2]"),
            ),
            test_large_resources.check_room_beside_a_commit,
        ),
        (
            Mutation("what grows much is not indexed", hot_rows.decoded, rewrite("False", "True")),
            test_large_resources.check_searches,
        ),
        (
            Mutation(
                "nothing of such a trace is found",
                search.HotSearch._uncommitted_rows,
                rewrite("_ | _1", "_1"),
            ),
            test_large_resources.check_searches,
        ),
        (
            Mutation("it is said", Coverage.not_searched, drop("_._(_(_(_)))")),
            test_large_resources.check_searches,
        ),
        (
            Mutation(
                "it is said of what is looked through",
                HotIndex.add_texts,
                rewrite("_1._(map(_2, _))", "_1", 2),
            ),
            test_large_resources.check_sifted,
        ),
        (
            Mutation("searches have so much room", HotIndex._built, rewrite("_1 - _", "_1 - 0")),
            test_large_resources.check_search_room,
        ),
        (
            Mutation("a step has so much room", hot_rows.add_part, rewrite("_ + _1 > _2", "_1 > _2", 2)),
            test_large_resources.check_step,
        ),
        (
            Mutation("so much waits of a trace", hot_rows.add_part, rewrite("_ or _1", "False or _1")),
            test_large_resources.check_whole,
        ),
        (
            Mutation(
                "so much of both tiers", tier.HotTier._both, rewrite("if _1: ...", "if False and _1: ...")
            ),
            test_large_resources.check_whole,
        ),
        (
            Mutation(
                "so much of a commit",
                whole_trace.read_trace,
                rewrite(
                    """
                    try:
                        return _1(_2, _3, a, _4).b(_5)
                    except _6 as c: ...
                    """,
                    """
                    try:
                        return _1(_2, _3, None, _4).b(_5)
                    except _6 as c: ...
                    """,
                ),
            ),
            test_large_resources.check_whole,
        ),
        (
            Mutation(
                "of a commit those of others do not count",
                whole_trace.read_trace,
                rewrite("if _: ...", "if False: ..."),
            ),
            test_large_resources.check_workspaces,
        ),
        (
            Mutation("nor of a part", hot_rows.add_part, rewrite("_ is not None", "False")),
            test_large_resources.check_workspaces,
        ),
        (
            Mutation("nor of an archive", tier.HotTier._here, rewrite("a is not None", "False")),
            test_large_resources.check_workspaces,
        ),
        (
            Mutation("nor of parts", HotTraces._of_large, rewrite("_1(_2, _)", "_1(_2, None)")),
            test_large_resources.check_workspaces,
        ),
        (
            Mutation("rows are those that are asked for", scan._only, rewrite("_ is None", "True")),
            test_large_resources.check_about,
        ),
        (Mutation("rows are counted", scan._limit_memory, drop("_ += _")), test_large_resources.check_about),
    ],
    ids=rule_of,
)
def test_broken_rules_are_caught(
    broken: Mutation,
    check: test_large_resources.Check,
    lake: tracelake.Lake,
    store: TrackingStore,
    pipeline: InboxPipeline,
) -> None:
    """The checks fail if any rule is removed."""
    assert_caught(broken, lambda: check(lake, store, pipeline))
