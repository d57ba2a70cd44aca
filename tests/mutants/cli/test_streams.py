"""Mutants that `tests/cli/test_streams.py` notices."""

from __future__ import annotations

import select
from collections.abc import Callable

import pytest

from tests.cli import test_streams
from tests.cli.conftest import RunCli
from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tracelake.cli import output
from tracelake.cli import serve as servers
from tracelake.cli.output import _SafeConsole


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (
            Mutation(
                "a pipe of another is told",
                output._let_go,
                rewrite(
                    "any((_ for _ in _1))", "(event & pollerr for _, event in _1)", pollerr=select.POLLERR
                ),
            ),
            test_streams.check_error_of_another,
        ),
        (
            Mutation("what nobody hears goes nowhere", _SafeConsole.on_broken_pipe, rewrite("_(_)", "raise")),
            test_streams.check_nobody_hears,
        ),
        (
            Mutation("it serves all the same", servers.serve, rewrite("OSError", "KeyError")),
            test_streams.check_serves_all_the_same,
        ),
    ],
    ids=rule_of,
)
def test_broken_rules_are_caught(cli: RunCli, broken: Mutation, check: Callable[..., None]) -> None:
    """Each broken rule is caught."""
    with pytest.MonkeyPatch.context() as patch:
        assert_caught(broken, lambda: check(cli, patch))
