"""Rules for searches and lists of uncommitted rows, each broken once: one of their tests fails."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import tracelake
from tests.lake import test_hot_lists as shared_tests
from tests.lake import test_hot_search as tests
from tests.lake import test_hot_tier as list_tests
from tests.lake import test_hot_traces as trace_tests
from tests.lake.test_hot_search import _patient
from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite
from tracelake.hot import rows, tier
from tracelake.hot.index import Coverage, HotIndex, _Pending
from tracelake.hot.rows import HotLists, UncommittedTraces
from tracelake.hot.search import HotSearch
from tracelake.hot.tier import HotTraces
from tracelake.lake.reads import LakeReads
from tracelake.tables.table import Table, span_counts
from tracelake.tasks.runners import InProcess
from tracelake.tracking.outbox import Uncommitted

Check = Callable[[tracelake.Lake, Path], object]


def check_standing(lake: tracelake.Lake, _folder: Path) -> None:
    with closing(lake.pipeline(runner=InProcess())) as pipeline:
        tests.test_the_claim_that_stands_is_found(lake, lake.hot.set_up(), pipeline)


def check_workspaces(lake: tracelake.Lake, _folder: Path) -> None:
    with closing(lake.pipeline(runner=InProcess())) as pipeline:
        tests.test_w11_a_claim_of_another_workspace_hides_nothing(lake, lake.hot.set_up(), pipeline)


def check_asked(lake: tracelake.Lake, _folder: Path) -> None:
    with closing(lake.pipeline(runner=InProcess())) as pipeline, pytest.MonkeyPatch.context() as patch:
        tests.test_the_commit_is_asked_for_what_waits_alone(lake, lake.hot.set_up(), pipeline, patch)


def check_pages(lake: tracelake.Lake, folder: Path) -> None:
    with closing(lake.pipeline(runner=InProcess())) as pipeline:
        tests.test_pages_go_on_where_they_began(folder, lake, lake.hot.set_up(), pipeline)


def check_said(lake: tracelake.Lake, _folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        tests.test_few_runs_are_named(lake, lake.hot.set_up(), patch)


def check_damage(lake: tracelake.Lake, _folder: Path) -> None:
    tests.test_damage_hides_nothing_else(lake, lake.hot.set_up())


def check_opened(lake: tracelake.Lake, _folder: Path) -> None:
    with closing(lake.pipeline(runner=InProcess())) as pipeline, pytest.MonkeyPatch.context() as patch:
        list_tests.test_a_trace_that_no_part_has_opens_none(lake, lake.hot.set_up(), pipeline, patch)


def check_list_damage(_lake: tracelake.Lake, folder: Path) -> None:
    for how in shared_tests.DAMAGE:
        with tracelake.init(folder / how) as of_its_own:
            shared_tests.test_damage_hides_nothing_else(of_its_own, of_its_own.hot.set_up(), how)


def check_not_listed(lake: tracelake.Lake, _folder: Path) -> None:
    with closing(lake.pipeline(runner=InProcess())) as pipeline:
        shared_tests.test_all_who_list_are_told_what_is_not(lake, lake.hot.set_up(), pipeline)


def check_lists(lake: tracelake.Lake, _folder: Path) -> None:
    with closing(lake.pipeline(runner=InProcess())) as pipeline, pytest.MonkeyPatch.context() as patch:
        list_tests.test_lists_are_bounded(lake, lake.hot.set_up(), pipeline, patch)


def check_committed(lake: tracelake.Lake, _folder: Path) -> None:
    with closing(lake.pipeline(runner=InProcess())) as pipeline, pytest.MonkeyPatch.context() as patch:
        shared_tests.test_a_commit_is_asked_for_new_traces_alone(lake, lake.hot.set_up(), pipeline, patch)


def check_more(lake: tracelake.Lake, _folder: Path) -> None:
    with closing(lake.pipeline(runner=InProcess())) as pipeline, pytest.MonkeyPatch.context() as patch:
        shared_tests.test_lists_say_that_more_traces_are_pending(lake, lake.hot.set_up(), pipeline, patch)


def check_kept(lake: tracelake.Lake, _folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        shared_tests.test_a_list_costs_what_came_since(lake.hot.set_up(), patch)


def check_large(lake: tracelake.Lake, _folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        trace_tests.test_of_a_large_trace_what_waits_is_read(lake.hot.set_up(), trace_tests.notes(patch))


def check_given_up(lake: tracelake.Lake, _folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        trace_tests.notes(patch)
        trace_tests.test_what_was_given_up_is_read(lake.hot.set_up(), patch)


def check_sizes(lake: tracelake.Lake, _folder: Path) -> None:
    store = lake.hot.set_up()
    for parts, size_bytes in trace_tests.LARGE:
        with pytest.MonkeyPatch.context() as patch:
            trace_tests.test_a_trace_is_large_by_parts_and_by_bytes(store, patch, parts, size_bytes)


def check_turns(lake: tracelake.Lake, _folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        trace_tests.test_large_traces_are_read_in_turn(lake, lake.hot.set_up(), patch)


def check_together(lake: tracelake.Lake, _folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        shared_tests.test_who_lists_together_shares_what_is_begun_next(lake, lake.hot.set_up(), patch)


def check_waits(lake: tracelake.Lake, _folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        tests.test_a_search_waits_for_others_no_longer_than_it_may(lake, lake.hot.set_up(), patch)


def check_small(lake: tracelake.Lake, _folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        tests.test_small_parts_become_one(lake, lake.hot.set_up(), patch)


UNREADABLE = Mutation(
    "damage hides nothing else",
    rows.decoded,
    rewrite(
        """
        try: ...
        except _1: ...
        except _: ...
        """,
        """
        try: ...
        except _1: ...
        except KeyError: ...
        """,
    ),
)


MUTANTS: list[tuple[Mutation, Check]] = [
    (
        Mutation(
            "what has left the store is not compared",
            HotSearch._uncommitted_rows,
            rewrite("a = _1(_2, _3(_4))", "a = _3(_4)", 1),
        ),
        check_asked,
    ),
    (Mutation("no trace is in no part", Table.lookup, rewrite("not a or _1", "_1")), check_opened),
    (
        Mutation(
            "the next page is of the rows of the first",
            HotSearch._covered_by_page,
            rewrite("_._(_, _._)", "[]"),
        ),
        check_pages,
    ),
    (
        Mutation(
            "made-up pages are refused",
            HotSearch._covered_by_page,
            rewrite("_ != _", "False"),
        ),
        check_pages,
    ),
    (
        Mutation(
            "what is not searched is said", Coverage.not_searched, rewrite("if _ or _: ...", "if 0: ...")
        ),
        check_said,
    ),
    (
        Mutation(
            "lists read no huge trace",
            Uncommitted.listed,
            rewrite("min(_1, _._)", "_1"),
        ),
        check_lists,
    ),
    (
        Mutation(
            "lists read no trace of many committed spans",
            rows._shown,
            rewrite("min(_1, _._)", "_1"),
        ),
        check_lists,
    ),
    (
        Mutation(
            "a commit is asked for new traces alone",
            span_counts,
            rewrite("(_1 for _1 in _2 if _1 not in _3)", "(_1 for _1 in _2)"),
        ),
        check_committed,
    ),
    (
        Mutation(
            "what a commit has is kept",
            span_counts,
            rewrite("{a: _ for a in _1}", "{a: 0 for a in _1}"),
        ),
        check_committed,
    ),
    (
        Mutation(
            "lists say that traces are missing", Uncommitted.listed, rewrite("len(_) == len(_)", "True")
        ),
        check_more,
    ),
    (
        Mutation(
            "lists say that spans are missing",
            HotLists.build,
            rewrite("(None, not _)", "(None, True)"),
        ),
        check_more,
    ),
    (
        Mutation("lists read no more committed spans than that", rows._shown, drop("_ -= _")),
        check_lists,
    ),
    (
        Mutation(
            "what a list keeps is told by trace and row",
            UncommittedTraces.newest,
            rewrite(
                "[_1 for _1 in _2 if _1 not in _3]",
                "[_1 for _1 in _2 if _1[0] not in {each[0] for each in _3}]",
            ),
        ),
        check_kept,
    ),
    (
        Mutation("a list reads what came since", UncommittedTraces.newest, rewrite("_ in _", "False")),
        check_kept,
    ),
    (
        Mutation(
            "what has left is not kept",
            UncommittedTraces.newest,
            rewrite("_ < _", "False"),
        ),
        check_kept,
    ),
    (
        Mutation("of a large trace what waits is read", HotTraces._of_large, rewrite("True", "False")),
        check_large,
    ),
    (
        Mutation(
            "what was given up is read",
            HotTraces._of_large,
            rewrite("self._(_)", "False"),
        ),
        check_given_up,
    ),
    (
        Mutation(
            "whether some was given up is asked last",
            HotTraces._of_large,
            rewrite(
                "_1 = _2(_3, a=_4)\nif _5 or _6: ...",
                """
                given_up = _5
                _1 = _2(_3, a=_4)
                if given_up or _6: ...
                """,
            ),
        ),
        check_given_up,
    ),
    (
        Mutation(
            "a trace is large by its parts",
            tier.is_large,
            rewrite("len(_) > _", "False"),
        ),
        check_sizes,
    ),
    (
        Mutation(
            "a trace is large by its bytes",
            tier.is_large,
            rewrite("_1 or _", "_1 or False"),
        ),
        check_sizes,
    ),
    (
        Mutation(
            "large traces are read in turn",
            HotTraces.rows,
            rewrite("if _1: ...\n_", "if _1: ...\npass"),
        ),
        check_turns,
    ),
    (
        Mutation("small traces need no turn", HotTraces.rows, rewrite("not _", "False")),
        check_turns,
    ),
    (
        Mutation("nobody gets a list of before", HotLists.newest, rewrite("_1 <= _2", "_1 < _2")),
        check_together,
    ),
    (
        Mutation("who lists together shares", HotLists.newest, rewrite("_ <= _", "True")),
        check_together,
    ),
    (UNREADABLE, check_damage),
    (UNREADABLE, check_list_damage),
    (
        Mutation(
            "none of what is damaged is listed",
            rows.decoded,
            rewrite("if _: ...", "if False: ..."),
        ),
        check_list_damage,
    ),
    (
        Mutation(
            "damage is said",
            rows.decoded,
            rewrite(
                """
                try: ...
                except _1: ...
                except _2:
                    _
                """,
                """
                try: ...
                except _1: ...
                except _2:
                    pass
                """,
            ),
        ),
        check_list_damage,
    ),
    (
        Mutation(
            "what is refused is damage",
            rows.add_part,
            rewrite("try: ...\nexcept _ as a: ...", "try: ...\nexcept KeyError as a: ..."),
        ),
        check_list_damage,
    ),
    (
        Mutation("tables say what they lack", LakeReads.sql, rewrite("return _1(_2, _3)", "return _2")),
        check_not_listed,
    ),
    (
        Mutation(
            "what others are at is said", _Pending.coverage, rewrite("frozenset(_1) - _2", "frozenset()", 2)
        ),
        check_waits,
    ),
    (
        Mutation(
            "a part has a quarter of a step",
            HotIndex._index,
            rewrite("_1(_2, _3, _4)", "_1(_2, _3, 1 << 60)", 3),
        ),
        check_small,
    ),
    (
        Mutation("small parts become one", HotIndex._index, rewrite("len(_) > _", "False", 1)),
        check_small,
    ),
]


@pytest.mark.parametrize(("broken", "check"), MUTANTS, ids=[broken.rule for broken, _ in MUTANTS])
def test_broken_rules_are_caught(tmp_path: Path, broken: Mutation, check: Check) -> None:
    """A test fails for each broken rule."""
    with tracelake.init(tmp_path / "lake") as lake:
        assert_caught(broken, lambda: check(lake, tmp_path))
