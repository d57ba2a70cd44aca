"""Mutants that `tests/versions/test_expiry.py` notices."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite, rule_of
from tests.versions import test_expiry
from tracelake.versions import protocol
from tracelake.versions.branch_store import BranchRecords
from tracelake.versions.commits import Commits, RefClaims
from tracelake.versions.expiry import Ancestry, GapRecords

_RULES: list[tuple[Mutation, Callable[[], None]]] = [
    (
        Mutation("forks stay", protocol.retentions, rewrite("if len(_) > 1: ...", "if False: ...")),
        test_expiry.test_a_merge_base_stays_so_that_a_merge_is_right,
    ),
    (
        Mutation("the commit before a person's stays", protocol.retentions, drop("a(_, b(_, _), _)", nth=3)),
        test_expiry.test_a_persons_old_commit_stays_revertible,
    ),
    (
        Mutation("heads stay", protocol.retentions, rewrite("{_1: _2 for _ in (*_, *_) if _ in _}", "{}")),
        test_expiry.test_old_transactions_expire_and_log_skips_them,
    ),
    (
        Mutation(
            "a state is current until the next", protocol.retentions, rewrite("(_1, *_2)", "(_1,)", nth=3)
        ),
        test_expiry.test_a_state_was_current_until_the_next_commit,
    ),
    (
        Mutation("the longest reason counts", protocol.add_reason, rewrite("_1 or _2", "_1")),
        test_expiry.test_a_reason_for_each_commit_that_stays,
    ),
    (
        Mutation("the last commit of each day stays", protocol.last_of_days, drop("_._(_)", nth=3)),
        test_expiry.test_one_commit_a_day_stays,
    ),
    (
        Mutation(
            "entries stay computable", protocol.add_entry_reason, rewrite("if not _: ...", "if False: ...")
        ),
        test_expiry.test_entries_of_a_kept_commit_stay_computable,
    ),
    (
        Mutation("a gap only grows", GapRecords.widen, rewrite("_1 if _ else _2", "_1")),
        test_expiry.test_a_slow_collector_does_not_shorten_a_gap,
    ),
    (
        Mutation("a walk skips what was written again", Ancestry.nearest, rewrite("_1 > _2", "True")),
        test_expiry.test_a_commit_that_a_slow_helper_writes_again_stays_expired,
    ),
    (
        Mutation("a decision counts at once", Ancestry.find_gap, rewrite("_1 or _2", "_2")),
        test_expiry.test_a_tag_for_a_commit_that_has_just_expired_is_refused,
    ),
    (
        Mutation("a name is announced", RefClaims.give, drop("_._._()")),
        test_expiry.test_a_tag_given_while_its_commit_expires,
    ),
    (
        Mutation("a name makes the decision fail", BranchRecords.swap_epoch, rewrite("_1 and _2", "_2")),
        test_expiry.test_a_tag_given_while_its_commit_expires,
    ),
    (
        Mutation("a merge announces its claim", Commits.is_claimable, drop("_._._()")),
        test_expiry.test_a_merge_sealed_while_its_commit_expires,
    ),
]


@pytest.mark.parametrize(("broken", "check"), _RULES, ids=[rule_of(broken) for broken, _ in _RULES])
def test_a_broken_rule_of_expiry(broken: Mutation, check: Callable[[], None]) -> None:
    """Each broken rule is caught by the named test."""
    assert_caught(broken, check)
