"""Mutants that `tests/pipeline/test_steps.py` notices."""

from __future__ import annotations

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.pipeline import test_steps
from tracelake.pipeline.replay import OpenTransaction, Replayer


@pytest.mark.parametrize(
    "broken",
    [Mutation("what was fed of one stands for another", Replayer.fed, rewrite("_ == _", "True"))],
    ids=rule_of,
)
def test_what_waits_is_dropped_where_a_peer_has_committed_it(broken: Mutation) -> None:
    """The check fails if the rule is broken."""
    assert_caught(broken, test_steps.test_what_waits_is_dropped_where_a_peer_has_committed_it)


@pytest.mark.parametrize(
    "broken",
    [Mutation("the first step says when it was begun", OpenTransaction.age_s, rewrite("max", "min"))],
    ids=rule_of,
)
def test_the_delay_of_a_transaction_does_not_begin_anew_with_each_process(
    broken: Mutation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check fails if the rule is broken."""
    assert_caught(
        broken,
        lambda: test_steps.test_the_delay_of_a_transaction_does_not_begin_anew_with_each_process(monkeypatch),
    )
