"""Rules for searches and lists of uncommitted rows, each broken once: one of their tests fails."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import tracelake
from tests.broken import Broken, assert_caught
from tests.lake import test_hot_lists as shared_tests
from tests.lake import test_hot_search as tests
from tests.lake import test_hot_tier as list_tests
from tests.lake import test_hot_traces as trace_tests
from tests.lake.test_hot_search import _patient  # noqa: F401  a fixture for this module, too
from tracelake.hot import rows, search, tier
from tracelake.hot.index import HotIndex
from tracelake.hot.rows import HotLists, UncommittedTraces
from tracelake.hot.search import HotSearch
from tracelake.hot.tier import HotTraces
from tracelake.lake.reads import LakeReads
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


def check_ahead(lake: tracelake.Lake, _folder: Path) -> None:
    with closing(lake.pipeline(runner=InProcess())) as pipeline, pytest.MonkeyPatch.context() as patch:
        tests.test_what_is_indexed_ahead_is_not_indexed_by_a_search(lake, lake.hot.set_up(), pipeline, patch)


def check_left(lake: tracelake.Lake, _folder: Path) -> None:
    with closing(lake.pipeline(runner=InProcess())) as pipeline, pytest.MonkeyPatch.context() as patch:
        tests.test_much_is_left_to_a_pipeline_that_is_at_work(lake, lake.hot.set_up(), pipeline, patch)


def check_ahead_fails(lake: tracelake.Lake, _folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        tests.test_what_came_is_findable_where_the_commit_does_not_open(lake, lake.hot.set_up(), patch)


def check_waits(lake: tracelake.Lake, _folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        tests.test_a_search_waits_for_others_no_longer_than_it_may(lake, lake.hot.set_up(), patch)


def check_small(lake: tracelake.Lake, _folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        tests.test_no_more_become_one_than_a_step_has(lake, lake.hot.set_up(), patch)


MUTANTS: list[tuple[Broken, Check]] = [
    (
        Broken(
            "a span is found by the claim that stands",
            HotSearch._uncommitted_rows,
            "latest_version_rows(every.select(SPANS.names))",
            "np.arange(len(every))",
        ),
        check_standing,
    ),
    (
        Broken(
            "a claim of another workspace hides nothing",
            HotSearch._uncommitted_rows,
            "latest_version_rows(every.select(SPANS.names))",
            'latest_version_rows(every.set_column(SPANS.names.index("workspace"), "workspace", '
            'pa.array([""] * len(every))).select(SPANS.names))',
        ),
        check_workspaces,
    ),
    (
        Broken("what has left the store is not compared", search._committed_traces, "not in waits}", "< 0}"),
        check_asked,
    ),
    (
        Broken("what waits is compared", search._committed_traces, "sequence in waits)", "sequence < 0)"),
        check_asked,
    ),
    (
        Broken(
            "what left while some was indexed is not compared",
            search._as_they_wait,
            "_committed_traces(nameable, waiting)",
            "_committed_traces(nameable, {each for part in nameable for each in part.sizes})",
        ),
        check_asked,
    ),
    (
        Broken(
            "the next page is of the rows of the first",
            HotSearch._of_page,
            "uncommitted.in_ranges(runs, limits.UNCOMMITTED_SEARCH_ROWS_MAX)",
            "[]",
        ),
        check_pages,
    ),
    (
        Broken(
            "made-up pages are refused",
            HotSearch._of_page,
            "token.newer != self._signed(token.commit, run_names, token.search)",
            "False",
        ),
        check_pages,
    ),
    (
        Broken("what is not searched is said", search._snapshot, "lacking or more", "lacking"),
        check_said,
    ),
    (
        Broken(
            "lists read no huge trace",
            Uncommitted.listed,
            "size <= min(room, limits.UNCOMMITTED_LIST_TRACE_MAX_BYTES)",
            "size <= room",
        ),
        check_lists,
    ),
    (
        Broken(
            "lists read no trace of many committed spans",
            rows._shown,
            "min(room, limits.UNCOMMITTED_LIST_TRACE_MAX_SPANS)",
            "room",
        ),
        check_lists,
    ),
    (
        Broken("lists read no more committed spans than that", rows._shown, "room -= spans", "pass"),
        check_lists,
    ),
    (
        Broken(
            "what a list keeps is told by trace and row",
            UncommittedTraces.newest,
            "if part not in reused",
            "if part[0] not in {each[0] for each in reused}",
        ),
        check_kept,
    ),
    (
        Broken(
            "a list reads what came since", UncommittedTraces.newest, "if part in self._numbers}", "if False}"
        ),
        check_kept,
    ),
    (
        Broken(
            "what has left is not kept",
            UncommittedTraces.newest,
            "if len(reused) < len(self._numbers)",
            "if False",
        ),
        check_kept,
    ),
    (
        Broken("of a large trace what waits is read", HotTraces._of_large, "waiting=True", "waiting=False"),
        check_large,
    ),
    (
        Broken(
            "what was given up is read",
            HotTraces._of_large,
            "self.is_given_up(trace_id)",
            "False",
        ),
        check_given_up,
    ),
    (
        Broken(
            "whether some was given up is asked last",
            HotTraces._of_large,
            "    parts = self._uncommitted.of_trace(trace_id, waiting=True)\n"
            "    # Asked after that: who gives rows up marks their traces by the same transaction.\n"
            "    if self.is_given_up(trace_id)",
            "    given_up = self.is_given_up(trace_id)\n"
            "    parts = self._uncommitted.of_trace(trace_id, waiting=True)\n"
            "    if given_up",
        ),
        check_given_up,
    ),
    (
        Broken(
            "a trace is large by its parts",
            tier.is_large,
            "len(parts) > HOT_TRACE_PARTS",
            "False",
        ),
        check_sizes,
    ),
    (
        Broken(
            "a trace is large by its bytes",
            tier.is_large,
            "sum(part[2] for part in parts) > HOT_TRACE_BYTES",
            "False",
        ),
        check_sizes,
    ),
    (
        Broken(
            "large traces are read in turn",
            HotTraces.rows,
            "self._reading.begin()",
            "pass",
        ),
        check_turns,
    ),
    (
        Broken("small traces need no turn", HotTraces.rows, "not is_large(parts)", "False"),
        check_turns,
    ),
    (
        Broken(
            "nobody gets a list of before", HotLists.newest, "self._made <= started", "self._made < started"
        ),
        check_together,
    ),
    (
        Broken("who lists together shares", HotLists.newest, "self._made <= started", "True"),
        check_together,
    ),
    (
        Broken("damage hides nothing else", rows.decoded, "except DamageError", "except KeyError"),
        check_damage,
    ),
    (
        Broken(
            "damage hides nothing else of a list",
            UncommittedTraces._read,
            "except DamageError",
            "except KeyError",
        ),
        check_list_damage,
    ),
    (
        Broken("none of what is damaged is listed", UncommittedTraces._read, "if unread:", "if False:"),
        check_list_damage,
    ),
    (
        Broken("damage is said", UncommittedTraces._read, "unread.add(part.trace_id)", "pass"),
        check_list_damage,
    ),
    (
        Broken("what is refused is damage", rows.add_part, "except InputError", "except KeyError"),
        check_list_damage,
    ),
    (
        Broken("tables say what they lack", LakeReads.sql, "newer.not_listed is None", "True"),
        check_not_listed,
    ),
    (
        Broken(
            "what is made ahead is kept",
            HotIndex.index_newest,
            "self._parts = self._merged(",
            "_ = self._merged(",
        ),
        check_ahead,
    ),
    (
        Broken(
            "a step ahead is a small one",
            HotIndex.index_newest,
            "UNCOMMITTED_AHEAD_STEP_BYTES",
            "limits.UNCOMMITTED_SEARCH_STEP_BYTES",
        ),
        check_ahead,
    ),
    (
        Broken(
            "not where a search did it",
            HotIndex.index_newest,
            "< limits.UNCOMMITTED_AHEAD_EVERY_S",
            "< 0.0",
        ),
        check_ahead,
    ),
    (
        Broken(
            "only while searches come",
            HotSearch.index_newest,
            "> UNCOMMITTED_AHEAD_FOR_S",
            "== -1.0",
        ),
        check_ahead,
    ),
    (
        Broken(
            "what came is made findable first",
            HotSearch.index_newest,
            "    is_more = self",
            "    self._opened.read(MAIN, CommitView.open_index)\n    is_more = self",
        ),
        check_ahead_fails,
    ),
    (
        Broken("much is left to the pipeline", HotIndex._covering, "if at_work and", "if False and"),
        check_left,
    ),
    (
        Broken("only where it is much", HotIndex._covering, "> UNCOMMITTED_SEARCH_LEFT_BYTES", ">= 0"),
        check_left,
    ),
    (
        Broken("only where rows leave", HotIndex.look, "if self._oldest - oldest:", "if True:"),
        check_left,
    ),
    (
        Broken("what is left is said", HotIndex._covering, "len(sizes) + len(new),", "len(sizes),"),
        check_left,
    ),
    (
        Broken("so is why, where others are at it", HotIndex.newest, "self._is_at_work() and", "False and"),
        check_left,
    ),
    (
        Broken("what others are at is said", HotIndex.newest, "len(lacking), more", "0, more"),
        check_waits,
    ),
    (
        Broken("no more become one than a step has", HotIndex._merged, "total <= step_bytes", "total > 0"),
        check_small,
    ),
]


@pytest.mark.parametrize(("broken", "check"), MUTANTS, ids=[broken.rule for broken, _ in MUTANTS])
def test_broken_rules_are_caught(tmp_path: Path, broken: Broken, check: Check) -> None:
    """A test fails for each broken rule."""
    with tracelake.init(tmp_path / "lake") as lake:
        assert_caught(broken, lambda: check(lake, tmp_path))
