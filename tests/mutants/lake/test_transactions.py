"""Mutants that `tests/lake/test_transactions.py` notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lake import test_transactions
from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tracelake.journal.explicit_transactions import (
    begin_transaction,
    client_request,
    on_bound,
    on_over,
    on_poll,
    takes,
)
from tracelake.pipeline.driver import _DriverRun


@pytest.mark.parametrize(
    "broken",
    [Mutation("it is not looked again", _DriverRun._append, rewrite("_ and _1", "False and _1"))],
    ids=rule_of,
)
def test_a_client_begins_while_a_transaction_is_open(broken: Mutation, tmp_path: Path) -> None:
    """The check fails if the rule is broken."""
    assert_caught(
        broken, lambda: test_transactions.test_a_client_begins_while_a_transaction_is_open(tmp_path)
    )


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("a client has longer than it asked for", on_poll, rewrite("_1 <= _2", "_1 <= _2 + 60")),
        Mutation("a clock that was ahead counts", on_poll, rewrite("_ > _1", "False and _1")),
        Mutation("every transaction is the client's", takes, rewrite("(None, _1)", "(None, _1, 3)")),
        Mutation("over before its commit", on_over, rewrite("_ >= _", "False")),
        Mutation(
            "a step that came late counts",
            client_request,
            rewrite("if _1 or _2: ...", "if _1 or _2:\n    return 'commit'"),
        ),
        Mutation(
            "who begins forgets what was over",
            begin_transaction,
            rewrite("_1(_2, a=_, b=_3)", "_1(_2, a=_2.upper, b=_3)"),
        ),
        Mutation("bound twice", on_bound, rewrite("_1 or _2 or _", "_1 or _2")),
        Mutation(
            "a commit counts before what waited is taken",
            client_request,
            rewrite("_1.a if _1._ else _", "_1.a"),
        ),
    ],
    ids=rule_of,
)
def test_rules_of_clients(broken: Mutation) -> None:
    """Each rule holds, and the test fails if it is broken."""
    test_transactions.decisions()
    assert_caught(broken, test_transactions.decisions)


@pytest.mark.parametrize(
    "broken",
    [
        Mutation(
            "a step that came late counts",
            client_request,
            rewrite("if _1 or _2: ...", "if _1 or _2:\n    return 'commit'"),
        )
    ],
    ids=rule_of,
)
def test_a_first_step_that_comes_after_the_abort_is_discarded(broken: Mutation) -> None:
    """The check fails if the rule is broken."""
    assert_caught(broken, test_transactions.test_a_first_step_that_comes_after_the_abort_is_discarded)
